//! Reads of system registers that Underpin hides, or that nobody defined.

use machine_bare::machine::Machine;
use machine_bare::println;
use machine_bare::probe::{self, Register};
use machine_bare::verdict::{Verdict, check, equal};

/// Registers, a name for each group.
const GROUPS: [(&str, &[Register]); 7] = [
    (
        "IMPLEMENTATION DEFINED",
        &[
            Register(3, 0, 15, 0, 0),
            Register(3, 0, 15, 1, 0), // CPUACTLR_EL1 of Arm's cores
            Register(3, 0, 15, 1, 4), // CPUECTLR_EL1
            Register(3, 1, 15, 2, 0),
            Register(3, 3, 15, 7, 7),
            Register(3, 0, 11, 0, 0),
            Register(3, 7, 15, 0, 0),
            Register(1, 0, 15, 0, 0),
        ],
    ),
    (
        "performance monitors",
        &[
            Register(3, 3, 9, 12, 0),  // PMCR_EL0
            Register(3, 3, 9, 12, 1),  // PMCNTENSET_EL0
            Register(3, 3, 9, 12, 5),  // PMSELR_EL0
            Register(3, 3, 9, 13, 0),  // PMCCNTR_EL0
            Register(3, 3, 9, 14, 0),  // PMUSERENR_EL0
            Register(3, 0, 9, 14, 1),  // PMINTENSET_EL1
            Register(3, 3, 14, 8, 0),  // PMEVCNTR0_EL0
            Register(3, 3, 14, 15, 7), // PMCCFILTR_EL0
        ],
    ),
    (
        "debug",
        &[
            Register(2, 0, 0, 2, 2), // MDSCR_EL1
            Register(2, 0, 0, 0, 4), // DBGBVR0_EL1
            Register(2, 0, 0, 0, 5), // DBGBCR0_EL1
            Register(2, 0, 0, 0, 6), // DBGWVR0_EL1
            Register(2, 0, 1, 0, 0), // MDRAR_EL1
            Register(2, 0, 1, 3, 4), // OSDLR_EL1
            Register(2, 0, 0, 3, 2), // OSDTRTX_EL1
            Register(2, 3, 0, 1, 0), // MDCCSR_EL0
        ],
    ),
    (
        "SVE and SME",
        &[
            Register(3, 0, 1, 2, 0),  // ZCR_EL1
            Register(3, 0, 1, 2, 6),  // SMCR_EL1
            Register(3, 3, 4, 2, 2),  // SVCR
            Register(3, 3, 13, 0, 5), // TPIDR2_EL0
        ],
    ),
    (
        "pointer authentication keys",
        &[
            Register(3, 0, 2, 1, 0), // APIAKeyLo_EL1
            Register(3, 0, 2, 1, 1),
            Register(3, 0, 2, 2, 0), // APDAKeyLo_EL1
            Register(3, 0, 2, 3, 0), // APGAKeyLo_EL1
        ],
    ),
    (
        "statistical profiling, trace, error records, limited ordering",
        &[
            Register(3, 0, 9, 9, 0),  // PMSCR_EL1
            Register(3, 0, 9, 10, 0), // PMBLIMITR_EL1
            Register(3, 0, 9, 11, 0), // TRBLIMITR_EL1
            Register(2, 1, 0, 1, 0),  // TRCPRGCTLR
            Register(3, 0, 5, 3, 0),  // ERRIDR_EL1
            Register(3, 0, 5, 4, 0),  // ERXFR_EL1
            Register(3, 0, 10, 4, 0), // LORSA_EL1
            Register(3, 0, 10, 4, 7), // LORID_EL1
        ],
    ),
    (
        "unallocated, and of EL2 and EL3",
        &[
            Register(3, 0, 0, 7, 7),
            Register(3, 0, 3, 0, 0),
            Register(3, 2, 5, 5, 5),
            Register(3, 5, 11, 13, 3),
            Register(2, 6, 9, 9, 1),
            Register(3, 4, 1, 1, 0), // HCR_EL2
            Register(3, 4, 2, 1, 0), // VTTBR_EL2
            Register(3, 6, 1, 1, 0), // SCR_EL3
        ],
    ),
];

/// Reads each: zero or UNDEFINED. Values are counted, and fail unless the machine is `plain`.
pub fn unknown(machine: &'static Machine) -> Verdict {
    let mut values = 0;
    for (name, registers) in GROUPS {
        let (mut zero, mut undefined) = (0, 0);
        for register in registers {
            match probe::read_register(*register) {
                Ok(0) => zero += 1,
                Ok(value) => {
                    println!("hostile: {register:?} is {value:#x}");
                    values += 1;
                }
                Err(fault) => {
                    check(
                        fault.is_undefined(),
                        "a system register takes another exception",
                    )?;
                    undefined += 1;
                }
            }
        }
        println!(
            "hostile: {name}: {zero} zero, {undefined} UNDEFINED of {}",
            registers.len()
        );
    }
    println!("hostile: {values} registers have values");
    if machine.flag("plain") {
        return Ok(());
    }
    equal("registers with values", values, 0)
}
