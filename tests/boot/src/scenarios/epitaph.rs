//! Faults of EL2's own, which nothing from outside leads to: a debugger makes the only CPU do at EL2 what a bug would,
//! and the machine's last words must tell it.

use crate::{
    Outcome,
    debugger::{CPSR, Debugger, PC, SP},
    machine::Hardware,
    scenario::Scenario,
    vm::Vm,
};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

const PAGE: u64 = 4096;
/// `PSTATE.M` at EL2 with its own stack.
const EL2: u64 = 0b1001;
/// Pages of the first CPU's stack (`linker.ld`), and the one below.
const PAGES_MAX: u64 = 64 + 1;
/// Bytes of code that are searched for an instruction, on each side of where the CPU is.
const NEAR: u64 = 0x8_0000;
/// `ESR_EL2`: a data or instruction abort at EL2 itself, and its kind at level 3 (Arm ARM D17.2.37).
const DATA_ABORT: u64 = 0x25;
const INSTRUCTION_ABORT: u64 = 0x21;
const TRANSLATION: u64 = 0b0001;
const PERMISSION: u64 = 0b0011;
const LAST_WORDS: Duration = Duration::from_secs(30);

/// What the CPU is made to do; gives where it must fault, and how.
type Deed = fn(&mut Debugger) -> Outcome<Fault>;

struct Fault {
    far: u64,
    class: u64,
    status: u64,
}

pub fn scenarios() -> Vec<Scenario> {
    vec![
        dies("epitaph/code-written", writes_code),
        dies("epitaph/data-executed", executes_data),
        dies("epitaph/stack-overflow", overflows),
    ]
}

fn dies(name: &'static str, deed: Deed) -> Scenario {
    let vms = vec![Vm::bare("guest", "hello", "").flat().asleep()];
    Scenario::new(name, Hardware::new(1, "512M"), vms).check(move |stage| {
        let machine = stage.machine()?;
        machine.await_answer()?;
        let qmp = machine.qmp().ok_or("the machine has no directory")?;
        let mut debugger = Debugger::stop(&qmp)?;
        if debugger.register(CPSR)? & 0xf != EL2 {
            return Err("the CPU is not at EL2".to_owned());
        }
        let fault = deed(&mut debugger)?;
        debugger.go_on()?;
        let deadline = Instant::now() + LAST_WORDS;
        let said = loop {
            let said = machine.hypervisor_log();
            if said.contains("the machine has stopped") {
                break said;
            }
            if Instant::now() > deadline {
                return Err("the machine has no last words".to_owned());
            }
            sleep(Duration::from_millis(50));
        };
        tells(&said, &fault)?;
        machine.kill();
        Ok(())
    })
}

/// Whether last words tell of such a fault.
fn tells(said: &str, fault: &Fault) -> Outcome {
    let number = |name: &str| {
        let word = said.split(name).nth(1)?.split_whitespace().next()?;
        u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
    };
    let is_epitaph = said.contains("EPITAPH: synchronous exception in EL2 on cpu 0");
    let (esr, far) = (number(" esr ").unwrap_or(0), number(" far ").unwrap_or(0));
    let is_it = esr >> 26 == fault.class && esr >> 2 & 0xf == fault.status && far == fault.far;
    if is_epitaph && is_it {
        return Ok(());
    }
    let wanted = format!(
        "class {:#x}, status {:#x} at {:#x}",
        fault.class, fault.status, fault.far
    );
    Err(format!(
        "the last words are of {esr:#x} at {far:#x}, not {wanted}"
    ))
}

/// The instruction nearest to where the CPU is that `fits`, and itself.
fn instruction(debugger: &mut Debugger, fits: impl Fn(u32) -> bool) -> Outcome<(u64, u32)> {
    let pc = debugger.register(PC)?;
    let start = (pc - NEAR) & !3;
    for at in (start..pc + NEAR).step_by(1024) {
        let Some(bytes) = debugger.memory(at, 1024)? else {
            continue;
        };
        let words = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word));
        if let Some((n, word)) = (0..).zip(words).find(|(_, word)| fits(*word)) {
            return Ok((at + 4 * n, word));
        }
    }
    Err("EL2 has no such instruction".to_owned())
}

/// A store to its own code.
fn writes_code(debugger: &mut Debugger) -> Outcome<Fault> {
    // `STR Xt, [Xn]`, of a base that is not the stack.
    let is_store = |word: u32| word & 0xffff_fc00 == 0xf900_0000 && word >> 5 & 31 != 31;
    let (pc, word) = instruction(debugger, is_store)?;
    let far = pc & !7;
    debugger.set_register(word >> 5 & 31, far)?;
    debugger.set_register(PC, pc)?;
    Ok(Fault {
        far,
        class: DATA_ABORT,
        status: PERMISSION,
    })
}

/// A jump into its own data: what its stack holds.
fn executes_data(debugger: &mut Debugger) -> Outcome<Fault> {
    let far = debugger.register(SP)? & !(PAGE - 1);
    debugger.set_register(PC, far)?;
    Ok(Fault {
        far,
        class: INSTRUCTION_ABORT,
        status: PERMISSION,
    })
}

/// A call when the stack is full.
fn overflows(debugger: &mut Debugger) -> Outcome<Fault> {
    let mut end = debugger.register(SP)? & !(PAGE - 1);
    for _ in 0..PAGES_MAX {
        if debugger.memory(end - PAGE, 8)?.is_none() {
            // `STR Xt, [SP, #-n]!`, or `STP`: as functions begin.
            let is_str = |word: u32| word & 0xfff0_0fe0 == 0xf810_0fe0;
            let is_push = |word: u32| is_str(word) || word & 0xffe0_03e0 == 0xa9a0_03e0;
            let (pc, word) = instruction(debugger, is_push)?;
            let down = if is_str(word) {
                0x200 - (word >> 12 & 0x1ff)
            } else {
                8 * (0x80 - (word >> 15 & 0x7f))
            };
            debugger.set_register(SP, end)?;
            debugger.set_register(PC, pc)?;
            return Ok(Fault {
                far: end - u64::from(down),
                class: DATA_ABORT,
                status: TRANSLATION,
            });
        }
        end -= PAGE;
    }
    Err("the stack has no end".to_owned())
}
