//! A guest's memory in a vector, with holes where nothing is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use machine_contract::{GuestMemory, GuestMemoryError};
use model_addr::{Ipa, IpaRange};

/// One access that a device made, whether it succeeded or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The first byte.
    pub ipa: Ipa,
    /// Bytes.
    pub len: u64,
    /// Whether the guest's memory was written.
    pub write: bool,
}

/// Memory of a guest: one run of RAM, less its holes, with a log of who touched what.
///
/// A run that crosses from memory into a hole fails after its first part was transferred, as the
/// contract allows.
#[derive(Debug)]
pub struct FakeGuest {
    ram: IpaRange,
    not_memory: Vec<IpaRange>,
    no_frame: Vec<IpaRange>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    log: Vec<Access>,
}

impl FakeGuest {
    /// `size` bytes of zeroes from `base` on.
    pub fn new(base: Ipa, size: usize) -> Self {
        let ram = IpaRange {
            start: base,
            size: size as u64,
        };
        let inner = Inner {
            bytes: vec![0; size],
            log: Vec::new(),
        };
        Self {
            ram,
            not_memory: Vec::new(),
            no_frame: Vec::new(),
            inner: Mutex::new(inner),
        }
    }

    /// Makes `hole` an address range where the guest has no memory.
    #[must_use]
    pub fn with_hole(mut self, hole: IpaRange) -> Self {
        self.not_memory.push(hole);
        self
    }

    /// Makes `range` memory that the machine has no frame for.
    #[must_use]
    pub fn with_no_frame(mut self, range: IpaRange) -> Self {
        self.no_frame.push(range);
        self
    }

    /// The run of RAM, holes included.
    pub fn ram(&self) -> IpaRange {
        self.ram
    }

    /// All accesses through the contract since the log was last taken.
    pub fn take_log(&self) -> Vec<Access> {
        std::mem::take(&mut self.inner().log)
    }

    /// The guest's own store: not logged, and it must lie in memory.
    pub fn put(&self, ipa: Ipa, bytes: &[u8]) {
        assert!(
            self.contains(ipa, bytes.len() as u64),
            "{ipa} is not memory"
        );
        let at = self.index(ipa);
        self.inner().bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The guest's own load: not logged, and it must lie in memory.
    pub fn get(&self, ipa: Ipa, len: usize) -> Vec<u8> {
        assert!(self.contains(ipa, len as u64), "{ipa} is not memory");
        let at = self.index(ipa);
        self.inner().bytes[at..at + len].to_vec()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index(&self, ipa: Ipa) -> usize {
        (ipa.0 - self.ram.start.0) as usize
    }

    /// How many of `len` bytes from `ipa` can be had, and what stands in the way of the rest.
    fn reach(&self, ipa: Ipa, len: u64) -> (u64, Result<(), GuestMemoryError>) {
        if len == 0 {
            return (0, Ok(()));
        }
        if !self.ram.contains(ipa) {
            return (0, Err(GuestMemoryError::NotMemory(ipa)));
        }
        let end = ipa.checked_add(len).unwrap_or(Ipa(u64::MAX));
        let first_in = |range: &IpaRange| Ipa(range.start.0.max(ipa.0));
        let met = |range: &&IpaRange| range.start < end && range.end() > ipa;
        let hole = self.not_memory.iter().filter(met).map(first_in).min();
        let missing = self.no_frame.iter().filter(met).map(first_in).min();
        let past_end = Some(self.ram.end()).filter(|ram_end| *ram_end < end);
        let stop = [
            hole.map(|at| (at, GuestMemoryError::NotMemory(at))),
            past_end.map(|at| (at, GuestMemoryError::NotMemory(at))),
            missing.map(|at| (at, GuestMemoryError::NoFrame(at))),
        ];
        match stop.into_iter().flatten().min_by_key(|(at, _)| *at) {
            Some((at, error)) => (at.0 - ipa.0, Err(error)),
            None => (len, Ok(())),
        }
    }
}

impl GuestMemory for FakeGuest {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        let len = into.len() as u64;
        let (reach, result) = self.reach(ipa, len);
        let mut inner = self.inner();
        inner.log.push(Access {
            ipa,
            len,
            write: false,
        });
        if reach > 0 {
            let at = self.index(ipa);
            let reach = reach as usize;
            into[..reach].copy_from_slice(&inner.bytes[at..at + reach]);
        }
        result
    }

    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        let len = from.len() as u64;
        let (reach, result) = self.reach(ipa, len);
        let mut inner = self.inner();
        inner.log.push(Access {
            ipa,
            len,
            write: true,
        });
        if reach > 0 {
            let at = self.index(ipa);
            let reach = reach as usize;
            inner.bytes[at..at + reach].copy_from_slice(&from[..reach]);
        }
        result
    }

    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        let run = IpaRange::new(ipa, len);
        self.ram.contains_run(ipa, len)
            && run.is_some_and(|run| !self.not_memory.iter().any(|hole| hole.overlaps(run)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> FakeGuest {
        FakeGuest::new(Ipa(0x4000_0000), 0x4000)
            .with_hole(IpaRange {
                start: Ipa(0x4000_1000),
                size: 0x1000,
            })
            .with_no_frame(IpaRange {
                start: Ipa(0x4000_3000),
                size: 0x1000,
            })
    }

    #[test]
    fn bytes_written_are_read_back_and_logged() {
        let guest = guest();
        guest.write(Ipa(0x4000_0ffe), &[1, 2]).unwrap();
        assert_eq!(guest.read_u16(Ipa(0x4000_0ffe)), Ok(0x0201));
        assert_eq!(guest.get(Ipa(0x4000_0ffe), 2), [1, 2]);
        let log = guest.take_log();
        assert_eq!(
            log[0],
            Access {
                ipa: Ipa(0x4000_0ffe),
                len: 2,
                write: true
            }
        );
        assert_eq!(log.len(), 2);
    }

    #[test]
    fn a_run_into_a_hole_fails_after_a_prefix() {
        let guest = guest();
        let hole = GuestMemoryError::NotMemory(Ipa(0x4000_1000));
        assert_eq!(guest.write(Ipa(0x4000_0fff), &[7, 7]), Err(hole));
        assert_eq!(guest.get(Ipa(0x4000_0fff), 1), [7]);
        let mut bytes = [0; 4];
        let end = GuestMemoryError::NoFrame(Ipa(0x4000_3000));
        assert_eq!(guest.read(Ipa(0x4000_2ffe), &mut bytes), Err(end));
        let outside = GuestMemoryError::NotMemory(Ipa(u64::MAX));
        assert_eq!(guest.read(Ipa(u64::MAX), &mut bytes), Err(outside));
        assert_eq!(
            guest.read(Ipa(0), &mut bytes),
            Err(GuestMemoryError::NotMemory(Ipa(0)))
        );
    }

    #[test]
    fn absent_frames_count_as_memory_and_holes_do_not() {
        let guest = guest();
        assert!(guest.contains(Ipa(0x4000_2000), 0x2000));
        assert!(!guest.contains(Ipa(0x4000_0000), 0x1001));
        assert!(!guest.contains(Ipa(0x4000_3fff), 2));
        assert!(!guest.contains(Ipa(0x4000_0000), u64::MAX));
    }
}
