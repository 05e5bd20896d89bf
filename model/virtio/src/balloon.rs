//! The traditional memory balloon (virtio 5.5), with free page reporting.
//!
//! ```text
//!  owner: set_target ──> num_pages, config interrupt ──> driver takes pages from its allocator
//!  owner: release <── runs of frames <── serve <── inflateq, reporting_vq
//!                                          └─ the buffer goes back only after its frames did
//! ```
//!
//! A page that is in the balloon, or that was reported free, holds nothing: its frame may be taken
//! away, and a touch brings a zero page. So the deflate queue needs no work, and these features
//! are not offered:
//!
//! - `MUST_TELL_HOST`: a page that is used before it is deflated is filled by the touch.
//! - `DEFLATE_ON_OOM`: the guest would take back what it owes whenever it likes, and Linux does
//!   not lower `MemTotal` with it.
//! - `FREE_PAGE_HINT`: reporting does more, without a sweep over all free memory.
//! - `PAGE_POISON`: reported pages come back as zeroes.
//! - `STATS_VQ`: EL2 decides by what it sees of the memory, not by what a guest says of it.
//!
//! **How long a report is held.** A driver keeps reported pages off its free lists until it has the
//! buffer back; from then on it may write them without a word. So the only time that a frame can
//! stay bound after its report is while its *buffer* is held: a report held is a page that neither
//! side uses. [`Transport::set_hold`] says how long; zero, the default, is at once. As Linux has
//! one buffer of 32 ranges under way, holding also bounds how fast it reports.
//!
//! Page numbers are allegations: what is not memory, or stands twice in one piece, is counted in
//! [`Counts::refused`] and left out.

use crate::{Chain, Device, Queue, QueueError, Transport};
use heapless::Vec;
use machine_contract::GuestMemory;
use model_addr::{FRAME_SIZE, Gfn, Ipa};

/// Most runs that an owner gets to release at a time.
pub const MAX_RUNS: usize = 64;

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
/// The third, as queues of features that are not offered do not count (Linux, QEMU).
const REPORTING: usize = 2;

/// `VIRTIO_BALLOON_F_PAGE_REPORTING` (virtio 5.5.3).
const F_PAGE_REPORTING: u64 = 1 << 5;

/// Page numbers read at a time, and released in one step: each may be a run of its own.
const NUMBERS: usize = 16;
/// A report is cut here at least, so that whole blocks stay whole and no run has more than 512 frames.
const BLOCK: u64 = 2 << 20;

/// Where `actual` is in `struct virtio_balloon_config` (virtio 5.5.4); `num_pages` is before it.
const ACTUAL: core::ops::Range<usize> = 4..8;

/// Guest frames in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub first: Gfn,
    /// How many.
    pub count: u64,
}

/// Why a run is to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is in the balloon until the driver deflates it.
    Inflated,
    /// It is free; the driver may use it again at any time, without a word.
    Reported,
}

/// Pages since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Put into the balloon.
    pub inflated: u64,
    /// Taken out of it, as the driver says.
    pub deflated: u64,
    /// Reported free.
    pub reported: u64,
    /// Numbers and ranges that are not whole pages of memory, or stood twice in one piece.
    pub refused: u64,
}

/// A request that may take several calls.
#[derive(Clone, Debug, Default)]
struct Pending {
    chain: Chain,
    /// Whether `chain` is owed to the driver.
    open: bool,
}

impl Pending {
    /// Takes the next chain, if the last one is done; whether there is one to work on.
    fn open(
        &mut self,
        queue: &mut Queue,
        memory: &impl GuestMemory,
        budget: &mut u64,
    ) -> Result<bool, QueueError> {
        if !self.open && queue.pop(memory, &mut self.chain)? {
            self.open = true;
            *budget = budget.saturating_sub(self.chain.segment_count() as u64);
        }
        Ok(self.open)
    }

    /// Hands the chain back.
    fn close(&mut self, queue: &mut Queue, memory: &impl GuestMemory) -> Result<(), QueueError> {
        self.open = false;
        queue.push_used(memory, self.chain.head(), 0)
    }
}

/// A balloon. About 7 KiB.
#[derive(Clone, Debug, Default)]
pub struct Balloon {
    config: [u8; 8],
    inflating: Pending,
    reporting: Pending,
    /// What is done with in one go.
    scratch: Chain,
    counts: Counts,
    hold: u64,
    due: u64,
}

