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
//!            └─────────►│  Private   ├──────────┤
//!                       └─────┬──▲───┘          │
//!                        Share▼  │Claim         │
//!                       ┌────────┴───┐ Release  │
//!                       │   Shared   ├──────────┤
//!                       └─────┬──▲───┘          │
//!                       Retire▼  │Revive        │
//!                       ┌────────┴───┐ Release  │
//!                       │ CachedOnly ├──────────┘
//!                       └────────────┘
//! ```
//!
//! Memory is reserved for guests, taken by them and reclaimed in chunks of [`CHUNK_FRAMES`]. Only
//! the first entry of a reserved chunk says so: the others say free, and are in no pool's lists.
//! A pool joins blocks of the same origin only, so all frames of a chunk have the same.
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
pub use preference::{MAX_NODES, PreferenceOrder};
pub use state::{Event, FrameState, Origin, Refused, Use, after};
