//! The world-switch table: every field of a CPU's ID registers that is known, and up to which value.
//!
//! A switch keeps all that OS-0 has in the CPU's registers where it is. That is right for a feature
//! whose controls at EL2 are known and let it through (`model_native_el1`), and for one that has none.
//! A field that is not here, or that is larger, may have controls that nobody thought of.

use abi::os0::ID_REGISTERS_GIVEN;

/// A field: its feature, CRm, op2, lowest bit, and the largest value that is known. Fields are four bits
/// wide (Arm ARM DDI 0487, D24.2); 15, where a signed field says "absent", is always known.
struct Known(&'static str, u8, u8, u8, u8);

/// Any value.
const ANY: u8 = 15;

#[rustfmt::skip]
const TABLE: [Known; 144] = [
    Known("AArch64 at EL0", 4, 0, 0, 2), Known("AArch64 at EL1", 4, 0, 4, 2), Known("AArch64 at EL2", 4, 0, 8, 2),
    Known("AArch64 at EL3", 4, 0, 12, 2), Known("FEAT_FP16", 4, 0, 16, 1), Known("FEAT_AdvSIMD", 4, 0, 20, 1),
    Known("GICv3 system registers", 4, 0, 24, 3), Known("FEAT_RAS", 4, 0, 28, 2), Known("FEAT_SVE", 4, 0, 32, 1),
    Known("FEAT_SEL2", 4, 0, 36, 1), Known("FEAT_MPAM", 4, 0, 40, 1), Known("FEAT_AMUv1", 4, 0, 44, 2),
    Known("FEAT_DIT", 4, 0, 48, 1), Known("FEAT_RME", 4, 0, 52, 3), Known("FEAT_CSV2", 4, 0, 56, 3),
    Known("FEAT_CSV3", 4, 0, 60, 1),
    Known("FEAT_BTI", 4, 1, 0, 1), Known("FEAT_SSBS", 4, 1, 4, 2), Known("FEAT_MTE", 4, 1, 8, 3),
    Known("FEAT_RASv1p1", 4, 1, 12, 1), Known("FEAT_MPAMv0p1", 4, 1, 16, 1), Known("FEAT_SME", 4, 1, 24, 2),
    Known("FEAT_RNG_TRAP", 4, 1, 28, 1), Known("FEAT_CSV2_1p1", 4, 1, 32, 2), Known("FEAT_NMI", 4, 1, 36, 1),
    Known("FEAT_MTE_ASYNC", 4, 1, 40, ANY), Known("FEAT_GCS", 4, 1, 44, 1),
    Known("FEAT_MTE_STORE_ONLY", 4, 2, 4, 1), Known("FEAT_MTE_TAGGED_FAR", 4, 2, 8, 1), Known("FEAT_FPMR", 4, 2, 32, 1),
    Known("FEAT_Debug", 5, 0, 0, 11), Known("FEAT_ETE", 5, 0, 4, 1), Known("FEAT_PMUv3", 5, 0, 8, 9),
    Known("breakpoints", 5, 0, 12, ANY), Known("watchpoints", 5, 0, 20, ANY), Known("context breakpoints", 5, 0, 28, ANY),
    Known("FEAT_SPE", 5, 0, 32, 5), Known("FEAT_DoubleLock", 5, 0, 36, 0), Known("FEAT_TRF", 5, 0, 40, 1),
    Known("FEAT_TRBE", 5, 0, 44, 1), Known("FEAT_MTPMU", 5, 0, 48, 1), Known("FEAT_BRBE", 5, 0, 52, 2),
    Known("FEAT_TRBE_EXT", 5, 0, 56, 1), Known("FEAT_HPMN0", 5, 0, 60, 1),
    Known("FEAT_AES", 6, 0, 4, 2), Known("FEAT_SHA1", 6, 0, 8, 1), Known("FEAT_SHA256", 6, 0, 12, 2),
    Known("FEAT_CRC32", 6, 0, 16, 1), Known("FEAT_LSE", 6, 0, 20, 3), Known("FEAT_RDM", 6, 0, 28, 1),
    Known("FEAT_SHA3", 6, 0, 32, 1), Known("FEAT_SM3", 6, 0, 36, 1), Known("FEAT_SM4", 6, 0, 40, 1),
    Known("FEAT_DotProd", 6, 0, 44, 1), Known("FEAT_FHM", 6, 0, 48, 1), Known("FEAT_FlagM", 6, 0, 52, 2),
    Known("FEAT_TLBIOS", 6, 0, 56, 2), Known("FEAT_RNG", 6, 0, 60, 1),
    Known("FEAT_DPB", 6, 1, 0, 2), Known("FEAT_PAuth (APA)", 6, 1, 4, 6), Known("FEAT_PAuth (API)", 6, 1, 8, 6),
    Known("FEAT_JSCVT", 6, 1, 12, 1), Known("FEAT_FCMA", 6, 1, 16, 1), Known("FEAT_LRCPC", 6, 1, 20, 3),
    Known("FEAT_PACQARMA5 (GPA)", 6, 1, 24, 1), Known("FEAT_PACIMP (GPI)", 6, 1, 28, 1), Known("FEAT_FRINTTS", 6, 1, 32, 1),
    Known("FEAT_SB", 6, 1, 36, 1), Known("FEAT_SPECRES", 6, 1, 40, 2), Known("FEAT_BF16", 6, 1, 44, 2),
    Known("FEAT_DGH", 6, 1, 48, 1), Known("FEAT_I8MM", 6, 1, 52, 1), Known("FEAT_XS", 6, 1, 56, 1),
    Known("FEAT_LS64", 6, 1, 60, 3),
    Known("FEAT_WFxT", 6, 2, 0, 2), Known("FEAT_RPRES", 6, 2, 4, 1), Known("FEAT_PACQARMA3 (GPA3)", 6, 2, 8, 1),
    Known("FEAT_PAuth (APA3)", 6, 2, 12, 6), Known("FEAT_MOPS", 6, 2, 16, 1), Known("FEAT_HBC", 6, 2, 20, 1),
    Known("FEAT_CONSTPACFIELD", 6, 2, 24, 1), Known("FEAT_CLRBHB", 6, 2, 28, 1), Known("FEAT_PRFMSLC", 6, 2, 40, 1),
    Known("FEAT_RPRFM", 6, 2, 48, 1), Known("FEAT_CSSC", 6, 2, 52, 1), Known("FEAT_LUT", 6, 2, 56, 1),
    Known("FEAT_ATS1A", 6, 2, 60, 1),
    Known("FEAT_FAMINMAX", 6, 3, 4, 1),
    Known("physical address size", 7, 0, 0, 6), Known("ASID size", 7, 0, 4, 2), Known("mixed endianness", 7, 0, 8, 1),
    Known("secure memory", 7, 0, 12, 1), Known("mixed endianness at EL0", 7, 0, 16, 1), Known("16 KiB granule", 7, 0, 20, 2),
    Known("64 KiB granule", 7, 0, 24, 0), Known("4 KiB granule", 7, 0, 28, 1), Known("stage 2 granules", 7, 0, 32, 3),
    Known("stage 2 64 KiB granule", 7, 0, 36, 2), Known("stage 2 4 KiB granule", 7, 0, 40, 3), Known("FEAT_ExS", 7, 0, 44, 1),
    Known("FEAT_FGT", 7, 0, 56, 1), Known("FEAT_ECV", 7, 0, 60, 2),
    // Each of these registers' fields changes what stage 1 or EL1 does by itself, or has a row below.
    Known("FEAT_HAFDBS", 7, 1, 0, 3), Known("VMID size", 7, 1, 4, 2), Known("FEAT_VHE", 7, 1, 8, 1),
    Known("FEAT_HPDS", 7, 1, 12, 2), Known("FEAT_LOR", 7, 1, 16, 1), Known("FEAT_PAN", 7, 1, 20, 3),
    Known("speculative SError", 7, 1, 24, 1), Known("FEAT_XNX", 7, 1, 28, 1), Known("FEAT_TWED", 7, 1, 32, 1),
    Known("FEAT_ETS", 7, 1, 36, 3), Known("FEAT_HCX", 7, 1, 40, 1), Known("FEAT_AFP", 7, 1, 44, 1),
    Known("FEAT_nTLBPA", 7, 1, 48, 1), Known("FEAT_TIDCP1", 7, 1, 52, 1), Known("FEAT_CMOW", 7, 1, 56, 1),
    Known("FEAT_ECBHB", 7, 1, 60, 1),
    Known("FEAT_TTCNP", 7, 2, 0, 1), Known("FEAT_UAO", 7, 2, 4, 1), Known("FEAT_LSMAOC", 7, 2, 8, 1),
    Known("FEAT_IESB", 7, 2, 12, 1), Known("virtual address size", 7, 2, 16, 2), Known("FEAT_CCIDX", 7, 2, 20, 1),
    Known("FEAT_NV", 7, 2, 24, 2), Known("FEAT_TTST", 7, 2, 28, 1), Known("FEAT_LSE2", 7, 2, 32, 1),
    Known("FEAT_IDST", 7, 2, 36, 2), Known("FEAT_S2FWB", 7, 2, 40, 1), Known("FEAT_TTL", 7, 2, 48, 1),
    Known("FEAT_BBM", 7, 2, 52, 2), Known("FEAT_EVT", 7, 2, 56, 2), Known("FEAT_E0PD", 7, 2, 60, 1),
    Known("FEAT_TCR2", 7, 3, 0, 1), Known("FEAT_SCTLR2", 7, 3, 4, 1), Known("FEAT_S1PIE", 7, 3, 8, 1),
    Known("FEAT_S2PIE", 7, 3, 12, 1), Known("FEAT_S1POE", 7, 3, 16, 1), Known("FEAT_S2POE", 7, 3, 20, 1),
    Known("FEAT_AIE", 7, 3, 24, 1), Known("FEAT_MEC", 7, 3, 28, 1), Known("FEAT_D128", 7, 3, 32, 1),
    Known("FEAT_FPACC_SPEC", 7, 3, 60, 1), Known("FEAT_NV2p1", 7, 4, 20, ANY),
];

/// Registers that name instructions only, of features that have a row: SVE's and SME's.
const INSTRUCTIONS_ONLY: [(u8, u8); 2] = [(4, 4), (4, 5)];

/// What a CPU's ID registers say against the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The features that the CPU has and the table knows.
    pub known: Vec<&'static str>,
    /// What it has and the table does not know: by its name, or by register, bit and value.
    pub unknown: Vec<String>,
}

