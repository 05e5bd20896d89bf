//! The machine behind the registers: CPUs, time, the interrupt controller, devices and RAM.

use crate::coroutine::{self, Runner};
use crate::disk::Disk;
use crate::faults::Faults;
use crate::gicv3::{self, Gic};
use crate::guest::FpState;
use crate::port::{Card, Port};
use crate::ram::Ram;
use crate::registers::{self, number};
use crate::rng::Rng;
use crate::stage2::{Tlb, vmid};
use crate::tlb::Reaches;
use crate::virtio::{self, Device};
use machine_locks::{HeldRanks, RankEvent};
use model_addr::{Ipa, Pa};
use std::cell::RefCell;

/// Where EL2's image would lie.
pub const IMAGE: Pa = Pa(Ram::START.0 + 0x20_0000);
/// Where RAM begins.
pub const RAM: Pa = Ram::START;
/// Where the log's PL011 is.
pub const UART: u64 = 0x0900_0000;
/// Counts per second.
pub const FREQUENCY: u64 = 62_500_000;
/// Bytes of all devices' windows.
const WINDOWS_SIZE: u64 = virtio::WINDOW_SIZE * virtio::WINDOWS as u64;
/// The interrupts of the timers and of the virtual CPU interface, as on QEMU's `virt`.
pub const VIRTUAL_TIMER: u32 = 27;
/// See [`VIRTUAL_TIMER`].
pub const HYPERVISOR_TIMER: u32 = 26;
/// See [`VIRTUAL_TIMER`].
pub const MAINTENANCE: u32 = 25;

thread_local! {
    pub(crate) static MACHINE: RefCell<Option<Box<Machine>>> = const { RefCell::new(None) };
}

/// How a machine is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Decides all that is left open: the same one, the same life.
    pub seed: u64,
    /// CPUs, from 1 to 16.
    pub cpus: usize,
    /// Bytes of RAM.
    pub memory: usize,
    /// One register access in so many is a point at which another CPU goes on.
    pub pause_every: u64,
    /// CPUs that firmware refuses to start, a bit each.
    pub refused: u16,
    /// CPUs that firmware says it starts and does not.
    pub silent: u16,
    /// Work on pages takes time, as locks do.
    pub works_in_time: bool,
}

/// Where CPUs begin.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// The first, with the machine address of the device tree.
    pub first: fn(u64) -> !,
    /// Each other one.
    pub other: fn() -> !,
}

/// What guests do, for whoever checks it.
pub trait Observer {
    /// A vCPU has read `size` bytes of its memory; an error ends the life.
    fn loaded(&mut self, vcpu: &Registers, at: Ipa, size: u64, value: u64) -> Result<(), String>;
    /// A vCPU has written `size` bytes of its memory.
    fn stored(&mut self, vcpu: &Registers, at: Ipa, size: u64, value: u64);
    /// A vCPU has executed `HLT #number`, which here asks whoever watches; an error ends the life. `look` gives the 8
    /// bytes at an address as the vCPU would load them; nothing where that would fault.
    fn called(
        &mut self,
        vcpu: &mut Registers,
        number: u16,
        look: &mut dyn FnMut(Ipa) -> Option<u64>,
    ) -> Result<(), String>;
}

/// A guest's general registers.
pub type Registers = crate::context::GuestContext;

/// Why a CPU is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It goes on whenever it is chosen.
    Goes,
    /// It goes on with an interrupt.
    Sleeps,
    /// It never goes on.
    Halted,
}

/// What a CPU is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Never started.
    Off,
    /// It can go on.
    Ready,
    /// In WFI.
    Asleep,
    /// Out of the game.
    Halted,
}

/// How a CPU starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// As the first one, with the address of the device tree.
    First(u64),
    /// By PSCI.
    Other,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A CPU went on.
    Went,
    /// All CPUs slept; time has passed.
    Slept,
    /// All CPUs sleep, and nothing will wake one.
    Idle,
    /// All CPUs sleep until the time to which the machine was to run, or longer.
    Reached,
    /// The machine is off.
    Off,
}

/// A CPU.
pub struct Cpu {
    pub(crate) registers: [u64; registers::COUNT],
    pub(crate) state: State,
    pub(crate) starts_as: Start,
    pub(crate) tlb: Tlb,
    pub(crate) floating_point: FpState,
    /// Where its guest was last.
    pub(crate) guest_pc: u64,
    /// What its exclusive monitor watches: address and value.
    pub(crate) exclusive: Option<(Pa, u64)>,
    held: HeldRanks,
}

