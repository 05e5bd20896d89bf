//! Where a page should be, by the misses that were counted on it (Disco, section 4.2.3; Verghese,
//! Devine, Gupta and Rosenblum 1996, section 4).
//!
//! ```text
//!                     no other node has its share of misses
//!  page is hot ─┬──────────────────────────────────────────► migrate to the one that has
//!  for a node   │
//!  that has     ├─ others have, nobody wrote it ───────────► replicate on those that read it
//!  no copy      ├─ others have, somebody wrote it ─────────► leave: write-shared
//!               ├─ it was moved too often ─────────────────► leave: moved often
//!               └─ the node is short of memory ────────────► leave: no memory
//!
//! ```
//!
//! Who holds the pages knows where replicas are: a write to a page with replicas gives them back, as
//! does a node that runs short of memory. The next look at the page sees it, and counts it as a move.
//!
//! A [`Placement`] remembers a bounded number of pages, those that were moved or replicated last.
//! The work for a hot page is one set of [`WAYS`] records and one look at each node's counter; per
//! interval nothing is done for pages that are not hot, however much memory there is. Pages that it
//! forgets may move again a little earlier than they should: that costs a few copies, and no page
//! is at a wrong place for it.
#![no_std]
#![forbid(unsafe_code)]

mod nodes;
mod policy;
mod record;
mod samples;
mod source;

pub use nodes::{NODES_MAX, NodeSet};
pub use policy::{Decision, Sight, Stays, Thresholds, decide};
pub use record::{Page, Past, Placement, Set, WAYS};
pub use samples::{FOLLOWED, LOOKS, PATIENCE, Samples};
pub use source::MissSource;
