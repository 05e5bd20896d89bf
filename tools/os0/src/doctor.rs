//! Whether Underpin can be attached: every precondition, proved before anything is touched.
//!
//! A precondition is proved by evidence or it does not hold. What the hypervisor itself must say is
//! asked through the module, which makes sure by SMC that somebody answers before it calls by HVC.

use crate::{
    codes::{CHECKS, find},
    features::{Survey, field, survey},
    machine::{Asked, DEVICE, System},
};
use abi::os0::{REVISION, flag};
use serde_json::{Value, json};
use std::path::Path;

/// How a precondition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds.
    Holds,
    /// It holds, or does not matter for attaching, but should be known.
    Note,
    /// It does not hold.
    Missing,
    /// Nothing tells: what has to be done first is told by another.
    Unproved,
}

impl State {
    /// Whether it stands against attaching.
    pub const fn is_against(self) -> bool {
        matches!(self, Self::Missing | Self::Unproved)
    }

    /// As programs read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Note => "note",
            Self::Missing => "missing",
            Self::Unproved => "unproved",
        }
    }
}

/// One precondition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name, as `explain` knows it.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
}

/// What `doctor` found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All preconditions, in the order of [`CHECKS`].
    pub checks: Vec<Check>,
    /// The features of all CPUs.
    pub features: Survey,
    /// EL2 is beneath some CPU already.
    pub is_attached: bool,
}

impl Report {
    /// Whether everything is proved.
    pub fn is_ready(&self) -> bool {
        self.misses().next().is_none()
    }

    /// What stands against attaching.
    pub fn misses(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.state.is_against())
    }

    /// What to do about a check that does not hold. What is not proved waits for another that is missing.
    pub fn advice(check: &Check) -> &'static [&'static str] {
        let is_told = matches!(check.state, State::Missing | State::Note);
        find(check.name)
            .filter(|_| is_told)
            .map_or(&[], |code| code.advice)
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let check = |check: &Check| {
            json!({
                "check": check.name, "state": check.state.name(), "found": check.found,
                "advice": Self::advice(check),
            })
        };
        json!({
            "ready": self.is_ready(),
            "attached": self.is_attached,
            "checks": self.checks.iter().map(check).collect::<Vec<_>>(),
            "features": { "known": self.features.known, "unknown": self.features.unknown },
        })
    }
}

/// What was found, as a check that stands so.
type Found = (State, String);

fn holds(found: impl Into<String>) -> Found {
    (State::Holds, found.into())
}

fn missing(found: impl Into<String>) -> Found {
    (State::Missing, found.into())
}

fn unproved(found: impl Into<String>) -> Found {
    (State::Unproved, found.into())
}

/// Looks at everything; changes nothing.
pub fn examine(system: &dyn System) -> Report {
    let log = system.kernel_log();
    let (facts, module) = ask_facts(system, &log);
    let cpus = facts.as_ref().map_or(&[][..], cpus);
    let features = survey_all(cpus);
    let found = |name: &str| match name {
        "arm64" => match system.architecture() {
            "aarch64" => holds("aarch64"),
            other => missing(format!("this is {other}")),
        },
        "root" => root(system),
        "exception-level" => exception_level(system, &log, facts.is_some()),
        "module" => module.clone(),
        "hypervisor" => hypervisor(facts.as_ref(), &log),
        "gic" => gic(system, cpus),
        "psci" => psci(system, facts.as_ref()),
        "memory" => memory(system, facts.as_ref()),
        "list-registers" => each(cpus, "lists", |lists| lists >= 2, "list registers"),
        "secure-state" => secure_state(cpus),
        "e2h" => e2h(cpus),
        "cpu-features" => cpu_features(cpus, &features),
        "smmu" => smmu(cpus),
        "random-bits" => random_bits(cpus),
        _ => switch(cpus),
    };
    let checks = CHECKS.iter().map(|code| {
        let (state, found) = found(code.name);
        let name = code.name;
        Check { name, state, found }
    });
    Report {
        checks: checks.collect(),
        is_attached: cpus.iter().any(|cpu| cpu["refusal"] == "already-attached"),
        features,
    }
}