impl Balloon {
    /// Pages that should be in the balloon.
    pub fn target(&self) -> u32 {
        u32::from_le_bytes(self.config[..4].try_into().unwrap_or_default())
    }

    /// Pages so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// When the report that is held is due; `None` if none is.
    pub fn due(&self) -> Option<u64> {
        self.reporting.open.then_some(self.due)
    }
}

impl Device for Balloon {
    const ID: u32 = 5;
    // Linux reports up to 32 ranges in a buffer and wants as many entries.
    const QUEUE_SIZES: &'static [u16] = &[64; 3];

    fn features(&self) -> u64 {
        F_PAGE_REPORTING
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn write_config(&mut self, at: usize, bytes: &[u8]) {
        let Some(end) = at.checked_add(bytes.len()) else {
            return;
        };
        if at >= ACTUAL.start && end <= ACTUAL.end {
            self.config[at..end].copy_from_slice(bytes);
        }
    }

    fn reset(&mut self) {
        self.config[ACTUAL].fill(0);
        self.inflating.open = false;
        self.reporting.open = false;
    }

    fn own(&self) -> [u64; 2] {
        [u64::from_le_bytes(self.config), 0]
    }

    fn set_own(&mut self, [config, none]: [u64; 2], _: u64) -> bool {
        self.config = config.to_le_bytes();
        none == 0
    }

    fn put_back(&mut self, queues: &mut [Queue]) {
        for (n, pending) in [
            (INFLATE, &mut self.inflating),
            (REPORTING, &mut self.reporting),
        ] {
            queues[n].put_back(core::mem::take(&mut pending.open).into());
        }
    }
}

impl Transport<Balloon> {
    /// Asks for `pages` of 4 KiB in the balloon. The driver follows when it likes, or not.
    pub fn set_target(&mut self, pages: u32) {
        if pages != self.device.target() {
            self.device.config[..ACTUAL.start].copy_from_slice(&pages.to_le_bytes());
            self.config_changed();
        }
    }

    /// Reports are held for `time` in the unit of [`Self::serve`]'s `now`; the next one is.
    pub fn set_hold(&mut self, time: u64) {
        self.device.hold = time;
    }

    /// Goes through the queues, for at most `budget` pages; whether there is more to do now. What is `release`d is whole
    /// pages of memory in runs, at most [`MAX_RUNS`] at a time; when it returns, the owner has done with them what it
    /// wants. 2 MiB of which `is_block` holds for the first page are not cut: they go in one step, whatever is left of
    /// the budget. `now` is any clock of the owner's; a report that is held until [`Balloon::due`] needs a call by then.
    pub fn serve(
        &mut self,
        memory: &impl GuestMemory,
        now: u64,
        mut budget: u64,
        is_block: impl Fn(Gfn) -> bool,
        mut release: impl FnMut(Source, &[Run]),
    ) -> bool {
        let reports = self.has_negotiated(F_PAGE_REPORTING);
        let left = &mut budget;
        self.with_queue(memory, DEFLATE, |device, queue| {
            device.deflate(queue, memory, left)
        });
        self.with_queue(memory, INFLATE, |device, queue| {
            let release = |runs: &[Run]| release(Source::Inflated, runs);
            device.inflate(queue, memory, left, release)
        });
        if reports {
            self.with_queue(memory, REPORTING, |device, queue| {
                let release = |runs: &[Run]| release(Source::Reported, runs);
                device.report(queue, memory, now, left, is_block, release)
            });
        }
        budget == 0 && self.is_live()
    }
}

impl Balloon {
    fn deflate(
        &mut self,
        queue: &mut Queue,
        memory: &impl GuestMemory,
        budget: &mut u64,
    ) -> Result<(), QueueError> {
        while *budget > 0 && queue.pop(memory, &mut self.scratch)? {
            *budget = budget.saturating_sub(self.scratch.segment_count() as u64);
            self.counts.deflated += u64::from(self.scratch.readable_bytes() / 4);
            queue.push_used(memory, self.scratch.head(), 0)?;
        }
        Ok(())
    }

    fn inflate(
        &mut self,
        queue: &mut Queue,
        memory: &impl GuestMemory,
        budget: &mut u64,
        mut release: impl FnMut(&[Run]),
    ) -> Result<(), QueueError> {
        while *budget > 0 && self.inflating.open(queue, memory, budget)? {
            let mut raw = [0; 4 * NUMBERS];
            let count = NUMBERS.min(usize::try_from(*budget).unwrap_or(NUMBERS));
            let read = self.inflating.chain.read(memory, &mut raw[..4 * count]);
            // Where its numbers are not to be had yet, the chain is the next one again.
            self.inflating.open = read.is_ok();
            let read = read?;
            *budget = budget.saturating_sub(read as u64 / 4);
            self.take_numbers(memory, &raw[..read], &mut release);
            if self.inflating.chain.readable().is_empty() {
                self.inflating.close(queue, memory)?;
            }
        }
        Ok(())
    }

