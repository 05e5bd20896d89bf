//! What a request gets that is not done.

use abi::control::code;
use abi::state::Unreadable;

/// Why a request is refused: a code for programs, a sentence for people, and the number in it.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// One of [`abi::control::code`].
    pub code: u32,
    /// The number measured.
    pub value: u64,
    /// The sentence.
    pub sentence: heapless::String<200>,
}

impl Refusal {
    /// A refusal with that code and sentence.
    pub fn new(code: u32, value: u64, sentence: core::fmt::Arguments<'_>) -> Self {
        let mut text = heapless::String::new();
        // A sentence that is too long is cut.
        let _ = core::fmt::Write::write_fmt(&mut text, sentence);
        Self {
            code,
            value,
            sentence: text,
        }
    }
}

impl From<Unreadable> for Refusal {
    fn from(unreadable: Unreadable) -> Self {
        Self::new(code::IMPOSSIBLE, 0, format_args!("{unreadable:?}"))
    }
}
