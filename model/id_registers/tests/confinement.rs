//! What confines each field of the ID registers that guests are not shown in full: a trap, by register
//! and bit, or a sentence that says why none is needed. Held against the registers that EL2 writes.

use std::collections::BTreeSet;

use Bits::{Clear, Set};
use Control::{Cptr, Hcr, Hcrx, Hdfgrtr, Hfgitr, Hfgrtr, Hfgrtr2, Mdcr, Mpam2};
use model_id_registers::{Limit, registers, traps};

/// A register of EL2's by which guests are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    Hcr,
    Cptr,
    Mdcr,
    Hcrx,
    Mpam2,
    /// And `HFGWTR_EL2`, which has the same bits.
    Hfgrtr,
    Hfgitr,
    /// And `HDFGWTR_EL2`.
    Hdfgrtr,
    Hfgrtr2,
}

/// What it is while a guest runs, and the bits that are no row's: of stage 2, of interrupts, RES1, and
/// traps of what no ID register tells.
const fn written(control: Control) -> (u64, u64) {
    match control {
        // VM, SWIO, AMO, FB, BSU; TID3, TIDCP, TACR.
        Hcr => (
            traps::HCR,
            0b11 | 1 << 5 | 1 << 9 | 1 << 10 | 1 << 18 | 0b11 << 20,
        ),
        Cptr => (traps::CPTR, 0x22ff),
        Mdcr => (traps::MDCR, 0),
        Hcrx => (traps::HCRX, 0),
        Mpam2 => (traps::MPAM2, 1 << 58),
        Hfgrtr | Hfgitr | Hdfgrtr | Hfgrtr2 => (traps::FINE_GRAINED, 0),
    }
}

