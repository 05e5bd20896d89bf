//! The wire: a plugin of QEMU's that joins the machines of several QEMU processes by an Ethernet, in lock-step of virtual
//! time.
//!
//! A card with `netdev=wire` hands its frames to the plugin, in the thread that runs CPUs and at an exact virtual time. The
//! hosts meet at the same virtual times ([`sim_ethernet`] says when, and until when they may run without each other), and
//! tell each other their frames in memory that they share ([`shared`]). Frames are given to the receiver's card at the
//! nanosecond of their arrival. Real time only decides how long hosts wait for each other ([`peers`]).
//!
//! The plugin leaps over idle time as `sim/clock` does, as each leap may end at a meeting. Where one of its timers is late,
//! QEMU ends with a sentence: the run is worth nothing.
//!
//! # Soundness
//! Unsafe code is the entry for QEMU, which [`sim_qemu`] defines, and in `shared`.

mod peers;
mod shared;

use peers::{Peers, wake};
use rustix::process::{Signal, getpid, kill_process};
use shared::Table;
use sim_ethernet::{
    Digest, Inbox, Meetings, NEVER, Options, Past, Rest, Said, Sender,
    frame::{Frames, Head, append, receivers},
    name,
};
use sim_qemu::{
    Loading, finish, interface,
    leap::{self, Leaper},
    net::Client,
    private::{Qemu, Timer},
    refuse,
};
use std::{
    ffi::c_void,
    fs::{self, File},
    io::Write as _,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst},
    },
};

sim_qemu::plugin!(prepare);

/// All that callbacks need.
struct Wire {
    options: Options,
    qemu: &'static Qemu,
    table: Table,
    client: Client,
    meeting: Timer,
    delivery: Timer,
    /// The card may go on.
    sending: Timer,
    stall: Timer,
    death: Timer,
    /// CPUs act that slept.
    waking: Timer,
    /// How many stalls have begun.
    stalls: AtomicUsize,
    /// When the stall ends in which this host is; 0 for none.
    stalled_until: AtomicI64,
    state: Mutex<State>,
}

/// What changes. Used by the thread that runs CPUs, and when QEMU ends.
struct State {
    meetings: Meetings,
    peers: Peers,
    sender: Sender,
    inbox: Inbox,
    /// The frames since the last meeting: so many of these bytes.
    frames: Vec<u8>,
    used: usize,
    first_arrival: i64,
    /// When the delivery's timer is to fire.
    delivery_ns: i64,
    sending_ns: i64,
    /// Those of another host, for a moment.
    theirs: Vec<u8>,
    record: Option<File>,
    has_left: bool,
    /// The time of the last meeting.
    met_ns: i64,
    rest: Rest,
    /// How often this host has begun to wait to be asked, and since when.
    asked: usize,
    waits_ns: Option<i64>,
    counts: Counts,
    digest: Digest,
}

#[derive(Default)]
struct Counts {
    meetings: u64,
    /// Of them, those at which this host's CPUs worked.
    busy: u64,
    sent: u64,
    /// Frames for which the guest had no room when they came.
    no_room: u64,
    /// How often the card had to wait for the line.
    waits: u64,
    /// How often this host was woken from outside while all others believed it asleep.
    outside: u64,
}

static WIRE: OnceLock<Wire> = OnceLock::new();

/// The wire, for callbacks: all are registered once it is there.
fn wire() -> &'static Wire {
    match WIRE.get() {
        Some(wire) => wire,
        None => refuse("QEMU called the plugin before it was installed"),
    }
}

fn prepare(loading: &Loading) -> Result<(), String> {
    let options = Options::read(&loading.words)?;
    let qemu = loading.qemu;
    qemu.must_count()?;
    let table = Table::open(&options.shared, options.me, options.hosts, options.room())?;
    let desk = table.desk(options.me);
    if desk.process.swap(std::process::id(), SeqCst) != 0 {
        return Err(format!(
            "{} was started before with the memory '{}'; empty that file before each start, and give each host its own me=",
            name(options.me),
            options.shared.display()
        ));
    }
    desk.fingerprint.store(options.fingerprint, SeqCst);
    let state = Mutex::new(State::new(&options)?);
    let client = Client::new(qemu, c"wire", |frame| wire().hand_over(frame));
    let made = Wire {
        options,
        qemu,
        table,
        client,
        meeting: Timer::new(),
        delivery: Timer::new(),
        sending: Timer::new(),
        stall: Timer::new(),
        death: Timer::new(),
        waking: Timer::new(),
        stalls: AtomicUsize::new(0),
        stalled_until: AtomicI64::new(0),
        state,
    };
    if WIRE.set(made).is_err() {
        return Err("the wire's plugin is loaded twice; name it once".into());
    }
    wire().start();
    loading.at_exit(at_exit);
    Ok(())
}

