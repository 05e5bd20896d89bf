//! The executing CPU as an operating system at EL1 would find it without EL2.

use crate::cpu::isb;
use crate::fp::{fp_load, fp_save, sve_load, sve_save};
use crate::guest::{El1State, FpState};
use crate::list_registers::HardwareLists;
use crate::{timer, tlb};
use machine_contract::ListRegisters;
use model_id_registers::traps;
use model_native_el1::Native;

/// Calls `$write!` for each gate register with its value: encodings for those that assemblers may
/// not know by name.
macro_rules! write_if {
    ($value:expr, $name:literal) => {
        if let Some(value) = $value {
            // SAFETY: the register exists by the ID registers (`model_native_el1`), and it says
            // what EL1 may do alone.
            unsafe { write_sysreg!($name, value) }
        }
    };
}

/// Sets EL2's registers so that EL1 has the CPU for itself: no stage 2, no interrupts to EL2,
/// nothing withheld, SMC alone traps. `vtcr` and `vttbr` are those of the time when EL2 attaches:
/// stage 2 is off, but TLB entries carry the VMID already.
///
/// # Safety
///
/// EL2 runs with E2H clear. What runs at EL1 from now on may read and write all memory and drive
/// all devices: it is the machine's owner.
pub unsafe fn open(native: &Native, vtcr: u64, vttbr: u64) {
    // SAFETY: the caller's promise.
    unsafe { let_through(native, native.hcr, vtcr, vttbr) }
    timer::clear_alarm();
    open_interrupts();
}

/// Gives EL1 everything but interrupts, with this `HCR_EL2`: as [`open`], or when the owner goes on
/// after a VM.
///
/// # Safety
///
/// As [`open`].
pub unsafe fn let_through(native: &Native, hcr: u64, vtcr: u64, vttbr: u64) {
    let (midr, mpidr) = (read_sysreg!("midr_el1"), read_sysreg!("mpidr_el1"));
    let counters = if native.has_pmu {
        read_sysreg!("pmcr_el0") >> 11 & 0x1f // PMCR_EL0.N
    } else {
        0
    };
    // SAFETY: these registers say what EL1 may do, which is all; EL2's execution does not depend on
    // them with E2H clear.
    unsafe {
        write_sysreg!("vtcr_el2", vtcr);
        write_sysreg!("vttbr_el2", vttbr);
        write_sysreg!("hcr_el2", hcr);
        write_sysreg!("cptr_el2", native.cptr);
        write_sysreg!("mdcr_el2", native.mdcr | counters);
        write_sysreg!("hstr_el2", 0_u64);
        write_sysreg!("vpidr_el2", midr);
        write_sysreg!("vmpidr_el2", mpidr);
        write_sysreg!("cnthctl_el2", 3_u64); // EL1 has the physical counter and timer
        write_sysreg!("cntvoff_el2", 0_u64);
        write_sysreg!("s3_4_c12_c9_5", 0xf_u64); // ICC_SRE_EL2: SRE, DFB, DIB, Enable
    }
    isb();
    write_if!(native.hcrx, "s3_4_c1_c2_2"); // HCRX_EL2
    write_if!(native.sve, "s3_4_c1_c2_0"); // ZCR_EL2
    write_if!(native.sme, "s3_4_c1_c2_6"); // SMCR_EL2
    write_if!(native.sme.map(|_| 0_u64), "s3_4_c1_c2_5"); // SMPRIMAP_EL2
    write_if!(native.mpam.then_some(0_u64), "s3_4_c10_c5_0"); // MPAM2_EL2
    let traps = native.fine_grained;
    write_if!(traps.map(|traps| traps.registers), "s3_4_c1_c1_4"); // HFGRTR_EL2
    write_if!(traps.map(|traps| traps.registers), "s3_4_c1_c1_5"); // HFGWTR_EL2
    write_if!(traps.map(|traps| traps.instructions), "s3_4_c1_c1_6"); // HFGITR_EL2
    write_if!(traps.map(|traps| traps.debug), "s3_4_c3_c1_4"); // HDFGRTR_EL2
    write_if!(traps.map(|traps| traps.debug), "s3_4_c3_c1_5"); // HDFGWTR_EL2
    let monitors = traps.filter(|traps| traps.activity_monitors);
    write_if!(monitors.map(|_| 0_u64), "s3_4_c3_c1_6"); // HAFGRTR_EL2
    isb();
}

