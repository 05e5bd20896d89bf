//! The memory that the hosts' processes share: what each says at meetings, and its frames.
//!
//! Of each host there is a desk of one page, then two halves of frames. What is said at meeting `m` lies in half `m & 1`. A
//! host says nothing at `m + 2` before all have come to `m + 1`, and nobody comes there who still reads of `m`: so a slow
//! reader is safe.
//!
//! # Soundness
//! The mapping lives as long as the process. Desks are atomics. Frames are only copied, by `publish` to the own halves and by
//! `frames` from others', between the acquire and release operations of the protocol above; a process that breaks it
//! makes bytes wrong, which are checked when they are read.

use sim_ethernet::Said;
use std::{
    fs::OpenOptions,
    mem::size_of,
    os::unix::fs::FileExt as _,
    path::Path,
    ptr,
    sync::atomic::{
        AtomicI64, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

/// What a host says.
#[repr(C)]
pub struct Desk {
    /// The number of the last meeting that it has come to. Others sleep on it.
    pub arrived: AtomicU32,
    /// How many sleep on it.
    pub sleepers: AtomicU32,
    /// It has left, or was found dead: it comes to no further meeting.
    pub gone: AtomicU32,
    /// Its process; 0 where it has not started.
    pub process: AtomicU32,
    /// Of its options.
    pub fingerprint: AtomicU64,
    halves: [Half; 2],
}

#[repr(C)]
struct Half {
    next_ns: AtomicI64,
    bytes: AtomicU64,
}

const DESK_BYTES: usize = 4096;
const _: () = assert!(size_of::<Desk>() <= DESK_BYTES);

/// The memory.
pub struct Table {
    memory: *mut u8,
    hosts: usize,
    room: usize,
    me: usize,
}

// SAFETY: see Soundness; nothing in it belongs to one thread.
unsafe impl Sync for Table {}
// SAFETY: the same.
unsafe impl Send for Table {}

impl Table {
    /// Maps the file, which grows to its size with the first host that comes.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn open(path: &Path, me: usize, hosts: usize, room: usize) -> Result<Self, String> {
        let failed = |error: std::io::Error| {
            format!("cannot share the memory '{}': {error}", path.display())
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(failed)?;
        let bytes = hosts * (DESK_BYTES + 2 * room);
        // Never shrinks, as set_len would under a host with other options.
        file.write_at(&[0], bytes as u64).map_err(failed)?;
        // SAFETY: a new mapping of an open file, wherever there is room; it is never unmapped.
        let memory = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &file,
                0,
            )
        };
        let memory = memory.map_err(|error| failed(error.into()))?.cast();
        Ok(Self {
            memory,
            hosts,
            room,
            me,
        })
    }

    /// A host's desk.
    pub fn desk(&self, host: usize) -> &Desk {
        assert!(host < self.hosts, "there is no such host");
        // SAFETY: a page of the mapping, all of whose bits are valid for atomics.
        unsafe { &*self.memory.add(host * DESK_BYTES).cast() }
    }

    fn half(&self, host: usize, meeting: u32) -> (&Half, *mut u8) {
        let half = meeting as usize & 1;
        let place = self.hosts * DESK_BYTES + (2 * host + half) * self.room;
        let desk = self.desk(host);
        let words = if half == 0 {
            &desk.halves[0]
        } else {
            &desk.halves[1]
        };
        // SAFETY: within the mapping, as the host is one of them.
        (words, unsafe { self.memory.add(place) })
    }

    /// Says what this host has to say at a meeting: it has come.
    pub fn publish(&self, meeting: u32, said: Said, frames: &[u8]) {
        let (words, place) = self.half(self.me, meeting);
        assert!(
            frames.len() <= self.room,
            "more frames than there is room for"
        );
        // SAFETY: a half has `room` bytes, and nobody reads this one now (see Soundness).
        unsafe { ptr::copy_nonoverlapping(frames.as_ptr(), place, frames.len()) };
        words.next_ns.store(said.next_ns, Relaxed);
        words.bytes.store(frames.len() as u64, Relaxed);
        // Before `sleepers` is read: whoever is to sleep counts first, and then looks here again.
        self.desk(self.me).arrived.store(meeting, SeqCst);
    }

    /// What a host that has come says; its frames replace those in `frames`.
    pub fn said(&self, host: usize, meeting: u32, frames: &mut Vec<u8>) -> Said {
        let (words, place) = self.half(host, meeting);
        let bytes = (words.bytes.load(Acquire) as usize).min(self.room);
        frames.clear();
        frames.resize(bytes, 0);
        // SAFETY: a half has `room` bytes, and its host does not write this one now (see Soundness).
        unsafe { ptr::copy_nonoverlapping(place, frames.as_mut_ptr(), bytes) };
        Said {
            next_ns: words.next_ns.load(Relaxed),
        }
    }

    /// This host comes to no further meeting.
    pub fn leave(&self) {
        self.desk(self.me).gone.store(1, Release);
    }
}