/// Holds the ID registers of one CPU, in the order of [`ID_REGISTERS_GIVEN`], against the table.
pub fn survey(registers: &[u64]) -> Survey {
    let mut survey = Survey::default();
    for (value, (crm, op2)) in registers.iter().zip(ID_REGISTERS_GIVEN) {
        if INSTRUCTIONS_ONLY.contains(&(crm, op2)) {
            continue;
        }
        for shift in (0..64_u8).step_by(4) {
            let value = (value >> shift & 0xf) as u8;
            let row = TABLE
                .iter()
                .find(|row| (row.1, row.2, row.3) == (crm, op2, shift));
            match row {
                // A field that says that the usual is missing.
                _ if value == 0 => {}
                Some(row) if value <= row.4 || value == ANY => survey.known.push(row.0),
                Some(row) => survey.unknown.push(format!("{} (version {value})", row.0)),
                None => survey.unknown.push(format!(
                    "{} bits {}:{shift} = {value}",
                    register(crm, op2),
                    shift + 3
                )),
            }
        }
    }
    survey
}

/// The value of the field at `shift` of a register, as [`survey`] takes them; 0 where it is not given.
pub fn field(registers: &[u64], crm: u8, op2: u8, shift: u8) -> u8 {
    let at = ID_REGISTERS_GIVEN.iter().position(|id| *id == (crm, op2));
    let value = at.and_then(|at| registers.get(at)).copied().unwrap_or(0);
    (value >> shift & 0xf) as u8
}

