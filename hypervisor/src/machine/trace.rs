//! What happens, event by event, while somebody wants to know: a ring on each pCPU, which only that
//! CPU writes.
//!
//! Exits are noted where a vCPU has its [`attention::TRACE`] bit, which the run loop looks at with
//! the others: an exit costs the same as without. All else asks its CPU for the set of classes that
//! are on, one load and one branch.

use crate::control::Answer;
use crate::machine::stretch::{self, Kind};
use crate::memory::heap;
use crate::vcpu::attention;
use crate::vms::table::Refusal;
use crate::{machine, vms};
use abi::control::{
    EventsHeader, EventsRequest, KEEP, NO_VM, TRACE_ALL, TRACE_CPUS, TraceEvent, TraceRequest,
    TraceStatus, code, trace,
};
use alloc::boxed::Box;
use arch::timer;
use core::sync::atomic::{AtomicU32, Ordering};
use machine_locks::Once;
use model_trace::{Read, Ring, Slot, WORDS, empty};

/// Events in the ring of a pCPU: 128 KiB of them.
const CAPACITY: usize = 4096;
const _: () = assert!(crate::machine::cpu::CPUS_MAX == TRACE_CPUS);

/// The classes that are on, for vCPUs that are about to be made.
static CLASSES: AtomicU32 = AtomicU32::new(0);

/// What a pCPU notes, and where.
pub struct Trace {
    classes: AtomicU32,
    ring: Once<Ring<Box<[Slot]>>>,
}

impl Trace {
    /// Notes nothing.
    pub const fn new() -> Self {
        Self {
            classes: AtomicU32::new(0),
            ring: Once::new(),
        }
    }

    /// Whether events of that kind are wanted.
    #[inline]
    pub fn wants(&self, kind: u8) -> bool {
        self.classes.load(Ordering::Relaxed) & 1 << kind != 0
    }

    /// Whether events of any kind are wanted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.classes.load(Ordering::Relaxed) != 0
    }

    /// Notes an event that began at `since`, in counts, and ends now, if its kind is wanted: one of
    /// [`abi::control::trace`], which says what detail and value are. `whose` is the VM's slot and the vCPU's
    /// number; `None` for the machine itself. Called by the pCPU itself only.
    #[cold]
    pub fn note(&self, kind: (u8, u8), whose: Option<(u16, u16)>, since: u64, value: u64) {
        let ((kind, detail), (vm, vcpu)) = (kind, whose.unwrap_or((NO_VM, 0)));
        if let Some(ring) = self.ring.get().filter(|_| self.wants(kind)) {
            let what = u64::from(kind)
                | u64::from(detail) << 8
                | u64::from(vcpu) << 16
                | u64::from(vm) << 32;
            ring.push([since, timer::now().saturating_sub(since), value, what]);
        }
    }
}

/// Whether vCPUs that are made now note their exits, as a bit of [`attention`].
pub fn initial_attention() -> u32 {
    attention_for(CLASSES.load(Ordering::Relaxed))
}

const fn attention_for(classes: u32) -> u32 {
    if classes & 1 << trace::EXIT != 0 {
        attention::TRACE
    } else {
        0
    }
}

/// Traces from the start where the command line says `trace=all`.
pub fn init() {
    if machine::get().tree.has_word("trace=all")
        && let Err(refusal) = turn(TRACE_ALL)
    {
        log::warn!("not traced: {}", refusal.sentence);
    }
}

/// Does what a request says, and tells how tracing stands.
pub fn set(request: TraceRequest) -> Result<TraceStatus, Refusal> {
    if request.classes != KEEP {
        turn(request.classes)?;
    }
    let mut status = TraceStatus {
        classes: CLASSES.load(Ordering::Relaxed),
        capacity: 0,
        now_ns: machine::nanoseconds(timer::now() - machine::get().started),
        next: [0; TRACE_CPUS],
    };
    for cpu in machine::cpus() {
        if let Some(ring) = cpu.trace.ring.get() {
            status.capacity = CAPACITY as u32;
            status.next[usize::from(cpu.id.0)] = ring.next();
        }
    }
    Ok(status)
}

/// Only housekeeping comes here, one CPU at a time, and only it makes vCPUs.
fn turn(classes: u32) -> Result<(), Refusal> {
    for cpu in machine::cpus().filter(|_| classes != 0) {
        if cpu.trace.ring.get().is_some() {
            continue;
        }
        let bytes = CAPACITY * size_of::<Slot>();
        let _reserved = heap::reserve(bytes).ok_or_else(|| {
            let what = format_args!("no memory left for {bytes} bytes of events per CPU");
            Refusal::new(code::NO_MEMORY, bytes as u64, what)
        })?;
        let slots: Box<[Slot]> = (0..CAPACITY).map(|_| empty()).collect();
        let _ = cpu.trace.ring.set(Ring::new(slots));
    }
    CLASSES.store(classes, Ordering::Relaxed);
    for cpu in machine::cpus() {
        cpu.trace.classes.store(classes, Ordering::Release);
    }
    let wanted = attention_for(classes);
    for instance in vms::all().iter().filter_map(|vm| vm.instance()) {
        for vcpu in &instance.vcpus {
            if wanted == 0 {
                vcpu.attention
                    .fetch_and(!attention::TRACE, Ordering::Relaxed);
            } else {
                vcpu.attention.fetch_or(wanted, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Events of a pCPU, as many as fit.
pub fn read(request: &EventsRequest, answer: &mut Answer) -> Result<(), Refusal> {
    let cpu = u16::try_from(request.cpu).ok().and_then(machine::cpu);
    let ring = cpu.and_then(|cpu| cpu.trace.ring.get()).ok_or_else(|| {
        let what = format_args!("cpu {} has noted nothing", request.cpu);
        Refusal::new(code::IMPOSSIBLE, request.cpu.into(), what)
    })?;
    if request.from > ring.next() {
        let what = format_args!("there is no event {} yet", request.from);
        return Err(Refusal::new(code::IMPOSSIBLE, request.from, what));
    }
    answer.push(&EventsHeader { next: 0, lost: 0 });
    let Read { next, lost } = ring.read(request.from, |event| {
        stretch::look(Kind::Control);
        answer.push(&decode(event))
    });
    answer.set_first(&EventsHeader { next, lost });
    Ok(())
}

fn decode([since, span, value, what]: [u64; WORDS]) -> TraceEvent {
    TraceEvent {
        at_ns: machine::nanoseconds(since.saturating_sub(machine::get().started)),
        span_ns: machine::nanoseconds(span),
        value,
        kind: what as u8,
        detail: (what >> 8) as u8,
        vcpu: (what >> 16) as u16,
        vm: (what >> 32) as u16,
        reserved: 0,
    }
}
