//! Pages of VMs that are on a disk: how they go there, and how they come back.
//!
//! A page goes without the guest's help: one that a partition, the base of a disk, holds anyway, from
//! all its users at once; or one of the VM's own, written to its swap. How it comes back: `guest/paging.rs`.

use crate::drivers::{Buffer, Extent, Job, Move, Operation, disk, jobs::Kind};
use crate::guest::layout::RAM_START;
use crate::guest::paging::{bit, fail, page_at, pause, wake};
use crate::machine::{self, stretch};
use crate::memory::{Metal, frames, sharing};
use crate::vms::{self, Instance};
use arch::timer;
use core::sync::atomic::Ordering;
use model_addr::{FRAME_SIZE, Gfn, Mfn};
use model_address_space::Frames;
use model_disk::Store as _;
use model_entitlement::{Go, News, Standing};
use model_frame_table::{Owner, Purpose};
use model_paging::{Store, Token};
use model_pmap::{Backing, Entry, Why};
use model_sharing::MAX_USERS;

/// Buffers of a disk that pages on their way out leave to those on their way in.
const KEPT_FROM_OUT: usize = 2;
/// Guest frames that one go looks at for pages to take. Small, so that a page is looked at again
/// only after its guest has run.
const LOOKED_AT: usize = 1024;
const LOOKED_AT_BETWEEN: usize = 256;
/// Guest frames that are counted in one go.
const COUNTED: usize = 1 << 17;
/// Pages that were asked for and are given up in a go in which none could be taken.
const GIVEN_UP: u64 = 16;

/// Whether a device of the VM relies on a guest frame now.
fn is_in_use(vm: &Instance, gfn: Gfn) -> bool {
    vm.virtio.iter().any(|device| device.uses(gfn)) || disk::is_in_use(vm.id, gfn)
}

/// The disk is done with a page, or could not do it.
pub fn end(page: &Move, buffer: Buffer, done: bool) {
    let Some(vm) = vms::instance(page.vm) else {
        // What was its swap is cleared before anybody else has it.
        return;
    };
    let Some(extent) = disk::extent(page.token.disk) else {
        return;
    };
    match page.kind {
        Kind::In(waiters) => end_in(page, &vm, extent, &buffer, done, waiters),
        Kind::Out(frame) => {
            drop(buffer);
            end_out(page, &vm, frame, done);
        }
    }
}

fn end_in(page: &Move, vm: &Instance, extent: Extent, buffer: &Buffer, done: bool, waiters: u64) {
    let Move { gfn, token, .. } = *page;
    let number = token.encode();
    if vm.space.entry(gfn).backing != Backing::Discarded(number) {
        return wake(vm, waiters);
    }
    if !done || !extent.check(token.block, buffer.data()) {
        return fail(vm, extent, gfn, token);
    }
    let user = Owner { vm: vm.id, gfn };
    let purpose = Purpose::Private(user);
    let Some(frame) = frames::allocate_from_reserve(vm.home, purpose) else {
        vm.paging.stalled.fetch_or(waiters, Ordering::SeqCst);
        return;
    };
    Metal.copy(buffer.data(), frame);
    let key = sharing::key_of(user, token.disk, token.block);
    let is_shared =
        token.store == Store::Base && model_sharing::publish(&Metal, frame, user, key).is_ok();
    let entry = if is_shared {
        Entry::shared(frame)
    } else {
        Entry {
            why: Why::Evicted,
            ..Entry::private(frame)
        }
    };
    let is_there = vm.space.maps().restore(gfn, number, entry);
    match (is_there, is_shared) {
        (true, true) => model_sharing::enlist(&Metal, frame),
        (true, false) => Metal.forget(number),
        (false, true) => Metal.leave(frame, user),
        (false, false) => Metal.free(frame, 0),
    }
    vm.paging.waits.page_came(page.began);
    wake(vm, waiters);
}

