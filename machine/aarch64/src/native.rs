//! The executing CPU as an operating system at EL1 would find it without EL2.

use crate::cpu::isb;
use crate::guest::El1State;
use crate::list_registers::HardwareLists;
use core::arch::asm;
use machine_contract::ListRegisters;
use model_native_el1::Native;

/// Calls `$write!` for each gate register with its value: encodings for those that assemblers may
/// not know by name.
macro_rules! write_if {
    ($value:expr, $name:literal) => {
        if let Some(value) = $value {
            // SAFETY: the register exists by the ID registers (`model_native_el1`), and it opens
            // the CPU to EL1 only.
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
        write_sysreg!("hcr_el2", native.hcr);
        write_sysreg!("cptr_el2", native.cptr);
        write_sysreg!("mdcr_el2", native.mdcr | counters);
        write_sysreg!("hstr_el2", 0_u64);
        write_sysreg!("vpidr_el2", midr);
        write_sysreg!("vmpidr_el2", mpidr);
        write_sysreg!("cnthctl_el2", 3_u64); // EL1 has the physical counter and timer
        write_sysreg!("cntvoff_el2", 0_u64);
        write_sysreg!("cnthp_ctl_el2", 0_u64);
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
    open_interrupts();
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

/// Sets EL1's registers as a CPU has them when it is started (Arm ARM D1.9; Linux: `booting.rst`),
/// and drops what the TLBs may hold.
///
/// # Safety
///
/// What ran at EL1 of this CPU before is gone.
pub unsafe fn reset_el1() {
    let mpidr = read_sysreg!("mpidr_el1");
    // SAFETY: EL1's registers do not concern EL2; dropping TLB entries costs time alone.
    unsafe {
        El1State::reset(mpidr).load();
        asm!("tlbi alle1", "dsb nsh", "isb", options(nostack));
    }
}

/// `HCR_EL2` bits by which EL2 is beneath EL1: stage 2, and interrupts to EL2.
const BENEATH: u64 = 1 | 1 << 3 | 1 << 4;

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
    unsafe {
        write_sysreg!("hcr_el2", hcr);
        asm!("isb", "tlbi vmalls12e1", "dsb nsh", "isb", options(nostack));
    }
}
