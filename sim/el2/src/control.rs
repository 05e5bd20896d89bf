//! Whoever asks the hypervisor through its control port: requests at moments that a seed names, and what they are answered
//! held against a model of which VMs there are and how each may stand.

mod asking;

use crate::bundle::{self, Vm};
use crate::flat::Said;
use crate::scene::Scene;
use crate::stands::{Freedom, Stand, Stands};
use abi::bundle::{VM_AUTOSTART, VmRecord};
use abi::control::{
    CpuStatus, FrameHeader, MAGIC, MachineStatus, NodeStatus, REPLY, RawVm, RecountStatus,
    ReplyHeader, SetRequest, VERSION, VmName, code, event, request,
};
use machine_host::machine;
use machine_host::rng::Rng;
use std::collections::VecDeque;
use zerocopy::FromBytes;

const HEADER: usize = size_of::<FrameHeader>();
/// Requests that are not answered yet, at most; and where nobody takes answers now and then: more than the port has buffers.
const AT_ONCE: [usize; 2] = [3, 40];
/// Steps between two requests, at most.
const PAUSE: u64 = 4000;
/// What is known of a VM.
pub struct Known {
    name: VmName,
    record: VmRecord,
    /// `None`: nobody has described it.
    stands: Option<Stands>,
    /// How often it was started, at least and at most.
    starts: (u32, u32),
    /// Requests that ended it, and resets.
    kills: u32,
    resets: u32,
    /// How often its guest had come to its end when a start of it was heard of last, and whether one was since.
    ends: u32,
    has_started: bool,
    /// Memory was asked of it.
    may_owe: bool,
    /// Somebody has asked to end it.
    pub may_be_ended: bool,
    /// Somebody has asked to let it go on, or to end it, since it was last asked to stand still.
    is_to_go_on: bool,
}

/// A request that is not answered yet.
struct Asked {
    kind: u32,
    tag: u32,
    /// The VM that it names, if there is to be one of that name.
    vm: Option<usize>,
    /// It names a VM at all.
    names: bool,
    what: What,
}

/// What else a request says.
enum What {
    Nothing,
    Malformed,
    /// The description of a VM, which may be an impossible one.
    Create(Box<VmRecord>, bool),
    /// A change, and whether that is possible.
    Set(Box<SetRequest>, bool),
    Move(bool),
}

/// How far whoever asks has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There are requests left.
    Asks,
    /// All VMs are to end.
    Winds,
    /// Frames are counted, from that one on.
    Counts(u64),
    /// The machine is to go off.
    SwitchesOff,
    /// Nothing is left.
    Done,
}

/// Whoever asks.
pub struct Control {
    rng: Rng,
    vms: Vec<Vm>,
    /// The model, by VM.
    pub known: Vec<Known>,
    nodes: usize,
    cpus: usize,
    is_short: bool,
    at_once: usize,
    /// Whether there is a port.
    has_port: bool,
    left: u64,
    not_before: u64,
    asked: VecDeque<Asked>,
    heard: Vec<u8>,
    tag: u32,
    /// How far it has come.
    pub phase: Phase,
    /// What was asked and answered, for people.
    pub told: Option<Vec<String>>,
}

impl Control {
    /// Whoever asks on this scene's machine.
    pub fn new(scene: &Scene, seed: u64) -> Self {
        let is_short = scene.faults.allocations > 0;
        let known = |(number, vm): (usize, &Vm)| {
            let record = bundle::record(vm, &scene.vms);
            let is_there = number < scene.in_bundle;
            let starts = u32::from(is_there);
            Known {
                name: record.name,
                record,
                stands: is_there.then(|| match Stands::only(Stand::Running) {
                    // Memory may be short at once.
                    stands if is_short => stands.or(Stand::Ended),
                    stands => stands,
                }),
                starts: (if is_short { 0 } else { starts }, starts),
                kills: 0,
                ends: 0,
                has_started: false,
                resets: 0,
                may_owe: false,
                may_be_ended: false,
                is_to_go_on: false,
            }
        };
        Self {
            rng: Rng::new(!seed),
            known: scene.vms.iter().enumerate().map(known).collect(),
            vms: scene.vms.clone(),
            nodes: scene.nodes,
            cpus: scene.config.cpus - scene.config.refused.count_ones() as usize,
            is_short,
            at_once: AT_ONCE[usize::from(scene.naps)],
            has_port: scene.requests.is_some(),
            left: scene.requests.unwrap_or(0),
            not_before: 0,
            asked: VecDeque::new(),
            heard: Vec::new(),
            tag: 0,
            phase: Phase::Asks,
            told: None,
        }
    }

