//! Memory of a host: frames that wait, and the buffers of links. It is taken once, when the machine joins.

use crate::cluster::cipher::{self, Sealer};
use crate::machine::{Kind, cpu, stretch};
use crate::memory::frames;
use abi::bundle::ClusterRecord;
use abi::link::{BULK_MAX, FRAME_STANDARD};
use alloc::{boxed::Box, vec::Vec};
use core::{
    mem::size_of,
    ops::{Index, IndexMut},
};
use model_addr::FRAME_SIZE;
use model_addr::Mfn;
use model_cluster::STRANGE_MAX;
use model_coherence::Page;
use model_frame_table::{MAX_ORDER, Purpose};
use model_link::{Lane, Link, Nonce, Secret, Settings, Suite, WINDOW};

/// A link's buffers, as an order of frames: 1 MiB.
const LINK_ORDER: u8 = 8;
/// The inbox, as an order of frames: 2 MiB.
const INBOX_ORDER: u8 = 9;
/// Bytes between two frames of the inbox.
const STRIDE: usize = 2048;
/// Frames that may wait.
const WAITING_MAX: usize = ((FRAME_SIZE as usize) << INBOX_ORDER) / STRIDE - 1;
// Strangers take an eighth at most, but for what their budget earns while frames wait.
const _: () = assert!(WAITING_MAX as u64 >= 7 * STRANGE_MAX);
/// Bytes between two messages about a VM that spans hosts: sender and the longest message.
const MESSAGE_STRIDE: usize = BULK_MAX + 32;
/// Those that may wait.
const MESSAGES_MAX: usize = 8;
/// Entries in a run of frames, the longest that there is: 2 MiB.
const PAGES_IN_RUN: usize = (FRAME_SIZE as usize) << MAX_ORDER >> size_of::<Page>().ilog2();
const _: () = assert!(size_of::<Page>().is_power_of_two());
/// Entries of a table of pages that are made between two looks at interrupts.
const PAGES_AT_ONCE: usize = 1024;
/// Bytes for them.
pub const MESSAGES_BYTES: usize = MESSAGE_STRIDE * MESSAGES_MAX;

/// The shortest retransmission timeout: what the other host's pass may wait for a vCPU's exit.
const TIMEOUT_FLOOR_NS: u64 = 2_000_000;
/// How long an acknowledgement waits for a message to go with.
const ACK_DELAY_NS: u64 = 500_000;
/// The first pause between hellos to a host that does not answer; it doubles to 64 times this.
const HELLO_NS: u64 = 20_000_000;

/// Frames that wait for the next pass.
pub type Inbox = Waiting<&'static mut [u8], STRIDE, WAITING_MAX>;
/// Messages that wait for it, each behind the number of its sender.
pub type Messages = Waiting<Box<[u8]>, MESSAGE_STRIDE, MESSAGES_MAX>;

/// What waits, oldest first.
pub struct Waiting<B, const STRIDE: usize, const MAX: usize> {
    bytes: B,
    lengths: heapless::Deque<usize, MAX>,
    /// Place of the oldest.
    first: usize,
}

/// Makes an inbox, and room for a frame that leaves.
pub fn inbox() -> Option<(Inbox, &'static mut [u8])> {
    let (bytes, out) = take(INBOX_ORDER)?.split_at_mut(WAITING_MAX * STRIDE);
    Some((Inbox::of(bytes), out))
}

/// Zeroes on the heap.
pub fn bytes(count: usize) -> Option<Box<[u8]>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count).ok()?;
    bytes.resize(count, 0);
    Some(bytes.into_boxed_slice())
}

impl<B: AsMut<[u8]>, const STRIDE: usize, const MAX: usize> Waiting<B, STRIDE, MAX> {
    pub const fn of(bytes: B) -> Self {
        Self {
            bytes,
            lengths: heapless::Deque::new(),
            first: 0,
        }
    }

    /// Adds what is in two parts; `false` where there is no room.
    pub fn push(&mut self, [head, rest]: [&[u8]; 2]) -> bool {
        let at = (self.first + self.lengths.len()) % MAX * STRIDE;
        let bytes = head.len() + rest.len();
        let place = self.bytes.as_mut().get_mut(at..at + bytes);
        let fits = bytes <= STRIDE && self.lengths.push_back(bytes).is_ok();
        let Some(place) = place.filter(|_| fits) else {
            return false;
        };
        let (first, second) = place.split_at_mut(head.len());
        first.copy_from_slice(head);
        second.copy_from_slice(rest);
        true
    }

    /// Returns the oldest.
    pub fn first(&mut self) -> Option<&mut [u8]> {
        let (at, bytes) = (self.first * STRIDE, *self.lengths.front()?);
        self.bytes.as_mut().get_mut(at..at + bytes)
    }

