//! What it costs to go beneath OS-0 and away, and to be there.

use super::{super::kernels::BOOT, first_number, longest_below};
use crate::{Outcome, os0::Os0, scenario::Scenario};

/// The most instructions that a switch may take on a CPU.
const SWITCH_MAX: u64 = 600;

/// The most instructions that OS-0 may stand still for a switch (Mercury: 210 us).
const PAUSE_MAX: u64 = 210_000;

pub fn scenarios() -> Vec<Scenario> {
    let mut all: Vec<Scenario> = ["1G", "8G", "64G"].map(cost).into();
    all.extend([pause(2), pause(4), gap()]);
    all
}

/// What a switch takes, and what EL2 beneath costs the same work: a load of the CPU, and forks. A switch takes no more
/// where there is more memory.
fn cost(memory: &'static str) -> Scenario {
    let os0 = Os0::new("trixie-cloud", 1, memory, "cost").counted();
    let os0 = os0.expect("cost measured", 8 * BOOT);
    let name = format!("os0/cost-{}", memory.to_lowercase());
    Scenario::os0(name, os0).slow().console(check_cost)
}

/// The longest that a switch takes from end to end, in the instructions of all CPUs together.
fn pause(cpus: u32) -> Scenario {
    let os0 = Os0::new("trixie-cloud", cpus, "1G", "pause").counted();
    let os0 = os0.expect("paused pause=", 4 * BOOT);
    Scenario::os0(format!("os0/pause-{cpus}"), os0.expect("Power down", BOOT))
        .slow()
        .console(check_pause)
}

/// The longest that a switch keeps the program which asks for it from reading the clock.
fn gap() -> Scenario {
    let os0 = Os0::new("trixie-cloud", 1, "1G", "gap").counted().images();
    let os0 = os0.expect("gap status=", 4 * BOOT);
    let os0 = os0.expect("Power down", BOOT);
    Scenario::os0("os0/gap", os0)
        .slow()
        .console(|said| longest_below(said, "switch=", PAUSE_MAX / 1000))
}

fn check_pause(said: &str) -> Outcome {
    let pauses = said.split("pause=").skip(1).filter_map(first_number);
    match pauses.max() {
        Some(0) | None => Err("no pause was told".to_owned()),
        Some(pause) if pause > PAUSE_MAX => {
            Err(format!("OS-0 stood still for {pause} instructions"))
        }
        Some(_) => Ok(()),
    }
}

fn check_cost(said: &str) -> Outcome {
    check_pause(said)?;
    let counts = said.split("counts=").skip(1);
    let counts: Vec<u64> = counts.filter_map(first_number).collect();
    // An interrupt that waits is handed on before the call is back: in one of them.
    let long = counts.iter().filter(|count| **count > SWITCH_MAX).count();
    if counts.len() != 6 || long > 1 {
        return Err(format!("switches take {counts:?} instructions"));
    }
    let work = |name: &str, from: &str, to: &str| {
        let at = |mark: &str| micros_of(said, &format!("mark {name}-{mark}"));
        Some(at(to)?.saturating_sub(at(from)?))
    };
    // The kernel's own times are in microseconds: thousands of instructions.
    for (from, to, most) in [("cpu", "fork", 1005), ("fork", "end", 1010)] {
        let detached = work("detached", from, to).ok_or("no time of a mark")?;
        let attached = work("attached", from, to).ok_or("no time of a mark")?;
        if attached * 1000 > detached * most {
            return Err(format!(
                "{from} to {to}: {detached} detached and {attached} attached"
            ));
        }
    }
    Ok(())
}

/// The kernel's time of the line with `text`: `[    1.286092] ...`.
fn micros_of(said: &str, text: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.trim_end().ends_with(text))?;
    let time = line.split_once('[')?.1.split_once(']')?.0.trim();
    let (seconds, micros) = time.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?)
}
