//! What a line on a console costs until the last byte is out.

use crate::{Outcome, clock};
use rustix::termios::tcdrain;
use std::{fs::OpenOptions, io::Write as _, path::Path};

/// 64 bytes, as a line of a log.
const LINE: &[u8; 64] = b"a line of a log, which the kernel passes on byte by byte, whole\n";
/// Lines that are averaged.
const LINES: u32 = 50;

/// Measures a console, where there is one.
pub fn measure(key: &str, device: &str) -> Outcome {
    if !Path::new(device).exists() {
        return Ok(());
    }
    let mut console = OpenOptions::new().write(true).open(device)?;
    clock::try_measure(key, LINES, || {
        console.write_all(LINE)?;
        tcdrain(&console).map_err(std::io::Error::from)
    })?;
    Ok(())
}