/// A machine.
pub struct Machine {
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) current: Option<usize>,
    pub(crate) ram: Ram,
    pub(crate) gic: Gic,
    pub(crate) disk: Option<Device<Disk>>,
    pub(crate) port: Option<Device<Port>>,
    pub(crate) card: Option<Device<Card>>,
    /// When a device has something to do; `u64::MAX`: never.
    pub(crate) due: u64,
    pub(crate) faults: Faults,
    pub(crate) config: Config,
    pub(crate) rng: Rng,
    /// Counts since it was switched on.
    pub time: u64,
    /// The time to which it runs while all CPUs sleep; `u64::MAX`: to whatever wakes one.
    pub limit: u64,
    /// Points at which another CPU could go on.
    pub steps: u64,
    /// The firmware was asked to switch it off.
    pub is_off: bool,
    /// What EL2 has written to its log.
    pub log: Vec<u8>,
    /// Who watches guests.
    pub observer: Option<Box<dyn Observer>>,
    /// What no machine may do, as far as it was seen.
    pub violation: Option<String>,
}

/// Lends the machine of this thread. What is done with it runs no CPU.
#[expect(
    clippy::expect_used,
    reason = "CPUs run within `run` only, which has a machine"
)]
pub fn with<R>(action: impl FnOnce(&mut Machine) -> R) -> R {
    MACHINE.with_borrow_mut(|machine| action(machine.as_mut().expect("a machine runs")))
}

/// A point at which another CPU may go on.
pub fn step() {
    if with(Machine::tick) {
        coroutine::leave(Pause::Goes);
    }
}

/// Leaves the executing CPU.
pub fn pause(why: Pause) {
    with(|machine| {
        // Who waits for a CPU that never comes need not wait for long.
        machine.time += if machine.config.silent == 0 {
            8
        } else {
            100_000
        };
        machine.work();
    });
    coroutine::leave(why);
}

/// Runs a machine of this thread, whose first CPU finds its device tree at `tree`, until `goes_on` says no. It is
/// called whenever a CPU was left, with what came of it.
///
/// # Errors
/// RAM that cannot be mapped.
pub fn run(
    config: Config,
    entries: Entries,
    prepare: impl FnOnce(&mut Machine) -> u64,
    mut goes_on: impl FnMut(Progress) -> bool,
) -> Result<(), String> {
    let mut machine = Box::new(Machine::new(config)?);
    let tree = prepare(&mut machine);
    machine.cpus[0].starts_as = Start::First(tree);
    machine.cpus[0].state = State::Ready;
    machine_locks::set_rank_tracker(note_rank);
    // SAFETY: whatever ran before has ended.
    unsafe { crate::mmu::forget() };
    MACHINE.set(Some(machine));
    let mut runner = Runner::new(entries, config.cpus);
    while goes_on(runner.advance()) {}
    drop(runner);
    MACHINE.set(None);
    Ok(())
}

/// A lock is about to be taken, was taken or is given back.
fn note_rank(rank: machine_locks::Rank, event: RankEvent) {
    let is_here =
        MACHINE.with_borrow(|machine| machine.as_ref().is_some_and(|it| it.current.is_some()));
    if is_here {
        with(|machine| machine.cpu().held.note(rank, event));
        if event == RankEvent::Lock {
            step();
        }
    }
}

impl Cpu {
    pub(crate) fn new(affinity: u64) -> Self {
        let mut registers = [0; registers::COUNT];
        let mut set = |register: usize, value: u64| registers[register] = value;
        set(const { number("mpidr_el1") }, 1 << 31 | affinity);
        set(const { number("midr_el1") }, 0x411f_d0c1);
        set(const { number("ctr_el0") }, 0x8444_c004);
        set(const { number("dczid_el0") }, 4);
        set(const { number("cntfrq_el0") }, FREQUENCY);
        // EL0 to EL2 in AArch64, GICv3, CSV2.
        set(
            const { number("id_aa64pfr0_el1") },
            3 << 56 | 1 << 24 | 0x111,
        );
        // 40 bits of physical address; 8 bits of VMID.
        set(const { number("id_aa64mmfr0_el1") }, 2);
        // RNDR, atomics, AES and PMULL.
        set(
            const { number("id_aa64isar0_el1") },
            1 << 60 | 2 << 20 | 2 << 4,
        );
        // Four list registers, five bits of priority.
        set(const { number("s3_4_c12_c11_1") }, 4 << 29 | 4 << 26 | 3);
        Self {
            registers,
            state: State::Off,
            starts_as: Start::Other,
            tlb: Tlb::default(),
            floating_point: FpState::RESET,
            guest_pc: 0,
            exclusive: None,
            held: HeldRanks::new(),
        }
    }
}

