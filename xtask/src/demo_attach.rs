//! `xtask demo-attach`: Underpin slides beneath a Linux at work, runs two VMs in its memory, and goes away.

mod picture;

use crate::{
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{fmt::Write as _, fs, path::PathBuf};
use tests_boot::timeline::{self, Timeline};

const INTRODUCTION: &str = "\
QEMU simulates an arm64 machine of 2 CPUs and 2 GiB, which Debian's Linux owns. It forks all the time. Underpin lies
resident at EL2 and does nothing; then it is told to attach, runs two VMs in memory that Linux lends, and detaches.
Time is counted in instructions, one each nanosecond for both CPUs together: another run draws the same picture.";

/// Runs the demo; gives whether all went well.
pub fn run(keep: bool) -> bool {
    print_line(INTRODUCTION);
    let steps = Steps::new(3, logs());
    play(&steps, keep).is_some()
}

fn logs() -> PathBuf {
    project::products().join("demo-attach")
}

fn play(steps: &Steps, keep: bool) -> Option<()> {
    let logs = logs();
    steps.run("build", |step| {
        images::plugin(step)?;
        images::arm64_command(step)?;
        images::hypervisor(step)?;
        fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))
    })?;
    let timeline = steps.run("attach, two VMs, detach", watch)?;
    steps.run("plot", |step| {
        let path = logs.join("timeline.svg");
        fs::write(&path, picture::svg(&timeline))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        step.say(&table(&timeline));
        step.say(&format!("The plot: {} (for any browser)", path.display()));
        Ok(())
    })?;
    if keep {
        return lend();
    }
    print_line("\nTry next:");
    print_line("  make demo-attach KEEP=1    the same Linux with a shell, to do it by hand");
    print_line("  docs/attach.md             what each step does, and what undoes it");
    Some(())
}

/// Plays it, and tells what happens as it happens.
fn watch(step: &mut Step<'_>) -> Outcome<Timeline> {
    step.doing("Linux boots");
    let (mut told, mut phases) = (0, 0);
    let mut listener = |said: &str| {
        let timeline = Timeline::parse(said);
        for (at, what) in timeline.moments.iter().skip(told) {
            step.say(&format!("  {at:5.1} s  {}", sentence(what)));
        }
        for phase in timeline.phases().iter().skip(phases) {
            step.say(&format!(
                "           {}: {:.0} forks/s",
                phase.name, phase.rate
            ));
        }
        told = timeline.moments.len();
        phases = timeline.phases().len();
        if let Some((at, _)) = timeline.forks.last().filter(|_| step.has_bar()) {
            let rate = timeline.rate(at - 0.5, *at).unwrap_or_default();
            step.doing(&format!(
                "{at:.1} s of the machine's time: {rate:.0} forks/s"
            ));
        }
    };
    let said = timeline::play().play_to(&logs(), &logs(), &mut listener)?;
    let timeline = Timeline::parse(&said);
    timeline.check()?;
    Ok(timeline)
}

/// Starts the same machine once more, for whoever is at the terminal: nothing else writes there.
fn lend() -> Option<()> {
    print_line("\nThis Linux lies on Underpin, which is detached. Try, when it has booted:");
    for (words, what) in [
        ("underpin doctor", "whether all is as it must be"),
        ("underpin attach", ""),
        (
            "underpin run /vms",
            "two VMs, in memory that this Linux lends",
        ),
        ("underpin list", "and console one, mem, show two, status"),
        (
            "underpin detach --park",
            "the VMs stand still; attach lets them go on",
        ),
        ("poweroff -f", "ends it all; so does Ctrl-A X"),
    ] {
        print_line(&format!("  {words:24}{what}"));
    }
    let ended = timeline::os0("shell").lend(&logs());
    ended.inspect_err(|why| print_line(why)).ok()
}

/// What happened, for people.
fn sentence(moment: &str) -> String {
    let mut words = moment.split(' ');
    let what = match (words.next().unwrap_or_default(), words.next()) {
        ("began", _) => "Linux forks on both CPUs; nothing is beneath it",
        ("attaches", _) => "underpin attach",
        ("attached", _) => "Underpin is beneath both CPUs",
        ("starts", Some(vm)) => return format!("underpin run /vms/{vm}.toml"),
        ("ends", Some(vm)) => {
            let sum = words.next().and_then(|sum| sum.strip_prefix("sha256="));
            let sum = sum.and_then(|sum| sum.get(..12)).unwrap_or("?");
            return format!("VM {vm} has its result ({sum}...) and powers off");
        }
        ("repaid", _) => "all memory is back",
        ("detaches", _) => "underpin detach",
        ("detached", _) => "Linux is alone",
        ("over", _) => "the end",
        _ => moment,
    };
    what.to_owned()
}

/// The phases, and how fast Linux was in each.
fn table(timeline: &Timeline) -> String {
    let phases = timeline.phases();
    let alone = phases.first().map_or(1.0, |phase| phase.rate);
    let mut text = format!(
        "\n{:20} {:>8} {:>9} {:>8}",
        "", "seconds", "forks/s", "of alone"
    );
    for phase in phases {
        let (seconds, part) = (phase.to - phase.from, phase.rate * 100.0 / alone);
        let _ = write!(
            text,
            "\n{:20} {seconds:>8.1} {:>9.0} {part:>6.1} %",
            phase.name, phase.rate
        );
    }
    text + "\nTwo VMs and Linux have equal weights: each gets a third of the two CPUs.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_words() {
        assert_eq!(sentence("starts one"), "underpin run /vms/one.toml");
        let ended = sentence("ends two sha256=0123456789abcdef count=7");
        assert_eq!(
            ended,
            "VM two has its result (0123456789ab...) and powers off"
        );
        assert_eq!(sentence("unheard of"), "unheard of");
    }

    #[test]
    fn table_compares_with_linux_alone() {
        let said = "os0: at=1.0 began\nos0: at=1.0 forks=0\nos0: at=2.0 forks=500\nos0: at=2.0 attaches\n\
                    os0: at=2.0 attached\nos0: at=3.0 forks=990\nos0: at=3.0 starts one\n";
        let shown = table(&Timeline::parse(said));
        let words = |line: usize| shown.lines().nth(line).map(str::split_whitespace);
        assert!(
            words(2)
                .unwrap()
                .eq("Linux alone 1.0 500 100.0 %".split(' ')),
            "{shown}"
        );
        assert!(
            words(3)
                .unwrap()
                .eq("Underpin beneath 1.0 490 98.0 %".split(' ')),
            "{shown}"
        );
    }
}
