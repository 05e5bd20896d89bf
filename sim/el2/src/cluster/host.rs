//! A host of a cluster, in this process: takes turns from its standard input, and reports to its standard output.

use super::guest::{self, Plan, Witness};
use super::pipe::{Report, Turn};
use crate::bundle;
use crate::life::{BUNDLE_AT, TREE_AT, take_lines};
use crate::tree;
use abi::Text;
use abi::bundle::{ClusterRecord, MTU_STANDARD};
use abi::cluster::{ANSWERED, ASKED, DESCRIPTION, Description, FAREWELL, PROBE, PROBED};
use abi::control::SpanMoveRequest;
use abi::link::BULK_MAX;
use hypervisor::outside::{self, Ask, cluster};
use machine_host::machine::{self, Config, Entries, Machine, Progress};
use machine_host::rng::Rng;
use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, StdinLock};
use std::os::fd::AsFd;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use zerocopy::FromZeros;

/// Bytes of the memory of one of three hosts, and how much more it has for each further one: its link, and its share of the VM.
const MEMORY: usize = 24 << 20;
const MEMORY_EACH: usize = 4 << 20;
/// How much more each other host takes of it where a page takes one frame.
const MEMORY_JUMBO: usize = 4 << 20;
/// After so many points at which another CPU could go on, a host has hung that should have come to the end of a turn.
const STEPS_MAX: u64 = 5_000_000;
/// The longest that vCPUs take to stop.
const STOPS_NS: u64 = 500_000;
/// One turn in so many, a host says nonsense to another one.
const BABBLE_ONE_IN: u64 = 64;
/// One turn in so many, a vCPU is to go over to another host, in every second life with a VM over several.
const MOVE_ONE_IN: u64 = 16;
/// The clusters' key: it is the same for all, and nobody who writes to the network has it.
const KEY: [u8; 32] = [0x5a; 32];

/// What the last host says of itself that no other does, or does. With all but the last two of these it does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Odd {
    /// The version of its messages is 9.
    Protocol,
    /// It is Underpin 9.9.9.
    Version,
    /// A page takes one frame of its link.
    Frames,
    /// Its pages have 64 KiB.
    Pages,
    /// Guests may not use DC ZVA.
    Zeroed,
    /// Its cache lines have 16 bytes.
    Lines,
    /// Its counter has 1 GHz.
    Clock,
    /// Its CPUs have more features than others have, and lack some.
    Features,
    /// A control VM of it asks another host twice, and the first answer comes too late.
    Asks,
}

impl Odd {
    /// What the hypervisor is to change.
    fn change(self) -> fn(&mut Description) {
        match self {
            Self::Protocol => |own| own.protocol = 9,
            Self::Version => |own| own.version = 0x09_09_09.into(),
            Self::Frames => |own| own.frame_bytes = 4_270.into(),
            Self::Pages => |own| own.page_log2 = 16,
            Self::Zeroed => |own| own.zva_log2 = 0,
            Self::Lines => |own| own.cache_lines = 0x8442_c002.into(),
            Self::Clock => |own| own.clock_hz = 1_000_000_000.into(),
            // Its CPUs are others.
            Self::Features | Self::Asks => |_| {},
        }
    }
}

/// What makes a host what it is.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Its number.
    pub host: u8,
    /// Hosts that there are.
    pub hosts: u8,
    /// Another one at each start.
    pub seed: u64,
    /// In what the last of them differs.
    pub odd: Option<Odd>,
    /// What decides the VM over several hosts, if there is one.
    pub vm: Option<u64>,
    /// A page takes one frame of the link, on all hosts.
    pub is_jumbo: bool,
}

impl Birth {
    /// One of so many hosts that are alike, without a VM over several.
    pub const fn of(hosts: u8) -> Self {
        Self {
            host: 0,
            hosts,
            seed: 0,
            odd: None,
            vm: None,
            is_jumbo: false,
        }
    }