impl Machine {
    fn new(config: Config) -> Result<Self, String> {
        let affinities: Vec<u64> = (0..config.cpus as u64).collect();
        let bytes = config.memory;
        let ram = Ram::new(bytes)
            .map_err(|error| format!("cannot map {bytes} bytes of RAM at {RAM}: {error}"))?;
        Ok(Self {
            cpus: affinities
                .iter()
                .map(|affinity| Cpu::new(*affinity))
                .collect(),
            current: None,
            ram,
            gic: Gic::new(&affinities),
            disk: None,
            port: None,
            card: None,
            due: u64::MAX,
            faults: Faults::default(),
            config,
            rng: Rng::new(config.seed),
            time: 1_000_000,
            limit: u64::MAX,
            steps: 0,
            is_off: false,
            log: Vec::new(),
            observer: None,
            violation: None,
        })
    }

    /// Copies bytes into RAM, before the machine runs or as a device does.
    pub fn fill(&mut self, at: Pa, bytes: &[u8]) -> Option<()> {
        self.ram.fill(at, bytes)
    }

    /// Time passes; whether another CPU is to go on.
    pub(crate) fn tick(&mut self) -> bool {
        self.steps += 1;
        self.time += 1;
        self.work();
        let often = self.faults.interrupts;
        if often > 0 && self.rng.below(often) == 0 {
            self.disturb();
        }
        self.current.is_some() && self.rng.below(self.config.pause_every.max(1)) == 0
    }

    /// Whether a CPU has a lock, or is about to take one, as far as locks tell.
    pub fn holds_locks(&self) -> bool {
        self.cpus.iter().any(|cpu| !cpu.held.is_empty())
    }

    /// What each CPU is at: for whoever looks into a life that hangs.
    pub fn describe(&self) -> String {
        let cpu = |cpu: &Cpu| {
            let [esr, far] = [const { number("esr_el2") }, const { number("far_el2") }];
            let (pc, esr, far) = (cpu.guest_pc, cpu.registers[esr], cpu.registers[far]);
            format!(
                "{:?}, guest at {pc:#x}, esr {esr:#x}, far {far:#x}",
                cpu.state
            )
        };
        let all: Vec<String> = self.cpus.iter().map(cpu).collect();
        all.join("; ")
    }

    /// The executing CPU; before any executes, the first.
    pub fn cpu(&mut self) -> &mut Cpu {
        let current = self.current.unwrap_or(0);
        &mut self.cpus[current]
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.rng.next()
    }

    /// Which CPU goes on, of those that can.
    pub(crate) fn choose(&mut self) -> Option<usize> {
        let mut able: [usize; 16] = [0; 16];
        let mut count = 0;
        for cpu in 0..self.cpus.len().min(able.len()) {
            if self.is_able(cpu) {
                able[count] = cpu;
                count += 1;
            }
        }
        (count > 0).then(|| able[self.rng.below(count as u64) as usize])
    }

    fn is_able(&mut self, cpu: usize) -> bool {
        match self.cpus[cpu].state {
            State::Ready => true,
            State::Asleep => self.is_interrupted(cpu),
            State::Off | State::Halted => false,
        }
    }

    /// When a timer or a device wakes a CPU that sleeps.
    fn next_alarm(&self) -> Option<u64> {
        let alarms = self.cpus.iter().filter_map(Cpu::next_alarm);
        alarms
            .chain((self.due != u64::MAX).then_some(self.due))
            .min()
    }

    /// When it goes on by itself: at once where a CPU can, and `u64::MAX` for never.
    pub fn goes_on_at(&mut self) -> u64 {
        if (0..self.cpus.len()).any(|cpu| self.is_able(cpu)) {
            self.time
        } else {
            self.next_alarm().unwrap_or(u64::MAX)
        }
    }

