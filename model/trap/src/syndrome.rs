//! From ESR_EL2 to what happened.

use model_addr::Ipa;

use crate::{MmioAccess, SysregAccess};

/// Why a guest stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A load, store or cache instruction that stage 2 refused.
    DataAbort(DataAbort),
    /// An instruction fetch that stage 2 refused.
    InstructionAbort(Abort),
    /// WFI, or WFE (with or without timeout).
    Wfx {
        /// Whether it is WFE.
        is_wfe: bool,
    },
    /// HVC; the return address is the next instruction's.
    Hvc {
        /// The instruction's number.
        imm: u16,
    },
    /// SMC; the return address is the instruction's own.
    Smc {
        /// The instruction's number.
        imm: u16,
    },
    /// MRS, MSR or a system instruction.
    Sysreg(SysregAccess),
    /// First use of floating point or SIMD (CPTR_EL2.TFP).
    FpSimd,
    /// Use of SVE, which guests are not shown.
    Sve,
    /// Use of SME, which guests are not shown.
    Sme,
    /// Use of pointer authentication, which guests are not shown.
    PointerAuth,
    /// A return with an illegal state (PSTATE.IL).
    Illegal,
    /// An SError that was routed to EL2, with its ISS.
    SError {
        /// The syndrome's lower 25 bits.
        iss: u32,
    },
    /// Anything else: the guest has it as an undefined instruction.
    Other {
        /// The exception class.
        class: u8,
    },
}

/// What an abort is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The guest's virtual address (FAR_EL2); `None` where the CPU does not know it.
    pub va: Option<u64>,
    /// The guest-physical address; of a walk, only its page. `None` where HPFAR_EL2 does not
    /// hold it: for a permission fault that is not a walk's, and for an external abort, the
    /// address is to be had by translating `va` (AT S1E1R).
    pub ipa: Option<Ipa>,
    /// The kind of fault.
    pub fault: Fault,
    /// Whether the access was by the guest's own stage-1 walk (Arm ARM: S1PTW).
    pub walk: bool,
}

/// Kinds of fault (Arm ARM: DFSC and IFSC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Stage 2 maps nothing there.
    Translation,
    /// Stage 2 maps it with the access flag clear.
    AccessFlag,
    /// Stage 2 maps it with fewer rights.
    Permission,
    /// The address is larger than stage 2 takes.
    AddressSize,
    /// The machine's bus or memory refused the access.
    External,
    /// Anything else, by code.
    Other(u8),
}

/// A data abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataAbort {
    /// Where and why.
    pub abort: Abort,
    /// Whether the instruction wants to write; set for cache maintenance, too.
    pub write: bool,
    /// Whether it is a cache maintenance or address translation instruction.
    pub cache_maintenance: bool,
    /// The access, where the syndrome describes it; otherwise the instruction has to be decoded.
    pub access: Option<MmioAccess>,
}

impl Abort {
    /// Whether it was the guest's walk, which may read its tables but wants to set an access or
    /// dirty flag in them.
    pub fn is_table_update(&self) -> bool {
        self.walk && self.fault == Fault::Permission
    }
}

impl DataAbort {
    /// Whether the page must be writable before the access can succeed. Where a page may be read,
    /// but not written, all that says it writes does: DC IVAC is the only cache maintenance among
    /// it. Elsewhere cache maintenance needs no more than to read, and so does a walk.
    pub fn wants_write(&self) -> bool {
        match self.abort.fault {
            Fault::Permission => self.write || self.abort.walk,
            _ => self.write && !self.cache_maintenance && !self.abort.walk,
        }
    }

    /// Whether it is a store into a page that may be read: not a walk's, nor cache maintenance.
    /// Only such a one can begin an [`overwrite`](crate::overwrite).
    pub fn is_refused_store(&self) -> bool {
        self.abort.fault == Fault::Permission
            && self.write
            && !self.cache_maintenance
            && !self.abort.walk
    }
}

