//! What a program asks that runs the hypervisor in an ordinary process, while all CPUs sleep; and what it asks a CPU to do
//! about VMs that move. No part of the image.

use crate::control::errands;
use crate::devices::{block::Block, disk::CowDisk, network, virtio::VirtualDevice as _};
use crate::drivers::{disk, requests};
use crate::guest::sessions;
use crate::life::{self, moving};
use crate::machine::{self, ENTITIES_MAX};
use crate::memory::{frames, heap, sharing};
use crate::vcpu::sched;
use crate::vms;

pub use crate::cluster::outside as cluster;

use abi::Text;
use abi::bundle::{DEFAULT_GROUP, control_rights};
use abi::control::{FrameHeader, RawVm, ReadRequest, STRETCH_COUNT, SpanMoveRequest, VmName};
use abi::control::{code, request};
use abi::span::PARTED;
use abi::state::{ByteSink, ByteSource, ROOM};
use alloc::{boxed::Box, string::String, vec, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, VmId};
use model_control::{Caller, Refusal};
use zerocopy::IntoBytes;

/// Frames that were free, kept for disks and switches, or the heap's, before any VM.
static BEFORE: AtomicU64 = AtomicU64::new(0);

fn free_or_known() -> u64 {
    let free = machine::get()
        .node_ids()
        .map(|node| frames::counts(node).free);
    let kept = disk::table_frames() + network::frames();
    free.sum::<u64>() + sharing::accounts().cached() + heap::usage().1 / FRAME_SIZE + kept
}

/// Notes the frames of a machine without VMs, at boot.
pub(crate) fn note_frames() {
    BEFORE.store(free_or_known(), Ordering::Relaxed);
}

/// Whether the machine has booted, and VMs may run.
pub fn has_booted() -> bool {
    BEFORE.load(Ordering::Relaxed) != 0
}

/// What is counted of all VMs.
pub fn vms() -> Vec<RawVm> {
    vms::all()
        .iter()
        .map(|vm| crate::vms::report::read_vm(vm))
        .collect()
}

/// What is asked of a CPU about a VM that moves.
#[derive(Debug)]
pub enum Ask {
    /// To pause it and say all of it.
    Save(VmName),
    /// To let it go on here.
    GoOn(VmName),
    /// To make it of that, and let it go on.
    Restore(Vec<u8>),
    /// To start it again.
    Start(VmName),
}

static ASKED: SpinLock<Option<Ask>> = SpinLock::new(Rank::Vm, None);
static ANSWER: SpinLock<Option<Result<Vec<u8>, String>>> = SpinLock::new(Rank::Vm, None);

static MOVES: SpinLock<Option<SpanMoveRequest>> = SpinLock::new(Rank::Vm, None);

/// Asks a CPU to move a vCPU to another host of its VM; nobody says what came of it.
pub fn ask_to_move(request: SpanMoveRequest) {
    *MOVES.lock() = Some(request);
}

static DRAINS: SpinLock<Option<VmName>> = SpinLock::new(Rank::Vm, None);

/// Asks a CPU to do the next step of freeing this host of a VM and of leaving the cluster; nobody says what came of it.
pub fn ask_to_drain(name: VmName) {
    *DRAINS.lock() = Some(name);
}

/// A vCPU goes to the first host; where there is none, the VM's pages go; where it has ended by that, this host leaves.
fn drain(name: VmName) -> Result<(), Refusal> {
    let vm = vms::find(name)?;
    let Some(instance) = vm.live() else {
        let is_gone = vm
            .last()
            .is_some_and(|it| it.reason.as_str() == Some(PARTED));
        return is_gone.then(crate::cluster::retire).transpose().map(drop);
    };
    let mut vcpus = instance.vcpus.iter();
    let own = vcpus.find(|vcpu| !instance.is_elsewhere(vcpu.index.into()));
    match (own, &instance.span) {
        (Some(vcpu), Some(span)) => life::move_vcpu(&SpanMoveRequest {
            name,
            vcpu: vcpu.index.into(),
            host: span.layout.first().into(),
        }),
        _ => life::leave(name).map(drop),
    }
}

/// A control VM that is not there.
const ASKER: VmId = VmId {
    index: u16::MAX,
    generation: 1,
};

static ERRANDS: SpinLock<Option<VmName>> = SpinLock::new(Rank::Vm, None);

/// Asks a CPU to ask a host for its nodes, for a VM that gives that up at once and then asks for the list of VMs.
pub fn ask_host_twice(name: VmName) {
    *ERRANDS.lock() = Some(name);
}

/// What that VM has been told so far: frames.
pub fn told_asker() -> Vec<u8> {
    let mut bytes = Vec::new();
    sessions::waiting(ASKER, |part| bytes.extend_from_slice(part));
    bytes
}

