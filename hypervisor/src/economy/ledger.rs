//! What VMs have of the machine's memory, may have, and owe.

use crate::economy::paging;
use crate::machine::{self, Kind, due, stretch};
use crate::memory::{VMS_MAX, frames, heap, regions, sharing, shortage};
use crate::vms::holding::{holding, size};
use crate::vms::{Instance, Vm, report, table};
use abi::control::{ReclaimRequest, code};
use arch::timer;
use core::sync::atomic::{AtomicU64, Ordering};
use model_addr::FRAME_SIZE;
use model_control::Refusal;
use model_entitlement::{SLACK, Standing, Terms, call_in, in_order, stand};

/// How often guests are asked to keep to what they may have: a second.
const ASK_EVERY_NS: u64 = 1_000_000_000;

/// How often pages are taken from a VM that owes some.
const REPAY_EVERY_NS: u64 = 20_000_000;
/// When guests are asked again, in counts.
static ASK_AT: AtomicU64 = AtomicU64::new(0);

/// Frames for guests and for what EL2 needs for them: what was free when the first VM was described, less
/// reserves.
static CAPACITY: AtomicU64 = AtomicU64::new(0);

/// Sees how much there is for guests. Before any VM starts.
pub fn init() {
    let nodes = machine::get().node_ids();
    let free = nodes.map(|node| frames::counts(node).free - frames::reserve(node));
    // None run, but where they come from the image before this one.
    let running = table::all()
        .iter()
        .filter_map(|vm| Some(holding(&*vm.instance()?)))
        .map(|held| held.private + held.tables)
        .sum::<u64>();
    CAPACITY.store(free.sum::<u64>() + running + own(), Ordering::Relaxed);
}

/// Frames of EL2's heap and of records, which grow with VMs and with what they share.
fn own() -> u64 {
    heap::usage().1 / FRAME_SIZE + sharing::record_frames()
}

/// Frames that guests may have in all.
pub fn capacity() -> u64 {
    CAPACITY.load(Ordering::Relaxed).saturating_sub(own())
}

/// What was saved and waits for VMs to start with it, in frames.
pub fn pool() -> u64 {
    let running = table::all();
    let vms = running.iter().filter_map(|vm| {
        let instance = vm.instance()?;
        Some((vm.terms(), holding(&instance)))
    });
    model_entitlement::pool(vms)
}

/// Frames that VMs which run are sure of, and their tables; and those of shared regions.
pub fn bases() -> u64 {
    let running = |vm: &alloc::sync::Arc<Vm>| vm.instance().map(|_| vm.terms().promised());
    let vms: u64 = table::all().iter().filter_map(running).sum();
    vms + regions::frames()
}

/// Refuses to start what could not be paid for once all VMs use what they are sure of.
pub fn admit(vm: &Vm) -> Result<(), Refusal> {
    let regions = regions::missing(&vm.record());
    admit_to(vm, vm.terms().promised() + regions, bases())
}

/// Refuses to promise a VM `base` frames where others were promised `bases`.
fn admit_to(vm: &Vm, base: u64, bases: u64) -> Result<(), Refusal> {
    let there = capacity() + pool();
    if bases + base <= there {
        return Ok(());
    }
    let mib = |frames: u64| (frames * FRAME_SIZE) >> 20;
    let (name, needs, promised, there) = (vm.name, mib(base), mib(bases), mib(there));
    let what = format_args!(
        "{name} needs {needs} MiB; {promised} MiB of {there} MiB are promised to VMs that run"
    );
    Err(Refusal::new(code::NO_MEMORY, base * FRAME_SIZE, what))
}

/// Asks a guest to give back as much as that; how many bytes it was asked for.
pub fn reclaim(request: &ReclaimRequest) -> Result<u64, Refusal> {
    let instance = table::find(request.name)?.running()?;
    let frames = request.bytes / FRAME_SIZE;
    let max = size(&instance);
    let before = instance.target(max).unwrap_or(max);
    if !instance.set_target(before.saturating_sub(frames), max) && instance.paging.is_used() {
        let taken = frames.min(holding(&instance).takeable);
        instance.paging.ask(taken);
        due::tick_at(timer::now());
        return Ok(taken * FRAME_SIZE);
    }
    if instance.target(max).is_none() {
        let what = format_args!("the guest of {} has no balloon driver to ask", request.name);
        return Err(Refusal::new(code::IMPOSSIBLE, 0, what));
    }
    Ok(before.saturating_sub(instance.target(max).unwrap_or(before)) * FRAME_SIZE)
}

/// Refuses to promise a VM that runs more than what it was promised, where that could not be paid for.
pub fn admit_change(vm: &Vm, new: Terms) -> Result<(), Refusal> {
    let terms = vm.terms();
    if vm.instance().is_none() || new.base <= terms.base {
        return Ok(());
    }
    let others = bases().saturating_sub(terms.promised());
    admit_to(vm, new.promised(), others)
}

/// Asks a guest for nothing any more where it has come to be sure of all its memory.
pub fn ask_for_nothing(vm: &Vm, instance: &Instance) {
    let all = size(instance);
    if vm.terms().base >= all {
        instance.set_target(all, all);
    }
}

/// Asks guests to keep to what they may have, once a second while a VM runs that can have more than
/// its base; and takes pages from those that owe some, the most negative balance first, more often.
pub fn tick() {
    let now = timer::now();
    let is_second = now >= ASK_AT.load(Ordering::Relaxed);
    let short = shortage::is_short();
    let mut standings = heapless::Vec::<_, { VMS_MAX }>::new();
    for vm in table::all() {
        let Some(instance) = vm.live() else { continue };
        stretch::look(Kind::Tick);
        instance.wake_devices();
        if instance.paging.take_news() {
            report::send_state(&vm);
        }
        let terms = vm.terms();
        let all = size(&instance);
        if terms.base >= all && !instance.paging.is_used() && !short {
            // Whoever waits for a frame tries again.
            paging::repay(&instance, &Standing::EVEN, 0);
            continue;
        }
        if is_second {
            paging::count(&instance);
        }
        let holding = holding(&instance);
        let standing = stand(terms, holding, short);
        // Who owes is asked at once.
        if (is_second || standing.owed > SLACK) && terms.base < all {
            instance.set_target(standing.limit, all);
            let (has, may) = (holding.resident(), standing.limit);
            if instance.paging.is_over_now(has > may + SLACK) {
                let name = instance.name();
                log::info!("{name} is over: it has {has} pages and may have {may}");
            }
        }
        let _ = standings.push((standing, (holding.takeable, instance)));
    }
    if standings.is_empty() {
        return;
    }
    in_order(&mut standings);
    if short {
        call_in(&mut standings, bases().saturating_sub(capacity()));
    }
    let mut owes = false;
    for (standing, (takeable, instance)) in &standings {
        stretch::look(Kind::Tick);
        owes |= paging::repay(instance, standing, *takeable);
    }
    shortage::note_owes(owes);
    if short {
        shortage::settle(frames::are_few(), owes);
    }
    if is_second {
        ASK_AT.store(now + machine::counts(ASK_EVERY_NS), Ordering::Relaxed);
    }
    // Ticks that came for something else put neither off.
    due::tick_at(ASK_AT.load(Ordering::Relaxed));
    if owes {
        due::tick_at(now + machine::counts(REPAY_EVERY_NS));
    }
}