/// Which bits confine, and how they have to be.
#[derive(Clone, Copy, Debug)]
enum Bits {
    Set(Control, &'static [u8]),
    Clear(Control, &'static [u8]),
}

/// What confines a field.
#[derive(Clone, Copy, Debug)]
enum Confined {
    By(&'static [Bits]),
    /// Nothing has to: why.
    Not(&'static str),
}
use Confined::{By, Not};

const RECORDS: Confined = By(&[Set(Hcr, &[36]), Clear(Hcr, &[47])]); // TERR, FIEN
const INJECTION: Confined = By(&[Clear(Hcr, &[47])]); // FIEN
const CONTEXT_NUMBER: Confined = By(&[Clear(Hcr, &[53])]); // EnSCXT
const KEYS: Confined = By(&[Clear(Hcr, &[40, 41])]); // APK, API
const TAGS: Confined = By(&[Clear(Hcr, &[56])]); // ATA
const DEBUG: Confined = By(&[Set(Mdcr, &[9])]); // TDA
const OS_LOCK: Confined = By(&[Set(Mdcr, &[10])]); // TDOSA
const PMU: Confined = By(&[Set(Mdcr, &[5, 6])]); // TPMCR, TPM
const TRACE_BUFFER: Confined = By(&[Clear(Mdcr, &[24, 25])]); // E2TB
const PARTITIONS: Confined = By(&[Set(Mpam2, &[48, 49])]); // TRAPMPAM1EL1, TRAPMPAM0EL1
const SVE: Confined = By(&[Set(Cptr, &[8])]); // TZ
// TSM; nSMPRI_EL1, nTPIDR2_EL0.
const SME: Confined = By(&[Set(Cptr, &[12]), Clear(Hfgrtr, &[54, 55])]);
const EL2_S: Confined = Not("EL1 has none of its registers: they are UNDEFINED there");
const SECURE: Confined = Not("EL1 reaches the secure world by SMC alone, which traps");
const OWN: Confined = Not("stage 1 is the guest's own: its registers follow a vCPU");
const CONTROL: Confined = Not("the bits are in SCTLR_EL1, which follows a vCPU");
const INVALIDATE: Confined = Not("the instructions reach translations of the VM's own VMID alone");
const STATELESS: Confined = Not("instructions without state of their own");

/// By the field's name; what is not in the table of shown registers, is hidden wholly.
#[rustfmt::skip]
const ROWS: &[(&str, Confined)] = &[
    ("EL0", Not("a VM that runs AArch32 at EL0 ends at the first exit that an instruction of it causes")),
    ("EL1", By(&[Set(Hcr, &[31])])), // RW
    ("EL2", By(&[Clear(Hcr, &[42, 43, 45])])), // NV, NV1, NV2
    ("EL3", By(&[Set(Hcr, &[19])])), // TSC
    ("GIC", By(&[Set(Hcr, &[3, 4])])), // FMO, IMO: ICC is ICV
    ("RAS", RECORDS),
    ("SVE", SVE),
    ("SEL2", SECURE),
    ("MPAM", PARTITIONS),
    ("AMU", By(&[Set(Cptr, &[30])])), // TAM
    ("RME", SECURE),
    ("CSV2", CONTEXT_NUMBER),
    ("MTE", TAGS),
    ("RAS_frac", INJECTION),
    ("MPAM_frac", PARTITIONS),
    ("SME", SME),
    ("RNDR_trap", EL2_S),
    ("CSV2_frac", CONTEXT_NUMBER),
    ("NMI", Not("PSTATE.ALLINT follows a vCPU and masks its own interrupts alone")),
    ("MTE_frac", TAGS),
    ("GCS", By(&[Clear(Hcrx, &[22]), Clear(Hfgrtr, &[52, 53])])), // GCSEn; nGCS_EL0, nGCS_EL1
    ("THE", By(&[Clear(Hfgrtr, &[56]), Clear(Hfgrtr2, &[2])])), // nRCWMASK_EL1, nRCWSMASK_EL1
    ("MTEX", TAGS),
    ("DF2", By(&[Clear(Hcrx, &[15])])), // SCTLR2En
    ("PFAR", By(&[Clear(Hfgrtr2, &[0])])), // nPFAR_EL1
    ("MTESTOREONLY", TAGS),
    ("FPMR", By(&[Clear(Hcrx, &[23])])), // EnFPM
    ("ZFR0", SVE),
    ("SMFR0", SME),
    ("DebugVer", By(&[Set(Mdcr, &[9, 10, 11])])), // TDA, TDOSA, TDRA
    ("TraceVer", By(&[Set(Cptr, &[20])])), // TTA
    ("PMUVer", PMU),
    ("BRPs", DEBUG),
    ("WRPs", DEBUG),
    ("CTX_CMPs", DEBUG),
    ("PMSVer", By(&[Set(Mdcr, &[14]), Clear(Mdcr, &[12, 13])])), // TPMS; E2PB
    ("DoubleLock", OS_LOCK),
    ("TraceFilt", By(&[Set(Mdcr, &[19])])), // TTRF
    ("TraceBuffer", TRACE_BUFFER),
    ("MTPMU", PMU),
    // nBRBIDR, nBRBCTL, nBRBDATA; nBRBINJ, nBRBIALL.
    ("BRBE", By(&[Clear(Hdfgrtr, &[59, 60, 61]), Clear(Hfgitr, &[55, 56])])),
    ("ExtTrcBuff", TRACE_BUFFER),
    ("HPMN0", PMU),
    ("ABLE", DEBUG),
    ("SPMU", By(&[Clear(Mdcr, &[15])])), // EnSPM
    ("PMICNTR", PMU),
    ("TME", By(&[Clear(Hcr, &[39])])), // TME
    ("APA", KEYS),
    ("API", KEYS),
    ("GPA", KEYS),
    ("GPI", KEYS),
    ("XS", INVALIDATE),
    // EnAS0, EnALS, EnASR; nACCDATA_EL1.
    ("LS64", By(&[Clear(Hcrx, &[0, 1, 2]), Clear(Hfgrtr, &[50])])),
    ("WFxT", By(&[Set(Hcr, &[13])])), // TWI; WFET ends by itself
    ("GPA3", KEYS),
    ("APA3", KEYS),
    ("MOPS", By(&[Clear(Hcrx, &[11])])), // MSCEn
    ("PAC_frac", KEYS),
    ("SYSREG_128", By(&[Clear(Hcrx, &[17])])), // D128En
    ("SYSINSTR_128", INVALIDATE),
    ("ATS1A", Not("the answer is of the guest's own stage 1 and of its stage 2")),
    ("FAMINMAX", STATELESS),
    ("PARange", Not("stage 2 maps nothing above its input size")),
    ("SNSMem", SECURE),
    ("TGran16", OWN),
    ("TGran4", OWN),
    ("TGran16_2", EL2_S),
    ("TGran64_2", EL2_S),
    ("TGran4_2", EL2_S),
    ("FGT", EL2_S),
    ("ECV", Not("it lets EL1 read counters that it may read anyway")),
    ("HAFDBS", OWN),
    ("VMIDBits", EL2_S),
    ("VH", EL2_S),
    ("LO", By(&[Set(Hcr, &[35])])), // TLOR
    ("XNX", EL2_S),
    ("TWED", EL2_S),
    ("HCX", EL2_S),
    ("TIDCP1", CONTROL),
    ("CMOW", CONTROL),
    ("CnP", Not("entries that it shares are of the VM's own VMID")),
    ("LSM", CONTROL),
    ("IESB", CONTROL),
    ("VARange", OWN),
    ("NV", EL2_S),
    ("FWB", EL2_S),
    ("EVT", EL2_S),
    ("TCRX", By(&[Clear(Hcrx, &[14])])), // TCR2En
    ("SCTLRX", By(&[Clear(Hcrx, &[15])])), // SCTLR2En
    ("S1PIE", By(&[Clear(Hfgrtr, &[57, 58])])), // nPIRE0_EL1, nPIR_EL1
    ("S1POE", By(&[Clear(Hfgrtr, &[59, 60])])), // nPOR_EL0, nPOR_EL1
    ("S2POE", By(&[Clear(Hfgrtr, &[61])])), // nS2POR_EL1
    ("AIE", By(&[Clear(Hfgrtr, &[62, 63])])), // nMAIR2_EL1, nAMAIR2_EL1
    ("D128", By(&[Clear(Hcrx, &[17])])), // D128En
    // Masks and aliases of CPACR, SCTLR, SCTLR2, TCR, TCR2, ACTLR.
    ("SRMASK", By(&[Clear(Hfgrtr2, &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])])),
];

/// Fields with state, of ID registers that read as zero wholly.
const OF_HIDDEN_REGISTERS: &str = "MTESTOREONLY FPMR ZFR0 SMFR0 ABLE SPMU PMICNTR FAMINMAX TCRX SCTLRX \
    S1PIE S1POE S2POE AIE D128 SRMASK";

fn mask(bits: &[u8]) -> u64 {
    bits.iter().fold(0, |mask, bit| mask | 1 << bit)
}

#[test]
fn each_field_that_is_not_shown_has_one_row() {
    let mut rows = BTreeSet::new();
    for (name, confined) in ROWS {
        assert!(rows.insert(*name), "{name} has two rows");
        if let Not(why) = confined {
            assert!(!why.is_empty(), "{name} needs a trap or a reason");
        }
    }
    let limited: BTreeSet<_> = registers()
        .iter()
        .flat_map(|register| register.fields)
        .filter(|field| field.limit != Limit::Pass)
        .map(|field| field.name)
        .chain(OF_HIDDEN_REGISTERS.split_ascii_whitespace())
        .collect();
    let missing: Vec<_> = limited.difference(&rows).collect();
    assert!(
        missing.is_empty(),
        "{missing:?} are hidden: say which trap confines them, or why none does"
    );
    let shown: Vec<_> = rows.difference(&limited).collect();
    assert!(shown.is_empty(), "{shown:?} are shown, or do not exist");
}

#[test]
fn each_trap_is_in_the_register_that_is_written() {
    for (name, confined) in ROWS {
        let By(traps) = confined else { continue };
        assert!(!traps.is_empty(), "{name} names no trap");
        for trap in *traps {
            let (control, wanted, bits) = match trap {
                Set(control, bits) => (*control, mask(bits), bits),
                Clear(control, bits) => (*control, 0, bits),
            };
            let value = written(control).0;
            assert_eq!(
                value & mask(bits),
                wanted,
                "{name} is not confined: {control:?} is {value:#x}, and {trap:?} must hold"
            );
        }
    }
}

#[test]
fn each_bit_that_is_written_is_of_a_row_or_of_the_base() {
    for control in [
        Hcr, Cptr, Mdcr, Hcrx, Mpam2, Hfgrtr, Hfgitr, Hdfgrtr, Hfgrtr2,
    ] {
        let (value, base) = written(control);
        let named = ROWS
            .iter()
            .filter_map(|(_, confined)| match confined {
                By(traps) => Some(*traps),
                Not(_) => None,
            })
            .flatten()
            .fold(base, |named, trap| match trap {
                Set(of, bits) if *of == control => named | mask(bits),
                _ => named,
            });
        assert_eq!(value, named, "{control:?}");
    }
    assert_eq!(traps::CPTR_TFP & traps::CPTR, 0, "lazily: not in the base");
}