/// Withholds from EL1 all that [`let_through`] opened and that a VM has no registers of its own for
/// ([`crate::guest::El1State`]): what the owner has there stays, and the VM can neither reach it nor
/// feel it. A part of [`crate::guest::init_cpu`], which does the rest.
pub(crate) fn withhold(native: &Native) {
    write_if!(native.hcrx.map(|_| traps::HCRX), "s3_4_c1_c2_2"); // HCRX_EL2
    write_if!(native.mpam.then_some(traps::MPAM2), "s3_4_c10_c5_0"); // MPAM2_EL2
    let fine = native.fine_grained.map(|_| traps::FINE_GRAINED);
    write_if!(fine, "s3_4_c1_c1_4"); // HFGRTR_EL2
    write_if!(fine, "s3_4_c1_c1_5"); // HFGWTR_EL2
    write_if!(fine, "s3_4_c1_c1_6"); // HFGITR_EL2
    write_if!(fine, "s3_4_c3_c1_4"); // HDFGRTR_EL2
    write_if!(fine, "s3_4_c3_c1_5"); // HDFGWTR_EL2
    let fine = fine.filter(|_| native.fine_grained_2);
    write_if!(fine, "s3_4_c3_c1_0"); // HDFGRTR2_EL2
    write_if!(fine, "s3_4_c3_c1_1"); // HDFGWTR2_EL2
    write_if!(fine, "s3_4_c3_c1_2"); // HFGRTR2_EL2
    write_if!(fine, "s3_4_c3_c1_3"); // HFGWTR2_EL2
    write_if!(fine, "s3_4_c3_c1_7"); // HFGITR2_EL2
}

/// Bytes of z0 to z31, p0 to p15 and FFR, of the longest vectors there can be.
pub(crate) const SVE_BYTES: usize = 32 * 256 + 17 * 32;

/// The owner's floating point.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct OwnersFp {
    /// v0 to v31, FPSR, FPCR; with SVE the last two alone.
    plain: FpState,
    vectors: [u8; SVE_BYTES],
}

impl OwnersFp {
    /// All zero.
    pub const RESET: Self = Self {
        plain: FpState::RESET,
        vectors: [0; SVE_BYTES],
    };

    /// Takes it out of the registers, for somebody else.
    pub fn save(&mut self, native: &Native) {
        // SAFETY: with the traps as the owner has them EL2 may touch the registers; the routines
        // write no more than there is room for.
        Self::with_traps_of(native, || unsafe {
            fp_save(&raw mut self.plain);
            if native.sve.is_some() {
                sve_save(&raw mut self.vectors);
            }
        });
    }

    /// Puts it into the registers.
    ///
    /// # Safety
    ///
    /// Whoever used the registers since has been saved.
    pub unsafe fn load(&self, native: &Native) {
        // SAFETY: the caller's promise, and as in `save`.
        Self::with_traps_of(native, || unsafe {
            fp_load(&raw const self.plain);
            if native.sve.is_some() {
                sve_load(&raw const self.vectors);
            }
        });
    }

    fn with_traps_of(native: &Native, action: impl FnOnce()) {
        let traps = read_sysreg!("cptr_el2");
        // SAFETY: EL2 does not use these registers itself.
        unsafe { write_sysreg!("cptr_el2", native.cptr) }
        isb();
        action();
        // SAFETY: what was there.
        unsafe { write_sysreg!("cptr_el2", traps) }
        isb();
    }
}

/// Gives EL1 the physical interrupt interface, and empties the virtual one.
fn open_interrupts() {
    // SAFETY: EL1 drives the interface by system registers; nothing virtual is pending.
    unsafe {
        write_sysreg!("s3_4_c12_c9_5", 0xf_u64); // ICC_SRE_EL2: SRE, DFB, DIB, Enable
        isb();
        write_sysreg!("s3_4_c12_c11_0", 0_u64); // ICH_HCR_EL2
    }
    let mut lists = HardwareLists::of_this_cpu();
    for n in 0..lists.count() {
        lists.write(n, 0);
    }
    isb();
}

/// Sets EL1's registers as a CPU has them when it is started (Arm ARM D1.9; Linux: `booting.rst`).
///
/// # Safety
///
/// What ran at EL1 of this CPU before is gone.
pub unsafe fn reset_el1() {
    let mpidr = read_sysreg!("mpidr_el1");
    // SAFETY: EL1's registers do not concern EL2.
    unsafe { El1State::reset(mpidr).load() }
}

/// `HCR_EL2` bits by which EL2 is beneath EL1: stage 2, and interrupts to EL2.
const BENEATH: u64 = 1 | 1 << 3 | 1 << 4;
/// `HCR_EL2.TWI`: WFI traps.
const TRAP_WFI: u64 = 1 << 13;

/// `HCR_EL2` of an owner that shares the CPU with VMs.
pub const fn beside(hcr: u64) -> u64 {
    hcr | BENEATH | TRAP_WFI
}

/// `HCR_EL2` of an owner beneath which EL2 is.
pub const fn beneath(hcr: u64) -> u64 {
    hcr | BENEATH
}

/// Puts EL2 beneath what runs at EL1: stage 2 by the tables of [`open`], interrupts to EL2. `hcr` is
/// [`Native::hcr`].
pub fn go_beneath(hcr: u64) {
    set_hcr(hcr | BENEATH);
}

/// Undoes [`go_beneath`].
pub fn step_aside(hcr: u64) {
    set_hcr(hcr);
}

/// TLBs may hold what `HCR_EL2.VM` decides, so entries of the VMID go (Arm ARM D8.13).
fn set_hcr(hcr: u64) {
    // SAFETY: the tables map all memory and devices one to one, but what is EL2's: the same
    // addresses mean the same before and after.
    unsafe { write_sysreg!("hcr_el2", hcr) }
    isb();
    tlb::flush_vmid_here();
}
