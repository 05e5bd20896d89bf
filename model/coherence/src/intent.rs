//! Access that an instruction needs in the end, where its first fault does not say so.

use crate::Access;

/// Returns the access to ask for, from the word of the instruction and from WnR of its data abort (ESR_EL2).
///
/// On a page that is not mapped, exclusive loads and the atomics of FEAT_LSE abort as reads. Their stores would abort
/// next, so the page is asked for to be written at once (Arm ARM DDI 0487, C4.1 "Loads and Stores"). A loop that clears
/// its whole page ([`Access::Zero`]) is recognised by `model_trap::overwrite`.
pub const fn access(word: u32, is_write: bool) -> Access {
    if is_write || is_exclusive(word) || is_atomic(word) {
        Access::Write
    } else {
        Access::Read
    }
}

/// LDXR, LDAXR, LDXP, LDAXP, CAS and CASP, and the stores of the same group; not LDAR and LDLAR.
const fn is_exclusive(word: u32) -> bool {
    let is_ordered_load = field(word, 21, 3) == 0b110;
    field(word, 24, 6) == 0b001000 && !is_ordered_load
}

/// LD<op>, ST<op> and SWP; not LDAPR and the 64-byte forms.
const fn is_atomic(word: u32) -> bool {
    let is_group =
        field(word, 24, 6) == 0b111000 && field(word, 21, 1) == 1 && field(word, 10, 2) == 0;
    is_group && (field(word, 15, 1) == 0 || field(word, 12, 3) == 0)
}

const fn field(word: u32, from: u32, bits: u32) -> u32 {
    word >> from & ((1 << bits) - 1)
}
