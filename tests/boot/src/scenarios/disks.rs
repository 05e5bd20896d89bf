//! Disks: private overlays, and partitions that outlive the machine.

use super::kernels::{BOOT, powered_off};
use crate::{
    Outcome,
    assets::DEBIAN13,
    because, disk_image,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    vm::Vm,
    write_log,
};
use std::{fs, path::Path, time::Duration};

/// The command's exit status where a persistent disk has a user already.
const BUSY: i32 = 16;
/// How many files the write-log test makes, each synced before the next is begun.
const SYNCED: usize = 12;
/// The most flushes at which the replayed file system is checked.
const CHECKS_MAX: usize = 40;
/// How much `diskwrite` writes.
const WRITTEN: usize = 8 << 20;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        copy_on_write(),
        persistent(),
        second_user(),
        write_log_replayed(),
    ]
}

/// VMs start from one base image: each finds what is in the image, and then what it has written
/// itself; a VM that starts later finds the image untouched.
fn copy_on_write() -> Scenario {
    let vm = |name: &str| Vm::linux(name, "trixie-cloud", "shell").cow_disk(DEBIAN13);
    Scenario::new(
        "disk/cow",
        Hardware::new(2, "4G"),
        vec![vm("one"), vm("two"), vm("late").asleep()],
    )
    .expect("one", "ready kernel=", 2 * BOOT)
    .expect("two", "ready kernel=", 2 * BOOT)
    .check(|stage| {
        let contents = [change_base(stage, "one")?, change_base(stage, "two")?];
        stage.machine()?.run(&["start", "late"])?;
        let late = change_base(stage, "late")?;
        if contents.iter().all(|content| *content == late) {
            Ok(())
        } else {
            Err(format!("one image, three contents: {contents:?}, {late}"))
        }
    })
    .check(requests_have_their_times)
}

/// Each request that a VM's disks served is in the histogram of how long they took.
fn requests_have_their_times(stage: &mut Stage) -> Outcome {
    let text = stage.machine()?.run(&["metrics"])?;
    for vm in ["one", "two"] {
        let sum = |name: &str| -> u64 {
            let head = format!("underpin_vm_disk_{name}{{");
            let of_vm = text
                .lines()
                .filter(|line| line.starts_with(&head) && line.contains(&format!("vm=\"{vm}\"")));
            let values = of_vm.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            values.sum()
        };
        let (served, timed) = (sum("requests_total"), sum("request_duration_seconds_count"));
        if served == 0 || served != timed {
            return Err(format!("'{vm}': {served} requests, the times of {timed}"));
        }
    }
    Ok(())
}

/// Mounts the base image, changes a file, and looks again with nothing cached. Gives the checksum
/// of a large file.
fn change_base(stage: &mut Stage, vm: &str) -> Outcome<String> {
    let machine = stage.machine()?;
    let patience = Duration::from_secs(BOOT);
    machine.expect(vm, "ready kernel=", 1, patience)?;
    let mount = "mount -t ext4 /dev/vda1 /mnt";
    let name = "/mnt/etc/hostname";
    let look = "sha256sum </mnt/usr/lib/aarch64-linux-gnu/libc.so.6 | cut -c-64";
    machine.type_line(vm, &format!("{mount} && echo before-$(cat {name})"))?;
    machine.expect(vm, "before-debian13", 1, patience)?;
    machine.type_line(vm, &format!("echo host-$((6 * 7))-{vm} >{name}"))?;
    machine.type_line(vm, "umount /mnt; echo 3 >/proc/sys/vm/drop_caches")?;
    machine.type_line(vm, &format!("{mount}; echo $({look})-after-$(cat {name})"))?;
    let after = format!("-after-host-42-{vm}");
    let line = machine.expect(vm, &after, 1, patience)?;
    match line.strip_suffix(&after) {
        Some(sum) if sum.len() == 64 => Ok(sum.to_owned()),
        _ => Err(format!("'{vm}' cannot read a large file: {line}")),
    }
}

fn with_disk(directory: &Path) -> Outcome<Vec<String>> {
    disk_image::scratch(directory)?;
    let disk = disk_image::partitioned(directory)?;
    Ok(vec!["--disk".into(), disk.display().to_string()])
}

fn writer(name: &str, pattern: u32) -> Vm {
    let vm =
        Vm::linux(name, "trixie-cloud", "diskwrite").args(&format!("underpin.pattern={pattern}"));
    vm.cow_disk("../scratch.img").persistent_disk("spare")
}

/// What a VM reads in a directory of the host.
const NOTICE: &str = "open till six\n";

