//! What the images of tests hold.

/// The image's word `index` of block `block`: every eighth block is zero, and every eighth has
/// the same words as block 6.
pub fn image_word(block: u64, index: u64) -> u64 {
    let content = match block % 8 {
        7 => return 0,
        6 => 6,
        _ => block,
    };
    (content + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0x0101_0001_0001_0101)
}
