//! The table: every field, how its values are ordered, how much of it is shown, and why.

use crate::Shown;

/// Which of two values of a field promises less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The lower one.
    Unsigned,
    /// The lower one of two's complement numbers: 0b1111 is less than 0.
    Signed,
    /// The higher one: the field warns.
    Warning,
}

impl Order {
    /// The value that promises less.
    pub const fn lesser(self, a: u8, b: u8) -> u8 {
        let a_is_less = match self {
            Self::Unsigned => a < b,
            Self::Signed => (a ^ 0b1000) < (b ^ 0b1000),
            Self::Warning => a > b,
        };
        if a_is_less { a } else { b }
    }
}

/// How much of a field is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// What the host has.
    Pass,
    /// At most this value.
    AtMost(u8),
    /// What the host has if pointer authentication is switched on for the guest, else nothing.
    PointerAuth,
    /// What the host has if the memory copy instructions are switched on, else nothing.
    Mops,
    /// At most the guest's address space.
    PaRange,
}

impl Limit {
    /// The largest value to be shown; `None` where there is no limit.
    pub(crate) const fn value(self, shown: Shown) -> Option<u8> {
        match self {
            Self::Pass => None,
            Self::AtMost(value) => Some(value),
            Self::PointerAuth if shown.pointer_auth => None,
            Self::Mops if shown.mops => None,
            Self::PointerAuth | Self::Mops => Some(0),
            Self::PaRange => Some(pa_range(shown.pa_bits)),
        }
    }
}

/// The largest PARange that does not exceed `bits`; without LPA2 that is at most 48 bits.
const fn pa_range(bits: u8) -> u8 {
    match bits {
        48.. => 5,
        44.. => 4,
        42.. => 3,
        40.. => 2,
        36.. => 1,
        _ => 0,
    }
}

/// Four bits of an ID register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The Arm ARM's name.
    pub name: &'static str,
    /// Its lowest bit.
    pub shift: u8,
    /// How its values are ordered.
    pub order: Order,
    /// How much of it is shown.
    pub limit: Limit,
    /// Why.
    pub why: &'static str,
}

impl Field {
    /// The field's bits in its register.
    pub const fn mask(&self) -> u64 {
        0xf << self.shift
    }

    /// The field's value in `register`.
    pub const fn get(&self, register: u64) -> u8 {
        (register >> self.shift & 0xf) as u8
    }

    pub(crate) const fn put(&self, value: u8) -> u64 {
        (value as u64 & 0xf) << self.shift
    }

    const fn signed(self) -> Self {
        Self {
            order: Order::Signed,
            ..self
        }
    }

    const fn warning(self) -> Self {
        Self {
            order: Order::Warning,
            ..self
        }
    }
}

/// An ID register and its fields.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// The Arm ARM's name.
    pub name: &'static str,
    /// Its CRm.
    pub crm: u8,
    /// Its op2.
    pub op2: u8,
    /// Its fields.
    pub fields: &'static [Field],
}

/// The registers of which a guest may see something.
pub const fn registers() -> &'static [Register] {
    REGISTERS
}

const REGISTERS: &[Register] = &[
    register("ID_AA64PFR0_EL1", 4, 0, PFR0),
    register("ID_AA64PFR1_EL1", 4, 1, PFR1),
    register("ID_AA64DFR0_EL1", 5, 0, DFR0),
    register("ID_AA64ISAR0_EL1", 6, 0, ISAR0),
    register("ID_AA64ISAR1_EL1", 6, 1, ISAR1),
    register("ID_AA64ISAR2_EL1", 6, 2, ISAR2),
    register("ID_AA64MMFR0_EL1", 7, 0, MMFR0),
    register("ID_AA64MMFR1_EL1", 7, 1, MMFR1),
    register("ID_AA64MMFR2_EL1", 7, 2, MMFR2),
];

const fn register(name: &'static str, crm: u8, op2: u8, fields: &'static [Field]) -> Register {
    Register {
        name,
        crm,
        op2,
        fields,
    }
}

const fn field(name: &'static str, shift: u8, limit: Limit, why: &'static str) -> Field {
    Field {
        name,
        shift,
        order: Order::Unsigned,
        limit,
        why,
    }
}

const fn pass(name: &'static str, shift: u8, why: &'static str) -> Field {
    field(name, shift, Limit::Pass, why)
}

const fn at_most(name: &'static str, shift: u8, value: u8, why: &'static str) -> Field {
    field(name, shift, Limit::AtMost(value), why)
}

/// Not shown. Named all the same, so that the reason is written down.
const fn hide(name: &'static str, shift: u8, why: &'static str) -> Field {
    at_most(name, shift, 0, why)
}

