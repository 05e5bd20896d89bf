//! Leaving while messages come.

use super::{super::kernels::BOOT, longest_below};
use crate::{os0::Os0, scenario::Scenario};

/// Eight CPUs hold a message when they are asked to leave, or one does and the others are not kept; each is asked a
/// second time and is out.
pub fn of_messages() -> Scenario {
    let os0 = Os0::new("trixie-cloud", 8, "1G", "storm").counted();
    let os0 = os0.disk(16 << 20).pairs(5);
    let os0 = os0.expect("storm ended", 8 * BOOT);
    let os0 = os0.expect("Power down", BOOT);
    Scenario::os0("os0/storm", os0).slow().console(|said| {
        for (what, held, most) in [
            ("all", "8-8", 1_000),
            ("one", "1-1", 1_000),
            ("busy", "8-8", STORM_MAX),
        ] {
            if !said.contains(&format!("storm {what} pairs=5 held={held} again=0 ")) {
                return Err(format!(
                    "{what}: not {held} CPUs held a message and were asked once more"
                ));
            }
            let rest = said.split_once(&format!("storm {what} "));
            longest_below(rest.map_or("", |(_, rest)| rest), "longest=", most)?;
        }
        Ok(())
    })
}

/// Microseconds, of a machine that runs one CPU at a time, that a switch may take where all CPUs work.
const STORM_MAX: u64 = 100_000;
