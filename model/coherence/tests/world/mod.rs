//! Hosts with a fake stage 2 and scripted vCPUs, and what must hold whatever the network does.

#![allow(dead_code, clippy::unwrap_used)]

pub mod line;
pub mod net;
pub mod reference;

use abi::coherence::{Access, Form, Kind, Message};
use model_coherence::{
    Actions, Broken, Event, Host, NO_PAGE, Page, Settings, State, Switches, Tail,
};
use std::cell::Cell;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Words of a page, each a byte.
pub const WORDS: usize = 2;
/// How long a lease lasts.
pub const LEASE_NS: u64 = 1000;
/// The shortest that a page which bounces is held.
pub const HOLD_NS: u64 = 100;

/// The VM's life.
pub const LIFE: u32 = 7;

/// A word of the VM's memory: page and place.
pub type Word = (u32, usize);

/// Returns the value of a page-table entry that translates to `word`.
pub const fn entry_to(word: Word) -> u8 {
    word.0 as u8 * WORDS as u8 + word.1 as u8
}

const fn target(entry: u8) -> Word {
    ((entry as usize / WORDS) as u32, entry as usize % WORDS)
}

/// An instruction of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Load(Word),
    Store(Word, u8),
    /// Atomically adds one.
    Add(Word),
    /// Needs two pages at once.
    Copy(Word, Word),
    /// Overwrites a page with zeroes.
    Zero(u32),
    /// Accesses go by a page-table entry, or by the TLB.
    LoadVia(Word),
    StoreVia(Word, u8),
    /// Invalidates TLB entries that come from this page-table entry, on all CPUs, and waits (DSB).
    Tlbi(Word),
}

/// Translations that a CPU remembers: page-table entry and its value.
pub type Translations = Vec<(Word, u8)>;

/// Memory that an instruction accesses.
pub trait Memory {
    /// Reads a word, or says which access is missing.
    fn load(&mut self, word: Word) -> Result<u8, (u32, Access)>;
    /// Checks that a word can be written.
    fn may_store(&mut self, page: u32, access: Access) -> Result<(), (u32, Access)>;
    /// Writes a word.
    fn store(&mut self, word: Word, value: u8);
}

/// Does an instruction, whole or not at all; what it loads goes to `registers`.
pub fn perform(
    op: Op,
    memory: &mut impl Memory,
    tlb: &mut Translations,
    registers: &mut Vec<u8>,
) -> Result<(), (u32, Access)> {
    let mut translate = |memory: &mut _, entry| {
        if let Some((_, value)) = tlb.iter().find(|(known, _)| *known == entry) {
            return Ok(target(*value));
        }
        let value = Memory::load(memory, entry)?;
        tlb.push((entry, value));
        tlb.sort_unstable();
        Ok(target(value))
    };
    match op {
        Op::Load(word) => registers.push(memory.load(word)?),
        Op::LoadVia(entry) => {
            let word = translate(memory, entry)?;
            registers.push(memory.load(word)?);
        }
        Op::Store(word, value) => {
            memory.may_store(word.0, Access::Write)?;
            memory.store(word, value);
        }
        Op::StoreVia(entry, value) => {
            let word = translate(memory, entry)?;
            memory.may_store(word.0, Access::Write)?;
            memory.store(word, value);
        }
        Op::Add(word) => {
            memory.may_store(word.0, Access::Write)?;
            let value = memory.load(word)?;
            registers.push(value);
            memory.store(word, value.wrapping_add(1));
        }
        Op::Copy(from, to) => {
            let value = memory.load(from)?;
            memory.may_store(to.0, Access::Write)?;
            registers.push(value);
            memory.store(to, value);
        }
        Op::Zero(page) => {
            memory.may_store(page, Access::Zero)?;
            (0..WORDS).for_each(|place| memory.store((page, place), 0));
        }
        Op::Tlbi(_) => unreachable!("invalidations are traps"),
    }
    Ok(())
}

/// A host's memory, stage 2 and TLBs, and what its core asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machine {
    pub memory: Vec<[u8; WORDS]>,
    pub allowed: Vec<Access>,
    pub is_written: Vec<bool>,
    pub tlbs: Vec<Translations>,
    pub sent: Vec<(u8, Vec<u8>)>,
    pub resumed: Vec<(usize, bool)>,
    pub kicked: Vec<usize>,
    /// What pages were when they were written last, with their versions.
    pub remembered: Vec<(u64, [u8; WORDS])>,
}

