//! What [`model_coherence`] decides, done to stage 2, to frames and to vCPUs; and what it says, until the link takes it.

use super::{DEVICES, QUIET_NS, Spanned, WRITTEN_MAX, Why};
use crate::cluster::now_ns;
use crate::machine::cpu;
use crate::memory::{Access as Use, Filled, frames};
use crate::vcpu::attention;
use abi::coherence::{Entry, OPERATIONS_MAX, Operation};
use alloc::{collections::VecDeque, sync::Arc};
use arch::{cache, guest, tlb};
use heapless::{Deque, Vec};
use model_addr::{FRAME_SIZE, Gfn, Mfn};
use model_coherence::earlier::Earlier;
use model_coherence::{Access, Actions, Broken, Message, Tail, changes};
use model_pmap::Reasons;
use model_span::OWN_MAX;

/// What follows a message.
#[derive(Clone, Copy, Debug)]
pub enum Behind {
    Nothing,
    Page(u32),
    /// What changed in a page since that version.
    Changes(u32, u64),
    Operations,
}

/// Messages that the link has not taken, oldest first, with their receivers. What it has room for is all that it ever holds.
pub type Backlog = VecDeque<(u8, Message, Behind)>;

/// vCPUs of this host, by slot.
pub struct Seats([Option<u16>; OWN_MAX]);

impl Seats {
    /// Those that a VM begins with here.
    pub fn of(vm: &dyn Spanned) -> Self {
        let mut seats = Self([None; OWN_MAX]);
        let own = (0..vm.vcpus().len()).filter(|vcpu| !vm.is_elsewhere(*vcpu));
        own.for_each(|vcpu| seats.set(vcpu as u16, true));
        seats
    }

    /// The slot of a vCPU.
    pub fn slot(&self, vcpu: u16) -> Option<usize> {
        self.0.iter().position(|it| *it == Some(vcpu))
    }

    /// Gives a slot to a vCPU, or takes it away.
    pub fn set(&mut self, vcpu: u16, is_here: bool) {
        let (from, to) = if is_here {
            (None, Some(vcpu))
        } else {
            (Some(vcpu), None)
        };
        if let Some(seat) = self.0.iter_mut().find(|it| **it == from) {
            *seat = to;
        }
    }

    /// All vCPUs.
    pub fn all(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flatten().copied().map(usize::from)
    }
}

/// What the decisions are done with.
pub struct Hands {
    pub vm: Arc<dyn Spanned>,
    pub seats: Seats,
    pub earlier: Option<Earlier>,
    pub backlog: Backlog,
    /// Of the invalidation, or of the entries, that are in the backlog: there is one of them at most.
    pub operations: Vec<Operation, OPERATIONS_MAX>,
    /// Pages of which the readers are waiting to be given them again, and when they are.
    pub written: Deque<(u32, u64), WRITTEN_MAX>,
    pub first: Gfn,
    pub resumed: u32,
    pub has_failed: bool,
}

impl Hands {
    /// Why the VM cannot go on behind a step, if it cannot.
    pub fn why(&self, done: Result<(), Broken>) -> Option<Why> {
        let broken = done.err().map(Why::Broken);
        self.has_failed.then_some(Why::NoMemory).or(broken)
    }

    /// The guest's counter shows what a message's sender knows of; the rest as for [`Spanned::reaches`].
    pub fn reaches(&self, message: &[u8]) -> Option<bool> {
        let message = Message::parse(message).map(|(message, _)| message);
        let of_this = message.filter(|it| it.life.get() == self.vm.life());
        of_this.map_or(Some(true), |it| self.vm.reaches(it.count.get()))
    }

    /// The frame behind a page, which gets one if it has none.
    fn frame(&self, page: u32) -> Option<Mfn> {
        let gfn = self.first.add(page.into());
        let space = self.vm.space();
        loop {
            if let Some(frame) = space.entry(gfn).frame() {
                return Some(frame);
            }
            let node = cpu::this().node;
            match space.fill(gfn.address(), node, Use::Read) {
                Filled::Done | Filled::Held(_) => {}
                Filled::NoMemory if frames::may_be_reserved() => {}
                _ => return None,
            }
        }
    }

    /// The frame behind a page that no vCPU can write, for reading what a guest wrote that had its caches off.
    fn written_frame(&self, page: u32) -> Option<Mfn> {
        let frame = self.frame(page)?;
        cache::clean_to_coherency(frame.address(), FRAME_SIZE);
        Some(frame)
    }

    /// Reads a page that no vCPU can write; `false` without memory for it.
    pub fn read(&self, page: u32, into: &mut [u8]) -> bool {
        let frame = self.written_frame(page);
        if let Some(frame) = frame {
            frames::ram(frame, 1).read(0, into);
        }
        frame.is_some()
    }

