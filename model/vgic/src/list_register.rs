//! The fields of `ICH_LR<n>_EL2` (Arm IHI 0069, 12.4).

/// State bit: pending.
pub(crate) const PENDING: u64 = 1 << 62;
/// State bit: active.
pub(crate) const ACTIVE: u64 = 1 << 63;
/// Both state bits: the only ones hardware changes.
pub(crate) const STATE: u64 = PENDING | ACTIVE;
/// Ending it in the guest ends a physical interrupt too.
pub(crate) const HW: u64 = 1 << 61;
/// Group 1.
pub(crate) const GROUP1: u64 = 1 << 60;
/// Without [`HW`]: a maintenance interrupt when the guest has ended it.
pub(crate) const EOI: u64 = 1 << 41;

const PRIORITY_SHIFT: u32 = 48;
const PHYSICAL_SHIFT: u32 = 32;

/// The priority field holding `priority`.
pub(crate) const fn with_priority(priority: u8) -> u64 {
    (priority as u64) << PRIORITY_SHIFT
}

/// The fields that tie a list register to physical interrupt `physical`.
pub(crate) const fn with_physical(physical: u8) -> u64 {
    HW | (physical as u64) << PHYSICAL_SHIFT
}

/// The virtual interrupt in a list register.
pub(crate) const fn intid(value: u64) -> u32 {
    value as u32
}

/// Its priority: lower is more urgent.
pub(crate) const fn priority(value: u64) -> u8 {
    (value >> PRIORITY_SHIFT) as u8
}
