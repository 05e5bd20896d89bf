//! What is asked about memory: who has what, why, and what would fit.

use super::Answer;
use crate::stretch::{self, Kind};
use crate::vm::{self, Instance, Refusal, Vm};
use crate::{frames, host, numa, sharing};
use abi::control::{
    MachineMem, MoveRequest, PageStatus, PagesRequest, VmName, WHY_COUNT, WhyStatus, code, page,
};
use alloc::sync::Arc;
use model_addr::{FRAME_SIZE, Gfn, Ipa, NodeId};
use model_frame_table::Use;
use model_pmap::{Backing, Entry, Why};
use model_sharing::UNIT;

/// Entries of a VM's map that are looked at under one lock, without a look at interrupts.
const BUDGET: usize = 512;
/// The same where what is in each page is hashed.
const BUDGET_OF_HASHES: usize = 4;
/// How often that is done for one request: what is left is asked for again, after others' work.
const PIECES: usize = 16;

/// The memory of those of these VMs that run, as many as fit.
pub fn list(vms: impl Iterator<Item = Arc<Vm>>, answer: &mut Answer) {
    for vm in vms {
        if let Some(instance) = vm.instance()
            && !answer.push(&vm::mem_status(&vm, &instance))
        {
            break;
        }
    }
}

/// The machine's memory.
pub fn machine() -> MachineMem {
    let host = host::get();
    let mut mem = MachineMem {
        managed: 0,
        free: 0,
        reserve: 0,
        shared: 0,
        saved: 0,
        cached: sharing::accounts().cached() * FRAME_SIZE,
        images: sharing::image_frames() * FRAME_SIZE,
        bases: 0,
        pool: 0,
        records: sharing::record_frames() * FRAME_SIZE,
    };
    for range in host.map.ranges() {
        mem.managed += range.frames.count * FRAME_SIZE;
    }
    for node in host.node_ids() {
        mem.free += frames::counts(node).free * FRAME_SIZE;
        mem.reserve += frames::reserve(node) * FRAME_SIZE;
    }
    let (mut charged, mut users) = (0, 0);
    for vm in vm::all() {
        if vm.instance().is_some() {
            let account = sharing::accounts().get(vm.slot);
            charged += account.units;
            users += account.users;
            mem.bases += vm.terms().base * FRAME_SIZE;
        }
    }
    mem.shared = charged.div_ceil(UNIT) * FRAME_SIZE;
    mem.saved = (users * FRAME_SIZE).saturating_sub(mem.shared);
    mem.pool = vm::pool() * FRAME_SIZE;
    mem
}

fn running(name: VmName) -> Result<(Arc<Vm>, Arc<Instance>), Refusal> {
    let vm = vm::find(name)?;
    let instance = vm
        .instance()
        .ok_or_else(|| Refusal::new(code::WRONG_STATE, 0, format_args!("{name} is not running")))?;
    Ok((vm, instance))
}

/// Calls `visit` for guest frames that something is behind, from where the request says; where to go on, 0 at
/// the end. The guest runs on: what it changes meanwhile counts once.
fn visit_some(
    (instance, request): (&Instance, &PagesRequest),
    budget: usize,
    mut visit: impl FnMut(Gfn, Entry),
) -> Result<u64, Refusal> {
    if !Ipa(request.from).is_aligned(FRAME_SIZE) {
        let what = format_args!("{:#x} is not page-aligned", request.from);
        return Err(Refusal::new(code::IMPOSSIBLE, request.from, what));
    }
    let mut from = Some(Ipa(request.from).frame());
    for _ in 0..PIECES {
        stretch::look(Kind::Control);
        from = from.and_then(|at| instance.space.visit(at, budget, &mut visit));
    }
    Ok(from.map_or(0, |at| at.address().0))
}

/// Why a VM's memory is not shared.
pub fn why(request: &PagesRequest, answer: &mut Answer) -> Result<(), Refusal> {
    let (_, instance) = running(request.name)?;
    let mut status = WhyStatus {
        private: [0; WHY_COUNT],
        no_twin: 0,
        shared: 0,
    };
    answer.next = visit_some((&instance, request), BUDGET, |_, entry| {
        match entry.backing {
            Backing::Private(_) if entry.never_share => status.private[Why::Never as usize] += 1,
            Backing::Private(_) => status.private[entry.why as usize] += 1,
            Backing::Shared(_) if is_alone(entry) => status.no_twin += 1,
            Backing::Shared(_) => status.shared += 1,
            Backing::Absent | Backing::Discarded(_) => {}
        }
    })?;
    answer.push(&status);
    Ok(())
}

/// Where a VM's memory is.
pub fn numa(request: &PagesRequest, answer: &mut Answer) -> Result<(), Refusal> {
    let (_, instance) = running(request.name)?;
    let mut status = numa::status(&instance);
    answer.next = visit_some((&instance, request), BUDGET, |_, entry| {
        let node = entry.frame().and_then(numa::node_of);
        let memory = node.and_then(|node| status.memory.get_mut(usize::from(node.0)));
        if let Some(memory) = memory {
            *memory += FRAME_SIZE;
        }
    })?;
    answer.push(&status);
    Ok(())
}

/// Lets a VM's memory move to a node.
pub fn move_to(request: &MoveRequest) -> Result<(), Refusal> {
    let (_, instance) = running(request.name)?;
    let nodes = host::get().nodes() as u64;
    let Some(node) = u8::try_from(request.node)
        .ok()
        .filter(|node| u64::from(*node) < nodes)
    else {
        let node = request.node;
        let what = format_args!("there is no node {node}: the machine has {nodes}, from 0 on");
        return Err(Refusal::new(code::IMPOSSIBLE, request.node, what));
    };
    numa::move_vm(&instance, NodeId(node));
    Ok(())
}

/// Whether the frame of an entry has one user at most.
fn is_alone(entry: Entry) -> bool {
    let frame = entry.frame().and_then(|frame| host::get().map.entry(frame));
    frame.is_none_or(|frame| {
        let state = frame.state();
        state.usage != Use::Shared || state.references < 2
    })
}

/// The pages of a VM from an address on: as many as one request looks at fit.
pub fn pages(request: &PagesRequest, answer: &mut Answer) -> Result<(), Refusal> {
    let (_, instance) = running(request.name)?;
    if !sharing::has_fingerprints() {
        let what =
            format_args!("pages have no secret hashes: the machine has no source of random bits");
        return Err(Refusal::new(code::IMPOSSIBLE, 0, what));
    }
    answer.next = visit_some((&instance, request), BUDGET_OF_HASHES, |gfn, entry| {
        if let Some(frame) = entry.frame() {
            let state = match entry.backing {
                Backing::Private(_) => page::PRIVATE,
                _ if is_alone(entry) => page::ALONE,
                _ => page::SHARED,
            };
            answer.push(&PageStatus {
                address: gfn.address().0 | state,
                hash: sharing::fingerprint(frame),
            });
        }
    })?;
    Ok(())
}
