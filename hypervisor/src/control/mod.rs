//! Requests from outside: decoded and checked, then done, then answered.

pub mod errands;
mod pages;
mod recount;
mod sessions;
pub mod tracing;

use crate::cluster;
use crate::devices::Console;
use crate::drivers::port::{self, Sent};
use crate::drivers::{Incoming, requests};
use crate::economy::ledger;
use crate::life;
use crate::machine::{self, Cpu, Kind, stretch};
use crate::memory::{VMS_MAX, frames, heap, regions};
use crate::vcpu::{Vcpu, sched};
use crate::vms::{self, Vm, report};
use abi::bundle::Entry;
use abi::control::{
    CpuStatus, EntryStatus, FrameHeader, MachineStatus, NodeStatus, REPLY, ReadRequest,
    ReplyHeader, Request, VERSION, VmName, code, request,
};
use alloc::{sync::Arc, vec::Vec};
use arch::{boot::image_parts, timer};
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, NodeId};
use model_control::{Caller, Denied, Refusal};
use model_scheduler::Load;
use zerocopy::{Immutable, IntoBytes};

/// The most records' bytes in one reply.
const ROOM: usize = abi::control::PAYLOAD_MAX - size_of::<ReplyHeader>();

/// What a request that succeeds brings: records.
#[derive(Default)]
pub struct Answer {
    count: u32,
    /// Where the next request goes on; 0: nothing is left.
    next: u64,
    records: Vec<u8>,
    /// Bytes of [`ROOM`] that are not used.
    less: usize,
}

impl Answer {
    /// Adds a record; `false` where there is no room for it, or no memory.
    pub fn push(&mut self, record: &(impl IntoBytes + Immutable + ?Sized)) -> bool {
        let bytes = record.as_bytes();
        let fits = self.records.len() + bytes.len() + self.less <= ROOM;
        if !fits || self.records.try_reserve(bytes.len()).is_err() {
            return false;
        }
        self.records.extend_from_slice(bytes);
        self.count += 1;
        true
    }

    /// Adds what `record` makes of items from `from` on, as many as fit.
    fn fill<I, R: IntoBytes + Immutable>(
        &mut self,
        from: u64,
        items: impl IntoIterator<Item = I>,
        record: impl Fn(I) -> R,
    ) {
        for (n, item) in items.into_iter().enumerate().skip(from as usize) {
            stretch::look(Kind::Control);
            if !self.push(&record(item)) {
                self.next = n as u64;
                return;
            }
        }
    }

    /// Writes over the first record, which is of that type.
    pub fn set_first(&mut self, record: &(impl IntoBytes + Immutable)) {
        let bytes = record.as_bytes();
        if let Some(first) = self.records.get_mut(..bytes.len()) {
            first.copy_from_slice(bytes);
        }
    }
}

/// Serves what has come in, if something has.
pub fn serve() {
    if !requests::has_rung() {
        return;
    }
    serve_owner();
    errands::serve();
    sessions::serve();
    requests::retry();
}

/// The most requests of the `underpin` command in one go.
const AT_ONCE: usize = 16;

/// An answer that the `underpin` command has not taken yet: of which request, and its parts.
type Owed = (FrameHeader, ReplyHeader, Vec<u8>);

/// The answer that waits for room. Until it has gone, no request of the command is taken.
static OWED: SpinLock<Option<Owed>> = SpinLock::new(Rank::Vm, None);

/// Nobody is left who asked: what is owed goes to no other.
pub fn forget_owed() {
    *OWED.lock() = None;
}

/// Answers the `underpin` command, as far as it takes answers: one that is stopped delays itself alone.
fn serve_owner() {
    for _ in 0..AT_ONCE {
        stretch::look(Kind::Control);
        let owed = OWED.lock().take();
        let next = owed.or_else(|| port::receive().map(|incoming| answer(&incoming)));
        let Some((header, reply, rest)) = next else {
            return;
        };
        let parts = [reply.as_bytes(), &rest];
        // What can never go is lost, so that a broken device keeps nothing.
        if port::send(header.kind | REPLY, header.tag, &parts) == Sent::NoRoom {
            *OWED.lock() = Some((header, reply, rest));
            return requests::ring_later();
        }
    }
    // Not at once: others' work comes first.
    requests::ring_later();
}

/// All VMs that the caller knows.
fn vms_of(caller: Caller) -> impl Iterator<Item = Arc<Vm>> {
    let vms = vms::all().into_iter();
    vms.filter(move |vm| caller.sees(vm.group()))
}

/// Whether the caller may ask that.
fn check(caller: Caller, kind: u32, request: &Request<'_>) -> Result<(), Refusal> {
    let group_of = |name| vms::find(name).ok().map(|vm| vm.group());
    caller
        .check(kind, request, group_of)
        .map_err(|denied| match denied {
            Denied::NotAllowed => {
                let what =
                    format_args!("a VM with control = \"read\" may not ask that (request {kind})");
                Refusal::new(code::NOT_ALLOWED, kind.into(), what)
            }
            Denied::NoSuchVm(name) => vms::no_such(name),
        })
}