/// The machine is made, and no CPU runs yet.
extern "C" fn machine_is_made(_: *mut c_void, _: *mut c_void) {
    let wire = wire();
    if wire.options.is_cured
        && let Err(why) = leap::take_over(wire.qemu, wire)
    {
        refuse(why);
    }
}

extern "C" fn meeting_is_due(_: *mut c_void) {
    wire().meet();
}

extern "C" fn frame_arrives(_: *mut c_void) {
    wire().deliver();
}

extern "C" fn line_is_free(_: *mut c_void) {
    wire().client.go_on();
}

extern "C" fn stall_begins(_: *mut c_void) {
    wire().stand_still();
}

extern "C" fn host_dies(_: *mut c_void) {
    wire().die();
}

extern "C" fn cpus_act(_: *mut c_void) {
    wire().sleep_on();
}

extern "C" fn at_exit(_: interface::qemu_plugin_id_t, _: *mut c_void) {
    wire().end();
}

impl Leaper for Wire {
    fn falls_asleep(&self, _: i64) {
        self.qemu.disarm(&self.waking);
    }

    fn waits(&self, now: i64) -> bool {
        let mut state = self.state();
        if state.waits_ns == Some(now) {
            self.watch(now);
            return true;
        }
        let asks = &self.options.asks_ns;
        let is_to_wait = asks.get(state.asked).is_some_and(|from| now >= *from);
        state.waits_ns = is_to_wait.then_some(now);
        if is_to_wait {
            state.asked += 1;
            // Whoever asks waits for this line.
            eprintln!(
                "underpin sim: {} waits at {now} ns to be asked, {} of {}",
                name(self.options.me),
                state.asked,
                asks.len()
            );
            self.watch(now);
        }
        is_to_wait
    }

    fn has_leapt(&self, now: i64) {
        // Here and not by its timer, which would wake QEMU's main thread.
        if self.state().meetings.at_ns() == now {
            self.qemu.disarm(&self.meeting);
            self.meet();
        }
        self.watch(now);
    }
}

impl State {
    fn new(options: &Options) -> Result<Self, String> {
        let record = options.record.as_ref().map(|path| {
            File::create(path)
                .map_err(|error| format!("cannot write '{}': {error}", path.display()))
        });
        Ok(Self {
            meetings: Meetings::new(options.line.latency_ns),
            peers: Peers::new(options),
            sender: Sender::new(options.line),
            inbox: Inbox::new(options.me, options.faults.clone()),
            frames: vec![0; options.room()],
            used: 0,
            first_arrival: NEVER,
            delivery_ns: NEVER,
            sending_ns: NEVER,
            theirs: Vec::new(),
            record: record.transpose()?,
            has_left: false,
            met_ns: 0,
            rest: Rest::default(),
            asked: 0,
            waits_ns: None,
            counts: Counts::default(),
            digest: Digest::default(),
        })
    }
}

impl Wire {
    fn start(&'static self) {
        let Self { qemu, options, .. } = self;
        qemu.make_timer(&self.meeting, meeting_is_due);
        qemu.make_timer(&self.delivery, frame_arrives);
        qemu.make_timer(&self.sending, line_is_free);
        qemu.make_timer(&self.stall, stall_begins);
        qemu.make_timer(&self.death, host_dies);
        qemu.make_timer(&self.waking, cpus_act);
        qemu.arm(&self.meeting, self.state().meetings.at_ns());
        if let Some(first) = options.stalls.first() {
            qemu.arm(&self.stall, first.from_ns);
        }
        if let Some(at) = options.die_ns {
            qemu.arm(&self.death, at);
        }
        qemu.when_machine_is_made(machine_is_made);
    }

    /// Never held while QEMU is called that may come back.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All CPUs are idle at `now`, and QEMU's big lock is let go: notices the first instruction that one executes.
    fn watch(&self, now: i64) {
        self.qemu.arm(&self.waking, now + 1);
    }