    /// Drops the oldest.
    pub fn pop(&mut self) {
        if self.lengths.pop_front().is_some() {
            self.first = (self.first + 1) % MAX;
        }
    }
}

/// What is known of the pages of a VM that spans hosts, in runs of frames that go back with it.
pub struct Pages {
    /// Each has [`PAGES_IN_RUN`], the last one as many as are left.
    runs: Vec<Mfn>,
    count: usize,
}

impl Pages {
    /// Makes so many, in pieces; `None` where there is no room.
    pub fn new(count: usize, page: impl Fn(u32) -> Page) -> Option<Self> {
        let mut runs = Vec::new();
        runs.try_reserve_exact(count.div_ceil(PAGES_IN_RUN)).ok()?;
        let mut pages = Self { runs, count: 0 };
        for n in 0..count {
            if n % PAGES_IN_RUN == 0 {
                let order = order_of(count - n);
                let run = frames::allocate(cpu::this().node, order, Purpose::Hypervisor)?;
                pages.runs.push(run);
            }
            if n % PAGES_AT_ONCE == 0 {
                stretch::look(Kind::Control);
            }
            pages.count = n + 1;
            // SAFETY: see `place`.
            unsafe { pages.place(n).write(page(n as u32)) };
        }
        Some(pages)
    }

    /// Where a page's entry is: below `count`, inside a run, which the pool gave to nobody else and EL2 maps one to one;
    /// aligned, as 32 divides a frame. Nothing but this names the frames until they go back.
    fn place(&self, n: usize) -> *mut Page {
        assert!(n < self.count, "page {n} of {}", self.count);
        let run = self.runs[n / PAGES_IN_RUN].address().0 as usize;
        let at = n % PAGES_IN_RUN * size_of::<Page>();
        core::ptr::with_exposed_provenance_mut(run + at)
    }
}

/// The order of frames that a run for so many pages has.
fn order_of(pages: usize) -> u8 {
    let bytes = pages.min(PAGES_IN_RUN) * size_of::<Page>();
    let frames = (bytes as u64).div_ceil(FRAME_SIZE);
    frames.next_power_of_two().ilog2() as u8
}

impl Index<usize> for Pages {
    type Output = Page;

    fn index(&self, n: usize) -> &Page {
        // SAFETY: see `place`; `new` has written it.
        unsafe { &*self.place(n) }
    }
}

impl IndexMut<usize> for Pages {
    fn index_mut(&mut self, n: usize) -> &mut Page {
        // SAFETY: as above.
        unsafe { &mut *self.place(n) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let left = |n: usize| self.count - n * PAGES_IN_RUN;
        for (n, run) in self.runs.iter().enumerate() {
            frames::free(*run, order_of(left(n)));
        }
    }
}

/// Returns the best cipher that the machine has, or is told to have.
pub fn suite(record: &ClusterRecord) -> Suite {
    match record.no_aes {
        1 => Suite::ChaCha,
        _ => cipher::best(),
    }
}

/// Makes the link to another host.
pub fn link(
    record: &ClusterRecord,
    peer: u8,
    nonce: Nonce,
) -> Option<Link<Sealer, &'static mut [u8], WINDOW>> {
    let mac = |host: u8| record.macs.get(usize::from(host)).copied();
    let settings = Settings {
        host: record.host,
        peer,
        macs: [mac(record.host)?, mac(peer)?],
        epoch: record.number,
        frame_bytes: FRAME_STANDARD,
        timeout_floor_ns: TIMEOUT_FLOOR_NS,
        delay_ns: ACK_DELAY_NS,
        hello_ns: HELLO_NS,
        is_open: record.is_open == 1,
        suite: suite(record),
    };
    let mut rest = take(LINK_ORDER)?;
    let mut part = |lane: Lane| {
        let bytes = lane.buffer_bytes(WINDOW, FRAME_STANDARD);
        rest.split_off_mut(..bytes)
    };
    let mut both = || Some([part(Lane::Urgent)?, part(Lane::Bulk)?]);
    let buffers = [both()?, both()?];
    Link::new(settings, Secret(record.key), buffers, nonce)
}

/// Takes memory of this CPU's node, for ever.
fn take(order: u8) -> Option<&'static mut [u8]> {
    let first = frames::take_for_el2(cpu::this().node, order)?;
    let start = core::ptr::with_exposed_provenance_mut(first.address().0 as usize);
    // SAFETY: these frames were just taken from the pool for EL2, which maps them one to one, and never go back; nothing
    // else names them.
    Some(unsafe { core::slice::from_raw_parts_mut(start, (FRAME_SIZE as usize) << order) })
}
