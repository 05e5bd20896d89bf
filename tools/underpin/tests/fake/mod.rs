//! A hypervisor that is a thread: VMs that only have a state, behind a real broker.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod hosts;
mod memory;

use abi::{
    Text,
    bundle::{NET_DOWN, VmRecord, kind},
    control::{
        CpuStatus, EntryStatus, EventsHeader, MachineStatus, NodeStatus, REPLY, RawVcpu, RawVm,
        ReadRequest, ReplyHeader, Request, SetRequest, TRACE_CPUS, TraceEvent, TraceStatus,
        VERSION, VmName, code, count, event, request, state, trace, vcpu_state, work,
    },
};
use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::{
        fs::DirBuilderExt as _,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    process::{Command, Output},
    thread,
    time::{Duration, SystemTime},
};
use underpin::{
    control::{Broker, Codec, encode},
    failure::Failure,
};
use zerocopy::{FromZeros as _, Immutable, IntoBytes};

/// The command with these words.
pub fn underpin(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_underpin"));
    command.args(words.split_whitespace());
    command
}

/// A running machine that is none.
pub struct Fake {
    runtime: PathBuf,
    /// The machine's directory.
    pub run_dir: PathBuf,
    hypervisor: UnixStream,
    broker: Broker,
}

impl Fake {
    /// Starts a machine in a directory of its own.
    pub fn start(test: &str) -> Self {
        let runtime = env::temp_dir().join(format!("underpin-test-{}-{test}", std::process::id()));
        let user = rustix::process::getuid().as_raw();
        let run_dir = runtime.join(format!("underpin-{user}/sim"));
        let consoles = run_dir.join("consoles");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&consoles)
            .unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let broker = Broker::start(ours, consoles).unwrap();
        let listener = UnixListener::bind(run_dir.join("control.sock")).unwrap();
        broker.serve(listener).unwrap();
        let hypervisor = theirs.try_clone().unwrap();
        thread::spawn(move || Hypervisor::new(theirs).serve());
        Self {
            runtime,
            run_dir,
            hypervisor,
            broker,
        }
    }

    /// The command with these words, for this machine.
    pub fn command(&self, words: &str) -> Command {
        let mut command = underpin(words);
        command.env("XDG_RUNTIME_DIR", &self.runtime);
        command
    }

    /// Runs the command to its end.
    pub fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// What a client of the broker's process is told once the hypervisor is gone.
    pub fn late(&self) -> Option<Failure> {
        for _ in 0..1000 {
            if let Err(failure) = self.broker.client() {
                return Some(failure);
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// The hypervisor is gone, without a word.
    pub fn die(&self) {
        self.hypervisor.shutdown(Shutdown::Both).unwrap();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.broker.close();
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

/// The other end of the control channel.
pub struct Hypervisor {
    stream: UnixStream,
    vms: Vec<RawVm>,
    /// The base that was set last.
    base: u64,
}

type Answer = Result<(u32, Vec<u8>), (u32, String)>;

impl Hypervisor {
    /// Answers on this stream.
    pub fn new(stream: UnixStream) -> Self {
        let mut vms = vec![vm("web1"), vm("db"), vm("echo"), vm("stubborn")];
        vms[0].work[work::EXITS + 6] = 7;
        vms[1].state = state::ENDED;
        vms[1].reason = Text::cut("powered off");
        let base = 512 << 20;
        Self { stream, vms, base }
    }

    /// Answers until the stream ends; tells whether it was asked to power off.
    pub fn serve(mut self) -> bool {
        let mut codec = Codec::default();
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = self.stream.read(&mut buffer) {
            codec.push(&buffer[..n]);
            while let Some(frame) = codec.next_frame() {
                // Requests are decoded from memory that is aligned, as EL2's is.
                let mut words = vec![0u64; frame.payload.len().div_ceil(8)];
                let payload = &mut words.as_mut_bytes()[..frame.payload.len()];
                payload.copy_from_slice(&frame.payload);
                let decoded = Request::decode(frame.kind, payload);
                let value = match decoded {
                    Some(Request::Read(request::LIST, asked)) if asked.name.is_empty() => {
                        let next = asked.from + 2;
                        if next < self.vms.len() as u64 {
                            next
                        } else {
                            0
                        }
                    }
                    Some(Request::Read(kind, asked)) => memory::next(kind, asked.from),
                    _ => 0,
                };
                let answer = match decoded {
                    Some(request) => self.answer(&request),
                    None => Err((code::MALFORMED, "malformed".to_owned())),
                };
                let (code, count, body) = match answer {
                    Ok((count, body)) => (code::OK, count, body),
                    Err((code, sentence)) => (code, 0, sentence.into_bytes()),
                };
                let header = ReplyHeader { code, count, value };
                self.send(frame.kind | REPLY, frame.tag, &[header.as_bytes(), &body]);
                if frame.kind == request::POWER_OFF {
                    let _ = self.stream.shutdown(Shutdown::Both);
                    return true;
                }
            }
        }
        false
    }

    fn send(&mut self, kind: u32, tag: u32, parts: &[&[u8]]) {
        let _ = self.stream.write_all(&encode(kind, tag, parts));
    }

    fn answer(&mut self, request: &Request<'_>) -> Answer {
        match request {
            Request::Hello => Ok((1, machine().as_bytes().to_vec())),
            Request::Read(kind, asked) => self.read(*kind, asked),
            Request::PowerOff => Ok((0, Vec::new())),
            Request::About(kind, name) => self.about(*kind, name),
            Request::ConsoleInput(name, typed) => {
                let taken = &typed[..typed.len().min(1000)];
                self.send(event::CONSOLE_OUTPUT, 0, &[name.as_bytes(), taken]);
                Ok((1, (taken.len() as u64).as_bytes().to_vec()))
            }
            Request::Create(record) => {
                if self.find(&record.name).is_ok() {
                    return Err((code::EXISTS, format!("a VM named {} is there", record.name)));
                }
                assert_eq!(record.kernel, 4);
                self.vms.push(vm(&record.name.to_string()));
                Ok((0, Vec::new()))
            }
            Request::Set(set) => self.set(set),
            _ => self.memory(request),
        }
    }

    fn read(&self, kind: u32, asked: &ReadRequest) -> Answer {
        match kind {
            // Two at a time, so that the command has to ask again.
            request::LIST if asked.name.is_empty() => {
                let start = asked.from as usize;
                let some = &self.vms[start..self.vms.len().min(start + 2)];
                let some: Vec<RawVm> = some.iter().map(|vm| self.based(vm)).collect();
                Ok((some.len() as u32, some.as_bytes().to_vec()))
            }
            request::LIST => Ok(one(&self.based(&self.vms[self.find(&asked.name)?]))),
            request::SHOW => self.find(&asked.name).map(|_| one(&vcpu())),
            request::NODES => {
                let (memory, free) = (2 << 30, 3 << 29);
                let node = NodeStatus {
                    memory,
                    free,
                    local: 9,
                    remote: 0,
                    zeroed: 1 << 27,
                    zeroed_given: 512,
                    cpus: 2,
                    vcpus: 1,
                    reserve: 0,
                };
                Ok(one(&node))
            }
            request::CPUS => {
                let cpus = [0, 1].map(|cpu| CpuStatus {
                    cpu,
                    node: 0,
                    idle_ns: 2_500_000_000,
                    os0_run_ns: 1_500_000_000,
                    os0_steal_ns: 250_000_000,
                    stretch_ns: [20_000, 0, 150_000 + u64::from(cpu), 0, 0, 0, 0, 0, 0],
                });
                Ok((2, cpus.as_bytes().to_vec()))
            }
            request::ENTRIES => {
                let (number, size, name) = (4, 8, Text::cut("tiny"));
                let entry = EntryStatus {
                    kind: kind::KERNEL,
                    number,
                    size,
                    name,
                };
                Ok(one(&entry))
            }
            request::HOSTS => Ok((4, hosts::all().as_bytes().to_vec())),
            request::REGIONS => Ok(one(&memory::region())),
            request::PAGE_COUNTS => {
                self.find(&asked.name)?;
                Ok(one(&memory::counts(asked.from)))
            }
            _ => {
                let pages = memory::pages(self.find(&asked.name)?, asked.from);
                Ok((pages.len() as u32, pages.as_bytes().to_vec()))
            }
        }
    }

    /// A VM with the base that was set last.
    fn based(&self, vm: &RawVm) -> RawVm {
        let (base, max) = (self.base / 4096, vm.memory / 4096);
        RawVm {
            terms: [base, max, 0],
            target: self.base,
            ..*vm
        }
    }

    fn set(&mut self, set: &SetRequest) -> Answer {
        let n = self.find(&set.to.name)?;
        let mut record = VmRecord::new_zeroed();
        (record.weight, record.base) = (self.vms[n].weight, self.base);
        for (device, net) in record.nets.iter_mut().enumerate() {
            net.flags = (self.vms[n].links_down >> device & 1) * NET_DOWN;
        }
        let changed = set.applied_to(&record).unwrap();
        let vm = &mut self.vms[n];
        (vm.weight, self.base, vm.links_down) = (changed.weight, changed.base, 0);
        for (device, net) in changed.nets.iter().enumerate() {
            vm.links_down |= u32::from(net.flags == NET_DOWN) << device;
        }
        Ok((0, Vec::new()))
    }

    fn memory(&self, request: &Request<'_>) -> Answer {
        match request {
            Request::Reclaim(asked) => {
                self.find(&asked.name)?;
                Ok(one(&(asked.bytes / 2)))
            }
            _ => Self::trace(request),
        }
    }

    /// Events come only while they are on, and some before them were lost.
    fn trace(request: &Request<'_>) -> Answer {
        match request {
            Request::Trace(asked) => Ok(one(&TraceStatus {
                classes: asked.classes,
                capacity: 8,
                now_ns: 0,
                next: [5; TRACE_CPUS],
            })),
            Request::Events(asked) => {
                let (lost, events) = match (asked.cpu, asked.from) {
                    (0, 5) => (2, vec![noted(trace::EXIT, 8, 0), noted(trace::FAULT, 1, 0)]),
                    (1, 5) => (0, vec![noted(trace::SHARE, 4, 1), noted(9, 9, 9)]),
                    _ => (0, Vec::new()),
                };
                let next = asked.from + lost + events.len() as u64;
                let header = EventsHeader { next, lost };
                let body = [header.as_bytes(), events.as_bytes()].concat();
                Ok((1 + events.len() as u32, body))
            }
            Request::Probe(asked) => hosts::probe(asked),
            _ => Err((code::MALFORMED, "not about memory".to_owned())),
        }
    }

    fn find(&self, name: &VmName) -> Result<usize, (u32, String)> {
        let found = self.vms.iter().position(|vm| vm.name == *name);
        found.ok_or_else(|| (code::NO_SUCH_VM, format!("no VM is named {name}")))
    }

    fn about(&mut self, kind: u32, name: &VmName) -> Answer {
        let n = self.find(name)?;
        let next = match (kind, self.vms[n].state) {
            (request::STOP, state::RUNNING) if name.as_str() == Some("stubborn") => state::RUNNING,
            (request::STOP | request::KILL, state::RUNNING) => state::ENDED,
            (request::START, state::ENDED) | (request::RESUME, state::PAUSED) => state::RUNNING,
            (request::PAUSE, state::RUNNING) => state::PAUSED,
            (request::RESET, state::RUNNING) => {
                self.vms[n].starts += 1;
                let status = self.vms[n];
                self.send(event::STATE, 0, &[status.as_bytes()]);
                state::RUNNING
            }
            (_, now) => return Err((code::WRONG_STATE, format!("{name} is in state {now}"))),
        };
        if next != self.vms[n].state {
            self.vms[n].state = next;
            self.vms[n].reason = Text::cut(if next == state::ENDED {
                "powered off"
            } else {
                ""
            });
            let status = self.vms[n];
            self.send(event::STATE, 0, &[status.as_bytes()]);
        }
        Ok((0, Vec::new()))
    }
}

/// An answer of one record.
fn one(record: &(impl IntoBytes + Immutable)) -> (u32, Vec<u8>) {
    (1, record.as_bytes().to_vec())
}

fn vm(name: &str) -> RawVm {
    let mut vm = RawVm::new_zeroed();
    vm.name = Text::cut(name);
    vm.kernel = Text::cut("6.12.48-arm64");
    (vm.state, vm.vcpus, vm.weight, vm.starts) = (state::RUNNING, 1, 256, 1);
    vm.nets = 2;
    vm.counts[count::NET_FRAMES] = 3;
    (vm.counts[count::NET_LATENCY + 1], vm.counts[count::NET_NS]) = (3, 15_000);
    (vm.memory, vm.work[work::RUN]) = (512 << 20, 12_345_678_901);
    vm.group = Text::cut("default");
    // Private frames, and those that two VMs use.
    let (private, shared) = (200 << 8, 56 << 8);
    vm.holding = [private, shared, shared, shared << 19, 0, 0, 0];
    (vm.leaves, vm.events[4]) = ([3, 700], 42);
    vm
}

fn noted(kind: u8, detail: u8, vm: u16) -> TraceEvent {
    TraceEvent {
        at_ns: 1_000_000,
        span_ns: 2_000,
        value: 0x4000_0000,
        kind,
        detail,
        vcpu: 0,
        vm,
        reserved: 0,
    }
}

fn vcpu() -> RawVcpu {
    let mut vcpu = RawVcpu::new_zeroed();
    (vcpu.state, vcpu.pc) = (vcpu_state::RUNNING, 0x1000);
    vcpu
}

fn machine() -> MachineStatus {
    let mut machine = MachineStatus::new_zeroed();
    (machine.version, machine.cpus, machine.nodes) = (VERSION, 2, 1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // 84 MiB are saved, and two VMs of 512 MiB fit.
    machine.sharing = [168 << 8, 84 << 28];
    (machine.capacity, machine.vms_left, machine.vcpus_left) = (2 * (515 << 8), 60, 60);
    machine.uptime_ns = now.unwrap_or_default().as_nanos() as u64;
    machine
}
