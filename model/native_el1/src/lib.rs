//! EL2's registers while an operating system at EL1 has the machine for itself, as it would have
//! without EL2: nothing traps but SMC, and every feature of the CPU that EL2 could withhold is let
//! through.
//!
//! [`Native::of`] computes them from the CPU's ID registers. A bit that belongs to a feature is
//! set only where the CPU has the feature; fields and their places are the Arm ARM's (DDI 0487,
//! D24.2). What a feature needs that is not in [`FEATURES`] is not known here: [`unknown`] names
//! features that a CPU has and that might be withheld.
#![no_std]
#![forbid(unsafe_code)]

/// `HCR_EL2.RW`: EL1 is AArch64.
const HCR_RW: u64 = 1 << 31;
/// `HCR_EL2.TSC`: SMC traps, so that a CPU started later passes through EL2.
const HCR_TSC: u64 = 1 << 19;
/// `CPTR_EL2` with E2H clear: RES1 bits, among them those of SVE and SME, which a CPU without them
/// has as RES1 and one with them as traps.
const CPTR: u64 = 0x33ff;
/// Vector lengths: the longest there is.
const LONGEST: u64 = 0x1ff;

/// A field of an ID register: CRm, op2, the lowest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdField {
    crm: u8,
    op2: u8,
    shift: u8,
}

const fn id(crm: u8, op2: u8, shift: u8) -> IdField {
    IdField { crm, op2, shift }
}

/// The register in which EL2 lets a feature through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `HCR_EL2`: the bits are set.
    Hcr(u64),
    /// `HCRX_EL2`: the bits are set.
    Hcrx(u64),
    /// `CPTR_EL2`: the bits are cleared.
    Cptr(u64),
    /// `MDCR_EL2`: the bits are set.
    Mdcr(u64),
    /// A register of its own, which [`Native`] has a flag for.
    Own,
}

/// A feature that EL2 could withhold: its name, where the CPU says that it has it and from which
/// value on, and what lets it through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// As the Arm ARM calls it.
    pub name: &'static str,
    field: IdField,
    least: u8,
    gate: Gate,
}

impl Feature {
    /// Its field in the ID registers: CRm, op2, the lowest bit.
    pub const fn place(&self) -> (u8, u8, u8) {
        (self.field.crm, self.field.op2, self.field.shift)
    }

    /// From which value of the field on the CPU has it.
    pub const fn least(&self) -> u8 {
        self.least
    }
}

const fn feature(name: &'static str, field: IdField, least: u8, gate: Gate) -> Feature {
    Feature {
        name,
        field,
        least,
        gate,
    }
}

const PAUTH: Gate = Gate::Hcr(1 << 41 | 1 << 40);

/// The table. A feature that has several fields (pointer authentication) has several rows.
pub const FEATURES: [Feature; 26] = [
    feature("FEAT_PAuth (APA)", id(6, 1, 4), 1, PAUTH),
    feature("FEAT_PAuth (API)", id(6, 1, 8), 1, PAUTH),
    feature("FEAT_PAuth (APA3)", id(6, 2, 12), 1, PAUTH),
    feature("FEAT_RASv1p1", id(4, 0, 28), 2, Gate::Hcr(1 << 47)),
    feature("FEAT_CSV2_2", id(4, 0, 56), 2, Gate::Hcr(1 << 53)),
    feature("FEAT_MTE2", id(4, 1, 8), 2, Gate::Hcr(1 << 56)),
    feature("FEAT_LS64", id(6, 1, 60), 1, Gate::Hcrx(1 << 1)),
    feature("FEAT_LS64_V", id(6, 1, 60), 2, Gate::Hcrx(1 << 2)),
    feature("FEAT_LS64_ACCDATA", id(6, 1, 60), 3, Gate::Hcrx(1)),
    feature("FEAT_MOPS", id(6, 2, 16), 1, Gate::Hcrx(1 << 11)),
    feature("FEAT_TCR2", id(7, 3, 0), 1, Gate::Hcrx(1 << 14)),
    feature("FEAT_SCTLR2", id(7, 3, 4), 1, Gate::Hcrx(1 << 15)),
    feature("FEAT_D128", id(7, 3, 32), 1, Gate::Hcrx(1 << 17)),
    feature("FEAT_GCS", id(4, 1, 44), 1, Gate::Hcrx(1 << 22)),
    feature("FEAT_FPMR", id(4, 2, 32), 1, Gate::Hcrx(1 << 23)),
    feature("FEAT_SVE", id(4, 0, 32), 1, Gate::Cptr(1 << 8)),
    feature("FEAT_SME", id(4, 1, 24), 1, Gate::Cptr(1 << 12)),
    feature("FEAT_SPE", id(5, 0, 32), 1, Gate::Mdcr(3 << 12)),
    feature("FEAT_TRBE", id(5, 0, 44), 1, Gate::Mdcr(3 << 24)),
    feature("FEAT_HCX", HCX, 1, Gate::Own),
    feature("FEAT_FGT", FGT, 1, Gate::Own),
    feature("FEAT_AMUv1", AMU, 1, Gate::Own),
    feature("FEAT_PMUv3", PMU, 1, Gate::Own),
    feature("FEAT_MPAM", MPAM, 1, Gate::Own),
    feature("FEAT_SVE length", SVE, 1, Gate::Own),
    feature("FEAT_SME length", SME, 1, Gate::Own),
];

