//! Memory of a host: frames that wait, and the buffers of links. It is taken once, when the machine joins.

use crate::cluster::cipher::{self, Sealer};
use crate::machine::{Kind, cpu, stretch};
use crate::memory::frames;
use abi::bundle::ClusterRecord;
use abi::link::{BULK_MAX, FRAME_PAGE};
use alloc::{boxed::Box, vec::Vec};
use core::{
    mem::size_of,
    ops::{Index, IndexMut},
};
use model_addr::FRAME_SIZE;
use model_addr::Mfn;
use model_cluster::{STRANGE_MAX, Waiting};
use model_coherence::Page;
use model_frame_table::{MAX_ORDER, Purpose};
use model_link::{Lane, Link, Nonce, Secret, Settings, Suite, WINDOW};

/// Bytes of the inbox, and of a frame that leaves.
const INBOX_BYTES: usize = 2 << 20;
/// Frames that may wait.
const WAITING_MAX: usize = 1023;
// Strangers take an eighth at most, or less than a third where frames are long, but for what their budget earns meanwhile.
const _: () = assert!(WAITING_MAX as u64 >= 7 * STRANGE_MAX);
const _: () = assert!(INBOX_BYTES >= 3 * STRANGE_MAX as usize * FRAME_PAGE);
/// Messages about a VM that spans hosts that may wait.
const MESSAGES_MAX: usize = 8;
/// Bytes for them, each with its sender, and for one more: none is in two pieces.
const MESSAGES_BYTES: usize = (MESSAGES_MAX + 1) * (BULK_MAX + 1);
/// Entries in a run of frames, the longest that there is: 2 MiB.
const PAGES_IN_RUN: usize = (FRAME_SIZE as usize) << MAX_ORDER >> size_of::<Page>().ilog2();
const _: () = assert!(size_of::<Page>().is_power_of_two());
/// Entries of a table of pages that are made between two looks at interrupts.
const PAGES_AT_ONCE: usize = 1024;

/// The shortest retransmission timeout: what the other host's pass may wait for a vCPU's exit.
const TIMEOUT_FLOOR_NS: u64 = 2_000_000;
/// How long an acknowledgement waits for a message to go with.
const ACK_DELAY_NS: u64 = 500_000;
/// The first pause between hellos to a host that does not answer; it doubles to 64 times this.
const HELLO_NS: u64 = 20_000_000;

/// Frames that wait for the next pass.
pub type Inbox = Waiting<&'static mut [u8], WAITING_MAX>;
/// Messages that wait for it, each behind the number of its sender.
pub type Messages = Waiting<Box<[u8]>, MESSAGES_MAX>;

/// Makes an inbox, and room for a frame that leaves.
pub fn inbox() -> Option<(Inbox, &'static mut [u8])> {
    let (bytes, out) = take(INBOX_BYTES)?.split_at_mut(INBOX_BYTES - FRAME_PAGE);
    Some((Waiting::of(bytes), out))
}

/// Makes room for messages.
pub fn messages() -> Option<Messages> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(MESSAGES_BYTES).ok()?;
    bytes.resize(MESSAGES_BYTES, 0);
    Some(Waiting::of(bytes.into_boxed_slice()))
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
    order(pages.min(PAGES_IN_RUN) * size_of::<Page>())
}

/// The least order of frames with room for so many bytes.
fn order(bytes: usize) -> u8 {
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
        frame_bytes: record.frame_bytes(),
        timeout_floor_ns: TIMEOUT_FLOOR_NS,
        delay_ns: ACK_DELAY_NS,
        hello_ns: HELLO_NS,
        is_open: record.is_open == 1,
        suite: suite(record),
    };
    let [urgent, bulk] = Lane::ALL.map(|lane| lane.buffer_bytes(WINDOW, record.frame_bytes()));
    // One way: a run of frames has 2 MiB at most.
    let both = || {
        let (first, rest) = take(urgent + bulk)?.split_at_mut(urgent);
        Some([first, rest.get_mut(..bulk)?])
    };
    let buffers = [both()?, both()?];
    Link::new(settings, Secret(record.key), buffers, nonce)
}

/// Takes memory of this CPU's node, for ever: so many bytes, or more.
fn take(bytes: usize) -> Option<&'static mut [u8]> {
    let order = order(bytes);
    let first = frames::take_for_el2(cpu::this().node, order)?;
    let start = core::ptr::with_exposed_provenance_mut(first.address().0 as usize);
    // SAFETY: these frames were just taken from the pool for EL2, which maps them one to one, and never go back; nothing
    // else names them.
    Some(unsafe { core::slice::from_raw_parts_mut(start, (FRAME_SIZE as usize) << order) })
}