/// No state beyond general, SIMD and flag registers, nothing to confine.
const STATELESS: &str = "instructions without state of their own";
/// State EL2 does not carry from vCPU to vCPU.
const STATE: &str = "its registers do not follow a vCPU";
const SAFETY: &str = "a mitigation: hiding it makes guests slow or vulnerable";
const STAGE_1: &str = "stage 1 is the guest's own";
const EL2_ONLY: &str = "of use to a hypervisor only";
const UNTRUE: &str = "EL2 does not keep this promise";
const OWN_SYSREG: &str = "EL1 controls it by a register that EL2 keeps";
const RAS: &str = "EL2 hands no error records on";
const PAST_ACCOUNTS: &str = "writes to memory past stage 2's accounts";
const CSV2_WHY: &str = "a mitigation; from 2 on with SCXTNUM, which does not follow a vCPU";
const PAUTH: Limit = Limit::PointerAuth;
const PAUTH_WHY: &str = "needs HCR_EL2.API and APK, and keys per vCPU";

const PFR0: &[Field] = &[
    at_most("EL0", 0, 1, "AArch64 only: AArch32 ends a VM"),
    at_most("EL1", 4, 1, "AArch64 only"),
    hide("EL2", 8, "no nested virtualisation"),
    hide("EL3", 12, "the secure world is the machine's"),
    pass("FP", 16, "switched lazily").signed(),
    pass("AdvSIMD", 20, "switched lazily").signed(),
    at_most("GIC", 24, 1, "the CPU interface of GICv3, made virtual"),
    hide("RAS", 28, RAS),
    hide("SVE", 32, STATE),
    hide("SEL2", 36, "the secure world is the machine's"),
    hide("MPAM", 40, STATE),
    hide("AMU", 44, "counts what other VMs do"),
    pass("DIT", 48, "PSTATE follows a vCPU"),
    hide("RME", 52, "the machine's"),
    at_most("CSV2", 56, 1, CSV2_WHY),
    pass("CSV3", 60, SAFETY),
];

const PFR1: &[Field] = &[
    pass("BT", 0, "PSTATE follows a vCPU"),
    pass("SSBS", 4, SAFETY),
    hide("MTE", 8, "tags do not follow a page"),
    hide("RAS_frac", 12, RAS),
    hide("MPAM_frac", 16, STATE),
    hide("SME", 24, STATE),
    hide("RNDR_trap", 28, EL2_ONLY),
    at_most("CSV2_frac", 32, 1, "as CSV2"),
    hide("NMI", 36, "the virtual interrupt controller has none"),
    hide("MTE_frac", 40, "as MTE"),
    hide("GCS", 44, STATE),
    hide("THE", 48, STATE),
    hide("MTEX", 52, "as MTE"),
    hide("DF2", 56, RAS),
    hide("PFAR", 60, RAS),
];

const DFR0: &[Field] = &[
    at_most("DebugVer", 0, 6, "the least that Armv8 has"),
    hide("TraceVer", 4, STATE),
    hide("PMUVer", 8, STATE),
    at_most("BRPs", 12, 1, "two breakpoints: each costs kernels an exit"),
    at_most("WRPs", 20, 1, "two watchpoints, likewise"),
    hide("CTX_CMPs", 28, "one context comparator, likewise"),
    hide("PMSVer", 32, PAST_ACCOUNTS),
    at_most("DoubleLock", 36, 0xf, "none: OSDLR_EL1 is ignored").signed(),
    hide("TraceFilt", 40, STATE),
    hide("TraceBuffer", 44, PAST_ACCOUNTS),
    hide("MTPMU", 48, "as PMUVer"),
    hide("BRBE", 52, STATE),
    hide("ExtTrcBuff", 56, "as TraceBuffer"),
    hide("HPMN0", 60, "as PMUVer"),
];

const ISAR0: &[Field] = &[
    pass("AES", 4, STATELESS),
    pass("SHA1", 8, STATELESS),
    pass("SHA2", 12, STATELESS),
    pass("CRC32", 16, STATELESS),
    pass("Atomic", 20, STATELESS),
    hide("TME", 24, "a transaction cannot be carried over an exit"),
    pass("RDM", 28, STATELESS),
    pass("SHA3", 32, STATELESS),
    pass("SM3", 36, STATELESS),
    pass("SM4", 40, STATELESS),
    pass("DP", 44, STATELESS),
    pass("FHM", 48, STATELESS),
    pass("TS", 52, STATELESS),
    pass("TLB", 56, "invalidations reach the VM's own entries only"),
    pass("RNDR", 60, STATELESS),
];

