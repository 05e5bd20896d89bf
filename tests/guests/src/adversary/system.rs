//! System registers, calls, accesses to devices, interrupts and timers, of every encoding, number, size and kind.

use core::sync::atomic::{AtomicU64, Ordering};

use machine_bare::memory::Scratch;
use machine_bare::probe::{self, Register};
use machine_bare::vectors::Frame;
use machine_bare::{console, cpu, gic, psci, timer};
use tests_guests::random::Random;

use crate::World;
use crate::second;

/// Interrupts that are taken in a row before all are held back.
const MOST_INTERRUPTS: u64 = 2_000;
/// `ICC_BPR1_EL1`. QEMU 10.0 keeps three bits of what is written there, and an assertion ends it where those are 0 and
/// another one was not.
const BINARY_POINT: Register = Register(3, 0, 12, 12, 3);
/// The first number that means no interrupt.
const NONE: u32 = 1020;
/// Where devices are, and how large.
const PLACES: [(u64, u64); 8] = [
    (0x0800_0000, 0x1_0000),  // GICD
    (0x080a_0000, 0x2_0000),  // GICR of the first CPU
    (0x0900_0000, 0x1000),    // UART
    (0x0901_0000, 0x1000),    // RTC
    (0x0903_0000, 0x1000),    // GPIO
    (0x0a00_0000, 0x4000),    // virtio-mmio
    (0x0f00_0000, 0x10_0000), // nothing
    (0, 0x3f00_0000),
];

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Takes an interrupt and sees to it that its source gives peace.
pub fn take(_frame: &mut Frame) {
    let intid = gic::acknowledge();
    calm(intid);
    gic::end(intid);
}

/// The same of group 0.
pub fn take_group0(_frame: &mut Frame) {
    let intid = gic::acknowledge_group0();
    calm(intid);
    gic::end_group0(intid);
}

fn calm(intid: u32) {
    match intid {
        timer::VIRTUAL_INTID => timer::stop(),
        timer::PHYSICAL_INTID => timer::physical::set_control(0),
        16..NONE => gic::Line::new(intid).disable(),
        _ => {}
    }
    if TAKEN.fetch_add(1, Ordering::Relaxed) >= MOST_INTERRUPTS {
        gic::set_priority_mask(0);
        gic::set_group1(0);
        gic::set_group0(0);
    }
}

/// Lets interrupts come for a while.
fn open_window(turns: u64) {
    TAKEN.store(0, Ordering::Relaxed);
    cpu::unmask();
    cpu::spin(turns);
    cpu::mask();
}

fn any_register(random: &mut Random) -> Register {
    let bits = random.number() as u32;
    let n = match bits >> 28 {
        0..4 => 14,
        4..7 => 9,
        7..10 => 12,
        _ => bits >> 4 & 15,
    };
    let op1 = match bits >> 24 & 7 {
        0..3 => 0,
        3 => 3,
        _ => bits >> 8 & 7,
    };
    Register(2 | bits & 1, op1, n, bits >> 12 & 15, bits >> 16 & 7)
}

/// Reads or writes a register that may exist, or executes a system instruction. Faults are as good as values.
pub fn any_system(random: &mut Random, memory: &Scratch) {
    for _ in 0..16 {
        let register = any_register(random);
        let value = match random.below(4) {
            0 => 0,
            1 if register == BINARY_POINT => random.number() & 7,
            1 => random.number(),
            _ => u64::MAX,
        };
        let _ = match random.below(8) {
            0 => probe::system_instruction(register, memory),
            1..5 => probe::read_register(register).map(drop),
            _ if probe::NEEDED.iter().any(|(needed, _)| *needed == register) => Ok(()),
            _ => probe::write_register(register, value),
        };
    }
    timer::stop();
    timer::physical::set_control(0);
}

/// As [`any_system`].
pub fn register(world: &mut World) {
    any_system(&mut world.random, &world.arena.hot);
}

