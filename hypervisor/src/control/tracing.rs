//! Requests about traces: what is noted from now on, and what was.

use crate::control::Answer;
use crate::machine::stretch::{self, Kind};
use crate::machine::trace::{classes, turn_to};
use crate::memory::heap;
use crate::vcpu::attention;
use crate::{machine, vms};
use abi::control::{
    EventsHeader, EventsRequest, KEEP, TRACE_ALL, TRACE_CPUS, TraceEvent, TraceRequest,
    TraceStatus, code,
};
use alloc::boxed::Box;
use arch::timer;
use core::sync::atomic::Ordering;
use model_control::Refusal;
use model_trace::{Read, Ring, Slot, WORDS, empty};

/// Events in the ring of a pCPU: 128 KiB of them.
const CAPACITY: usize = 4096;

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
        classes: classes(),
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
    turn_to(classes);
    let wanted = attention::of_trace(classes);
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