impl Machine {
    pub fn invalidate_all(&mut self, operation: Option<u64>) {
        for tlb in &mut self.tlbs {
            let is_other = |((page, place), _): &(Word, u8)| {
                operation.is_some_and(|op| op != u64::from(entry_to((*page, *place))))
            };
            tlb.retain(is_other);
        }
    }
}

thread_local! {
    /// The page that a home told of last as being written; no part of a state that is searched.
    pub static WRITTEN: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Actions for Machine {
    fn protect(&mut self, page: u32, access: Access) -> bool {
        let page = page as usize;
        self.allowed[page] = access;
        std::mem::take(&mut self.is_written[page])
    }

    fn fill(&mut self, page: u32, bytes: Option<&[u8]>) {
        assert!(self.allowed[page as usize] as u8 <= Access::Read as u8 || bytes.is_none());
        let bytes = bytes.unwrap_or(&[0; WORDS]);
        self.memory[page as usize] = bytes.try_into().unwrap();
    }

    fn remember(&mut self, page: u32, version: u64) {
        assert_ne!(self.allowed[page as usize], Access::Write, "may change");
        let page = page as usize;
        let pages = self.memory.len();
        self.remembered.resize(pages, (0, [0; WORDS]));
        self.remembered[page] = (version, self.memory[page]);
    }

    fn change(&mut self, page: u32, changes: &[u8]) -> bool {
        assert!(self.allowed[page as usize] as u8 <= Access::Read as u8);
        if changes.len() != 2 * WORDS {
            return false;
        }
        // Whoever has the version that they follow has its bytes.
        let (old, new) = changes.split_at(WORDS);
        assert_eq!(self.memory[page as usize], old, "of another version");
        self.memory[page as usize] = new.try_into().unwrap();
        true
    }

    fn is_zero(&mut self, page: u32) -> bool {
        self.memory[page as usize] == [0; WORDS]
    }

    fn is_untouched(&self, page: u32) -> bool {
        self.memory[page as usize] == [0; WORDS]
    }

    fn life(&self) -> u32 {
        LIFE
    }

    fn send(&mut self, to: u8, message: &Message, tail: Tail<'_>) {
        let mut bytes = message.as_bytes().to_vec();
        match tail {
            Tail::None => {}
            Tail::Page(page) => {
                assert_ne!(self.allowed[page as usize], Access::Write, "may change");
                bytes.extend(self.memory[page as usize]);
            }
            Tail::Changes(page, since) => {
                assert_ne!(self.allowed[page as usize], Access::Write, "may change");
                let remembered = self.remembered.get(page as usize);
                let form = match remembered.filter(|(version, _)| *version == since) {
                    Some((_, old)) => {
                        bytes.extend(old);
                        Form::Changes
                    }
                    None => Form::Full,
                };
                let message = Message { form, ..*message };
                bytes[..size_of::<Message>()].copy_from_slice(message.as_bytes());
                bytes.extend(self.memory[page as usize]);
            }
            Tail::Operations(operations) => bytes.extend(operations.as_bytes()),
            Tail::Entries(entries) => bytes.extend(entries.as_bytes()),
        }
        self.sent.push((to, bytes));
    }

    fn resume(&mut self, vcpu: usize, is_zeroed: bool) {
        self.resumed.push((vcpu, is_zeroed));
    }

    fn written(&mut self, page: u32) {
        WRITTEN.set(Some(page));
    }

    fn kick(&mut self, vcpu: usize) {
        self.kicked.push(vcpu);
    }

    fn invalidate(&mut self, operations: &[U64]) {
        if operations.is_empty() {
            self.invalidate_all(None);
        }
        for operation in operations {
            self.invalidate_all(Some(operation.get()));
        }
    }
}

/// Hosts that a part has room for, of which some are not there.
const ROOM: usize = 8;

/// A host: its core, and its machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node<const SLOTS: usize> {
    pub core: Host<Vec<Page>, ROOM, SLOTS>,
    pub machine: Machine,
    pub broken: Option<Broken>,
}

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    Runs,
    /// Waits for a page, or for answers to an invalidation.
    Waits,
    /// Its instruction that faulted is done, and its host has not noticed.
    Retires,
}

/// A vCPU and its script.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vcpu {
    pub host: usize,
    /// Number at its host.
    pub number: usize,
    pub script: Vec<Op>,
    pub at: usize,
    pub registers: Vec<u8>,
    pub doing: Doing,
    pub has_faulted: bool,
}