/// What a request is answered, with so much `less` than the most room: a header, and what follows it.
fn answer_to(incoming: &Incoming, caller: Caller, less: usize) -> (ReplyHeader, Vec<u8>) {
    let header = incoming.header;
    let decoded = Request::decode(header.kind, incoming.payload.bytes());
    let reserved = heap::reserve(2 * ROOM);
    let result = match decoded {
        Some(request) if reserved.is_some() => {
            check(caller, header.kind, &request).and_then(|()| act(request, caller, less))
        }
        Some(_) => {
            let what = format_args!("no memory left to answer");
            Err(Refusal::new(code::NO_MEMORY, 0, what))
        }
        None => {
            let FrameHeader { kind, length, .. } = header;
            let what = format_args!(
                "malformed request (kind {kind}, {length} bytes); command and hypervisor may differ in version"
            );
            Err(Refusal::new(code::MALFORMED, kind.into(), what))
        }
    };
    reply_of(result)
}

/// The parts of an answer.
fn reply_of(result: Result<Answer, Refusal>) -> (ReplyHeader, Vec<u8>) {
    let (code, count, value, rest) = match result {
        Ok(answer) => (code::OK, answer.count, answer.next, answer.records),
        Err(refusal) => {
            // Without memory for the sentence, the code has to do.
            let mut said = Answer::default();
            said.push(refusal.sentence.as_bytes());
            (refusal.code, 0, refusal.value, said.records)
        }
    };
    (ReplyHeader { code, count, value }, rest)
}

fn answer(incoming: &Incoming) -> Owed {
    let (reply, rest) = answer_to(incoming, Caller::owner(), 0);
    (incoming.header, reply, rest)
}

fn act(request: Request<'_>, caller: Caller, less: usize) -> Result<Answer, Refusal> {
    let mut answer = Answer {
        less,
        ..Answer::default()
    };
    match request {
        Request::Hello => {
            answer.push(&machine(caller));
        }
        Request::Read(kind, asked) => read(kind, &asked, caller, &mut answer)?,
        Request::About(request::SPAN_LEAVE, name) => {
            answer.push(&life::leave(name)?);
        }
        Request::About(kind, name) => about(kind, name)?,
        Request::ConsoleInput(name, typed) => {
            answer.push(&type_at(name, typed)?);
        }
        Request::Create(record) => {
            life::define(record)?;
        }
        Request::Set(request) => life::set(request)?,
        Request::Reclaim(request) => {
            answer.push(&ledger::reclaim(&request)?);
        }
        Request::NumaMove(request) => pages::move_to(&request)?,
        Request::Trace(request) => {
            answer.push(&tracing::set(request)?);
        }
        Request::Events(request) => tracing::read(&request, &mut answer)?,
        Request::Probe(asked) => cluster::probe(&asked)?,
        Request::SpanMove(request) => life::move_vcpu(&request)?,
        Request::ClusterLeave => {
            answer.push(&u64::from(cluster::retire()?));
        }
        Request::Recount(from) => {
            answer.push(&recount::go_on(from));
        }
        Request::PowerOff if machine::os0::is_here() => {
            let what =
                format_args!("OS-0 owns this machine: stop the VMs, and power off from OS-0");
            return Err(Refusal::new(code::WRONG_STATE, 0, what));
        }
        Request::PowerOff => {
            log::info!("powered off from outside");
            machine::get().power_off();
        }
    }
    Ok(answer)
}

fn about(kind: u32, name: VmName) -> Result<(), Refusal> {
    match kind {
        request::START => life::start(name),
        request::STOP => life::stop(name),
        request::KILL => life::kill(name),
        request::PAUSE => life::pause(name),
        request::RESUME => life::resume(name, false),
        request::CONTINUE => life::resume(name, true),
        request::RESET => life::reset(name),
        other => {
            let what = format_args!("unknown request {other}");
            Err(Refusal::new(code::MALFORMED, other.into(), what))
        }
    }
}

