//! EL2's registers while a guest runs: what the ID registers hide traps.
//!
//! Fields and their places are the Arm ARM's (DDI 0487, D24.2). A bit of a feature that the CPU lacks
//! is RES0 in `HCR_EL2`, `CPTR_EL2` and `MDCR_EL2`, which exist everywhere; the others exist where the
//! CPU has what they control. `tests/confinement.rs` names the bit for each hidden field.

/// `HCR_EL2`: stage 2 on; interrupts to EL2; broadcast TLB maintenance and barriers made inner
/// shareable, so that they follow a vCPU from CPU to CPU; WFI, SMC, ID registers, error records,
/// LORegions and implementation-defined registers trap. `TID2` stays clear: cache geometry reads are
/// frequent and harmless. So does `TEA`: a synchronous external abort is of the guest's own access, and
/// its kernel takes it.
pub const HCR: u64 = {
    const VM: u64 = 1 << 0;
    const SWIO: u64 = 1 << 1;
    const FMO_IMO_AMO: u64 = 0b111 << 3;
    const FB_BSU_INNER: u64 = 0b11 << 9;
    const TWI: u64 = 1 << 13;
    const TID3: u64 = 1 << 18;
    const TSC: u64 = 1 << 19;
    const TIDCP_TACR: u64 = 0b11 << 20;
    const RW: u64 = 1 << 31;
    const TLOR: u64 = 1 << 35;
    const TERR: u64 = 1 << 36;
    const STAGE_2: u64 = VM | SWIO | FMO_IMO_AMO | FB_BSU_INNER | RW;
    STAGE_2 | TWI | TID3 | TSC | TIDCP_TACR | TLOR | TERR
};

/// `CPTR_EL2` with E2H clear: RES1 bits; SVE (`TZ`), SME (`TSM`, among those), trace (`TTA`) and
/// activity monitors (`TAM`) trap.
pub const CPTR: u64 = 0x32ff | 1 << 8 | 1 << 20 | 1 << 30;

/// `CPTR_EL2.TFP`: floating point traps, too, until the guest's is loaded.
pub const CPTR_TFP: u64 = 1 << 10;

/// `MDCR_EL2`: `TDRA`, `TDOSA`, `TDA` (debug), `TPM`, `TPMCR` (PMU), `TPMS` (profiling) and `TTRF` (trace
/// filter) trap; `E2PB`, `E2TB` and `EnSPM` clear, so buffers and system PMUs do, too.
pub const MDCR: u64 = 1 << 11 | 1 << 10 | 1 << 9 | 1 << 6 | 1 << 5 | 1 << 14 | 1 << 19;

/// In `HCR_EL2`: TLB maintenance traps (`TTLB`), of a VM whose other vCPUs TLBI does not reach, as they are on other hosts.
pub const TTLB: u64 = 1 << 25;

/// `HCRX_EL2`: whatever it enables is off.
pub const HCRX: u64 = 0;

/// `HFGRTR_EL2`, `HFGWTR_EL2`, `HFGITR_EL2`, `HDFGRTR_EL2`, `HDFGWTR_EL2` and the second of each: bits of
/// negative polarity trap, which are those of features that no older register confines.
pub const FINE_GRAINED: u64 = 0;

/// `MPAM2_EL2`: `TRAPMPAM1EL1`, `TRAPMPAM0EL1` and, where the CPU has it, `TIDR`.
pub const MPAM2: u64 = 1 << 48 | 1 << 49 | 1 << 58;
