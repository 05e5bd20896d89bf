//! What [`model_disk`] needs of the machine and of a VM.

use crate::drivers::Partition;
use crate::guest::{Guest, tally};
use crate::memory::{Access, Gets, Metal, Tables, frames, sharing};
use abi::bundle::{self, Place};
use abi::control::{count, share, trace};
use arch::{frames::Ram, timer};
use core::ops::Range;
use machine_contract::GuestMemoryError;
use model_addr::{FRAME_SIZE, Gfn, Ipa, Mfn, NodeId, VmId};
use model_address_space::Frames;
use model_disk::Bytes;
use model_disk_overlay::OverlayError;
use model_frame_table::{CacheKey, Owner, Purpose, Use};
use model_pmap::Why;
use model_sharing::Expect;

/// The machine, as a disk near this node uses it.
#[derive(Clone, Copy)]
pub struct Near(pub NodeId);

/// A disk's data.
pub type Backing = model_disk::Backing<Near>;
/// What is below a copy-on-write disk.
pub type Base = model_disk::Base<Near>;
/// A copy-on-write disk.
pub type CowDisk = model_disk::CowDisk<Near>;
/// A copy-on-write disk on its way back to the pools.
pub type Remains = model_disk::Remains<Near>;

/// An image of the bundle.
pub struct Image(pub bundle::Image<'static>);

impl model_disk::Image for Image {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn block(&self, block: u64) -> Option<Mfn> {
        match self.0.block(block) {
            Place::Page(page, _) => Some(sharing::frame_of(page)),
            Place::Zero => None,
        }
    }
}

/// The RAM of these bytes, whose frames a disk, a VM or EL2 has.
fn ram(bytes: Bytes) -> Ram {
    let (start, len) = (bytes.start(), bytes.len());
    let frames = (start.offset() + len).div_ceil(FRAME_SIZE);
    // Inside, as so many frames are counted.
    frames::ram(start.frame(), frames).part(start.offset(), len as usize)
}

impl model_disk::Machine for Near {
    type Image = Image;
    type Store = Partition;
    type Tables = Tables;

    fn count(tables: &Tables) -> u64 {
        tables.count()
    }
    fn copy(&self, to: Bytes, from: Bytes) {
        let len = to.len().min(from.len()) as usize;
        ram(to).copy_from(0, ram(from), 0, len);
    }
    fn zero(&self, bytes: Bytes) {
        ram(bytes).zero(0, bytes.len() as usize);
    }
    fn allocate(&self, owner: Owner) -> Option<Mfn> {
        // The request has begun, and an error is all that the guest could be told.
        frames::allocate_urgently(self.0, Purpose::Private(owner))
    }
    fn free(&self, frame: Mfn) {
        frames::free(frame, 0);
    }

    fn is_shared(&self, frame: Mfn) -> bool {
        let entry = crate::machine::get().map.entry(frame);
        entry.is_some_and(|entry| entry.state().usage == Use::Shared)
    }
    fn share(&self, frame: Mfn, owner: Owner) -> bool {
        let is_published = sharing::publish(frame, owner);
        if is_published {
            model_sharing::enlist(&Metal, frame);
        }
        is_published
    }
    fn claim(&self, frame: Mfn, user: Owner) -> bool {
        model_sharing::claim(&Metal, frame, user)
    }
    fn leave(&self, frame: Mfn, user: Owner) {
        model_sharing::leave(&Metal, frame, user, false);
    }
    fn join_image(&self, frame: Mfn, user: Owner) -> Result<(), Why> {
        Metal.join(frame, user)
    }
    fn join_own(&self, frame: Mfn, user: Owner) -> bool {
        let expect = Expect::Group(sharing::group_of(user));
        model_sharing::join(&Metal, frame, user, expect).is_ok()
    }
    fn join_equal(&self, page: Mfn, user: Owner, left: &mut u32) -> Option<Mfn> {
        model_sharing::join_equal(&Metal, page, user, sharing::group_of(user), left)
    }
    fn is_first_use(&self, frame: Mfn) -> bool {
        sharing::is_first_use(frame)
    }

    fn key(&self, user: Owner, partition: u8, block: u64) -> CacheKey {
        sharing::key_of(user, partition, block)
    }
    fn has_block(&self, key: CacheKey) -> bool {
        sharing::has_block(key)
    }
    fn join_block(&self, key: CacheKey, user: Owner) -> Option<Result<Mfn, Why>> {
        sharing::join_block(key, user)
    }
    fn copy_block(&self, key: CacheKey, from: u64, to: Bytes) -> bool {
        let (start, len) = (to.start(), to.len() as usize);
        sharing::copy_block(key, from, start.frame(), start.offset(), len)
    }
    fn enter_block(&self, page: Mfn, key: CacheKey, user: Owner) -> Option<Mfn> {
        let frame = frames::allocate(self.0, 0, Purpose::Private(user))?;
        // Enlisting cleans it, before anybody sees it.
        frames::ram(frame, 1).copy_from(0, frames::ram(page, 1), 0, FRAME_SIZE as usize);
        if model_sharing::publish(&Metal, frame, user, key).is_err() {
            frames::free(frame, 0);
            return None;
        }
        model_sharing::enlist(&Metal, frame);
        Some(frame)
    }

    fn kind_of(&self, frame: Mfn) -> u8 {
        sharing::kind_of(frame, 2)
    }
    fn take_over(&self, kind: u8, frame: Mfn, user: Owner) -> bool {
        sharing::take_over(kind, frame, user)
    }
}

impl model_disk::Guest for Guest {
    fn id(&self) -> VmId {
        self.id
    }
    fn shares(&self) -> bool {
        self.space.policy().share
    }
    fn contains(&self, ipa: Ipa) -> bool {
        self.space.contains(ipa)
    }
    fn keeps_blocks(&self) -> bool {
        self.space.policy().keep_blocks
    }
    fn is_never_shared(&self, gfn: Gfn) -> bool {
        self.space.is_never_shared(gfn)
    }
    fn pieces(
        &self,
        ipa: Ipa,
        len: usize,
        write: bool,
        mut each: impl FnMut(Bytes, Range<usize>),
    ) -> Result<(), GuestMemoryError> {
        self.memory().pieces(ipa, len, write, |frame, at, part| {
            if let Some(bytes) = Bytes::frames(frame, 1).part(at, part.len() as u64) {
                each(bytes, part);
            }
        })
    }
    fn look(&self, ipa: Ipa, with: impl FnOnce(Mfn) -> bool) -> Result<bool, GuestMemoryError> {
        self.memory().with(ipa, Access::Read, with)
    }
    fn exchange(&self, pages: &[(Gfn, Gets)]) -> u64 {
        let home = tally::is_on().then_some(self.home);
        let done = self.space.exchange(home, pages);
        if crate::machine::cpu::this().trace.wants(trace::SHARE) {
            note(self, pages);
        }
        done
    }
    fn refused(&self, why: Why) {
        let why = match why {
            Why::LostRace => 1,
            Why::Full => 2,
            Why::OtherGroup => 3,
            Why::Never => 4,
            _ => return,
        };
        self.count(count::SHARING + why, 1);
    }
    fn found_equal(&self) {
        self.count(count::SHARING, 1);
    }
    fn complain(&self, at: u64, why: OverlayError) {
        // A guest may try as often as it likes, and the log is a slow line.
        let count = self.count(count::REFUSED_WRITES, 1);
        if count.is_power_of_two() {
            let name = self.name();
            log::warn!("{name}: write at byte {at:#x} of a disk refused: {why} ({count} so far)");
        }
    }
}

/// Notes what pages got. Devices work for a VM, not for one of its vCPUs.
#[cold]
fn note(vm: &Guest, pages: &[(Gfn, Gets)]) {
    for (gfn, gets) in pages {
        let detail = match gets {
            Gets::Frame(_) => share::MAPPED,
            Gets::Zeroes => share::ZEROES,
            Gets::Own => share::OFFERED,
            Gets::Alone(_) => share::PRIVATE,
        };
        let (what, whose) = ((trace::SHARE, detail), Some((vm.id.index, 0)));
        let trace = &crate::machine::cpu::this().trace;
        trace.note(what, whose, timer::now(), gfn.address().0);
    }
}
