//! The switch against a plain reference: a list of who was heard where.
#![allow(clippy::unwrap_used)]

use model_ethernet::{
    FORGET_SECONDS, Limit, Limiter, Mac, PORTS_MAX, PortOptions, PortSet, Refused, Switch, Verdict,
    Why,
};
use proptest::prelude::*;
use proptest::test_runner::Config;

const HZ: u64 = 1000;
const BROADCAST: Mac = [0xff; 6];

fn mac(n: u8) -> Mac {
    [2, 0, 0, 0, 0, n]
}

fn host(n: u8) -> PortOptions {
    PortOptions {
        mac: Some(mac(n)),
        learns: 0,
        bytes: None,
        floods: None,
    }
}

fn uplink(learns: u16) -> PortOptions {
    PortOptions {
        mac: None,
        learns,
        bytes: None,
        floods: None,
    }
}

/// What a switch should do, said plainly. No port limits rates.
#[derive(Default)]
struct Reference {
    ports: Vec<Option<PortOptions>>,
    /// Ports whose cable is pulled.
    down: Vec<u8>,
    /// Address, port, when it was heard.
    heard: Vec<(Mac, u8, u64)>,
}

impl Reference {
    fn attach(&mut self, options: PortOptions) -> u8 {
        if let Some(own) = options.mac {
            self.heard.retain(|(mac, ..)| *mac != own);
        }
        let free = self.ports.iter().position(Option::is_none);
        let n = free.unwrap_or_else(|| {
            self.ports.push(None);
            self.ports.len() - 1
        });
        self.ports[n] = Some(options);
        n as u8
    }

    fn detach(&mut self, n: u8) {
        if let Some(port) = self.ports.get_mut(usize::from(n)) {
            *port = None;
        }
        self.down.retain(|port| *port != n);
        self.heard.retain(|(_, port, _)| *port != n);
    }

    fn owner(&self, mac: Mac) -> Option<u8> {
        let owns = |port: &Option<PortOptions>| port.is_some_and(|port| port.mac == Some(mac));
        self.ports.iter().position(owns).map(|n| n as u8)
    }

