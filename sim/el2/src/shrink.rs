//! A life that goes wrong is made small: fewer of everything, as long as it goes wrong.

use crate::in_process;
use crate::scene::Limits;

/// Whether a life goes wrong within these limits.
fn fails(seed: u64, limits: Limits) -> bool {
    in_process(seed, limits, &[]).is_ok_and(|output| !output.status.success())
}

/// Makes one limit as low as it can be, by halves first.
fn lower(seed: u64, limits: &mut Limits, least: u64, place: impl Fn(&mut Limits) -> &mut u64) {
    let mut low = least;
    while low < *place(limits) {
        let middle = low + (*place(limits) - low) / 2;
        let mut smaller = *limits;
        *place(&mut smaller) = middle;
        if fails(seed, smaller) {
            *limits = smaller;
        } else {
            low = middle + 1;
        }
    }
}

/// Shrinks a life that goes wrong, and prints what is left of it.
pub fn tell(seed: u64, limits: Limits) {
    let mut small = limits;
    loop {
        let before = small;
        lower(seed, &mut small, 0, |limits| &mut limits.faults);
        lower(seed, &mut small, 0, |limits| &mut limits.requests);
        lower(seed, &mut small, 1, |limits| &mut limits.vms);
        lower(seed, &mut small, 1, |limits| &mut limits.cpus);
        lower(seed, &mut small, 1, |limits| &mut limits.vcpus);
        lower(seed, &mut small, 0, |limits| &mut limits.steps);
        if small == before {
            break;
        }
    }
    println!(
        "\nthe smallest life that goes wrong: cargo run -p sim_el2 -- --tell --log --seed {seed} {}",
        small.arguments().join(" ")
    );
    if let Ok(output) = in_process(seed, small, &["--tell", "--log"]) {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        print!("{}", String::from_utf8_lossy(&output.stderr));
    }
}
