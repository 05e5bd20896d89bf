//! Short text in a fixed field.

use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// UTF-8 text of at most `N` bytes, padded with zeroes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// All bits set: a mask of the whole field, and no text.
    pub const ONES: Self = Self([0xff; N]);

    /// The text, or `None` where it is longer than the field or holds a zero byte.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; N];
        if text.as_bytes().contains(&0) {
            return None;
        }
        bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// The text, cut to the field's length at a character's edge.
    pub fn cut(text: &str) -> Self {
        let end = (0..=text.len().min(N))
            .rev()
            .find(|&end| text.is_char_boundary(end));
        let text = end.and_then(|end| text.get(..end)).unwrap_or_default();
        Self::new(text).unwrap_or(Self([0; N]))
    }

    /// What the field says up to its first zero byte; `None` where that is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(N);
        core::str::from_utf8(self.0.get(..end)?).ok()
    }

    /// Whether the field says nothing.
    pub fn is_empty(&self) -> bool {
        self.0.first().is_none_or(|&b| b == 0)
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str().unwrap_or("(not text)"))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits_or_is_refused() {
        assert_eq!(Text::<4>::new("abcd").unwrap().as_str(), Some("abcd"));
        assert!(Text::<4>::new("abcde").is_none());
        assert!(Text::<4>::new("a\0b").is_none());
        assert_eq!(Text::<4>::cut("abcß").as_str(), Some("abc"));
        assert!(Text::<4>::default().is_empty());
    }
}
