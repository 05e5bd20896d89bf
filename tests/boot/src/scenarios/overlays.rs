//! Overlays on a partition of a physical disk: what a guest writes there, and what it gets back.

use super::kernels::BOOT;
use crate::{
    Outcome, because,
    disk_image::{self, FOR_OVERLAYS, LINUX},
    machine::{Hardware, Machine},
    scenario::Scenario,
    vm::Vm,
};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    time::Duration,
};

/// The command's exit statuses where memory is short, for what the machine lacks, and for what somebody
/// else has.
const NO_MEMORY: i32 = 14;
const IMPOSSIBLE: i32 = 15;
const BUSY: i32 = 16;
/// The guest's disk, the most that its overlay may take, and what it writes: more than its memory.
const DISK: u64 = 96 << 20;
const OVERLAY_MIB: u64 = 60;
const WRITTEN: u64 = 48 << 20;
/// What EL2 may need to find that again: 16 bytes for each 4 KiB, and tables above those.
const MAP: u64 = (OVERLAY_MIB << 20) / 256 + (1 << 20);

pub fn scenarios() -> Vec<Scenario> {
    vec![on_disk(), transfers(), promised()]
}

/// What an overlay in memory may take is promised with the VM's base: VMs whose memory would fit are
/// refused where their overlays would not.
fn promised() -> Scenario {
    let vm = |name: &str, size: &str| {
        let vm = Vm::linux(name, "trixie-cloud", "idle").memory("64MiB");
        vm.cow_disk("../blank.img").overlay(size, "memory").asleep()
    };
    let vms = vec![
        vm("one", "192MiB"),
        vm("two", "192MiB"),
        vm("three", "8MiB"),
    ];
    Scenario::new("disk/overlay-promised", Hardware::new(2, "512M"), vms)
        .prepare(|directory| {
            disk_image::blank(&directory.join("blank.img"), 256 << 20)?;
            Ok(Vec::new())
        })
        .check(|stage| {
            let machine = stage.machine()?;
            machine.run(&["start", "one"])?;
            let status = machine.refused(&["start", "two"])?;
            if status != NO_MEMORY {
                return Err(format!("the second was refused with {status}"));
            }
            machine.run(&["start", "three"]).map(drop)
        })
}

fn writer(name: &str) -> Vm {
    let vm = Vm::linux(name, "trixie-cloud", "shell").memory("64MiB");
    vm.cow_disk("../blank.img")
}

/// A guest writes more than its memory could hold to an overlay on a partition, and to one over a base
/// on another disk, whole blocks and parts; it reads all of it again, is told when the overlay is full,
/// discards, writes again, and finds nothing of it after a reset. Others are refused what it has.
fn on_disk() -> Scenario {
    let guest = writer("guest").overlay("60MiB", "scratch").restarts();
    let guest = guest.cow_partition("data").overlay("8MiB", "edges");
    let asleep = [
        writer("twin").overlay("16MiB", "scratch"),
        Vm::linux("thief", "trixie-cloud", "idle").persistent_disk("scratch"),
        writer("large").overlay("16MiB", "small"),
        writer("lost").overlay("16MiB", "nowhere"),
        writer("careless").overlay("4MiB", "precious"),
        Vm::linux("swapper", "trixie-cloud", "idle").terms("64MiB", "128MiB", Some("precious")),
    ];
    let mut vms = vec![guest];
    vms.extend(asleep.map(Vm::asleep));
    Scenario::new("disk/overlay-on-disk", Hardware::new(2, "512M"), vms)
        .prepare(with_disks)
        .expect("guest", "ready kernel=", BOOT)
        .check(|stage| {
            refusals(stage.machine()?)?;
            let machine = stage.machine()?;
            let written = written(machine)?;
            parts(machine)?;
            full(machine, &written)?;
            nothing_after_a_reset(machine)
        })
}

