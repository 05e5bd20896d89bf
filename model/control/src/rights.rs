//! Who may ask what.

use abi::bundle::control_rights;
use abi::control::request;

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
            | request::MEM
            | request::MACHINE_MEM
            | request::REGIONS
            | request::MEM_WHY
            | request::PAGES
            | request::NUMA,
        ) => Right::Group,
        _ => Right::None,
    }
}
