//! A VM's memory as its devices reach it.

use super::address_space::{AddressSpace, Filled};
use crate::frames;
use machine_contract::{GuestMemory, GuestMemoryError};
use model_addr::{FRAME_SIZE, Ipa, Mfn, NodeId};

/// Access for devices, on behalf of a CPU of a node.
#[derive(Clone, Copy)]
pub struct DeviceView<'a> {
    /// The memory.
    pub space: &'a AddressSpace,
    /// Where absent frames are taken from.
    pub node: NodeId,
}

impl DeviceView<'_> {
    /// The frame behind `ipa`.
    pub fn frame(&self, ipa: Ipa) -> Result<Mfn, GuestMemoryError> {
        self.space
            .frame_at(ipa, self.node)
            .map_err(|filled| match filled {
                Filled::NoMemory => GuestMemoryError::NoFrame(ipa),
                Filled::Done | Filled::Refused => GuestMemoryError::NotMemory(ipa),
            })
    }

    /// Calls `each` with every piece of the run of `len` bytes from `ipa` that lies in one frame:
    /// the frame, where in it, and which bytes of the run.
    pub fn pieces(
        &self,
        ipa: Ipa,
        len: usize,
        mut each: impl FnMut(Mfn, u64, core::ops::Range<usize>),
    ) -> Result<(), GuestMemoryError> {
        if !self.space.contains_run(ipa, len as u64) {
            return Err(GuestMemoryError::NotMemory(ipa));
        }
        let mut done = 0;
        while done < len {
            let at = Ipa(ipa.0 + done as u64);
            let piece = (len - done).min((FRAME_SIZE - at.offset()) as usize);
            each(self.frame(at)?, at.offset(), done..done + piece);
            done += piece;
        }
        Ok(())
    }
}

impl GuestMemory for DeviceView<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.pieces(ipa, into.len(), |frame, offset, part| {
            frames::ram(frame, 1).read(offset, &mut into[part]);
        })
    }

    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.pieces(ipa, from.len(), |frame, offset, part| {
            frames::ram(frame, 1).write(offset, &from[part]);
        })
    }

    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.space.contains_run(ipa, len)
    }

    fn read_u16(&self, ipa: Ipa) -> Result<u16, GuestMemoryError> {
        if !ipa.is_aligned(2) {
            let mut bytes = [0; 2];
            self.read(ipa, &mut bytes)?;
            return Ok(u16::from_le_bytes(bytes));
        }
        Ok(frames::ram(self.frame(ipa)?, 1).read_u16(ipa.offset()))
    }

    fn write_u16(&self, ipa: Ipa, value: u16) -> Result<(), GuestMemoryError> {
        if !ipa.is_aligned(2) {
            return self.write(ipa, &value.to_le_bytes());
        }
        frames::ram(self.frame(ipa)?, 1).write_u16(ipa.offset(), value);
        Ok(())
    }
}
