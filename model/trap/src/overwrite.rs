//! Stores that begin a loop which overwrites its whole page, so that what the page held before
//! need not be brought or kept.
//!
//! Linux clears a page before each use and copies whole pages, by two loops of fixed code:
//! `clear_page` and `copy_page` of its arm64 port. A lone `dc zva` proves nothing: `memset` begins
//! with one, too. So every word of the loop must be there, its end included: then, with the
//! registers as they are at its first store, it stops nowhere but at the page's end. Interrupts on
//! the way do not matter, the loop goes on after them.
//!
//! The words are those of Debian's kernels 6.1, 6.12 and 7.2. Their loops of FEAT_MOPS are not
//! here, because guests are not shown that feature; nor is the `clear_page` for CPUs on which
//! `dc zva` is prohibited.
//!
//! A guest that has the words but does not mean them (it changes them meanwhile, leaves the loop
//! by an interrupt for ever, copies a page onto itself by another address, or has another vCPU
//! read what is just being overwritten) finds zeroes in a page of its own where its own bytes
//! were. Nobody else is concerned, as long as the page begins as zeroes and not as what somebody
//! left in the frame.

/// How a page is about to be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// With zeroes.
    Clear,
    /// With a copy of another page.
    Copy,
}

/// A store that stage 2 refused, and the guest's state there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The virtual address stored to: FAR_EL2.
    pub va: u64,
    /// The guest's PSTATE: SPSR_EL2.
    pub pstate: u64,
    /// The guest's x0: where to.
    pub x0: u64,
    /// The guest's x1: the stride of `clear_page`, where `copy_page` reads.
    pub x1: u64,
    /// DCZID_EL0, which the guest sees as it is.
    pub dczid: u64,
}

/// Words of the loop of `clear_page`, from its store on.
pub const CLEAR_WORDS: usize = 4;
/// Words of the loop of `copy_page`, with [`COPY_BEFORE`] of them before its first store.
pub const COPY_WORDS: usize = COPY_BEFORE + COPY.len() + 1 + COPY_TAIL.len();
/// Words of `copy_page` that precede its first store in the loop, at most.
pub const COPY_BEFORE: usize = 2;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// PSTATE.Z.
const ZERO_FLAG: u64 = 1 << 30;
/// PSTATE.M but its lowest bit, which chooses the stack pointer.
const LEVEL: u64 = 0x1e;
/// EL1 in AArch64.
const EL1: u64 = 0x4;

/// `tst x0, #0xfff`.
const TST: u32 = 0xf240_2c1f;
/// `nop`, and the `prfm pldl1strm, [x1, #384]` that 6.1 puts there for CPUs without prefetcher.
const NO_EFFECT: [u32; 2] = [0xd503_201f, 0xf980_c021];
/// `dc zva, x0`; `add x0, x0, x1`; `tst`; `b.ne` back to the first.
const CLEAR: [u32; CLEAR_WORDS] = [0xd50b_7420, 0x8b01_0000, TST, 0x54ff_ffa1];
/// `copy_page` from the first store of its loop to the branch. Registers are stored 256 bytes
/// below x0 and loaded anew at x1 in turns, both 128 bytes on.
const COPY: [u32; 18] = [
    0xa830_0c02, // stnp x2, x3, [x0, #-256]
    0xa940_0c22, // ldp x2, x3, [x1]
    0xa831_1404,
    0xa941_1424,
    0xa832_1c06,
    0xa942_1c26,
    0xa833_2408,
    0xa943_2428,
    0xa834_2c0a,
    0xa944_2c2a,
    0xa835_340c,
    0xa945_342c,
    0xa836_3c0e,
    0xa946_3c2e,
    0xa837_4410, // stnp x16, x17, [x0, #-144]
    0xa947_4430, // ldp x16, x17, [x1, #112]
    0x9102_0000, // add x0, x0, #128
    0x9102_0021, // add x1, x1, #128
];
/// The `b.ne` that goes back to the `tst` one word, and two words, before the first store.
const COPY_BACK: [u32; 2] = [0x54ff_fda1, 0x54ff_fd81];
/// The stores behind the loop: the last 128 bytes.
const COPY_TAIL: [u32; 8] = [
    0xa830_0c02,
    0xa831_1404,
    0xa832_1c06,
    0xa833_2408,
    0xa834_2c0a,
    0xa835_340c,
    0xa836_3c0e,
    0xa837_4410,
];

impl Store {
    /// What the store begins, where its code is the loop that it may be: with this state the loop
    /// has its whole page to go. Most stores are refused here, before anybody reads their code.
    #[inline]
    pub fn candidate(&self) -> Option<Overwrite> {
        if self.pstate & LEVEL != EL1 || !self.va.is_multiple_of(PAGE) {
            return None;
        }
        // BS is the logarithm of the words that one `dc zva` clears.
        if self.x0 == self.va && self.x1 == 4 << (self.dczid & 0xf) {
            return Some(Overwrite::Clear);
        }
        // The source is another page, of which the first 128 bytes are in registers. The flag is
        // the one that the branch will find.
        let source = self.x1.wrapping_sub(128);
        let copies = self.x0.wrapping_sub(256) == self.va
            && source.is_multiple_of(PAGE)
            && source != self.va
            && self.pstate & ZERO_FLAG == 0;
        copies.then_some(Overwrite::Copy)
    }
}

/// Whether these words, from the store on, are the loop of `clear_page`.
pub fn is_clear_loop(words: &[u32; CLEAR_WORDS]) -> bool {
    are(words, &CLEAR)
}

/// Whether these words, from [`COPY_BEFORE`] before the store on, are the loop of `copy_page`.
pub fn is_copy_loop(words: &[u32; COPY_WORDS]) -> bool {
    let ([before, near, rest @ ..], [one, two]) = (words, COPY_BACK);
    let (body, [back, tail @ ..]) = rest.split_at(COPY.len()) else {
        return false;
    };
    let closes =
        *near == TST && *back == one || *before == TST && NO_EFFECT.contains(near) && *back == two;
    closes && are(body, &COPY) && are(tail, &COPY_TAIL)
}

/// Word by word: at EL2 a comparison of slices is one of bytes, ten times slower.
fn are(words: &[u32], expected: &[u32]) -> bool {
    words.len() == expected.len() && words.iter().zip(expected).all(|(word, is)| word == is)
}
