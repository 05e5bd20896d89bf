//! The firmware: PSCI, and nothing else (Arm DEN 0022).

use crate::machine::{self, Pause};
use smccc::Call;

const CPU_ON: u32 = 0xc400_0003;
const SYSTEM_OFF: u32 = 0x8400_0008;
const SYSTEM_RESET: u32 = 0x8400_0009;
const NOT_SUPPORTED: i32 = -1;
const INVALID_PARAMETERS: i32 = -2;
const ALREADY_ON: i32 = -4;

/// A call by SMC.
pub(crate) struct Smc;
/// A call by HVC.
pub(crate) struct Hvc;

fn call(function: u32, arguments: [u64; 3]) -> i32 {
    machine::step();
    match function {
        CPU_ON => machine::with(|machine| match machine.find_cpu(arguments[0]) {
            None => INVALID_PARAMETERS,
            Some(cpu) if machine.start_cpu(cpu, arguments[2]) => 0,
            Some(_) => ALREADY_ON,
        }),
        SYSTEM_OFF | SYSTEM_RESET => {
            machine::with(|machine| machine.is_off = true);
            loop {
                machine::pause(Pause::Halted);
            }
        }
        _ => NOT_SUPPORTED,
    }
}

macro_rules! conduit {
    ($name:ident) => {
        impl Call for $name {
            fn call32(function: u32, arguments: [u32; 7]) -> [u32; 8] {
                let [a, b, c, ..] = arguments.map(u64::from);
                let mut answer = [0; 8];
                answer[0] = call(function, [a, b, c]) as u32;
                answer
            }

            fn call64(function: u32, arguments: [u64; 17]) -> [u64; 18] {
                let [a, b, c, ..] = arguments;
                let mut answer = [0; 18];
                answer[0] = i64::from(call(function, [a, b, c])) as u64;
                answer
            }
        }
    };
}
conduit!(Smc);
conduit!(Hvc);