/// Hypercalls of every number that neither starts nor ends a CPU or the machine.
pub fn any_call(random: &mut Random, address: u64) {
    let numbers = [
        0x8400_0000,
        0xc400_0000,
        0x8000_0000,
        0x8600_0000,
        0xc600_0000,
        0xc500_0000,
        0x8400_0050,
        0xc400_0050,
    ];
    let function = match random.below(8) {
        0 => random.number() as u32,
        _ => numbers[random.below(8) as usize] + random.below(0x40) as u32,
    };
    // One of its own would set frames of the machine aside where a bench allows that.
    let function = if function == 0xc600_0021 {
        0xc600_0022
    } else {
        function
    };
    let argument = |random: &mut Random| match random.below(4) {
        0 => random.number(),
        1 => address,
        2 => u64::MAX << random.below(64),
        _ => random.below(8),
    };
    let arguments = [argument(random), argument(random), argument(random)];
    psci::any(function, arguments);
    if random.below(8) == 0 {
        let _ = probe::call_with(random.number() as u16, random.below(2) == 0);
    }
    if random.below(4) == 0 {
        // Neither an entry nor a CPU: refused, or the CPU is on.
        let _ = psci::cpu_on(random.below(3), 0x3000_0000 + random.below(1 << 20), 0);
        let _ = psci::cpu_on(random.number(), 0x4000_0000, 0);
    }
}

/// As [`any_call`].
pub fn call(world: &mut World) {
    let address = world.arena.address(&mut world.random);
    any_call(&mut world.random, address);
}

/// Accesses of every size and kind to devices, and to where none is.
pub fn access(world: &mut World) {
    let random = &mut world.random;
    for _ in 0..16 {
        let (base, size) = PLACES[random.below(PLACES.len() as u64) as usize];
        let offset = random.below(size);
        let offset = match random.below(4) {
            0 => offset,
            1 => offset & !7,
            _ => offset & !3,
        };
        // A register of a queue that gets it as an address finds memory of devices there, or none.
        let value = match random.below(4) {
            0 => random.below(256),
            1 => u64::MAX,
            2 => world.arena.malformed.base(),
            _ => random.number() | 1 << 63 | 1 << 31,
        };
        let _ = probe::access(
            random.below(probe::FORMS as u64) as usize,
            base + offset,
            value,
        );
    }
    restore();
}

/// What the other CPU needs to be woken, and this one to go on.
fn restore() {
    gic::init_distributor();
    gic::init_cpu();
    second::let_wake();
}

/// SGIs to itself and to the other CPU, and interrupts of every kind that come then.
pub fn interrupts(world: &mut World) {
    let random = &mut world.random;
    if random.below(4) == 0 {
        gic::init_cpu();
    }
    for intid in 0..16 {
        gic::Line::new(intid).enable();
    }
    let own = cpu::affinity();
    for _ in 0..random.below(200) {
        let intid = random.below(16) as u32;
        match random.below(3) {
            0 => gic::send(intid, own),
            1 => gic::send(intid, random.below(4)),
            _ => gic::send_to_others(intid),
        }
    }
    open_window(random.below(20_000));
}

/// The virtual timer fires: at once, soon, or has fired for a year; WFI meanwhile.
pub fn sleep(random: &mut Random) {
    gic::init_cpu();
    gic::Line::new(timer::VIRTUAL_INTID).enable();
    let deadline = match random.below(4) {
        0 => timer::now(),
        1 => 0,
        _ => timer::now() + random.below(timer::ticks(2000)),
    };
    timer::fire_at(deadline);
    for _ in 0..=random.below(4) {
        cpu::wait_for_interrupt();
    }
    open_window(random.below(2000));
    timer::stop();
}

/// As [`sleep`]; the other CPU changes nothing of the interrupt controller.
pub fn timer(world: &mut World) {
    gic::init_distributor();
    sleep(&mut world.random);
}

/// A line for the console that nobody wants to read.
pub fn flood(world: &mut World) {
    let uart = console::uart();
    if world.random.below(16) == 0 {
        for _ in 0..200 {
            console::transmit(&uart, b'.');
        }
        console::transmit(&uart, b'\n');
    }
}
