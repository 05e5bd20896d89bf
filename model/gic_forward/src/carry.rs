//! The CPU interface as the system has set it, from the physical one to the virtual one and back.

/// The physical CPU interface (`ICC_*_EL1`), as read at EL2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuInterface {
    /// `ICC_PMR_EL1`: the priority mask.
    pub priority_mask: u64,
    /// `ICC_BPR0_EL1` and `ICC_BPR1_EL1`: binary points.
    pub binary_points: [u64; 2],
    /// `ICC_CTLR_EL1`, of which CBPR (bit 0) and EOImode (bit 1) are the system's.
    pub control: u64,
    /// `ICC_IGRPEN0_EL1` and `ICC_IGRPEN1_EL1`.
    pub groups: [u64; 2],
    /// `ICC_AP0R<n>_EL1` and `ICC_AP1R<n>_EL1`, all of a group in one: priorities of what is being handled.
    pub active_priorities: [u64; 2],
}

/// The virtual one (`ICH_*_EL2`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtualInterface {
    /// `ICH_VMCR_EL2`.
    pub control: u64,
    /// `ICH_AP0R<n>_EL2` and `ICH_AP1R<n>_EL2`, all of a group in one.
    pub active_priorities: [u64; 2],
}

/// How many registers of active priorities a virtual interface has for each group, by its `ICH_VTR_EL2.PREbits`: one
/// for 5 bits of preemption, two for 6, four for 7; further ones are UNDEFINED (Arm IHI 0069, `ICH_AP1R<n>_EL2`).
/// Arm's own cores, and all that QEMU has, have 5. A guest's priorities have 5 bits in any case, but hardware with
/// 7 spreads them over all four registers.
pub const fn active_priority_registers(vtr: u64) -> usize {
    match vtr >> 26 & 7 {
        0..=4 => 1,
        5 => 2,
        _ => 4,
    }
}

/// `ICC_CTLR_EL1.CBPR` and `ICC_CTLR_EL1.EOImode`.
const CONTROL: u64 = 3;

/// `ICH_VMCR_EL2` fields: lowest bit and width.
mod vmcr {
    pub const GROUP_0: (u32, u64) = (0, 1);
    pub const GROUP_1: (u32, u64) = (1, 1);
    /// Group 0 comes as FIQ: with system registers always one.
    pub const FIQ: u64 = 1 << 3;
    pub const COMMON_BINARY_POINT: (u32, u64) = (4, 1);
    pub const EOI_MODE: (u32, u64) = (9, 1);
    pub const BINARY_POINT_1: (u32, u64) = (18, 7);
    pub const BINARY_POINT_0: (u32, u64) = (21, 7);
    pub const PRIORITY_MASK: (u32, u64) = (24, 0xff);
}

const fn put((shift, mask): (u32, u64), value: u64) -> u64 {
    (value & mask) << shift
}

const fn get((shift, mask): (u32, u64), value: u64) -> u64 {
    value >> shift & mask
}

/// The virtual interface that behaves as the physical one does; `None` while the system handles an
/// interrupt, whose end it would then send to the wrong one.
pub const fn carry(physical: CpuInterface) -> Option<VirtualInterface> {
    let [active_0, active_1] = physical.active_priorities;
    if active_0 | active_1 != 0 {
        return None;
    }
    let control = put(vmcr::PRIORITY_MASK, physical.priority_mask)
        | put(vmcr::BINARY_POINT_0, physical.binary_points[0])
        | put(vmcr::BINARY_POINT_1, physical.binary_points[1])
        | put(vmcr::COMMON_BINARY_POINT, physical.control)
        | put(vmcr::EOI_MODE, physical.control >> 1)
        | put(vmcr::GROUP_0, physical.groups[0])
        | put(vmcr::GROUP_1, physical.groups[1])
        | vmcr::FIQ;
    Some(VirtualInterface {
        control,
        active_priorities: [0; 2],
    })
}

/// The physical interface that behaves as the virtual one does; `None` while the system handles an
/// interrupt.
pub const fn return_carried(carried: VirtualInterface) -> Option<CpuInterface> {
    let [active_0, active_1] = carried.active_priorities;
    if active_0 | active_1 != 0 {
        return None;
    }
    let control =
        get(vmcr::COMMON_BINARY_POINT, carried.control) | get(vmcr::EOI_MODE, carried.control) << 1;
    Some(CpuInterface {
        priority_mask: get(vmcr::PRIORITY_MASK, carried.control),
        binary_points: [
            get(vmcr::BINARY_POINT_0, carried.control),
            get(vmcr::BINARY_POINT_1, carried.control),
        ],
        control: control & CONTROL,
        groups: [
            get(vmcr::GROUP_0, carried.control),
            get(vmcr::GROUP_1, carried.control),
        ],
        active_priorities: [0; 2],
    })
}
