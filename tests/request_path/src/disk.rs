//! A disk over an image, and its virtio-blk device.

use crate::exchange::{self, Pages};
use crate::{Guest, Image};
use machine_contract::{FrameSource, GuestMemory, TableMemory};
use machine_fake::{FakeFrames, FakeTables};
use model_addr::{FRAME_SIZE, Gfn, Ipa, Mfn, NodeId, VmId};
use model_address_space::{Access, Frames};
use model_disk_overlay::{Block, Fill, Overlay, WritePlan};
use model_frame_table::{Owner, Purpose, Use};
use model_virtio::Transport;
use model_virtio::blk::{Blk, Next, Operation, Options, Request, SECTOR_SIZE, SectorRange, Status};

/// A disk as a user of frames has a number that no guest frame has.
const DISK: Gfn = Gfn(0xffff_ff00);
/// What a frame holds that its last owner left.
const LEFT_BEHIND: [u8; FRAME_SIZE as usize] = [0xa5; FRAME_SIZE as usize];
const ZEROES: [u8; FRAME_SIZE as usize] = [0; FRAME_SIZE as usize];
/// Entries that a step of zeroing looks at.
const BUDGET: u32 = 8;

/// Memory of an overlay: frames of the machine, tables apart.
struct Memory<'a> {
    frames: &'a FakeFrames,
    tables: FakeTables,
    user: Owner,
}

impl Memory<'_> {
    fn is_shared(&self, frame: Mfn) -> bool {
        let entry = self.frames.map().entry(frame);
        entry.is_some_and(|entry| entry.state().usage == Use::Shared)
    }
}

impl TableMemory for Memory<'_> {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.tables.allocate_table()
    }
    fn free_table(&mut self, table: Mfn) {
        self.tables.free_table(table);
    }
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.tables.read(table, index)
    }
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.tables.write(table, index, value);
    }
}

impl FrameSource for Memory<'_> {
    fn allocate_frame(&mut self) -> Option<Mfn> {
        let purpose = Purpose::Private(self.user);
        let frame = self.frames.allocate(NodeId(0), 0, purpose)?;
        self.frames.zero(frame, 1);
        self.frames.store(frame, 0, &LEFT_BEHIND);
        Some(frame)
    }
    fn free_frame(&mut self, frame: Mfn) {
        if self.is_shared(frame) {
            self.frames.leave(frame, self.user);
        } else {
            self.frames.free(frame, 0);
        }
    }
}

type Between<'a> = Box<dyn Fn(&Guest<'_>) + 'a>;

/// A copy-on-write disk behind a virtio-blk device.
pub struct Disk<'a> {
    /// The device, as the guest's driver reaches it.
    pub transport: Transport<Blk>,
    image: &'a Image,
    /// What happens on another CPU after each piece of a request.
    between: Option<Between<'a>>,
    overlay: Overlay,
    memory: Memory<'a>,
}

impl<'a> Disk<'a> {
    /// A disk of `vm` that looks like `image` at first and keeps `limit` blocks.
    pub fn new(frames: &'a FakeFrames, image: &'a Image, vm: VmId, limit: u64) -> Self {
        let blocks = image.blocks();
        let options = Options {
            capacity: blocks * FRAME_SIZE / SECTOR_SIZE,
            discard: true,
            ..Options::default()
        };
        Self {
            transport: Transport::new(Blk::new(options)),
            overlay: Overlay::new(blocks, blocks, limit).unwrap(),
            image,
            between: None,
            memory: Memory {
                frames,
                tables: FakeTables::new(),
                user: Owner { vm, gfn: DISK },
            },
        }
    }

    /// Lets allocations of the overlay's tables fail, as [`FakeTables::fail_after`].
    pub fn fail_tables_after(&mut self, successes: Option<u64>) {
        self.memory.tables.fail_after(successes);
    }