/// Bare guests read and write disks of all kinds at once, from and to any sector, in pieces at any address and of any
/// length; each finds what it has written, and what its base holds.
fn transfers() -> Scenario {
    let vm =
        |name: &str, seed: u32| Vm::bare(name, "hostile", &format!("do=transfers seed={seed}"));
    let memory = |vm: Vm| {
        let vm = vm.cow_disk("../blank.img").cow_partition("data");
        vm.cow_disk("../numbers.img")
            .read_only_disk("../numbers.img")
    };
    let stored = vm("stored", 200)
        .cow_partition("data")
        .overlay("8MiB", "edges");
    let stored = stored.cow_disk("../numbers.img").overlay("8MiB", "small");
    let vms = vec![
        memory(vm("one", 1)),
        memory(vm("two", 100)),
        stored.persistent_disk("spare"),
    ];
    let done = "underpin-guest: hostile/transfers ok";
    Scenario::new("disk/transfers", Hardware::new(2, "1G"), vms)
        .prepare(|directory| {
            let numbers: Vec<u8> = numbers(1 << 20).collect();
            fs::write(directory.join("numbers.img"), numbers)
                .map_err(because("cannot write an image"))?;
            with_disks(directory)
        })
        .expect("one", done, 2 * BOOT)
        .expect("two", done, 2 * BOOT)
        .expect("stored", done, 2 * BOOT)
}

/// So many bytes, of which no two blocks are alike.
fn numbers(bytes: u64) -> impl Iterator<Item = u8> {
    (0..bytes / 8).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
}

/// The first disk has room for overlays; the second is a base of numbers.
fn with_disks(directory: &Path) -> Outcome<Vec<String>> {
    disk_image::blank(&directory.join("blank.img"), DISK)?;
    let (rooms, base) = (
        directory.join("rooms.img"),
        disk_image::partitioned(directory)?,
    );
    let mib = |mib: u64| mib << 20;
    let parts = [
        ("scratch", mib(OVERLAY_MIB + 16), FOR_OVERLAYS),
        ("small", mib(8), FOR_OVERLAYS),
        ("edges", mib(8), FOR_OVERLAYS),
        ("precious", mib(8), LINUX),
    ];
    let starts = disk_image::with_partitions(&rooms, &parts)?;
    let write = |path: &Path, at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(path);
        let written = file.and_then(|file| file.write_all_at(bytes, at));
        written.map_err(because("cannot write a disk"))
    };
    // What others have left there is nobody's to read.
    for (start, (_, size, _)) in starts.into_iter().zip(parts) {
        write(&rooms, start, &vec![0xee; size as usize])?;
    }
    let numbers: Vec<u8> = numbers(disk_image::PARTITION).collect();
    write(&base, disk_image::FIRST_PARTITION, &numbers)?;
    let disks = [rooms, base].map(|disk| ["--disk".to_owned(), disk.display().to_string()]);
    Ok(disks.concat())
}

fn refusals(machine: &mut Machine) -> Outcome {
    for (vm, wanted) in [
        ("twin", BUSY),
        ("thief", BUSY),
        ("large", IMPOSSIBLE),
        ("lost", IMPOSSIBLE),
        // Nobody said that what it holds may be overwritten.
        ("careless", IMPOSSIBLE),
        ("swapper", IMPOSSIBLE),
    ] {
        let status = machine.refused(&["start", vm])?;
        if status != wanted {
            return Err(format!("'{vm}' was refused with {status} and not {wanted}"));
        }
    }
    Ok(())
}

/// Types a line that ends with what `$(...)` gives and a mark; gives that.
fn ask(machine: &mut Machine, line: &str, mark: &str) -> Outcome<String> {
    // The mark is not on the line as it is typed.
    let (first, rest) = mark.split_at(1);
    machine.type_line("guest", &format!("{line}; echo :$answer:{first}''{rest}"))?;
    let end = format!(":{mark}");
    let said = machine.expect("guest", &end, 1, Duration::from_secs(4 * BOOT))?;
    let said = said.trim_end_matches(&end).trim_start_matches(':');
    Ok(said.to_owned())
}

/// Copies so many bytes from its input to its output, in whole MiB; BusyBox's `head` takes them one by one.
fn first(bytes: u64) -> String {
    format!("dd bs=1M count={} iflag=fullblock 2>/dev/null", bytes >> 20)
}

const DROP: &str = "sync; echo 3 >/proc/sys/vm/drop_caches";

