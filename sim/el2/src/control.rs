//! Whoever asks the hypervisor through its control port: requests at moments that a seed names, and what they are answered
//! held against a model of which VMs there are and how each may stand.

use crate::bundle::{self, Vm};
use crate::flat::Said;
use crate::scene::Scene;
use crate::stands::{Freedom, Stand, Stands};
use abi::Text;
use abi::bundle::{VM_AUTOSTART, VmRecord};
use abi::control::{
    CpuStatus, EventsRequest, FrameHeader, MAGIC, MachineStatus, MoveRequest, NodeStatus, REPLY,
    RawVm, ReadRequest, ReclaimRequest, RecountStatus, ReplyHeader, SetRequest, TRACE_ALL,
    TraceRequest, VERSION, VmName, code, event, request,
};
use machine_host::machine;
use machine_host::rng::Rng;
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

const HEADER: usize = size_of::<FrameHeader>();
/// Requests that are not answered yet, at most.
const AT_ONCE: usize = 3;
/// Steps between two requests, at most.
const PAUSE: u64 = 4000;
/// Requests that name a VM and nothing else.
const ABOUT: [u32; 8] = [
    request::START,
    request::STOP,
    request::KILL,
    request::PAUSE,
    request::RESUME,
    request::CONTINUE,
    request::RESET,
    request::PAUSE,
];
/// Requests that read, of the machine or of a VM.
const READS: [u32; 8] = [
    request::LIST,
    request::LIST,
    request::SHOW,
    request::NODES,
    request::CPUS,
    request::REGIONS,
    request::PAGES,
    request::PAGE_COUNTS,
];

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
        if self.left > 0 && self.asked.len() < AT_ONCE && (rests || steps >= self.not_before) {
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

    fn send(&mut self, asked: Asked, payload: &[u8]) {
        self.tell(|| {
            let name = asked.vm.map_or(String::new(), |vm| format!(" vm{vm}"));
            format!("asks {}{name}, number {}", asked.kind, asked.tag)
        });
        let Some(header) = FrameHeader::of(asked.kind, asked.tag, &[payload]) else {
            return;
        };
        if let (request::KILL | request::RESET, Some(vm)) = (asked.kind, asked.vm) {
            self.known[vm].may_be_ended = true;
        }
        // A pause counts where it is the only thing that is asked.
        if let Some(vm) = asked.vm {
            match asked.kind {
                request::PAUSE if self.asked.is_empty() => self.known[vm].is_to_go_on = false,
                request::START..=request::RESET | request::CONTINUE => {
                    self.known[vm].is_to_go_on = true;
                }
                _ => {}
            }
        }
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(payload);
        self.asked.push_back(asked);
        machine::with(|machine| machine.tell(&bytes));
    }

    fn new_asked(&mut self, kind: u32, vm: Option<usize>, names: bool, what: What) -> Asked {
        self.tag += 1;
        Asked {
            kind,
            tag: self.tag,
            vm,
            names,
            what,
        }
    }

    /// A VM to ask about, or a name that nobody has.
    fn any_vm(&mut self) -> (Option<usize>, VmName) {
        let number = self.rng.below(8 * self.known.len() as u64 + 1) as usize / 8;
        match self.known.get(number) {
            Some(vm) => (Some(number), vm.name),
            None => (None, VmName::new("nobody").unwrap_or_default()),
        }
    }

    /// Asks about a VM.
    pub fn ask_about(&mut self, kind: u32, vm: usize) {
        let name = self.known[vm].name;
        let asked = self.new_asked(kind, Some(vm), true, What::Nothing);
        self.send(asked, name.as_bytes());
    }

    /// Goes on counting frames, or switches the machine off.
    pub fn ask_last(&mut self) {
        match self.phase {
            Phase::Counts(from) => {
                let asked = self.new_asked(request::RECOUNT, None, false, What::Nothing);
                self.send(asked, &from.to_le_bytes());
            }
            Phase::SwitchesOff => {
                let asked = self.new_asked(request::POWER_OFF, None, false, What::Nothing);
                self.send(asked, &[]);
            }
            _ => {}
        }
    }

    fn ask_something(&mut self) {
        let (vm, name) = self.any_vm();
        match self.rng.below(20) {
            0..9 => {
                let kind = ABOUT[self.rng.below(ABOUT.len() as u64) as usize];
                let asked = self.new_asked(kind, vm, true, What::Nothing);
                self.send(asked, name.as_bytes());
            }
            9..13 => {
                let kind = READS[self.rng.below(READS.len() as u64) as usize];
                let is_of_all = kind == request::LIST && self.rng.below(2) == 0;
                let of_machine =
                    [request::NODES, request::CPUS, request::REGIONS].contains(&kind) || is_of_all;
                let name = if of_machine { VmName::default() } else { name };
                let asked =
                    self.new_asked(kind, vm.filter(|_| !of_machine), !of_machine, What::Nothing);
                self.send(asked, ReadRequest { name, from: 0 }.as_bytes());
            }
            13..15 => self.create(),
            15 => self.set(vm, name),
            16 => self.ask_more(vm, name),
            17 => self.ask_of_machine(),
            18 => self.malformed(),
            _ => self.noise(),
        }
    }

    fn ask_more(&mut self, vm: Option<usize>, name: VmName) {
        match self.rng.below(3) {
            0 => {
                let bytes = 4096 * self.rng.below(100);
                let asked = self.new_asked(request::RECLAIM, vm, true, What::Nothing);
                self.send(asked, ReclaimRequest { name, bytes }.as_bytes());
            }
            1 => {
                let node = self.rng.below(3);
                let is_there = node < self.nodes as u64;
                let asked = self.new_asked(request::NUMA_MOVE, vm, true, What::Move(is_there));
                self.send(asked, MoveRequest { name, node }.as_bytes());
            }
            _ => {
                let asked = self.new_asked(request::CONSOLE_INPUT, vm, true, What::Nothing);
                let typed = vec![b'x'; self.rng.below(40) as usize];
                self.send(asked, &[name.as_bytes(), &typed].concat());
            }
        }
    }

    fn ask_of_machine(&mut self) {
        match self.rng.below(4) {
            0 => {
                let asked = self.new_asked(request::HELLO, None, false, What::Nothing);
                self.send(asked, &[]);
            }
            1 => {
                let classes = self.rng.below(2) as u32 * TRACE_ALL;
                let asked = self.new_asked(request::TRACE, None, false, What::Nothing);
                let reserved = 0;
                self.send(asked, TraceRequest { classes, reserved }.as_bytes());
            }
            2 => {
                let (cpu, from) = (self.rng.below(4) as u32, self.rng.below(100));
                let asked = self.new_asked(request::EVENTS, None, false, What::Nothing);
                let reserved = 0;
                self.send(
                    asked,
                    EventsRequest {
                        cpu,
                        reserved,
                        from,
                    }
                    .as_bytes(),
                );
            }
            _ => {
                let asked = self.new_asked(request::RECOUNT, None, false, What::Nothing);
                self.send(asked, &0_u64.to_le_bytes());
            }
        }
    }

    fn create(&mut self) {
        let number = self.rng.below(self.known.len() as u64) as usize;
        let mut record = bundle::record(&self.vms[number], &self.vms);
        if self.rng.below(3) == 0 {
            record.flags &= !VM_AUTOSTART;
        }
        let is_wrong = self.rng.below(6) == 0;
        if is_wrong {
            match self.rng.below(5) {
                0 => record.vcpus = 17,
                1 => record.memory += 4096,
                2 => record.cap = 101,
                3 => record.nodes = 1 << 40,
                _ => record.claim = 9,
            }
        }
        let asked = What::Create(Box::new(record), !is_wrong);
        let asked = self.new_asked(request::CREATE, Some(number), false, asked);
        self.send(asked, record.as_bytes());
    }

    fn set(&mut self, vm: Option<usize>, name: VmName) {
        let mut set = SetRequest::about(name);
        let mut is_possible = true;
        match self.rng.below(4) {
            0 => {
                (set.to.cap, set.mask.cap) = (self.rng.below(120) as u32, !0);
                is_possible = set.to.cap <= 100;
            }
            1 => (set.to.weight, set.mask.weight) = (1 + self.rng.below(1000) as u32, !0),
            2 => {
                (set.to.vcpus, set.mask.vcpus) = (2, !0);
                is_possible = false;
            }
            _ => {
                let group = ["all", "others"][self.rng.below(2) as usize];
                set.to.group = Text::new(group).unwrap_or_default();
                set.mask.group = Text::ONES;
            }
        }
        let what = What::Set(Box::new(set), is_possible);
        let asked = self.new_asked(request::SET, vm, true, what);
        self.send(asked, set.as_bytes());
    }

    /// A frame that is none of the protocol's.
    fn malformed(&mut self) {
        let kinds = [
            0,
            16,
            999,
            request::LIST,
            request::KILL,
            request::SET,
            request::CREATE,
        ];
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        let length = 1 + self.rng.below(30) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| self.rng.next() as u8).collect();
        let asked = self.new_asked(kind, None, false, What::Malformed);
        self.send(asked, &bytes);
    }

    /// Bytes that begin no frame, which nobody answers.
    fn noise(&mut self) {
        let length = 1 + self.rng.below(100) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| self.rng.next() as u8).collect();
        if self.rng.below(2) == 0 {
            // What looks like the beginning of one, with a length that none has.
            bytes.extend(MAGIC.to_le_bytes());
            bytes.extend([0xff; 12]);
        }
        machine::with(|machine| machine.tell(&bytes));
    }

    fn freedom(&self, vm: usize, said: Said) -> Freedom {
        Freedom {
            may_end: said.is_done,
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
            == (record.vcpus, record.cap, record.weight, record.group);
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
