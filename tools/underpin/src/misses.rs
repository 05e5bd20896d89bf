//! Pages that the hosts of a VM take from each other, found in the traces of all its hosts: which cost most, of what kind,
//! and what their owner can do.

use crate::trace::{Event, Trace};
use abi::control::trace;
use std::collections::BTreeMap;

/// Bytes of a page, and of the lines by which accesses are told apart.
const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;
/// With fewer misses, the kind of a page is chance.
const CLEAR_FROM: u64 = 8;

/// An access of a vCPU that waited for another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Its guest-physical address.
    pub address: u64,
    /// It was to write; exclusive and atomic instructions are.
    pub writes: bool,
    /// The program counter.
    pub pc: u64,
    /// How long the vCPU waited, in nanoseconds.
    pub waited_ns: u64,
}

/// What a vCPU was last seen to do.
#[derive(Default)]
struct Vcpu {
    /// Its turn on a CPU ended with waiting.
    waits: bool,
    /// Program counter of its latest exit, if that was for memory.
    pc: Option<u64>,
    /// What it missed then, and when.
    fault: Option<(Miss, u64)>,
}

/// The misses in the trace of one host's vCPUs, of one VM: exits, faults and switches.
pub fn misses(trace: &Trace) -> Vec<Miss> {
    let mut vcpus: BTreeMap<u16, Vcpu> = BTreeMap::new();
    let mut all = Vec::new();
    for event in &trace.events {
        if let Some((_, number)) = event.whose {
            all.extend(vcpus.entry(number).or_default().sees(event));
        }
    }
    all
}

impl Vcpu {
    /// The miss that is over when this event begins.
    fn sees(&mut self, event: &Event) -> Option<Miss> {
        match event.class {
            trace::EXIT => {
                self.pc = (event.name == "memory").then_some(event.value);
                self.fault = None;
            }
            trace::FAULT => {
                let writes = match event.name {
                    "away-read" => false,
                    "away-write" => true,
                    _ => return None,
                };
                let miss = Miss {
                    address: event.value,
                    writes,
                    pc: self.pc?,
                    waited_ns: 0,
                };
                self.fault = Some((miss, event.at_ns));
            }
            trace::SWITCH => {
                let has_waited = std::mem::replace(&mut self.waits, event.name == "waiting");
                self.pc = None;
                let (mut miss, since) = self.fault.take()?;
                miss.waited_ns = event.at_ns.saturating_sub(since);
                return has_waited.then_some(miss);
            }
            _ => {}
        }
        None
    }
}

/// What a page is used for, as far as its misses tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Hosts use different lines of it, and one writes.
    FalseSharing,
    /// Hosts write one line.
    Lock,
    /// Hosts write the same lines, one after the other.
    Migrating,
    /// One host writes, and others read.
    Producer,
    /// Too few misses, or of one host, or nobody writes.
    Unclear,
}

impl Kind {
    /// For tables and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FalseSharing => "false sharing",
            Self::Lock => "lock",
            Self::Migrating => "migrating",
            Self::Producer => "producer and consumer",
            Self::Unclear => "unclear",
        }
    }

    /// What the owner of the program can do.
    pub const fn advice(self) -> Option<&'static str> {
        match self {
            Self::FalseSharing => {
                Some("keep data of different hosts in pages of their own: align it to 4096 bytes")
            }
            Self::Lock => Some(
                "take the lock less often, or have one for each host: an atomic word moves its page each time",
            ),
            Self::Migrating => {
                Some("keep those who use it on one host (taskset, numactl), or give each a part")
            }
            Self::Producer => Some("pass more at a time, or work where the data is made"),
            Self::Unclear => None,
        }
    }
}

/// What a host missed of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    misses: u64,
    /// A bit for each line that was read, or written.
    read: u64,
    written: u64,
}

/// A page, and what its misses cost.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its guest-physical address.
    pub address: u64,
    /// How long vCPUs have waited for it in all, in nanoseconds.
    pub waited_ns: u64,
    /// By program counter.
    pcs: BTreeMap<u64, u64>,
    hosts: Vec<Used>,
}