    /// Whether nothing that it asked is open.
    pub fn is_quiet(&self) -> bool {
        self.asked.is_empty()
    }

    /// The number of VMs that there are.
    pub fn count(&self) -> usize {
        self.known.iter().filter(|vm| vm.stands.is_some()).count()
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(told) = &mut self.told {
            told.push(what());
        }
    }

    /// Hears what has come, and asks what it is time for; `false` where nothing has come. `rests`: nobody else does anything.
    pub fn go_on(&mut self, steps: u64, rests: bool, said: &[Said]) -> Result<bool, String> {
        if !self.has_port {
            self.phase = self.phase.max_with(Phase::Winds);
            return Ok(false);
        }
        // An answer is heard later than it was given, and what its guest says meanwhile is of the next start.
        for (vm, said) in said.iter().enumerate().filter(|(_, said)| said.is_done) {
            let freedom = self.freedom(vm, *said);
            let stands = &mut self.known[vm].stands;
            if let Some(stands) = stands {
                stands.pass(freedom);
            }
        }
        while let Some(bytes) = machine::with(machine::Machine::hear) {
            self.heard.extend(bytes);
        }
        let mut heard = false;
        while let Some((header, payload)) = self.next_frame()? {
            heard = true;
            self.hear(header, &payload, said)?;
        }
        for (known, said) in self.known.iter_mut().zip(said) {
            if std::mem::take(&mut known.has_started) {
                known.ends = said.ends;
            }
        }
        if self.left > 0 && self.asked.len() < self.at_once && (rests || steps >= self.not_before) {
            self.left -= 1;
            self.not_before = steps + self.rng.below(PAUSE);
            self.ask_something();
            heard = true;
        }
        if self.left == 0 && self.asked.is_empty() {
            self.phase = self.phase.max_with(Phase::Winds);
        }
        Ok(heard)
    }

    /// The next whole frame that has come.
    fn next_frame(&mut self) -> Result<Option<(FrameHeader, Vec<u8>)>, String> {
        let Ok((header, rest)) = FrameHeader::read_from_prefix(&self.heard) else {
            return Ok(None);
        };
        if header.magic != MAGIC {
            return Err(format!("EL2 sends {header:?}, which is no frame"));
        }
        let length = header.length as usize;
        if rest.len() < length {
            return Ok(None);
        }
        let payload = rest[..length].to_vec();
        self.heard.drain(..HEADER + length);
        Ok(Some((header, payload)))
    }

    fn freedom(&self, vm: usize, said: Said) -> Freedom {
        // Several answers can be heard at once: by then the guest of a start that is not heard of may have begun.
        let has_ended = said.ends > self.known[vm].ends;
        Freedom {
            may_end: said.is_done || has_ended,
            restarts: self.vms[vm].restarts,
            may_owe: self.known[vm].may_owe,
            is_alone: self.known[vm].record.is_alone(),
            is_short: self.is_short,
        }
    }

