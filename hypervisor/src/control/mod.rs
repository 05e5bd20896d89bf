//! Requests from outside: decoded and checked, then done, then answered.

pub mod channel;
mod memory;
pub mod port;
mod recount;
pub mod vms;

use crate::stretch::{self, Kind};
use crate::vm::{self, Refusal, Vm};
use crate::{frames, heap, host, os0, regions, trace};
use abi::Text;
use abi::control::{
    CpuStatus, EntryStatus, FrameHeader, MachineStatus, NodeStatus, REPLY, ReplyHeader, Request,
    VERSION, VmName, code, request,
};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::boot::image_parts;
use machine::timer;
use machine_locks::{Rank, SpinLock};
use model_addr::FRAME_SIZE;
use model_control::{Caller, Denied};
use port::{Incoming, Sent};
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
}

impl Answer {
    /// Adds a record; `false` where there is no room for it, or no memory.
    pub fn push(&mut self, record: &(impl IntoBytes + Immutable + ?Sized)) -> bool {
        let bytes = record.as_bytes();
        let fits = self.records.len() + bytes.len() <= ROOM;
        if !fits || self.records.try_reserve(bytes.len()).is_err() {
            return false;
        }
        self.records.extend_from_slice(bytes);
        self.count += 1;
        true
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
    if !port::has_rung() {
        return;
    }
    serve_owner();
    vms::serve();
    port::retry();
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
            return port::ring_later();
        }
    }
    // Not at once: others' work comes first.
    port::ring_later();
}

/// All VMs that the caller knows, or those after `after`, which is one of them.
fn vms_of(caller: Caller, after: Option<VmName>) -> Result<impl Iterator<Item = Arc<Vm>>, Refusal> {
    let first = match after {
        Some(name) => vm::find(name)?.slot + 1,
        None => 0,
    };
    let vms = vm::all().into_iter().skip(first.into());
    Ok(vms.filter(move |vm| caller.sees(vm.group())))
}

/// Whether the caller may ask that.
fn check(caller: Caller, kind: u32, request: &Request<'_>) -> Result<(), Refusal> {
    let group_of = |name| vm::find(name).ok().map(|vm| vm.group());
    caller
        .check(kind, request, group_of)
        .map_err(|denied| match denied {
            Denied::NotAllowed => {
                let what =
                    format_args!("a VM with control = \"read\" may not ask that (request {kind})");
                Refusal::new(code::NOT_ALLOWED, kind.into(), what)
            }
            Denied::NoSuchVm(name) => vm::no_such(name),
        })
}

