//! What the fake hypervisor says of memory.

use abi::{
    Text,
    control::{PAYLOAD_MAX, PageCounts, PageStatus, RegionStatus, ReplyHeader, page, request},
};
use zerocopy::FromZeros as _;

/// Where a VM's memory begins.
const RAM: u64 = 0x4000_0000;

pub fn region() -> RegionStatus {
    RegionStatus {
        name: Text::cut("table"),
        group: Text::cut("default"),
        size: 64 << 20,
        touched: 1 << 20,
        users: 2,
        reserved: 0,
    }
}

/// In two parts, so that the command has to ask again.
pub fn counts(from: u64) -> PageCounts {
    let mut counts = PageCounts::new_zeroed();
    (
        counts.private[0],
        counts.private[1],
        counts.no_twin,
        counts.shared,
    ) = match from {
        0 => (400, 50, 0, 5),
        _ => (500, 0, 30, 15),
    };
    counts
}

/// Where the command is to go on after that part.
pub fn next(kind: u32, from: u64) -> u64 {
    match (kind, from) {
        (request::PAGE_COUNTS, 0) => RAM,
        // A part without a page.
        (request::PAGES, 0) => RAM - 4096,
        (request::PAGES, _) => {
            let last = pages(0, from).last().map(|page| page.address & !0xfff);
            let next = last.filter(|last| *last < RAM + 2499 * 4096);
            next.map_or(0, |last| last + 4096)
        }
        _ => 0,
    }
}

/// 2,500 pages: 1,000 shared ones, 1,000 of zeroes, and 500 that are different in each VM.
pub fn pages(vm: usize, from: u64) -> Vec<PageStatus> {
    let page = |n: u64| {
        let (state, hash) = match n {
            0..1000 => (page::SHARED, n + 1),
            1000..2000 => (page::PRIVATE, 0),
            _ => (page::PRIVATE, (vm as u64 + 1) << 32 | n),
        };
        let address = (RAM + n * 4096) | state;
        PageStatus { address, hash }
    };
    let room = (PAYLOAD_MAX - size_of::<ReplyHeader>()) / size_of::<PageStatus>();
    let pages = (0..2500).map(page);
    let pages = pages.filter(|page| from > 0 && page.address >= from);
    pages.take(room).collect()
}
