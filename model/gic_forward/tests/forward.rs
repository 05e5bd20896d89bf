//! Random interrupts through few list registers, with changes of mind in between: what was raised
//! is taken afterwards, by whichever way, and not more often than it was raised.

#![allow(clippy::unwrap_used)]

use machine_contract::ListRegisters;
use machine_fake::{FakeListRegisters, ListState};
use model_gic_forward::{
    Busy, CpuInterface, FIRST_LPI, Forwarded, Forwarder, PhysicalGic, SavedLists, VirtualInterface,
    active_priority_registers, carry, check_give_back, give_back, return_carried,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MAINTENANCE: u32 = 25;
/// EL2's alarm, which nothing holds back.
const OWN: u32 = 24;
const PRIORITY: u8 = 0xa0;

/// One CPU's physical interrupts.
#[derive(Clone, Debug, Default)]
struct Gic {
    pending: BTreeSet<u32>,
    active: BTreeSet<u32>,
    held: bool,
    /// What was acknowledged and whose priority was not dropped.
    running: Option<u32>,
    maintenance: bool,
    alarm: bool,
}

impl Gic {
    fn is_signalled(&self) -> bool {
        self.maintenance
            || self.alarm
            || !self.held && self.pending.iter().any(|id| !self.active.contains(id))
    }
}

impl PhysicalGic for Gic {
    fn acknowledge(&mut self) -> u32 {
        assert!(self.running.is_none());
        let mut free = self.pending.iter().filter(|id| !self.active.contains(id));
        let found = match free.next() {
            _ if self.alarm => {
                self.alarm = false;
                OWN
            }
            _ if self.maintenance => MAINTENANCE,
            Some(intid) if !self.held => *intid,
            _ => return 1023,
        };
        self.pending.remove(&found);
        if found < FIRST_LPI {
            self.active.insert(found);
        }
        self.running = Some(found);
        found
    }

    fn running_priority(&mut self) -> u8 {
        PRIORITY
    }

    fn drop_priority(&mut self, intid: u32) {
        assert_eq!(self.running.take(), Some(intid));
    }

    fn deactivate(&mut self, intid: u32) {
        assert!(self.active.remove(&intid), "{intid} is not active");
    }

    fn hold(&mut self, on: bool) {
        self.held = on;
    }

    fn set_pending(&mut self, intid: u32) {
        assert!(intid < FIRST_LPI);
        self.pending.insert(intid);
    }

    fn is_own(&self, intid: u32) -> bool {
        intid == OWN
    }

    fn is_edge(&mut self, _: u32) -> bool {
        true
    }
}

struct World {
    lists: FakeListRegisters,
    gic: Gic,
    forwarder: Forwarder,
    /// Raised and not taken since.
    owed: BTreeSet<u32>,
    /// How often each may still be taken.
    raised: BTreeMap<u32, u32>,
    handling: Vec<u32>,
}

impl World {
    fn new(lists: usize) -> Self {
        Self {
            lists: FakeListRegisters::new(lists),
            gic: Gic::default(),
            forwarder: Forwarder::new(MAINTENANCE),
            owed: BTreeSet::new(),
            raised: BTreeMap::new(),
            handling: Vec::new(),
        }
    }

    fn raise(&mut self, intid: u32) {
        self.gic.pending.insert(intid);
        self.owed.insert(intid);
        *self.raised.entry(intid).or_default() += 1;
        self.exits();
    }

    /// EL2 runs until nothing is signalled.
    fn exits(&mut self) {
        loop {
            self.gic.maintenance = self.lists.maintenance_due();
            if !self.gic.is_signalled() {
                return;
            }
            let outcome = self.forwarder.forward(&mut self.lists, &mut self.gic);
            if let Forwarded::Given(intid) = outcome
                && (16..FIRST_LPI).contains(&intid)
            {
                self.lists.activate_physical(intid);
            }
            if let Forwarded::Own(intid) = outcome {
                assert_eq!(intid, OWN);
                self.gic.deactivate(intid);
            }
            assert_ne!(outcome, Forwarded::Spurious);
        }
    }

    fn acknowledge(&mut self) {
        if let Some(intid) = self.lists.guest_acknowledge() {
            self.owed.remove(&intid);
            let left = self.raised.entry(intid).or_default();
            *left = left.checked_sub(1).unwrap();
            self.handling.push(intid);
        }
        self.exits();
    }

    fn end(&mut self) {
        if let Some(intid) = self.handling.pop() {
            self.lists.guest_end(intid);
            let lists = &self.lists;
            self.gic
                .active
                .retain(|id| *id != intid || lists.physical_is_active(*id));
        }
        self.exits();
    }

    /// Another runs on the CPU while interrupts come, and leaves it again.
    fn away(&mut self, raised: &[u32]) {
        let full = self.lists.maintenance_due();
        let mut saved = SavedLists::save(&mut self.lists, full);
        assert_eq!(self.lists.listed().count(), 0);
        self.forwarder.leave(&mut self.gic);
        self.gic.maintenance = false;
        let mut linked = BTreeSet::new();
        for intid in raised {
            self.gic.pending.insert(*intid);
            self.owed.insert(*intid);
            *self.raised.entry(*intid).or_default() += 1;
            while self.gic.is_signalled() {
                match self.forwarder.forward(&mut saved, &mut self.gic) {
                    Forwarded::Given(intid) => {
                        assert!(saved.has_pending());
                        if saved.holds(intid) {
                            linked.insert(intid);
                        }
                    }
                    outcome => {
                        let all = (1_u16 << saved.count()) - 1;
                        assert_eq!(
                            (outcome, saved.empty() & all),
                            (Forwarded::Held, 0),
                            "list registers are free"
                        );
                    }
                }
            }
        }
        if saved.load(&mut self.lists) {
            self.lists.set_underflow_interrupt(true);
        }
        for intid in linked {
            self.lists.activate_physical(intid);
        }
        self.exits();
    }

    /// EL2 tries to step aside: everything that is owed is then pending in the hardware.
    fn step_aside(&mut self) {
        let listed: Vec<u32> = self.lists.listed().map(|list| list.intid).collect();
        let before = self.lists.clone();
        match give_back(&mut self.lists, &mut self.gic) {
            Ok(()) => {
                assert!(self.handling.is_empty());
                for intid in listed.iter().filter(|id| (16..FIRST_LPI).contains(*id)) {
                    self.lists.deactivate_physical(*intid);
                }
                assert!(self.gic.pending.is_superset(&self.owed));
                assert!(self.gic.active.is_empty());
                self.exits();
            }
            Err(busy) => {
                assert!(self.lists.listed().eq(before.listed()));
                match busy {
                    Busy::Lpi(intid) => assert!(intid >= FIRST_LPI && listed.contains(&intid)),
                    Busy::Active(intid) => assert!(self.handling.contains(&intid)),
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Raise(u32),
    Alarm,
    Away(Vec<u32>),
    Acknowledge,
    End,
    StepAside,
}

fn event() -> impl Strategy<Value = Event> {
    let intid = prop_oneof![0..4_u32, 26..30_u32, 32..40_u32, 8192..8196_u32];
    prop_oneof![
        3 => intid.clone().prop_map(Event::Raise),
        1 => Just(Event::Alarm),
        1 => prop::collection::vec(intid, 0..6).prop_map(Event::Away),
        2 => Just(Event::Acknowledge),
        2 => Just(Event::End),
        1 => Just(Event::StepAside),
    ]
}

proptest! {
    #[test]
    fn what_is_raised_is_taken(
        lists in 2..5_usize,
        events in prop::collection::vec(event(), 0..80),
    ) {
        let mut world = World::new(lists);
        for event in events {
            match event {
                Event::Raise(intid) => world.raise(intid),
                Event::Alarm => {
                    world.gic.alarm = true;
                    world.exits();
                    prop_assert!(!world.gic.alarm);
                }
                Event::Away(raised) => world.away(&raised),
                Event::Acknowledge => world.acknowledge(),
                Event::End => world.end(),
                Event::StepAside => world.step_aside(),
            }
        }
        for _ in 0..200 {
            world.acknowledge();
            world.end();
        }
        prop_assert!(world.owed.is_empty(), "lost: {:?}", world.owed);
        prop_assert!(world.gic.active.is_empty());
        prop_assert!(check_give_back(&world.lists).is_ok());
    }

    #[test]
    fn what_is_carried_comes_back(mask: u8, points: [u8; 2], control in 0..4_u64, groups: [bool; 2]) {
        let physical = CpuInterface {
            priority_mask: mask.into(),
            binary_points: points.map(|point| u64::from(point & 7)),
            control,
            groups: groups.map(u64::from),
            active_priorities: [0; 2],
        };
        let carried = carry(physical).unwrap();
        prop_assert_eq!(return_carried(carried), Some(physical));
    }
}

/// The value that Linux 6.12 was seen to run with.
#[test]
fn linux() {
    let linux = CpuInterface {
        priority_mask: 0xf0,
        binary_points: [0, 0],
        control: 0x402,
        groups: [0, 1],
        active_priorities: [0; 2],
    };
    let carried = carry(linux).unwrap();
    assert_eq!(carried.control, 0xf0 << 24 | 1 << 9 | 1 << 3 | 1 << 1);
    let busy = CpuInterface {
        active_priorities: [0, 1],
        ..linux
    };
    assert_eq!(carry(busy), None);
    let busy = VirtualInterface {
        active_priorities: [1, 0],
        ..carried
    };
    assert_eq!(return_carried(busy), None);
}

#[test]
fn an_interrupt_that_comes_twice_joins_itself() {
    let mut world = World::new(2);
    world.raise(3);
    world.raise(3);
    assert_eq!(world.lists.listed().count(), 1);
    world.acknowledge();
    world.raise(3);
    let states: Vec<ListState> = world.lists.listed().map(|list| list.state).collect();
    assert_eq!(states, [ListState::PendingAndActive]);
}

/// `ICH_VTR_EL2` as cores of Arm's have it (5 bits of preemption), and with 6, 7 and 3 bits.
#[test]
fn as_many_active_priorities_are_switched_as_the_cpu_has() {
    for (bits, registers) in [(5, 1), (6, 2), (7, 4), (3, 1)] {
        let vtr = 0x8000_0003 | (bits - 1) << 26;
        assert_eq!(active_priority_registers(vtr), registers, "{bits} bits");
    }
}
