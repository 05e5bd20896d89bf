//! OS-0 ends: alone, with the machine, or for another system that it starts itself.

use super::{super::kernels::BOOT, WORK, sum_after};
use crate::{Outcome, os0::Os0, scenario::Scenario, vm::Vm};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        outlives("reboot", 2, false),
        outlives("panic", 2, false).slow(),
        outlives("poweroff", 4, false).slow(),
        outlives("reboot", 2, true).slow(),
        outlives("poweroff", 2, true).slow(),
        outlives("kexec", 2, false).slow(),
        outlives("kexec", 2, true).slow(),
        panics_parked(),
        spoiled(),
        loops(),
        kexec(false),
        kexec(true),
    ]
}

/// What a VM writes to the disk that OS-0 serves while it ends.
const OUTLIVING_MIB: u32 = 48;

/// OS-0 ends in the middle of its VMs' work and starts anew, alone; they come to the right results, with
/// the disk that it served before and after, and their memory is its own again.
fn outlives(end: &str, cpus: u32, parked: bool) -> Scenario {
    let kernel = "trixie-cloud";
    let work = Vm::linux("vm1", kernel, "work").memory("128MiB");
    let work = work.args("underpin.count=2000000");
    let disk = Vm::linux("writer", kernel, "diskwrite").memory("192MiB");
    let disk = disk.args(&format!("underpin.mib={OUTLIVING_MIB}"));
    let disk = disk.cow_partition("first").persistent_disk("data");
    let (name, option) = if parked {
        ("parked-", " os0.park=yes")
    } else {
        ("", "")
    };
    let actions = format!("outlived os0.mib={OUTLIVING_MIB} os0.end={end}{option}");
    // On QEMU's `max`, with addresses of 52 bits, Linux was seen to oops at kexec.
    let cpu = if end == "kexec" {
        "neoverse-n1"
    } else {
        "max,pauth=off,sme=off"
    };
    let os0 = Os0::new(kernel, cpus, "2G", &actions).cpu(cpu);
    Scenario::os0(
        format!("os0/outlived-{name}{end}-{cpus}"),
        os0.disk(64 << 20)
            .beside(vec![work, disk])
            .starts_anew()
            .expect("os0: outlived ends", BOOT)
            .expect("underpin: OS-0 has ended; it starts anew", BOOT)
            .expect(format!("cpus={cpus}"), BOOT)
            .expect("survived lent=", BOOT)
            .expect("survived disk sha256=", 6 * BOOT)
            .expect("entries=0", 1)
            .expect(WORK, BOOT)
            .expect("Power down", BOOT),
    )
    .console(check_outlived)
}

fn check_outlived(said: &str) -> Outcome {
    let worked = said.contains(&format!(
        "console vm1.log underpin-guest: work {OUTLIVING_WORK}"
    ));
    let after = |text: &str| sum_after(said, text);
    let (vms, own) = (after("diskwrite ok "), after("os0: survived disk "));
    if worked && vms.is_some() && vms == own {
        return Ok(());
    }
    Err(format!(
        "the work was right: {worked}; a VM found {vms:?} where OS-0 has {own:?}"
    ))
}

/// What `seq 0 1999999 | sha256sum` prints.
const OUTLIVING_WORK: &str =
    "sha256=beaa1fec591ed74a8a72068132cd6651dbbc8ba042f1056b24767465f5b62ced";

/// What was staged has been changed while EL2 was not beneath: OS-0's end is the machine's, and no more.
fn spoiled() -> Scenario {
    let vm = Vm::linux("idle", "trixie-cloud", "idle").memory("128MiB");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "spoiled").cpu("max,pauth=off,sme=off");
    let os0 = os0.beside(vec![vm]).expect("os0: spoiled 0x", 2 * BOOT);
    let os0 = os0.expect("nothing is staged that can be started", BOOT);
    Scenario::os0("os0/outlived-spoiled", os0).slow()
}

/// What is staged ends as soon as it starts: it is started a few times, and then the machine ends.
fn loops() -> Scenario {
    let vm = Vm::linux("idle", "trixie-cloud", "idle").memory("128MiB");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "looping").cpu("max,pauth=off,sme=off");
    let os0 = os0.beside(vec![vm]).starts_anew();
    let os0 = os0.expect("os0: looping", 2 * BOOT);
    let os0 = os0.expect("ended 3 times within 300 s of its start", 4 * BOOT);
    Scenario::os0("os0/outlived-loop", os0)
        .slow()
        .console(|said| {
            let starts = said.matches("it starts anew, VMs go on").count();
            if starts == 3 {
                return Ok(());
            }
            Err(format!("OS-0 was started anew {starts} times"))
        })
}

/// EL2 is not beneath an OS-0 whose VMs are parked, and cannot take its other CPUs back when it panics: it says that
/// the machine ends, VMs and all, whatever was staged.
fn panics_parked() -> Scenario {
    let vm = Vm::linux("vm1", "trixie-cloud", "idle").memory("128MiB");
    let disk = Vm::linux("writer", "trixie-cloud", "diskwrite").memory("128MiB");
    let disk = disk.args("underpin.mib=48");
    let disk = disk.persistent_disk("first").persistent_disk("data");
    let words = "outlived os0.mib=48 os0.end=panic os0.park=yes";
    let os0 = Os0::new("trixie-cloud", 2, "2G", words).cpu("max,pauth=off,sme=off");
    let os0 = os0.disk(64 << 20).beside(vec![vm, disk]).starts_anew();
    let os0 = os0.expect("os0: outlived ends", 2 * BOOT);
    let os0 = os0.expect(
        "underpin: OS-0 says that it dies; VMs that are parked end",
        BOOT,
    );
    let os0 = os0.expect(
        "underpin: OS-0 ends while VMs are parked: the machine ends",
        BOOT,
    );
    Scenario::os0("os0/ended-parked-panic-2", os0).console(|said| {
        if said.contains("it starts anew, VMs go on") {
            return Err("OS-0 was started anew".into());
        }
        Ok(())
    })
}

/// With nothing lent kexec does what it does without Underpin.
fn kexec(is_attached: bool) -> Scenario {
    let (name, words) = if is_attached {
        ("attached", " os0.attached=yes")
    } else {
        ("detached", "")
    };
    let os0 = Os0::new("trixie-cloud", 2, "1G", &format!("kexec{words}"));
    // On QEMU's `max`, with addresses of 52 bits, Linux was seen to oops at it.
    let os0 = os0.cpu("neoverse-n1").module();
    let os0 = os0.expect("os0: kexeced", 2 * BOOT);
    Scenario::os0(format!("os0/kexec-{name}"), os0).slow()
}
