//! Messages that a host of a VM gets from the others about its pages, in whatever state it is.

use crate::input::Input;
use abi::coherence::{Access, Message};
use abi::link::{BULK_MAX, URGENT_MAX};
use model_coherence::{
    Actions, Event, Host, Operation, Page, Settings, State, Switches, Tail, changes,
};

const HOSTS: usize = 3;
const SLOTS: usize = 4;
const PAGES: usize = 6;
const PAGE_BYTES: usize = 8;
const VCPUS: usize = 2;

/// What the host may access, and which vCPUs wait.
#[derive(Default)]
struct Machine {
    host: u8,
    allowed: [u8; PAGES],
    waits: [bool; VCPUS],
}

impl Actions for Machine {
    fn protect(&mut self, page: u32, access: Access) -> bool {
        self.allowed[page as usize] = access as u8;
        page & 1 == 0
    }

    fn fill(&mut self, page: u32, bytes: Option<&[u8]>) {
        assert!((page as usize) < PAGES && bytes.is_none_or(|bytes| bytes.len() == PAGE_BYTES));
    }

    fn change(&mut self, page: u32, changes: &[u8]) -> bool {
        assert!((page as usize) < PAGES && self.allowed[page as usize] < Access::Write as u8);
        changes::read(changes).is_some()
    }

    fn is_zero(&mut self, page: u32) -> bool {
        page == 2
    }

    fn life(&self) -> u32 {
        0
    }

    fn send(&mut self, to: u8, _: &Message, tail: Tail<'_>) {
        assert!(to != self.host && usize::from(to) < HOSTS);
        let (tail, most) = match tail {
            Tail::None => (0, URGENT_MAX),
            Tail::Page(page) => {
                assert!(self.allowed[page as usize] < Access::Write as u8);
                (abi::coherence::PAGE_BYTES, BULK_MAX)
            }
            Tail::Changes(page, since) => {
                assert!(self.allowed[page as usize] < Access::Write as u8 && since != 0);
                (abi::coherence::PAGE_BYTES, BULK_MAX)
            }
            Tail::Operations(operations) => (8 * operations.len(), URGENT_MAX),
            Tail::Entries(entries) => (size_of_val(entries), URGENT_MAX),
        };
        assert!(size_of::<Message>() + tail <= most);
    }

    fn resume(&mut self, vcpu: usize, _: bool) {
        assert!(std::mem::take(&mut self.waits[vcpu]));
    }

    fn kick(&mut self, vcpu: usize) {
        assert!(vcpu < VCPUS);
    }

    fn invalidate(&mut self, operations: &[Operation]) {
        assert!(operations.len() <= URGENT_MAX / 8);
    }
}

/// Events at host 1 of three, which may leave, or at host 0, its heir: faults of its vCPUs, and messages whose fields are small
/// more often than not.
pub fn coherence_message(data: &[u8]) {
    let mut input = Input(data);
    let switches = input.u16().unwrap_or(0);
    let settings = Settings {
        host: u8::from(switches & 512 == 0),
        vcpus: VCPUS as u8,
        first_pages: [0, 2, 4],
        pages: PAGES as u32,
        page_bytes: PAGE_BYTES,
        lease_ns: 1000,
        hold_ns: 50,
        switches: Switches::without(switches),
    };
    let pages = [Page::default(); PAGES];
    let Some(mut host) = Host::<_, HOSTS, SLOTS>::new(settings, pages) else {
        return;
    };
    let mut machine = Machine {
        host: settings.host,
        ..Machine::default()
    };
    for page in 0..PAGES {
        machine.allowed[page] = host.state(page as u32).access() as u8;
    }
    let mut now = 0;
    while let Some(kind) = input.u8() {
        now += u64::from(kind) * 4;
        let argument = input.u8().unwrap_or(0);
        let vcpu = usize::from(argument) % VCPUS;
        let page = u32::from(argument / 2) % PAGES as u32;
        let event = match kind % 16 {
            0..=2 if !machine.waits[vcpu] && !host.leaves() => {
                machine.waits[vcpu] = true;
                let access = [Access::Read, Access::Write, Access::Zero][usize::from(kind % 3)];
                Event::Fault { vcpu, page, access }
            }
            3 if !machine.waits[vcpu] && !host.leaves() => {
                machine.waits[vcpu] = true;
                Event::Tlbi(vcpu, argument.into())
            }
            4 => Event::Retired(vcpu),
            5 => Event::Away(vcpu),
            6 => Event::Quiet(page),
            7 => Event::Flush,
            8 => Event::Tick,
            9 if machine.waits == [false; VCPUS] => Event::Leave,
            _ => {
                let length = size_of::<Message>() + usize::from(kind & 0xf8);
                Event::Message(argument % 4, input.bytes(length))
            }
        };
        if host.step(now, event, &mut machine).is_err() {
            assert!(host.step(now, Event::Tick, &mut machine).is_err());
            return;
        }
        for page in 0..PAGES {
            let state: State = host.state(page as u32);
            assert_eq!(machine.allowed[page], state.access() as u8);
        }
    }
}
