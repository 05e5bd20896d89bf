//! What can stand against a switch, by stable names: the hypervisor's refusals, and what `doctor`
//! checks.

use std::fmt;

/// One name.
#[derive(Debug)]
pub struct Code {
    /// Stable.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What usually leads to it.
    pub causes: &'static [&'static str],
    /// What to do.
    pub advice: &'static [&'static str],
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}\nUsual causes", self.name, self.meaning)?;
        let point = |f: &mut fmt::Formatter<'_>, line: &str| writeln!(f, "  - {line}");
        self.causes.iter().try_for_each(|line| point(f, line))?;
        writeln!(f, "What to do")?;
        self.advice.iter().try_for_each(|line| point(f, line))
    }
}

const fn code(
    name: &'static str,
    meaning: &'static str,
    causes: &'static [&'static str],
    advice: &'static [&'static str],
) -> Code {
    Code {
        name,
        meaning,
        causes,
        advice,
    }
}

/// Why the hypervisor, or the module before it, does not make a switch; in the order of
/// `abi::os0::Refusal`, then the module's own.
pub const REFUSALS: [Code; 29] = [
    code(
        "interrupts-open",
        "a CPU came to the switch with its interrupts unmasked",
        &["The module's version does not fit the kernel, or the module has a bug."],
        &["Nothing was changed. Build the module anew for this kernel, and report it."],
    ),
    code(
        "handling-interrupt",
        "a CPU was in the middle of an interrupt",
        &["The switch was asked for from an interrupt handler."],
        &["Nothing was changed: try again."],
    ),
    code(
        "too-few-list-registers",
        "a CPU can hold fewer than two virtual interrupts",
        &["The CPU has no virtual GIC CPU interface that Underpin can use."],
        &["Nothing: Underpin cannot be attached on this CPU."],
    ),
    code(
        "late",
        "not all CPUs came to the switch within a second",
        &["A CPU stood still meanwhile: firmware, a debugger, or a host that runs something else."],
        &["Nothing was changed: try again when the machine is less busy."],
    ),
    code(
        "wrong-number",
        "the number of CPUs that came is not the number that are on",
        &["A CPU was started or stopped at the same moment."],
        &["Nothing was changed: try again."],
    ),
    code(
        "already-attached",
        "Underpin is beneath this system already",
        &[
            "It was attached before.",
            "An earlier detach left out a CPU.",
        ],
        &["`underpin status` shows on how many CPUs; `underpin detach` takes it away."],
    ),
    code(
        "not-attached",
        "Underpin is not beneath this system",
        &["It was detached before, or never attached since this system started."],
        &["`underpin attach` puts it there."],
    ),
    code(
        "elsewhere",
        "another switch is being made",
        &["Two programs asked at the same time."],
        &["Try again."],
    ),
    code(
        "memory-out-of-reach",
        "the machine has memory at addresses that Underpin's tables do not reach",
        &["The machine has memory above 8 TiB, or above what its CPUs can translate twice."],
        &["Nothing: this machine is not supported."],
    ),
    code(
        "injected",
        "a test asked for this failure",
        &["The hypervisor was started with `inject`, and `fail` was written to /dev/underpin."],
        &["Nothing was changed: try again."],
    ),
    code(
        "no-blocks",
        "what is lent is not in whole blocks of 2 MiB",
        &["The module and the hypervisor are of different versions, or the module has a bug."],
        &["Nothing was changed. Build the module anew for this kernel, and report it."],
    ),
    code(
        "not-memory",
        "what is lent, or named, is not this system's memory",
        &["The module and the hypervisor are of different versions, or the module has a bug."],
        &["Nothing was changed. Build the module anew for this kernel, and report it."],
    ),
    code(
        "lent-already",
        "some of what is lent is lent already",
        &["The module and the hypervisor are of different versions, or the module has a bug."],
        &["Nothing was changed. Build the module anew for this kernel, and report it."],
    ),
    code(
        "too-many-loans",
        "there are too many loans",
        &["The module and the hypervisor are of different versions, or the module has a bug."],
        &["Nothing was changed. Build the module anew for this kernel, and report it."],
    ),
    code(
        "not-lent",
        "nothing is lent there",
        &["The module and the hypervisor are of different versions, or the module has a bug."],
        &["Nothing was changed. Build the module anew for this kernel, and report it."],
    ),
    code(
        "in-use",
        "what is lent is in use for VMs",
        &["Something of a VM is left that should have been given back."],
        &["The memory stays lent. See the log (underpin log), and report it."],
    ),
    code(
        "not-open",
        "nothing is made of lent memory",
        &["Nothing is lent, or all of it was asked for."],
        &["Lend memory first: echo lend MIB FILE >/dev/underpin."],
    ),
    code(
        "too-little",
        "there is too little lent memory for the bundle and what VMs need",
        &["The bundle takes most of what was lent."],
        &["Lend more: the bundle, the memory of the VMs, and an eighth more."],
    ),
    code(
        "vms-run",
        "VMs run, or have not quite ended",
        &["Lent memory was asked for while VMs use it."],
        &["End the VMs, and try again a moment later."],
    ),
    code(
        "cpus-off",
        "not all CPUs of the machine are on",
        &["CPUs were taken off by hand."],
        &[
            "Turn them on: /sys/devices/system/cpu/cpuN/online. They stay on as long as memory is lent.",
        ],
    ),
    code(
        "not-covered",
        "a CPU has a feature whose state cannot be kept while VMs run",
        &["The CPU has SME, FPMR, SPE, TRBE, BRBE or 128-bit page tables."],
        &["Nothing was lent. VMs cannot run beside this system on this machine yet."],
    ),
    code(
        "lent",
        "memory is lent",
        &["VMs run, or ran, beside this system."],
        &[
            "End the VMs: underpin shutdown. Their server gives the memory back; without one: underpin serve.",
        ],
    ),
    code(
        "no-interrupt",
        "what is to tell this system of requests to its disks is no shared interrupt",
        &["The module's version does not fit the hypervisor's."],
        &["Nothing was lent. Build the module anew for this hypervisor."],
    ),
    code(
        "no-image",
        "what was given is no image of Underpin's, or was changed or cut on its way",
        &["The file is another one, or was not copied whole."],
        &[
            "Nothing was changed. Name the file that `xtask build` leaves at target/el2/underpin.img.",
        ],
    ),
    code(
        "misfit",
        "the new image does not read what the one that runs would leave for it",
        &["Their versions are too far apart."],
        &[
            "Nothing was changed. Use a version in between, or restart the machine with the new one.",
        ],
    ),
    code(
        "new-failed",
        "the new image was entered and failed before it took over",
        &["The new image has a bug, or was made for another machine."],
        &["The one that ran before runs on. Report it."],
    ),
    code(
        "not-staged",
        "what was to be staged is no system that could be started",
        &["The command's version does not fit the hypervisor's."],
        &["Nothing is staged. Use the `underpin` of this hypervisor."],
    ),
    code(
        "not-recorded",
        "a parked VM has what another image of the hypervisor could not go on with",
        &[
            "A disk at work, single pages that are lent, a VM that spans hosts, or pages on a disk that is gone; `underpin log` says which VM.",
        ],
        &["Let that VM end, or go on (`underpin attach`), and upgrade then. Nothing was changed."],
    ),
    code(
        "holds-interrupts",
        "a CPU holds interrupts that it does not take, and could not be left",
        &["A driver keeps interrupts of a CPU masked for long."],
        &["The other CPUs are as asked for. Try again: it is asked anew."],
    ),
];

