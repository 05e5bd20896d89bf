//! A guest's memory, as its own stores and its devices reach it.

use std::sync::{Mutex, MutexGuard};

use machine_contract::{GuestMemory, GuestMemoryError};
use machine_fake::{FakeFrames, FakeTranslation};
use model_addr::{FRAME_SIZE, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{Filled, GuestRam, Maps};

const NODE: NodeId = NodeId(0);

/// A VM with RAM that is filled as it is touched.
pub struct Guest<'a> {
    ram: GuestRam<Vec<u8>>,
    maps: Mutex<Maps<FakeTranslation>>,
    frames: &'a FakeFrames,
}

impl<'a> Guest<'a> {
    /// A VM with this RAM, all of it untouched.
    pub fn new(frames: &'a FakeFrames, range: IpaRange) -> Self {
        let vm = VmId::default();
        let maps = Maps::new(FakeTranslation::new(), range).unwrap();
        Self {
            ram: GuestRam::new(vm, range, [None, None, None]),
            maps: Mutex::new(maps),
            frames,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Maps<FakeTranslation>> {
        self.maps.try_lock().unwrap()
    }

    /// The frame that the hardware finds for the guest, after a fault if there must be one.
    fn seen(&self, ipa: Ipa) -> Result<Mfn, Filled> {
        for _ in 0..2 {
            let seen = self.lock().tables_mut().mmu.translate(ipa);
            if let Ok(translation) = seen {
                return Ok(translation.pa.frame());
            }
            match self.ram.fill(ipa, NODE, self.frames, &|| self.lock()) {
                Filled::Done => {}
                refused => return Err(refused),
            }
        }
        Err(Filled::Refused)
    }

    /// The guest's own store; `false` where a fault found no memory, and the VM would end.
    pub fn put(&self, ipa: Ipa, bytes: &[u8]) -> bool {
        pieces(ipa, bytes.len()).all(|(at, part)| match self.seen(at) {
            Ok(frame) => {
                self.frames.store(frame, at.offset(), &bytes[part]);
                true
            }
            Err(_) => false,
        })
    }

    /// The guest's own load from memory that it has touched before.
    pub fn get(&self, ipa: Ipa, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, part) in pieces(ipa, len) {
            let frame = self.seen(at).unwrap();
            self.frames.load(frame, at.offset(), &mut bytes[part]);
        }
        bytes
    }

    /// Gives all memory back; how many tables are left then.
    pub fn end(self) -> usize {
        let mut maps = self.maps.into_inner().unwrap();
        maps.tables_mut().mmu.switch_off();
        let mut dismantling = maps.dismantle(self.ram.vm);
        while !dismantling.step(self.frames, 100) {}
        dismantling.tables().tables_in_use()
    }

    fn frame(&self, ipa: Ipa) -> Result<Mfn, GuestMemoryError> {
        let frame = self.ram.frame_at(ipa, NODE, self.frames, &|| self.lock());
        frame.map_err(|filled| match filled {
            Filled::NoMemory => GuestMemoryError::NoFrame(ipa),
            Filled::Done | Filled::Refused => GuestMemoryError::NotMemory(ipa),
        })
    }
}

/// The pieces of a run that lie in one frame each: where, and which bytes of it.
pub(crate) fn pieces(ipa: Ipa, len: usize) -> impl Iterator<Item = (Ipa, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = Ipa(ipa.0 + done as u64);
        let piece = (len - done).min((FRAME_SIZE - at.offset()) as usize);
        done += piece;
        (piece > 0).then(|| (at, done - piece..done))
    })
}

impl GuestMemory for Guest<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        for (at, part) in pieces(ipa, into.len()) {
            self.frames
                .load(self.frame(at)?, at.offset(), &mut into[part]);
        }
        Ok(())
    }

    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        for (at, part) in pieces(ipa, from.len()) {
            self.frames.store(self.frame(at)?, at.offset(), &from[part]);
        }
        Ok(())
    }

    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.ram.range.contains_run(ipa, len)
    }
}