const HCX: IdField = id(7, 1, 40);
const FGT: IdField = id(7, 0, 56);
const AMU: IdField = id(4, 0, 44);
const PMU: IdField = id(5, 0, 8);
const MPAM: IdField = id(4, 0, 40);
const MPAM_FRAC: IdField = id(4, 1, 16);
const SVE: IdField = id(4, 0, 32);
const SME: IdField = id(4, 1, 24);
/// `ID_AA64SMFR0_EL1`: FA64 and SMEver.
const SME_FA64: IdField = id(4, 5, 60);
const SME_VERSION: IdField = id(4, 5, 56);

/// The fine-grained traps (`HFGxTR_EL2` and their like): bits of negative polarity, by which a
/// clear bit traps, are set and all others clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FineGrained {
    /// `HFGRTR_EL2` and `HFGWTR_EL2`.
    pub registers: u64,
    /// `HFGITR_EL2`.
    pub instructions: u64,
    /// `HDFGRTR_EL2` and `HDFGWTR_EL2`.
    pub debug: u64,
    /// Whether `HAFGRTR_EL2` exists, which is to be zero.
    pub activity_monitors: bool,
}

/// What to write. `None` and `false`: the CPU has no such register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native {
    /// `HCR_EL2`: no stage 2, no interrupt to EL2.
    pub hcr: u64,
    /// `HCRX_EL2`.
    pub hcrx: Option<u64>,
    /// `CPTR_EL2`.
    pub cptr: u64,
    /// `MDCR_EL2` without HPMN, which is to be `PMCR_EL0.N` where there is a PMU.
    pub mdcr: u64,
    /// Whether there is a PMU.
    pub has_pmu: bool,
    /// The fine-grained traps.
    pub fine_grained: Option<FineGrained>,
    /// Whether there is the second set of them, too (FEAT_FGT2), with which OS-0 must not be found.
    pub fine_grained_2: bool,
    /// `ZCR_EL2`.
    pub sve: Option<u64>,
    /// `SMCR_EL2`; `SMPRIMAP_EL2` is to be zero.
    pub sme: Option<u64>,
    /// Whether `MPAM2_EL2` exists, which is to be zero.
    pub mpam: bool,
}

impl Native {
    /// The values for a CPU whose ID registers `read` gives by CRm and op2.
    pub fn of(read: impl Fn(u8, u8) -> u64) -> Self {
        let has = |field: IdField, least: u8| get(&read, field) >= least;
        let mut native = Self {
            hcr: HCR_RW | HCR_TSC,
            hcrx: has(HCX, 1).then_some(0),
            cptr: CPTR,
            mdcr: 0,
            // 15 is a PMU that is not Arm's.
            has_pmu: has(PMU, 1) && !has(PMU, 15),
            fine_grained: has(FGT, 1).then_some(FineGrained {
                registers: 0xfff << 52 | 1 << 50,
                instructions: 0x1f << 55,
                debug: 0xf << 59,
                activity_monitors: has(AMU, 1),
            }),
            fine_grained_2: has(FGT, 2),
            sve: has(SVE, 1).then_some(LONGEST),
            sme: has(SME, 1).then(|| {
                let whole_a64 = u64::from(get(&read, SME_FA64) >= 8) << 31;
                LONGEST | whole_a64 | u64::from(has(SME_VERSION, 1)) << 30
            }),
            mpam: has(MPAM, 1) || has(MPAM_FRAC, 1),
        };
        for feature in FEATURES
            .iter()
            .filter(|feature| has(feature.field, feature.least))
        {
            match feature.gate {
                Gate::Hcr(bits) => native.hcr |= bits,
                Gate::Hcrx(bits) => native.hcrx = native.hcrx.map(|hcrx| hcrx | bits),
                Gate::Cptr(bits) => native.cptr &= !bits,
                Gate::Mdcr(bits) => native.mdcr |= bits,
                Gate::Own => {}
            }
        }
        native
    }
}

fn get(read: &impl Fn(u8, u8) -> u64, field: IdField) -> u8 {
    (read(field.crm, field.op2) >> field.shift & 0xf) as u8
}