    /// Takes a frame of EL2's.
    fn hear(&mut self, header: FrameHeader, payload: &[u8], said: &[Said]) -> Result<(), String> {
        let of_vm = |name: &VmName| self.known.iter().any(|vm| vm.name == *name);
        match header.kind {
            event::STATE => {
                let raw = RawVm::read_from_bytes(payload);
                let is_known = raw.is_ok_and(|raw| of_vm(&raw.name));
                return is_known
                    .then_some(())
                    .ok_or("a state of no VM is told".into());
            }
            event::CONSOLE_OUTPUT => {
                let output = VmName::read_from_prefix(payload);
                let is_right = output.is_ok_and(|(name, bytes)| {
                    of_vm(&name) && bytes.iter().all(|byte| (b'a'..b'd').contains(byte))
                });
                return is_right
                    .then_some(())
                    .ok_or_else(|| format!("console output that no guest wrote: {payload:x?}"));
            }
            _ => {}
        }
        let asked = self
            .asked
            .pop_front()
            .filter(|asked| (asked.kind | REPLY, asked.tag) == (header.kind, header.tag))
            .ok_or_else(|| format!("{header:?} answers nothing that was asked next"))?;
        let (reply, rest) = ReplyHeader::read_from_prefix(payload)
            .map_err(|_| format!("an answer of {} bytes", payload.len()))?;
        self.tell(|| format!("number {} is answered {}", header.tag, reply.code));
        let wrong = self.check(&asked, reply, rest, said).err();
        wrong.map_or(Ok(()), |what| {
            let name = asked.vm.map_or_else(String::new, |vm| format!(" vm{vm}"));
            let stands = asked.vm.map(|vm| &self.known[vm].stands);
            Err(format!(
                "request {}{name} is answered {} ({}): {what}; {stands:?}",
                asked.kind,
                reply.code,
                String::from_utf8_lossy(&rest[..rest.len().min(200)])
            ))
        })
    }

    /// What is wrong with an answer.
    fn check(
        &mut self,
        asked: &Asked,
        reply: ReplyHeader,
        records: &[u8],
        said: &[Said],
    ) -> Result<(), String> {
        let must = |right: bool, what: &str| right.then_some(()).ok_or_else(|| what.to_owned());
        if self.is_short && records.starts_with(b"no memory left to answer") {
            // Nobody has looked at it.
            return must(reply.code == code::NO_MEMORY, "it was not looked at");
        }
        if matches!(asked.what, What::Malformed) {
            return must(reply.code == code::MALFORMED, "it was malformed");
        }
        let is_there = asked.vm.is_some_and(|vm| self.known[vm].stands.is_some());
        if asked.names && !is_there {
            return must(reply.code == code::NO_SUCH_VM, "there is no such VM");
        }
        if let Some(vm) = asked.vm {
            let freedom = self.freedom(vm, said[vm]);
            if let Some(stands) = &mut self.known[vm].stands {
                stands.pass(freedom);
            }
            if reply.code == code::OK && [request::START, request::RESET].contains(&asked.kind) {
                self.known[vm].has_started = true;
            }
            return match &asked.what {
                What::Create(record, is_possible) => {
                    self.check_create(vm, record, *is_possible, reply.code)
                }
                What::Set(set, is_possible) => self.check_set(vm, set, *is_possible, reply.code),
                _ => self.check_about(vm, asked, (reply, records), freedom),
            };
        }
        self.check_machine(asked.kind, reply, records)
    }

    fn check_create(
        &mut self,
        vm: usize,
        record: &VmRecord,
        is_possible: bool,
        answer: u32,
    ) -> Result<(), String> {
        let known = &mut self.known[vm];
        let starts = record.flags & VM_AUTOSTART != 0;
        let is_right = match (is_possible, known.stands.is_some(), answer) {
            (false, _, code::IMPOSSIBLE) | (true, true, code::EXISTS) => true,
            (true, false, code::OK) => {
                known.record = *record;
                known.starts = (starts.into(), starts.into());
                let stand = if starts {
                    Stand::Running
                } else {
                    Stand::Defined
                };
                known.stands = Some(Stands::only(stand));
                true
            }
            (true, false, _) if starts && self.is_short => {
                known.record = *record;
                known.stands = Some(Stands::only(Stand::Ended));
                true
            }
            _ => false,
        };
        is_right
            .then_some(())
            .ok_or_else(|| "a VM is described".into())
    }