    /// Gives a machine the CPU features that the host has.
    fn settle_features(self, machine: &mut Machine, odd: Option<Odd>) {
        if self.seed.is_multiple_of(4) {
            machine.lose_aes();
        }
        if odd == Some(Odd::Features) {
            machine.differ();
        }
    }

    /// The VM, if this host has a share of it.
    fn plan(self) -> Option<Plan> {
        let reads_features = self.odd == Some(Odd::Features);
        let plan = self
            .vm
            .map(|seed| Plan::new(seed, self.hosts, reads_features));
        plan.filter(|plan| plan.hosts >> self.host & 1 != 0)
    }

    fn config(self, rng: &mut Rng) -> Config {
        Config {
            seed: rng.next(),
            cpus: 1 + rng.below(3) as usize,
            memory: MEMORY
                + MEMORY_EACH * usize::from(self.hosts).saturating_sub(3)
                + usize::from(self.is_jumbo) * MEMORY_JUMBO * usize::from(self.hosts),
            pause_every: 4 + rng.below(60),
            refused: 0,
            silent: 0,
            works_in_time: false,
        }
    }

    /// What draws moves of vCPUs and how many there are, in every second life with a VM over several hosts. Drawn apart, as it would
    /// change all that is drawn behind it.
    fn moves(self, plan: Option<&Plan>) -> Option<(Rng, u64)> {
        let plan = plan.filter(|_| self.vm.is_some_and(|vm| vm >> 1 & 1 == 0))?;
        Some((Rng::new(!self.seed), plan.vcpus()))
    }
}

/// The address of a host's card.
pub fn mac(host: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, host]
}

fn record(birth: Birth) -> ClusterRecord {
    let mut record = ClusterRecord::new_zeroed();
    (record.number, record.key) = (7, KEY);
    (record.host, record.hosts) = (birth.host, birth.hosts);
    record.mtu = if birth.is_jumbo { 9_000 } else { MTU_STANDARD };
    for host in 0..birth.hosts {
        record.macs[usize::from(host)] = mac(host);
        record.names[usize::from(host)] = Text::new(&format!("host{host}")).unwrap_or_default();
    }
    record
}

/// A message of any kind but those by which hosts join and leave and probes are answered, of any length. Of a request to the
/// host it has the rights of nobody. With `has_vm` it is none about a VM, which may end by that.
fn babble(rng: &mut Rng, has_vm: bool) -> Vec<u8> {
    let longest = if rng.below(2) == 0 { 48 } else { BULK_MAX };
    let length = 2 + rng.below(longest as u64 - 1);
    let mut message: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
    match message[0] {
        DESCRIPTION..=FAREWELL | PROBE | PROBED => message[0] = ASKED,
        kind if has_vm && kind != ANSWERED => message[0] = ASKED,
        _ => {}
    }
    if message[0] == ASKED {
        message[1] = 0;
    }
    message
}

/// What a machine's counter shows when it is switched on: it does not begin with its hypervisor.
fn offset(rng: &mut Rng) -> u64 {
    let bits = 20 + rng.below(20);
    rng.below(1 << bits)
}

