//! Hypervisor calls of Underpin's own: HVC with immediate 0 by SMCCC (Arm DEN0028), fast calls of 64
//! bits in the range of vendor-specific hypervisor services. A guest finds out that they are there by
//! the UUID that `0x8600_ff01` gives.

/// Marks guest memory as never to be shared with others, whatever it holds, or as shareable again.
///
/// | register | in | out |
/// |---|---|---|
/// | X0 | this number | how many pages are done, or a negative code of PSCI |
/// | X1 | guest-physical address of the first page, a multiple of 4 KiB | |
/// | X2 | how many pages, 1 or more | |
/// | X3 | [`NEVER`] or [`AGAIN`] | |
///
/// One call does [`PAGES_AT_ONCE`] pages at most and may do fewer, even none: the guest calls again for
/// the rest. A page that others use gets a frame of its own in the call. `INVALID_PARAMETERS` (-2)
/// where one of the pages is not memory of the VM, `NOT_SUPPORTED` (-1) where the machine has no memory for it.
pub const NEVER_SHARE: u32 = 0xc600_0020;
/// The most pages that one call does.
pub const PAGES_AT_ONCE: u64 = 64;
/// X3: the pages are not to be shared.
pub const NEVER: u64 = 1;
/// X3: the pages may be shared again.
pub const AGAIN: u64 = 0;

/// For benches, where EL2 has hooks and its command line [`MAY_SET_ASIDE`]: sets free frames aside, which nobody uses
/// then, until no more are free than X1 says, or gives back of those until as many are. X0: how many are free
/// then. `NOT_SUPPORTED` (-1) elsewhere.
pub const SET_ASIDE: u32 = 0xc600_0021;
/// The word on EL2's command line.
pub const MAY_SET_ASIDE: &str = "aside";
