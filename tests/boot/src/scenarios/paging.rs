//! Memory that the hypervisor takes back without the guest's help, and what is owed.

use super::kernels::BOOT;
use crate::{
    Outcome, because, disk_image,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{fs::File, os::unix::fs::FileExt as _, path::Path, time::Duration};

/// What is on the base: so many MiB of numbers.
const MIB: u64 = 8;
const PAGES: u64 = MIB << 8;
/// How much of it the second reader must get without I/O, in percent; the rest may be read ahead.
const CACHED: u64 = 97;
const MINUTE: Duration = Duration::from_mins(1);

pub fn scenarios() -> Vec<Scenario> {
    vec![
        base(),
        swap(),
        corrupted(),
        growth().slow(),
        owes(),
        last_frames(),
        storm("paging/storm", 2).slow(),
        storm("paging/long-storm", 20).slow(),
    ]
}

/// A VM with a base on a partition, and without a balloon driver.
fn reader(name: &str) -> Vm {
    let vm = Vm::linux(name, "trixie-cloud", "shell").memory("128MiB");
    vm.args("module_blacklist=virtio_balloon")
        .cow_partition("data")
}

/// `disk.img` with numbers on its first partition.
fn with_base(directory: &Path) -> Outcome<Vec<String>> {
    let disk = disk_image::partitioned(directory)?;
    let tried = "cannot write the base";
    let file = File::options().write(true).open(&disk);
    let file = file.map_err(because(tried))?;
    let bytes: Vec<u8> = (0..MIB << 17)
        .flat_map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    let written = file.write_all_at(&bytes, disk_image::FIRST_PARTITION);
    written.map_err(because(tried))?;
    Ok(vec!["--disk".into(), disk.display().to_string()])
}

/// Reads the base through the page cache; its checksum.
fn read(stage: &mut Stage, vm: &str, turn: u32) -> Outcome<String> {
    let machine = stage.machine()?;
    let look = format!("head -c {} /dev/vda | sha256sum | cut -c-64", MIB << 20);
    // The page cache stays while somebody has the disk open.
    machine.type_line(
        vm,
        &format!("exec 9</dev/vda; echo $({look})-turn-$(({turn} + 0))"),
    )?;
    let end = format!("-turn-{turn}");
    let line = machine.expect(vm, &end, 1, 3 * MINUTE)?;
    match line.strip_suffix(&end) {
        Some(sum) if sum.len() == 64 => Ok(sum.to_owned()),
        _ => Err(format!("'{vm}' cannot read its disk: {line}")),
    }
}

fn event(stage: &mut Stage, vm: &str, name: &str) -> Outcome<u64> {
    let events = stage.machine()?.mem(vm)?.events;
    let count = events.get(name).copied();
    count.ok_or_else(|| format!("no events are called {name}"))
}

/// Two VMs have a partition as their base: what one has read, the other one gets without I/O, also
/// when the first has ended.
fn base() -> Scenario {
    Scenario::new(
        "paging/base",
        Hardware::new(2, "512M"),
        vec![reader("one"), reader("two").asleep()],
    )
    .prepare(with_base)
    .expect("one", "ready kernel=", BOOT)
    .check(|stage| {
        let first = read(stage, "one", 1)?;
        let machine = stage.machine()?;
        machine.run(&["kill", "one"])?;
        machine.await_state("one", "ended", MINUTE)?;
        machine.run(&["start", "two"])?;
        machine.expect("two", "ready kernel=", 1, Duration::from_secs(BOOT))?;
        if read(stage, "two", 1)? != first {
            return Err("the two read different things".into());
        }
        let cached = event(stage, "two", "shared-by-block")?;
        if cached * 100 < PAGES * CACHED {
            return Err(format!("{cached} of {PAGES} pages were in memory"));
        }
        Ok(())
    })
}

/// A VM that touches far more than its base: the rest is on its swap, and nothing is lost.
fn swap() -> Scenario {
    let vm = Vm::linux("guest", "trixie-cloud", "shell").terms("64MiB", "160MiB", Some("spare"));
    let vm = vm.args("module_blacklist=virtio_balloon");
    Scenario::new("paging/swap", Hardware::new(2, "512M"), vec![vm])
        .prepare(with_base)
        .expect("guest", "ready kernel=", BOOT)
        .check(|stage| {
            let machine = stage.machine()?;
            let sum = "$(sha256sum </tmp/a | cut -c-64)";
            machine.type_line(
                "guest",
                "dd if=/dev/urandom of=/tmp/a bs=100000 count=400 2>/dev/null",
            )?;
            machine.type_line(
                "guest",
                &format!("a={sum}; b={sum}; c={sum}; [ $a$a = $b$c ] && echo same-$((6 * 7))"),
            )?;
            machine.expect("guest", "same-42", 1, 5 * MINUTE)?;
            for name in ["swapped", "refaults"] {
                if event(stage, "guest", name)? < 1000 {
                    return Err(format!("'{name}' did not happen"));
                }
            }
            Ok(())
        })
}

/// Pages of the base are taken from a VM, and read again; where the disk has other bytes by then, the
/// VM stands still and says which.
fn corrupted() -> Scenario {
    Scenario::new(
        "paging/corrupted",
        Hardware::new(2, "512M"),
        vec![reader("guest")],
    )
    .prepare(with_base)
    .expect("guest", "ready kernel=", BOOT)
    .check(|stage| {
        let first = read(stage, "guest", 1)?;
        take_all(stage)?;
        if read(stage, "guest", 2)? != first {
            return Err("what was read again is something else".into());
        }
        take_all(stage)?;
        let disk = stage.directory.join("disk.img");
        let file = File::options().write(true).open(disk);
        let file = file.map_err(because("cannot open the disk"))?;
        for page in 0..PAGES {
            let at = disk_image::FIRST_PARTITION + page * 4096 + 100;
            let written = file.write_all_at(b"wrong", at);
            written.map_err(because("cannot change the disk"))?;
        }
        let machine = stage.machine()?;
        machine.type_line("guest", &format!("head -c {} /dev/vda | wc -c", MIB << 20))?;
        let status = machine.await_state("guest", "paused", MINUTE)?;
        if !status.reason.contains("partition data changed on disk") {
            return Err(format!("it is paused since {}", status.reason));
        }
        Ok(())
    })
}

/// A VM that uses more than it may have, and of which nothing can be taken, is slowed and then stands
/// still; another one does not notice. With a higher base, which must be there, it goes on.
fn owes() -> Scenario {
    let one = Vm::bare("one", "hungry", "mib=100").terms("64MiB", "160MiB", None);
    let two = Vm::bare("two", "hungry", "mib=40 wait");
    let two = two.memory("128MiB").asleep();
    Scenario::new("paging/owes", Hardware::new(2, "288M"), vec![one, two]).check(|stage| {
        let machine = stage.machine()?;
        let status = machine.await_state("one", "paused", 2 * MINUTE)?;
        if !status.reason.contains("owes") {
            return Err(format!("it is paused since {}", status.reason));
        }
        let owed = machine.mem("one")?.owed;
        if owed == 0 {
            return Err("it is said to owe nothing".into());
        }
        expect_refusal(machine, &["stop", "one"], "owes")?;
        machine.run(&["start", "two"])?;
        machine.expect("two", "hungry: has eaten", 1, MINUTE)?;
        expect_refusal(machine, &["set", "one", "--base", "160MiB"], "no-memory")?;
        machine.run(&["mem", "recount"])?;
        machine.run(&["kill", "two"])?;
        machine.await_state("two", "ended", MINUTE)?;
        machine.run(&["set", "one", "--base", "160MiB"])?;
        machine.expect("one", "hungry: has eaten", 1, MINUTE)?;
        Ok(())
    })
}

/// A machine that is promised as far as it can be: VMs that stand a little beyond their bases, as nobody
/// keeps them from it, take no frame of the one that was promised all the rest, and uses all of it.
fn last_frames() -> Scenario {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let vm = |name| {
        let vm = Vm::bare(name, "hungry", "mib=64 pages=200 wait");
        vm.terms("64MiB", "128MiB", None)
    };
    let rest = Vm::bare("rest", "hungry", "mib=all wait").asleep();
    let mut vms = names.map(vm).to_vec();
    vms.push(rest);
    Scenario::new("paging/last-frames", Hardware::new(2, "768M"), vms).check(move |stage| {
        let machine = stage.machine()?;
        let mut beyond = 0;
        for name in names {
            machine.expect(name, "hungry: has eaten", 1, MINUTE)?;
            beyond += machine.mem(name)?.owed;
        }
        // More than a promise is rounded to, the tables that are promised, and what the last one leaves.
        if beyond < 8 << 20 {
            return Err(format!("they have only {beyond} bytes beyond their bases"));
        }
        promise_all(machine, "rest")?;
        machine.run(&["start", "rest"])?;
        machine.expect("rest", "hungry: has eaten", 1, 2 * MINUTE)?;
        machine.run(&["mem", "recount"]).map(drop)
    })
}

/// Gives a VM that is not running as much memory as it could be started with.
fn promise_all(machine: &Machine, vm: &str) -> Outcome {
    for mib in (32..128).rev().map(|half| 2 * half) {
        let size = format!("{mib}MiB");
        machine.run(&["set", vm, "--max", &size, "--base", &size])?;
        if machine.run(&["start", vm, "--dry-run"]).is_ok() {
            return Ok(());
        }
    }
    Err(format!("'{vm}' cannot be started at all"))
}

/// Runs a verb that must be refused with the status of that name.
fn expect_refusal(machine: &Machine, words: &[&str], name: &str) -> Outcome {
    let status = machine.refused(words)?;
    let explained = machine.run(&["explain", &status.to_string()])?;
    if explained.contains(name) {
        return Ok(());
    }
    let verb = words.join(" ");
    Err(format!(
        "'{verb}' was refused with status {status}, which is not '{name}'"
    ))
}

/// Takes the pages of the base from the VM.
fn take_all(stage: &mut Stage) -> Outcome {
    let before = event(stage, "guest", "discarded")?;
    let amount = format!("{}MiB", MIB - 2);
    stage
        .machine()?
        .run(&["mem", "reclaim", "guest", &amount])?;
    for _ in 0..30 {
        std::thread::sleep(Duration::from_secs(1));
        if event(stage, "guest", "discarded")? - before >= PAGES / 2 {
            return Ok(());
        }
    }
    Err("the pages were not taken".into())
}

/// Two VMs read the same; the guest of the second has more memory at most two seconds of its own clock
/// later, by stock virtio-balloon. The machine counts instructions, so that it does so on any host.
fn growth() -> Scenario {
    let vm = |name: &str| {
        let vm = Vm::linux(name, "trixie-cloud", "shell").cow_partition("data");
        vm.grows().terms("96MiB", "160MiB", None)
    };
    let vms = vec![vm("one"), vm("two")];
    let scenario = Scenario::new("paging/growth", Hardware::new(1, "512M").counted(), vms);
    let scenario = scenario.prepare(with_base);
    let scenario = ["one", "two"].into_iter().fold(scenario, |scenario, vm| {
        scenario.expect(vm, "ready kernel=", 4 * BOOT)
    });
    scenario.check(|stage| {
        read(stage, "one", 1)?;
        let machine = stage.machine()?;
        machine.type_line("two", &growth_line())?;
        let grown = "-grown-42";
        let line = machine.expect("two", grown, 1, 5 * MINUTE)?;
        let number = |word: &str| word.trim().parse::<f64>().ok();
        let words: Vec<f64> = line
            .trim_end_matches(grown)
            .split(' ')
            .filter_map(number)
            .collect();
        let [read, grown, kib] = words[..] else {
            return Err(format!("'{line}' are no times"));
        };
        let (seconds, least) = (grown - read, MIB << 10 >> 1);
        println!("        memory had grown by {kib} KiB {seconds:.2} s after the read");
        if seconds > 2.0 || kib < (least * 9 / 10) as f64 {
            return Err(format!(
                "{seconds:.2} s after the read, memory had grown by {kib} KiB of {least}"
            ));
        }
        Ok(())
    })
}

/// Once its balloon has settled, reads the base; says when that was done, when the guest had nearly all that sharing saves on its
/// account, and how much more than before it had then, in KiB.
fn growth_line() -> String {
    let total = "$(awk '/MemTotal/ { print $2 }' /proc/meminfo)";
    let now = "$(cut -d' ' -f1 /proc/uptime)";
    let half = (MIB << 10 >> 1) * 9 / 10;
    format!(
        "sleep 3; exec 9</dev/vda; m={total}; head -c {} /dev/vda >/dev/null; t={now}; \
         until [ $(({total} - m)) -ge {half} ]; do sleep 0.1; done; \
         echo $t {now} $(({total} - m))-grown-$((6 * 7))",
        MIB << 20
    )
}

/// What VMs spend in a storm, beyond their base.
const SPENT: u64 = 12;
/// How long a thread of a guest may stand still: Linux complains of a CPU that does so for longer (soft lockup, twice
/// `watchdog_thresh`).
const STALL_MAX_MS: u64 = 20_000;

/// VMs share what they read, spend what they save so on page cache and on heap, and then write all
/// that they share, at once. The machine has little more than their bases. None of them dies, no guest
/// complains of a CPU that stood still, every frame is somebody's, and all comes back at the end.
fn storm(name: &str, turns: u32) -> Scenario {
    let vm = |name: &str| {
        let vm = Vm::linux(name, "trixie-cloud", "shell");
        vm.cow_partition("data").grows()
    };
    let one = vm("one").terms("96MiB", "160MiB", None).cpus(2);
    let two = vm("two").terms("96MiB", "160MiB", Some("spare"));
    let three = vm("three")
        .terms("96MiB", "160MiB", None)
        .args("module_blacklist=virtio_balloon");
    let vms = vec![one, two, three];
    let names = ["one", "two", "three"];
    // Three bases are 288 MiB; kernels and initial RAM disks, overlays, and EL2 itself the rest.
    let scenario = Scenario::new(name, Hardware::new(2, "368M"), vms).prepare(with_base);
    let expecting = |scenario: Scenario, vm| scenario.expect(vm, "ready kernel=", 2 * BOOT);
    let scenario = names.into_iter().fold(scenario, expecting);
    scenario.check(move |stage| {
        for turn in 1..=turns {
            for vm in names {
                read(stage, vm, turn)?;
            }
            for vm in names {
                stage.machine()?.type_line(vm, &storm_line(turn))?;
            }
            for vm in names {
                weathered(stage.machine()?, vm, turn)?;
            }
        }
        all_there(stage.machine()?, &names)
    })
}

/// Spends on page cache in odd turns and on heap in even ones, then writes all pages that were read of
/// the base. Beside it, something looks every 100 ms how long it was away.
fn storm_line(turn: u32) -> String {
    let bytes = SPENT << 20;
    let spend = if turn % 2 == 1 {
        format!("head -c {bytes} /dev/urandom >/tmp/spent")
    } else {
        format!(
            "heap=$(head -c {} /dev/urandom | od -An -v -tx1)",
            bytes / 3
        )
    };
    let write = format!(
        "dd if=/dev/urandom of=/dev/vda bs=64k count={} conv=notrunc",
        MIB << 4
    );
    let clock = "read now rest </proc/uptime; now=${now%.*}${now#*.}";
    let watch = format!(
        "({clock}; worst=0; while [ -e /tmp/w ]; do last=$now; sleep 0.1; {clock}; \
         gap=$((now-last)); [ $gap -gt $worst ] && worst=$gap; done; echo $((worst*10)) >/tmp/stall) &"
    );
    format!(
        ">/tmp/w; {watch} {spend}; {write} 2>/dev/null; rm -f /tmp/spent /tmp/w; heap=; wait; \
         echo stalled-$(cat /tmp/stall)-ms-in-turn-$(({turn} + 0))"
    )
}

/// A VM is through a turn: prints its longest stall, and looks for complaints.
fn weathered(machine: &mut Machine, vm: &str, turn: u32) -> Outcome {
    let end = format!("-ms-in-turn-{turn}");
    let line = machine.expect(vm, &end, 1, 8 * MINUTE)?;
    let stall = line
        .strip_suffix(&end)
        .and_then(|line| line.rsplit('-').next()?.parse::<u64>().ok());
    let stall = stall.ok_or_else(|| format!("'{vm}' does not tell how long it stalled: {line}"))?;
    println!("        {vm}, turn {turn}: longest stall inside {stall} ms");
    if stall > STALL_MAX_MS {
        return Err(format!("'{vm}' stood still for {stall} ms"));
    }
    let console = machine.console(vm);
    let complaints = [
        "soft lockup",
        "rcu_preempt",
        "rcu_sched",
        "I/O error",
        "Out of memory",
    ];
    match complaints.iter().find(|text| console.contains(*text)) {
        Some(complaint) => Err(format!("'{vm}' complains: {complaint}")),
        None => machine.check_alive(),
    }
}

/// Every frame is somebody's and every account right while all stand still; and all frames come back
/// when the VMs have ended.
fn all_there(machine: &mut Machine, names: &[&str]) -> Outcome {
    for vm in names {
        machine.run(&["pause", vm])?;
    }
    std::thread::sleep(Duration::from_secs(2));
    print!("{}", machine.run(&["mem", "recount"])?);
    for vm in names {
        machine.run(&["kill", vm])?;
        machine.await_state(vm, "ended", MINUTE)?;
    }
    print!("{}", machine.run(&["mem", "recount"])?);
    Ok(())
}
