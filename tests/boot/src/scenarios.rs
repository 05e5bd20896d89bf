//! The scenarios, by topic. What is here is data; how it is played is [`crate::scenario`]'s.

mod bare;
mod cluster;
mod control;
mod disks;
mod epitaph;
mod hostile;
mod kernels;
mod life;
mod machines;
mod network;
mod os0;
mod overlays;
mod paging;
mod placement;
mod reading;
mod regions;
mod registers;
mod scheduling;
mod sharing;
mod span;
mod watching;

pub use hostile::check_choices;

use crate::scenario::Scenario;

/// All scenarios, in the order in which they are run: the plainest first, long ones before short
/// ones, so that two workers end together.
pub fn all() -> Vec<Scenario> {
    let topics = [
        bare::plain(),
        epitaph::scenarios(),
        kernels::scenarios(),
        disks::scenarios(),
        overlays::scenarios(),
        hostile::scenarios(),
        registers::scenarios(),
        machines::scenarios(),
        network::scenarios(),
        cluster::scenarios(),
        span::scenarios(),
        os0::scenarios(),
        life::scenarios(),
        scheduling::scenarios(),
        reading::scenarios(),
        regions::scenarios(),
        sharing::scenarios(),
        paging::scenarios(),
        placement::scenarios(),
        watching::scenarios(),
        control::scenarios(),
        bare::thorough(),
    ];
    topics.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_fit_a_socket_path() {
        let scenarios = all();
        let names: BTreeSet<&str> = scenarios.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names.len(), scenarios.len());
        for name in names {
            // <temporary directory>/upPID/NAME/underpin-UID/sim/control.sock, at most 107 bytes.
            assert!(name.len() <= 32, "{name} is too long");
            assert!(
                name.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-/".contains(&b)),
                "{name}"
            );
        }
    }
}