    /// Releases the pages with these little-endian numbers. A driver names them as its allocator
    /// gave them; in order they make fewer runs, and twins meet.
    fn take_numbers(
        &mut self,
        memory: &impl GuestMemory,
        raw: &[u8],
        release: &mut impl FnMut(&[Run]),
    ) {
        let (words, rest) = raw.as_chunks::<4>();
        let mut numbers = [0; NUMBERS];
        let count = words.len().min(NUMBERS);
        for (number, word) in numbers.iter_mut().zip(words) {
            *number = u32::from_le_bytes(*word);
        }
        let numbers = &mut numbers[..count];
        numbers.sort_unstable();
        let mut runs = Runs::default();
        let mut last = None;
        let mut refused = u64::from(!rest.is_empty());
        for &mut number in numbers {
            let gfn = Gfn(number.into());
            if last.replace(gfn) == Some(gfn) || !memory.contains(gfn.address(), FRAME_SIZE) {
                refused += 1;
            } else {
                self.counts.inflated += 1;
                runs.add(gfn, 1, release);
            }
        }
        self.counts.refused += refused;
        runs.flush(release);
    }

    fn report(
        &mut self,
        queue: &mut Queue,
        memory: &impl GuestMemory,
        now: u64,
        budget: &mut u64,
        is_block: impl Fn(Gfn) -> bool,
        mut release: impl FnMut(&[Run]),
    ) -> Result<(), QueueError> {
        while *budget > 0 {
            let is_new = !self.reporting.open;
            if !self.reporting.open(queue, memory, budget)? {
                break;
            }
            if is_new {
                self.due = now.saturating_add(self.hold);
            }
            if now < self.due {
                break;
            }
            self.take_ranges(budget, &is_block, &mut release);
            if self.reporting.chain.writable().is_empty() {
                self.reporting.close(queue, memory)?;
            }
        }
        Ok(())
    }

    /// Releases the whole pages of reported ranges, which the queue knows to be memory.
    fn take_ranges(
        &mut self,
        budget: &mut u64,
        is_block: impl Fn(Gfn) -> bool,
        release: &mut impl FnMut(&[Run]),
    ) {
        let mut runs = Runs::default();
        while *budget > 0
            && let Some(segment) = self.reporting.chain.writable().first()
        {
            let whole = segment.ipa.is_aligned(BLOCK) && u64::from(segment.len) >= BLOCK;
            let most = if whole && is_block(segment.ipa.frame()) {
                BLOCK
            } else {
                budget.saturating_mul(FRAME_SIZE) - segment.ipa.0 % FRAME_SIZE
            };
            let in_block = BLOCK - segment.ipa.0 % BLOCK;
            let piece = most.min(in_block).min(segment.len.into());
            let (start, end) = (segment.ipa, Ipa(segment.ipa.0 + piece));
            self.reporting.chain.skip_writable(piece as u32);
            let first = start.align_up(FRAME_SIZE).unwrap_or(end).frame();
            let count = end.frame().0.saturating_sub(first.0);
            let whole = start.is_aligned(FRAME_SIZE) && end.is_aligned(FRAME_SIZE);
            self.counts.refused += u64::from(!whole);
            self.counts.reported += count;
            *budget = budget.saturating_sub(count.max(1));
            if count > 0 {
                runs.add(first, count, release);
            }
        }
        runs.flush(release);
    }
}

/// Runs that wait to be released together.
#[derive(Default)]
struct Runs(Vec<Run, MAX_RUNS>);

impl Runs {
    /// Adds to the last run, or as a new one.
    fn add(&mut self, first: Gfn, count: u64, release: &mut impl FnMut(&[Run])) {
        if let Some(last) = self.0.last_mut()
            && last.first.add(last.count) == first
        {
            last.count += count;
            return;
        }
        if self.0.is_full() {
            self.flush(release);
        }
        // There is room: a full list was just emptied.
        let _ = self.0.push(Run { first, count });
    }

    fn flush(&mut self, release: &mut impl FnMut(&[Run])) {
        if !self.0.is_empty() {
            release(&self.0);
            self.0.clear();
        }
    }
}