/// What a request is answered: a header, and what follows it.
fn answer_to(incoming: &Incoming, caller: Caller) -> (ReplyHeader, Vec<u8>) {
    let header = incoming.header;
    let decoded = Request::decode(header.kind, incoming.payload.bytes());
    let reserved = heap::reserve(2 * ROOM);
    let result = match decoded {
        Some(request) if reserved.is_some() => {
            check(caller, header.kind, &request).and_then(|()| act(request, caller))
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
    let (reply, rest) = answer_to(incoming, Caller::owner());
    (incoming.header, reply, rest)
}

fn act(request: Request<'_>, caller: Caller) -> Result<Answer, Refusal> {
    let mut answer = Answer::default();
    match request {
        Request::Hello => {
            answer.push(&machine(caller));
        }
        Request::List(after) => list(vms_of(caller, after)?, &mut answer),
        Request::About(request::SHOW, name) => show(name, &mut answer)?,
        Request::About(request::FIT, name) => {
            answer.push(&vm::fit(&vm::find(name)?.record())?);
        }
        Request::About(kind, name) => about(kind, name)?,
        Request::ConsoleInput(name, typed) => {
            answer.push(&type_at(name, typed)?);
        }
        Request::Create(record) => {
            vm::define(record)?;
        }
        Request::Set(request) => vm::set(request)?,
        Request::Nodes => nodes(&mut answer),
        Request::Cpus => cpus(&mut answer),
        Request::Entries => entries(&mut answer),
        Request::Mem(after) => memory::list(vms_of(caller, after)?, &mut answer),
        Request::Regions => {
            let regions = regions::statuses().into_iter();
            for region in regions.filter(|region| caller.sees(region.group)) {
                answer.push(&region);
            }
        }
        Request::MachineMem => {
            answer.push(&memory::machine());
        }
        Request::Reclaim(request) => {
            answer.push(&vm::reclaim(&request)?);
        }
        Request::Fit(record) => {
            answer.push(&vm::fit(record)?);
        }
        Request::Pages(request::MEM_WHY, asked) => memory::why(&asked, &mut answer)?,
        Request::Pages(request::NUMA, asked) => memory::numa(&asked, &mut answer)?,
        Request::Pages(_, asked) => memory::pages(&asked, &mut answer)?,
        Request::NumaMove(request) => memory::move_to(&request)?,
        Request::Trace(request) => {
            answer.push(&trace::set(request)?);
        }
        Request::Events(request) => trace::read(&request, &mut answer)?,
        Request::Recount(from) => {
            answer.push(&recount::go_on(from));
        }
        Request::PowerOff if os0::is_here() => {
            let what =
                format_args!("OS-0 owns this machine: stop the VMs, and power off from OS-0");
            return Err(Refusal::new(code::WRONG_STATE, 0, what));
        }
        Request::PowerOff => {
            log::info!("powered off from outside");
            host::get().power_off();
        }
    }
    Ok(answer)
}

fn about(kind: u32, name: VmName) -> Result<(), Refusal> {
    match kind {
        request::START => vm::start(name),
        request::STOP => vm::stop(name),
        request::KILL => vm::kill(name),
        request::PAUSE => vm::pause(name),
        request::RESUME => vm::resume(name, false),
        request::CONTINUE => vm::resume(name, true),
        request::RESET => vm::reset(name),
        other => Err(Refusal::new(
            code::MALFORMED,
            other.into(),
            format_args!("unknown request {other}"),
        )),
    }
}

/// VMs, as many as fit.
fn list(vms: impl Iterator<Item = Arc<Vm>>, answer: &mut Answer) {
    for vm in vms {
        if !answer.push(&vm::vm_status(&vm)) {
            break;
        }
    }
}

fn show(name: VmName, answer: &mut Answer) -> Result<(), Refusal> {
    let vm = vm::find(name)?;
    answer.push(&vm::vm_status(&vm));
    if let Some(instance) = vm.instance() {
        for vcpu in &instance.vcpus {
            answer.push(&vm::vcpu_status(vcpu));
        }
    }
    Ok(())
}

/// Somebody typed at a VM's console: at the one the guest uses. How many bytes it took.
fn type_at(name: VmName, typed: &[u8]) -> Result<u64, Refusal> {
    let vm = vm::find(name)?;
    let instance = vm
        .instance()
        .ok_or_else(|| Refusal::new(code::WRONG_STATE, 0, format_args!("{name} is not running")))?;
    if !instance.uart.is_in_use.load(Ordering::Relaxed) {
        for (n, slot) in instance.virtio.iter().enumerate() {
            if let Some(taken) = slot.receive(&instance, n, typed) {
                return Ok(taken as u64);
            }
        }
    }
    Ok(instance.uart.receive(&instance, typed) as u64)
}

fn machine(caller: Caller) -> MachineStatus {
    let host = host::get();
    let (nodes, memory) = (host.node_ids(), host.tree.memory.iter());
    MachineStatus {
        version: VERSION,
        cpus: host::cpus().count() as u32,
        nodes: host.nodes() as u32,
        vms: vms_of(caller, None).map_or(0, Iterator::count) as u32,
        memory: memory.map(|memory| memory.range.size).sum(),
        memory_free: nodes
            .map(|node| frames::counts(node).free * FRAME_SIZE)
            .sum(),
        image: image_parts().whole.size,
        frame_table: host.frame_table_bytes,
        heap: heap::usage().0,
        bundle: host.bundle_at.map_or(0, |range| range.size),
        uptime_ns: host::nanoseconds(timer::now() - host.started),
        card_frames: crate::physical::nic::counts(),
        caches: [&frames::CLEANED, &frames::EMPTIED].map(|count| count.load(Ordering::Relaxed)),
        seeded: crate::entropy::is_seeded().into(),
    }
}

fn cpus(answer: &mut Answer) {
    for cpu in host::cpus() {
        let time = |counter: &AtomicU64| host::nanoseconds(counter.load(Ordering::Relaxed));
        answer.push(&CpuStatus {
            cpu: cpu.id.0.into(),
            node: cpu.node.0.into(),
            idle_ns: time(&cpu.idle),
            os0_run_ns: time(&cpu.os0[0]),
            os0_steal_ns: time(&cpu.os0[1]),
            stretch_ns: cpu.stretch.longest_ns(),
        });
    }
}

fn nodes(answer: &mut Answer) {
    let host = host::get();
    let loads = crate::sched::loads();
    for (node, load) in host.node_ids().zip(loads) {
        let ranges = host.map.ranges().iter().filter(|range| range.node == node);
        let frames: u64 = ranges.map(|range| range.frames.count).sum();
        let counts = frames::counts(node);
        answer.push(&NodeStatus {
            memory: frames * FRAME_SIZE,
            free: counts.free * FRAME_SIZE,
            local: counts.given_local,
            remote: counts.given_remote,
            cpus: host::cpus_of(node).count() as u32,
            vcpus: (load.weight / 256) as u32,
            zeroed: counts.zeroed() * FRAME_SIZE,
            zeroed_given: counts.given_zeroed,
        });
    }
}

fn entries(answer: &mut Answer) {
    let Some(bundle) = &host::get().bundle else {
        return;
    };
    for (number, entry) in bundle.entries() {
        let name: Text<40> = entry.name;
        answer.push(&EntryStatus {
            kind: entry.kind,
            number,
            size: entry.size,
            name,
        });
    }
}