impl Page {
    /// Misses of each host.
    pub fn misses(&self) -> impl Iterator<Item = u64> + '_ {
        self.hosts.iter().map(|host| host.misses)
    }

    /// Where most of them were: the program counter, and how many.
    pub fn most(&self) -> Option<(u64, u64)> {
        let most = self.pcs.iter().max_by_key(|(_, count)| **count);
        most.map(|(pc, count)| (*pc, *count))
    }

    /// What it is used for.
    pub fn kind(&self) -> Kind {
        let users: Vec<_> = self.hosts.iter().filter(|it| it.misses > 0).collect();
        let writers = users.iter().filter(|it| it.written != 0).count();
        if self.misses().sum::<u64>() < CLEAR_FROM || users.len() < 2 || writers == 0 {
            return Kind::Unclear;
        }
        let (mut all, mut shared) = (0, 0);
        for user in users {
            let lines = user.read | user.written;
            shared |= all & lines;
            all |= lines;
        }
        match (shared, writers) {
            (0, _) => Kind::FalseSharing,
            (_, 1) => Kind::Producer,
            _ if all.is_power_of_two() => Kind::Lock,
            _ => Kind::Migrating,
        }
    }
}

/// The pages that hosts missed, those that cost most first.
pub fn pages(hosts: &[Vec<Miss>]) -> Vec<Page> {
    let mut pages: BTreeMap<u64, Page> = BTreeMap::new();
    for (host, misses) in hosts.iter().enumerate() {
        for miss in misses {
            let address = miss.address & !(PAGE_BYTES - 1);
            let page = pages.entry(address).or_insert_with(|| Page {
                address,
                waited_ns: 0,
                pcs: BTreeMap::new(),
                hosts: vec![Used::default(); hosts.len()],
            });
            page.waited_ns = page.waited_ns.saturating_add(miss.waited_ns);
            *page.pcs.entry(miss.pc).or_default() += 1;
            let line = 1 << (miss.address % PAGE_BYTES / LINE_BYTES);
            let used = &mut page.hosts[host];
            used.misses += 1;
            if miss.writes {
                used.written |= line;
            } else {
                used.read |= line;
            }
        }
    }
    let mut pages: Vec<_> = pages.into_values().collect();
    pages.sort_by_key(|page| (u64::MAX - page.waited_ns, page.address));
    pages
}

/// Names of functions by address, from a `System.map`.
#[derive(Clone, Debug, Default)]
pub struct Symbols(BTreeMap<u64, String>);