fn register(crm: u8, op2: u8) -> String {
    let name = match (crm, op2) {
        (4, 4) => return "ID_AA64ZFR0_EL1".to_owned(),
        (4, 5) => return "ID_AA64SMFR0_EL1".to_owned(),
        (4, _) => "PFR",
        (5, _) => "DFR",
        (6, _) => "ISAR",
        _ => "MMFR",
    };
    format!("ID_AA64{name}{op2}_EL1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_one_row_of_a_register_that_is_given() {
        let rows: Vec<_> = TABLE.iter().map(|row| (row.1, row.2, row.3)).collect();
        for (n, (crm, op2, shift)) in rows.iter().enumerate() {
            assert!(ID_REGISTERS_GIVEN.contains(&(*crm, *op2)) && shift % 4 == 0);
            assert!(!rows[..n].contains(&rows[n]), "{:?}", rows[n]);
        }
    }

    /// Whatever EL2 lets through by a control of its own is in the table.
    #[test]
    fn what_el2_lets_through_is_known() {
        for feature in model_native_el1::FEATURES {
            let (crm, op2, shift) = feature.place();
            let mut rows = TABLE.iter();
            let found = rows.find(|row| (row.1, row.2, row.3) == (crm, op2, shift));
            assert!(
                found.is_some_and(|row| row.4 >= feature.least()),
                "{}",
                feature.name
            );
        }
    }

    #[test]
    fn a_later_version_and_a_new_field_are_told_by_name() {
        let mut registers = [0; 16];
        registers[0] = 2 << 32 | 0x1111; // FEAT_SVE, version 2
        registers[15] = 1 << 4; // ID_AA64MMFR4_EL1.EIESB
        let survey = survey(&registers);
        assert_eq!(
            survey.unknown,
            ["FEAT_SVE (version 2)", "ID_AA64MMFR4_EL1 bits 7:4 = 1"]
        );
        assert_eq!(survey.known.len(), 4);
        assert_eq!(field(&registers, 4, 0, 32), 2);
    }
}
