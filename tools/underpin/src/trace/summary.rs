//! A trace in numbers: for each VM, what happened how often and how long it took.

use super::Trace;
use std::collections::BTreeMap;

/// What happened to one VM, or to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The VM's name; none for the machine's own.
    pub vm: Option<String>,
    /// The class of events.
    pub class: &'static str,
    /// What it was.
    pub name: &'static str,
    /// How often.
    pub count: u64,
    /// How long in all, in nanoseconds; nothing for moments.
    pub total_ns: Option<u128>,
    /// The longest.
    pub most_ns: Option<u64>,
}

impl Line {
    /// How long one took.
    pub fn mean_ns(&self) -> Option<u64> {
        let mean = self.total_ns?.checked_div(self.count.into())?;
        u64::try_from(mean).ok()
    }
}

/// A line for each VM, class and kind that there was, in that order.
pub fn summary(trace: &Trace) -> Vec<Line> {
    let mut lines = BTreeMap::new();
    for event in &trace.events {
        let vm = event.whose.map(|(vm, _)| vm);
        let is_span = event.is_span();
        let line = lines
            .entry((vm, event.class, event.name))
            .or_insert_with(|| Line {
                vm: vm.and_then(|vm| trace.vms.get(vm).cloned()),
                class: event.class_name(),
                name: event.name,
                count: 0,
                total_ns: is_span.then_some(0),
                most_ns: is_span.then_some(0),
            });
        line.count += 1;
        line.total_ns = line.total_ns.map(|sum| sum + u128::from(event.span_ns));
        line.most_ns = line.most_ns.map(|most| most.max(event.span_ns));
    }
    lines.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::{super::tests::event, *};
    use abi::control::trace;

    #[test]
    fn spans_are_summed_and_moments_counted() {
        let mut all = Trace {
            vms: vec!["a".into()],
            ..Trace::default()
        };
        let spans = [10, 30, 20].map(|span| event(trace::EXIT, 0, 0, 5, span));
        all.add(0, &spans);
        all.add(1, &[event(trace::SHARE, 4, 0, 5, 9)]);
        let lines = summary(&all);
        let seen = lines.iter().map(|line| {
            let name = (line.vm.as_deref(), line.class, line.name);
            (name, line.count, line.mean_ns(), line.most_ns)
        });
        let expected = [
            ((Some("a"), "exits", "hypercall"), 3, Some(20), Some(30)),
            ((Some("a"), "shares", "broken"), 1, None, None),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }
}
