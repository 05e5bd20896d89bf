//! A VM's memory, wired to the metal. What a fault does is decided in [`model_address_space`].

use crate::machine::{self, Kind, stretch};
use crate::memory::frames::{self, Metal, Tables};
use crate::memory::regions::Window;
use abi::{control::code, state::Run};
use alloc::{boxed::Box, vec::Vec};
use arch::frames::Ram;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine_locks::{Rank, SpinGuard, SpinLock, lock_pair};
use model_addr::{FRAME_SIZE, Gfn, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{Events, Flight, GuestRam, Maps, SOURCES};
use model_control::Refusal;
use model_frame_table::PerNode;
use model_placement::NodeSet;
use model_pmap::{Backing, Counts, Entry, REGION_FRAMES, Reasons};
use model_virtio::Runs;

pub use model_address_space::{AGE_AT_ONCE, Access, Filled, Gets, Policy, Source};

/// Bytes of the bundle, or made for the VM.
pub enum Bytes {
    /// They live as long as the machine.
    Static(&'static [u8]),
    /// They live as long as the VM.
    Owned(Box<[u8]>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Static(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Pieces of memory, each in one run of both sides, that are copied before a look at the clock.
const PIECES_AT_ONCE: u32 = 32;

const fn vttbr(vmid: u16, root: Mfn) -> u64 {
    (vmid as u64) << 48 | root.address().0
}

/// A VM's memory.
pub struct AddressSpace {
    ram: GuestRam<Bytes>,
    /// Regions that it shares with others, outside of that.
    windows: Vec<Window>,
    /// `VTTBR_EL2` by node: all the same until a node has copies of pages.
    vttbrs: PerNode<AtomicU64>,
    first_vttbr: u64,
    begin: (Ipa, Ipa),
    maps: SpinLock<Maps<Tables>>,
    /// Something of it was, or is about to be, on a disk.
    may_be_away: AtomicBool,
    /// The guest has marked pages as never to be shared.
    has_secrets: AtomicBool,
    /// Twice a guest frame, plus two, that a device waits for and that is elsewhere; plus one, where it is to be written.
    wanted: AtomicU64,
    /// Other hosts have its pages, too.
    spans: bool,
}

impl AddressSpace {
    /// The empty memory `range` of a VM, with `sources` in it, its tables near `node`, and regions that it shares
    /// with others; `begin` is its first instruction and its device tree.
    ///
    /// # Errors
    /// There is no memory for the first tables.
    pub fn new(
        vm: VmId,
        vmid: u16,
        (range, windows): (IpaRange, Vec<Window>),
        sources: [Option<Source<Bytes>>; SOURCES],
        begin: (Ipa, Ipa),
        node: NodeId,
        policy: Policy,
    ) -> Result<Box<Self>, Refusal> {
        stretch::look(Kind::Control);
        let maps = Maps::new(Tables::new(node, vmid), range).ok_or_else(|| {
            let what = format_args!("no memory left for the VM's tables");
            Refusal::new(code::NO_MEMORY, FRAME_SIZE, what)
        })?;
        let vttbr = vttbr(vmid, maps.root());
        let ram = GuestRam::new(vm, range, sources, policy);
        // On the heap, as it passes through several frames of the stack.
        Ok(Box::new(Self {
            ram,
            windows,
            vttbrs: PerNode(core::array::from_fn(|_| AtomicU64::new(vttbr))),
            first_vttbr: vttbr,
            begin,
            maps: SpinLock::new(Rank::VmMemory, maps),
            may_be_away: AtomicBool::new(false),
            has_secrets: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            spans: false,
        }))
    }

    /// Other hosts are to have its pages, too: until they allow it, none is seen ([`crate::cluster::span`]).
    pub fn span(&mut self) {
        self.spans = true;
        self.may_be_away = AtomicBool::new(true);
        let held = Reasons::COHERENT | Reasons::HIDDEN;
        self.maps.lock().set_standing(held);
    }

    /// Whether other hosts have its pages, too.
    pub const fn spans(&self) -> bool {
        self.spans
    }

    fn window(&self, ipa: Ipa) -> Option<&Window> {
        self.windows
            .iter()
            .find(|window| window.range.contains(ipa))
    }

    /// Shows the guest what it touched of a shared region; `None` where there is none at `ipa`.
    pub fn fill_window(&self, ipa: Ipa, node: NodeId, writes: bool) -> Option<Filled> {
        let touched = self.window(ipa)?.touch(ipa, writes);
        let Some((ipa, frames, rights)) = touched else {
            return Some(Filled::Refused);
        };
        Some(self.maps.lock().lend(node, ipa, frames, rights))
    }

    /// Where the guest begins: its first instruction, and its device tree.
    pub fn begin(&self) -> (Ipa, Ipa) {
        self.begin
    }

    /// What TLBs know it as.
    #[inline]
    pub const fn vmid(&self) -> u16 {
        (self.first_vttbr >> 48) as u16
    }

    /// `VTTBR_EL2` on the CPUs of `node`.
    #[inline]
    pub fn vttbr(&self, node: NodeId) -> u64 {
        self.vttbrs[node].load(Ordering::Acquire)
    }

    /// Whether that names a root that only some CPUs walk from.
    pub fn is_nodes_own(&self, vttbr: u64) -> bool {
        vttbr != self.first_vttbr
    }

    /// All of it.
    pub fn range(&self) -> IpaRange {
        self.ram.range
    }

    /// Whether the guest has memory at `ipa`.
    #[inline]
    pub fn contains(&self, ipa: Ipa) -> bool {
        self.ram.range.contains(ipa)
    }

    /// Whether all `len` bytes from `ipa` are memory, its own or of one shared region.
    pub fn contains_run(&self, ipa: Ipa, len: u64) -> bool {
        let mut windows = self.windows.iter();
        self.ram.range.contains_run(ipa, len)
            || windows.any(|window| window.range.contains_run(ipa, len))
    }

    /// Bytes of frames behind the guest's memory, and of tables.
    pub fn usage(&self) -> (u64, u64) {
        let (counts, tables) = self.holds();
        (counts.present() * FRAME_SIZE, tables * FRAME_SIZE)
    }

    /// How many guest frames have what behind them, and how many frames the tables take.
    pub fn holds(&self) -> (Counts, u64) {
        let maps = self.maps.lock();
        (maps.counts(), maps.tables().count())
    }

    /// How often TLBs were told of changes: one CPU's, and those of all.
    pub fn invalidations(&self) -> [u64; 2] {
        self.maps.lock().tables().invalidations()
    }

    /// How many guest frames have what behind them, and what happened.
    pub fn counts(&self) -> (Counts, Events) {
        let maps = self.maps.lock();
        (maps.counts(), maps.events())
    }

    /// How many 2 MiB and 4 KiB entries the translation has once all is seen.
    pub fn leaves(&self) -> (u64, u64) {
        self.maps.lock().leaves()
    }

    /// What it shares.
    pub fn policy(&self) -> Policy {
        self.ram.policy()
    }

    /// Changes what it shares from now on, as far as that can change.
    pub fn set_policy(&self, policy: Policy) {
        self.ram.set_policy(policy);
    }

    /// Puts a frame behind `ipa` that allows `access` and lets the hardware see it, on behalf of a
    /// vCPU on `node`.
    pub fn fill(&self, ipa: Ipa, node: NodeId, access: Access) -> Filled {
        self.ram.fill(ipa, node, access, &Metal, &self.lock())
    }

    /// As [`Self::fill`], with a frame of the emergency reserve where no other is left.
    pub fn fill_urgently(&self, ipa: Ipa, node: NodeId, access: Access) -> Filled {
        self.ram
            .fill_urgently(ipa, node, access, &Metal, &self.lock())
    }

    /// Lets `with` use the frame behind `ipa`, for a device or EL2 itself; filled where it was
    /// absent. The memory's lock is held meanwhile.
    pub fn with_frame<R>(
        &self,
        ipa: Ipa,
        access: Access,
        node: NodeId,
        with: impl FnOnce(Mfn) -> R,
    ) -> Result<R, Filled> {
        if let Some(window) = self.window(ipa) {
            // It is its frames' user, and they stay.
            return window
                .frame(ipa, access.writes())
                .map(with)
                .ok_or(Filled::Refused);
        }
        self.ram
            .with_frame((ipa, access), node, &Metal, &self.lock(), with)
    }

    /// Copies up to `most` bytes and [`PIECES_AT_ONCE`] from a VM's memory, with both locked (in order of address, as
    /// every CPU does), and uses both runs up so far; none where a page is not at hand, or ours may not
    /// be written.
    pub fn copy_from(
        &self,
        to: &mut Runs<'_>,
        source: &Self,
        from: &mut Runs<'_>,
        most: u32,
    ) -> u32 {
        let both = lock_pair(&self.maps, &source.maps);
        let one = both.is_none().then(|| self.maps.lock());
        let (ours, theirs) = match (&both, &one) {
            (Some((ours, theirs)), _) => (&**ours, &**theirs),
            (None, Some(one)) => (&**one, &**one),
            (None, None) => return 0,
        };
        // Bytes of one VM may overlap, and are moved slowly then.
        let most = if one.is_some() {
            most.min(FRAME_SIZE as u32)
        } else {
            most
        };
        let (mut done, mut pieces) = (0, 0..PIECES_AT_ONCE);
        while done < most
            && pieces.next().is_some()
            && let (Some(into), Some(out)) = (to.front(), from.front())
            && let Some(room) = near(ours, into.ipa, true)
            && let Some(bytes) = near(theirs, out.ipa, false)
        {
            let piece = into.len.min(out.len).min(most - done);
            let piece = room.size().min(bytes.size()).min(piece.into()) as u32;
            let (room, bytes) = (room.part(0, piece as usize), bytes.part(0, piece as usize));
            if one.is_some() || machine::os0::is_here() {
                room.copy_from(0, bytes, 0, piece as usize);
            } else {
                // SAFETY: guests of ours have neither SVE nor SME, and there is nobody else.
                unsafe { room.copy_wide(bytes) }
            }
            to.advance(piece);
            from.advance(piece);
            done += piece;
        }
        done
    }

    /// Lets `with` use the `len` bytes from `ipa` on where they are at hand as they are, and near each
    /// other: then that is faster than [`Self::with_frame`]. The memory's lock is held meanwhile.
    #[inline]
    pub fn at_hand<R>(
        &self,
        ipa: Ipa,
        len: usize,
        writes: bool,
        with: impl FnOnce(Ram) -> R,
    ) -> Option<R> {
        let maps = self.maps.lock();
        let ram = near(&maps, ipa, writes)?;
        (len as u64 <= ram.size()).then(|| with(ram.part(0, len)))
    }

    /// Gives pages that were read from a disk what they get; see [`Maps::exchange`].
    pub fn exchange(&self, home: Option<NodeId>, pages: &[(Gfn, Gets)]) -> u64 {
        self.maps.lock().exchange(&self.ram, home, pages, &Metal)
    }

    /// Takes away what is behind `count` guest frames from `gfn` on, which the guest does not need. The
    /// lock is held for a piece at a time.
    pub fn release(&self, gfn: Gfn, count: u64) {
        let (mut at, end) = (gfn, gfn.add(count));
        while at < end {
            let piece = (REGION_FRAMES - at.0 % REGION_FRAMES).min(end.0 - at.0);
            self.maps.lock().release(&self.ram, at, piece, &Metal);
            at = at.add(piece);
        }
    }

    /// Calls `visit` for guest frames from `from` on that something is behind, looking at `budget`
    /// entries under the lock; where to go on.
    pub fn visit(&self, from: Gfn, budget: usize, visit: impl FnMut(Gfn, Entry)) -> Option<Gfn> {
        self.maps.lock().visit(from, budget, visit)
    }

    /// Marks a page as never to be shared, or as shareable again; one that others use becomes the
    /// guest's own first. `false` where that cannot be done now.
    pub fn set_never_share(&self, gfn: Gfn, never: bool, node: NodeId) -> bool {
        if never {
            self.has_secrets.store(true, Ordering::SeqCst);
        }
        match self.entry(gfn).backing {
            Backing::Discarded(_) if never => {
                self.want(gfn, true);
                return false;
            }
            Backing::Shared(_) if never => {
                let at = gfn.address();
                if self.with_frame(at, Access::Write, node, |_| ()).is_err() {
                    return false;
                }
            }
            _ => {}
        }
        // Another vCPU may have had it shared in between: then it is asked for again.
        self.maps.lock().set_never_share(gfn, never)
    }

    /// Whether the guest marked a page as never to be shared.
    pub fn is_never_shared(&self, gfn: Gfn) -> bool {
        self.has_secrets.load(Ordering::Relaxed) && self.entry(gfn).never_share
    }

    /// What is behind a guest frame.
    pub fn entry(&self, gfn: Gfn) -> Entry {
        self.maps.lock().entry(gfn)
    }

    /// Whether a guest frame reads as zero because nobody has touched it, and nothing is in it from the start.
    pub fn is_untouched(&self, gfn: Gfn) -> bool {
        self.entry(gfn).backing == Backing::Absent && !self.ram.has_sources(gfn, 1)
    }

    /// Whether any of it may be on a disk.
    #[inline]
    pub fn may_be_away(&self) -> bool {
        self.may_be_away.load(Ordering::Relaxed)
    }

    /// A device waits for a page that is elsewhere.
    pub fn want(&self, gfn: Gfn, writes: bool) {
        let wanted = (2 * (gfn.0 + 1)) | u64::from(writes);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// The page that a device waits for, and whether it is to be written, once.
    pub fn take_wanted(&self) -> Option<(Gfn, bool)> {
        if self.wanted.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        Some((Gfn((wanted / 2).checked_sub(1)?), wanted & 1 != 0))
    }

    /// Something of it is about to be on a disk.
    pub fn note_away(&self) {
        self.may_be_away.store(true, Ordering::SeqCst);
    }

    /// Readies a page for a device; `false` where it must be read first. See [`Maps::ready`].
    pub fn ready(&self, gfn: Gfn, writes: bool, overwrites: bool) -> bool {
        let is_away = self.maps.lock().ready(gfn, overwrites, &Metal).is_some();
        let is_away = is_away || self.spans && self.is_elsewhere(gfn, writes);
        if is_away {
            self.want(gfn, writes);
        }
        !is_away
    }

    /// Whether other hosts have to allow it before.
    #[cold]
    fn is_elsewhere(&self, gfn: Gfn, writes: bool) -> bool {
        self.maps.lock().entry(gfn).usable(writes).is_none()
    }

    /// Who touches these pages next is noticed; see [`Maps::sample`].
    pub fn sample(&self, pages: &[Gfn]) {
        self.maps.lock().sample(&self.ram, pages);
    }

    /// A turn of the clock; see [`Maps::age`].
    pub fn age(
        &self,
        from: Gfn,
        may: impl FnMut(Gfn, Entry) -> bool,
        old: &mut heapless::Vec<(Gfn, Entry), AGE_AT_ONCE>,
    ) -> Option<Gfn> {
        self.note_away();
        self.maps.lock().age(from, may, old)
    }

    /// See [`Maps::discard`].
    pub fn discard(&self, gfn: Gfn, frame: Mfn, token: u64) -> bool {
        self.maps
            .lock()
            .discard(&self.ram, gfn, frame, token, &Metal)
    }

    /// Where what is in it from the start lies: kernel, device tree and initial RAM disk; and the tree's bytes.
    pub fn sources(&self) -> ([u64; 3], &[u8]) {
        let begins = [self.begin.0, self.begin.1].map(|at| at.0);
        let others = |at: &u64| !begins.contains(at);
        let initrd = self.ram.sources().map(|source| source.at.0).find(others);
        let mut sources = self.ram.sources();
        let tree = sources.find(|source| source.at == self.begin.1);
        let tree = tree.map_or(&[][..], |tree| tree.bytes.as_ref());
        ([begins[0], begins[1], initrd.unwrap_or(0)], tree)
    }

    /// See [`Maps::adopt`].
    #[must_use]
    pub fn adopt(&self, run: &Run, token: u64) -> bool {
        if run.never_share != 0 {
            self.has_secrets.store(true, Ordering::SeqCst);
        }
        self.maps.lock().adopt(run, token)
    }

    /// Lets pages be on their way to other frames; see [`Maps::begin`].
    pub fn take_off(&self, flights: &mut [Flight]) {
        self.maps.lock().begin(&self.ram, flights);
    }

    /// Brings them to their end; see [`Maps::commit`]. The CPUs of a node see its copies when they next
    /// load the VM.
    pub fn land(&self, flights: &mut [Flight]) {
        let mut maps = self.maps.lock();
        maps.commit(&self.ram, flights, &Metal);
        let vmid = self.vmid();
        for flight in flights.iter().filter(|flight| flight.copies) {
            let node = flight.node;
            let root = vttbr(vmid, maps.root_on(node));
            self.vttbrs[node].store(root, Ordering::Release);
        }
    }

    /// What is behind a guest frame, and which nodes have copies of it.
    pub fn seat(&self, gfn: Gfn) -> (Backing, NodeSet) {
        let maps = self.maps.lock();
        let entry = maps.entry(gfn);
        let copies = if entry.reasons.contains(Reasons::REPLICA) {
            maps.copied_on(gfn).collect()
        } else {
            NodeSet::NONE
        };
        (entry.backing, copies)
    }

    /// How many copies of pages nodes have.
    pub fn copies(&self) -> u64 {
        self.maps.lock().copies()
    }

    /// See [`Maps::give_copies_back`].
    pub fn give_copies_back(&self, node: NodeId, from: Gfn) -> (u64, Option<Gfn>) {
        self.maps.lock().give_copies_back(node, from, &Metal)
    }

    // One type, or all that locks would be compiled for each caller.
    fn lock<'a>(&'a self) -> impl Fn() -> SpinGuard<'a, Maps<Tables>> {
        || self.maps.lock()
    }

    /// What is behind its guest frames, locked: not to be held while frames are freed or zeroed.
    pub fn maps(&self) -> SpinGuard<'_, Maps<Tables>> {
        self.maps.lock()
    }

    /// Begins the end: no vCPU of the VM runs or will run again.
    pub fn dismantle(self) -> Dismantling {
        Dismantling {
            maps: self.maps.into_inner().dismantle(self.ram.vm),
            windows: self.windows,
        }
    }
}

/// What is behind `ipa` and some pages after it, to be read or written as it is; valid while the memory is
/// locked.
#[inline]
fn near(maps: &Maps<Tables>, ipa: Ipa, writes: bool) -> Option<Ram> {
    let (first, count) = maps.near(ipa.frame(), writes)?;
    let bytes = count * FRAME_SIZE - ipa.offset();
    Some(frames::ram(first, count).part(ipa.offset(), bytes as usize))
}

/// A VM's memory on its way back to the pools.
pub struct Dismantling {
    maps: model_address_space::Dismantling<Tables>,
    windows: Vec<Window>,
}

impl Dismantling {
    /// Gives back some more, looking at `budget` entries; `true` when all is back.
    pub fn step(&mut self, budget: usize) -> bool {
        let Some(window) = self.windows.last_mut() else {
            return self.maps.step(&Metal, budget);
        };
        if window.step_out() {
            self.windows.pop();
        }
        false
    }
}
