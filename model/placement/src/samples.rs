//! Misses where nothing counts them: some pages fault when they are touched next, and who touches
//! one is noted.
//!
//! ```text
//!  touched by a node that is not its own            the same, LOOKS times in all
//!  any page ──────────────────────────► followed ──────────────────────────────► hot: decided on
//!                                       │  ▲   │ nobody touches it for PATIENCE turns
//!                                sample └──┘   └──────► forgotten
//! ```
//!
//! The first touch is one of many pages', taken in turn; a page that another node touched is sampled
//! again and again, so that a few touches tell who uses it. One touch stands for half of the misses that
//! make a page hot: who touches it first two times of [`LOOKS`] uses it, who does so once shares it.
//! (Linux's NUMA balancing asks for two touches of one node in a row, to the same end.)

use crate::MissSource;
use heapless::Vec;
use model_addr::{Mfn, NodeId};

/// Pages that are followed at a time.
pub const FOLLOWED: usize = 128;
/// Touches by which a page is judged.
pub const LOOKS: usize = 4;
/// Turns that a page may stay untouched.
pub const PATIENCE: u8 = 16;

/// One page that is followed; `P` names it.
#[derive(Clone, Copy, Debug)]
struct Sample<P> {
    frame: Mfn,
    page: P,
    /// Who touched it, in order; so many.
    by: [NodeId; LOOKS],
    touches: u8,
    written: bool,
    /// Turns since it was last touched.
    quiet: u8,
}

impl<P> Sample<P> {
    fn is_judged(&self) -> bool {
        usize::from(self.touches) == LOOKS
    }
}

/// Pages that nodes touched which are not their own.
#[derive(Debug)]
pub struct Samples<P> {
    followed: Vec<Sample<P>, FOLLOWED>,
    /// What one touch stands for, in misses.
    weight: u32,
}

impl<P: Copy> Samples<P> {
    /// None, where `trigger` misses make a page hot.
    pub const fn new(trigger: u32) -> Self {
        Self {
            followed: Vec::new(),
            weight: trigger.div_ceil(2),
        }
    }

    /// A sampled page, on node `home`, was touched by `node`. The work is one look at all that are followed.
    pub fn touched(&mut self, (frame, page): (Mfn, P), home: NodeId, node: NodeId, writes: bool) {
        let known = self
            .followed
            .iter_mut()
            .find(|sample| sample.frame == frame);
        if let Some(sample) = known {
            if let Some(by) = sample.by.get_mut(usize::from(sample.touches)) {
                (*by, sample.quiet) = (node, 0);
                sample.touches += 1;
                sample.written |= writes;
            }
        } else if node != home {
            // Where there is no room, it is met again in the next round.
            let _ = self.followed.push(Sample {
                frame,
                page,
                by: [node; LOOKS],
                touches: 1,
                written: writes,
                quiet: 0,
            });
        }
    }

    /// A turn is over: forgets pages that were quiet for too long, and gives those that are to be sampled
    /// now. Sampling one that was not touched since changes nothing.
    pub fn turn(&mut self) -> impl Iterator<Item = P> {
        for sample in &mut self.followed {
            sample.quiet += u8::from(!sample.is_judged());
        }
        self.followed.retain(|sample| sample.quiet < PATIENCE);
        let open = self.followed.iter().filter(|sample| !sample.is_judged());
        open.map(|sample| sample.page)
    }
}

impl<P: Copy> MissSource for Samples<P> {
    fn hot(&self) -> u32 {
        let hot = self.followed.iter().filter(|sample| sample.is_judged());
        hot.count() as u32
    }

    fn next_hot(&mut self) -> Option<Mfn> {
        let hot = self.followed.iter().find(|sample| sample.is_judged());
        hot.map(|sample| sample.frame)
    }

    fn take(&mut self, frame: Mfn, misses: &mut [u32]) -> bool {
        misses.fill(0);
        let of = |sample: &Sample<P>| sample.frame == frame;
        let Some(at) = self.followed.iter().position(of) else {
            return false;
        };
        let sample = self.followed.swap_remove(at);
        for node in sample.by.iter().take(sample.touches.into()) {
            if let Some(misses) = misses.get_mut(usize::from(node.0)) {
                *misses += self.weight;
            }
        }
        sample.written
    }
}
