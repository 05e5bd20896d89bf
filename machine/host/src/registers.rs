//! The system registers of a CPU, by number.

use crate::machine;

/// Names of all registers that the drivers know: a register's number is its place here.
const NAMES: [&str; 141] = [
    "midr_el1",
    "mpidr_el1",
    "ctr_el0",
    "dczid_el0",
    "cntfrq_el0",
    "cntpct_el0",
    "isr_el1",
    "id_aa64pfr0_el1",
    "id_aa64pfr1_el1",
    "s3_0_c0_c4_2",
    "s3_0_c0_c4_4",
    "s3_0_c0_c4_5",
    "id_aa64dfr0_el1",
    "id_aa64dfr1_el1",
    "id_aa64afr0_el1",
    "id_aa64afr1_el1",
    "id_aa64isar0_el1",
    "id_aa64isar1_el1",
    "s3_0_c0_c6_2",
    "s3_0_c0_c6_3",
    "id_aa64mmfr0_el1",
    "id_aa64mmfr1_el1",
    "s3_0_c0_c7_2",
    "s3_0_c0_c7_3",
    "s3_0_c0_c7_4",
    // Of EL2.
    "cnthctl_el2",
    "cnthp_ctl_el2",
    "cnthp_cval_el2",
    "cntvoff_el2",
    "cptr_el2",
    "esr_el2",
    "far_el2",
    "hcr_el2",
    "hpfar_el2",
    "hstr_el2",
    "mdcr_el2",
    "tpidr_el2",
    "vbar_el2",
    "vmpidr_el2",
    "vpidr_el2",
    "vtcr_el2",
    "vttbr_el2",
    "s3_4_c10_c5_0",
    "s3_4_c1_c1_4",
    "s3_4_c1_c1_5",
    "s3_4_c1_c1_6",
    "s3_4_c1_c2_0",
    "s3_4_c1_c2_2",
    "s3_4_c1_c2_5",
    "s3_4_c1_c2_6",
    "s3_4_c3_c1_0",
    "s3_4_c3_c1_1",
    "s3_4_c3_c1_2",
    "s3_4_c3_c1_3",
    "s3_4_c3_c1_4",
    "s3_4_c3_c1_5",
    "s3_4_c3_c1_6",
    "s3_4_c3_c1_7",
    "s3_4_c12_c1_1",
    "s3_0_c12_c1_1",
    // Of EL1 and EL0.
    "cntv_ctl_el0",
    "cntv_cval_el0",
    "pmcr_el0",
    "sctlr_el1",
    "cpacr_el1",
    "ttbr0_el1",
    "ttbr1_el1",
    "tcr_el1",
    "esr_el1",
    "far_el1",
    "afsr0_el1",
    "afsr1_el1",
    "mair_el1",
    "amair_el1",
    "vbar_el1",
    "contextidr_el1",
    "tpidr_el0",
    "tpidrro_el0",
    "tpidr_el1",
    "par_el1",
    "cntkctl_el1",
    "elr_el1",
    "spsr_el1",
    "sp_el0",
    "sp_el1",
    "mdscr_el1",
    "csselr_el1",
    // Of the interrupt controller: physical, then virtual.
    "s3_0_c4_c6_0",
    "s3_0_c12_c8_3",
    "s3_0_c12_c8_4",
    "s3_0_c12_c9_0",
    "s3_0_c12_c11_1",
    "s3_0_c12_c11_3",
    "s3_0_c12_c11_5",
    "s3_0_c12_c11_6",
    "s3_0_c12_c11_7",
    "s3_0_c12_c12_0",
    "s3_0_c12_c12_1",
    "s3_0_c12_c12_3",
    "s3_0_c12_c12_4",
    "s3_0_c12_c12_6",
    "s3_0_c12_c12_7",
    "s3_4_c12_c9_5",
    "s3_4_c12_c8_0",
    "s3_4_c12_c9_0",
    "s3_4_c12_c11_0",
    "s3_4_c12_c11_1",
    "s3_4_c12_c11_5",
    "s3_4_c12_c11_7",
    "s3_4_c12_c12_0",
    "s3_4_c12_c12_1",
    "s3_4_c12_c12_2",
    "s3_4_c12_c12_3",
    "s3_4_c12_c12_4",
    "s3_4_c12_c12_5",
    "s3_4_c12_c12_6",
    "s3_4_c12_c12_7",
    "s3_4_c12_c13_0",
    "s3_4_c12_c13_1",
    "s3_4_c12_c13_2",
    "s3_4_c12_c13_3",
    "s3_4_c12_c13_4",
    "s3_4_c12_c13_5",
    "s3_4_c12_c13_6",
    "s3_4_c12_c13_7",
    "currentel",
    "daif",
    "nzcv",
    "s3_3_c13_c0_2",
    "s3_3_c2_c4_1",
    "s3_0_c0_c0_5",
    "s3_0_c0_c0_6",
    "s3_0_c4_c2_0",
    "s3_0_c1_c0_3",
    "s3_0_c2_c0_3",
    "s3_4_c12_c8_1",
    "s3_4_c12_c8_2",
    "s3_4_c12_c8_3",
    "s3_4_c12_c9_1",
    "s3_4_c12_c9_2",
    "s3_4_c12_c9_3",
];

/// How many registers a CPU has.
pub const COUNT: usize = NAMES.len();

/// The number of the register called `name`, while compiling.
///
/// # Panics
/// Where no register is called that: the crate does not build.
pub const fn number(name: &str) -> usize {
    let mut number = 0;
    while number < COUNT {
        if is_equal(NAMES[number].as_bytes(), name.as_bytes()) {
            return number;
        }
        number += 1;
    }
    unknown_register()
}

#[expect(clippy::panic, reason = "evaluated while compiling only")]
const fn unknown_register() -> usize {
    panic!("a register that machine/host does not have")
}

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The name of a register.
pub fn name(number: usize) -> &'static str {
    NAMES.get(number).copied().unwrap_or("?")
}

/// Reads a register of the executing CPU.
pub fn read(number: usize) -> u64 {
    machine::step();
    machine::with(|machine| machine.read_register(number))
}

/// Writes a register of the executing CPU.
///
/// # Safety
/// As on AArch64: what the register means must hold.
pub unsafe fn write(number: usize, value: u64) {
    machine::step();
    machine::with(|machine| machine.write_register(number, value));
}