/// What `doctor` checks, in its order.
pub const CHECKS: [Code; 15] = [
    code(
        "arm64",
        "the machine is a 64-bit Arm machine",
        &["Underpin runs on 64-bit Arm only."],
        &["Run the command inside the system that Underpin is to be beneath."],
    ),
    code(
        "root",
        "the command may use /dev/underpin and read /proc/iomem",
        &["The command was started by another user than root."],
        &["Run it as root: sudo underpin doctor."],
    ),
    code(
        "exception-level",
        "this kernel runs at EL1, so that EL2 is free for a hypervisor",
        &["The machine started this kernel at EL2, without Underpin beneath it."],
        &["Boot Underpin first, with this kernel as its boot module (docs/attach.md)."],
    ),
    code(
        "module",
        "the kernel module is loaded",
        &[
            "It was not loaded, or not built for this kernel.",
            "The kernel refused it: lockdown allows signed modules only.",
            "It refused itself: no Underpin is beneath.",
        ],
        &[
            "modprobe underpin; where there is none, build linux/module (DKMS does it).",
            "Under lockdown, sign it with a key that the machine owner has enrolled (mokutil).",
        ],
    ),
    code(
        "hypervisor",
        "Underpin answers, in a version that fits this command",
        &[
            "The machine did not boot Underpin.",
            "Image, module and command are of different versions.",
        ],
        &["Boot Underpin first (docs/attach.md), and install the three from one version."],
    ),
    code(
        "gic",
        "the interrupt controller is a GICv3 or GICv4",
        &["The machine has a GICv2 or another controller."],
        &["Nothing: this machine is not supported. On QEMU: -M virt,gic-version=3."],
    ),
    code(
        "psci",
        "firmware is called by SMC, with PSCI 0.2 or later",
        &[
            "Firmware is called by HVC: another hypervisor is beneath.",
            "Firmware is too old.",
        ],
        &["Run on the machine itself. On QEMU: -M virt,virtualization=on."],
    ),
    code(
        "memory",
        "the hypervisor's memory is none of this system's, and all memory is in its reach",
        &["A boot loader has put the memory map together anew after Underpin cut its own out."],
        &["Do not attach: report the machine, with /proc/iomem."],
    ),
    code(
        "list-registers",
        "each CPU can hold two virtual interrupts or more",
        &["The CPU has no virtual GIC CPU interface that Underpin can use."],
        &["Nothing: Underpin cannot be attached on this CPU."],
    ),
    code(
        "secure-state",
        "EL2 is in the Non-secure state",
        &[
            "The CPU could also run EL2 in the Secure state; its registers do not tell which this is.",
        ],
        &["Look at how firmware starts EL2; servers start it in the Non-secure state."],
    ),
    code(
        "e2h",
        "the CPU can run EL2 with HCR_EL2.E2H clear",
        &["The CPU has EL2 with the host extensions only (FEAT_E2H0 is absent)."],
        &["Nothing: this CPU is not supported."],
    ),
    code(
        "cpu-features",
        "every feature that this system can see of its CPUs is in the world-switch table",
        &["The CPU is newer than this version of Underpin."],
        &["Use a newer Underpin, or hide the feature (on QEMU: -cpu MODEL,FEATURE=off)."],
    ),
    code(
        "smmu",
        "devices reach only memory that is theirs",
        &["No SMMU is under Underpin's control."],
        &["DMA is open: trust this system's drivers and devices, or do not run others beside it."],
    ),
    code(
        "random-bits",
        "the machine has a source of random bits for guests' seeds and Underpin's own keys",
        &["The boot loader left no rng-seed, the CPUs have no RNDR, and the firmware has no TRNG."],
        &[
            "Attaching works. Let the boot loader write /chosen/rng-seed into the device tree at each boot.",
        ],
    ),
    code(
        "switch",
        "each CPU would make the switch now",
        &["`underpin explain` has the refusal by its name."],
        &["As its explanation says."],
    ),
];

