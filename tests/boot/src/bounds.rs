//! What no scenario may show, whatever it is about: stretches of work at EL2 that are too long.
//!
//! Interrupts are masked there, so whoever waits for one waits for the whole stretch. Only machines of one CPU
//! whose time is counted (`Hardware::counted`) are held to it: an instruction takes 2 ns there. With several CPUs QEMU
//! counts for all of them together and runs one after the other, for some ms each: what another CPU did meanwhile is in
//! the stretch. Elsewhere a stretch lasts as long as the host lets it: QEMU translates, and the host runs other
//! things meanwhile, so wall time says nothing of what EL2 did.

use crate::{Outcome, because, scenario::Stage, status::Stretches};
use std::fs;

/// Nanoseconds of an instruction where time is counted.
const INSTRUCTION_NS: u64 = 2;
/// The most instructions in a stretch.
const MOST: u64 = 100_000;

/// Fails where a CPU has worked for too long without a look at its interrupts. A machine that has ended is not
/// asked.
///
/// # Errors
/// The CPU, the kind of work, and how long it was; or nothing was kept.
pub fn stretches(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    if machine.has_ended() {
        return Ok(());
    }
    let all = machine.status()?.stretches;
    let told = fs::write(stage.directory.join(FILE), told(&all));
    told.map_err(because("cannot write the stretches"))?;
    check(&all)
}

/// Among a scenario's logs: the longest stretch of each kind, in instructions.
const FILE: &str = "stretches.log";

fn told(all: &[Stretches]) -> String {
    let of = |of: &Stretches| {
        let longest = of.longest_ns.iter();
        let kinds = longest.map(|(kind, ns)| format!("{kind}={}", ns / INSTRUCTION_NS));
        format!("cpu={} {}\n", of.cpu, kinds.collect::<Vec<_>>().join(" "))
    };
    all.iter().map(of).collect()
}

fn check(all: &[Stretches]) -> Outcome {
    let long = all.iter().flat_map(|of| {
        of.longest_ns.iter().filter_map(|(kind, ns)| {
            let took = ns / INSTRUCTION_NS;
            (took > MOST).then(|| {
                let cpu = of.cpu;
                format!("{took} instructions ({kind}, CPU {cpu}; at most {MOST})")
            })
        })
    });
    let long: Vec<String> = long.collect();
    if all
        .iter()
        .all(|of| of.longest_ns.values().all(|ns| *ns == 0))
    {
        return Err("EL2 has kept no stretch of its work".to_owned());
    }
    if long.is_empty() {
        return Ok(());
    }
    Err(format!(
        "EL2 worked for too long without a look at its interrupts: {}",
        long.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_that_is_too_long_is_told() {
        let of = |kind: &str, ns| Stretches {
            cpu: 1,
            longest_ns: [(kind.to_owned(), ns)].into(),
        };
        assert!(check(&[of("exit", 200_000), of("end", 200_000)]).is_ok());
        let why = check(&[of("device", 200_002)]).unwrap_err();
        assert!(why.contains("100001 instructions (device, CPU 1"), "{why}");
        assert!(check(&[of("end", 200_002)]).is_err());
        assert!(check(&[of("end", 0)]).is_err());
        assert_eq!(told(&[of("end", 84_000)]), "cpu=1 end=42000\n");
    }
}
