//! What is asked about memory: who has what, why, and what would fit.

use crate::control::Answer;
use crate::machine::{self, Kind, stretch};
use crate::memory::sharing;
use crate::placement;
use crate::vms::{self, Instance};
use abi::control::{MoveRequest, PageCounts, PageStatus, ReadRequest, code, page};
use model_addr::{FRAME_SIZE, Gfn, Ipa, NodeId};
use model_control::Refusal;
use model_frame_table::Use;
use model_pmap::{Backing, Entry, Why};
use zerocopy::FromZeros;

/// What one request looks at: entries of a VM's map under one lock, without a look at interrupts, and how often.
/// What is left is asked for again, after others' work.
#[derive(Clone, Copy)]
struct Pieces {
    entries: usize,
    most: usize,
}

/// Where entries are counted: some 250 instructions each.
const COUNTED: Pieces = Pieces {
    entries: 128,
    most: 64,
};
/// Where what is in each page is hashed.
const HASHED: Pieces = Pieces {
    entries: 4,
    most: 16,
};

/// Calls `visit` for guest frames that something is behind, from where the request says; where to go on, 0 at
/// the end. The guest runs on: what it changes meanwhile counts once.
fn visit_some(
    (instance, request): (&Instance, &ReadRequest),
    pieces: Pieces,
    mut visit: impl FnMut(Gfn, Entry),
) -> Result<u64, Refusal> {
    if !Ipa(request.from).is_aligned(FRAME_SIZE) {
        let what = format_args!("{:#x} is not page-aligned", request.from);
        return Err(Refusal::new(code::IMPOSSIBLE, request.from, what));
    }
    let mut from = Some(Ipa(request.from).frame());
    for _ in 0..pieces.most {
        stretch::look(Kind::Control);
        from = from.and_then(|at| instance.space.visit(at, pieces.entries, &mut visit));
    }
    Ok(from.map_or(0, |at| at.address().0))
}

/// What is behind a VM's guest frames, why it is not shared, and where it is.
pub fn page_counts(request: &ReadRequest, answer: &mut Answer) -> Result<(), Refusal> {
    let instance = vms::find(request.name)?.running()?;
    let mut counts = PageCounts::new_zeroed();
    answer.next = visit_some((&instance, request), COUNTED, |_, entry| {
        let node = entry.frame().and_then(placement::node_of);
        let on_node = node.and_then(|node| counts.nodes.get_mut(usize::from(node.0)));
        if let Some(frames) = on_node {
            *frames += 1;
        }
        match entry.backing {
            Backing::Private(_) if entry.never_share => counts.private[Why::Never as usize] += 1,
            Backing::Private(_) => counts.private[entry.why as usize] += 1,
            Backing::Shared(_) if is_alone(entry) => counts.no_twin += 1,
            Backing::Shared(_) => counts.shared += 1,
            Backing::Absent | Backing::Discarded(_) => {}
        }
    })?;
    answer.push(&counts);
    Ok(())
}

/// Lets a VM's memory move to a node.
pub fn move_to(request: &MoveRequest) -> Result<(), Refusal> {
    let instance = vms::find(request.name)?.running()?;
    let nodes = machine::get().nodes() as u64;
    let Some(node) = u8::try_from(request.node)
        .ok()
        .filter(|node| u64::from(*node) < nodes)
    else {
        let node = request.node;
        let what = format_args!("there is no node {node}: the machine has {nodes}, from 0 on");
        return Err(Refusal::new(code::IMPOSSIBLE, request.node, what));
    };
    placement::move_vm(&instance, NodeId(node));
    Ok(())
}

/// Whether the frame of an entry has one user at most.
fn is_alone(entry: Entry) -> bool {
    let frame = entry
        .frame()
        .and_then(|frame| machine::get().map.entry(frame));
    frame.is_none_or(|frame| {
        let state = frame.state();
        state.usage != Use::Shared || state.references < 2
    })
}

/// The pages of a VM from an address on: as many as one request looks at fit.
pub fn pages(request: &ReadRequest, answer: &mut Answer) -> Result<(), Refusal> {
    let instance = vms::find(request.name)?.running()?;
    if !sharing::has_fingerprints() {
        let what =
            format_args!("pages have no secret hashes: the machine has no source of random bits");
        return Err(Refusal::new(code::IMPOSSIBLE, 0, what));
    }
    answer.next = visit_some((&instance, request), HASHED, |gfn, entry| {
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
