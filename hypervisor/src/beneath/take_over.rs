//! This image takes the place of another one, whose memory stays as it is until this one has answered.

use crate::beneath::attach::{COUNTS, IS_ON};
use crate::beneath::{CPUS, Home, boot, handover};
use crate::machine::{console, entropy, epitaph};
use crate::memory::hooks;
use crate::start;
use abi::os0::Refusal;
use abi::upgrade::{HandedCpu, Handover, OLDEST, VERSION, state};
use arch::boot::{image_parts, secondary_entry};
use arch::entry::GuestContext;
use core::sync::atomic::Ordering;
use model_addr::{FRAME_SIZE, Ipa, Pa, PaRange};
use model_machine_tree::Machine;

/// Takes over from the image that left a [`Handover`] at `from`, or goes back to it. The MMU is off.
#[inline(never)]
pub fn take_over(from: u64) {
    epitaph::go_back_to(from);
    // SAFETY: the image before this one wrote it for this one; atomics alone change in it.
    let handover = unsafe { &*core::ptr::with_exposed_provenance::<Handover>(from as usize) };
    let version = handover.version.load(Ordering::Relaxed);
    if !(u64::from(OLDEST)..=u64::from(VERSION)).contains(&version) {
        epitaph::refuse(from, Refusal::Misfit);
    }
    hooks::fail_at(&handover.fails_at, 1);
    let (tree, blob) = start::read_device_tree(handover.tree.get().0);
    let mut map = start::turn_mmu_on(&tree, blob);
    hooks::fail_at(&handover.fails_at, 2);
    console::hand_over();
    start::connect();
    start::open_console(&tree);
    entropy::init(&tree, blob);
    let tree = start::keep_tree(tree);
    let home = Home {
        hidden: range(handover.hidden.get()),
        own: range(handover.slots[0].get()),
        spare: range(handover.slots[1].get()),
        tree: blob,
        upgrades: handover.upgrades.load(Ordering::Relaxed),
    };
    let Some(room) = room(tree, &home) else {
        epitaph::refuse(from, Refusal::TooLittle)
    };
    boot::settle(tree, home, room, &mut map);
    boot::become_first_cpu(tree);
    if !take_cpus(tree, handover) {
        epitaph::refuse(from, Refusal::Misfit);
    }
    let taken = match handover::take(version, handover.parked.get()) {
        Ok(taken) => taken,
        Err(refusal) => epitaph::refuse(from, refusal),
    };
    hooks::fail_at(&handover.fails_at, 3);
    log::info!("took the place of another image, number {}", home.upgrades);
    handover.entry.store(secondary_entry().0, Ordering::Relaxed);
    epitaph::go_back_to(0);
    handover.state.store(state::TAKEN, Ordering::Release);
    // Nobody comes back: what was the last image's is this one's.
    if let Some(taken) = taken {
        taken.settle();
    }
}

fn range((start, size): (u64, u64)) -> PaRange {
    PaRange::of(Pa(start), size)
}

/// What is left of this image's half, if that is enough.
fn room(tree: &Machine, home: &Home) -> Option<PaRange> {
    let image = image_parts().whole;
    let start = image.end().align_up(FRAME_SIZE)?;
    let size = home.own.end().0.checked_sub(start.0)?;
    let is_there = image.start == home.own.start && size >= boot::room(tree, home.tree);
    is_there.then_some(PaRange { start, size })
}

/// Takes the CPUs as OS-0 has them. `false` where they are others than the device tree's.
fn take_cpus(tree: &Machine, handover: &Handover) -> bool {
    let handed = handover.cpus();
    if handed.len() != tree.cpus.len() {
        return false;
    }
    for (handed, own) in handed.iter().zip(&CPUS) {
        let Some(own) = own.get() else { return false };
        if handed.affinity.load(Ordering::Relaxed) != own.cpu.affinity {
            return false;
        }
        let record = core::ptr::from_ref(&own.record).expose_provenance() as u64;
        handed.record.store(record, Ordering::Relaxed);
        if handed.is_on.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut power = own.power.lock();
        // It is on; it goes where it was going.
        let _ = power.state.turn_on(Ipa(0), true);
        power.state.arrive();
        drop(power);
        COUNTS.fetch_add(IS_ON, Ordering::Release);
        own.world.lock().context = context(handed);
    }
    true
}

/// What OS-0 goes on with: its call was answered with zero.
fn context(handed: &HandedCpu) -> GuestContext {
    let mut context = GuestContext::default();
    let [registers @ .., pc, pstate] = &handed.registers;
    for (to, from) in context.registers.iter_mut().zip(registers) {
        *to = from.load(Ordering::Relaxed);
    }
    context.registers[0] = abi::os0::DONE;
    context.pc = pc.load(Ordering::Relaxed);
    context.pstate = pstate.load(Ordering::Relaxed);
    context
}