    /// CPUs act. Where the others believe them asleep, they were woken from outside, and act from the time on until which
    /// they were to sleep: what they send is then known in time.
    fn sleep_on(&self) {
        let now = self.qemu.now();
        let mut state = self.state();
        let until = state.rest.woken_early(now, &state.meetings);
        state.counts.outside += u64::from(until.is_some());
        drop(state);
        if let Some(until) = until {
            leap::leap(until - now);
        }
    }

    /// The time, which a timer was due at.
    fn on_time(&self, due: i64) -> i64 {
        let now = self.qemu.now();
        if now != due {
            refuse(format_args!(
                "a timer of the wire that was due at {due} ns fired {} ns late at {}; the run is worth nothing, repeat it, and report it with QEMU's version",
                now - due,
                name(self.options.me)
            ));
        }
        now
    }

    /// The card sends a frame; false where it must wait.
    fn hand_over(&self, frame: &[u8]) -> bool {
        let Self { qemu, options, .. } = self;
        if !qemu.runs_cpus() {
            if qemu.is_to_stop() {
                return true;
            }
            refuse(
                "the card sends from QEMU's main thread, at chance moments; add tx=timer,x-txtimer=1 to its -device, and -global virtio-mmio.ioeventfd=off",
            );
        }
        let now = qemu.now();
        let mut state = self.state();
        if let Some(free) = state.sender.busy_until(now) {
            state.counts.waits += 1;
            if free != state.sending_ns {
                state.sending_ns = free;
                qemu.arm(&self.sending, free);
            }
            return false;
        }
        let times = state.sender.send(now, frame.len());
        let meeting_ns = state.meetings.at_ns();
        if times.arrival_ns <= meeting_ns {
            refuse(format_args!(
                "{} sends a frame at {now} ns that arrives at {} ns, before others learn of it at {meeting_ns} ns; the run is worth nothing, repeat it, and report it with QEMU's version",
                name(options.me),
                times.arrival_ns,
            ));
        }
        let head = Head {
            start_ns: times.start_ns,
            arrival_ns: times.arrival_ns,
            number: state.counts.sent,
            receivers: receivers(frame, options.me, options.hosts),
        };
        state.counts.sent += 1;
        state.first_arrival = state.first_arrival.min(head.arrival_ns);
        let used = state.used;
        match append(&mut state.frames, used, &head, frame) {
            Some(used) => state.used = used,
            None => refuse(format_args!(
                "the frames between two meetings do not fit into {} bytes: this is an error of the plugin; report it with the wire's options",
                options.room()
            )),
        }
        true
    }

    /// Gives the card what has arrived.
    fn deliver(&self) {
        let mut state = self.state();
        let now = self.on_time(state.delivery_ns);
        state.delivery_ns = NEVER;
        while let Some(arrival) = state.inbox.arrived(now) {
            if let Some(record) = &mut state.record {
                let mut digest = Digest::default();
                digest.add(&arrival.bytes);
                let (from, number, length) = (arrival.from, arrival.number, arrival.bytes.len());
                let line = format!("{now} {from} {number} {length} {:016x}\n", digest.value());
                if let Err(error) = record.write_all(line.as_bytes()) {
                    refuse(format_args!("cannot write the wire's record: {error}"));
                }
            }
            drop(state);
            let has_room = self.client.send(&arrival.bytes);
            state = self.state();
            state.counts.no_room += u64::from(!has_room);
        }
        self.arm_delivery(&mut state);
    }

    fn arm_delivery(&self, state: &mut State) {
        let Some(at) = state.inbox.next_ns() else {
            return;
        };
        if at != state.delivery_ns {
            state.delivery_ns = at;
            self.qemu.arm(&self.delivery, at);
        }
    }

