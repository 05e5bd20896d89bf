//! Pages of VMs that are on a disk: how they go there, and how they come back.
//!
//! A page goes without the guest's help: one that a partition, the base of a disk, holds anyway, from
//! all its users at once; or one of the VM's own, written to its swap. What is read back must have the
//! hash that it had. A vCPU that touches such a page leaves its CPU until it is there.

mod stalls;

pub use stalls::{charge_request, may_begin_request, may_use_emergency, must_wait, stall};

use crate::devices::virtio::Slot;
use crate::drivers::disk::{self, Buffer, Extent, Io, Job, Operation, Partition};
use crate::machine::{self, stretch};
use crate::memory::frames::{self, Metal};
use crate::memory::sharing;
use crate::run::housekeeping;
use crate::vcpu::attention;
use crate::vms;
use crate::vms::instance::Instance;
use crate::vms::layout::RAM_START;
use abi::Text;
use abi::control::count;
use arch::timer;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, Gfn, Mfn, VmId};
use model_address_space::Frames;
use model_entitlement::{Debtor, Go, News, Standing};
use model_frame_table::{Owner, Purpose};
use model_paging::{Store, Token};
use model_pmap::{Backing, Entry, Why};
use model_sharing::MAX_USERS;
use model_vgic::VcpuSet;
use model_virtio::blk::SECTOR_SIZE;
use waits::Waits;

mod waits;

/// The waiter that is no vCPU: the VM's devices.
pub const DEVICES: u64 = 1 << 63;
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

/// What a VM has on disks, and owes.
pub struct Paging {
    swap: Option<Partition>,
    /// Bit n: partition n + 1 is the base of a disk of it.
    bases: u64,
    /// Where the clock's hand is.
    hand: AtomicU64,
    /// Pages that a partition holds, when they were counted last.
    mappers: AtomicU64,
    /// Pages that are to be taken from it.
    owed: AtomicU64,
    /// Pages that somebody asked to be taken from it.
    asked: AtomicU64,
    /// Faults that may be filled until the next go; `u32::MAX`: all.
    allowance: AtomicU32,
    /// Its guest has more than it may have; it was told.
    is_over: AtomicBool,
    /// It owes; a go comes soon in any case.
    is_slowed: AtomicBool,
    /// Faults beyond those until the next go, which may take frames of the emergency reserve.
    emergency: AtomicU32,
    /// How it stands as one that owes.
    debtor: SpinLock<Debtor>,
    /// A CPU takes pages from it. One at a time does.
    busy: AtomicBool,
    /// vCPUs that wait for frames: bit n is vCPU n; or [`DEVICES`].
    stalled: AtomicU64,
    waits: Waits,
    /// Why EL2 paused it.
    complaint: SpinLock<Option<Text<96>>>,
    /// It was paused or let go on, and nobody was told.
    is_news: AtomicBool,
}

impl Paging {
    /// Of a VM that starts, with a partition for itself, and those that its disks are based on.
    pub fn new(swap: Option<Partition>, bases: impl Iterator<Item = u8>) -> Self {
        Self {
            swap,
            bases: bases.fold(0, |all, number| all | bit(number)),
            hand: AtomicU64::new(0),
            mappers: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            allowance: AtomicU32::new(u32::MAX),
            is_over: AtomicBool::new(false),
            is_slowed: AtomicBool::new(false),
            emergency: AtomicU32::new(0),
            debtor: SpinLock::new(Rank::Vm, Debtor::new()),
            busy: AtomicBool::new(false),
            stalled: AtomicU64::new(0),
            waits: Waits::default(),
            complaint: SpinLock::new(Rank::Vm, None),
            is_news: AtomicBool::new(false),
        }
    }

    /// Pages of `private` and `shared` ones that could be taken now.
    pub fn takeable(&self, private: u64, shared: u64) -> u64 {
        let free = self.swap.as_ref().map_or(0, |swap| swap.free_blocks());
        free.min(private) + self.mappers.load(Ordering::Relaxed).min(shared)
    }