/// Features that a CPU has and whose state the world switch does not keep for OS-0 while a VM runs, by
/// name: EL2 shares no such CPU. What [`Native`] opens and a VM is denied stays in the registers;
/// these either act while a VM runs, or are lost when it uses its floating point.
pub fn not_covered(read: impl Fn(u8, u8) -> u64) -> impl Iterator<Item = &'static str> {
    const NOT_COVERED: [(&str, IdField, u8); 6] = [
        ("FEAT_SME", SME, 1),
        ("FEAT_FPMR", id(4, 2, 32), 1),
        ("FEAT_SPE", id(5, 0, 32), 1),
        ("FEAT_TRBE", id(5, 0, 44), 1),
        ("FEAT_BRBE", id(5, 0, 52), 1),
        ("FEAT_D128", id(7, 3, 32), 1),
    ];
    let has = NOT_COVERED.map(|(_, field, least)| get(&read, field) >= least);
    let named = NOT_COVERED.into_iter().zip(has);
    named.filter_map(|((name, ..), has)| has.then_some(name))
}

/// Features that a CPU has, that EL2 could withhold, and that the table does not let through, by
/// name: OS-0 must not find them.
pub fn unknown(read: impl Fn(u8, u8) -> u64) -> impl Iterator<Item = &'static str> {
    const LATER: [(&str, IdField, u8); 3] = [
        ("FEAT_FGT2", FGT, 2),
        ("FEAT_EBEP", id(5, 1, 48), 1),
        ("FEAT_THE", id(4, 1, 48), 1),
    ];
    let has = LATER.map(|(_, field, least)| get(&read, field) >= least);
    LATER
        .into_iter()
        .zip(has)
        .filter_map(|((name, ..), has)| has.then_some(name))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn a_plain_cpu_has_nothing_that_is_not_in_the_base_architecture() {
        let native = Native::of(|_, _| 0);
        assert_eq!(
            (native.hcr, native.cptr, native.mdcr),
            (0x8008_0000, 0x33ff, 0)
        );
        assert_eq!((native.hcrx, native.fine_grained), (None, None));
        assert!(!native.has_pmu && !native.mpam);
        assert_eq!(unknown(|_, _| 0).count(), 0);
    }

    /// QEMU's `neoverse-n1` and `max` with pointer authentication, as read there; the values are
    /// those with which Linux 6.12 was seen to run.
    #[test]
    fn known_cpus() {
        let n1 = |crm, op2| match (crm, op2) {
            (4, 0) => 0x1100_0000_1111_1112,
            (5, 0) => 0x10305408,
            _ => 0,
        };
        let native = Native::of(n1);
        assert_eq!(native.hcr, 0x8008_0000);
        assert!(native.has_pmu && native.sve.is_none());
        let max = |crm, op2| match (crm, op2) {
            (4, 0) => 2 << 56 | 2 << 28 | 1 << 32,
            (4, 1) => 1 << 24 | 3 << 8,
            (4, 5) => 1 << 63,
            (6, 1) => 5 << 4,
            (6, 2) => 1 << 16,
            (7, 0) => 1 << 56,
            (7, 1) => 1 << 40,
            _ => 0,
        };
        let native = Native::of(max);
        assert_eq!(
            native.hcr,
            0x0000_0300_8008_0000 | 1 << 47 | 1 << 53 | 1 << 56
        );
        assert_eq!(native.hcrx, Some(0x800));
        assert_eq!(native.cptr, 0x22ff);
        assert_eq!((native.sve, native.sme), (Some(0x1ff), Some(0x8000_01ff)));
        assert_eq!(unknown(|_, _| u64::MAX).count(), 3);
        assert_eq!(
            (not_covered(n1).count(), not_covered(max).next()),
            (0, Some("FEAT_SME"))
        );
    }

    proptest! {
        /// A feature's bits are there exactly where the CPU has the feature.
        #[test]
        fn each_gate_follows_its_feature(words in prop::collection::vec(any::<u64>(), 64)) {
            let read = |crm: u8, op2: u8| words[usize::from(crm) * 8 + usize::from(op2)];
            let native = Native::of(read);
            let rows: Vec<_> = FEATURES
                .iter()
                .map(|f| (get(&read, f.field) >= f.least, f.gate))
                .collect();
            let wanted = |pick: &dyn Fn(Gate) -> u64| {
                rows.iter().fold(0, |bits, (has, gate)| bits | if *has { pick(*gate) } else { 0 })
            };
            prop_assert_eq!(
                native.hcr,
                0x8008_0000 | wanted(&|gate| if let Gate::Hcr(bits) = gate { bits } else { 0 })
            );
            prop_assert_eq!(
                native.cptr,
                0x33ff & !wanted(&|gate| if let Gate::Cptr(bits) = gate { bits } else { 0 })
            );
            // No stage 2, no interrupt and no WFI to EL2; E2H clear.
            prop_assert_eq!(native.hcr & (1 | 7 << 3 | 3 << 13 | 1 << 34 | 1 << 27), 0);
        }
    }
}
