//! An operating system that owns the machine, with EL2 beneath it.

mod cost;
mod directory;
mod ending;
mod network;
mod overlay;
mod settled;
mod storm;

use super::kernels::BOOT;
use crate::{
    Outcome,
    assets::DEBIAN13,
    control_log,
    os0::{Beneath, Format, Os0},
    scenario::Scenario,
    timeline::{self, Timeline},
    vm::{SELF_TESTS, Vm},
};

/// What `seq 0 19999 | sha256sum` prints.
const WORK: &str = "sha256=9f9b293cb7c2f95697d757b44ef7f4b2047ee102b065e9a5b52a9df53d219e7c";
/// The most that EL2 may keep of a machine.
const KEPT_MAX_KIB: u64 = 16 << 10;

pub fn scenarios() -> Vec<Scenario> {
    let mut all = vec![
        whole(),
        plain("bookworm", 1, "neoverse-n1"),
        plain("newest", 2, "max"),
        plain("bookworm", 4, "cortex-a76").slow(),
        plain("newest", 4, "max,pauth=off").slow(),
        plain("trixie-cloud", 2, "neoverse-n1").slow(),
        switch("trixie-cloud", 4, "max,pauth=off", 50),
        switch("trixie-cloud", 2, "neoverse-n1", 1000).slow(),
        switch("trixie-cloud", 4, "neoverse-n1", 1000).slow(),
        switch("newest", 2, "max,pauth=off", 50).slow(),
        beside("trixie-cloud", 2, "max,pauth=off,sme=off", 2),
        beside("newest", 4, "neoverse-n1", 1).slow(),
        served("trixie-cloud", 2, "max,pauth=off,sme=off"),
        served_image("trixie-cloud", 2, "max,pauth=off,sme=off"),
        power_lost("trixie-cloud", 2, "max,pauth=off,sme=off"),
        overlay::on_a_served_file(),
        directory::is_copied(),
        network::routed("trixie-cloud", 2, "max,pauth=off,sme=off"),
        network::routed("bookworm", 4, "cortex-a76").slow(),
        network::routed("newest", 2, "neoverse-n1").slow(),
        network::mended(),
        park("trixie-cloud", 2, "max,pauth=off,sme=off", 5),
        park("trixie-cloud", 2, "max,pauth=off,sme=off", 100).slow(),
        loans().slow(),
        scattered().slow(),
        swap(),
        clocks(),
        drain(),
        settled::reader(),
        storm::of_messages(),
        Scenario::os0("os0/demo", timeline::play())
            .slow()
            .console(|said| Timeline::parse(said).check()),
        rogue(),
        ready("max,pauth=off"),
        ready("neoverse-n1").slow(),
        not_ready("at-el2", Beneath::Nothing, "EL2"),
        not_ready("no-el2", Beneath::NoEl2, "by hvc, by the device tree"),
        locked_down(),
        inject(),
        upgrade("trixie-cloud", 4, "max,pauth=off"),
        upgrade("newest", 2, "neoverse-n1").slow(),
        nonsense(),
        systemd(),
    ];
    all.extend(cost::scenarios());
    all.extend(ending::scenarios());
    all.extend(["1G", "8G", "64G"].map(kept));
    all
}

/// A kernel to its first program and to its power-off.
fn plain(kernel: &'static str, cpus: u32, cpu: &'static str) -> Scenario {
    let os0 = Os0::new(kernel, cpus, "1G", "work,hotplug").cpu(cpu);
    Scenario::os0(
        format!("os0/{kernel}-{cpus}"),
        os0.expect("CPU(s) started at EL1", BOOT)
            .expect(format!("cpus={cpus}"), BOOT)
            .expect(WORK, BOOT)
            .expect(format!("hotplug cpus={cpus}"), BOOT)
            .expect("Power down", BOOT),
    )
}

