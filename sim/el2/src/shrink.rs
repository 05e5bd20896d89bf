//! A life that goes wrong is made small: fewer of everything, as long as it goes wrong.

use crate::in_process;
use crate::scene::Limits;

/// Makes one limit as low as it can be, by halves.
fn lower(
    limits: &mut Limits,
    least: u64,
    fails: impl Fn(Limits) -> bool,
    place: impl Fn(&mut Limits) -> &mut u64,
) {
    let mut low = least;
    while low < *place(limits) {
        let middle = low + (*place(limits) - low) / 2;
        let mut smaller = *limits;
        *place(&mut smaller) = middle;
        if fails(smaller) {
            *limits = smaller;
        } else {
            low = middle + 1;
        }
    }
}

/// The smallest limits within which it fails, as far as one after the other is lowered.
fn smallest(limits: Limits, fails: impl Fn(Limits) -> bool) -> Limits {
    let mut small = limits;
    loop {
        let before = small;
        lower(&mut small, 0, &fails, |limits| &mut limits.faults);
        lower(&mut small, 0, &fails, |limits| &mut limits.requests);
        lower(&mut small, 1, &fails, |limits| &mut limits.vms);
        lower(&mut small, 1, &fails, |limits| &mut limits.cpus);
        lower(&mut small, 1, &fails, |limits| &mut limits.vcpus);
        lower(&mut small, 0, &fails, |limits| &mut limits.steps);
        if small == before {
            return small;
        }
    }
}

/// Shrinks a life that goes wrong, and prints what is left of it.
pub fn tell(seed: u64, limits: Limits) {
    let small = smallest(limits, |limits| {
        in_process(seed, limits, &[]).is_ok_and(|output| !output.status.success())
    });
    println!(
        "\nthe smallest life that goes wrong: cargo run -p sim_el2 -- --tell --log --seed {seed} {}",
        small.arguments().join(" ")
    );
    if let Ok(output) = in_process(seed, small, &["--tell", "--log"]) {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        print!("{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It fails with two CPUs, a vCPU's 17 steps and a request, and whatever else there is.
    #[test]
    fn what_does_not_matter_goes() {
        let most = Limits {
            cpus: 4,
            vms: 8,
            vcpus: 4,
            steps: 128,
            requests: 64,
            faults: 1,
        };
        let fails = |limits: Limits| limits.cpus >= 2 && limits.steps >= 17 && limits.requests > 0;
        let small = smallest(most, fails);
        let least = Limits {
            cpus: 2,
            vms: 1,
            vcpus: 1,
            steps: 17,
            requests: 1,
            faults: 0,
        };
        assert_eq!(small, least);
    }
}
