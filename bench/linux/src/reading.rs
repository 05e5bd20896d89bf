//! What it costs to read a disk from its beginning to its end, through the page cache.

use crate::{Outcome, clock, memory};
use std::{fs::File, io::Read as _, thread::sleep, time::Duration};

/// The argument that asks for it.
pub const READ: &str = "read";
/// Bytes that one system call reads.
const PIECE: usize = 64 << 10;
/// Bytes of a page.
const PAGE: f64 = 4096.0;

/// Uses so many MiB and gives them back, waits so many seconds, reads all of `device` once, then says that it is done and stays: so its memory can be looked at.
pub fn measure(device: &str, wait: u64, touched: usize) -> Outcome {
    memory::map_and_touch(touched << 20);
    sleep(Duration::from_secs(wait));
    let mut disk = File::open(device)?;
    let mut buffer = vec![1; PIECE];
    let start = clock::since_start();
    let mut bytes = 0;
    loop {
        match disk.read(&mut buffer)? {
            0 => break,
            count => bytes += count,
        }
    }
    let ns = clock::since_start() - start;
    clock::report("read_page", ns * PAGE / bytes.max(1) as f64);
    println!("bench: done");
    loop {
        sleep(Duration::MAX);
    }
}
