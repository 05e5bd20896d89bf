//! A VM's memory as its devices reach it.

use crate::machine::stretch;
use crate::memory::{Access, AddressSpace, Filled, frames};
use arch::frames::Ram;
use machine_contract::{ENTRY_BYTES, GuestMemory, GuestMemoryError, read_one_by_one};
use model_addr::{FRAME_SIZE, Ipa, Mfn, NodeId};
use model_virtio::Runs;

/// Bytes that are copied between two VMs while both memories are locked.
const COPIED_AT_ONCE: u32 = 64 * 1024;

/// Access for devices, on behalf of a CPU of a node.
///
/// A frame is reached only while the VM's memory lock is held: so nothing that a device does is in
/// flight when a frame is taken from the guest, and no frame of a guest needs to be pinned.
#[derive(Clone, Copy)]
pub struct DeviceView<'a> {
    /// The memory.
    pub space: &'a AddressSpace,
    /// Where absent frames are taken from.
    pub node: NodeId,
}

impl DeviceView<'_> {
    /// Lets `with` use the frame behind `ipa`; see [`AddressSpace::with_frame`].
    #[inline(never)]
    pub fn with<R>(
        &self,
        ipa: Ipa,
        access: Access,
        with: impl FnOnce(Mfn) -> R,
    ) -> Result<R, GuestMemoryError> {
        let done = self.space.with_frame(ipa, access, self.node, with);
        done.map_err(|filled| self.missed(ipa, access, filled))
    }

    /// Why a frame cannot be used; what can come is asked for.
    #[cold]
    #[inline(never)]
    fn missed(&self, ipa: Ipa, access: Access, filled: Filled) -> GuestMemoryError {
        let error = match filled {
            Filled::NoMemory => GuestMemoryError::NoFrame(ipa),
            Filled::Away(_) => GuestMemoryError::Away(ipa),
            Filled::Held(_) if self.space.spans() => GuestMemoryError::Away(ipa),
            Filled::Done | Filled::Refused | Filled::Held(_) => {
                return GuestMemoryError::NotMemory(ipa);
            }
        };
        self.space.want(ipa.frame(), access.writes());
        error
    }

    /// Lets `with` use the two bytes at `ipa`, which are in one page.
    fn word<R>(
        &self,
        ipa: Ipa,
        write: bool,
        with: impl Fn(Ram) -> R,
    ) -> Result<R, GuestMemoryError> {
        if let Some(done) = self.space.at_hand(ipa, 2, write, &with) {
            return Ok(done);
        }
        let access = Access::of(write);
        self.with(ipa, access, |frame| {
            with(frames::ram(frame, 1).part(ipa.offset(), 2))
        })
    }

    /// Calls `each` with every piece of the run of `len` bytes from `ipa` that lies in one frame:
    /// the frame, where in it, and which bytes of the run. It is read, or `write`n.
    #[inline(never)]
    pub fn pieces(
        &self,
        ipa: Ipa,
        len: usize,
        write: bool,
        mut each: impl FnMut(Mfn, u64, core::ops::Range<usize>),
    ) -> Result<(), GuestMemoryError> {
        // What is in one page is looked for once.
        let in_one = ipa.offset() + len as u64 <= FRAME_SIZE;
        if !in_one && !self.space.contains_run(ipa, len as u64) {
            return Err(GuestMemoryError::NotMemory(ipa));
        }
        let mut done = 0;
        while done < len {
            let at = Ipa(ipa.0 + done as u64);
            let piece = (len - done).min((FRAME_SIZE - at.offset()) as usize);
            let access = match (write, piece as u64) {
                (false, _) => Access::Read,
                (true, FRAME_SIZE) => Access::Overwrite,
                (true, _) => Access::Write,
            };
            self.with(at, access, |frame| {
                each(frame, at.offset(), done..done + piece);
            })?;
            done += piece;
        }
        Ok(())
    }

    /// Copies from another VM's memory, or this one's, until one of both runs is used up. Where the stretch gets
    /// long meanwhile, the rest is away.
    pub fn copy_from(
        &self,
        to: &mut Runs<'_>,
        source: &Self,
        from: &mut Runs<'_>,
    ) -> Result<(), GuestMemoryError> {
        while let (Some(into), Some(out)) = (to.front(), from.front()) {
            if self.space.copy_from(to, source.space, from, COPIED_AT_ONCE) == 0 {
                // Something has to be filled first: through EL2.
                let mut bytes = [0; 512];
                let piece = into.len.min(out.len).min(bytes.len() as u32);
                let part = &mut bytes[..piece as usize];
                source.read(out.ipa, part)?;
                self.write(into.ipa, part)?;
                to.advance(piece);
                from.advance(piece);
            }
            if from.front().is_some() && stretch::is_long() {
                return Err(GuestMemoryError::Away(into.ipa));
            }
        }
        Ok(())
    }

    /// How many bytes of a run are in memory: what is not is asked for. After a page it ends where the stretch is
    /// long, and is called again as if that had been asked for.
    #[cold]
    fn at_hand(&self, ipa: Ipa, len: u64, write: bool) -> u64 {
        let (mut at, end) = (ipa.0, ipa.0.saturating_add(len));
        while at < end {
            let next = (at & !(FRAME_SIZE - 1)).saturating_add(FRAME_SIZE).min(end);
            let overwrites = write && next - at == FRAME_SIZE;
            if !self.space.ready(Ipa(at).frame(), write, overwrites) {
                break;
            }
            at = next;
            if at < end && stretch::is_long() {
                self.space.want(Ipa(at).frame(), write);
                break;
            }
        }
        at - ipa.0
    }
}

