//! Which vCPU runs where and for how long.
//!
//! Each NUMA node has one [`RunQueue`] that its CPUs share; EL2 keeps it behind a lock of its
//! own. What is scheduled is an [`Entity`], one per vCPU, named by an [`EntityId`]. An entity is
//! in exactly one queue at a time, also while it runs or sleeps, and moves with its whole state.
//!
//! - **Fairness**: weighted virtual time. An entity's virtual runtime grows by the time it ran
//!   divided by its weight; the CPU takes the one that is furthest behind.
//! - **Sleepers** come back at most [`SLEEPER_BONUS`] behind the others, however long they slept.
//! - **Caps**: a budget of run time per [`CAP_PERIOD`]; whoever used it up waits for the next.
//! - **Several nodes**: an idle CPU takes a waiting entity from the nearest node that has one,
//!   and every [`BALANCE_PERIOD`] a node takes one from a node with more load for each CPU
//!   ([`RunQueue::steal_from`]). Where entities do not divide evenly, this makes them rotate. One that
//!   slept away from home is woken there, where a CPU is idle ([`RunQueue::bring_home`]).
//!
//! All times are nanoseconds of one clock that never goes back.
#![no_std]
#![forbid(unsafe_code)]

mod balance;
mod entity;
mod queue;

pub use balance::{Load, Steal, homes, place};
pub use entity::{Counters, DEFAULT_WEIGHT, Entity, EntityId, NodeSet, Parameters, Refused};
pub use queue::{Kick, Pick, RunQueue};

const MILLISECOND: u64 = 1_000_000;

/// The most entities a queue can have.
pub const MAX_ENTITIES: usize = 1024;
/// The most CPUs a node can have.
pub const MAX_CPUS: usize = 64;
/// The most nodes a machine can have.
pub const MAX_NODES: usize = 64;

/// The longest an entity runs before the queue is asked again.
pub const MAX_SLICE: u64 = 10 * MILLISECOND;
/// The longest slice when others wait.
pub const SHARED_SLICE: u64 = 6 * MILLISECOND;
/// The shortest slice, however many wait.
pub const MIN_SLICE: u64 = MILLISECOND;
/// In about this time everybody who waits should have run once. No multiple of the 1, 4 or 10 ms of
/// guests' ticks: a guest that counts its time by them would see the same part of each turn.
pub const LATENCY: u64 = 11 * MILLISECOND;
/// How far behind the others a sleeper may come back, in virtual time: one slice, so that it is
/// the next to run even when the others are a slice apart.
pub const SLEEPER_BONUS: u64 = SHARED_SLICE;
/// How far ahead a running entity must be of a woken one to be interrupted, in virtual time.
pub const WAKEUP_GRANULARITY: u64 = MILLISECOND;
/// How far an entity may be from the queue's virtual time and have it counted.
pub const MAX_LAG: u64 = 50 * MILLISECOND;
/// A cap's budget lasts this long.
pub const CAP_PERIOD: u64 = 100 * MILLISECOND;
/// How often a node compares its load with the others'.
pub const BALANCE_PERIOD: u64 = 100 * MILLISECOND;