    /// All CPUs sleep: it becomes the time at which a timer wakes one.
    pub(crate) fn pass_time(&mut self) -> Progress {
        let (at, progress) = match self.next_alarm() {
            Some(at) if at < self.limit => (at, Progress::Slept),
            _ if self.limit != u64::MAX => (self.limit, Progress::Reached),
            _ => return Progress::Idle,
        };
        self.time = self.time.max(at);
        self.work();
        progress
    }

    pub(crate) fn find_cpu(&self, affinity: u64) -> Option<usize> {
        let mask = crate::cpu::AFFINITY_MASK;
        self.cpus
            .iter()
            .position(|cpu| cpu.registers[const { number("mpidr_el1") }] & mask == affinity & mask)
    }

    /// Starts a CPU by PSCI with a [`crate::boot::SecondaryRecord`]; `false` where it is on.
    pub(crate) fn start_cpu(&mut self, cpu: usize, record: u64) -> bool {
        let own = &mut self.cpus[cpu];
        let bit = 1 << cpu;
        if own.state != State::Off || self.config.refused & bit != 0 {
            return false;
        }
        if self.config.silent & bit != 0 {
            return true;
        }
        let record =
            std::ptr::with_exposed_provenance::<crate::boot::SecondaryRecord>(record as usize);
        // SAFETY: EL2 passes the record that it has just made and keeps until the CPU is online.
        let local_word = unsafe { record.read() }.local_word;
        own.registers[const { number("tpidr_el2") }] = local_word;
        own.state = State::Ready;
        true
    }

    /// Whether an interrupt is pending for a CPU, masked by its PSTATE or not.
    pub(crate) fn is_interrupted(&mut self, cpu: usize) -> bool {
        self.drive_lines(cpu);
        let mask = self.cpus[cpu].priority_mask();
        self.gic.highest(cpu, mask).is_some()
    }

    /// The lines of a CPU's own timers and virtual interface become what they are.
    fn drive_lines(&mut self, cpu: usize) {
        let own = &self.cpus[cpu];
        let (hypervisor, guest) = (own.is_alarm_due(self.time), own.is_timer_due(self.time));
        let maintenance = own.wants_maintenance();
        self.gic.set_private_line(cpu, HYPERVISOR_TIMER, hypervisor);
        self.gic.set_private_line(cpu, VIRTUAL_TIMER, guest);
        self.gic.set_private_line(cpu, MAINTENANCE, maintenance);
    }

    pub(crate) fn read_register(&mut self, register: usize) -> u64 {
        const TIME: usize = number("cntpct_el0");
        const PENDING: usize = number("isr_el1");
        const VIRTUAL_CONTROL: usize = number("cntv_ctl_el0");
        const ACKNOWLEDGE: usize = number("s3_0_c12_c12_0");
        const RUNNING: usize = number("s3_0_c12_c11_3");
        const EMPTY: usize = number("s3_4_c12_c11_5");
        let cpu = self.current.unwrap_or(0);
        match register {
            TIME => self.time,
            PENDING => u64::from(self.is_interrupted(cpu)) << 7,
            VIRTUAL_CONTROL => {
                let own = &self.cpus[cpu];
                let is_reached = own.is_timer_reached(self.time);
                own.registers[register] & 3 | u64::from(is_reached) << 2
            }
            ACKNOWLEDGE => {
                self.drive_lines(cpu);
                let mask = self.cpus[cpu].priority_mask();
                self.gic.acknowledge(cpu, mask).into()
            }
            RUNNING => self.gic.running_priority(cpu).into(),
            EMPTY => self.cpus[cpu].empty_lists().into(),
            _ => self.cpus[cpu].registers[register],
        }
    }

    pub(crate) fn write_register(&mut self, register: usize, value: u64) {
        const SEND: usize = number("s3_0_c12_c11_5");
        const DROP: usize = number("s3_0_c12_c12_1");
        const DEACTIVATE: usize = number("s3_0_c12_c11_1");
        let cpu = self.current.unwrap_or(0);
        match register {
            SEND => self.gic.send(value),
            DROP => self.gic.drop_priority(cpu),
            DEACTIVATE => self.gic.deactivate(cpu, value as u32),
            _ => self.cpus[cpu].registers[register] = value,
        }
    }