/// Everything at once: four CPUs that come and go, a PCI disk with messages through the ITS.
fn whole() -> Scenario {
    let os0 = Os0::new("trixie-cloud", 4, "2G", "hotplug,owns_machine,disk,work").disk(64 << 20);
    Scenario::os0(
        "os0/trixie-cloud-4-disk",
        os0.expect("cpus=4", BOOT)
            .expect("hotplug cpus=4", BOOT)
            // One message for the configuration, one for each queue.
            .expect("disk ok its=5", BOOT)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
}

/// So many switches meet a CPU that holds an interrupt.
const MANY_PAIRS: u64 = 1000;

/// EL2 goes beneath OS-0 and away again, while all CPUs fork and the disk's interrupts come as
/// messages; CPUs come and go beneath it, and detached nothing enters EL2.
fn switch(kernel: &'static str, cpus: u32, cpu: &'static str, pairs: u32) -> Scenario {
    let os0 = Os0::new(kernel, cpus, "1G", "disk,switch,work").cpu(cpu);
    let os0 = os0.words(SELF_TESTS);
    let within = 4 * BOOT + 3 * u64::from(pairs);
    Scenario::os0(
        format!("os0/switch-{kernel}-{cpus}-{pairs}"),
        os0.disk(16 << 20)
            .nic()
            .pairs(pairs)
            .expect(format!("cpus={cpus}"), BOOT)
            .expect(format!("hotplug cpus={cpus}"), 2 * BOOT)
            .expect(format!("switch pairs={pairs} retries="), within)
            .expect("entries=0", 1)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
    .console(|said| check_echoes(said).and_then(|()| check_retries(said)))
}

/// What went out by the network card came back, in the first half of the switches and in the second.
fn check_echoes(said: &str) -> Outcome {
    let number = |text| said.split(text).nth(1).and_then(first_number);
    match (number("os0: echoes="), number(" half=")) {
        (Some(all), Some(half)) if 0 < half && half < all => Ok(()),
        (all, half) => Err(format!(
            "{all:?} streams came back, {half:?} of them in the first half"
        )),
    }
}

/// Of many switches some found a CPU that could not leave at once, and left later; of few, perhaps none.
fn check_retries(said: &str) -> Outcome {
    let line = said.split("switch pairs=").nth(1).unwrap_or_default();
    let retries = line.split(" retries=").nth(1).and_then(first_number);
    match (first_number(line), retries) {
        (Some(MANY_PAIRS..), Some(0)) => Err("no CPU held an interrupt".to_owned()),
        (Some(_), Some(_)) => Ok(()),
        _ => Err("no retries were told".to_owned()),
    }
}

/// The command proves that the machine is ready, attaches and detaches.
fn ready(cpu: &'static str) -> Scenario {
    let os0 = Os0::new("trixie-cloud", 2, "1G", "doctor")
        .cpu(cpu)
        .module();
    Scenario::os0(
        format!("os0/doctor-{}", cpu.split(',').next().unwrap_or(cpu)),
        os0.expect("ready: underpin attach", BOOT)
            .expect("would be done", BOOT)
            .expect("attached: Underpin is beneath all 2 CPUs", BOOT)
            .expect("detached: this system", BOOT)
            .expect("os0: doctor ended", BOOT),
    )
}

/// On a machine without Underpin the command says what is missing, and nothing is touched.
fn not_ready(name: &str, beneath: Beneath, found: &str) -> Scenario {
    let os0 = Os0::new("trixie-cloud", 2, "1G", "doctor os0.machine=bare");
    Scenario::os0(
        format!("os0/doctor-{name}"),
        os0.module()
            .beneath(beneath)
            .expect(found, BOOT)
            .expect("not ready; nothing was touched", BOOT)
            .expect("os0: doctor ended", BOOT),
    )
}

/// A kernel that takes signed modules only does not take the module, and the command says why.
fn locked_down() -> Scenario {
    let os0 = Os0::new("trixie-cloud", 1, "1G", "doctor os0.machine=locked");
    Scenario::os0(
        "os0/doctor-lockdown",
        os0.module()
            .words("lockdown=integrity")
            .expect(
                "the kernel is locked down and takes signed modules only",
                BOOT,
            )
            .expect("not ready; nothing was touched", BOOT)
            .expect("os0: doctor ended", BOOT),
    )
}

/// A kernel that is no friend calls the hypervisor with arguments of all kinds, and reaches for what it has lent. Switches
/// do not fail as it likes, though the command line says so: the image that is shipped has no such call.
fn rogue() -> Scenario {
    let os0 = Os0::new("trixie-cloud", 2, "1G", "rogue,work").cpu("max,pauth=off,sme=off");
    Scenario::os0(
        "os0/rogue",
        os0.module()
            .options("inject")
            .expect("os0: rogue ended", 2 * BOOT)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
}

/// Each step of a switch fails on each CPU.
fn inject() -> Scenario {
    let os0 = Os0::new("trixie-cloud", 4, "1G", "disk,inject,work").disk(16 << 20);
    Scenario::os0(
        "os0/inject",
        os0.module()
            .hooks()
            .expect("inject cpus=4 logged=16", 4 * BOOT)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
}

/// A new image takes the old one's place under load, again and again; what does not fit is refused, and
/// what fails leaves the old one where it was.
fn upgrade(kernel: &'static str, cpus: u32, cpu: &'static str) -> Scenario {
    let os0 = Os0::new(kernel, cpus, "1G", "disk,upgrade,work").cpu(cpu);
    Scenario::os0(
        format!("os0/upgrade-{kernel}-{cpus}"),
        os0.disk(16 << 20)
            .nic()
            .hooks()
            .images()
            .expect("upgrade upgrades=7 entries=0", 6 * BOOT)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
}

/// VMs run in memory that OS-0 lends, on its CPUs, while it works itself; then all is as before. All
/// by the verbs that people use, and what goes past them through the control device is refused.
fn beside(kernel: &'static str, cpus: u32, cpu: &'static str, vms: u32) -> Scenario {
    let vm = |name: &str, action| {
        let vm = Vm::linux(name, kernel, action).memory("128MiB");
        // Its newest kernel would set aside half of that for DMA.
        vm.args("underpin.count=100000 cma=16M")
    };
    let mut all: Vec<Vm> = (1..=vms).map(|n| vm(&format!("vm{n}"), "work")).collect();
    // That one is killed.
    all.push(vm("idle", "idle").asleep());
    let os0 = Os0::new(kernel, cpus, "2G", "disk,beside,work").cpu(cpu);
    Scenario::os0(
        format!("os0/beside-{kernel}-{cpus}-vms-{vms}"),
        os0.disk(16 << 20)
            .beside(all)
            .expect("beside lent", BOOT)
            .expect("os0: reached lent=0x", BOOT)
            .expect("beside ended", 4 * BOOT)
            .expect("beside done", BOOT)
            .expect("entries=0", 1)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
    .console(check_beside)
}

/// OS-0 serves a VM's disks from its files; what a server that is killed leaves, the next one does.
fn served(kernel: &'static str, cpus: u32, cpu: &'static str) -> Scenario {
    let vm = Vm::linux("writer", kernel, "diskwrite").memory("128MiB");
    let vm = vm.args(&format!("underpin.mib={SERVED_MIB}"));
    let vm = vm.cow_partition("first").persistent_disk("data");
    let os0 = Os0::new(kernel, cpus, "2G", &format!("served os0.mib={SERVED_MIB}")).cpu(cpu);
    Scenario::os0(
        format!("os0/served-{kernel}-{cpus}"),
        os0.beside(vec![vm])
            .expect("served kills=", 4 * BOOT)
            .expect("Power down", BOOT),
    )
    .console(check_served)
}

/// A VM's disk is a qcow2 image on a disk of OS-0's; its server is killed in the middle. What that disk would hold if
/// power were lost after its last flush is, for QEMU's own tool, a whole image with what the VM has written and synced.
fn served_image(kernel: &'static str, cpus: u32, cpu: &'static str) -> Scenario {
    let vm = Vm::linux("writer", kernel, "diskwrite").memory("128MiB");
    let vm = vm.args(&format!("underpin.mib={SERVED_MIB}"));
    let vm = vm.cow_partition("first").persistent_disk("data");
    let os0 = Os0::new(kernel, cpus, "2G", "served_image").cpu(cpu);
    Scenario::os0(
        format!("os0/served-qcow2-{kernel}-{cpus}"),
        os0.logged_disk(u64::from(SERVED_MIB) << 20, Format::Qcow2)
            .beside(vec![vm])
            .expect("served image kills=", 4 * BOOT)
            .expect("Power down", BOOT),
    )
    .console(|said| check_flushed(said, "served image kills=2"))
}

/// Power is lost right after a VM has synced what it wrote to a disk that OS-0 serves from one of its own: all is there.
fn power_lost(kernel: &'static str, cpus: u32, cpu: &'static str) -> Scenario {
    let vm = Vm::linux("writer", kernel, "diskwrite").memory("128MiB");
    let vm = vm.args(&format!("underpin.mib={SERVED_MIB}"));
    let vm = vm.cow_partition("first").persistent_disk("data");
    let os0 = Os0::new(kernel, cpus, "2G", "served_till_power_lost").cpu(cpu);
    Scenario::os0(
        format!("os0/power-lost-{kernel}-{cpus}"),
        os0.logged_disk(u64::from(SERVED_MIB) << 20, Format::Raw)
            .beside(vec![vm])
            .expect("served and synced", 4 * BOOT),
    )
    .console(|said| check_flushed(said, "served and synced"))
}

/// What OS-0's disk holds of what was flushed is what the VM has written and synced.
fn check_flushed(said: &str, end: &str) -> Outcome {
    let vms = sum_after(said, "diskwrite ok ");
    let own = sum_after(said, "host: flushes=");
    if vms.is_some() && vms == own && said.contains(end) {
        return Ok(());
    }
    Err(format!(
        "the VM found {vms:?}, and OS-0's disk holds {own:?}"
    ))
}

/// VMs are parked again and again, under load, and come to the right results.
fn park(kernel: &'static str, cpus: u32, cpu: &'static str, pairs: u32) -> Scenario {
    let work = Vm::linux("vm1", kernel, "work").memory("128MiB");
    let work = work.args("underpin.count=100000");
    let disk = Vm::linux("writer", kernel, "diskwrite").memory("128MiB");
    let disk = disk.args(&format!("underpin.mib={SERVED_MIB}"));
    let disk = disk.persistent_disk("first").persistent_disk("data");
    // Linux takes it for a lockup of its own when its clock goes on by more than 20 s at once (`os0/clocks`).
    let words = format!("os0.mib={SERVED_MIB} os0.pairs={pairs} os0.clock=continue");
    let os0 = Os0::new(kernel, cpus, "2G", &format!("disk,park,work {words}"));
    Scenario::os0(
        format!("os0/park-{kernel}-{cpus}-{pairs}"),
        os0.cpu(cpu)
            .disk(16 << 20)
            .hooks()
            .beside(vec![work, disk])
            .images()
            .expect("park parks=", 6 * BOOT + 6 * u64::from(pairs))
            .expect("entries=0", 1)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
    .console(check_park)
}

/// No run of memory is as large as what a VM needs: it gets several, all of which OS-0 knows to be gone.
fn loans() -> Scenario {
    let vm = Vm::linux("large", "trixie-cloud", "script").memory("384MiB");
    let vm = vm.persistent_disk("first");
    let os0 = Os0::new("trixie-cloud", 2, "1G", "loans").cpu("max,pauth=off,sme=off");
    // What is set aside for a crash kernel stays where it is.
    let os0 = os0.words("crashkernel=128M@0x68000000").beside(vec![vm]);
    let os0 = os0.expect("loans left=0 offline=0", 4 * BOOT);
    Scenario::os0("os0/loans", os0.expect("Power down", BOOT)).console(|said| {
        let number = |after: &str| said.split(after).nth(1).and_then(first_number);
        let (lent, runs) = (number("loans lent="), number(" runs="));
        let offline = number(" offline=").map(|pages| pages * 4096);
        let is_filled = said.contains("filled=200000000 other=0");
        if runs.is_some_and(|runs| runs > 1) && offline == lent && is_filled {
            return Ok(());
        }
        Err(format!(
            "{lent:?} bytes in {runs:?} runs, of which {offline:?} are marked; used rightly: {is_filled}"
        ))
    })
}

/// Memory is in pieces: of what a VM needs much is single pages, each of which OS-0 knows to be gone.
fn scattered() -> Scenario {
    let vm = Vm::linux("large", "trixie-cloud", "script").memory("160MiB");
    let vm = vm.persistent_disk("first");
    let os0 = Os0::new("trixie-cloud", 2, "1G", "scattered").cpu("max,pauth=off,sme=off");
    let os0 = os0.words("cma=0 os0.fill=100000000").images();
    let os0 = os0.beside(vec![vm]);
    let os0 = os0.expect("os0: reached page=", 3 * BOOT);
    let os0 = os0.expect("loans left=0 offline=0", 4 * BOOT);
    Scenario::os0("os0/scattered", os0.expect("Power down", BOOT)).console(|said| {
        let number = |after: &str| said.split(after).nth(1).and_then(first_number);
        let (lent, scattered) = (number("loans lent="), number(" scattered="));
        let offline = number(" offline=").map(|pages| pages * 4096);
        let is_filled = said.contains("filled=100000000 other=0");
        if scattered.is_some_and(|bytes| bytes > 16 << 20) && offline == lent && is_filled {
            return Ok(());
        }
        Err(format!(
            "{lent:?} bytes, {scattered:?} in single pages, of which {offline:?} are marked; used rightly: {is_filled}"
        ))
    })
}

/// A VM is parked again and again while its pages go to a disk that OS-0 serves, and come back.
fn swap() -> Scenario {
    let vm = Vm::linux("swaps", "trixie-cloud", "script").terms("64MiB", "160MiB", Some("spare"));
    let vm = vm.persistent_disk("first");
    let vm = vm.args("module_blacklist=virtio_balloon");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "swap").cpu("max,pauth=off,sme=off");
    let os0 = os0.images().beside(vec![vm]);
    let os0 = os0.expect("swap parks=", 5 * BOOT);
    Scenario::os0("os0/swap", os0).slow().console(|said| {
        let parks = said.split("swap parks=").nth(1).and_then(first_number);
        let is_right = said.contains("underpin-guest: same");
        if parks == Some(4) && is_right {
            return Ok(());
        }
        Err(format!(
            "after {parks:?} parks, of 4, what was swapped was right: {is_right}"
        ))
    })
}

/// A VM's clock and OS-0's keep together while they share the CPUs; the time that a VM is parked passes for
/// it, or does not.
fn clocks() -> Scenario {
    let vm = Vm::linux("clock", "trixie-cloud", "script").memory("128MiB");
    let vm = vm.persistent_disk("first");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "clocks").cpu("max,pauth=off,sme=off");
    let os0 = os0.beside(vec![vm]).expect("clocks ended", 8 * BOOT);
    Scenario::os0("os0/clocks", os0).slow().console(|said| {
        let behind = |clock: &str| {
            let after = format!("clock {clock} behind=");
            said.split(after.as_str()).nth(1).and_then(first_signed)
        };
        let drift = said.split("clock shared drift=").nth(1);
        match (
            drift.and_then(first_signed),
            behind("continue"),
            behind("host"),
        ) {
            // Of a minute, half a second. It was parked for 15 s, and each look can be some seconds late.
            (Some(-50..=50), Some(15..=30), Some(-3..=6)) => Ok(()),
            other => Err(format!(
                "the VM's clock fell behind by {other:?}: hundredths of a second, and seconds"
            )),
        }
    })
}

fn first_signed(text: &str) -> Option<i64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// A served disk does not answer in time, and no VM is parked; then all goes on.
fn drain() -> Scenario {
    let vm = Vm::linux("writer", "trixie-cloud", "diskwrite").memory("128MiB");
    let vm = vm.args("underpin.mib=8");
    let vm = vm.persistent_disk("first").persistent_disk("data");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "drain").cpu("max,pauth=off,sme=off");
    let os0 = os0.slow_disk(8 << 20, 64 << 10).beside(vec![vm]);
    let os0 = os0.expect("drain seconds=", 4 * BOOT);
    let os0 = os0.expect("Power down", BOOT);
    Scenario::os0("os0/drain", os0).slow().console(|said| {
        let (vms, own) = (
            sum_after(said, "diskwrite ok "),
            sum_after(said, "os0: drain seconds="),
        );
        let seconds = said.split("drain seconds=").nth(1).and_then(first_number);
        if vms.is_some() && vms == own && seconds.is_some_and(|seconds| seconds >= 10) {
            return Ok(());
        }
        Err(format!(
            "refused after {seconds:?} s; a VM found {vms:?} where OS-0 has {own:?}"
        ))
    })
}

fn longest_below(said: &str, name: &str, most: u64) -> Outcome {
    match said.split(name).nth(1).and_then(first_number) {
        Some(longest) if (1..=most).contains(&longest) => Ok(()),
        longest => Err(format!("{longest:?} us, where {most} are the most")),
    }
}

fn check_park(said: &str) -> Outcome {
    let parks = said.split("os0: park parks=").nth(1).and_then(first_number);
    let upgrades = said.split(" upgrades=").nth(1).and_then(first_number);
    let worked = said.contains(&format!("console vm1.log underpin-guest: work {VMS_WORK}"));
    let after = |text: &str| sum_after(said, text);
    let (vms, own) = (after("diskwrite ok "), after("os0: park parks="));
    let as_often = (parks, upgrades) == (Some(2), Some(4));
    if as_often && worked && vms.is_some() && vms == own {
        return Ok(());
    }
    Err(format!(
        "after {parks:?} parks, of 2, and {upgrades:?} new images, of 4, the work was right: {worked}; a VM found {vms:?} where OS-0 has {own:?}"
    ))
}

/// The checksum on the first line with `text`.
fn sum_after(said: &str, text: &str) -> Option<String> {
    let line = said.split_once(text)?.1.lines().next()?;
    line.split_once("sha256=")
        .map(|(_, sum)| sum.trim().to_owned())
}

/// What a VM writes to the disk that OS-0 serves.
const SERVED_MIB: u32 = 16;

/// The server was killed in the middle, and OS-0's file holds what the VM has written and read.
fn check_served(said: &str) -> Outcome {
    let after = |text: &str| sum_after(said, text);
    let (vms, own) = (after("diskwrite ok "), after("os0: served kills="));
    let kills = said
        .split("os0: served kills=")
        .nth(1)
        .and_then(first_number);
    if vms.is_some() && vms == own && kills.is_some_and(|kills| kills > 0) {
        return Ok(());
    }
    Err(format!(
        "after {kills:?} kills the VM found {vms:?}, and OS-0's file holds {own:?}"
    ))
}

/// What `seq 0 99999 | sha256sum` prints.
const VMS_WORK: &str = "sha256=6b3cecf895b686a8659bbec06f0a84fc869b00a8d47684e494766b87260b878b";
/// What OS-0 asks past the command, by kind, and how it is answered (`abi::control::code`): a request
/// that there is not, one with too few bytes, a name of nobody, the power-off of OS-0's machine, and
/// one that makes sense.
const ANSWERS: [(u32, u32); 5] = [(0xfff, 10), (11, 10), (6, 11), (15, 12), (1, 0)];

/// Each VM came to the right result, and OS-0 all the time.
fn check_beside(said: &str) -> Outcome {
    let vms = said.split("beside ended vms=").nth(1);
    let vms = vms.and_then(first_number).unwrap_or(0) as usize;
    let right = said
        .lines()
        .filter(|line| line.starts_with("os0: console vm"));
    let right = right.filter(|line| line.contains(VMS_WORK)).count();
    let wrong = said.matches("os0: work sha256=").count() - said.matches(WORK).count();
    if right != vms || right == 0 || wrong != 0 {
        return Err(format!(
            "{right} of {vms} VMs came to the right result, OS-0 {wrong} times to a wrong one"
        ));
    }
    let answers = control_log::replies(said);
    if answers != ANSWERS {
        return Err(format!(
            "requests past the command were answered {answers:?}"
        ));
    }
    if said.matches("os0: answers ").count() != 1 || !said.contains("os0: answers 4096 ") {
        return Err("4096 requests were not all answered, or not whole".to_owned());
    }
    Ok(())
}

fn first_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.get(..end.unwrap_or(text.len()))?.parse().ok()
}

/// A boot module that is no kernel is refused by name.
fn nonsense() -> Scenario {
    let os0 = Os0::nonsense();
    Scenario::os0(
        "os0/no-kernel",
        os0.expect(
            "cannot start: what the boot loader left at 0x50000000",
            BOOT,
        ),
    )
}

/// All of Debian 13 from its own disk.
fn systemd() -> Scenario {
    let os0 = Os0::new("trixie", 2, "2G", "").system(DEBIAN13);
    Scenario::os0("os0/systemd", os0.expect(" login:", 3 * BOOT)).slow()
}

/// What EL2 keeps does not grow with the machine.
fn kept(memory: &'static str) -> Scenario {
    let os0 = Os0::new("trixie-cloud", 4, memory, "work").expect("Booting Linux", BOOT);
    let name = format!("os0/kept-{}", memory.to_lowercase());
    Scenario::os0(name, os0).console(|said| {
        let kept = said
            .split_once("EL2 keeps ")
            .and_then(|(_, rest)| rest.split_once(" KiB"))
            .and_then(|(number, _)| number.parse::<u64>().ok());
        check_kept(kept)
    })
}

fn check_kept(kept: Option<u64>) -> Outcome {
    match kept {
        Some(kib) if (1..=KEPT_MAX_KIB).contains(&kib) => Ok(()),
        other => Err(format!("EL2 keeps {other:?} KiB")),
    }
}
