//! What is asked about memory: who has what, why, and what would fit.

use super::Answer;
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

/// Entries of a VM's map that are looked at under one lock.
const BUDGET: usize = 512;

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

/// Why a VM's memory is not shared. The guest runs on: what it changes meanwhile counts once.
pub fn why(name: VmName, answer: &mut Answer) -> Result<(), Refusal> {
    let (_, instance) = running(name)?;
    let mut status = WhyStatus {
        private: [0; WHY_COUNT],
        no_twin: 0,
        shared: 0,
    };
    let mut from = Some(Gfn(0));
    while let Some(at) = from {
        from = instance
            .space
            .visit(at, BUDGET, |_, entry| match entry.backing {
                Backing::Private(_) if entry.never_share => {
                    status.private[Why::Never as usize] += 1;
                }
                Backing::Private(_) => status.private[entry.why as usize] += 1,
                Backing::Shared(_) if is_alone(entry) => status.no_twin += 1,
                Backing::Shared(_) => status.shared += 1,
                Backing::Absent | Backing::Discarded(_) => {}
            });
    }
    answer.push(&status);
    Ok(())
}

/// Where a VM's memory is.
pub fn numa(name: VmName, answer: &mut Answer) -> Result<(), Refusal> {
    let (_, instance) = running(name)?;
    answer.push(&numa::status(&instance));
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

/// The pages of a VM from an address on, as many as fit. The guest runs on.
pub fn pages(request: &PagesRequest, answer: &mut Answer) -> Result<(), Refusal> {
    let (_, instance) = running(request.name)?;
    if !Ipa(request.from).is_aligned(FRAME_SIZE) {
        let what = format_args!("{:#x} is not page-aligned", request.from);
        return Err(Refusal::new(code::IMPOSSIBLE, request.from, what));
    }
    let mut from = Some(Ipa(request.from).frame());
    let mut full = false;
    while let Some(at) = from.filter(|_| !full) {
        from = instance.space.visit(at, BUDGET / 8, |gfn, entry| {
            if !full && let Some(frame) = entry.frame() {
                let state = match entry.backing {
                    Backing::Private(_) => page::PRIVATE,
                    _ if is_alone(entry) => page::ALONE,
                    _ => page::SHARED,
                };
                full = !answer.push(&PageStatus {
                    address: gfn.address().0 | state,
                    hash: sharing::fingerprint(frame),
                });
            }
        });
    }
    Ok(())
}