fn end_out(page: &Move, vm: &Instance, frame: Mfn, done: bool) {
    let number = page.token.encode();
    if done && vm.space.discard(page.gfn, frame, number) {
        vm.paging.paid();
    } else {
        vm.space.maps().cancel_out(page.gfn);
        Metal.forget(number);
    }
    let owed = vm.paging.owed.load(Ordering::Relaxed);
    if done && owed > 0 {
        take(vm, owed.min(4), LOOKED_AT_BETWEEN);
    }
}

/// Begins to write a page to the VM's swap; whether it did.
fn page_out(vm: &Instance, gfn: Gfn) -> bool {
    let Some(swap) = &vm.paging.swap else {
        return false;
    };
    // A write that is under way would tell of the page as it was.
    let is_leaving = || {
        disk::any_page(|page| {
            matches!(page.kind, Kind::Out(_)) && (page.vm, page.gfn) == (vm.id, gfn)
        })
    };
    if is_in_use(vm, gfn) || is_leaving() {
        return false;
    }
    let Some(buffer) = swap.buffer(KEPT_FROM_OUT) else {
        return false;
    };
    let page = buffer.data();
    let mut from = None;
    let begun = vm.space.maps().begin_out(gfn, |frame| {
        frames::ram(page, 1).copy_from(0, frames::ram(frame, 1), 0, FRAME_SIZE as usize);
        from = Some(frame);
    });
    let Some(frame) = from.filter(|_| begun) else {
        return false;
    };
    let Some(block) = swap.take_block(page) else {
        vm.space.maps().cancel_out(gfn);
        return false;
    };
    let token = Token {
        store: Store::Swap,
        disk: swap.number(),
        block,
    };
    let page = Move {
        vm: vm.id,
        gfn,
        token,
        kind: Kind::Out(frame),
        began: timer::now(),
    };
    let begun = swap.begin(buffer, page_at(token, Operation::Write), Job::Page(page));
    if begun.is_err() {
        vm.space.maps().cancel_out(gfn);
        Metal.forget(token.encode());
    }
    begun.is_ok()
}

/// Takes a frame that a partition's block is in from all its users; whether it is free now.
fn discard(frame: Mfn) -> bool {
    let Some(entry) = machine::get().map.entry(frame) else {
        return false;
    };
    let key = entry.cache_key();
    let Some(extent) = disk::extent(key.disk).filter(|extent| extent.knows(key.block)) else {
        return false;
    };
    let mut users = heapless::Vec::<Owner, { MAX_USERS as usize }>::new();
    model_sharing::users(&Metal, frame, |user| {
        let _ = users.push(user);
    });
    let token = Token {
        store: Store::Base,
        disk: extent.number(),
        block: key.block,
    };
    let has_base = |vm: &Instance| vm.paging.bases & bit(key.disk) != 0;
    let may_lose = |user: &Owner| {
        vms::instance(user.vm).is_some_and(|vm| {
            vm.space.contains(user.gfn.address()) && has_base(&vm) && !is_in_use(&vm, user.gfn)
        })
    };
    if !users.iter().all(may_lose) {
        return false;
    }
    for user in users {
        if let Some(vm) = vms::instance(user.vm) {
            vm.space.note_away();
            vm.space.discard(user.gfn, frame, token.encode());
        }
    }
    model_sharing::evict(&Metal, frame)
}

