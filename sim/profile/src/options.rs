//! What the plugin's arguments ask for.

use std::{path::PathBuf, process};

/// Where the boot protocol puts the hypervisor's image on QEMU's `virt` machine.
const IMAGE: u64 = 0x4020_0000;
/// More than the image has.
const IMAGE_BYTES: u64 = 2 << 20;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the image begins, which is where it is entered first.
    pub from: u64,
    /// Its bytes, or more.
    pub bytes: u64,
    /// Visits of more instructions are told one by one; 0: none is.
    pub over: u64,
    /// Where results go.
    pub out: PathBuf,
}

impl Options {
    /// Reads them.
    ///
    /// # Errors
    /// The sentence about the first that is wrong.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            from: IMAGE,
            bytes: IMAGE_BYTES,
            over: 0,
            out: PathBuf::new(),
        };
        for word in words {
            match word.split_once('=') {
                Some(("from", text)) => options.from = number(word, text)?,
                Some(("bytes", text)) => options.bytes = number(word, text)?,
                Some(("over", text)) => options.over = number(word, text)?,
                Some(("out", path)) => options.out = PathBuf::from(path),
                Some(("each", path)) => options.out = format!("{path}.{}", process::id()).into(),
                _ => {
                    return Err(format!(
                        "'{word}' is no option of the profile's plugin; there are out=FILE, each=FILE, over=NUMBER, from=ADDRESS and bytes=NUMBER"
                    ));
                }
            }
        }
        if options.out.as_os_str().is_empty() {
            return Err("the profile's plugin has nowhere to write; add out=FILE, or each=FILE for FILE with the number of QEMU's process".into());
        }
        Ok(options)
    }
}

fn number(word: &str, text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{word}' has no number; give one as 4096 or 0x1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Options, String> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Options::read(&words)
    }

    #[test]
    fn options_are_read() {
        let options = read("out=a over=9000 from=0x1000").map(|it| (it.over, it.from, it.bytes));
        assert_eq!(options, Ok((9000, 0x1000, IMAGE_BYTES)));
        for (words, why) in [
            ("over=1", "nowhere to write"),
            ("out=a over=x", "'over=x' has no number"),
            ("out=a b", "'b' is no option"),
        ] {
            let said = read(words).err().unwrap_or_default();
            assert!(said.contains(why), "{words}: {said}");
        }
    }
}