/// Is that host until nobody wants it any more.
///
/// # Errors
/// What went wrong, which was reported, too.
pub fn be(birth: Birth) -> Result<(), String> {
    let mut rng = Rng::new(birth.seed);
    let config = birth.config(&mut rng);
    let offset = offset(&mut rng);
    let plan = birth.plan();
    let vm = plan.as_ref().map(|plan| (plan.record(), &plan.image[..]));
    let vm = vm.as_ref().map(|(record, image)| (record, *image));
    let bundle = bundle::of_host(&record(birth), vm);
    let range = (BUNDLE_AT.0, BUNDLE_AT.0 + bundle.len() as u64);
    let tree = tree::write((&config, 1), "zeroed=off", range);
    let tree = tree.map_err(|error| format!("no device tree: {error}"))?;
    // Standard output itself would write what is before the last newline apart.
    let output = io::stdout().as_fd().try_clone_to_owned();
    let output = output.map_err(|error| format!("no standard output: {error}"))?;
    let looks = Rc::new(Cell::new(0));
    let odd = birth.odd.filter(|_| birth.host + 1 == birth.hosts);
    let mut turns = Turns {
        birth,
        began: None,
        report: Report::default(),
        turn_steps: 0,
        probes: 0,
        drains: false,
        starts_vm: false,
        asks: (odd == Some(Odd::Asks)).then_some(false),
        moves: birth.moves(plan.as_ref()),
        looks: (0, Rc::clone(&looks)),
        stopped_at: None,
        rng,
        input: io::stdin().lock(),
        output: File::from(output),
    };
    let prepare = |machine: &mut Machine| {
        let placed = machine
            .fill(TREE_AT, &tree)
            .and(machine.fill(BUNDLE_AT, &bundle));
        let is_outside = placed.is_none();
        machine.violation = is_outside.then(|| "tree or bundle lie outside memory".into());
        machine.attach_card();
        birth.settle_features(machine, odd);
        if let Some(plan) = &plan {
            let witness = Witness::new(plan, birth.seed, Rc::clone(&looks));
            machine.observer = Some(Box::new(witness));
        }
        machine.time += offset;
        machine.limit = machine.time;
        TREE_AT.0
    };
    let entries = Entries {
        first: |tree| hypervisor::primary(tree, 0),
        other: || hypervisor::secondary(),
    };
    if let Some(odd) = odd {
        cluster::tell(odd.change());
    }
    let run = || machine::run(config, entries, prepare, |progress| turns.goes_on(progress));
    let ran = panic::catch_unwind(AssertUnwindSafe(run));
    if let Ok(ran) = ran {
        return ran;
    }
    let wrong = "the hypervisor has stopped by a bug of its own".to_owned();
    let rest = machine::with(|machine| std::mem::take(&mut machine.log));
    turns.report.log += &String::from_utf8_lossy(&rest);
    turns.report.wrong.clone_from(&wrong);
    let _ = turns.report.write(&mut turns.output);
    Err(wrong)
}

/// A host's turns.
struct Turns<'a> {
    birth: Birth,
    /// The count at its first turn.
    began: Option<u64>,
    /// What is reported next.
    report: Report,
    /// Steps when this turn began.
    turn_steps: u64,
    /// Messages of probes that are to begin.
    probes: u32,
    /// The host is to free itself of the VM, and to leave.
    drains: bool,
    /// The VM has ended, and is to be started.
    starts_vm: bool,
    /// A control VM is to ask another host twice; whether it has.
    asks: Option<bool>,
    /// What draws moves, and vCPUs that the VM has.
    moves: Option<(Rng, u64)>,
    /// What vCPUs had seen when that was looked at last, and have seen.
    looks: (u64, Rc<Cell<u64>>),
    /// Since when the host must not run what it shares.
    stopped_at: Option<u64>,
    rng: Rng,
    input: StdinLock<'a>,
    output: File,
}