    /// Keeps words that follow a message.
    fn behind(&mut self, words: &[Operation]) -> Behind {
        self.operations.clear();
        let _ = self.operations.extend_from_slice(words);
        Behind::Operations
    }

    fn call(&self, slot: usize, bits: u32) {
        let vcpu = self.seats.0.get(slot).copied().flatten();
        if let Some(vcpu) = vcpu.and_then(|vcpu| self.vm.vcpus().get(usize::from(vcpu))) {
            vcpu.call(bits);
        }
    }
}

impl Actions for Hands {
    fn protect(&mut self, page: u32, access: Access) -> bool {
        let pages = [self.first.add(page.into())];
        let taken = match access {
            Access::None => Reasons::COHERENT | Reasons::HIDDEN,
            Access::Read => Reasons::COHERENT,
            Access::Write | Access::Zero | Access::Any => Reasons::empty(),
        };
        let mut maps = self.vm.space().maps();
        let entry = maps.entry(pages[0]);
        if !entry.reasons.contains(taken) {
            maps.restrict(&pages, taken);
        }
        let given = (Reasons::COHERENT | Reasons::HIDDEN).difference(taken);
        if entry.reasons.intersects(given) {
            maps.lift(pages[0], given);
        }
        // What has no frame was not touched, and what was held could not be written.
        entry.frame().is_some() && !entry.reasons.contains(Reasons::COHERENT)
    }

    fn fill(&mut self, page: u32, bytes: Option<&[u8]>) {
        let Some(frame) = self.frame(page) else {
            self.has_failed = true;
            return;
        };
        match bytes {
            Some(bytes) => frames::ram(frame, 1).write(0, bytes),
            None => frames::ram(frame, 1).zero(0, FRAME_SIZE as usize),
        }
        // A guest may have its caches off, and executes what comes.
        cache::publish(frame.address(), FRAME_SIZE);
    }

    fn remember(&mut self, page: u32, version: u64) {
        if let Some(mut earlier) = self.earlier.take() {
            earlier.remember(page, version, |into| {
                self.has_failed |= !self.read(page, into);
            });
            self.earlier = Some(earlier);
        }
    }

    fn change(&mut self, page: u32, changes: &[u8]) -> bool {
        let Some(lines) = changes::read(changes) else {
            return false;
        };
        let Some(frame) = self.frame(page) else {
            self.has_failed = true;
            return true;
        };
        for (at, line) in lines {
            frames::ram(frame, 1).write(at, line);
        }
        cache::publish(frame.address(), FRAME_SIZE);
        true
    }

    fn is_zero(&mut self, page: u32) -> bool {
        let Some(frame) = self.written_frame(page) else {
            self.has_failed = true;
            return false;
        };
        let mut piece = [0_u8; 256];
        let mut pieces = (0..FRAME_SIZE).step_by(piece.len());
        pieces.all(|at| {
            frames::ram(frame, 1).read(at, &mut piece);
            let (words, _) = piece.as_chunks();
            words.iter().all(|word| u64::from_ne_bytes(*word) == 0)
        })
    }

    fn is_untouched(&self, page: u32) -> bool {
        self.vm.space().is_untouched(self.first.add(page.into()))
    }

    fn life(&self) -> u32 {
        self.vm.life()
    }

    fn send(&mut self, to: u8, message: &Message, tail: Tail<'_>) {
        let behind = match tail {
            Tail::None => Behind::Nothing,
            Tail::Page(page) => Behind::Page(page),
            Tail::Changes(page, since) => Behind::Changes(page, since),
            Tail::Operations(operations) => self.behind(operations),
            // A host that hands pages over has no vCPU that invalidates.
            Tail::Entries(entries) => self.behind(Entry::words(entries)),
        };
        let has_room = self.backlog.len() < self.backlog.capacity();
        if has_room {
            self.backlog.push_back((to, *message, behind));
        }
        self.has_failed |= !has_room;
    }

    fn resume(&mut self, vcpu: usize, _is_zeroed: bool) {
        self.resumed |= 1 << vcpu;
        if vcpu == DEVICES {
            self.vm.put_off_device_work();
        } else {
            self.call(vcpu, attention::PAGE);
        }
    }

    fn written(&mut self, page: u32) {
        let quiet_at = now_ns().saturating_add(QUIET_NS);
        // Without room, they ask for it.
        let _ = self.written.push_back((page, quiet_at));
    }

    fn kick(&mut self, vcpu: usize) {
        self.call(vcpu, attention::LEASE);
    }

    fn invalidate(&mut self, _operations: &[Operation]) {
        let vmid = self.vm.space().vmid();
        guest::with_vmid(vmid, || tlb::flush_vmid(tlb::Reaches::AllCpus));
    }
}
