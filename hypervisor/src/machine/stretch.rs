//! How long a CPU works at EL2, where interrupts are masked, before it looks at them again: the longest
//! stretch of each kind of work since it came up.
//!
//! A stretch begins with an exit, with the end of a sleep or with a look ([`look`]), and ends with an entry,
//! a sleep or the next look. What is shorter than `1 << SHORT_BITS` counts is not kept: an exit pays for
//! one instruction, by which the run loop finds it long beside what it looks at anyway. Exits of OS-0 are
//! not timed. An image with hooks for tests logs where a stretch over the bound was at work ([`marks`]).

use crate::machine;
use crate::machine::cpu::{self, Cpu};
use abi::control::{LONG_STRETCH_NS, STRETCH_COUNT, trace};
use arch::{cpu as metal, entry::Syndrome, timer};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::Once;
use model_trap::Exit;

#[cfg(feature = "test_hooks")]
pub mod marks;

/// Stretches of fewer than `1 << SHORT_BITS` counts are not kept: 16 us where the counter has 62.5 MHz.
pub const SHORT_BITS: u32 = 10;

/// After so long, work that can be cut is left for a later stretch. The rest of a long one is for the piece that
/// is being done then (25,000 instructions of a counted clock at most), and for what follows: maps that change, answers, and
/// whatever else the exit was for. A cut costs some 5,000 instructions, so a request of 64 KiB is not cut.
const ENOUGH_NS: u64 = LONG_STRETCH_NS / 10 * 6;
/// An exit began no longer than so many counts before it reaches a device.
const EXIT_COUNTS: u64 = 64;

/// What a CPU does in a stretch, in the order of [`abi::control::CpuStatus::stretch_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// An exit that is none of the following.
    Exit,
    /// Memory that was not there, or with fewer rights.
    Memory,
    /// A device of a VM.
    Device,
    /// A physical interrupt.
    Interrupt,
    /// VCPUs leave and come, and are chosen.
    Switch,
    /// Requests from outside, and consoles.
    Control,
    /// What is due at a time: paging, and whatever waits.
    Tick,
    /// VMs that end, and those that start again.
    End,
    /// Pages that move between nodes.
    Numa,
}

/// A CPU's stretches. Only the CPU itself writes them.
pub struct Stretch {
    longest: [AtomicU64; STRETCH_COUNT],
    /// When the one that lasts began, in counts; the end of time before the first.
    since: Cell<u64>,
    kind: Cell<Kind>,
    /// When the last exit by an interrupt was.
    pub interrupted: Cell<u64>,
    /// A tenth of [`ENOUGH_NS`] in counts.
    tenth: Cell<u64>,
}

impl Stretch {
    /// None yet: what is done until the first look is not counted.
    pub const fn new() -> Self {
        Self {
            longest: [const { AtomicU64::new(0) }; STRETCH_COUNT],
            since: Cell::new(u64::MAX),
            kind: Cell::new(Kind::Switch),
            interrupted: Cell::new(0),
            tenth: Cell::new(u64::MAX),
        }
    }

    /// The longest of each kind, in nanoseconds.
    pub fn longest_ns(&self) -> [u64; STRETCH_COUNT] {
        let counts = |longest: &AtomicU64| machine::nanoseconds(longest.load(Ordering::Relaxed));
        self.longest.each_ref().map(counts)
    }

    /// One of that kind began at that count, where none began later.
    pub fn begin(&self, since: u64, kind: Kind) {
        if self.since.get() <= since {
            self.since.set(since);
            self.kind.set(kind);
        }
    }

    /// The kind of work since that count, as far as the CPU's last exit tells of one that began with it.
    fn kind(&self, since: u64) -> Kind {
        let kind = self.kind.get();
        if kind != Kind::Exit {
            return kind;
        }
        let is_device = |ipa| ipa < model_guest_image::map::RAM;
        match model_trap::decode(Syndrome::esr(), Syndrome::addresses) {
            _ if self.interrupted.get() == since => Kind::Interrupt,
            Exit::DataAbort(data) if data.abort.ipa.is_some_and(is_device) => Kind::Device,
            Exit::DataAbort(_) | Exit::InstructionAbort(_) => Kind::Memory,
            _ => Kind::Exit,
        }
    }

    /// The first one begins at that count, or the first after OS-0 had the CPU for itself; at `u64::MAX` OS-0 has
    /// it, and its interrupts are not EL2's to take.
    pub fn restart(&self, since: u64) {
        self.since.set(since);
        self.kind.set(Kind::Switch);
        self.tenth.set(machine::counts(ENOUGH_NS / 10));
    }

    /// Whether it is a physical interrupt's.
    pub fn is_interrupt(&self) -> bool {
        self.kind.get() == Kind::Interrupt
    }

    /// It turns out to be of that kind.
    pub fn turn_to(&self, kind: Kind) {
        self.kind.set(kind);
    }
}

/// The guest has left for a device: a stretch begins about now, if not later.
pub fn begin_access() {
    let since = timer::now().saturating_sub(EXIT_COUNTS);
    cpu::this().stretch.begin(since, Kind::Exit);
}

/// Whether the stretch has lasted for so long that what can be cut is left for a later one.
#[track_caller]
pub fn is_long() -> bool {
    is_past(10)
}

/// Whether so many tenths have passed of the time after which it [`is_long`].
#[track_caller]
pub fn is_past(tenths: u32) -> bool {
    #[cfg(feature = "test_hooks")]
    marks::put(tenths);
    let stretch = &cpu::this().stretch;
    let lasts = timer::now().saturating_sub(stretch.since.get());
    lasts >= stretch.tenth.get().saturating_mul(tenths.into())
}

/// The stretch ends here; the next one begins.
pub fn end() {
    let (cpu, now) = (cpu::this(), timer::now());
    let since = cpu.stretch.since.replace(now);
    if now.saturating_sub(since) >> SHORT_BITS != 0 {
        keep(cpu, since, now - since);
    }
}

#[cold]
fn keep(cpu: &Cpu, since: u64, took: u64) {
    let kind = cpu.stretch.kind(since);
    cpu.stretch.longest[kind as usize].fetch_max(took, Ordering::Relaxed);
    if took > machine::counts(LONG_STRETCH_NS) {
        cpu.trace.note((trace::STRETCH, kind as u8), None, since, 0);
        #[cfg(feature = "test_hooks")]
        marks::tell(cpu, kind, since, took);
    }
}

/// Takes the interrupts that are pending: given at boot.
pub static TAKE_INTERRUPTS: Once<fn(&'static Cpu)> = Once::new();

/// Takes the interrupts that are pending, between two pieces of work; what follows is of kind `next`.
/// The CPU has no guest, and holds no lock. While it comes up, or does what OS-0 asks for that has it for
/// itself, it takes none: they may be OS-0's.
pub fn look(next: Kind) {
    let cpu = cpu::this();
    if cpu.stretch.since.get() == u64::MAX {
        return;
    }
    end();
    if metal::is_interrupt_pending() {
        cpu.stretch.turn_to(Kind::Interrupt);
        if let Some(take) = TAKE_INTERRUPTS.get() {
            take(cpu);
        }
        end();
    }
    cpu.stretch.turn_to(next);
}
