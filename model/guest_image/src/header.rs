//! The header of an arm64 Linux `Image` (Linux: `Documentation/arch/arm64/booting.rst`).

/// Bytes of the header.
pub const HEADER_SIZE: usize = 64;

/// Where the text offset is when the header has no image size (Linux before 3.17).
const OLD_TEXT_OFFSET: u64 = 0x8_0000;
/// The most an offset or a size can be: no guest is larger.
const LIMIT: u64 = 1 << 40;

/// What the header of an `Image` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Where the image wants to be, in bytes from a 2 MiB boundary.
    pub text_offset: u64,
    /// Bytes the kernel needs from there on, more than the file has; 0 where it is not known.
    pub image_size: u64,
}

/// Why a kernel with the right magic number cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is big-endian.
    #[error("the kernel is big-endian")]
    BigEndian,
    /// An offset or a size is absurd.
    #[error("the kernel's header has an absurd offset or size, {0:#x}")]
    Absurd(u64),
}

impl ImageHeader {
    /// Reads the header from the file's first bytes; `None` where there is none: a flat image.
    ///
    /// # Errors
    /// Where it is a header of a kernel that cannot be started.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, HeaderError> {
        let Some(header) = bytes.first_chunk::<HEADER_SIZE>() else {
            return Ok(None);
        };
        let (words, _) = header.as_chunks::<8>();
        let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
        // The magic number is the lower half of the last word.
        if word(7) as u32 != u32::from_le_bytes(*b"ARM\x64") {
            return Ok(None);
        }
        let (text_offset, image_size, flags) = (word(1), word(2), word(3));
        if flags & 1 != 0 {
            return Err(HeaderError::BigEndian);
        }
        if let Some(absurd) = [text_offset, image_size]
            .into_iter()
            .find(|value| *value > LIMIT)
        {
            return Err(HeaderError::Absurd(absurd));
        }
        let text_offset = if image_size == 0 {
            OLD_TEXT_OFFSET
        } else {
            text_offset
        };
        Ok(Some(Self {
            text_offset,
            image_size,
        }))
    }
}
