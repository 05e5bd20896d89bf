//! What happened on a machine, event by event: checked, counted, and drawn by others.

pub mod chrome;
mod summary;

pub use summary::{Line, summary};

use abi::control::{NO_VM, TRACE_CLASS_COUNT, TraceEvent, trace};
use tools_abi::{ACCESSES, EXIT_CLASSES, HOST_NEWS, LEFT, SHARES, STRETCHES, TRACE_CLASSES};

/// What an event is about, once its numbers are known to name something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The pCPU.
    pub cpu: u32,
    /// Its class, a place in `tools_abi::TRACE_CLASSES`.
    pub class: u8,
    /// What it is called.
    pub name: &'static str,
    /// The VM, as a place in [`Trace::vms`], and the vCPU; none for the machine's own.
    pub whose: Option<(usize, u16)>,
    /// When it began, in nanoseconds since EL2 started.
    pub at_ns: u64,
    /// How long it took.
    pub span_ns: u64,
    /// An address or a number, by its class.
    pub value: u64,
}

impl Event {
    /// The name of its class.
    pub fn class_name(&self) -> &'static str {
        TRACE_CLASSES[usize::from(self.class) % TRACE_CLASS_COUNT]
    }

    /// Whether it has a length; else it is a moment.
    pub fn is_span(&self) -> bool {
        matches!(
            self.class,
            trace::EXIT | trace::FAULT | trace::SWITCH | trace::STRETCH
        )
    }
}

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The names of the machine's VMs, by their places.
    pub vms: Vec<String>,
    /// Events in the order of their times.
    pub events: Vec<Event>,
    /// Events that were overwritten before they were asked for.
    pub lost: u64,
    /// Events that made no sense.
    pub odd: u64,
}

impl Trace {
    /// Takes events of a pCPU. One whose numbers name nothing is counted and left out: what comes
    /// over the control channel is an allegation like any other.
    pub fn add(&mut self, cpu: u32, events: &[TraceEvent]) {
        for event in events {
            match check(cpu, event, self.vms.len()) {
                Some(event) => self.events.push(event),
                None => self.odd += 1,
            }
        }
    }

    /// Keeps what is about this VM only; puts all in order.
    pub fn finish(&mut self, only: Option<usize>) {
        if let Some(vm) = only {
            self.events
                .retain(|event| event.whose.is_some_and(|(of, _)| of == vm));
        }
        // A span comes before what lies in it.
        self.events
            .sort_by_key(|event| (event.at_ns, u64::MAX - event.span_ns));
    }
}

/// The most vCPUs of a VM.
const VCPUS_MAX: u16 = 64;

fn check(cpu: u32, event: &TraceEvent, vms: usize) -> Option<Event> {
    let detail = usize::from(event.detail);
    let name = match event.kind {
        trace::EXIT => EXIT_CLASSES.get(detail),
        trace::FAULT => ACCESSES.get(detail),
        trace::SHARE => SHARES.get(detail),
        trace::SWITCH => LEFT.get(detail),
        trace::INTERRUPT => (detail == 0).then_some(&"interrupt"),
        trace::STRETCH => STRETCHES.get(detail),
        trace::HOST => HOST_NEWS.get(detail),
        _ => None,
    }?;
    let whose = match event.vm {
        NO_VM => {
            let is_own = matches!(event.kind, trace::INTERRUPT | trace::STRETCH | trace::HOST);
            is_own.then_some(None)?
        }
        vm => Some((usize::from(vm), event.vcpu)),
    };
    if whose.is_some_and(|(vm, vcpu)| vm >= vms || vcpu >= VCPUS_MAX) {
        return None;
    }
    event.at_ns.checked_add(event.span_ns)?;
    Some(Event {
        cpu,
        class: event.kind,
        name,
        whose,
        at_ns: event.at_ns,
        span_ns: event.span_ns,
        value: event.value,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::{FromBytes as _, IntoBytes as _};

    /// An event of the VM `vm`, or of none.
    pub fn event(kind: u8, detail: u8, vm: u16, at_ns: u64, span_ns: u64) -> TraceEvent {
        TraceEvent {
            at_ns,
            span_ns,
            value: 0x4000_0000,
            kind,
            detail,
            vcpu: 1,
            vm,
            reserved: 0,
        }
    }

    #[test]
    fn numbers_that_name_nothing_are_left_out() {
        let mut trace = Trace {
            vms: vec!["a".into()],
            ..Trace::default()
        };
        let good = [
            event(trace::EXIT, 15, 0, 9, 1),
            event(trace::INTERRUPT, 0, NO_VM, 1, 0),
            event(trace::HOST, 6, NO_VM, 10, 0),
        ];
        let odd = [
            event(7, 0, 0, 0, 0),
            event(trace::HOST, 7, NO_VM, 0, 0),
            event(trace::STRETCH, 9, NO_VM, 0, 0),
            event(trace::EXIT, 16, 0, 0, 0),
            event(trace::SHARE, 6, 0, 0, 0),
            event(trace::EXIT, 0, 1, 0, 0),
            event(trace::EXIT, 0, NO_VM, 0, 0),
            event(trace::EXIT, 0, 0, u64::MAX, 1),
            TraceEvent {
                vcpu: VCPUS_MAX,
                ..good[0]
            },
        ];
        trace.add(0, &good);
        trace.add(1, &odd);
        trace.finish(None);
        assert_eq!((trace.events.len(), trace.odd), (3, odd.len() as u64));
        assert_eq!(trace.events[0].name, "interrupt");
        assert_eq!(trace.events[2].name, "lost");
        trace.finish(Some(0));
        assert_eq!(trace.events.len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_make_a_trace_that_can_be_drawn(
            bytes in proptest::collection::vec(any::<[u8; 32]>(), 0..40),
            kinds in proptest::collection::vec((0..8_u8, 0..17_u8, 0..3_u16), 40),
        ) {
            let mut trace = Trace { vms: vec!["\"\\<\u{7}".into(), "b".into()], ..Trace::default() };
            for (n, (bytes, (kind, detail, vm))) in bytes.iter().zip(kinds).enumerate() {
                let mut event = TraceEvent::read_from_bytes(bytes.as_bytes()).unwrap();
                if n % 2 == 0 {
                    (event.kind, event.detail, event.vm, event.vcpu) = (kind, detail, vm, 0);
                }
                trace.add(n as u32, &[event]);
            }
            prop_assert_eq!(trace.events.len() as u64 + trace.odd, bytes.len() as u64);
            trace.finish(None);
            let drawn: serde_json::Value = serde_json::from_str(&chrome::json(&trace)).unwrap();
            let drawn = drawn["traceEvents"].as_array().unwrap();
            let events = drawn.iter().filter(|event| event["ph"] != "M");
            prop_assert_eq!(events.count(), trace.events.len());
            let counted: u64 = summary(&trace).iter().map(|line| line.count).sum();
            prop_assert_eq!(counted, trace.events.len() as u64);
        }
    }
}
