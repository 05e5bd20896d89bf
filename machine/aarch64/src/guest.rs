//! A vCPU's state beside its general registers: EL1 system registers, floating point, and the
//! registers by which EL2 confines it.
//!
//! The table in [`El1State`] is the world switch: a feature that a guest may use has its
//! registers here, and a feature that has none here is hidden or trapped.

use crate::cpu::isb;
use crate::fp::{fp_load, fp_save};
use crate::{entry, native};
use model_id_registers::traps;
use model_native_el1::Native;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `CNTHCTL_EL2`: the physical counter may be read, the physical timer traps.
const CNTHCTL: u64 = 1;

/// Sets the registers that are the same for every guest: once on each CPU, and after each turn of OS-0.
/// `native` says which of them the CPU has.
///
/// # Safety
///
/// EL2 runs with E2H clear and no guest is loaded on this CPU.
pub unsafe fn init_cpu(vtcr: u64, native: &Native) {
    let midr = read_sysreg!("midr_el1");
    // SAFETY: these registers confine guests and do not concern EL2's own execution.
    unsafe {
        write_sysreg!("vtcr_el2", vtcr);
        write_sysreg!("hcr_el2", traps::HCR);
        write_sysreg!("cptr_el2", traps::CPTR | traps::CPTR_TFP);
        write_sysreg!("mdcr_el2", traps::MDCR);
        write_sysreg!("cnthctl_el2", CNTHCTL);
        write_sysreg!("hstr_el2", 0_u64);
        write_sysreg!("vpidr_el2", midr);
        write_sysreg!("cntvoff_el2", 0_u64);
        write_sysreg!("cntv_ctl_el0", 0_u64);
        write_sysreg!("s3_4_c12_c9_5", 7_u64); // ICC_SRE_EL2 without Enable: ICC_SRE_EL1 traps
    }
    native::withhold(native);
    isb();
}

/// Clears what a guest reads as `DISR_EL1` (`VDISR_EL2`), which none is shown: the vCPU that comes would
/// find in it what the last one wrote.
fn clear_deferred_error() {
    if entry::has_ras() {
        // SAFETY: the register exists, and nothing but guests' reads depends on it.
        unsafe { write_sysreg!("s3_4_c12_c1_1", 0_u64) }
    }
}