fn errands_to(name: VmName) -> Option<()> {
    let group = Text::new(DEFAULT_GROUP).unwrap_or_default();
    sessions::enter(ASKER, name, group, control_rights::ALL).then_some(())?;
    sessions::set_open(ASKER, true);
    for (tag, kind) in [(1, request::NODES), (2, request::LIST)] {
        let what = [(name, kind.into()), (VmName::default(), 0)];
        let what = what.map(|(name, from)| ReadRequest { name, from });
        let incoming = requests::take(|bytes| {
            bytes[..size_of_val(&what)].copy_from_slice(what.as_bytes());
            FrameHeader::of(request::AT_HOST, tag, &[what.as_bytes()])
        })?;
        let caller = Caller::vm(control_rights::ALL, group);
        errands::ask(ASKER, caller, &incoming).ok()?;
        if tag == 1 {
            errands::give_up(ASKER);
        }
    }
    Some(())
}

/// Asks a CPU, once one does what is nobody's in particular.
pub fn ask(ask: Ask) {
    *ASKED.lock() = Some(ask);
}

/// Whoever does what is nobody's in particular is to look.
pub(crate) fn request() {
    let is_asked = ASKED.lock().is_some() || MOVES.lock().is_some();
    if is_asked || DRAINS.lock().is_some() || ERRANDS.lock().is_some() {
        machine::due::request();
    }
}

/// What it has answered.
pub fn answer() -> Option<Result<Vec<u8>, String>> {
    ANSWER.lock().take()
}

/// Does what was asked; a VM that was asked to pause is looked at again until it has.
pub(crate) fn serve() {
    let moves = MOVES.lock().take();
    moves.map(|request| life::move_vcpu(&request));
    let drains = DRAINS.lock().take();
    drains.map(drain);
    let errands = ERRANDS.lock().take();
    errands.map(errands_to);
    let Some(ask) = ASKED.lock().take() else {
        return;
    };
    let done = match &ask {
        Ask::Save(name) => save(*name),
        Ask::GoOn(name) => life::resume(*name, true).map(|()| Vec::new()),
        Ask::Restore(bytes) => restore(bytes),
        Ask::Start(name) => life::start(*name).map(|()| Vec::new()),
    };
    match done {
        Err(refusal) if refusal.code == code::BUSY => self::ask(ask),
        done => *ANSWER.lock() = Some(done.map_err(|it| it.sentence.as_str().into())),
    }
}

fn room() -> Box<[u8; ROOM]> {
    let room = vec![0; ROOM].into_boxed_slice();
    room.try_into().unwrap_or_else(|_| unreachable!())
}

fn save(name: VmName) -> Result<Vec<u8>, Refusal> {
    life::pause(name)?;
    let (mut room, mut bytes) = (room(), Vec::new());
    let mut sink = ByteSink::new(&mut room, |part| {
        bytes.extend_from_slice(part);
        true
    });
    moving::save(name, &mut sink)?;
    let lost = || Refusal::new(code::IMPOSSIBLE, 0, format_args!("an item is too long"));
    sink.finish().ok_or_else(lost)?;
    Ok(bytes)
}

fn restore(bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    let (mut room, mut rest) = (room(), bytes);
    let input = |into: &mut [u8]| {
        let part = rest.split_off(..into.len());
        part.map(|part| into.copy_from_slice(part)).is_some()
    };
    let name = moving::restore(&mut ByteSource::new(&mut room, input)?)?;
    life::resume(name, true).map(|()| Vec::new())
}

/// The longest stretch of each kind that any CPU has worked at EL2 between two looks at interrupts, in nanoseconds.
pub fn stretches() -> [u64; STRETCH_COUNT] {
    let mut longest = [0; STRETCH_COUNT];
    for cpu in machine::cpus() {
        for (longest, own) in longest.iter_mut().zip(cpu.stretch.longest_ns()) {
            *longest = own.max(*longest);
        }
    }
    longest
}

/// Frames of overlays that disks tell of and do not hold, or hold and do not tell of.
pub fn frames_untold() -> u64 {
    let of_disk = |disk: &Block| {
        let holds = disk.of_overlay(CowDisk::private) / FRAME_SIZE;
        disk.frames().abs_diff(holds)
    };
    let of_vm = |vm: &vms::Vm| vm.live().map_or(0, |it| it.disks().map(of_disk).sum());
    vms::all().iter().map(|vm| of_vm(vm)).sum()
}

/// Whether nothing is left to do.
pub fn is_idle() -> bool {
    !machine::due::is_needed()
}

/// Frames that are neither free nor kept nor the heap's and were so before any VM: lost ones, once all VMs have ended. Negative
/// where there are more than there were.
pub fn frames_missing() -> i64 {
    BEFORE.load(Ordering::Relaxed).cast_signed() - free_or_known().cast_signed()
}

/// vCPUs that were made and not given back: lost ones, once all VMs have ended.
pub fn vcpus_kept() -> u64 {
    ENTITIES_MAX as u64 - sched::free_entities()
}
