//! Waiting for the other hosts, and noticing those that do not come.

use crate::shared::{Desk, Table};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
    thread::futex::{self, Timespec},
};
use sim_ethernet::{HOSTS_MAX, Meetings, Options, name};
use sim_qemu::refuse;
use std::{
    hint,
    os::fd::OwnedFd,
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, SeqCst},
    },
    time::{Duration, Instant},
};

/// How often it looks before it sleeps: others are about to come, mostly.
const LOOKS: u32 = 200;
/// How long it sleeps before it looks whether the other host lives.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// When it says for whom it waits.
const LONG: Duration = Duration::from_secs(10);

/// The other hosts.
pub struct Peers {
    me: usize,
    fingerprint: u64,
    patience: Option<Duration>,
    one: [Peer; HOSTS_MAX],
}

/// What is known of one.
#[derive(Default)]
struct Peer {
    /// It comes to no further meeting.
    out: bool,
    /// It has the same options.
    checked: bool,
    process: Option<OwnedFd>,
}

/// Wakes those that wait for this host.
pub fn wake(desk: &Desk) {
    if desk.sleepers.load(SeqCst) > 0 {
        // Those who miss it look again soon.
        let _ = futex::wake(&desk.arrived, futex::Flags::empty(), HOSTS_MAX as u32);
    }
}

impl Peers {
    /// All hosts but this one.
    pub fn new(options: &Options) -> Self {
        let patience = options.patience_ns;
        Self {
            me: options.me,
            fingerprint: options.fingerprint,
            patience: patience.map(|ns| Duration::from_nanos(ns as u64)),
            one: Default::default(),
        }
    }

    /// Waits until a host has come to the meeting; false where it never will.
    pub fn comes(&mut self, table: &Table, host: usize, meetings: &Meetings) -> bool {
        let (fingerprint, me) = (self.fingerprint, self.me);
        let Some(peer) = self.one.get_mut(host).filter(|peer| !peer.out) else {
            return false;
        };
        let desk = table.desk(host);
        peer.out = !peer.wait(desk, host, meetings, self.patience);
        if peer.out {
            return false;
        }
        if !peer.checked {
            peer.checked = true;
            if desk.fingerprint.load(Acquire) != fingerprint {
                refuse(format_args!(
                    "{} and {} have different options of the wire; start all hosts with the same",
                    name(me),
                    name(host)
                ));
            }
        }
        true
    }
}

impl Peer {
    fn wait(
        &mut self,
        desk: &Desk,
        host: usize,
        meetings: &Meetings,
        patience: Option<Duration>,
    ) -> bool {
        let has_come = |arrived: &AtomicU32| meetings.has_come(arrived.load(SeqCst));
        for _ in 0..LOOKS {
            if has_come(&desk.arrived) {
                return true;
            }
            hint::spin_loop();
        }
        let (from, mut told) = (Instant::now(), false);
        loop {
            // It comes before it goes: who has gone may have come meanwhile.
            let gone = desk.gone.load(SeqCst) != 0;
            if has_come(&desk.arrived) {
                return true;
            }
            if gone {
                eprintln!(
                    "underpin sim: {} has left the wire before {} ns; the others go on",
                    name(host),
                    meetings.at_ns()
                );
                return false;
            }
            nap(desk, meetings);
            if !has_come(&desk.arrived) && self.is_dead(desk) {
                eprintln!("underpin sim: {} has died", name(host));
                desk.gone.store(1, SeqCst);
            }
            let waited = from.elapsed();
            if waited >= LONG && !told {
                told = true;
                eprintln!("underpin sim: {}", late(desk, host, meetings, waited));
            }
            if patience.is_some_and(|patience| waited >= patience) {
                refuse(format_args!(
                    "{}; the run is over (patience=0 waits for ever)",
                    late(desk, host, meetings, waited)
                ));
            }
        }
    }

    /// Whether the host's process has ended.
    fn is_dead(&mut self, desk: &Desk) -> bool {
        if self.process.is_none() {
            let id = desk.process.load(SeqCst) as i32;
            // Not started yet.
            let Some(id) = Pid::from_raw(id) else {
                return false;
            };
            match pidfd_open(id, PidfdFlags::empty()) {
                Ok(process) => self.process = Some(process),
                Err(error) => return error == Errno::SRCH,
            }
        }
        let Some(process) = &self.process else {
            return false;
        };
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut ends, Some(&at_once)) == Ok(1)
    }
}

/// Sleeps until a host may have come, or for a moment.
fn nap(desk: &Desk, meetings: &Meetings) {
    desk.sleepers.fetch_add(1, SeqCst);
    let seen = desk.arrived.load(SeqCst);
    if !meetings.has_come(seen) {
        // However it ends, all is looked at again.
        let _ = futex::wait(&desk.arrived, futex::Flags::empty(), seen, Some(&NAP));
    }
    desk.sleepers.fetch_sub(1, SeqCst);
}

fn late(desk: &Desk, host: usize, meetings: &Meetings, waited: Duration) -> String {
    let (name, seconds) = (name(host), waited.as_secs());
    match desk.process.load(SeqCst) {
        0 => format!("{name} has not started for {seconds} s; look at what its QEMU says"),
        process => format!(
            "{name} hangs: its QEMU, process {process}, has not come to {} ns for {seconds} s; look whether it is stopped",
            meetings.at_ns()
        ),
    }
}