macro_rules! el1_registers {
    ($($(#[$doc:meta])* $field:ident = $name:literal),* $(,)?) => {
        /// EL1 and EL0 system registers of a vCPU that is not loaded.
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
        #[repr(C)]
        pub struct El1State {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl El1State {
            /// Reads the executing CPU's registers.
            pub fn save(&mut self) {
                $(self.$field = read_sysreg!($name);)*
            }

            /// Writes the executing CPU's registers.
            ///
            /// # Safety
            ///
            /// The CPU runs no guest until the rest of this vCPU is loaded too.
            pub unsafe fn load(&self) {
                // SAFETY: EL1 registers have no effect on EL2's own execution with E2H clear.
                unsafe { $(write_sysreg!($name, self.$field);)* }
                clear_deferred_error();
            }
        }
    };
}

el1_registers! {
    /// System control: MMU, caches, endianness.
    sctlr = "sctlr_el1",
    /// Floating-point access.
    cpacr = "cpacr_el1",
    /// Translation table base, lower half.
    ttbr0 = "ttbr0_el1",
    /// Translation table base, upper half.
    ttbr1 = "ttbr1_el1",
    /// Translation control.
    tcr = "tcr_el1",
    /// Syndrome of the last exception.
    esr = "esr_el1",
    /// Address of the last fault.
    far = "far_el1",
    /// Implementation-defined syndrome 0.
    afsr0 = "afsr0_el1",
    /// Implementation-defined syndrome 1.
    afsr1 = "afsr1_el1",
    /// Memory attributes.
    mair = "mair_el1",
    /// Implementation-defined memory attributes.
    amair = "amair_el1",
    /// Vectors.
    vbar = "vbar_el1",
    /// Context number, for debuggers.
    contextidr = "contextidr_el1",
    /// Thread pointer of EL0.
    tpidr_el0 = "tpidr_el0",
    /// Read-only thread pointer of EL0.
    tpidrro_el0 = "tpidrro_el0",
    /// Thread pointer of EL1.
    tpidr_el1 = "tpidr_el1",
    /// Result of an address translation instruction.
    par = "par_el1",
    /// EL0's access to timers.
    cntkctl = "cntkctl_el1",
    /// Exception return address.
    elr = "elr_el1",
    /// Exception return state.
    spsr = "spsr_el1",
    /// Stack pointer of EL0.
    sp_el0 = "sp_el0",
    /// Stack pointer of EL1.
    sp_el1 = "sp_el1",
    /// Debug control.
    mdscr = "mdscr_el1",
    /// Cache size selection.
    csselr = "csselr_el1",
    /// Affinity as the guest sees it.
    vmpidr = "vmpidr_el2",
}

impl El1State {
    /// The state of a vCPU after reset: MMU and caches off (Arm ARM D1.9).
    pub fn reset(mpidr: u64) -> Self {
        Self {
            sctlr: 0x30d0_0800,
            vmpidr: mpidr,
            ..Self::default()
        }
    }
}

/// Reads the loaded vCPU's `SCTLR_EL1`, `VBAR_EL1`: what an injected exception needs.
pub fn loaded_sctlr_vbar() -> (u64, u64) {
    (read_sysreg!("sctlr_el1"), read_sysreg!("vbar_el1"))
}

/// Gives the loaded vCPU an exception's syndrome: `ESR_EL1`, `ELR_EL1`, `SPSR_EL1` and, if the
/// exception has one, `FAR_EL1`.
///
/// # Safety
///
/// The vCPU is loaded on this CPU.
pub unsafe fn set_loaded_exception(esr: u64, elr: u64, spsr: u64, far: Option<u64>) {
    // SAFETY: EL1 registers of the loaded vCPU.
    unsafe {
        write_sysreg!("esr_el1", esr);
        write_sysreg!("elr_el1", elr);
        write_sysreg!("spsr_el1", spsr);
        if let Some(far) = far {
            write_sysreg!("far_el1", far);
        }
    }
}

/// Gives this CPU the stage-2 tables of a VM: `VTTBR_EL2`, root and VMID.
///
/// # Safety
///
/// The tables map frames of that VM only.
pub unsafe fn load_stage2(vttbr: u64) {
    // SAFETY: the caller's promise.
    unsafe { write_sysreg!("vttbr_el2", vttbr) }
    isb();
}

/// Lets TLB maintenance of the guest on this CPU trap, or not.
pub fn trap_tlb_maintenance(is_trapped: bool) {
    let bit = if is_trapped { traps::TTLB } else { 0 };
    // SAFETY: it confines the guest more, or as every other.
    unsafe { write_sysreg!("hcr_el2", traps::HCR | bit) }
    isb();
}

/// Does `action`, TLB maintenance of the VM with that VMID, whichever VM the CPU has loaded. No
/// guest runs meanwhile, so the tables behind the VMID are not walked.
pub fn with_vmid(vmid: u16, action: impl FnOnce()) {
    let loaded = read_sysreg!("vttbr_el2");
    let wanted = u64::from(vmid) << 48;
    if loaded >> 48 == wanted >> 48 {
        return action();
    }
    // SAFETY: EL2 does not use stage 2 itself; the loaded VM's register is put back before any
    // guest is entered.
    unsafe { write_sysreg!("vttbr_el2", wanted) }
    isb();
    action();
    // SAFETY: the value that was there.
    unsafe { write_sysreg!("vttbr_el2", loaded) }
    isb();
}

/// Floating-point and SIMD registers: v0 to v31, FPSR, FPCR.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(16))]
pub struct FpState {
    v: [u128; 32],
    fpsr: u64,
    fpcr: u64,
}

impl FpState {
    /// All zero.
    pub const RESET: Self = Self {
        v: [0; 32],
        fpsr: 0,
        fpcr: 0,
    };

    /// Lets the loaded vCPU use floating point from now on, with this state in the registers.
    ///
    /// # Safety
    ///
    /// This is the state of the vCPU that is loaded, and it is not in the registers yet.
    pub unsafe fn load(&self) {
        // SAFETY: with TFP clear EL2 may touch the registers; it never uses them itself.
        unsafe {
            write_sysreg!("cptr_el2", traps::CPTR);
            isb();
            fp_load(self);
        }
    }

    /// Takes the state out of the registers; floating point traps again.
    ///
    /// # Safety
    ///
    /// [`Self::load`] was called for this vCPU since it was loaded.
    pub unsafe fn save(&mut self) {
        // SAFETY: as in `load`.
        unsafe {
            fp_save(self);
            write_sysreg!("cptr_el2", traps::CPTR | traps::CPTR_TFP);
        }
        isb();
    }
}

/// The stack pointer that register number 31 means for a loaded guest in state `pstate`.
pub fn stack_pointer(pstate: u64) -> u64 {
    if uses_sp_el1(pstate) {
        read_sysreg!("sp_el1")
    } else {
        read_sysreg!("sp_el0")
    }
}

/// Sets the stack pointer that register number 31 means for a loaded guest in state `pstate`.
pub fn set_stack_pointer(pstate: u64, value: u64) {
    // SAFETY: a stack pointer of the guest.
    unsafe {
        if uses_sp_el1(pstate) {
            write_sysreg!("sp_el1", value);
        } else {
            write_sysreg!("sp_el0", value);
        }
    }
}

/// EL1h: exception level 1 with its own stack pointer.
const fn uses_sp_el1(pstate: u64) -> bool {
    pstate & 0xf == 0x5
}