/// A file of the host that is a VM's disk, whose bytes are all one; and a directory.
fn with_file(directory: &Path) -> Outcome<Vec<String>> {
    let www = directory.join("www");
    fs::create_dir(&www)
        .and_then(|()| fs::write(www.join("notice"), NOTICE))
        .map_err(because("cannot make www"))?;
    fs::write(directory.join("given.img"), [b'g'; 12288])
        .map_err(because("cannot make given.img"))?;
    with_disk(directory)
}

/// What a guest has written and synced is there after the machine's plug was pulled: the host
/// finds it in the image, and so does another guest on the next machine. That one has disks that are
/// files, too: one that is made for it, and one that holds something; and one that is a directory.
fn persistent() -> Scenario {
    Scenario::new(
        "disk/persistent",
        Hardware::new(2, "1G"),
        vec![writer("writer", 5)],
    )
    .prepare(with_file)
    .expect("writer", "diskwrite ok", BOOT)
    .check(|stage| {
        let reader = Vm::linux("reader", "trixie-cloud", "shell")
            .persistent_disk("spare")
            .file_disk("../made.img", Some("8MiB"))
            .file_disk("../given.img", None)
            .directory_disk("../www");
        stage.lose_power(&[reader])?;
        let expected: Vec<u8> = b"underpin 5\n"
            .iter()
            .copied()
            .cycle()
            .take(WRITTEN)
            .collect();
        if disk_image::read_partition(&stage.directory.join("disk.img"), 1, WRITTEN)? != expected {
            return Err("the partition does not hold what was written and synced".into());
        }
        let machine = stage.machine()?;
        machine.expect("reader", "ready kernel=", 1, Duration::from_secs(BOOT))?;
        let write = "yes w | tr -d '\\n' | head -c 4096 >/w; \
            for n in 1 2047; do dd if=/w of=/dev/vdb bs=4096 seek=$n conv=notrunc,fsync; done";
        machine.type_line("reader", write)?;
        machine.type_line(
            "reader",
            "echo given-$(tr -d g </dev/vdc | wc -c)-$(wc -c </dev/vdc)",
        )?;
        machine.expect("reader", "given-0-12288", 1, Duration::from_mins(1))?;
        reads_and_writes_a_directory(machine)?;
        machine.type_line(
            "reader",
            "echo found-$(head -c 22 /dev/vda | tr ' \\n' '__'); poweroff -f",
        )?;
        machine.expect(
            "reader",
            "found-underpin_5_underpin_5_",
            1,
            Duration::from_mins(1),
        )?;
        powered_off(stage, "reader")?;
        holds_what_was_written(&stage.directory)
    })
}

/// The guest finds what the directory has, and writes over it: what is written is its own.
fn reads_and_writes_a_directory(machine: &mut Machine) -> Outcome {
    let line = "mount -t ext4 /dev/vdd /mnt && tr ' ' _ </mnt/notice >/n && sed -i s/six/ten/ /mnt/notice && \
        umount /mnt && mount -t ext4 /dev/vdd /mnt && echo read-$(cat /n)-$(tr ' ' _ </mnt/notice)";
    machine.type_line("reader", line)?;
    let read = "read-open_till_six-open_till_ten";
    machine
        .expect("reader", read, 1, Duration::from_mins(1))
        .map(drop)
}

/// The guest wrote `w` to the second block and the last of the file that was made.
fn holds_what_was_written(directory: &Path) -> Outcome {
    let made = fs::read(directory.join("made.img")).map_err(because("cannot read made.img"))?;
    let mut expected = vec![0; 8 << 20];
    expected[4096..8192].fill(b'w');
    expected[(8 << 20) - 4096..].fill(b'w');
    if made != expected {
        return Err("made.img does not hold what its VM has written and synced".into());
    }
    let given = fs::read(directory.join("given.img")).map_err(because("cannot read given.img"))?;
    if given != [b'g'; 12288] {
        return Err("given.img, which was only read, has changed".into());
    }
    let notice = fs::read_to_string(directory.join("www/notice"));
    if notice.map_err(because("cannot read the notice"))? != NOTICE {
        return Err("the directory www has changed, and VMs write to a copy".into());
    }
    Ok(())
}

/// A partition has one user at a time; the second is refused, and served when the first has ended.
fn second_user() -> Scenario {
    let first = Vm::linux("first", "trixie-cloud", "idle").persistent_disk("data");
    let second = Vm::linux("second", "trixie-cloud", "idle")
        .persistent_disk("data")
        .asleep();
    // What one VM writes is nobody's base.
    let reader = Vm::linux("reader", "trixie-cloud", "idle")
        .cow_partition("data")
        .asleep();
    Scenario::new(
        "disk/second-user",
        Hardware::new(2, "1G"),
        vec![first, second, reader],
    )
    .prepare(with_disk)
    .expect("first", "ready kernel=", BOOT)
    .check(|stage| {
        let machine = stage.machine()?;
        for vm in ["second", "reader"] {
            let status = machine.refused(&["start", vm])?;
            if status != BUSY {
                return Err(format!("'{vm}' was refused with {status} and not {BUSY}"));
            }
        }
        machine.run(&["kill", "first"])?;
        machine.await_state("first", "ended", Duration::from_secs(30))?;
        machine.run(&["start", "second"])?;
        machine
            .expect("second", "ready kernel=", 1, Duration::from_secs(BOOT))
            .map(drop)
    })
}