    fn check_set(
        &mut self,
        vm: usize,
        set: &SetRequest,
        is_possible: bool,
        answer: u32,
    ) -> Result<(), String> {
        let known = &mut self.known[vm];
        let changed = set.applied_to(&known.record).unwrap_or(known.record);
        // Only of a VM that does not run.
        let stands_still = changed.group != known.record.group;
        let wrong = || Err("a description changes".to_owned());
        let Some(stands) = &mut known.stands else {
            return wrong();
        };
        let is_right = match (is_possible, answer) {
            (false, code::IMPOSSIBLE) => return Ok(()),
            (true, code::OK) => !stands_still || stands.keep(|it| it.is_there() != Some(true)),
            (true, code::WRONG_STATE) => {
                let fits = stands_still && stands.keep(|it| it.is_there() != Some(false));
                return if fits { Ok(()) } else { wrong() };
            }
            _ => false,
        };
        if !is_right {
            return wrong();
        }
        known.record = changed;
        Ok(())
    }

    /// Of a request about a VM that there is.
    fn check_about(
        &mut self,
        vm: usize,
        asked: &Asked,
        (reply, records): (ReplyHeader, &[u8]),
        freedom: Freedom,
    ) -> Result<(), String> {
        let known = &mut self.known[vm];
        let Some(stands) = &mut known.stands else {
            return Err("nobody has described it".into());
        };
        let there = |what: Option<bool>| move |it: Stand| it.is_there() != Some(what != Some(true));
        let fits = match asked.kind {
            request::LIST => {
                let raw = RawVm::read_from_bytes(records);
                let raw = raw.map_err(|_| format!("a record of {} bytes", records.len()))?;
                return known.fits(&raw, freedom);
            }
            request::SHOW => match reply.count {
                0 => reply.code == code::OK && stands.keep(there(Some(false))),
                count => count == known.record.vcpus && stands.keep(there(Some(true))),
            },
            request::PAGES | request::PAGE_COUNTS | request::CONSOLE_INPUT | request::NUMA_MOVE => {
                let is_possible = !matches!(asked.what, What::Move(false));
                match reply.code {
                    code::OK => is_possible && stands.keep(there(Some(true))),
                    code::IMPOSSIBLE => !is_possible && stands.keep(there(Some(true))),
                    other => other == code::WRONG_STATE && stands.keep(there(Some(false))),
                }
            }
            kind => stands.answered(kind, reply.code, freedom),
        };
        if reply.code == code::OK {
            match asked.kind {
                request::START => known.starts = (known.starts.0 + 1, known.starts.1 + 1),
                request::RECLAIM => known.may_owe = true,
                request::RESET if freedom.restarts => known.starts.1 += 1,
                _ => {}
            }
            known.kills += u32::from(asked.kind == request::KILL);
            known.resets += u32::from(asked.kind == request::RESET);
        }
        fits.then_some(())
            .ok_or_else(|| "it does not stand so".into())
    }

    fn check_machine(
        &mut self,
        kind: u32,
        reply: ReplyHeader,
        records: &[u8],
    ) -> Result<(), String> {
        let count = reply.count as usize;
        let is_right = match kind {
            request::HELLO => {
                let status = MachineStatus::read_from_bytes(records);
                let status = status.map_err(|_| format!("{} bytes", records.len()))?;
                status.version == VERSION
                    && status.vms as usize == self.count()
                    && status.nodes as usize == self.nodes
                    && status.cpus as usize == self.cpus
                    && status.memory_free < status.memory
            }
            request::LIST => return self.check_list(records),
            request::NODES => {
                let nodes = <[NodeStatus]>::ref_from_bytes(records).unwrap_or(&[]);
                nodes.len() == self.nodes && nodes.iter().all(|node| node.free <= node.memory)
            }
            request::CPUS => count == self.cpus && records.len() == count * size_of::<CpuStatus>(),
            request::REGIONS => count == 0,
            request::TRACE => reply.code == code::OK || self.is_short,
            // A CPU that has noted nothing, or no event of that number yet.
            request::EVENTS => return Ok(()),
            request::RECOUNT => return self.check_recount(records),
            request::POWER_OFF => false,
            _ => true,
        };
        let is_right = is_right && (reply.code == code::OK || self.is_short);
        is_right
            .then_some(())
            .ok_or_else(|| format!("not so of this machine: {reply:?}"))
    }

