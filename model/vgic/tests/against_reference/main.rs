//! Random guests, devices and schedules: the model shows guests what a plain GIC would.

mod reference;
mod system;

use model_vgic::SgiRegister;
use proptest::prelude::*;
use system::{System, TIMER};

const VCPUS: usize = 3;
/// Few, so that things happen to the same interrupt.
const PRIVATE: [usize; 6] = [0, 1, 15, 16, 20, TIMER];
const SHARED: [usize; 4] = [32, 33, 40, 63];

const ISENABLER: u32 = 0x100;
const ISPENDR: u32 = 0x200;
const ISACTIVER: u32 = 0x300;
const ICACTIVER: u32 = 0x380;

#[derive(Clone, Copy, Debug)]
enum Op {
    Sgi {
        sender: usize,
        register: SgiRegister,
        targets: u64,
        intid: u64,
        all: bool,
    },
    Timer {
        vcpu: usize,
        high: bool,
    },
    Line {
        vcpu: usize,
        intid: usize,
        high: bool,
    },
    Pulse {
        vcpu: usize,
        intid: usize,
        pending: bool,
    },
    OneBit {
        vcpu: usize,
        intid: usize,
        register: u32,
        value: u32,
    },
    Priority {
        vcpu: usize,
        intid: usize,
        value: u8,
    },
    Configure {
        vcpu: usize,
        intid: usize,
        edge: bool,
    },
    Route {
        intid: usize,
        target: usize,
    },
    Control {
        groups: u32,
    },
    Read {
        vcpu: usize,
        intid: usize,
    },
    Acknowledge {
        vcpu: usize,
    },
    End {
        vcpu: usize,
    },
    Leave {
        vcpu: usize,
    },
    ComeBack {
        vcpu: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let vcpu = 0..VCPUS;
    let intid = prop::sample::select([&PRIVATE[..], &SHARED].concat());
    let wired = prop::sample::select([&[16, 20], &SHARED[..]].concat());
    let at = (vcpu.clone(), intid);
    let register = prop::sample::select(vec![
        SgiRegister::Sgi1r,
        SgiRegister::Sgi1r,
        SgiRegister::Sgi0r,
        SgiRegister::Asgi1r,
    ]);
    prop_oneof![
        6 => (vcpu.clone(), register, 0u64..16, prop::sample::select(vec![0u64, 1, 15]), any::<bool>())
            .prop_map(|(sender, register, targets, intid, all)| Op::Sgi {
                sender, register, targets, intid, all
            }),
        3 => (vcpu.clone(), any::<bool>()).prop_map(|(vcpu, high)| Op::Timer { vcpu, high }),
        6 => (vcpu.clone(), wired, any::<bool>())
            .prop_map(|(vcpu, intid, high)| Op::Line { vcpu, intid, high }),
        4 => (at.clone(), any::<bool>())
            .prop_map(|((vcpu, intid), pending)| Op::Pulse { vcpu, intid, pending }),
        6 => (at.clone(), 1u32..8, any::<u32>()).prop_map(|((vcpu, intid), register, value)| {
            // States set by hand are rare, or nothing else would happen.
            let value = if register < 6 { value } else { value & 1 << (intid % 32) };
            Op::OneBit { vcpu, intid, register: register * 0x80, value }
        }),
        4 => (at.clone(), any::<u8>())
            .prop_map(|((vcpu, intid), value)| Op::Priority { vcpu, intid, value }),
        1 => (at.clone(), any::<bool>())
            .prop_map(|((vcpu, intid), edge)| Op::Configure { vcpu, intid, edge }),
        3 => (prop::sample::select(SHARED.to_vec()), 0..=VCPUS)
            .prop_map(|(intid, target)| Op::Route { intid, target }),
        1 => (0u32..4).prop_map(|groups| Op::Control { groups }),
        2 => at.prop_map(|(vcpu, intid)| Op::Read { vcpu, intid }),
        14 => vcpu.clone().prop_map(|vcpu| Op::Acknowledge { vcpu }),
        14 => vcpu.clone().prop_map(|vcpu| Op::End { vcpu }),
        3 => vcpu.clone().prop_map(|vcpu| Op::Leave { vcpu }),
        5 => vcpu.prop_map(|vcpu| Op::ComeBack { vcpu }),
    ]
}

/// The frame that `intid` belongs to: a vCPU's redistributor, or the distributor.
fn frame(vcpu: usize, intid: usize) -> Option<usize> {
    (intid < 32).then_some(vcpu)
}

fn write_one_bit(system: &mut System, vcpu: usize, intid: usize, register: u32, value: u32) {
    let first = intid / 32 * 32;
    for bit in (0..32).filter(|bit| value >> bit & 1 != 0 || register == 0x80) {
        let interrupt = system.reference.at(vcpu, first + bit);
        match register {
            0x080 => interrupt.group1 = value >> bit & 1 != 0,
            0x100 => interrupt.enabled = true,
            0x180 => interrupt.enabled = false,
            0x200 => interrupt.latch = true,
            0x280 => interrupt.latch = false,
            0x300 => system.reference.set_active(vcpu, first + bit),
            _ => system.reference.clear_active(vcpu, first + bit),
        }
    }
    let offset = register + first as u32 / 8;
    system.write(frame(vcpu, intid), offset, 4, value.into());
}

fn configure(system: &mut System, vcpu: usize, intid: usize, edge: bool) {
    // The other interrupts of the word keep what they have.
    let first = intid / 16 * 16;
    let mut value = 0;
    for i in 0..16 {
        let interrupt = system.reference.at(vcpu, first + i);
        if first + i == intid && intid >= 16 {
            interrupt.edge = edge;
        }
        value |= u64::from(interrupt.edge) << (2 * i + 1);
    }
    system.write(frame(vcpu, intid), 0xc00 + first as u32 / 4, 4, value);
}

fn check_state(system: &mut System, vcpu: usize, intid: usize) {
    let first = intid / 32 * 32;
    let offset = first as u32 / 8;
    let pending = system.read(frame(vcpu, intid), ISPENDR + offset);
    let active = system.read(frame(vcpu, intid), ISACTIVER + offset);
    for bit in 0..32 {
        let interrupt = system.reference.at(vcpu, first + bit).clone();
        let seen = (pending >> bit & 1 != 0, active >> bit & 1 != 0);
        let expected = (interrupt.pending(), interrupt.active);
        assert_eq!(
            seen,
            expected,
            "pending, active of {} on {vcpu}",
            first + bit
        );
    }
}

fn apply(system: &mut System, op: Op) {
    match op {
        Op::Sgi {
            sender,
            register,
            targets,
            intid,
            all,
        } => {
            let value = targets | intid << 24 | u64::from(all) << 40;
            system.send_sgi(sender, register, value);
        }
        Op::Timer { vcpu, high } => system.set_timer(vcpu, high),
        Op::Line { vcpu, intid, high } => system.set_line(vcpu, intid, high),
        Op::Pulse {
            vcpu,
            intid,
            pending,
        } => system.pulse(vcpu, intid, pending),
        Op::OneBit {
            vcpu,
            intid,
            register,
            value,
        } => {
            write_one_bit(system, vcpu, intid, register, value);
        }
        Op::Priority { vcpu, intid, value } => {
            system.reference.at(vcpu, intid).priority = value & 0xf8;
            system.write(frame(vcpu, intid), 0x400 + intid as u32, 1, value.into());
        }
        Op::Configure { vcpu, intid, edge } => configure(system, vcpu, intid, edge),
        Op::Route { intid, target } => {
            system.reference.at(0, intid).target = (target < VCPUS).then_some(target);
            system.write(None, 0x6000 + 8 * intid as u32, 8, target as u64);
        }
        Op::Control { groups } => {
            system.reference.groups = [groups & 1 != 0, groups & 2 != 0];
            system.write(None, 0, 4, groups.into());
        }
        Op::Read { vcpu, intid } => check_state(system, vcpu, intid),
        Op::Acknowledge { vcpu } => drop(system.acknowledge(vcpu)),
        Op::End { vcpu } => drop(system.end(vcpu)),
        Op::Leave { vcpu } => system.leave(vcpu),
        Op::ComeBack { vcpu } => system.come_back(vcpu),
    }
}

/// As Linux does: everything on, in group 1, at one priority.
fn boot(system: &mut System) {
    apply(system, Op::Control { groups: 3 });
    for vcpu in 0..VCPUS {
        for intid in [0, 32] {
            write_one_bit(system, vcpu, intid, 0x080, u32::MAX);
            write_one_bit(system, vcpu, intid, ISENABLER, u32::MAX);
        }
        for intid in 0..64 {
            apply(
                system,
                Op::Priority {
                    vcpu,
                    intid,
                    value: 0xa0,
                },
            );
        }
    }
}

/// Lets all vCPUs handle what is there, with all lines low: then nothing is left.
fn drain(system: &mut System) {
    for vcpu in 0..VCPUS {
        system.come_back(vcpu);
    }
    for vcpu in 0..VCPUS {
        system.set_timer(vcpu, false);
        for intid in [16, 20].into_iter().chain(SHARED) {
            system.set_line(vcpu, intid, false);
        }
        while system.end(vcpu) {}
    }
    for vcpu in 0..VCPUS {
        for intid in [0, 32] {
            write_one_bit(system, vcpu, intid, ICACTIVER, u32::MAX);
        }
    }
    for vcpu in 0..VCPUS {
        let mut taken = 0;
        while system.acknowledge(vcpu) {
            system.end(vcpu);
            taken += 1;
            assert!(taken <= 64, "more than there are interrupts");
        }
        assert_eq!(system.reference.candidates(vcpu), []);
        check_state(system, vcpu, 0);
        check_state(system, vcpu, 32);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn guests_see_what_a_plain_gic_would_show(
        list_registers in prop_oneof![3 => 1usize..=4, 1 => 5usize..=16],
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut system = System::new(VCPUS, list_registers);
        boot(&mut system);
        for op in ops {
            apply(&mut system, op);
        }
        drain(&mut system);
    }
}

/// All orders of the numbers below `n`.
fn orders(n: u64) -> Vec<Vec<u64>> {
    let mut all = vec![Vec::new()];
    for next in 0..n as usize {
        let mut longer = Vec::new();
        for (order, at) in all
            .iter()
            .flat_map(|order| (0..=next).map(move |at| (order, at)))
        {
            let mut order = order.clone();
            order.insert(at, next as u64);
            longer.push(order);
        }
        all = longer;
    }
    all
}

/// Interrupts of as many priorities come in any order, more than there are list registers: each time the
/// guest takes the most urgent of those that are left, as [`System::acknowledge`] checks.
#[test]
fn what_waits_is_never_more_urgent_than_what_is_listed() {
    const SGIS: u64 = 6;
    let orders = orders(SGIS);
    assert_eq!(orders.len(), 720);
    for (registers, order) in (1..=5).flat_map(|n| orders.iter().map(move |order| (n, order))) {
        let mut system = System::new(VCPUS, registers);
        boot(&mut system);
        for intid in 0..SGIS as usize {
            let value = 0x20 + 8 * intid as u8;
            apply(
                &mut system,
                Op::Priority {
                    vcpu: 0,
                    intid,
                    value,
                },
            );
        }
        for intid in order {
            system.send_sgi(1, SgiRegister::Sgi1r, 1 | intid << 24);
        }
        for _ in 0..SGIS {
            assert!(system.acknowledge(0) && system.end(0));
        }
        assert!(!system.acknowledge(0));
    }
}