/// What the hypervisor says, and how the module stands.
fn ask_facts(system: &dyn System, log: &str) -> (Option<Value>, Found) {
    if !system.exists(DEVICE) {
        return (None, missing(why_no_module(system, log)));
    }
    match system.ask("facts") {
        Asked::Done(answer) | Asked::Refused(answer) => match serde_json::from_str(&answer) {
            Ok(facts) => (Some(facts), (State::Holds, signature(system))),
            Err(_) => (
                None,
                missing("it is of another version: its answer is not understood"),
            ),
        },
        Asked::Failed(error) => (None, unproved(format!("{DEVICE}: {error}"))),
    }
}

/// The last bytes of a module that is signed.
const SIGNED: &[u8] = b"~Module signature appended~\n";

/// The module says why it does not load.
fn why_no_module(system: &dyn System, log: &str) -> String {
    let own = |line: &str| Some(line.split_once(";underpin: ")?.1.trim().to_owned());
    if let Some(words) = log.lines().rev().find_map(own) {
        return format!("it is not loaded: {words}");
    }
    let mut found = "it is not loaded".to_owned();
    let release = system
        .read("/proc/sys/kernel/osrelease")
        .unwrap_or_default();
    let release = release.trim();
    let places = ["updates/dkms", "updates", "extra"]
        .iter()
        .flat_map(|place| {
            ["", ".xz", ".zst", ".gz"]
                .map(|packed| format!("/lib/modules/{release}/{place}/underpin.ko{packed}"))
        });
    match places.into_iter().find(|path| system.exists(path)) {
        Some(path) => {
            let tail = system.tail(&path, SIGNED.len()).unwrap_or_default();
            let is_plain = Path::new(&path).extension().is_some_and(|end| end == "ko");
            if is_plain && tail != SIGNED {
                found.push_str(", and not signed");
            }
            found.extend(["; it is there: ", &path]);
        }
        None => found.extend(["; there is none for ", release]),
    }
    if is_locked_down(system) {
        found.push_str("; the kernel is locked down and takes signed modules only");
    }
    found
}

fn is_locked_down(system: &dyn System) -> bool {
    let lockdown = system.read("/sys/kernel/security/lockdown");
    let enforced = system.read("/sys/module/module/parameters/sig_enforce");
    lockdown.is_some_and(|text| !text.contains("[none]"))
        || enforced.is_some_and(|text| text.trim() == "Y")
}

/// How the module that is loaded came in.
fn signature(system: &dyn System) -> String {
    let taint = system
        .read("/sys/module/underpin/taint")
        .unwrap_or_default();
    let signed = if taint.contains('E') {
        "loaded, unsigned"
    } else {
        "loaded, signed"
    };
    let lockdown = if is_locked_down(system) { "on" } else { "off" };
    format!("{signed}; lockdown is {lockdown}")
}

fn root(system: &dyn System) -> Found {
    let status = system.read("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    match line.and_then(|line| line.split_whitespace().nth(1)) {
        Some("0") => holds("user 0"),
        Some(other) => missing(format!("user {other}")),
        None => unproved("/proc/self/status does not tell"),
    }
}

fn exception_level(system: &dyn System, log: &str, module_is_loaded: bool) -> Found {
    if module_is_loaded {
        return holds("EL1, as the module saw");
    }
    if log.contains("started at EL2") || system.exists("/dev/kvm") {
        return missing("EL2");
    }
    if log.contains("started at EL1") {
        return holds("EL1, as the kernel said");
    }
    unproved("the kernel's log does not tell any more; the module will")
}

fn hypervisor(facts: Option<&Value>, log: &str) -> Found {
    let Some(facts) = facts else {
        if log.contains("underpin: Underpin is not beneath") {
            return missing("nobody answers the module's SMC");
        }
        return unproved("the module asks for it");
    };
    let version = facts["version"].as_u64().unwrap_or(0);
    let text = format!("Underpin {}.{}", version >> 16, version & 0xffff);
    match facts["revision"].as_u64() {
        Some(REVISION) => holds(text),
        other => missing(format!(
            "{text}, whose calls are of revision {}, not {REVISION}",
            other.unwrap_or(0)
        )),
    }
}

fn cpus(facts: &Value) -> &[Value] {
    facts["cpus"].as_array().map_or(&[], Vec::as_slice)
}

