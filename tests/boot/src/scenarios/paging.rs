//! Memory that the hypervisor takes back without the guest's help, and what is owed.

use super::kernels::BOOT;
use crate::{
    Outcome, because, disk_image,
    machine::Hardware,
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
        storm("paging/storm", 1).slow(),
        storm("paging/storm-long", 20).slow(),
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
            machine.type_line("guest", "head -c 40000000 /dev/urandom >/tmp/a")?;
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
        if !status.reason.contains("partition data is not what it was") {
            return Err(format!("it is paused since {}", status.reason));
        }
        Ok(())
    })
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

/// VMs share what they read, spend what they save so, and then write all that they share, at once.
/// None of them dies.
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
    let scenario = Scenario::new(name, Hardware::new(2, "512M"), vms).prepare(with_base);
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
                let machine = stage.machine()?;
                machine.expect(vm, &format!("wrote-{turn}"), 1, 5 * MINUTE)?;
                machine.check_alive()?;
            }
        }
        Ok(())
    })
}

/// Spends 16 MiB on heap, then writes all pages that were read of the base.
fn storm_line(turn: u32) -> String {
    let spend = "head -c 16000000 /dev/urandom >/tmp/heap";
    let write = format!("dd if=/dev/zero of=/dev/vda bs=1M count={MIB} conv=notrunc");
    format!("{spend}; {write} 2>/dev/null; rm /tmp/heap; echo wrote-$(({turn} + 0))")
}
