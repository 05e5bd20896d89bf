//! What this CPU can do, read from its ID registers.

/// How many ID registers guests can read by trap: op0=3, op1=0, CRn=0, CRm=1..=7, op2=0..=7.
pub const ID_REGISTER_COUNT: usize = 56;

macro_rules! read_id_registers {
    ($($index:literal = $name:literal),* $(,)?) => {{
        let mut values = [0u64; ID_REGISTER_COUNT];
        $(values[$index] = read_sysreg!($name);)*
        values
    }};
}

/// The executing CPU's ID registers, indexed by (CRm - 1) * 8 + op2. Encodings that have no
/// register read as zero on every CPU (Arm ARM D24.1: reserved, RES0).
pub fn id_registers() -> [u64; ID_REGISTER_COUNT] {
    read_id_registers! {
        24 = "id_aa64pfr0_el1", 25 = "id_aa64pfr1_el1", 26 = "s3_0_c0_c4_2", 28 = "s3_0_c0_c4_4", 29 = "s3_0_c0_c4_5",
        32 = "id_aa64dfr0_el1", 33 = "id_aa64dfr1_el1", 36 = "id_aa64afr0_el1", 37 = "id_aa64afr1_el1",
        40 = "id_aa64isar0_el1", 41 = "id_aa64isar1_el1", 42 = "s3_0_c0_c6_2", 43 = "s3_0_c0_c6_3",
        48 = "id_aa64mmfr0_el1", 49 = "id_aa64mmfr1_el1", 50 = "s3_0_c0_c7_2", 51 = "s3_0_c0_c7_3",
        52 = "s3_0_c0_c7_4",
    }
}

/// `MIDR_EL1`: who made the CPU.
pub fn midr() -> u64 {
    read_sysreg!("midr_el1")
}

/// Bits of physical address (`ID_AA64MMFR0_EL1.PARange`).
pub fn physical_address_bits() -> u32 {
    let range = read_sysreg!("id_aa64mmfr0_el1") & 0xf;
    [32, 36, 40, 42, 44]
        .get(range as usize)
        .copied()
        .unwrap_or(48)
}

/// Whether VMIDs have 16 bits (`ID_AA64MMFR1_EL1.VMIDBits`).
pub fn has_16_bit_vmid() -> bool {
    read_sysreg!("id_aa64mmfr1_el1") >> 4 & 0xf == 2
}

/// log2 of the bytes that DC ZVA zeroes (`DCZID_EL0`), or 0 if it may not be used.
pub fn zeroed_block_log2() -> u8 {
    match read_sysreg!("dczid_el0") {
        block if block & 1 << 4 == 0 => (block as u8 & 0xf) + 2,
        _ => 0,
    }
}

/// A true random number (FEAT_RNG, `RNDRRS`), where the CPU has it and has one ready.
pub fn random() -> Option<u64> {
    if read_sysreg!("id_aa64isar0_el1") >> 60 & 0xf == 0 {
        return None;
    }
    let (value, flags) = crate::cpu::random();
    // The instruction sets Z where it has nothing.
    (flags & 1 << 30 == 0).then_some(value)
}

/// `MIDR_EL1.Implementer` of Arm's own CPUs.
const ARM: u64 = 0x41;

/// How many branches make the executing CPU forget a guest's branch history (Spectre-BHB,
/// CVE-2022-23960); zero where the CPU needs none.
///
/// CPUs say by `CSV2` 3 or `ECBHB` that they keep histories apart. The counts for those that do
/// not are Arm's ("Spectre-BHB: Speculative Target Reuse Attacks", table of loop counts).
pub fn branch_history_length() -> u32 {
    let csv2 = read_sysreg!("id_aa64pfr0_el1") >> 56 & 0xf;
    let ecbhb = read_sysreg!("id_aa64mmfr1_el1") >> 60 & 0xf;
    if csv2 >= 3 || ecbhb >= 1 {
        return 0;
    }
    match (midr() >> 24 & 0xff, midr() >> 4 & 0xfff) {
        // Cortex-A72.
        (ARM, 0xd08) => 8,
        // Cortex-A76, Neoverse N1, Cortex-A77.
        (ARM, 0xd0b..=0xd0d) => 24,
        // Cortex-A78, A78AE, A78C, X1, X2, A710, Neoverse N2, V1.
        (ARM, 0xd41 | 0xd42 | 0xd4b | 0xd44 | 0xd48 | 0xd47 | 0xd49 | 0xd40) => 32,
        // Cortex-A57 and older take part in another way (firmware), in-order ones not at all.
        _ => 0,
    }
}