/// Exit statuses of the verbs beside 0, 1 and 2.
pub mod exit {
    /// A file that was named is wrong.
    pub const FILE: u8 = 6;
    /// A precondition is missing or not proved: nothing was touched.
    pub const NOT_READY: u8 = 7;
    /// The hypervisor did not make the switch.
    pub const REFUSED: u8 = 8;
}

/// The refusal or check of that name.
pub fn find(name: &str) -> Option<&'static Code> {
    REFUSALS
        .iter()
        .chain(&CHECKS)
        .find(|code| code.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::os0::Refusal;

    #[test]
    fn names_are_used_once_and_refusals_are_the_hypervisors() {
        let all: Vec<_> = REFUSALS.iter().chain(&CHECKS).collect();
        for (n, code) in all.iter().enumerate() {
            assert!(!all[..n].iter().any(|other| other.name == code.name));
            assert!(!code.causes.is_empty() && !code.advice.is_empty());
        }
        assert_eq!(Refusal::Injected as usize, 10);
        assert_eq!(REFUSALS[Refusal::Injected as usize - 1].name, "injected");
        assert_eq!(REFUSALS[Refusal::Lent as usize - 1].name, "lent");
        assert_eq!(REFUSALS[Refusal::Late as usize - 1].name, "late");
        // The module names them in the same order.
        let module = include_str!("../../../linux/module/switch.c");
        let (_, rest) = module.split_once("refusals[] = {").unwrap();
        let (names, _) = rest.split_once("};").unwrap();
        let names: Vec<&str> = names.split('"').skip(1).step_by(2).skip(1).collect();
        let ours = REFUSALS.iter().map(|code| code.name);
        assert_eq!(names, ours.take(names.len()).collect::<Vec<_>>());
        assert_eq!(names.len(), Refusal::NotRecorded as usize);
    }
}