impl GuestMemory for DeviceView<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        let len = into.len();
        let read = |ram: Ram| ram.read(0, into);
        if self.space.at_hand(ipa, len, false, read).is_some() {
            return Ok(());
        }
        self.pieces(ipa, len, false, |frame, offset, part| {
            frames::ram(frame, 1).read(offset, &mut into[part]);
        })
    }

    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        let write = |ram: Ram| ram.write(0, from);
        if self.space.at_hand(ipa, from.len(), true, write).is_some() {
            return Ok(());
        }
        self.pieces(ipa, from.len(), true, |frame, offset, part| {
            frames::ram(frame, 1).write(offset, &from[part]);
        })
    }

    fn read_entries(
        &self,
        (table, count): (Ipa, u16),
        places: &[u16],
        into: &mut [u128],
    ) -> Result<(), GuestMemoryError> {
        let found = |(place, entry): (&u16, &mut u128), ram: Ram| {
            ram.entry(*place).inspect(|found| *entry = *found).is_some()
        };
        let read = |ram: Ram| places.iter().zip(&mut *into).all(|one| found(one, ram));
        let len = ENTRY_BYTES * usize::from(count);
        if self.space.at_hand(table, len, false, read) == Some(true) {
            return Ok(());
        }
        read_one_by_one(self, (table, count), places, into)
    }

    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.space.contains_run(ipa, len)
    }

    #[inline]
    fn ready(&self, ipa: Ipa, len: u64, write: bool) -> u64 {
        if self.space.may_be_away() {
            self.at_hand(ipa, len, write)
        } else {
            len
        }
    }

    fn touch(&self, ipa: Ipa, len: u64, write: bool, may_stop: bool) -> u64 {
        if may_stop && stretch::is_long() {
            self.space.want(ipa.frame(), write);
            return 0;
        }
        let at_hand = self.space.at_hand(ipa, len as usize, write, |_| ());
        if at_hand.is_some() {
            return len;
        }
        match self.pieces(ipa, len as usize, write, |_, _, _| ()) {
            Err(GuestMemoryError::Away(at) | GuestMemoryError::NoFrame(at)) => at.0 - ipa.0,
            _ => len,
        }
    }

    fn read_u16(&self, ipa: Ipa) -> Result<u16, GuestMemoryError> {
        if !ipa.is_aligned(2) {
            let mut bytes = [0; 2];
            self.read(ipa, &mut bytes)?;
            return Ok(u16::from_le_bytes(bytes));
        }
        self.word(ipa, false, |word| word.read_u16(0))
    }

    fn write_u16(&self, ipa: Ipa, value: u16) -> Result<(), GuestMemoryError> {
        if !ipa.is_aligned(2) {
            return self.write(ipa, &value.to_le_bytes());
        }
        self.word(ipa, true, |word| word.write_u16(0, value))
    }
}
