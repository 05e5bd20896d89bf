//! What a host knows of a page.

use crate::{Access, Hosts, NONE, Settings};

/// State of a host's copy of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// No copy that can be used.
    #[default]
    Invalid,
    /// One of several copies.
    Shared,
    /// One of several copies, and the one that is given to others.
    Owned,
    /// The only copy, which was not written since it came: it becomes [`State::Modified`] without a message.
    Exclusive,
    /// The only copy, which can be written.
    Modified,
}

impl State {
    /// Returns what vCPUs may do.
    pub const fn access(self) -> Access {
        match self {
            Self::Invalid => Access::None,
            Self::Shared | Self::Owned | Self::Exclusive => Access::Read,
            Self::Modified => Access::Write,
        }
    }

    /// Returns whether the home knows its host as the owner.
    pub(crate) const fn is_owner(self) -> bool {
        matches!(self, Self::Owned | Self::Exclusive | Self::Modified)
    }

    pub(crate) const fn allows(self, access: Access) -> bool {
        let most = match access {
            Access::Zero => Access::Write,
            other => other,
        };
        most as u8 <= self.access() as u8
    }
}

/// What a host knows of a page. The owner of a [`Host`] gives it one for each page of the VM, made by `default` or [`Page::first`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Page {
    /// Version of the bytes that are kept, usable or not; 0 if none are.
    pub(crate) version: u64,
    /// When the page came last.
    pub(crate) came_at_ns: u64,
    /// Of the home: hosts with [`State::Shared`].
    pub(crate) sharers: Hosts,
    /// Of the home: hosts that read the page before it was last written, and are to be given it again.
    pub(crate) readers: Hosts,
    /// Of the home: the transaction that is under way, and the first of those that wait.
    pub(crate) current: u16,
    pub(crate) queue: u16,
    /// Of the home: host with [`State::Owned`], [`State::Exclusive`] or [`State::Modified`].
    pub(crate) owner: u8,
    /// Of the home: the last host that is known to have written the page, and whether the page migrates: each host reads it and then
    /// writes it.
    pub(crate) writer: u8,
    pub(crate) migrates: bool,
    /// Open transaction of this host.
    pub(crate) slot: u8,
    pub(crate) state: State,
    /// How often the page came within short times.
    pub(crate) heat: u8,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            version: 0,
            came_at_ns: 0,
            sharers: 0,
            readers: 0,
            current: NONE,
            queue: NONE,
            owner: 0,
            writer: 0,
            migrates: true,
            slot: u8::MAX,
            state: State::Invalid,
            heat: 0,
        }
    }
}

impl Page {
    /// Returns what is known of a page at the beginning, when its home owns it.
    pub fn first<const HOSTS: usize>(settings: &Settings<HOSTS>, page: u32) -> Self {
        let owner = settings.home(page);
        let (version, state) = if owner == settings.host {
            (1, State::Modified)
        } else {
            (0, State::Invalid)
        };
        Self {
            version,
            owner,
            writer: owner,
            state,
            ..Self::default()
        }
    }
}