    pub(crate) fn read_device(&mut self, at: u64, size: usize) -> u64 {
        if let Some(offset) = within(at, virtio::WINDOW, WINDOWS_SIZE) {
            let read = self.at_window(offset, |device, offset, _| device.read(offset, size));
            return read.unwrap_or(0);
        }
        if let Some(offset) = within(at, gicv3::DISTRIBUTOR, 0x1_0000) {
            return self.gic.read_distributor(offset);
        }
        let redistributors = gicv3::STRIDE * self.cpus.len() as u64;
        if let Some(offset) = within(at, gicv3::REDISTRIBUTORS, redistributors) {
            return self.gic.read_redistributor(offset);
        }
        0
    }

    pub(crate) fn write_device(&mut self, at: u64, size: usize, value: u64) {
        let redistributors = gicv3::STRIDE * self.cpus.len() as u64;
        if let Some(offset) = within(at, gicv3::DISTRIBUTOR, 0x1_0000) {
            self.gic.write_distributor(offset, size, value);
        } else if let Some(offset) = within(at, gicv3::REDISTRIBUTORS, redistributors) {
            self.gic.write_redistributor(offset, size, value);
        } else if let Some(offset) = within(at, virtio::WINDOW, WINDOWS_SIZE) {
            self.at_window(offset, |device, offset, (ram, now, rng)| {
                device.write(offset, value, ram, now, rng);
            });
            self.drive_devices();
        } else if at == UART {
            self.log.push(value as u8);
        }
    }

    /// The current VMID: of what the executing CPU has in `VTTBR_EL2`.
    fn vmid(&mut self) -> u16 {
        vmid(self.cpu().registers[const { number("vttbr_el2") }])
    }

    pub(crate) fn drop_vmid(&mut self, reaches: Reaches) {
        let vmid = self.vmid();
        self.reached(reaches, |tlb| tlb.drop_vmid(vmid));
    }

    pub(crate) fn drop_page(&mut self, ipa: Ipa, reaches: Reaches) {
        let vmid = self.vmid();
        self.reached(reaches, |tlb| tlb.drop_page(vmid, ipa));
    }

    fn reached(&mut self, reaches: Reaches, mut action: impl FnMut(&mut Tlb)) {
        match reaches {
            Reaches::Here => action(&mut self.cpu().tlb),
            Reaches::AllCpus => self.cpus.iter_mut().for_each(|cpu| action(&mut cpu.tlb)),
        }
    }
}

/// How far `at` is into a window, if it is inside.
fn within(at: u64, start: u64, size: u64) -> Option<u64> {
    at.checked_sub(start).filter(|offset| *offset < size)
}

impl Cpu {
    pub(crate) fn register(&self, register: usize) -> u64 {
        self.registers[register]
    }

    fn priority_mask(&self) -> u8 {
        self.register(const { number("s3_0_c4_c6_0") }) as u8
    }

    fn is_alarm_due(&self, now: u64) -> bool {
        let control = self.register(const { number("cnthp_ctl_el2") });
        control & 3 == 1 && self.register(const { number("cnthp_cval_el2") }) <= now
    }

    fn timer_reached_at(&self) -> u64 {
        let compare = self.register(const { number("cntv_cval_el0") });
        let offset = self.register(const { number("cntvoff_el2") });
        // Virtual time may be ahead of the machine's.
        compare.saturating_add_signed(offset.cast_signed())
    }

    fn is_timer_reached(&self, now: u64) -> bool {
        let control = self.register(const { number("cntv_ctl_el0") });
        control & 1 == 1 && self.timer_reached_at() <= now
    }

    fn is_timer_due(&self, now: u64) -> bool {
        self.is_timer_reached(now) && self.register(const { number("cntv_ctl_el0") }) & 2 == 0
    }

    /// When a timer raises an interrupt of a CPU that sleeps.
    fn next_alarm(&self) -> Option<u64> {
        if self.state != State::Asleep {
            return None;
        }
        let alarm = self.register(const { number("cnthp_ctl_el2") }) & 3 == 1;
        let timer = self.register(const { number("cntv_ctl_el0") }) & 3 == 1;
        let alarm = alarm.then(|| self.register(const { number("cnthp_cval_el2") }));
        let timer = timer.then(|| self.timer_reached_at());
        alarm.into_iter().chain(timer).min()
    }
}
