//! The table of all machine frames (Disco's memmap) and the per-node pools of free ones.
//!
//! Every 4 KiB frame of the machine has an entry of 32 bytes (0.8 %) that says what the frame is
//! used for. [`MemoryMap`] finds the entry of a frame, a [`Pool`] holds a node's free frames, and
//! [`after`] is the one table of what may become what:
//!
//! ```text
//!                 Grant ┌────────────┐ Release
//!            ┌─────────►│ Hypervisor ├──────────┐
//!            │ Tabulate ├────────────┤ Release  │
//!            ├─────────►│   Table    ├──────────┤
//!            │Replicate ├────────────┤ Release  │
//!            ├─────────►│  Replica   ├──────────┤
//!            │ Reserve  ├────────────┤ Release  │
//!            ├─────────►│  Reserved  ├──────────┤
//!   ┌──────┐ │          └─────┬──────┘          │ ┌──────┐
//!   │ Free ├─┤            Take▼                 ├►│ Free │
//!   └──────┘ │ Assign   ┌────────────┐ Release  │ └──────┘
//!            └─────────►│  Private   ├──────────┘
//!                       └─────┬──▲───┘
//!                        Share▼  │Claim (sole user, not in the index, no image's)
//!                       ┌────────┴───┐
//!                       │   Shared   │
//!                       └─────┬──▲───┘
//!                       Retire▼  │Revive
//!   Free or       Keep  ┌────────┴───┐ Discard (not in the index, no image's)
//!   Hypervisor ────────►│ CachedOnly ├─────────► Hypervisor, to be freed
//!   (an image's frames) └────────────┘
//! ```
//!
//! Memory is reserved for guests, taken by them and reclaimed in chunks of [`CHUNK_FRAMES`]. Only
//! the first entry of a reserved chunk says so: the others say free, and are in no pool's lists.
//! A pool joins blocks of the same origin only, so all frames of a chunk have the same.
//!
//! A pool has some of its free 2 MiB blocks zeroed ahead, by whoever has time ([`Pool::zero_ahead`]).
//! Runs reserved from these say so in the first entry of each chunk, until the chunk is taken.
//!
//! Frames of a disk image ([`Origin::Image`]) are kept from boot on: guests use them, and leave
//! them, but they are never claimed and never discarded. A frame in a [`Chain`] of the index, where
//! others find it, is neither: it has to leave the index before anybody may write it.
//!
//! An entry is shared by all CPUs. A bit in it is its lock, and only a pool moves frames from and
//! to free. The order of locks is: pmap entry, then frames in ascending order, then the pool's lock
//! around it. A pool never waits for a frame, so its owner may hold frames while it calls.
#![no_std]
#![forbid(unsafe_code)]

mod entry;
mod map;
mod pool;
mod preference;
mod state;

pub use entry::{CacheKey, FrameEntry, LockedFrame, Owner};
pub use map::{MAX_RANGES, MapError, MemoryMap, MemoryRange, entries_bytes};
pub use pool::{CHUNK_FRAMES, CHUNK_ORDER, MAX_ORDER, Pool, PoolCounts, Purpose};
pub use preference::{MAX_NODES, PerNode, PreferenceOrder};
pub use state::{Chain, Contents, Event, FrameState, Origin, Refused, Use, after};