/// Takes up to `frames` pages from a VM, or begins to, looking at `budget` of its guest frames; how
/// many.
fn take(vm: &Instance, frames: u64, budget: usize) -> u64 {
    let paging = &vm.paging;
    if paging.busy.swap(true, Ordering::Acquire) {
        return 0;
    }
    let first = RAM_START.frame();
    let all = vm.space.range().size / FRAME_SIZE;
    let may_swap = {
        let mappers = paging.mappers.load(Ordering::Relaxed);
        paging.debtor.lock().may_swap(all, mappers)
    };
    let [mut discarded, mut written] = [0; 2];
    let mut at = Gfn(paging.hand.load(Ordering::Relaxed)).max(first);
    let mut looked = 0;
    'looks: while discarded + written < frames && looked < budget {
        let mut old = heapless::Vec::new();
        let may_go = |_, entry| paging.may_go(entry, may_swap);
        let next = vm.space.age(at, may_go, &mut old);
        for (n, (gfn, entry)) in old.into_iter().enumerate() {
            if discarded + written == frames {
                break;
            }
            // Whether a page can go may be asked of the devices of 64 VMs, and of requests of 128 segments each: who is in
            // the way decides how long that takes. The rest is old in the next go, too.
            if n + looked > 0 && stretch::is_long() {
                (at, looked) = (gfn, looked + n);
                break 'looks;
            }
            match entry.backing {
                Backing::Shared(frame) => discarded += u64::from(discard(frame)),
                _ => written += u64::from(page_out(vm, gfn)),
            }
        }
        looked += model_address_space::AGE_AT_ONCE;
        at = next.unwrap_or(first);
    }
    (0..discarded).for_each(|_| paging.paid());
    paging.hand.store(at.0, Ordering::Relaxed);
    let mut debtor = paging.debtor.lock();
    debtor.passed(looked as u64, all, discarded, discarded + written);
    drop(debtor);
    paging.busy.store(false, Ordering::Release);
    discarded + written
}

/// Counts the pages of a VM that partitions hold.
pub fn count(vm: &Instance) {
    if vm.paging.bases == 0 {
        return;
    }
    let mut mappers = 0;
    let (mut from, mut looked) = (Some(RAM_START.frame()), 0);
    while let Some(at) = from.filter(|_| looked < COUNTED) {
        stretch::look(stretch::Kind::Tick);
        from = vm.space.visit(at, 512, |_, entry| {
            let is_mapper =
                matches!(entry.backing, Backing::Shared(_)) && vm.paging.may_go(entry, false);
            mappers += u64::from(is_mapper);
        });
        looked += 512;
    }
    vm.paging.mappers.store(mappers, Ordering::Relaxed);
}

/// Takes pages from a VM that owes some, of `takeable` that could be taken, and says how many faults its guest
/// may have until the next go. Whether there is more to do.
pub fn repay(vm: &Instance, standing: &Standing, takeable: u64) -> bool {
    let paging = &vm.paging;
    let owed = standing.owed;
    paging.owed.store(owed, Ordering::Relaxed);
    let asked = paging.asked.load(Ordering::Relaxed);
    let most = owed.max(asked);
    let taken = if most > 0 {
        take(vm, most, LOOKED_AT)
    } else {
        0
    };
    if taken == 0 {
        // What cannot be had is not looked for for ever.
        let less = |asked: u64| Some(asked.saturating_sub(GIVEN_UP));
        let _ = paging
            .asked
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    let go = Go {
        owed,
        slack: standing.slack,
        takeable,
        taken,
    };
    let (news, allowance, is_slowed, emergency) = {
        let mut debtor = paging.debtor.lock();
        let news = debtor.turn(go);
        let emergency = debtor.emergency(standing);
        (
            news,
            debtor.allowance(standing),
            debtor.is_slowed(),
            emergency,
        )
    };
    let is_helped = emergency > 0 && vm.balloon().is_some();
    paging.allowance.store(allowance, Ordering::Relaxed);
    paging.is_slowed.store(is_slowed, Ordering::Relaxed);
    let helped = emergency * u32::from(is_helped);
    paging.emergency.store(helped, Ordering::Relaxed);
    match news {
        Some(News::Owes) => log::info!("{} owes {owed} pages", vm.name()),
        Some(News::Repaid) => log::info!("{} has repaid all but {owed} pages", vm.name()),
        // Somebody paused it, who lets it go on, too.
        Some(News::Pause) if vm.is_paused() => paging.debtor.lock().forgive(),
        Some(News::Pause) => pause(vm, format_args!("it owes {owed} pages")),
        Some(News::GoOn) => {
            log::info!("{} goes on: it owes {owed} pages", vm.name());
            vm.resume(false);
            vm.paging.note_news();
        }
        None => {}
    }
    paging.waits.go();
    wake(vm, paging.stalled.swap(0, Ordering::SeqCst));
    most > 0
}