    fn check_list(&mut self, records: &[u8]) -> Result<(), String> {
        let all = <[RawVm]>::ref_from_bytes(records)
            .map_err(|_| format!("{} bytes of records", records.len()))?;
        if all.len() != self.count() {
            return Err(format!("{} VMs of {}", all.len(), self.count()));
        }
        for raw in all {
            let place = self.known.iter().position(|known| known.name == raw.name);
            let vm = place.ok_or_else(|| format!("there is no VM {}", raw.name))?;
            // What its guest has done meanwhile is left open.
            let freedom = Freedom {
                may_end: true,
                restarts: self.vms[vm].restarts,
                may_owe: self.known[vm].may_owe,
                is_alone: true,
                is_short: self.is_short,
            };
            let known = &mut self.known[vm];
            let Some(stands) = &mut known.stands else {
                return Err(format!("{} was described by nobody", raw.name));
            };
            let mut copy = stands.clone();
            copy.pass(freedom);
            if !copy.may(|stand| stand.is_said(raw.state)) {
                return Err(format!("{} does not stand as {}", raw.name, raw.state));
            }
        }
        Ok(())
    }

    fn check_recount(&mut self, records: &[u8]) -> Result<(), String> {
        let status = RecountStatus::read_from_bytes(records);
        let status = status.map_err(|_| format!("{} bytes", records.len()))?;
        if !matches!(self.phase, Phase::Counts(_)) {
            return Ok(());
        }
        if status.lost + status.unequal > 0 {
            return Err(format!("after all VMs have ended, {status:?}"));
        }
        self.phase = match status.next {
            0 if self.rng.below(4) == 0 => Phase::SwitchesOff,
            0 => Phase::Done,
            next => Phase::Counts(next),
        };
        Ok(())
    }
}

impl Phase {
    /// The later of both.
    fn max_with(self, other: Self) -> Self {
        if self == Self::Asks { other } else { self }
    }
}

impl Known {
    /// Whether its vCPUs may run, or may come to.
    pub fn may_go_on(&self) -> bool {
        let stands = |stands: &Stands| stands.may(|stand| stand != Stand::Paused);
        self.may_owe || self.is_to_go_on || self.stands.as_ref().is_none_or(stands)
    }

    /// Whether what EL2 says of it fits what is known.
    fn fits(&mut self, raw: &RawVm, freedom: Freedom) -> Result<(), String> {
        let Some(stands) = &mut self.stands else {
            return Err("nobody has described it".into());
        };
        stands.pass(freedom);
        let (least, most) = self.starts;
        let record = &self.record;
        let is_as_described = (raw.vcpus, raw.cap, raw.weight, raw.group)
            == (record.vcpus, record.cap.into(), record.weight, record.group);
        if !is_as_described {
            return Err(format!(
                "cap {} weight {} group {}, and not {} {} {}",
                raw.cap, raw.weight, raw.group, record.cap, record.weight, record.group
            ));
        }
        if !(least..=most).contains(&raw.starts) {
            return Err(format!("{} starts, and not {least} to {most}", raw.starts));
        }
        stands
            .keep(|stand| stand.is_said(raw.state))
            .then_some(())
            .ok_or_else(|| format!("it does not stand as {}", raw.state))
    }

    /// What is wrong with what is counted of it in the end.
    pub fn is_wrong_in_the_end(
        &mut self,
        raw: &RawVm,
        said: Said,
        is_short: bool,
    ) -> Option<String> {
        let freedom = Freedom {
            may_end: true,
            restarts: true,
            may_owe: true,
            is_alone: true,
            is_short: true,
        };
        if let Err(what) = self.fits(raw, freedom) {
            return Some(what);
        }
        let reason = raw.reason.as_str().unwrap_or_default();
        let is_right = match reason {
            "" => raw.starts == 0,
            "powered off" => said.is_done,
            "killed" => self.kills > 0,
            "reset" => self.resets > 0,
            other => is_short && other.starts_with("not started"),
        };
        if !is_right || said.begun > raw.starts {
            return Some(format!(
                "it says {reason:?} after {} starts, {} kills, {} resets and {said:?}",
                raw.starts, self.kills, self.resets
            ));
        }
        let must_have_run = self.kills + self.resets == 0 && raw.starts > 0;
        (must_have_run && said.begun == 0).then(|| "its guest has never run".into())
    }
}