impl Symbols {
    /// Reads lines of address, type and name; others are left out. `None` where there is none.
    pub fn parse(text: &str) -> Option<Self> {
        let symbol = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let is_code = words.next()?.eq_ignore_ascii_case("t");
            let name = words.next()?.replace(char::is_control, "?");
            is_code.then_some((address, name))
        };
        let symbols: BTreeMap<_, _> = text.lines().filter_map(symbol).collect();
        (!symbols.is_empty()).then_some(Self(symbols))
    }

    /// The function at an address, and how far in it.
    pub fn of(&self, address: u64) -> Option<(&str, u64)> {
        // A function longer than this is none: the address lies behind the last one, or in another program.
        const LONGEST: u64 = 1 << 16;
        let (start, name) = self.0.range(..=address).next_back()?;
        let offset = address - start;
        (offset < LONGEST).then_some((name, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::control::{TraceEvent, access};
    use proptest::prelude::*;

    const MEMORY: u8 = 8;
    const WFI: u8 = 11;
    const WAITING: u8 = 1;

    fn event(kind: u8, detail: u8, at_ns: u64, span_ns: u64, value: u64) -> TraceEvent {
        let event = crate::trace::tests::event(kind, detail, 0, at_ns, span_ns);
        TraceEvent { value, ..event }
    }

    fn traced(events: &[TraceEvent]) -> Trace {
        let mut trace = Trace {
            vms: vec!["a".into()],
            ..Trace::default()
        };
        trace.add(0, events);
        trace.finish(None);
        trace
    }

    /// A turn from `at` on that ends, 100 ns later, with a fault; the vCPU waits.
    fn turn(at: u64, address: u64, writes: bool) -> [TraceEvent; 3] {
        [
            event(trace::SWITCH, WAITING, at, 100, 0),
            event(trace::EXIT, MEMORY, at + 90, 9, 0x8000),
            event(
                trace::FAULT,
                access::AWAY + u8::from(writes),
                at + 92,
                3,
                address,
            ),
        ]
    }

    #[test]
    fn a_turn_that_ends_with_a_fault_waits_for_its_page() {
        let first = turn(0, 0x4000_1040, true);
        let second = turn(1_000, 0x4000_2000, false);
        // A page that came meanwhile, then the guest waits by itself.
        let third = [
            event(trace::SWITCH, WAITING, 3_000, 100, 0),
            event(trace::EXIT, MEMORY, 3_010, 9, 0x9000),
            event(trace::FAULT, access::AWAY, 3_012, 3, 0x4000_3000),
            event(trace::EXIT, WFI, 3_050, 9, 0x9010),
            event(trace::SWITCH, 0, 5_000, 100, 0),
        ];
        let all: Vec<_> = [&first[..], &second, &third].concat();
        let found = misses(&traced(&all));
        let miss = |address, writes, waited_ns| Miss {
            address,
            writes,
            pc: 0x8000,
            waited_ns,
        };
        let expected = [
            miss(0x4000_1040, true, 1_000 - 92),
            miss(0x4000_2000, false, 3_000 - 1_092),
        ];
        assert_eq!(found, expected);
        // Nobody knows how long the last one waits.
        assert_eq!(misses(&traced(&first)), []);
    }

    #[test]
    fn a_page_is_of_the_kind_that_its_users_make_it() {
        let kind = |host0: &[(u64, bool)], host1: &[(u64, bool)]| {
            let of = |accesses: &[(u64, bool)]| -> Vec<Miss> {
                let miss = |(offset, writes): (u64, bool)| Miss {
                    address: 0x4000_0000 + offset,
                    writes,
                    pc: 0x8000 + offset,
                    waited_ns: 10,
                };
                accesses.iter().copied().cycle().take(8).map(miss).collect()
            };
            let pages = pages(&[of(host0), of(host1)]);
            assert_eq!(pages.len(), 1);
            pages[0].kind()
        };
        let (near, far) = ((8, true), (128, true));
        assert_eq!(kind(&[near], &[far]), Kind::FalseSharing);
        assert_eq!(kind(&[near], &[(129, false)]), Kind::FalseSharing);
        assert_eq!(kind(&[near], &[(63, true)]), Kind::Lock);
        assert_eq!(kind(&[near, far], &[far]), Kind::Migrating);
        assert_eq!(kind(&[near], &[(8, false)]), Kind::Producer);
        assert_eq!(kind(&[(8, false)], &[(8, false)]), Kind::Unclear);
        let alone = Miss {
            address: 0,
            writes: true,
            pc: 0,
            waited_ns: 1,
        };
        assert_eq!(pages(&[vec![alone; 20], vec![]])[0].kind(), Kind::Unclear);
        assert_eq!(
            pages(&[vec![alone; 3], vec![alone; 4]])[0].kind(),
            Kind::Unclear
        );
    }

    #[test]
    fn a_symbol_is_the_function_before() {
        let text =
            "ffff800080000000 T _text\nffff800080001000 t lock\nodd\nffff800080002000 D data\n";
        let symbols = Symbols::parse(text).unwrap();
        assert_eq!(symbols.of(0xffff_8000_8000_1010), Some(("lock", 0x10)));
        assert_eq!(symbols.of(0x4000), None);
        assert_eq!(symbols.of(0xffff_8000_8100_0000), None);
        assert!(Symbols::parse("not a map").is_none());
    }

    proptest! {
        /// Each fault is a miss once at most, and all time that is told has passed.
        #[test]
        fn any_trace_has_pages(
            events in proptest::collection::vec(
                (0..4_u8, 0..16_u8, 0..10_000_u64, 0..3_000_u64, any::<u64>()), 0..200,
            ),
        ) {
            let events: Vec<_> = events
                .into_iter()
                .map(|(kind, detail, at, span, value)| event(kind, detail, at, span, value))
                .collect();
            let trace = traced(&events);
            let faults = trace.events.iter().filter(|event| event.class == trace::FAULT).count();
            let found = misses(&trace);
            prop_assert!(found.len() <= faults);
            prop_assert!(found.iter().all(|miss| miss.waited_ns <= 10_000));
            let count = found.len() as u64;
            let pages = pages(&[found, Vec::new()]);
            prop_assert_eq!(pages.iter().flat_map(Page::misses).sum::<u64>(), count);
            prop_assert!(pages.is_sorted_by(|a, b| a.waited_ns >= b.waited_ns));
        }
    }
}