fn with_logged_disk(directory: &Path) -> Outcome<Vec<String>> {
    let disk = disk_image::partitioned(directory)?;
    fs::copy(&disk, directory.join("before.img")).map_err(because("cannot copy the disk"))?;
    let log = directory.join("writes.dm");
    fs::File::create(&log).map_err(because("cannot make the write log"))?;
    let words = [
        "--disk".into(),
        disk.display().to_string(),
        "--disk-log".into(),
        log.display().to_string(),
    ];
    Ok(words.into())
}

/// A guest syncs file after file; at each flush that reached the disk, the disk's file system is
/// clean and holds every file that was synced before the newest one was begun.
fn write_log_replayed() -> Scenario {
    let vm = Vm::linux("guest", "trixie-cloud", "shell").persistent_disk("data");
    Scenario::new("disk/write-log", Hardware::new(2, "1G"), vec![vm])
        .prepare(with_logged_disk)
        .expect("guest", "ready kernel=", BOOT)
        .check(|stage| {
            let machine = stage.machine()?;
            machine.type_line(
                "guest",
                "mount -t ext4 /dev/vda /mnt && cd /mnt && echo mounted-$((40 + 2))",
            )?;
            machine.expect("guest", "mounted-42", 1, Duration::from_mins(1))?;
            let each = "yes synced-$n | head -c 20000 >f$((100 + n)); sync f$((100 + n)) || break";
            machine.type_line(
                "guest",
                &format!(
                    "n=0; while [ $n -lt {SYNCED} ]; do {each}; n=$((n + 1)); done; echo all-$n"
                ),
            )?;
            machine.expect("guest", &format!("all-{SYNCED}"), 1, Duration::from_mins(2))?;
            machine.kill();
            survives_power_failures(stage)
        })
}

fn survives_power_failures(stage: &mut Stage) -> Outcome {
    let directory = stage.directory.clone();
    let (log, before, replayed) = (
        directory.join("writes.dm"),
        directory.join("before.img"),
        directory.join("replayed.img"),
    );
    let copy = || {
        fs::copy(&before, &replayed)
            .map(drop)
            .map_err(because("cannot copy the disk"))
    };
    copy()?;
    let flushes = write_log::replay(&log, &replayed, |_| Ok(()))?;
    if flushes < SYNCED {
        return Err(format!("{SYNCED} files were synced with {flushes} flushes"));
    }
    copy()?;
    let step = flushes.div_ceil(CHECKS_MAX);
    let mut files_at_last = 0;
    write_log::replay(&log, &replayed, |flush| {
        if flush % step == 0 || flush + 1 == flushes {
            let files = disk_image::check_first_partition(&replayed, &directory)?;
            files_at_last = whole_but_the_newest(&files)
                .map_err(because(format!("at flush {flush} of {flushes}")))?;
        }
        Ok(())
    })?;
    // The last sync's own flush may stand at the log's end; all files but the last were before it.
    if files_at_last + 1 >= SYNCED {
        Ok(())
    } else {
        Err(format!("{files_at_last} of {SYNCED} files were there"))
    }
}

/// Every file but the newest was synced, so it must be whole; gives how many files there are.
fn whole_but_the_newest(files: &[(String, Vec<u8>)]) -> Outcome<usize> {
    let synced = &files[..files.len().saturating_sub(1)];
    for (number, (name, bytes)) in synced.iter().enumerate() {
        let line = format!("synced-{number}\n");
        let expected: Vec<u8> = line.bytes().cycle().take(20000).collect();
        if *name != format!("f{}", 100 + number) || *bytes != expected {
            return Err(format!(
                "file {name} is not as it was synced ({} bytes)",
                bytes.len()
            ));
        }
    }
    Ok(files.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: usize) -> (String, Vec<u8>) {
        (
            format!("f{}", 100 + number),
            format!("synced-{number}\n")
                .bytes()
                .cycle()
                .take(20000)
                .collect(),
        )
    }

    #[test]
    fn only_the_newest_file_may_be_torn() {
        let mut files = vec![file(0), file(1), ("f102".to_owned(), vec![0; 5])];
        assert_eq!(whole_but_the_newest(&files), Ok(3));
        assert_eq!(whole_but_the_newest(&[]), Ok(0));
        files[0].1.pop();
        assert!(whole_but_the_newest(&files).is_err());
        assert!(whole_but_the_newest(&[file(1), file(2)]).is_err());
    }
}
