//! Who may ask what.

use abi::Text;
use abi::bundle::control_rights;
use abi::control::{Request, VmName, request};

/// What a request may see and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// It is refused.
    None,
    /// VMs of the asker's share group are all that it sees, and it changes nothing.
    Group,
    /// Everything.
    All,
}

/// What a request of this kind may, of a VM with these rights ([`control_rights`]).
pub fn right(rights: u8, kind: u32) -> Right {
    match (rights, kind) {
        (control_rights::ALL, _) => Right::All,
        (
            control_rights::READ,
            request::HELLO
            | request::LIST
            | request::SHOW
            | request::NODES
            | request::CPUS
            | request::REGIONS
            | request::PAGE_COUNTS
            | request::PAGES,
        ) => Right::Group,
        _ => Right::None,
    }
}

/// Whoever sends requests: the machine's owner, or a VM.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// One of [`control_rights`].
    pub rights: u8,
    /// Its share group, where it is a VM.
    pub group: Text<24>,
}

/// Why a request is refused before anybody acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The caller may not send requests of this kind.
    NotAllowed,
    /// There is no VM of this name, or none that the caller may know of: it is not told which.
    NoSuchVm(VmName),
}

impl Caller {
    /// Whoever owns the machine.
    pub fn owner() -> Self {
        Self::vm(control_rights::ALL, Text::default())
    }

    /// A VM of that share group with these rights ([`control_rights`]).
    pub const fn vm(rights: u8, group: Text<24>) -> Self {
        Self { rights, group }
    }

    /// Whether it sees consoles, and everything else.
    pub const fn may_all(self) -> bool {
        self.rights == control_rights::ALL
    }

    /// Whether it knows VMs of that group.
    pub fn sees(self, group: Text<24>) -> bool {
        match self.rights {
            control_rights::ALL => true,
            control_rights::READ => self.group == group,
            _ => false,
        }
    }

    /// Whether it may send that request, of this `kind`; `group_of` gives the share group of a VM, if there is one
    /// of that name.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check(
        self,
        kind: u32,
        request: &Request<'_>,
        group_of: impl FnOnce(VmName) -> Option<Text<24>>,
    ) -> Result<(), Denied> {
        if right(self.rights, kind) == Right::None {
            return Err(Denied::NotAllowed);
        }
        match about(request) {
            Some(name) if !group_of(name).is_some_and(|group| self.sees(group)) => {
                Err(Denied::NoSuchVm(name))
            }
            _ => Ok(()),
        }
    }
}

/// The VM that a request is about, which must be there.
fn about(request: &Request<'_>) -> Option<VmName> {
    match request {
        Request::About(_, name) | Request::ConsoleInput(name, _) => Some(*name),
        Request::Set(asked) => Some(asked.to.name),
        Request::Reclaim(asked) => Some(asked.name),
        Request::Read(_, asked) => (!asked.name.is_empty()).then_some(asked.name),
        Request::NumaMove(asked) => Some(asked.name),
        Request::SpanMove(asked) => Some(asked.name),
        Request::Hello
        | Request::Create(_)
        | Request::PowerOff
        | Request::Trace(_)
        | Request::Events(_)
        | Request::Probe(_)
        | Request::ClusterLeave
        | Request::Recount(_) => None,
    }
}