impl Vcpu {
    pub fn is_done(&self) -> bool {
        self.at == self.script.len() && self.doing == Doing::Runs
    }
}

/// All hosts, and the memory as a single machine would have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World<const HOSTS: usize, const SLOTS: usize> {
    pub nodes: Vec<Node<SLOTS>>,
    pub vcpus: Vec<Vcpu>,
    pub truth: Vec<[u8; WORDS]>,
}

/// What is to be run: scripts with the hosts they run at, and where the pages' homes are.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub scripts: Vec<(usize, Vec<Op>)>,
    pub homes: Vec<usize>,
    pub initial: Vec<[u8; WORDS]>,
    pub switches: Switches,
    pub lease_ns: u64,
}

struct View<'a> {
    machine: &'a mut Machine,
    truth: &'a mut [[u8; WORDS]],
}

impl Memory for View<'_> {
    fn load(&mut self, word: Word) -> Result<u8, (u32, Access)> {
        let page = word.0 as usize;
        if self.machine.allowed[page] == Access::None {
            return Err((word.0, Access::Read));
        }
        let value = self.machine.memory[page][word.1];
        assert_eq!(value, self.truth[page][word.1], "an old value of {word:?}");
        Ok(value)
    }

    fn may_store(&mut self, page: u32, access: Access) -> Result<(), (u32, Access)> {
        let is_allowed = self.machine.allowed[page as usize] == Access::Write;
        is_allowed.then_some(()).ok_or((page, access))
    }

    fn store(&mut self, word: Word, value: u8) {
        let page = word.0 as usize;
        self.machine.memory[page][word.1] = value;
        self.machine.is_written[page] = true;
        self.truth[page][word.1] = value;
    }
}

impl<const HOSTS: usize, const SLOTS: usize> World<HOSTS, SLOTS> {
    pub fn new(scenario: &Scenario) -> Self {
        let pages = scenario.homes.len();
        assert!(scenario.homes.is_sorted(), "ranges ascend");
        let first_pages = std::array::from_fn(|host| {
            let before = scenario.homes.iter().filter(|home| **home < host);
            if host < HOSTS {
                before.count() as u32
            } else {
                NO_PAGE
            }
        });
        let mut vcpus: Vec<Vcpu> = Vec::new();
        for (host, script) in &scenario.scripts {
            let number = vcpus.iter().filter(|vcpu| vcpu.host == *host).count();
            vcpus.push(Vcpu {
                host: *host,
                number,
                script: script.clone(),
                at: 0,
                registers: Vec::new(),
                doing: Doing::Runs,
                has_faulted: false,
            });
        }
        let of_host = |host| scenario.scripts.iter().filter(move |(at, _)| *at == host);
        let node = |host: usize| {
            let settings = Settings {
                host: host as u8,
                vcpus: of_host(host).count() as u8,
                first_pages,
                pages: pages as u32,
                page_bytes: WORDS,
                lease_ns: scenario.lease_ns,
                hold_ns: HOLD_NS,
                switches: scenario.switches,
            };
            let core = Host::new(settings, vec![Page::default(); pages]).unwrap();
            let allowed = (0..pages).map(|page| core.state(page as u32).access());
            let is_home = |page: &usize| scenario.homes[*page] == host;
            let initial = |page| {
                Some(page)
                    .filter(is_home)
                    .map_or([0; WORDS], |n| scenario.initial[n])
            };
            let machine = Machine {
                memory: (0..pages).map(initial).collect(),
                allowed: allowed.collect(),
                is_written: vec![false; pages],
                tlbs: vec![Vec::new(); SLOTS],
                ..Machine::default()
            };
            Node {
                core,
                machine,
                broken: None,
            }
        };
        Self {
            nodes: (0..HOSTS).map(node).collect(),
            vcpus,
            truth: scenario.initial.clone(),
        }
    }

    /// Steps a host and checks all; returns the messages that it sent.
    pub fn step(&mut self, host: usize, now: u64, event: Event<'_>) -> Vec<(u8, Vec<u8>)> {
        let node = &mut self.nodes[host];
        let done = node.core.step(now, event, &mut node.machine);
        node.broken = done.err();
        node.machine.kicked.clear();
        let resumed = std::mem::take(&mut node.machine.resumed);
        for (number, is_zeroed) in resumed {
            self.resume(host, number, is_zeroed);
        }
        self.check();
        std::mem::take(&mut self.nodes[host].machine.sent)
    }

