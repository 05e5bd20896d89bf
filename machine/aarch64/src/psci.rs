//! Calls to the firmware below: starting CPUs, powering off.

use crate::conduit::{Hvc, Smc};
use model_addr::Pa;
use smccc::{Call, psci};

/// How the firmware is called (`method` of the device tree's psci node).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduit {
    /// By SMC.
    Smc,
    /// By HVC.
    Hvc,
}

/// Starts the CPU with that affinity at `entry`, at this exception level, with `context` in x0.
/// The error is the firmware's.
pub fn cpu_on(conduit: Conduit, affinity: u64, entry: Pa, context: u64) -> Result<(), psci::Error> {
    match conduit {
        Conduit::Smc => psci::cpu_on::<Smc>(affinity, entry.0, context),
        Conduit::Hvc => psci::cpu_on::<Hvc>(affinity, entry.0, context),
    }
}

/// Powers the machine off. Returns only if the firmware refuses.
pub fn system_off(conduit: Conduit) {
    let _refused = match conduit {
        Conduit::Smc => psci::system_off::<Smc>(),
        Conduit::Hvc => psci::system_off::<Hvc>(),
    };
}

/// Asks the firmware something by SMC, with one argument: X0 to X3.
pub fn ask(function: u32, argument: u64) -> [u64; 4] {
    let mut arguments = [0; 17];
    arguments[0] = argument;
    let [first, second, third, fourth, ..] = Smc::call64(function, arguments);
    [first, second, third, fourth]
}

/// Calls the firmware as somebody at EL1 called it, by SMC: X0 to X17 go there and come back.
pub fn forward(registers: &mut [u64; 18]) {
    let [function, arguments @ ..] = *registers;
    // The identifier is W0: nothing else of X0 has a meaning.
    *registers = Smc::call64(function as u32, arguments);
}
