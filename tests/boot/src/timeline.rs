//! The demo of attaching: a Linux that forks all the time while Underpin goes beneath it, runs two VMs in its
//! memory, and goes away again; and what it says of how fast it was, and when what happened.
//!
//! Time is counted in instructions, one each nanosecond for all CPUs together, so that a run is like any other
//! on whatever host.

use crate::{Outcome, os0::Os0, vm::Vm};

const KERNEL: &str = "trixie-cloud";
/// The seconds that each text may take to come.
const BOOT: u64 = 120;
const WORK: u64 = 2400;

/// What `seq 0 199999 | sha256sum` prints, as both VMs do.
const VMS_WORK: &str = "sha256=6f90caf91bd7362f38cdd423e205c1738dd29f3ff95e6db3cc2b0eafc806547a";

/// What OS-0 may lose where EL2 is beneath it with nothing else to do, in percent.
const LOSS_MAX: f64 = 2.0;

/// The Linux of the demo, and its two VMs. It does `actions` (assets/os0/init).
pub fn os0(actions: &str) -> Os0 {
    let vm = |name: &str| {
        let vm = Vm::linux(name, KERNEL, "work").memory("128MiB");
        vm.args("underpin.count=200000")
    };
    Os0::new(KERNEL, 2, "2G", actions)
        .cpu("max,pauth=off,sme=off")
        .beside(vec![vm("one"), vm("two")])
}

/// The same as a play with an end.
pub fn play() -> Os0 {
    let os0 = os0("demo").counted().expect("ready kernel=", BOOT);
    os0.expect(" over", WORK).expect("Power down", BOOT)
}

/// What OS-0 has said so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Seconds since the first of all, and how many forks there had been by then.
    pub forks: Vec<(f64, u64)>,
    /// Seconds, and what happened then.
    pub moments: Vec<(f64, String)>,
}

/// Time between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// What it is.
    pub name: &'static str,
    /// Seconds.
    pub from: f64,
    /// Seconds.
    pub to: f64,
    /// Forks in a second.
    pub rate: f64,
}

/// The phases, and the moments between which they are.
const PHASES: [(&str, &str, &str); 5] = [
    ("Linux alone", "began", "attaches"),
    ("Underpin beneath", "attached", "starts one"),
    ("VMs at work", "starts two", "ends"),
    ("VMs gone", "repaid", "detaches"),
    ("Linux alone again", "detached", "over"),
];

impl Timeline {
    /// Reads a console; what is no line of the demo's is left out.
    pub fn parse(said: &str) -> Self {
        let mut all = Self::default();
        let mut first = None;
        for line in said.lines().filter_map(|line| line.split_once("os0: at=")) {
            let Some((at, what)) = line.1.trim_end().split_once(' ') else {
                continue;
            };
            let Ok(at) = at.parse::<f64>() else { continue };
            let at = at - *first.get_or_insert(at);
            match what.strip_prefix("forks=").map(str::trim) {
                None => all.moments.push((at, what.to_owned())),
                Some(forks) => all
                    .forks
                    .extend(forks.parse().ok().map(|forks| (at, forks))),
            }
        }
        all
    }

    /// When something happened for the first time that begins so.
    pub fn when(&self, what: &str) -> Option<f64> {
        let moment = self.moments.iter().find(|(_, name)| name.starts_with(what));
        moment.map(|(at, _)| *at)
    }

    /// Forks in a second, from the first count in a time to the last in it.
    pub fn rate(&self, from: f64, to: f64) -> Option<f64> {
        let mut within = self.forks.iter().filter(|(at, _)| (from..=to).contains(at));
        let (first, last) = (within.next()?, within.next_back()?);
        Some((last.1.checked_sub(first.1)? as f64) / (last.0 - first.0))
    }

    /// The phases that are over.
    pub fn phases(&self) -> Vec<Phase> {
        let phase = |(name, from, to)| {
            let (from, to) = (self.when(from)?, self.when(to)?);
            let rate = self.rate(from, to)?;
            Some(Phase {
                name,
                from,
                to,
                rate,
            })
        };
        PHASES.into_iter().filter_map(phase).collect()
    }

    /// All went as it should: both VMs came to the right result, and Linux was as fast beneath whom
    /// Underpin lay with nothing to do, and afterwards, as before.
    ///
    /// # Errors
    /// What did not.
    pub fn check(&self) -> Outcome {
        for vm in ["one", "two"] {
            let what = format!("ends {vm} {VMS_WORK}");
            if self.when(&what).is_none() {
                return Err(format!("VM {vm} has not come to the right result"));
            }
        }
        let phases = self.phases();
        let [alone, attached, _, gone, again] = phases.as_slice() else {
            return Err(format!(
                "of {} phases there are these: {phases:?}",
                PHASES.len()
            ));
        };
        for phase in [attached, gone, again] {
            let loss = 100.0 - phase.rate * 100.0 / alone.rate;
            if loss > LOSS_MAX {
                let (name, before) = (phase.name, alone.name);
                return Err(format!(
                    "'{name}': {loss:.1} % fewer forks than '{before}', where {LOSS_MAX} are the most"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// A console with a count each tenth of a second, of so many forks a second beneath attachment.
    fn console(attached: u64) -> String {
        let mut said = "os0: ready kernel=6.12 cpus=2\n".to_owned();
        let events = [
            (5, "began"),
            (15, "attaches"),
            (16, "attached"),
            (25, "starts one"),
            (30, "starts two"),
            (60, "repaid"),
            (70, "detaches"),
            (71, "detached"),
            (80, "over"),
        ];
        let mut forks = 7;
        for tenth in 0_u64..=80 {
            let _ = write!(
                said,
                "os0: at={}.{} forks={forks} \r\n",
                1000 + tenth / 10,
                tenth % 10
            );
            forks += if (16..=25).contains(&tenth) {
                attached
            } else {
                1000
            } / 10;
            for (_, what) in events.iter().filter(|(at, _)| *at == tenth) {
                let _ = write!(
                    said,
                    "os0: at={}.{} {what}\r\n",
                    1000 + tenth / 10,
                    tenth % 10
                );
            }
            for vm in ["one", "two"].iter().filter(|_| tenth == 58) {
                let _ = write!(
                    said,
                    "[ 3.0] os0: at=1005.85 ends {vm} {VMS_WORK} count=1\r\n"
                );
            }
        }
        said + "os0: at=nonsense\nos0: at=1 \nos0: poweroff\n"
    }

    #[test]
    fn phases_have_their_rates() {
        let timeline = Timeline::parse(&console(990));
        let rates: Vec<u32> = timeline
            .phases()
            .iter()
            .map(|p| p.rate.round() as u32)
            .collect();
        assert_eq!(rates, [1000, 990, 1000, 1000, 1000]);
        assert_eq!(timeline.when("starts two"), Some(3.0));
        assert_eq!(timeline.check(), Ok(()));
    }

    #[test]
    fn what_is_slow_or_missing_is_told() {
        let slow = Timeline::parse(&console(900)).check();
        assert!(slow.is_err_and(|why| why.contains("beneath': 10.0 %")));
        let said = console(990);
        let wrong = Timeline::parse(&said.replace("ends two", "ends nobody")).check();
        assert!(wrong.is_err_and(|why| why.contains("VM two")));
        let short = Timeline::parse(said.split("repaid").next().unwrap());
        assert_eq!(short.phases().len(), 3);
        assert!(short.check().is_err());
        assert_eq!(Timeline::parse("").phases(), []);
    }
}
