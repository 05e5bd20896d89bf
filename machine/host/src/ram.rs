//! The machine's RAM: one mapping of the process, at the machine addresses themselves.

use core::ffi::c_void;
use core::ptr;
use model_addr::{FRAME_SIZE, Pa};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// RAM from [`Ram::START`] on.
#[derive(Debug)]
pub(crate) struct Ram {
    size: usize,
    /// By frame, the VMID of the guest that wrote it last, as long as nobody has cleaned caches of it since; 0: none.
    writers: Vec<u16>,
}

impl Ram {
    /// Where it begins.
    pub(crate) const START: Pa = Pa(0x4000_0000);

    /// Maps `size` bytes, all zero. The error says that something else of the process lies there.
    pub(crate) fn new(size: usize) -> Result<Self, Errno> {
        let at = ptr::with_exposed_provenance_mut::<c_void>(Self::START.0 as usize);
        // SAFETY: the flag refuses addresses at which the process has anything.
        let mapped = unsafe {
            mmap_anonymous(
                at,
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
            )?
        };
        // Pointers to it are made from addresses.
        let _ = mapped.expose_provenance();
        let writers = vec![0; size / FRAME_SIZE as usize];
        Ok(Self { size, writers })
    }

    /// Whether `size` bytes from `at` lie inside.
    pub(crate) fn contains(&self, at: Pa, size: u64) -> bool {
        at >= Self::START && at.0 - Self::START.0 + size <= self.size as u64
    }

    /// Reads a little-endian word of `size` (1, 2, 4 or 8) bytes; `None` outside.
    pub(crate) fn read(&self, at: Pa, size: u64) -> Option<u64> {
        let from = ptr::with_exposed_provenance::<u8>(at.0 as usize);
        let mut bytes = [0; 8];
        // SAFETY: inside the mapping (checked). No reference lies there; the thread that could is this one.
        self.contains(at, size).then(|| unsafe {
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size as usize);
        })?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Writes a little-endian word of `size` (1, 2, 4 or 8) bytes; `None` outside.
    pub(crate) fn write(&mut self, at: Pa, size: u64, value: u64) -> Option<()> {
        self.fill(at, &value.to_le_bytes()[..size as usize])
    }

    /// Copies bytes in; `None` outside.
    pub(crate) fn fill(&mut self, at: Pa, bytes: &[u8]) -> Option<()> {
        let to = ptr::with_exposed_provenance_mut::<u8>(at.0 as usize);
        // SAFETY: as in `read`.
        self.contains(at, bytes.len() as u64).then(|| unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        })
    }
}

impl Ram {
    /// Copies bytes out; `None` outside.
    pub(crate) fn copy_out(&self, at: Pa, into: &mut [u8]) -> Option<()> {
        let from = ptr::with_exposed_provenance::<u8>(at.0 as usize);
        // SAFETY: as in `read`.
        self.contains(at, into.len() as u64).then(|| unsafe {
            ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        })
    }
}

impl Ram {
    fn place(at: Pa) -> usize {
        (at.0.wrapping_sub(Self::START.0) / FRAME_SIZE) as usize
    }

    /// A guest with that VMID has written there.
    pub(crate) fn note_written(&mut self, at: Pa, vmid: u16) {
        if let Some(writer) = self.writers.get_mut(Self::place(at)) {
            *writer = vmid;
        }
    }

    /// Caches of these bytes were cleaned.
    pub(crate) fn note_cleaned(&mut self, at: Pa, size: u64) {
        let frames = Self::place(at)..=Self::place(Pa(at.0 + size.max(1) - 1));
        if let Some(writers) = self.writers.get_mut(frames) {
            writers.fill(0);
        }
    }

    /// The other guest whose writes may be in caches only, where a guest with that VMID reads.
    pub(crate) fn unseen_writer(&self, at: Pa, vmid: u16) -> Option<u16> {
        let writer = self.writers.get(Self::place(at)).copied();
        writer.filter(|writer| *writer != 0 && *writer != vmid)
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        let at = ptr::with_exposed_provenance_mut::<c_void>(Self::START.0 as usize);
        // SAFETY: the mapping that `new` made; whoever still had a pointer into it was a CPU of the machine.
        let _ = unsafe { munmap(at, self.size) };
    }
}