/// Adds what is counted, as much as fits.
fn read(
    kind: u32,
    asked: &ReadRequest,
    caller: Caller,
    answer: &mut Answer,
) -> Result<(), Refusal> {
    let machine = machine::get();
    match kind {
        request::LIST if asked.name.is_empty() => {
            answer.fill(asked.from, vms_of(caller), |vm| report::read_vm(&vm));
        }
        request::LIST => {
            answer.push(&report::read_vm(&*vms::find(asked.name)?));
        }
        request::SHOW => {
            if let Some(instance) = vms::find(asked.name)?.instance() {
                let read = |vcpu: &Vcpu| report::read_vcpu(&instance, vcpu);
                answer.fill(asked.from, &instance.vcpus, read);
            }
        }
        request::NODES => answer.fill(asked.from, machine.node_ids().zip(sched::loads()), node),
        request::CPUS => answer.fill(asked.from, machine::cpus(), cpu),
        request::HOSTS => answer.fill(asked.from, cluster::statuses()?, |host| host),
        request::REGIONS => {
            let regions = regions::statuses().into_iter();
            let seen = regions.filter(|region| caller.sees(region.group));
            answer.fill(asked.from, seen, |region| region);
        }
        request::ENTRIES => {
            if let Some(bundle) = &machine.bundle {
                answer.fill(asked.from, bundle.entries(), entry);
            }
        }
        request::PAGES => pages::pages(asked, answer)?,
        _ => pages::page_counts(asked, answer)?,
    }
    Ok(())
}

/// Somebody typed at a VM's console: at the one the guest uses. How many bytes it took.
fn type_at(name: VmName, typed: &[u8]) -> Result<u64, Refusal> {
    let instance = vms::find(name)?.running()?;
    if !instance.terminal.is_uart.load(Ordering::Relaxed) {
        let mut consoles = instance.all::<Console>();
        if let Some(taken) = consoles.find_map(|it| it.receive(&instance, typed)) {
            return Ok(taken as u64);
        }
    }
    Ok(instance.uart.receive(&instance, typed) as u64)
}

fn machine(caller: Caller) -> MachineStatus {
    let machine = machine::get();
    let nodes = machine.node_ids();
    let (mut bases, mut sharing) = (0, [0; 2]);
    for vm in vms::all().iter().filter(|vm| vm.instance().is_some()) {
        let account = crate::memory::sharing::accounts().get(vm.slot);
        bases += vm.terms().base;
        sharing = [sharing[0] + account.users, sharing[1] + account.units];
    }
    // What would fit tells of VMs that a reader does not know.
    let told = |number: u64| if caller.may_all() { number } else { 0 };
    MachineStatus {
        version: VERSION,
        cpus: machine::cpus().count() as u32,
        nodes: machine.nodes() as u32,
        vms: vms_of(caller).count() as u32,
        memory: machine.tree.memory_bytes(),
        memory_free: nodes
            .map(|node| frames::counts(node).free * FRAME_SIZE)
            .sum(),
        image: image_parts().whole.size,
        frame_table: machine.frame_table_bytes,
        heap: heap::usage().0,
        bundle: machine.bundle_at.map_or(0, |range| range.size),
        uptime_ns: machine::nanoseconds(timer::now() - machine.started),
        card_frames: crate::drivers::uplink::counts(),
        caches: [&frames::CLEANED, &frames::EMPTIED].map(|count| count.load(Ordering::Relaxed)),
        seeded: crate::machine::entropy::is_seeded().into(),
        capacity: told(ledger::capacity()),
        promised: told(ledger::bases()),
        bases,
        pool: ledger::pool(),
        sharing,
        cached: crate::memory::sharing::accounts().cached(),
        images: crate::memory::sharing::image_frames(),
        records: crate::memory::sharing::record_frames(),
        vcpus_left: told(sched::free_entities()),
        vms_left: told((VMS_MAX - vms::all().len()) as u64) as u32,
        is_short: crate::memory::shortage::is_short().into(),
        misses: crate::placement::source(),
    }
}

fn cpu(cpu: &Cpu) -> CpuStatus {
    let time = |counter: &AtomicU64| machine::nanoseconds(counter.load(Ordering::Relaxed));
    CpuStatus {
        cpu: cpu.id.0.into(),
        node: cpu.node.0.into(),
        idle_ns: time(&cpu.idle),
        os0_run_ns: time(&cpu.os0[0]),
        os0_steal_ns: time(&cpu.os0[1]),
        stretch_ns: cpu.stretch.longest_ns(),
    }
}

fn node((node, load): (NodeId, Load)) -> NodeStatus {
    let ranges = machine::get().map.ranges().iter();
    let frames = ranges
        .filter(|range| range.node == node)
        .map(|range| range.frames.count);
    let counts = frames::counts(node);
    NodeStatus {
        memory: frames.sum::<u64>() * FRAME_SIZE,
        free: counts.free * FRAME_SIZE,
        local: counts.given_local,
        remote: counts.given_remote,
        cpus: machine::cpus_of(node).count() as u32,
        vcpus: (load.weight / 256) as u32,
        zeroed: counts.zeroed() * FRAME_SIZE,
        zeroed_given: counts.given_zeroed,
        reserve: frames::reserve(node) * FRAME_SIZE,
    }
}

fn entry((number, entry): (u32, Entry)) -> EntryStatus {
    EntryStatus {
        kind: entry.kind,
        number,
        size: entry.size,
        name: entry.name,
    }
}