/// Writes, and reads again with nothing cached: the checksum.
fn written(machine: &mut Machine) -> Outcome<String> {
    let data = format!("(echo x; cat /dev/vdb) | {}", first(WRITTEN));
    let sum = "md5sum | cut -c-32";
    let wanted = ask(machine, &format!("answer=$( {data} | {sum})"), "wanted")?;
    let look = format!("{DROP}; answer=$({} </dev/vda | {sum})", first(WRITTEN));
    let found = ask(machine, &format!("{data} >/dev/vda; {look}"), "found")?;
    if wanted.len() != 32 || wanted != found {
        return Err(format!("written was {wanted}, and read {found}"));
    }
    let status = machine.vm("guest")?;
    if status.stored < WRITTEN || status.overlay > MAP {
        let (stored, memory) = (status.stored >> 10, status.overlay >> 10);
        return Err(format!(
            "{stored} KiB are on disk, and {memory} KiB in memory"
        ));
    }
    Ok(found)
}

/// Parts of blocks, over a base on another disk, and then over what was written: what is beside them stays.
fn parts(machine: &mut Machine) -> Outcome {
    let sums = "answer=$( (head -c 5632 /dev/vdb; tail -c +7169 /dev/vdb | head -c 9000) | md5sum | cut -c-32)";
    let before = ask(machine, sums, "before")?;
    for (mark, byte) in [("first", "A"), ("second", "B")] {
        let make = format!("head -c 1536 /dev/zero | tr '\\0' {byte} >/tmp/part");
        let write = "dd if=/tmp/part of=/dev/vdb bs=512 seek=11 oflag=direct 2>/dev/null";
        let beside = ask(machine, &format!("{make}; {write}; {DROP}; {sums}"), mark)?;
        let count =
            format!("answer=$(tail -c +5633 /dev/vdb | head -c 1536 | tr -cd {byte} | wc -c)");
        let there = ask(machine, &count, &format!("{mark}-part"))?;
        if beside != before || there != "1536" {
            return Err(format!(
                "{there} bytes of a part are there; beside it is {beside}, was {before}"
            ));
        }
    }
    Ok(())
}

/// The overlay holds no more than it may; what it has stays, and what is discarded makes room.
fn full(machine: &mut Machine, written: &str) -> Outcome {
    let more = "dd if=/dev/vdb of=/dev/vda bs=1M seek=48 count=20 oflag=direct 2>/tmp/said";
    let said = "answer=$? && grep -q 'Input/output error' /tmp/said";
    let refused = ask(
        machine,
        &format!("{more}; {said} && answer=$answer-error"),
        "full",
    )?;
    let copy = first(WRITTEN);
    let sum = format!("{DROP}; answer=$({copy} </dev/vda | md5sum | cut -c-32)");
    let kept = ask(machine, &sum, "kept")?;
    if refused != "1-error" || kept != written {
        return Err(format!(
            "beyond what fits: {refused}; then {kept} was there, and not {written}"
        ));
    }
    let discard = "blkdiscard -o 0 -l 16777216 /dev/vda";
    let again = ask(machine, &format!("{discard}; {more}; answer=$?"), "again")?;
    let look = "answer=$(tail -c +50331649 /dev/vda | head -c 5000 | md5sum | cut -c-32)";
    let found = ask(machine, &format!("{DROP}; {look}"), "read")?;
    let first = ask(
        machine,
        "answer=$(head -c 5000 /dev/vdb | md5sum | cut -c-32)",
        "same",
    )?;
    if again != "0" || found != first {
        return Err(format!("after a discard: {again}, {found} is not {first}"));
    }
    Ok(())
}

fn nothing_after_a_reset(machine: &mut Machine) -> Outcome {
    machine.type_line("guest", "reboot -f")?;
    machine.expect("guest", "ready kernel=", 2, Duration::from_secs(2 * BOOT))?;
    let look = format!(
        "answer=$({} </dev/vda | tr -d '\\0' | wc -c)",
        first(8 << 20)
    );
    let left = ask(machine, &look, "left")?;
    if left == "0" && machine.vm("guest")?.stored == 0 {
        Ok(())
    } else {
        Err(format!("{left} bytes are left after a reset"))
    }
}