    /// Asks for pages to be taken.
    pub fn ask(&self, frames: u64) {
        self.asked.fetch_add(frames, Ordering::Relaxed);
    }

    /// How long it waited.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Why EL2 paused it, if it did.
    pub fn complaint(&self) -> Option<Text<96>> {
        *self.complaint.lock()
    }

    /// Whether EL2 paused it or let it go on since this was asked last.
    pub fn take_news(&self) -> bool {
        self.is_news.swap(false, Ordering::Relaxed)
    }

    /// The next go tells those who watch.
    fn note_news(&self) {
        self.is_news.store(true, Ordering::Relaxed);
        housekeeping::request_at(timer::now());
    }

    /// Pages that it owes, where it was paused for them.
    pub fn paused_for(&self) -> Option<u64> {
        let debtor = self.debtor.lock();
        debtor.is_paused().then(|| debtor.owed())
    }

    /// Somebody lets it go on: all is forgiven for a while.
    pub fn forgive(&self) {
        *self.complaint.lock() = None;
        self.debtor.lock().forgive();
    }

    /// Whether pages of its own, or what partitions hold, can be taken from it.
    pub fn is_used(&self) -> bool {
        self.swap.is_some() || self.bases != 0
    }

    /// Whether a page is of a kind that can be taken; one of its own only where it `may_swap`.
    fn may_go(&self, entry: Entry, may_swap: bool) -> bool {
        match entry.backing {
            Backing::Private(_) => may_swap && self.swap.is_some(),
            Backing::Shared(frame) => self.bases & bit(disk_of(frame)) != 0,
            Backing::Absent | Backing::Discarded(_) => false,
        }
    }

    /// Whether its guest has come to have more than it may have.
    pub fn is_over_now(&self, is_over: bool) -> bool {
        !self.is_over.swap(is_over, Ordering::Relaxed) && is_over
    }

