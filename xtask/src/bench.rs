//! `xtask bench`: what one entry into the hypervisor costs, in instructions, beside the peers.
//!
//! `nano`, a bare guest, times one kind of entry at a time. Time is counted in instructions
//! (two nanoseconds each), so the same binaries print the same figures every time.

use crate::{
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{collections::BTreeMap, env, process::Command, time::Duration};
use tests_boot::{
    assets,
    machine::{Hardware, Machine},
    vm::Vm,
};

/// How long `nano` may take.
const NANO_MAX: Duration = Duration::from_mins(5);
/// What `nano` prints before each figure: `nano: KEY NS INSTRUCTIONS`.
const NANO_LINE: &str = "nano:";

/// One figure: `nano`'s key, what it is, our aim, and Xen 4.20's and KVM's instructions.
struct Row {
    key: &'static str,
    what: &'static str,
    aim: Option<f64>,
    xen: &'static str,
    kvm: &'static str,
}

const fn row(
    key: &'static str,
    what: &'static str,
    aim: Option<f64>,
    xen: &'static str,
    kvm: &'static str,
) -> Row {
    Row {
        key,
        what,
        aim,
        xen,
        kvm,
    }
}

/// The peers' figures were measured on the same simulated machine with the same kind of program.
const ROWS: [Row; 14] = [
    row(
        "null_hypercall",
        "null hypercall (PSCI_VERSION)",
        Some(200.0),
        "571",
        "1328",
    ),
    row(
        "id_register",
        "trapped ID register",
        Some(200.0),
        "529",
        "1647",
    ),
    row("cntvct", "read CNTVCT", None, "3", "3"),
    row("timer_program", "program the virtual timer", None, "5", "5"),
    row("gicd_typer", "read GICD_TYPER", Some(300.0), "692", "2096"),
    row(
        "uart_flags",
        "read the UART's status",
        Some(300.0),
        "729",
        "6952",
    ),
    row(
        "uart_transmit",
        "transmit a byte by UART",
        Some(600.0),
        "3025",
        "17623",
    ),
    row(
        "sgi_self",
        "SGI to self until handled",
        Some(500.0),
        "1174",
        "2747",
    ),
    row(
        "virtual_timer",
        "virtual timer interrupt until handled",
        Some(500.0),
        "1235",
        "2678",
    ),
    row(
        "wfi_wake",
        "WFI, wake past the deadline",
        Some(900.0),
        "1185-4425",
        "2685",
    ),
    row(
        "first_store",
        "first store to new memory, per 4 KiB",
        Some(250.0),
        "-",
        "879",
    ),
    row(
        "first_store_worst",
        "the same, the worst single fault",
        None,
        "-",
        "-",
    ),
    row("vcpu_switch", "switch between two vCPUs", None, "-", "-"),
    row(
        "loop1000",
        "loop of 1000 instructions",
        None,
        "1007",
        "1010",
    ),
];

/// `nano`'s figures in instructions, by key.
type Figures = BTreeMap<String, f64>;

/// Prints the table; gives whether it could be measured.
pub fn run() -> bool {
    let mut steps = Steps::new(3, project::products().join("bench-logs"));
    let figures = measure(&mut steps);
    let Some((bare, ours, again)) = figures else {
        return false;
    };
    print_line(&table(&bare, &ours));
    let same = ours == again;
    print_line(if same {
        "a second run printed the same figures"
    } else {
        "A SECOND RUN PRINTED OTHER FIGURES"
    });
    same
}

fn measure(steps: &mut Steps) -> Option<(Figures, Figures, Figures)> {
    steps.run("build", |step| images::all(step))?;
    let bare = steps.run("nano at EL1 without a hypervisor", on_bare_machine)?;
    let twice = steps.run("nano under Underpin, twice", |step| {
        Ok((under_underpin(step)?, under_underpin(step)?))
    })?;
    Some((bare, twice.0, twice.1))
}

/// `nano` on QEMU's machine itself, at EL1.
fn on_bare_machine(step: &mut Step<'_>) -> Outcome<Figures> {
    let mut qemu = Command::new("timeout");
    qemu.arg(NANO_MAX.as_secs().to_string()).arg("qemu-system-aarch64").args(
        "-M virt,gic-version=3 -cpu neoverse-n1 -smp 1 -m 512 -accel tcg,thread=single -icount shift=1,sleep=off \
         -nodefaults -display none -serial stdio -no-reboot -append plain -kernel"
            .split_whitespace(),
    );
    let said = step.command(qemu.arg(assets::guest("nano")))?;
    figures(&said)
}

/// `nano` in a VM of the same size, alone on the same machine, with a second vCPU to switch to.
fn under_underpin(step: &Step<'_>) -> Outcome<Figures> {
    step.doing("nano runs");
    let directory = env::temp_dir()
        .join(format!("up{}", std::process::id()))
        .join("nano");
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let vm = Vm::bare("nano", "nano", "").cpus(2).memory("512MiB");
    let mut machine = Machine::start(
        &assets::command(),
        &directory,
        &Hardware::new(1, "2G").counted(),
        &[vm],
    )?;
    machine.await_answer()?;
    machine.await_state("nano", "ended", NANO_MAX)?;
    let said = machine.console("nano");
    machine.shut_down()?;
    drop(machine);
    // It holds nothing but a bundle and logs.
    let _ = std::fs::remove_dir_all(&directory);
    figures(&said)
}

fn figures(console: &str) -> Outcome<Figures> {
    let figure = |line: &str| {
        let words: Vec<&str> = line.split_once(NANO_LINE)?.1.split_whitespace().collect();
        let [key, _, instructions] = words[..] else {
            return None;
        };
        Some((key.to_owned(), instructions.parse().ok()?))
    };
    let figures: Figures = console.lines().filter_map(figure).collect();
    if figures.is_empty() {
        Err(format!("nano printed no figures, but:\n{console}"))
    } else {
        Ok(figures)
    }
}

fn table(bare: &Figures, ours: &Figures) -> String {
    let head = format!(
        "\n{:40} {:>9} {:>9} {:>9} {:>10} {:>9}\n",
        "instructions per round trip", "at EL1", "Underpin", "aim", "Xen 4.20", "KVM"
    );
    let number =
        |value: Option<&f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let line = |row: &Row| {
        let found = ours.get(row.key);
        let missed = row.aim.zip(found).is_some_and(|(aim, found)| *found > aim);
        format!(
            "{:40} {:>9} {:>9} {:>9} {:>10} {:>9}{}\n",
            row.what,
            number(bare.get(row.key)),
            number(found),
            row.aim
                .map_or_else(|| "-".to_owned(), |aim| format!("<= {aim:.0}")),
            row.xen,
            row.kvm,
            if missed { "  missed" } else { "" }
        )
    };
    let known = ROWS.iter().map(line);
    let others = ours
        .iter()
        .filter(|(key, _)| ROWS.iter().all(|row| row.key != key.as_str()));
    let others =
        others.map(|(key, value)| format!("{key:40} {:>9} {value:>9.1}\n", number(bare.get(key))));
    std::iter::once(head).chain(known).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_set_beside_the_aims() {
        let ours = figures("nano: null_hypercall 398.2 199.1\r\nnoise\nnano: gicd_typer 700.0 350.0\nnano: other 4 2\nnano: bad\n").unwrap();
        assert_eq!(ours.len(), 3);
        assert!(figures("nothing").is_err());
        let shown = table(&Figures::new(), &ours);
        let line = |what: &str| {
            shown
                .lines()
                .find(|line| line.contains(what))
                .unwrap()
                .to_owned()
        };
        assert!(
            line("null hypercall").contains("199.1") && !line("null hypercall").contains("missed")
        );
        assert!(line("GICD_TYPER").ends_with("missed"));
        assert!(line("other").contains("2.0"));
    }
}
