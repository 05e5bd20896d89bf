//! What came through a control port, as OS-0 shows it on its console: hexadecimal digits, line by line.

use std::collections::BTreeMap;

/// Begins each line.
const MARK: &str = "os0: control ";
/// Bytes of a frame's header, and of a VM's name (`abi::control`).
const HEADER: usize = 16;
const NAME: usize = 32;
const CONSOLE_OUTPUT: u32 = 0x4001;

/// What each VM wrote to its console, by its name. What makes no sense ends it.
pub fn consoles(said: &str) -> BTreeMap<String, String> {
    let lines = said.lines().filter_map(|line| line.strip_prefix(MARK));
    let digits: Vec<u32> = lines
        .flat_map(str::chars)
        .filter_map(|c| c.to_digit(16))
        .collect();
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect();
    let mut consoles: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut rest = bytes.as_slice();
    while let Some((kind, payload, behind)) = frame(rest) {
        if let Some((name, text)) = payload.split_at_checked(NAME)
            && kind == CONSOLE_OUTPUT
        {
            let name = String::from_utf8_lossy(name);
            let name = name.trim_end_matches('\0').to_owned();
            consoles.entry(name).or_default().extend(text);
        }
        rest = behind;
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    consoles
        .into_iter()
        .map(|(name, bytes)| (name, text(bytes)))
        .collect()
}

/// A frame's kind, what it carries, and what is behind it.
fn frame(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(word))
    };
    let (kind, length) = (word(4)?, word(12)? as usize);
    let (payload, behind) = bytes.get(HEADER..)?.split_at_checked(length)?;
    Some((kind, payload, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn frames_are_joined_by_name() {
        let mut bytes = Vec::new();
        for (kind, name, text) in [
            (CONSOLE_OUTPUT, "one", "he"),
            (0x4002, "one", "not this"),
            (CONSOLE_OUTPUT, "two", "you"),
            (CONSOLE_OUTPUT, "one", "llo"),
        ] {
            let length = (NAME + text.len()) as u32;
            for word in [0, kind, 0, length] {
                bytes.extend(u32::to_le_bytes(word));
            }
            bytes.extend(name.bytes().chain([0; NAME]).take(NAME));
            bytes.extend(text.bytes());
        }
        let mut said = String::from("os0: something else\n");
        for line in bytes.chunks(32) {
            said.push_str(MARK);
            for byte in line {
                write!(said, "{byte:02x}").unwrap();
            }
            said.push('\n');
        }
        let found = consoles(&said);
        assert_eq!(found.len(), 2);
        assert_eq!((&*found["one"], &*found["two"]), ("hello", "you"));
    }
}