const ISAR1: &[Field] = &[
    pass("DPB", 0, "cleans to a point of persistence"),
    field("APA", 4, PAUTH, PAUTH_WHY),
    field("API", 8, PAUTH, PAUTH_WHY),
    pass("JSCVT", 12, STATELESS),
    pass("FCMA", 16, STATELESS),
    pass("LRCPC", 20, STATELESS),
    field("GPA", 24, PAUTH, PAUTH_WHY),
    field("GPI", 28, PAUTH, PAUTH_WHY),
    pass("FRINTTS", 32, STATELESS),
    pass("SB", 36, SAFETY),
    pass("SPECRES", 40, SAFETY),
    pass("BF16", 44, STATELESS),
    pass("DGH", 48, STATELESS),
    pass("I8MM", 52, STATELESS),
    hide("XS", 56, "needs HCRX_EL2"),
    hide("LS64", 60, "needs HCRX_EL2"),
];

const ISAR2: &[Field] = &[
    hide("WFxT", 0, "a vCPU that waits is woken by interrupts alone"),
    pass("RPRES", 4, STATELESS),
    field("GPA3", 8, PAUTH, PAUTH_WHY),
    field("APA3", 12, PAUTH, PAUTH_WHY),
    field("MOPS", 16, Limit::Mops, "needs HCRX_EL2.MSCEn"),
    pass("BC", 20, STATELESS),
    field("PAC_frac", 24, PAUTH, PAUTH_WHY),
    pass("CLRBHB", 28, SAFETY),
    hide("SYSREG_128", 32, "EL2 handles 64-bit system registers"),
    hide("SYSINSTR_128", 36, "EL2 handles 64-bit system registers"),
    pass("PRFMSLC", 40, STATELESS),
    pass("RPRFM", 48, STATELESS),
    pass("CSSC", 52, STATELESS),
    pass("LUT", 56, STATELESS),
    hide("ATS1A", 60, "needs permission indirection"),
];

const MMFR0: &[Field] = &[
    field("PARange", 0, Limit::PaRange, "as wide as the VM's stage 2"),
    pass("ASIDBits", 4, STAGE_1),
    pass("BigEnd", 8, STAGE_1),
    hide("SNSMem", 12, "the secure world is the machine's"),
    pass("BigEndEL0", 16, STAGE_1),
    at_most("TGran16", 20, 1, "stage 1 is the guest's own; without LPA2"),
    pass("TGran64", 24, STAGE_1).signed(),
    at_most("TGran4", 28, 0, "stage 1 is the guest's own; without LPA2").signed(),
    hide("TGran16_2", 32, EL2_ONLY),
    hide("TGran64_2", 36, EL2_ONLY),
    hide("TGran4_2", 40, EL2_ONLY),
    pass("ExS", 44, OWN_SYSREG),
    hide("FGT", 56, EL2_ONLY),
    hide("ECV", 60, "EL2 offsets the virtual counter only"),
];

const MMFR1: &[Field] = &[
    at_most("HAFDBS", 0, 2, "stage 1's; table flags are not tried"),
    hide("VMIDBits", 4, EL2_ONLY),
    hide("VH", 8, EL2_ONLY),
    pass("HPDS", 12, STAGE_1),
    hide("LO", 16, UNTRUE),
    pass("PAN", 20, "PSTATE follows a vCPU"),
    pass("SpecSEI", 24, "a warning").warning(),
    hide("XNX", 28, EL2_ONLY),
    hide("TWED", 32, EL2_ONLY),
    pass("ETS", 36, "the order of table walks is the CPU's"),
    hide("HCX", 40, EL2_ONLY),
    pass("AFP", 44, "FPCR follows a vCPU"),
    pass("nTLBPA", 48, SAFETY),
    hide("TIDCP1", 52, "needs HCRX_EL2"),
    hide("CMOW", 56, "needs HCRX_EL2"),
    pass("ECBHB", 60, SAFETY),
];

const MMFR2: &[Field] = &[
    hide("CnP", 0, "a VM's tables may differ from CPU to CPU"),
    pass("UAO", 4, "PSTATE follows a vCPU"),
    hide("LSM", 8, "of use to AArch32 only"),
    hide("IESB", 12, RAS),
    at_most("VARange", 16, 1, "stage 1's; without 128-bit descriptors"),
    pass("CCIDX", 20, "formats CCSIDR_EL1, which is not trapped"),
    hide("NV", 24, EL2_ONLY),
    pass("ST", 28, STAGE_1),
    pass("AT", 32, STATELESS),
    pass("IDS", 36, "what the CPU does when EL0 reads an ID register"),
    hide("FWB", 40, EL2_ONLY),
    pass("TTL", 48, "a hint to invalidations of the VM's own entries"),
    pass("BBM", 52, STAGE_1),
    hide("EVT", 56, EL2_ONLY),
    pass("E0PD", 60, SAFETY),
];