/// Decodes an exit from a lower exception level.
///
/// `esr` is ESR_EL2, and `addresses` reads FAR_EL2 and HPFAR_EL2, which are asked for only where they matter: of
/// aborts.
#[expect(
    clippy::inline_always,
    reason = "on the way of every exit, and not the only use: 40 instructions less"
)]
#[inline(always)]
pub fn decode(esr: u64, addresses: impl FnOnce() -> [u64; 2]) -> Exit {
    let class = (esr >> 26 & 0x3f) as u8;
    let iss = esr as u32 & 0x1ff_ffff;
    let imm = iss as u16;
    match class {
        // TI: WFI, WFE, WFIT, WFET.
        0x01 => Exit::Wfx {
            is_wfe: iss & 1 != 0,
        },
        0x07 => Exit::FpSimd,
        0x09 | 0x1c => Exit::PointerAuth,
        0x0e => Exit::Illegal,
        0x16 => Exit::Hvc { imm },
        0x17 => Exit::Smc { imm },
        0x18 => Exit::Sysreg(SysregAccess::from_iss(iss)),
        0x19 => Exit::Sve,
        0x1d => Exit::Sme,
        0x20 => Exit::InstructionAbort(abort(iss, addresses())),
        0x24 => Exit::DataAbort(data_abort(iss, addresses())),
        0x2f => Exit::SError { iss },
        _ => Exit::Other { class },
    }
}

/// The part that data and instruction aborts share.
#[expect(
    clippy::inline_always,
    reason = "on the way of every MMIO exit: 40 instructions less"
)]
#[inline(always)]
fn abort(iss: u32, [far, hpfar]: [u64; 2]) -> Abort {
    let fault = fault((iss & 0x3f) as u8);
    let walk = iss >> 7 & 1 != 0;
    // FnV is defined for external aborts alone.
    let far_valid = fault != Fault::External || iss >> 10 & 1 == 0;
    let hpfar_valid = match fault {
        Fault::Translation | Fault::AccessFlag | Fault::AddressSize => true,
        Fault::Permission => walk,
        Fault::External | Fault::Other(_) => false,
    };
    // FIPA, bits 43:4, is the address's bits 51:12.
    let page = (hpfar & 0x0fff_ffff_fff0) << 8;
    let offset = if walk { 0 } else { far & 0xfff };
    Abort {
        va: far_valid.then_some(far),
        ipa: hpfar_valid.then_some(Ipa(page | offset)),
        fault,
        walk,
    }
}

#[expect(
    clippy::inline_always,
    reason = "on the way of every MMIO exit: 40 instructions less"
)]
#[inline(always)]
fn data_abort(iss: u32, addresses: [u64; 2]) -> DataAbort {
    let bit = |n: u32| iss >> n & 1 != 0;
    let write = bit(6);
    let access = MmioAccess {
        size: 1 << (iss >> 22 & 3),
        write,
        sign_extend: bit(21),
        wide: bit(15),
        rt: (iss >> 16 & 31) as u8,
    };
    let abort = abort(iss, addresses);
    // ISV; a walk's abort has none.
    let described = bit(24) && !abort.walk;
    DataAbort {
        abort,
        write,
        cache_maintenance: bit(8),
        access: described.then_some(access),
    }
}

/// Levels, in the codes' lower bits, are not told apart. With FEAT_LPA2 level -1 has codes of
/// its own.
#[expect(
    clippy::inline_always,
    reason = "on the way of every MMIO exit: 40 instructions less"
)]
#[inline(always)]
const fn fault(code: u8) -> Fault {
    // Devices and first touches, so first.
    if code >> 2 == 0b00_01 {
        return Fault::Translation;
    }
    match code {
        0b00_0000..=0b00_0011 | 0b10_1001 => Fault::AddressSize,
        0b10_1011 => Fault::Translation,
        0b00_1000..=0b00_1011 => Fault::AccessFlag,
        0b00_1100..=0b00_1111 => Fault::Permission,
        // Also on a walk, and parity or ECC errors.
        0b01_0000 | 0b01_0011..=0b01_0111 | 0b01_1000 | 0b01_1011..=0b01_1111 => Fault::External,
        other => Fault::Other(other),
    }
}
