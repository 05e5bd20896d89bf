//! Pages of a VM that are on a disk: what it has there and owes, and how a page comes back.
//!
//! What is read back must have the hash that it had. A vCPU that touches such a page leaves its CPU until it is there.

mod stalls;
mod waits;

pub use stalls::{charge_request, may_begin_request, may_use_emergency, must_wait, stall};

use crate::cluster::span;
use crate::drivers::{Extent, Io, Job, Move, Operation, Partition, disk, jobs::Kind};
use crate::guest::Guest;
use crate::machine::{self, due};
use crate::memory::{Metal, frames, sharing, shortage};
use crate::vcpu::attention;
use abi::{Text, control::count};
use arch::timer;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, Gfn, Mfn};
use model_address_space::Frames;
use model_entitlement::Debtor;
use model_frame_table::Owner;
use model_paging::{Store, Token};
use model_pmap::{Backing, Entry};
use model_vgic::VcpuSet;
use model_virtio::blk::SECTOR_SIZE;
use waits::Waits;

/// The waiter that is no vCPU: the VM's devices.
pub const DEVICES: u64 = 1 << 63;

/// What a VM has on disks, and owes.
pub struct Paging {
    pub swap: Option<Partition>,
    /// Bit n: partition n + 1 is the base of a disk of it.
    pub bases: u64,
    /// Where the clock's hand is.
    pub hand: AtomicU64,
    /// Pages that a partition holds, when they were counted last.
    pub mappers: AtomicU64,
    /// Pages that are to be taken from it.
    pub owed: AtomicU64,
    /// Pages that somebody asked to be taken from it.
    pub asked: AtomicU64,
    /// Faults that may be filled until the next go; `u32::MAX`: all.
    pub allowance: AtomicU32,
    /// Its guest has more than it may have; it was told.
    pub is_over: AtomicBool,
    /// It owes; a go comes soon in any case.
    pub is_slowed: AtomicBool,
    /// Faults beyond those until the next go, which may take frames of the emergency reserve.
    pub emergency: AtomicU32,
    /// How it stands as one that owes.
    pub debtor: SpinLock<Debtor>,
    /// A CPU takes pages from it. One at a time does.
    pub busy: AtomicBool,
    /// vCPUs that wait for frames: bit n is vCPU n; or [`DEVICES`].
    pub stalled: AtomicU64,
    pub waits: Waits,
    /// Why EL2 paused it.
    pub complaint: SpinLock<Option<Text<96>>>,
    /// It was paused or let go on, and nobody was told.
    pub is_news: AtomicBool,
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
            debtor: SpinLock::new(Rank::Vm, Debtor::default()),
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
    pub fn note_news(&self) {
        self.is_news.store(true, Ordering::Relaxed);
        due::tick_at(timer::now());
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
    pub fn may_go(&self, entry: Entry, may_swap: bool) -> bool {
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

    pub fn paid(&self) {
        let less = |value: u64| Some(value.saturating_sub(1));
        for debt in [&self.owed, &self.asked] {
            let _ = debt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

pub const fn bit(number: u8) -> u64 {
    match number {
        1..=64 => 1 << (number - 1),
        _ => 0,
    }
}

/// The partition that holds what a shared frame holds; 0 where none does.
pub fn disk_of(frame: Mfn) -> u8 {
    let entry = machine::get().map.entry(frame);
    entry.map_or(0, |entry| entry.cache_key().disk)
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

/// Brings a page back that is where `token` says; `waiter` is a vCPU's bit, or [`DEVICES`].
pub fn bring(vm: &Guest, gfn: Gfn, token: u64, waiter: u64) -> Coming {
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

pub fn page_at(token: Token, operation: Operation) -> Io {
    Io {
        operation,
        sector: token.block * (FRAME_SIZE / SECTOR_SIZE),
        bytes: FRAME_SIZE,
    }
}

/// Brings the page back that a device of the VM waits for, if one does. Where it waits for a frame, it tries again.
pub fn bring_wanted(vm: &Guest) {
    let wanted = vm.space.take_wanted();
    if vm.space.spans() {
        return match wanted {
            Some((gfn, writes)) => span::device_fault(gfn, writes),
            None => span::devices_went_on(),
        };
    }
    let Some((gfn, _)) = wanted else {
        return;
    };
    let coming = match vm.space.entry(gfn).backing {
        Backing::Discarded(token) => bring(vm, gfn, token, DEVICES),
        Backing::Absent if frames::are_few() => {
            shortage::may_wait_for_frames();
            stall(vm, DEVICES);
            due::tick_at(timer::now() + timer::frequency() / 100);
            Coming::Soon
        }
        _ => Coming::Now,
    };
    if coming != Coming::Soon {
        vm.put_off_device_work();
    }
}

pub fn wake(vm: &Guest, waiters: u64) {
    if waiters & DEVICES != 0 {
        vm.put_off_device_work();
    }
    vm.call_vcpus(VcpuSet(waiters & !DEVICES), attention::PAGE);
}

/// A page cannot be read as it was: the VM stands still, for what it would go on with is wrong.
pub fn fail(vm: &Guest, extent: Extent, gfn: Gfn, token: Token) {
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

pub fn pause(vm: &Guest, why: core::fmt::Arguments<'_>) {
    let mut text = heapless::String::<160>::new();
    let _ = core::fmt::Write::write_fmt(&mut text, why);
    log::warn!("{} is paused: {text}", vm.name());
    *vm.paging.complaint.lock() = Some(Text::cut(&text));
    vm.pause();
    vm.paging.note_news();
}