impl Turns<'_> {
    /// Looks at what has happened; whether the host goes on.
    fn goes_on(&mut self, progress: Progress) -> bool {
        let (violation, has_reached) = machine::with(|machine| {
            let began = *self.began.get_or_insert(machine.limit);
            let time = machine.time.saturating_sub(began);
            while let Some(frame) = machine.take_frame() {
                self.report.frames.push((time, frame));
            }
            let log = take_lines(&mut machine.log);
            self.starts_vm |= !self.drains && guest::is_to_be_started(&log);
            self.report.log += &log;
            (self.report.at, self.report.steps) = (time, machine.steps);
            (machine.violation.take(), machine.time >= machine.limit)
        });
        let violation = violation.or_else(|| self.runs_on());
        let is_off = progress == Progress::Off;
        let is_idle = progress == Progress::Idle;
        let hangs = self.report.steps - self.turn_steps > STEPS_MAX;
        self.report.wrong = match violation {
            Some(what) => what,
            None if is_off || is_idle => format!("the machine has stopped: {progress:?}"),
            None if hangs => machine::with(|machine| machine.describe()),
            None => String::new(),
        };
        if !self.report.wrong.is_empty() {
            let _ = self.report.write(&mut self.output);
            return false;
        }
        !has_reached || self.reports()
    }

    /// Says that vCPUs of the VM over several hosts run, though this host has had time to stop them.
    fn runs_on(&mut self) -> Option<String> {
        let standing = cluster::standing()?;
        let now_ns = standing.now_ns;
        self.stopped_at = match self.stopped_at {
            _ if now_ns < standing.runs_until_ns => None,
            since => since.or(Some(now_ns)),
        };
        let seen = self.looks.1.get();
        let has_seen = std::mem::replace(&mut self.looks.0, seen) != seen;
        let since = self.stopped_at.filter(|_| has_seen)?;
        let runs_on = now_ns > since + STOPS_NS;
        runs_on.then(|| format!("runs what it shares {} ns too long", now_ns - since))
    }

    /// Lets a control VM ask the first host twice, once all hosts are in; says when the second answer has come.
    fn asks_host(&mut self) {
        let lives = self.report.standing.map_or([0; _], |it| it.lives);
        let are_in = lives[..usize::from(self.birth.hosts)]
            .iter()
            .all(|life| *life != 0);
        match self.asks {
            Some(false) if are_in => {
                outside::ask_host_twice(Text::new("host0").unwrap_or_default());
                self.asks = Some(true);
            }
            Some(true) => {
                let answers = guest::answers(&outside::told_asker());
                if answers.iter().any(|(tag, _)| *tag == 2) {
                    let _ = writeln!(self.report.log, "the asker is told: {answers:?}");
                    self.asks = None;
                }
            }
            _ => {}
        }
    }

    /// Reports and takes the next turn if no CPU is at the cluster; whether the host goes on.
    fn reports(&mut self) -> bool {
        self.report.standing = cluster::standing();
        if self.report.standing.is_none() && cluster::has_links() {
            return true;
        }
        if self.birth.odd == Some(Odd::Features) {
            self.report.features = cluster::features();
        }
        if matches!(outside::answer(), Some(Err(_))) || std::mem::take(&mut self.starts_vm) {
            // Until what is left of it has gone.
            outside::ask(Ask::Start(guest::name()));
        }
        self.asks_host();
        if self.drains {
            outside::ask_to_drain(guest::name());
        } else if let Some((rng, vcpus)) = &mut self.moves
            && rng.below(MOVE_ONE_IN) == 0
        {
            outside::ask_to_move(SpanMoveRequest {
                name: guest::name(),
                vcpu: rng.below(*vcpus) as u32,
                host: rng.below(self.birth.hosts.into()) as u32,
            });
        }
        let probes = std::mem::take(&mut self.probes);
        for host in (0..self.birth.hosts).filter(|host| *host != self.birth.host) {
            if self.rng.below(BABBLE_ONE_IN) == 0 || probes > 0 {
                cluster::say(host, &babble(&mut self.rng, self.birth.vm.is_some()));
            }
            if probes > 0 {
                cluster::probe(host, probes, true);
            }
        }
        self.report.goes_on_at = machine::with(|machine| {
            let at = machine.goes_on_at();
            let began = self.began.filter(|_| at != u64::MAX);
            at.saturating_sub(began.unwrap_or(0))
        });
        if self.report.write(&mut self.output).is_err() {
            return false;
        }
        self.report = Report::default();
        let Ok(Some(turn)) = Turn::read(&mut self.input) else {
            return false;
        };
        let began = self.began.unwrap_or(0);
        machine::with(|machine| {
            machine.time = machine.time.max(began + turn.at);
            machine.limit = began + turn.until;
            for frame in &turn.frames {
                machine.send_frame(frame);
            }
            self.turn_steps = machine.steps;
        });
        (self.probes, self.drains) = (turn.probes, turn.drains);
        true
    }
}