    fn forward(&mut self, from: u8, source: Mac, destination: Mac, now: u64) -> Verdict {
        let Some(Some(port)) = self.ports.get(usize::from(from)).copied() else {
            return Verdict::Drop(Why::Spoofed);
        };
        if source[0] & 1 == 1 || source == [0; 6] {
            return Verdict::Drop(Why::Spoofed);
        }
        match self.owner(source) {
            Some(owner) if owner != from => return Verdict::Drop(Why::Spoofed),
            Some(_) => {}
            None => {
                let known = |&&(mac, at, _): &&(Mac, u8, u64)| mac == source && at == from;
                if self.heard.iter().find(known).is_none() {
                    let count = self.heard.iter().filter(|(_, at, _)| *at == from).count();
                    if count >= usize::from(port.learns) {
                        return Verdict::Drop(Why::Spoofed);
                    }
                }
                self.heard.retain(|(mac, ..)| *mac != source);
                self.heard.push((source, from, now));
            }
        }
        if self.down.contains(&from) {
            return Verdict::Drop(Why::Down);
        }
        let learned = self.heard.iter().find(|(mac, ..)| *mac == destination);
        let to = self
            .owner(destination)
            .or(learned.map(|(_, port, _)| *port));
        let others =
            (0..self.ports.len()).filter(|n| self.ports[*n].is_some() && *n != from.into());
        let others = others.filter(|n| !self.down.contains(&(*n as u8)));
        let others = others.fold(0, |set, n| set | 1 << n);
        match to {
            Some(to) if to == from => Verdict::Drop(Why::Nowhere),
            Some(to) if self.down.contains(&to) => Verdict::Drop(Why::Down),
            Some(to) => Verdict::To(to),
            None if others == 0 => Verdict::Drop(Why::Nowhere),
            None => Verdict::Flood(PortSet(others)),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Attach(Option<u8>, u16),
    Detach(u8),
    Link(u8, bool),
    Forward(u8, Mac, Mac),
}

fn addresses() -> impl Strategy<Value = Mac> {
    prop_oneof![
        12 => (1..12_u8).prop_map(mac),
        1 => Just(BROADCAST),
        1 => Just([0; 6]),
        1 => Just([1, 0, 0x5e, 0, 0, 1]),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (prop::option::weighted(0.7, 1..12_u8), 0..4_u16).prop_map(|(n, l)| Step::Attach(n, l)),
        1 => (0..8_u8).prop_map(Step::Detach),
        1 => (0..8_u8, any::<bool>()).prop_map(|(n, up)| Step::Link(n, up)),
        8 => (0..8_u8, addresses(), addresses()).prop_map(|(n, s, d)| Step::Forward(n, s, d)),
    ]
}

proptest! {
    #![proptest_config(Config { cases: 300, failure_persistence: None, ..Config::default() })]

    #[test]
    fn as_the_reference(steps in prop::collection::vec(steps(), 1..200)) {
        let (mut switch, mut reference) = (Switch::new(HZ), Reference::default());
        // Time stands still: nothing grows old.
        for step in steps {
            match step {
                Step::Attach(own, learns) => {
                    let options = PortOptions { mac: own.map(mac), ..uplink(learns) };
                    let taken = own.and_then(|n| reference.owner(mac(n)));
                    match switch.attach(options) {
                        Ok(n) => {
                            prop_assert!(taken.is_none());
                            prop_assert_eq!(n, reference.attach(options));
                        }
                        Err(Refused::Full) => prop_assert!(switch.ports() == PortSet(u64::MAX)),
                        Err(Refused::Address(_)) => prop_assert!(taken.is_some()),
                    }
                }
                Step::Detach(n) => {
                    switch.detach(n);
                    reference.detach(n);
                }
                // Only who has a cable can pull it.
                Step::Link(n, up) if reference.ports.get(usize::from(n)).is_some_and(Option::is_some) => {
                    switch.set_link(n, up);
                    reference.down.retain(|port| *port != n);
                    reference.down.extend((!up).then_some(n));
                }
                Step::Link(..) => {}
                Step::Forward(from, source, destination) => {
                    let verdict = switch.forward(from, source, destination, 64, 7);
                    let expected = reference.forward(from, source, destination, 7);
                    prop_assert_eq!(verdict, expected);
                    if let Verdict::Flood(ports) = verdict {
                        prop_assert!(!ports.iter().any(|port| port == from));
                    }
                }
            }
            prop_assert_eq!(switch.learned(), reference.heard.len());
        }
    }

    /// In any time, no more passes than the burst and what the rate brings, and a steady sender at
    /// the rate is never refused.
    #[test]
    fn limits_hold(
        per_second in 1..2000_u64,
        burst in 1..100_u64,
        waits in prop::collection::vec(0..50_u64, 1..200),
    ) {
        let limit = Limit { per_second, burst };
        let (mut limiter, mut now, mut passed) = (Limiter::default(), 0, 0);
        for wait in waits {
            now += wait;
            passed += u64::from(limiter.take(limit, 1, now, HZ));
            // A unit costs whole counts, rounded in the sender's favour.
            let due = (now + burst * HZ / per_second) / (HZ / per_second).max(1);
            prop_assert!(per_second > HZ || passed <= due, "{passed} of {due} at {now}");
        }
        if per_second <= HZ {
            let (mut steady, step) = (Limiter::default(), HZ.div_ceil(per_second));
            prop_assert!((0..100).all(|n| steady.take(limit, 1, n * step, HZ)));
        }
    }
}

/// A piece that is larger than the burst passes once all before it is paid for, and is paid for itself.
#[test]
fn a_piece_larger_than_the_burst_passes_alone() {
    let limit = Limit {
        per_second: 10,
        burst: 5,
    };
    let mut limiter = Limiter::default();
    assert!(limiter.take(limit, 20, 0, HZ));
    assert!(!limiter.take(limit, 20, 2 * HZ - 1, HZ));
    assert!(limiter.take(limit, 20, 2 * HZ, HZ));
    assert!(!limiter.take(limit, 1, 2 * HZ, HZ));
}

#[test]
fn what_is_not_heard_is_forgotten() {
    let mut switch = Switch::new(HZ);
    let (vm, out) = (
        switch.attach(host(1)).unwrap(),
        switch.attach(uplink(2)).unwrap(),
    );
    let third = switch.attach(host(3)).unwrap();
    let later = (FORGET_SECONDS + 1) * HZ;
    assert_eq!(switch.forward(out, mac(9), mac(1), 64, 0), Verdict::To(vm));
    assert_eq!(switch.forward(vm, mac(1), mac(9), 64, 1), Verdict::To(out));
    let everywhere = Verdict::Flood(PortSet(1 << out | 1 << third));
    assert_eq!(switch.forward(vm, mac(1), mac(9), 64, later), everywhere);
    // Two more are learned in place of the old one, and a third is not.
    assert_eq!(
        switch.forward(out, mac(10), mac(1), 64, later),
        Verdict::To(vm)
    );
    assert_eq!(
        switch.forward(out, mac(11), mac(1), 64, later),
        Verdict::To(vm)
    );
    let refused = switch.forward(out, mac(12), mac(1), 64, later);
    assert_eq!(refused, Verdict::Drop(Why::Spoofed));
    assert_eq!(switch.learned(), 2);
}

#[test]
fn nobody_takes_anothers_address() {
    let mut switch = Switch::new(HZ);
    let (one, out) = (
        switch.attach(host(1)).unwrap(),
        switch.attach(uplink(8)).unwrap(),
    );
    assert_eq!(switch.attach(host(1)), Err(Refused::Address(mac(1))));
    assert_eq!(
        switch.attach(PortOptions {
            mac: Some(BROADCAST),
            ..host(1)
        }),
        Err(Refused::Address(BROADCAST))
    );
    assert_eq!(
        switch.forward(out, mac(1), mac(5), 64, 0),
        Verdict::Drop(Why::Spoofed)
    );
    assert_eq!(
        switch.forward(one, mac(2), mac(5), 64, 0),
        Verdict::Drop(Why::Spoofed)
    );
    // What was learned elsewhere gives way to a port's own.
    assert_eq!(switch.forward(out, mac(4), mac(1), 64, 0), Verdict::To(one));
    let four = switch.attach(host(4)).unwrap();
    assert_eq!(switch.learned(), 0);
    assert_eq!(
        switch.forward(one, mac(1), mac(4), 64, 0),
        Verdict::To(four)
    );
}

#[test]
fn floods_and_bytes_are_limited() {
    let mut switch = Switch::new(HZ);
    let limited = PortOptions {
        bytes: Some(Limit {
            per_second: 1000,
            burst: 500,
        }),
        floods: Some(Limit {
            per_second: 10,
            burst: 3,
        }),
        ..host(1)
    };
    let one = switch.attach(limited).unwrap();
    let two = switch.attach(host(2)).unwrap();
    let passes = |switch: &mut Switch, to, bytes, now| {
        switch.forward(one, mac(1), to, bytes, now) != Verdict::Drop(Why::Limited)
    };
    assert_eq!(
        (0..9)
            .filter(|_| passes(&mut switch, BROADCAST, 1, 0))
            .count(),
        3
    );
    // Frames to one port go on, as long as the bytes do.
    assert!(passes(&mut switch, mac(2), 400, 1));
    assert!(!passes(&mut switch, mac(2), 400, 2));
    assert!(passes(&mut switch, mac(2), 400, 500));
    assert!(passes(&mut switch, BROADCAST, 1, 700));
    // Nobody else is touched.
    assert_eq!(
        switch.forward(two, mac(2), BROADCAST, 9000, 0),
        Verdict::Flood(PortSet(1 << one))
    );
}

#[test]
fn ports_come_to_an_end() {
    let mut switch = Switch::new(HZ);
    for n in 0..PORTS_MAX as u8 {
        assert_eq!(switch.attach(host(n + 1)), Ok(n));
    }
    assert_eq!(switch.attach(host(200)), Err(Refused::Full));
    switch.detach(9);
    assert_eq!(switch.attach(host(200)), Ok(9));
    assert_eq!(switch.forward(0, mac(1), mac(200), 64, 0), Verdict::To(9));
}