fn registers(cpu: &Value) -> Vec<u64> {
    let values = cpu["id"].as_array().map_or(&[][..], Vec::as_slice);
    values.iter().filter_map(Value::as_u64).collect()
}

/// A number of each CPU's, as one check.
fn each(cpus: &[Value], key: &str, is_right: impl Fn(u64) -> bool, what: &str) -> Found {
    let values = cpus
        .iter()
        .map(|cpu| (cpu["cpu"].as_u64(), cpu[key].as_u64()));
    let mut least = None;
    for (cpu, value) in values {
        let (Some(cpu), Some(value)) = (cpu, value) else {
            return unproved("the hypervisor does not tell");
        };
        if !is_right(value) {
            return missing(format!("CPU {cpu} has {value} {what}"));
        }
        least = Some(least.unwrap_or(value).min(value));
    }
    match least {
        Some(least) => holds(format!("{least} {what} on each of {} CPUs", cpus.len())),
        None => unproved("the hypervisor tells, through the module"),
    }
}

fn gic(system: &dyn System, cpus: &[Value]) -> Found {
    if let Some(version) = cpus.first().and_then(|cpu| cpu["gic"].as_u64()) {
        let text = format!("GICv{version}");
        return if (3..=4).contains(&version) {
            holds(text)
        } else {
            missing(text)
        };
    }
    let interrupts = system.read("/proc/interrupts").unwrap_or_default();
    if ["GICv3", "GICv4"]
        .iter()
        .any(|name| interrupts.contains(name))
    {
        holds("GICv3 or later, by /proc/interrupts")
    } else if interrupts.contains("GIC") {
        missing("another, by /proc/interrupts")
    } else {
        unproved("/proc/interrupts does not tell")
    }
}

fn psci(system: &dyn System, facts: Option<&Value>) -> Found {
    if let Some(version) = facts.and_then(|facts| facts["psci"].as_u64()) {
        let version = version as u32;
        let text = format!("PSCI {}.{} by SMC", version >> 16, version & 0xffff);
        return if (2..1 << 31).contains(&version) {
            holds(text)
        } else {
            missing(text)
        };
    }
    let method = system.read("/proc/device-tree/psci/method");
    match method
        .as_deref()
        .map(|method| method.trim_end_matches('\0'))
    {
        Some("smc") => holds("by SMC, by the device tree"),
        Some(other) => missing(format!("by {other}, by the device tree")),
        None => unproved("there is no device tree that tells"),
    }
}

/// What the hypervisor keeps must be no memory of this system's.
fn memory(system: &dyn System, facts: Option<&Value>) -> Found {
    let Some(facts) = facts else {
        return unproved("the hypervisor tells, through the module");
    };
    let kept = |key: &str| facts["kept"][key].as_u64();
    let (Some(start), Some(size)) = (kept("start"), kept("size")) else {
        return unproved("the hypervisor does not tell");
    };
    let Some(iomem) = system.read("/proc/iomem") else {
        return unproved("/proc/iomem cannot be read");
    };
    let end = start.saturating_add(size);
    let ram: Vec<(u64, u64)> = iomem.lines().filter_map(system_ram).collect();
    if ram.iter().all(|(_, last)| *last == 0) {
        return unproved("/proc/iomem shows addresses to root only");
    }
    if let Some((first, last)) = ram
        .iter()
        .find(|(first, last)| *first < end && *last >= start)
    {
        return missing(format!(
            "this system uses {first:#x} to {last:#x}, of which {start:#x} to {end:#x} is the hypervisor's"
        ));
    }
    let highest = ram.iter().map(|(_, last)| *last).max().unwrap_or(0);
    let reach = cpus(facts)
        .iter()
        .filter_map(|cpu| cpu["reach"].as_u64())
        .min();
    match reach {
        Some(bits) if highest >> bits.min(63) == 0 => holds(format!(
            "{} KiB at {start:#x} are the hypervisor's alone",
            size >> 10
        )),
        Some(bits) => missing(format!("memory at {highest:#x} is beyond {bits} bits")),
        None => unproved("the hypervisor does not tell"),
    }
}

