//! What came through a control port, as OS-0 shows it on its console: hexadecimal digits, line by line.

/// Begins each line.
const MARK: &str = "os0: control ";
/// Bytes of a frame's header (`abi::control`).
const HEADER: usize = 16;
/// Set in a reply's kind.
const REPLY: u32 = 0x8000_0000;

/// The replies, in their order: the request's kind and the code it was answered with. What makes no
/// sense ends it.
pub fn replies(said: &str) -> Vec<(u32, u32)> {
    let lines = said.lines().filter_map(|line| line.strip_prefix(MARK));
    let digits: Vec<u32> = lines
        .flat_map(str::chars)
        .filter_map(|c| c.to_digit(16))
        .collect();
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect();
    let mut replies = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((kind, payload, behind)) = frame(rest) {
        if let (Some(code), true) = (word(payload, 0), kind & REPLY != 0) {
            replies.push((kind & !REPLY, code));
        }
        rest = behind;
    }
    replies
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(word))
}

/// A frame's kind, what it carries, and what is behind it.
fn frame(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (kind, length) = (word(bytes, 4)?, word(bytes, 12)? as usize);
    let (payload, behind) = bytes.get(HEADER..)?.split_at_checked(length)?;
    Some((kind, payload, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn replies_are_told_from_events() {
        let mut bytes = Vec::new();
        for (kind, code) in [(REPLY | 6, 11), (0x4001, 1), (REPLY | 1, 0)] {
            for word in [0, kind, 0, 16, code, 0, 0, 0] {
                bytes.extend(u32::to_le_bytes(word));
            }
        }
        let mut said = String::from("os0: something else\n");
        for line in bytes.chunks(24) {
            said.push_str(MARK);
            for byte in line {
                write!(said, "{byte:02x}").unwrap();
            }
            said.push('\n');
        }
        assert_eq!(replies(&said), [(6, 11), (1, 0)]);
        assert_eq!(replies(&said[..said.len() - 3]), [(6, 11)]);
    }
}