    /// Lets something happen after each piece of a request, as on another CPU.
    pub fn between(&mut self, happens: impl Fn(&Guest<'_>) + 'a) {
        self.between = Some(Box::new(happens));
    }

    /// Serves every request that the driver has made available; how many were answered.
    pub fn serve(&mut self, guest: &Guest<'_>) -> usize {
        let mut request = Request::new();
        for answered in 0.. {
            match self.transport.next_request(guest, &mut request) {
                Next::Empty => return answered,
                Next::Answered => {}
                Next::Request => {
                    let done = self.execute(guest, &request);
                    let status = done.map_or(Status::IoError, |()| Status::Ok);
                    self.transport.complete(guest, &request, status);
                }
            }
        }
        0
    }

    /// The disk's contents, past the device.
    pub fn contents(&self) -> Vec<u8> {
        let blocks = (0..self.image.blocks()).flat_map(|block| match self.locate(block) {
            exchange::Block::Image(frame) | exchange::Block::Own(frame) => {
                self.memory.frames.contents(frame).unwrap()
            }
            exchange::Block::Zero => ZEROES.to_vec(),
        });
        blocks.collect()
    }

    /// Gives all memory back; how many tables are left then.
    pub fn end(self) -> usize {
        let (mut teardown, mut memory) = (self.overlay.into_teardown(), self.memory);
        while !teardown.step(&mut memory, 100) {}
        memory.tables.in_use()
    }

    fn execute(&mut self, guest: &Guest<'_>, request: &Request) -> Option<()> {
        match request.operation() {
            Operation::Read { sector } => {
                let mut pages = Pages::new(guest);
                let read = transfer(request, sector, |at, ipa, len| {
                    let read = pages.read(self.locate(at / FRAME_SIZE), at % FRAME_SIZE, ipa, len);
                    if let Some(happens) = &self.between {
                        happens(guest);
                    }
                    read
                });
                // Frames that pages have joined are theirs, or are left.
                pages.finish().and(read)
            }
            Operation::Write { sector } => transfer(request, sector, |at, ipa, len| {
                self.write_piece(guest, at, ipa, len)
            }),
            Operation::Discard | Operation::WriteZeroes => {
                let mut ranges = request.ranges().iter();
                ranges.try_for_each(|range| self.zero_range(*range))
            }
            Operation::Flush => Some(()),
        }
    }

    fn locate(&self, block: u64) -> exchange::Block {
        match self.overlay.lookup(&self.memory, block) {
            Block::Base => match self.image.frame(block) {
                Some(frame) => exchange::Block::Image(frame),
                None => exchange::Block::Zero,
            },
            Block::Data(frame) => exchange::Block::Own(frame),
            Block::Zero => exchange::Block::Zero,
        }
    }

    fn write_piece(&mut self, guest: &Guest<'_>, at: u64, ipa: Ipa, len: usize) -> Option<()> {
        let is_page = len as u64 == FRAME_SIZE && ipa.is_aligned(FRAME_SIZE);
        if is_page
            && guest.with_frame(ipa, Access::Read, |page| self.write_equal(at, page)) == Ok(true)
        {
            return Some(());
        }
        let frames = self.memory.frames;
        self.write(at, len as u64, |frame, offset| {
            let mut bytes = vec![0; len];
            guest.read(ipa, &mut bytes).ok()?;
            frames.store(frame, offset, &bytes);
            Some(())
        })
    }

    /// Writes to one block; `None` where that cannot be, and nothing was changed.
    fn write(
        &mut self,
        at: u64,
        len: u64,
        copy: impl FnOnce(Mfn, u64) -> Option<()>,
    ) -> Option<()> {
        let (block, whole) = (at / FRAME_SIZE, len == FRAME_SIZE);
        let plan = self.overlay.prepare_write(&mut self.memory, block, whole);
        let frame = match plan.ok()? {
            WritePlan::InPlace(old) => {
                let frame = self.own(block, old)?;
                copy(frame, at % FRAME_SIZE)?;
                frame
            }
            WritePlan::New(new) => {
                let (frame, frames) = (new.frame(), self.memory.frames);
                match (new.fill(), self.image.frame(block)) {
                    (Fill::Nothing, _) => {}
                    (Fill::Base, Some(page)) => {
                        frames.store(frame, 0, &frames.contents(page).unwrap());
                    }
                    _ => frames.store(frame, 0, &ZEROES),
                }
                if copy(frame, at % FRAME_SIZE).is_none() {
                    self.overlay.abandon(&mut self.memory, new);
                    return None;
                }
                self.overlay.commit(&mut self.memory, new).ok()?;
                frame
            }
        };
        let (frames, user) = (self.memory.frames, self.memory.user);
        if whole && frames.publish(frame, user) {
            frames.enlist(frame);
        }
        Some(())
    }

    /// The frame of `block`, to be written: `old`, or another one where others use that.
    fn own(&mut self, block: u64, old: Mfn) -> Option<Mfn> {
        let (frames, user) = (self.memory.frames, self.memory.user);
        if !self.memory.is_shared(old) || frames.claim(old, user) {
            return Some(old);
        }
        let new = self.memory.allocate_frame()?;
        frames.store(new, 0, &frames.contents(old).unwrap());
        self.overlay.put(&mut self.memory, block, new).unwrap();
        self.memory.free_frame(old);
        Some(new)
    }

    /// Makes the block at `at` use a frame that holds what `page` holds; whether there is one.
    fn write_equal(&mut self, at: u64, page: Mfn) -> bool {
        let frames = self.memory.frames;
        let Some(frame) = frames.join_equal(page, self.memory.user) else {
            return false;
        };
        let put = self.overlay.put(&mut self.memory, at / FRAME_SIZE, frame);
        let is_put = put.is_ok();
        if let Some(unused) = put.unwrap_or(Some(frame)) {
            self.memory.free_frame(unused);
        }
        is_put
    }

    fn zero_range(&mut self, range: SectorRange) -> Option<()> {
        let mut at = range.sector * SECTOR_SIZE;
        let end = at + u64::from(range.count) * SECTOR_SIZE;
        while at < end {
            let (block, offset) = (at / FRAME_SIZE, at % FRAME_SIZE);
            if offset == 0 && end - at >= FRAME_SIZE {
                let blocks = block..end / FRAME_SIZE;
                let reached = self.overlay.zero(&mut self.memory, blocks, BUDGET);
                at = reached.ok()? * FRAME_SIZE;
                continue;
            }
            let len = (end - at).min(FRAME_SIZE - offset);
            let frames = self.memory.frames;
            self.write(at, len, |frame, offset| {
                frames.store(frame, offset, &ZEROES[..len as usize]);
                Some(())
            })?;
            at += len;
        }
        Some(())
    }
}

/// Goes through a request's segments in pieces that lie in one block of the disk.
fn transfer(
    request: &Request,
    sector: u64,
    mut each: impl FnMut(u64, Ipa, usize) -> Option<()>,
) -> Option<()> {
    let mut at = sector * SECTOR_SIZE;
    for segment in request.data() {
        let mut done = 0;
        while done < u64::from(segment.len) {
            let left = u64::from(segment.len) - done;
            let piece = left.min(FRAME_SIZE - at % FRAME_SIZE);
            each(at, Ipa(segment.ipa.0 + done), piece as usize)?;
            done += piece;
            at += piece;
        }
    }
    Some(())
}
