//! What is behind guest frames, and behind blocks of disks, as records (`abi::state`).

use crate::memory::frames;
use abi::state::{Run, Sink, run};
use model_addr::{FRAME_SIZE, Mfn};
use zerocopy::IntoBytes;

/// Writes a run and what follows it: what its blocks are to hold, by `word`, or, for whoever has none of its frames, what
/// is in them. `false` where that is not known, or stays on a disk of this machine.
pub fn write_run<S: Sink>(to: &mut S, run: &Run, word: impl Fn(u64) -> Option<u64>) -> bool {
    let each = || 0..u64::from(run.count);
    match run.kind {
        run::PRIVATE | run::SHARED | run::JOINED if !S::KEEPS_FRAMES => {
            each().for_each(|n| write_page(to, run, n));
            true
        }
        run::STORED | run::BASE if S::KEEPS_FRAMES => {
            to.add(run);
            each().all(|n| word(run.frame + n).map(|word| to.add(&word)).is_some())
        }
        run::STORED | run::BASE => false,
        _ => {
            to.add(run);
            true
        }
    }
}

/// Writes what is in frame `n` of a run.
fn write_page(to: &mut impl Sink, run: &Run, n: u64) {
    if let Some(place) = to.part(size_of::<Run>() + FRAME_SIZE as usize) {
        let (head, page) = place.split_at_mut(size_of::<Run>());
        let one = Run {
            gfn: run.gfn + n,
            frame: 0,
            count: 1,
            kind: run::CONTENT,
            ..*run
        };
        head.copy_from_slice(one.as_bytes());
        frames::ram(Mfn(run.frame + n), 1).read(0, page);
    }
}

/// Whether a source that names frames of this machine, or one that does not, may have such a run.
pub fn may_have(keeps_frames: bool, run: &Run) -> bool {
    match run.kind {
        run::EMPTY | run::UNTOUCHED => true,
        run::CONTENT => !keeps_frames,
        _ => keeps_frames,
    }
}
