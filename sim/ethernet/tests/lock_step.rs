//! Hosts in lock-step against one queue of all events: the same frames must arrive at the same times.
#![allow(clippy::unwrap_used, reason = "a test")]

use proptest::prelude::*;
use sim_ethernet::{
    Cut, Faults, Inbox, Line, Meetings, NEVER, Said, Sender,
    frame::{Frames, Head, append, receivers},
};
use std::collections::BTreeMap;

/// A host that sends frames at times of its own, and answers each that asks for it.
#[derive(Debug)]
struct Host {
    me: usize,
    hosts: usize,
    sender: Sender,
    inbox: Inbox,
    /// What it sends when: the frame's bytes.
    timers: BTreeMap<(i64, u64), Vec<u8>>,
    timers_made: u64,
    frames_sent: u64,
    /// When what arrived.
    seen: Vec<(i64, usize, Vec<u8>)>,
}

/// A frame to send: when, to whom (or to all), how often it is answered, how long.
type Script = Vec<(i64, u8, u8, usize)>;

impl Host {
    fn new(me: usize, hosts: usize, line: Line, faults: &Faults, script: &Script) -> Self {
        let mut host = Self {
            me,
            hosts,
            sender: Sender::new(line),
            inbox: Inbox::new(me, faults.clone()),
            timers: BTreeMap::new(),
            timers_made: 0,
            frames_sent: 0,
            seen: Vec::new(),
        };
        for (at, to, answers, length) in script {
            let mut bytes = vec![0; *length];
            bytes[..6].copy_from_slice(&[0x52, 0x54, 0, 0, 0, *to]);
            bytes[6..8].copy_from_slice(&[me as u8, *answers]);
            host.set_timer(*at, bytes);
        }
        host
    }

    fn set_timer(&mut self, at: i64, bytes: Vec<u8>) {
        self.timers.insert((at, self.timers_made), bytes);
        self.timers_made += 1;
    }

    fn timer(&self) -> Option<i64> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// When something happens here, by what is known.
    fn next(&self) -> Option<i64> {
        self.timer().into_iter().chain(self.inbox.next_ns()).min()
    }

    /// Does what is due at `now`; returns what it sends.
    fn act(&mut self, now: i64) -> Vec<(Head, Vec<u8>)> {
        while let Some(arrival) = self.inbox.arrived(now) {
            let mut bytes = arrival.bytes;
            self.seen.push((now, arrival.from, bytes.clone()));
            if bytes[7] > 0 {
                bytes[7] -= 1;
                bytes[5] = bytes[6];
                bytes[6] = self.me as u8;
                // At once, or after some work.
                let work = i64::from(bytes[7] % 3) * 700;
                self.set_timer(now + work, bytes);
            }
        }
        let mut sent = Vec::new();
        while let Some(first) = self
            .timers
            .first_entry()
            .filter(|first| first.key().0 <= now)
        {
            let bytes = first.remove();
            let times = self.sender.send(now, bytes.len());
            let head = Head {
                start_ns: times.start_ns,
                arrival_ns: times.arrival_ns,
                number: self.frames_sent,
                receivers: receivers(&bytes, self.me, self.hosts),
            };
            self.frames_sent += 1;
            sent.push((head, bytes));
        }
        sent
    }
}

fn cluster(line: Line, faults: &Faults, scripts: &[Script]) -> Vec<Host> {
    let hosts = scripts.len();
    let one = |(me, script)| Host::new(me, hosts, line, faults, script);
    scripts.iter().enumerate().map(one).collect()
}

/// One queue of all events; frames are known to their receivers when they are sent.
fn at_once(mut hosts: Vec<Host>, end: i64) -> Vec<Host> {
    while let Some(now) = hosts
        .iter()
        .filter_map(Host::next)
        .min()
        .filter(|now| *now <= end)
    {
        for from in 0..hosts.len() {
            for (head, bytes) in hosts[from].act(now) {
                for other in &mut hosts {
                    other.inbox.take(now, from, &head, &bytes).unwrap();
                }
            }
        }
    }
    hosts
}

/// Each host alone until the next meeting.
fn in_lock_step(mut hosts: Vec<Host>, line: Line, end: i64) -> (Vec<Host>, u32) {
    let mut meetings = Meetings::new(line.latency_ns);
    while meetings.at_ns() <= end {
        let at = meetings.at_ns();
        let mut memories = Vec::new();
        let mut said = Vec::new();
        for host in &mut hosts {
            let (mut memory, mut used) = (vec![0; 1 << 16], 0);
            let mut first_arrival = NEVER;
            while let Some(now) = host.next().filter(|now| *now <= at) {
                for (head, bytes) in host.act(now) {
                    used = append(&mut memory, used, &head, &bytes).unwrap();
                    first_arrival = first_arrival.min(head.arrival_ns);
                }
            }
            memory.truncate(used);
            memories.push(memory);
            said.push(Said::of(at, true, host.next(), first_arrival));
        }
        for (from, memory) in memories.iter().enumerate() {
            for frame in Frames::new(memory) {
                let (head, bytes) = frame.unwrap();
                for host in &mut hosts {
                    host.inbox.take(at, from, &head, bytes).unwrap();
                }
            }
        }
        meetings.arrange(said);
    }
    (hosts, meetings.number())
}

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    let frame = (0..2_000_000i64, 0..5u8, 0..6u8, 60..1500usize);
    prop::collection::vec(prop::collection::vec(frame, 0..12), 2..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lock_step_changes_nothing(
        scripts in scripts(),
        latency_ns in 1..50_000i64,
        megabits in 100..100_000u64,
        shares in prop::array::uniform4(0..300_000u32),
        cut in prop::option::of((0..1_000_000i64, 1..500_000i64)),
    ) {
        let line = Line { latency_ns, bits_per_second: megabits * 1_000_000, frame_ns: 100 };
        let [lost, repeated, late, corrupt] = shares;
        let cuts = cut.map(|(from_ns, ns)| Cut { between: [0, 1], from_ns, until_ns: from_ns + ns });
        let spread_ns = 3 * latency_ns;
        let cuts = cuts.into_iter().collect();
        // A wrong bit in the answers left would make an endless storm.
        let corrupt = corrupt / 100;
        let faults = Faults { seed: 5, lost, repeated, late, corrupt, spread_ns, cuts };
        let end = 4_000_000;
        let simple = at_once(cluster(line, &faults, &scripts), end);
        // Beyond the end, both have seen what the other has not.
        let (apart, meetings) = in_lock_step(cluster(line, &faults, &scripts), line, end + latency_ns);
        let seen = |hosts: &[Host]| -> Vec<Vec<_>> {
            let of = |host: &Host| host.seen.iter().filter(|(at, ..)| *at <= end - 50_000).cloned().collect();
            hosts.iter().map(of).collect()
        };
        prop_assert_eq!(seen(&simple), seen(&apart));
        // Hosts that sleep meet when somebody wakes, not each time that a frame could arrive.
        let events: usize = apart.iter().map(|host| host.seen.len() + host.frames_sent as usize).sum();
        prop_assert!((meetings as usize) < 4 + 3 * events + (end / 100_000_000) as usize, "{} meetings", meetings);
    }
}