    fn resume(&mut self, host: usize, number: usize, is_zeroed: bool) {
        let is_it = |vcpu: &&mut Vcpu| (vcpu.host, vcpu.number) == (host, number);
        let vcpu = self.vcpus.iter_mut().find(is_it).unwrap();
        assert_eq!(vcpu.doing, Doing::Waits);
        vcpu.doing = Doing::Runs;
        match vcpu.script[vcpu.at] {
            Op::Zero(page) if is_zeroed => {
                self.truth[page as usize] = [0; WORDS];
                vcpu.at += 1;
                vcpu.doing = Doing::Retires;
            }
            Op::Tlbi(_) => vcpu.at += 1,
            _ => assert!(!is_zeroed),
        }
    }

    /// Runs one instruction of a vCPU, or lets it fault; returns what its host sent.
    pub fn run(&mut self, n: usize, now: u64) -> Vec<(u8, Vec<u8>)> {
        let vcpu = &mut self.vcpus[n];
        let (host, number) = (vcpu.host, vcpu.number);
        let op = vcpu.script[vcpu.at];
        let machine = &mut self.nodes[host].machine;
        if let Op::Tlbi(entry) = op {
            vcpu.doing = Doing::Waits;
            let operation = u64::from(entry_to(entry));
            machine.invalidate_all(Some(operation));
            return self.step(host, now, Event::Tlbi(number, operation));
        }
        let mut tlb = std::mem::take(&mut machine.tlbs[number]);
        let mut view = View {
            machine,
            truth: &mut self.truth,
        };
        let done = perform(op, &mut view, &mut tlb, &mut vcpu.registers);
        machine.tlbs[number] = tlb;
        match done {
            Ok(()) => {
                vcpu.at += 1;
                if std::mem::take(&mut vcpu.has_faulted) {
                    vcpu.doing = Doing::Retires;
                }
                self.check();
                Vec::new()
            }
            Err((page, access)) => {
                vcpu.has_faulted = true;
                vcpu.doing = Doing::Waits;
                let fault = Event::Fault {
                    vcpu: number,
                    page,
                    access,
                };
                self.step(host, now, fault)
            }
        }
    }

    /// Lets a host notice that a vCPU's instruction has retired.
    pub fn retire(&mut self, n: usize, now: u64) -> Vec<(u8, Vec<u8>)> {
        let vcpu = &mut self.vcpus[n];
        vcpu.doing = Doing::Runs;
        vcpu.has_faulted = false;
        let (host, number) = (vcpu.host, vcpu.number);
        self.step(host, now, Event::Retired(number))
    }

    /// One writer and no reader, or readers; all see what was written last.
    fn check(&self) {
        for (page, truth) in self.truth.iter().enumerate() {
            let mut readers = 0;
            let mut writers = 0;
            for node in &self.nodes {
                let allowed = node.machine.allowed[page];
                if node.broken.is_none() {
                    let state = node.core.state(page as u32);
                    assert_eq!(allowed, state.access(), "page {page}: {state:?}");
                }
                readers += usize::from(allowed != Access::None);
                writers += usize::from(allowed == Access::Write);
                if allowed != Access::None {
                    assert_eq!(node.machine.memory[page], *truth, "page {page} is old");
                }
            }
            assert!(
                writers == 0 || readers == 1,
                "page {page}: {writers} of {readers} write"
            );
        }
    }

    /// A host has left, and has nothing.
    pub fn check_left(&self, host: usize) {
        let core = &self.nodes[host].core;
        assert!(core.has_left(), "{core:?}");
        assert_eq!(core.pages_left(), 0);
        for page in 0..self.truth.len() as u32 {
            assert_eq!(core.state(page), State::Invalid);
            assert_ne!(usize::from(core.home(page)), host);
        }
    }

    /// When nothing is under way, no transaction is open, and owners are owners.
    pub fn check_quiet(&self) {
        for page in 0..self.truth.len() as u32 {
            let owns = |node: &&Node<SLOTS>| {
                let state = node.core.state(page);
                matches!(state, State::Owned | State::Exclusive | State::Modified)
            };
            assert_eq!(
                self.nodes.iter().filter(owns).count(),
                1,
                "owners of {page}"
            );
        }
    }
}

/// Returns whether a message goes by the lane of bulk messages, which others can overtake.
pub fn is_bulk(bytes: &[u8]) -> bool {
    let (message, tail) = Message::parse(bytes).unwrap();
    message.kind == Kind::Data && !tail.is_empty()
}