/// The first and last byte of a line `40000000-bfffffff : System RAM`.
fn system_ram(line: &str) -> Option<(u64, u64)> {
    let (range, _) = line.split_once(" : System RAM")?;
    let (first, last) = range.trim().split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(first)?, number(last)?))
}

fn flags(cpus: &[Value]) -> Option<u64> {
    let all = cpus.iter().map(|cpu| cpu["flags"].as_u64());
    all.reduce(|one, other| Some(one? | other?)).flatten()
}

fn secure_state(cpus: &[Value]) -> Found {
    match flags(cpus) {
        None => unproved("the hypervisor tells, through the module"),
        Some(flags) if flags & flag::SECURE_EL2 == 0 => {
            holds("Non-secure: these CPUs have no EL2 in the Secure state")
        }
        Some(flags) if flags & flag::EL3 == 0 => {
            holds("these CPUs have no EL3 to leave a state to")
        }
        Some(_) => (
            State::Note,
            "the CPUs have EL2 in both states; by PSCI's rule it was started as Non-secure"
                .to_owned(),
        ),
    }
}

fn e2h(cpus: &[Value]) -> Found {
    if cpus.is_empty() {
        return unproved("the hypervisor tells, through the module");
    }
    // ID_AA64MMFR4_EL1.E2H0: 14 and 15 are CPUs without it.
    let other = cpus
        .iter()
        .find(|cpu| field(&registers(cpu), 7, 4, 24) >= 14);
    match other {
        Some(cpu) => missing(format!("CPU {} has no FEAT_E2H0", cpu["cpu"])),
        None => holds("clear, on all CPUs"),
    }
}

/// The features of all CPUs, each told once.
fn survey_all(cpus: &[Value]) -> Survey {
    let mut all = Survey::default();
    for cpu in cpus {
        let survey = survey(&registers(cpu));
        for name in survey.known {
            if !all.known.contains(&name) {
                all.known.push(name);
            }
        }
        for name in survey.unknown {
            if !all.unknown.contains(&name) {
                all.unknown.push(name);
            }
        }
    }
    all
}

fn cpu_features(cpus: &[Value], features: &Survey) -> Found {
    if cpus.is_empty() || features.known.is_empty() {
        return unproved("the hypervisor tells, through the module");
    }
    if features.unknown.is_empty() {
        return holds(format!("all of {} are in the table", features.known.len()));
    }
    missing(format!("not in the table: {}", features.unknown.join(", ")))
}

fn smmu(cpus: &[Value]) -> Found {
    match flags(cpus) {
        Some(flags) if flags & flag::SMMU != 0 => holds("under the hypervisor"),
        Some(_) => (
            State::Note,
            "none is under the hypervisor; DMA: open".to_owned(),
        ),
        None => (State::Note, "DMA: open".to_owned()),
    }
}

/// A machine without a source of random bits, in one sentence.
pub const WITHOUT_RANDOM_BITS: &str = "none: the machine has no source of random bits, so guests get no seeds and no \
    entropy device, and whatever needs a secret key is refused";

fn random_bits(cpus: &[Value]) -> Found {
    match flags(cpus) {
        Some(flags) if flags & flag::SEEDED != 0 => holds("from the machine's sources"),
        Some(_) => (State::Note, WITHOUT_RANDOM_BITS.to_owned()),
        None => (
            State::Note,
            "the hypervisor tells, through the module".to_owned(),
        ),
    }
}

fn switch(cpus: &[Value]) -> Found {
    if cpus.is_empty() {
        return unproved("the hypervisor tells, through the module");
    }
    let refusal = |cpu: &Value| cpu["refusal"].as_str().unwrap_or("unknown").to_owned();
    let refuses = |cpu: &&Value| !["none", "already-attached"].contains(&refusal(cpu).as_str());
    if let Some(cpu) = cpus.iter().find(refuses) {
        return missing(format!("CPU {} would refuse: {}", cpu["cpu"], refusal(cpu)));
    }
    let attached = cpus.iter().filter(|cpu| refusal(cpu) != "none").count();
    if attached > 0 {
        let text = format!(
            "Underpin is beneath {attached} of {} CPUs already",
            cpus.len()
        );
        return (State::Note, text);
    }
    holds(format!("{} CPUs would", cpus.len()))
}
