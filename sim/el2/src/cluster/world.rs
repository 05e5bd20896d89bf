//! Hosts and the network in virtual time. Each host runs until the others' frames could reach it, and no further.

use super::guest;
use super::judge::{self, Numbers, Seen, View};
use super::network::{self, Network, Sent};
use super::pipe::{Report, Turn};
use super::{Birth, Life, MS, Odd};
use clap::ValueEnum;
use hypervisor::outside::cluster::{Features, Standing};
use machine_host::machine::FREQUENCY;
use machine_host::rng::Rng;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::BufReader;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The most that a host's clock is wrong, in parts per million (`model_membership::DRIFT_PPM`).
const DRIFT_PPM: u64 = 100;
const MILLION: u128 = 1_000_000;
/// Nanoseconds of a second, times a million.
const SECOND: u128 = 1_000_000_000 * MILLION;

/// A host's process, which ends with this.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(birth: Birth) -> Result<Self, String> {
        let failed = |error| format!("cannot start a host: {error}");
        let own = std::env::current_exe().map_err(failed)?;
        let odd = birth.odd.as_ref().and_then(ValueEnum::to_possible_value);
        let odd = odd.map(|value| format!("--odd={}", value.get_name()));
        let mut child = Command::new(own)
            .args(odd)
            .args(["--host", &birth.host.to_string()])
            .args(["--hosts", &birth.hosts.to_string()])
            .args(["--seed", &birth.seed.to_string()])
            .args(birth.vm.map(|seed| format!("--vm={seed}")))
            .args(birth.is_jumbo.then_some("--jumbo"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else {
            return Err("a host has no pipes".into());
        };
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host, from its first start on.
struct Host {
    process: Option<Process>,
    /// When it is started again, where it has crashed.
    starts_at: u64,
    /// How often it was started, and when last.
    starts: u64,
    born: u64,
    /// Parts of a million that its clock shows of a million.
    rate: u128,
    /// It does nothing until then.
    stalled_until: u64,
    /// When it goes on by itself.
    goes_on_at: u64,
    /// Frames that have come while it stood still.
    waiting: Vec<Vec<u8>>,
    probes: u32,
    /// The last frame that a host has sent it.
    heard: Vec<u8>,
    standing: Option<Standing>,
    /// Features that it has, and those in common, where a host differs in them.
    features: Option<[Features; 2]>,
    /// When it stood so.
    seen_at: u64,
    past: Vec<View>,
    /// How often the VM over several hosts is still to run to its end here.
    awaited: u32,
    /// Whether it runs here.
    runs: bool,
    /// It is to leave, or has left.
    drains: bool,
}

impl Host {
    /// Counts of its clock from its start until `now`.
    fn counts(&self, now: u64) -> u64 {
        let ns = u128::from(now.saturating_sub(self.born));
        (ns * u128::from(FREQUENCY) * self.rate / SECOND) as u64
    }

    /// When its clock shows so many counts.
    fn time(&self, counts: u64) -> u64 {
        let ns = (u128::from(counts) * SECOND).div_ceil(u128::from(FREQUENCY) * self.rate);
        u64::try_from(ns).map_or(u64::MAX, |ns| self.born.saturating_add(ns))
    }

    /// When it next does something.
    fn acts_at(&self) -> u64 {
        if self.process.is_none() {
            return self.starts_at;
        }
        let has_mail = !self.waiting.is_empty() || self.probes > 0;
        let at = if has_mail { 0 } else { self.goes_on_at };
        at.max(self.stalled_until)
    }

    fn seen(&self, now: u64) -> Option<Seen<'_>> {
        let standing = self.standing.as_ref().filter(|_| self.process.is_some())?;
        let passed = u128::from(now.saturating_sub(self.seen_at)) * self.rate / MILLION;
        Some(Seen {
            standing,
            clock_ns: standing.now_ns + passed as u64,
            past: &self.past,
        })
    }

    /// Lives that hosts have left on purpose are in no membership.
    fn forget(&mut self, left: &[u64]) {
        let standing = self.standing.iter_mut().map(|it| &mut it.lives);
        let past = self.past.iter_mut().map(|(_, lives)| lives);
        for lives in standing.chain(past) {
            *lives = judge::without(left, *lives);
        }
    }

    /// Takes a turn from `now` to `until`, of which [`Self::report`] is the end.
    fn turn(&mut self, now: u64, until: u64) -> Result<(), String> {
        let turn = Turn {
            at: self.counts(now),
            until: self.counts(until),
            frames: std::mem::take(&mut self.waiting),
            probes: std::mem::take(&mut self.probes),
            drains: self.drains,
        };
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let written = turn.write(&mut process.input);
        written.map_err(|error| format!("takes no turn: {error}"))
    }

    fn report(
        &mut self,
        number: usize,
        now: u64,
        (left, trace): (&mut Vec<u64>, &mut u64),
    ) -> Result<Report, String> {
        let Some(process) = &mut self.process else {
            return Err("is not there".into());
        };
        let report = Report::read(&mut process.output, trace);
        let mut report = report.map_err(|error| format!("has ended: {error}"))?;
        self.goes_on_at = match report.goes_on_at {
            u64::MAX => u64::MAX,
            counts => self.time(counts).max(now),
        };
        if let Some(it) = report.standing.filter(|it| it.retired != 0)
            && !left.contains(&it.retired)
        {
            left.push(it.retired);
        }
        if let Some(it) = &mut report.standing {
            it.lives = judge::without(left, it.lives);
        }
        let view = |it: &Standing| (it.id, it.lives);
        let views = (self.standing.as_ref(), report.standing.as_ref());
        if let (Some(before), Some(after)) = views
            && !judge::may_follow(number, view(before), view(after))
        {
            return Err(format!("keeps a life that it has left: {views:?}"));
        }
        self.standing = report.standing;
        self.features = report.features;
        self.seen_at = now;
        if let Some(it) = report.standing.filter(|it| it.id != 0)
            && self.past.last() != Some(&view(&it))
        {
            self.past.push(view(&it));
        }
        Ok(report)
    }
}

/// Hosts and frames that are on their way.
pub struct World {
    /// The time, in nanoseconds.
    pub now: u64,
    quantum_ns: u64,
    hosts: Vec<Host>,
    /// Of each host, but for its number and its seed.
    birth: Birth,
    /// By arrival, and by the order in which they were sent.
    flying: BTreeMap<(u64, u64), (usize, Sent)>,
    /// Lives that hosts have left on purpose.
    left: Vec<u64>,
    numbers: Numbers,
    rng: Rng,
    life: Life,
}

impl World {
    /// So many hosts, which are started one after the other; the last may be odd, and a VM may span two of them. No frame
    /// arrives sooner than `latency_ns`.
    pub fn new(rng: &mut Rng, birth: Birth, latency_ns: u64) -> Self {
        let host = |_| Host {
            process: None,
            starts_at: rng.below(500 * MS),
            starts: 0,
            born: 0,
            rate: MILLION + u128::from(rng.below(2 * DRIFT_PPM + 1)) - u128::from(DRIFT_PPM),
            stalled_until: 0,
            goes_on_at: 0,
            waiting: Vec::new(),
            probes: 0,
            heard: Vec::new(),
            standing: None,
            features: None,
            seen_at: 0,
            past: Vec::new(),
            awaited: 0,
            runs: false,
            drains: false,
        };
        let hosts = (0..birth.hosts).map(host).collect();
        Self {
            now: 0,
            quantum_ns: latency_ns,
            hosts,
            birth,
            flying: BTreeMap::new(),
            left: Vec::new(),
            numbers: Numbers::default(),
            rng: Rng::new(rng.next()),
            life: Life::default(),
        }
    }

    /// Lets time pass until then.
    ///
    /// # Errors
    /// What has gone wrong.
    pub fn run(
        &mut self,
        until: u64,
        network: &mut Network,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        while self.now < until {
            let next = self.hosts.iter().map(Host::acts_at).min();
            let arrival = self.flying.keys().next().map(|(at, _)| *at);
            let begin = next.into_iter().chain(arrival).min().unwrap_or(u64::MAX);
            let begin = begin.max(self.now);
            if begin >= until {
                self.now = until;
                break;
            }
            while let Some(entry) = self.flying.first_entry() {
                if entry.key().0 > begin {
                    break;
                }
                let (to, sent) = entry.remove();
                if self.hosts[to].process.is_some() {
                    self.hosts[to].waiting.push(sent.frame);
                }
            }
            // What arrives meanwhile waits for the next turn.
            let end = until.min(begin + self.quantum_ns);
            self.turns(begin, end, network, log)?;
            self.now = end;
            let seen: Vec<_> = self.hosts.iter().map(|host| host.seen(end)).collect();
            judge::check(&seen).map_err(|what| format!("after {} ms: {what}", end / MS))?;
        }
        Ok(())
    }

    /// Lets hosts that have something to do run from `begin` to `end`, all at the same time.
    fn turns(
        &mut self,
        begin: u64,
        end: u64,
        network: &mut Network,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), String> {
        let of = |host: usize, what: String| format!("after {} ms: host{host} {what}", end / MS);
        let acts = |host: &Host| host.acts_at() < end;
        let active: Vec<usize> = (0..self.hosts.len())
            .filter(|host| acts(&self.hosts[*host]))
            .collect();
        for &number in &active {
            self.start_if_off(number, begin)?;
            let turned = self.hosts[number].turn(begin, end);
            turned.map_err(|what| of(number, what))?;
        }
        for &number in &active {
            let host = &mut self.hosts[number];
            let before = host.past.len();
            let left = self.left.len();
            let sums = (&mut self.left, &mut self.life.trace);
            let report = host.report(number, end, sums);
            let report = report.map_err(|what| of(number, what))?;
            if let Some(it) = report.standing {
                let lived = self.numbers.lived(number, host.starts, it.lives[number]);
                lived.map_err(|what| of(number, what))?;
            }
            self.life.entered += (host.past.len() - before) as u64;
            self.life.turns += 1;
            for line in report.log.lines() {
                self.hear(number, line).map_err(|what| of(number, what))?;
                log(&format!("{} ms, host{number}: {line}\n", end / MS));
            }
            if !report.wrong.is_empty() {
                return Err(of(
                    number,
                    format!("goes wrong: {}{}", report.wrong, report.log),
                ));
            }
            if self.left.len() > left {
                let left = &self.left;
                self.hosts.iter_mut().for_each(|host| host.forget(left));
            }
            for (counts, frame) in report.frames {
                let sent = self.hosts[number].time(counts);
                self.send(number, (sent, end), &frame, network)
                    .map_err(|what| of(number, what))?;
            }
        }
        Ok(())
    }

    /// A host has sent a frame; no copy of it arrives before `end`.
    fn send(
        &mut self,
        from: usize,
        (sent, end): (u64, u64),
        frame: &[u8],
        network: &mut Network,
    ) -> Result<(), String> {
        self.numbers.sent(from, self.hosts[from].starts, frame)?;
        let to =
            (0..self.hosts.len()).find(|host| frame.starts_with(&super::host::mac(*host as u8)));
        let to = to.ok_or("sends a frame to nobody")?;
        self.life.frames += 1;
        self.life.longest = self.life.longest.max(frame.len());
        frame.clone_into(&mut self.hosts[to].heard);
        for (number, (late, copy)) in (0..).zip(network.copies(from, to, frame)) {
            let at = sent.saturating_add(late).max(end);
            let order = 2 * self.life.frames + number;
            self.flying.insert((at, order), (to, copy));
        }
        Ok(())
    }

    fn start_if_off(&mut self, number: usize, now: u64) -> Result<(), String> {
        let host = &mut self.hosts[number];
        if host.process.is_some() {
            return Ok(());
        }
        let process = Process::start(Birth {
            host: number as u8,
            seed: self.rng.next(),
            ..self.birth
        })?;
        host.process = Some(process);
        host.starts += 1;
        (host.born, host.goes_on_at) = (now, now);
        host.past.clear();
        self.life.starts += 1;
        let sums = (&mut self.left, &mut self.life.trace);
        host.report(number, now, sums).map(drop)
    }

    /// A host crashes, and comes back at a time.
    pub fn crash(&mut self, host: usize, until: u64) {
        let host = &mut self.hosts[host];
        host.process = None;
        (host.starts_at, host.stalled_until) = (until, 0);
        (host.standing, host.probes, host.runs) = (None, 0, false);
        host.waiting.clear();
    }

    /// A host does nothing until a time, and its clock goes on.
    pub fn stall(&mut self, host: usize, until: u64) {
        self.hosts[host].stalled_until = until;
    }

    /// Hosts that crashed come back, and those that stand still go on.
    pub fn start_all(&mut self) {
        for host in &mut self.hosts {
            host.starts_at = host.starts_at.min(self.now);
            host.stalled_until = 0;
        }
    }

    /// Whether all hosts are in one membership, and run.
    pub fn is_one(&self) -> bool {
        self.are_one_but(None, true)
    }

    /// Whether that is so of all but the last, and it is alone.
    pub fn is_last_alone(&self) -> bool {
        let Some((host, others)) = self.hosts.split_last() else {
            return false;
        };
        let knows = |it: Standing| it.lives[..others.len()].iter().any(|life| *life != 0);
        host.standing.is_some_and(|it| !knows(it)) && self.are_one_but(Some(others.len()), true)
    }

    /// Whether every host knows what all have in common: the least of each field that some lack, and the rest as it is.
    pub fn have_common(&self) -> bool {
        let features = || self.hosts.iter().filter_map(|host| host.features);
        let Some([first, _]) = features().next() else {
            return false;
        };
        let mut least = first;
        for (n, word) in features().flat_map(|[own, _]| (0..).zip(own)) {
            let field = |shift: u32| (least[n] & 0xf << shift).min(word & 0xf << shift);
            least[n] = (0..64).step_by(4).map(field).sum();
        }
        features().any(|[own, _]| own != first) && features().all(|[_, common]| common == least)
    }

    /// What the VM over several hosts is made by.
    fn plan(&self) -> Option<guest::Plan> {
        let hosts = self.hosts.len() as u8;
        let reads_features = self.birth.odd == Some(Odd::Features);
        self.birth
            .vm
            .map(|seed| guest::Plan::new(seed, hosts, reads_features))
    }

    /// Lets the last host of the VM over several free itself of it and leave, if there is such a VM; which one.
    pub fn drain(&mut self) -> Option<usize> {
        let last = self.plan()?.hosts.ilog2() as usize;
        self.hosts[last].drains = true;
        Some(last)
    }

    /// How often the VM over several hosts has come to its end on a host.
    pub fn whole(&self) -> u64 {
        self.life.whole
    }

    /// Whether that host has left, and all others go on without it.
    pub fn has_left(&self, host: usize) -> bool {
        self.hosts[host].standing.is_some_and(|it| it.has_left)
    }

    /// Whether all hosts but `out` are with each other, nobody else is, and they run; with `is_same`, in one membership.
    pub fn are_one_but(&self, out: Option<usize>, is_same: bool) -> bool {
        let Some((id, lives)) = self.view() else {
            return false;
        };
        let is_meant = |number: usize| number < self.hosts.len() && Some(number) != out;
        let are_with = (0..lives.len()).all(|number| (lives[number] != 0) == is_meant(number));
        let is_in = |host: &Host| {
            host.seen(self.now).is_some_and(|seen| {
                let it = seen.standing;
                seen.runs() && it.lives == lives && (it.id == id || !is_same)
            })
        };
        let mut hosts = self.hosts.iter().enumerate();
        are_with && hosts.all(|(number, host)| !is_meant(number) || is_in(host))
    }

    /// The membership of the first host.
    pub fn view(&self) -> Option<View> {
        self.hosts[0].standing.map(|it| (it.id, it.lives))
    }

    /// Frames that the first host has taken off its card.
    pub fn taken(&self) -> u64 {
        self.hosts[0].standing.map_or(0, |it| it.taken)
    }

    /// Damaged copies that are on their way do not arrive, nor second ones where `repeats`: hosts would count them with the frames
    /// that they did not hear.
    pub fn lose_damaged(&mut self, repeats: bool) {
        let is_lost = |sent: &Sent| sent.is_damaged || repeats && sent.is_repeat;
        self.flying.retain(|_, (_, sent)| !is_lost(sent));
    }

    /// Frames that hosts had no token or no room for, or that came too late, in their present starts.
    pub fn unheard(&self) -> u64 {
        let standings = self.hosts.iter().filter_map(|host| host.standing);
        standings.map(|it| it.unheard).sum()
    }

    /// Each host asks each other one for so many messages back.
    pub fn probe_all(&mut self, messages: u32) {
        self.hosts
            .iter_mut()
            .for_each(|host| host.probes = messages);
    }

    /// Whether all of them have come as they were.
    pub fn are_probed(&self) -> bool {
        let all = (1_u16 << self.hosts.len()) - 1;
        let others = |n: usize| all & !(1 << n);
        let mut hosts = self.hosts.iter().enumerate();
        hosts.all(|(n, host)| host.standing.is_some_and(|it| it.probed == others(n)))
    }

    /// Somebody without the key sends the first host a frame every so many nanoseconds, until then.
    pub fn flood(&mut self, every_ns: u64, until: u64) {
        let to = &super::host::mac(0);
        for n in 0..(until - self.now) / every_ns {
            let sent = Sent {
                frame: network::strange(&mut self.rng, to, &self.hosts[0].heard),
                is_damaged: true,
                is_repeat: false,
            };
            let at = self.now + n * every_ns;
            self.flying.insert((at, u64::MAX), (0, sent));
        }
    }

    /// From now on the VM over several hosts is to run to its end on each of them.
    pub fn await_vm(&mut self) {
        let plan = self.plan();
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let has_share = plan.as_ref().is_some_and(|it| it.hosts >> number & 1 != 0);
            host.awaited = u32::from(has_share) * 2;
        }
    }

    /// Whether it has, a second time on each so that one began meanwhile.
    pub fn vm_goes_on(&self) -> bool {
        self.hosts.iter().all(|host| host.awaited == 0)
    }

    /// A host has written a line to its log.
    fn hear(&mut self, number: usize, line: &str) -> Result<(), String> {
        self.life.moved += u64::from(guest::has_come(line));
        self.hosts[number].runs |= guest::has_begun(line);
        let ended = guest::ended(line);
        self.hosts[number].runs &= ended.is_none();
        match ended {
            None => {}
            Some("reset") => {
                let awaited = &mut self.hosts[number].awaited;
                *awaited = awaited.saturating_sub(1);
                self.life.whole += 1;
            }
            Some(why) if guest::is_of_loss(why) => self.life.lost += 1,
            Some(why) if guest::is_of_drain(why) && self.hosts[number].drains => {
                self.life.drained += 1;
                let hosts = self.hosts.iter_mut().enumerate();
                for (_, host) in hosts.filter(|(other, _)| *other != number) {
                    // It may have come to its end already, and cannot begin again.
                    host.awaited = u32::from(host.runs);
                }
            }
            Some(why) => return Err(format!("has ended the VM: {why}")),
        }
        Ok(())
    }

    /// How all hosts stand.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (n, host) in self.hosts.iter().enumerate() {
            let seen = host.seen(self.now);
            let _ = write!(text, "host{n} at {} ms: {seen:?}; ", self.now / MS);
        }
        text
    }

    /// Ends all hosts; what was counted.
    pub fn end(mut self) -> Life {
        self.life.ms = self.now / MS;
        self.life
    }
}