    /// Meets the other hosts.
    fn meet(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.has_left {
            return;
        }
        let now = self.on_time(state.meetings.at_ns());
        if self.qemu.is_to_end() {
            self.leave(state);
            return;
        }
        let mut said = vec![self.say(state, now)];
        let meeting = state.meetings.number();
        for host in (0..self.options.hosts).filter(|host| *host != self.options.me) {
            if !state.peers.comes(&self.table, host, &state.meetings) {
                continue;
            }
            said.push(self.table.said(host, meeting, &mut state.theirs));
            for frame in Frames::new(&state.theirs) {
                let Ok((head, bytes)) = frame else {
                    refuse(format_args!(
                        "{} has written frames that make no sense at {now} ns; are its plugin and this one of the same build?",
                        name(host)
                    ));
                };
                if state.inbox.take(now, host, &head, bytes) == Err(Past) {
                    refuse(format_args!(
                        "{} tells at {now} ns of a frame that arrived at {} ns; the run is worth nothing, repeat it, and report it with QEMU's version",
                        name(host),
                        head.arrival_ns
                    ));
                }
            }
        }
        self.arm_delivery(state);
        // Looked at again, and not taken from what was said: one is held against the other.
        let timer = self.qemu.until_any_timer().map(|ahead| now + ahead);
        state.rest = Rest::of(now, leap::are_all_idle(), timer);
        state.counts.meetings += 1;
        state.met_ns = now;
        state.digest.add_number(now as u64);
        if self.options.end_ns.is_some_and(|end| now >= end) {
            self.report(state);
            finish();
        }
        state.meetings.arrange(said);
        self.qemu.arm(&self.meeting, state.meetings.at_ns());
    }

    /// Tells the others that this host has come, and what it has to say.
    fn say(&self, state: &mut State, now: i64) -> Said {
        let stall = self.stalled_until.load(SeqCst);
        let asleep = stall > 0 || leap::are_all_idle();
        state.counts.busy += u64::from(!asleep);
        let timer = self.qemu.until_any_timer().map(|ahead| now + ahead);
        let timer = timer.into_iter().chain((stall > 0).then_some(stall)).min();
        let said = Said::of(now, asleep, timer, state.first_arrival);
        self.publish(state, said);
        said
    }

    fn publish(&self, state: &mut State, said: Said) {
        let frames = state.frames.get(..state.used).unwrap_or_default();
        self.table.publish(state.meetings.number(), said, frames);
        wake(self.table.desk(self.options.me));
        state.used = 0;
        state.first_arrival = NEVER;
    }

    /// Comes to the next meeting for the last time, with the frames that were sent.
    fn leave(&self, state: &mut State) {
        if !state.has_left {
            state.has_left = true;
            let next_ns = state.first_arrival;
            self.publish(state, Said { next_ns });
            self.table.leave();
            wake(self.table.desk(self.options.me));
        }
    }

    /// This host's CPUs stand still for a time, while its timers fire.
    fn stand_still(&self) {
        let number = self.stalls.fetch_add(1, SeqCst);
        let stalls = &self.options.stalls;
        let Some(stall) = stalls.get(number) else {
            return;
        };
        let until = self.on_time(stall.from_ns) + stall.ns;
        self.stalled_until.store(until, SeqCst);
        let qemu = self.qemu;
        // It ends early where the machine does.
        while qemu.now() < until && !qemu.is_to_stop() {
            let left = until - qemu.now();
            let ahead = qemu.until_next_timer().unwrap_or(left).min(left);
            if ahead > 0 {
                leap::leap(ahead);
            }
            qemu.run_timers();
        }
        self.stalled_until.store(0, SeqCst);
        if let Some(next) = stalls.get(number + 1) {
            qemu.arm(&self.stall, next.from_ns);
        }
    }

    /// As a machine whose power fails: nobody is told.
    fn die(&self) {
        let at = self.on_time(self.options.die_ns.unwrap_or_default());
        eprintln!(
            "underpin sim: {} dies at {at} ns, as it was asked to",
            name(self.options.me)
        );
        let _ = kill_process(getpid(), Signal::KILL);
    }

    /// QEMU ends.
    fn end(&self) {
        // Another thread has it where QEMU fails in the midst of a meeting: the others see this process end.
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        self.leave(&mut state);
        self.report(&state);
    }

    fn report(&self, state: &State) {
        let Some(path) = &self.options.report else {
            return;
        };
        let (counts, tally) = (&state.counts, state.inbox.tally());
        let text = format!(
            "host={} met_ns={} meetings={} busy={} leaps={} sent={} waits={} outside={} received={} no_room={} cut={} lost={} repeated={} late={} corrupt={} meetings_digest={:016x} arrivals_digest={:016x}\n",
            name(self.options.me),
            state.met_ns,
            counts.meetings,
            counts.busy,
            leap::count(),
            counts.sent,
            counts.waits,
            counts.outside,
            tally.received,
            counts.no_room,
            tally.cut,
            tally.lost,
            tally.repeated,
            tally.late,
            tally.corrupt,
            state.digest.value(),
            state.inbox.digest(),
        );
        if let Err(error) = fs::write(path, text) {
            eprintln!("underpin sim: cannot write '{}': {error}", path.display());
        }
    }
}