    fn paid(&self) {
        let less = |value: u64| Some(value.saturating_sub(1));
        for debt in [&self.owed, &self.asked] {
            let _ = debt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

const fn bit(number: u8) -> u64 {
    match number {
        1..=64 => 1 << (number - 1),
        _ => 0,
    }
}

/// The partition that holds what a shared frame holds; 0 where none does.
fn disk_of(frame: Mfn) -> u8 {
    let entry = machine::get().map.entry(frame);
    entry.map_or(0, |entry| entry.cache_key().disk)
}

/// Whether a device of the VM relies on a guest frame now.
fn is_in_use(vm: &Instance, gfn: Gfn) -> bool {
    let uses = |slot: &Slot| slot.uses(gfn);
    vm.virtio.iter().any(uses) || disk::is_in_use(vm.id, gfn)
}

/// What becomes of somebody who wants a page that is on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// It is there.
    Now,
    /// It is on its way: who waits is told.
    Soon,
    /// It is to be asked for again.
    Later,
}

/// A page on its way.
pub struct Move {
    vm: VmId,
    gfn: Gfn,
    token: Token,
    kind: Kind,
    /// When it began, in counts.
    began: u64,
}

enum Kind {
    /// Into a frame; these wait for it.
    In(u64),
    /// Out of this frame.
    Out(Mfn),
}

/// Brings a page back that is where `token` says; `waiter` is a vCPU's bit, or [`DEVICES`].
pub fn bring(vm: &Instance, gfn: Gfn, token: u64, waiter: u64) -> Coming {
    let number = token;
    let token = Token::decode(number);
    let user = Owner { vm: vm.id, gfn };
    if token.store == Store::Base
        && let Some(Ok(frame)) =
            sharing::join_block(sharing::key_of(user, token.disk, token.block), user)
    {
        if !vm.space.maps().restore(gfn, number, Entry::shared(frame)) {
            Metal.leave(frame, user);
        }
        return Coming::Now;
    }
    let is_coming = disk::any_page(|page| match &mut page.kind {
        Kind::In(waiters) if (page.vm, page.gfn) == (vm.id, gfn) => {
            *waiters |= waiter;
            true
        }
        _ => false,
    });
    if is_coming {
        return Coming::Soon;
    }
    let Some(extent) = disk::extent(token.disk) else {
        return Coming::Later;
    };
    let Some(buffer) = extent.buffer(0) else {
        return Coming::Later;
    };
    let page = Move {
        vm: vm.id,
        gfn,
        token,
        kind: Kind::In(waiter),
        began: timer::now(),
    };
    let begun = extent.begin(buffer, page_at(token, Operation::Read), Job::Page(page));
    if begun.is_err() {
        fail(vm, extent, gfn, token);
    }
    Coming::Soon
}

fn page_at(token: Token, operation: Operation) -> Io {
    Io {
        operation,
        sector: token.block * (FRAME_SIZE / SECTOR_SIZE),
        bytes: FRAME_SIZE,
    }
}

/// Brings the page back that a device of the VM waits for, if one does.
pub fn bring_wanted(vm: &Instance) {
    let Some(gfn) = vm.space.take_wanted() else {
        return;
    };
    let coming = match vm.space.entry(gfn).backing {
        Backing::Discarded(token) => bring(vm, gfn, token, DEVICES),
        _ => Coming::Now,
    };
    if coming != Coming::Soon {
        vm.put_off_device_work();
    }
}

fn wake(vm: &Instance, waiters: u64) {
    if waiters & DEVICES != 0 {
        vm.put_off_device_work();
    }
    vm.call_vcpus(VcpuSet(waiters & !DEVICES), attention::PAGE);
}

/// A page cannot be read as it was: the VM stands still, for what it would go on with is wrong.
fn fail(vm: &Instance, extent: Extent, gfn: Gfn, token: Token) {
    vm.count(count::FAILED_REREADS, 1);
    pause(
        vm,
        format_args!(
            "block {} of partition {} changed on disk (checksum mismatch); it backs page {:#x} of the VM",
            token.block,
            extent.name(),
            gfn.address().0
        ),
    );
}

fn pause(vm: &Instance, why: core::fmt::Arguments<'_>) {
    let mut text = heapless::String::<160>::new();
    let _ = core::fmt::Write::write_fmt(&mut text, why);
    log::warn!("{} is paused: {text}", vm.name());
    *vm.paging.complaint.lock() = Some(Text::cut(&text));
    vm.pause();
    vm.paging.note_news();
}

impl Move {
    /// The disk is done with it, or could not do it.
    pub fn end(self, buffer: Buffer, done: bool) {
        let Some(vm) = vms::instance(self.vm) else {
            // What was its swap is cleared before anybody else has it.
            return;
        };
        let Some(extent) = disk::extent(self.token.disk) else {
            return;
        };
        match self.kind {
            Kind::In(waiters) => self.end_in(&vm, extent, &buffer, done, waiters),
            Kind::Out(frame) => {
                drop(buffer);
                self.end_out(&vm, frame, done);
            }
        }
    }

    fn end_in(&self, vm: &Instance, extent: Extent, buffer: &Buffer, done: bool, waiters: u64) {
        let Self { gfn, token, .. } = *self;
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
        vm.paging.waits.page_came(self.began);
        wake(vm, waiters);
    }

    fn end_out(&self, vm: &Instance, frame: Mfn, done: bool) {
        let number = self.token.encode();
        if done && vm.space.discard(self.gfn, frame, number) {
            vm.paging.paid();
        } else {
            vm.space.maps().cancel_out(self.gfn);
            Metal.forget(number);
        }
        let owed = vm.paging.owed.load(Ordering::Relaxed);
        if done && owed > 0 {
            take(vm, owed.min(4), LOOKED_AT_BETWEEN);
        }
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
    while discarded + written < frames && looked < budget {
        let mut old = heapless::Vec::new();
        let may_go = |_, entry| paging.may_go(entry, may_swap);
        let next = vm.space.age(at, may_go, &mut old);
        for (gfn, entry) in old {
            if discarded + written == frames {
                break;
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
    let is_helped = emergency > 0 && vm.has_balloon_driver();
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
