//! A disk over a base image, and its virtio-blk device.

use machine_contract::{FrameSource, GuestMemory, TableMemory};
use machine_fake::{FakeFrames, FakeTables};
use model_addr::{FRAME_SIZE, Ipa, Mfn, NodeId};
use model_address_space::Frames;
use model_disk_overlay::{Block, Fill, Overlay, WritePlan};
use model_frame_table::Purpose;
use model_virtio::Transport;
use model_virtio::blk::{Blk, Next, Operation, Options, Request, SECTOR_SIZE, Status};

/// Memory of an overlay: frames of the machine, tables apart.
struct Memory<'a> {
    frames: &'a FakeFrames,
    tables: FakeTables,
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
        let frame = self.frames.allocate(NodeId(0), 0, Purpose::Hypervisor)?;
        self.frames.zero(frame, 1);
        Some(frame)
    }
    fn free_frame(&mut self, frame: Mfn) {
        self.frames.free(frame, 0);
    }
}

/// A copy-on-write disk behind a virtio-blk device.
pub struct Disk<'a> {
    /// The device, as the guest's driver reaches it.
    pub transport: Transport<Blk>,
    base: Vec<u8>,
    overlay: Overlay,
    memory: Memory<'a>,
}

impl<'a> Disk<'a> {
    /// A disk of whole 4 KiB blocks that looks like `base` at first and keeps `limit` blocks.
    pub fn new(frames: &'a FakeFrames, base: Vec<u8>, limit: u64) -> Self {
        let blocks = base.len() as u64 / FRAME_SIZE;
        let options = Options {
            capacity: base.len() as u64 / SECTOR_SIZE,
            ..Options::default()
        };
        Self {
            transport: Transport::new(Blk::new(options)),
            overlay: Overlay::new(blocks, blocks, limit).unwrap(),
            base,
            memory: Memory {
                frames,
                tables: FakeTables::new(),
            },
        }
    }

    /// Lets allocations of the overlay's tables fail, as [`FakeTables::fail_after`].
    pub fn fail_tables_after(&mut self, successes: Option<u64>) {
        self.memory.tables.fail_after(successes);
    }

    /// Serves every request that the driver has made available; how many were answered.
    pub fn serve(&mut self, guest: &impl GuestMemory) -> usize {
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
        let mut bytes = vec![0; self.base.len()];
        for (block, into) in (0..).zip(bytes.chunks_mut(FRAME_SIZE as usize)) {
            self.load(block * FRAME_SIZE, into);
        }
        bytes
    }

    /// Gives all memory back; how many tables are left then.
    pub fn end(self) -> usize {
        let (mut teardown, mut memory) = (self.overlay.into_teardown(), self.memory);
        while !teardown.step(&mut memory, 100) {}
        memory.tables.in_use()
    }

    fn execute(&mut self, guest: &impl GuestMemory, request: &Request) -> Option<()> {
        let (mut at, is_write) = match request.operation() {
            Operation::Read { sector } => (sector * SECTOR_SIZE, false),
            Operation::Write { sector } => (sector * SECTOR_SIZE, true),
            Operation::Flush => return Some(()),
            Operation::Discard | Operation::WriteZeroes => return None,
        };
        for segment in request.data() {
            let end = at + u64::from(segment.len);
            let mut ipa = segment.ipa;
            while at < end {
                let piece = (end - at).min(FRAME_SIZE - at % FRAME_SIZE);
                let mut bytes = vec![0; piece as usize];
                if is_write {
                    guest.read(ipa, &mut bytes).ok()?;
                    self.store(at, &bytes)?;
                } else {
                    self.load(at, &mut bytes);
                    guest.write(ipa, &bytes).ok()?;
                }
                at += piece;
                ipa = Ipa(ipa.0 + piece);
            }
        }
        Some(())
    }

    /// Reads bytes of one block.
    fn load(&self, at: u64, into: &mut [u8]) {
        match self.overlay.lookup(&self.memory, at / FRAME_SIZE) {
            Block::Base => into.copy_from_slice(&self.base[at as usize..][..into.len()]),
            Block::Data(frame) => self.memory.frames.load(frame, at % FRAME_SIZE, into),
            Block::Zero => into.fill(0),
        }
    }

    /// Writes bytes of one block; `None` where there is no room, and nothing was changed.
    fn store(&mut self, at: u64, bytes: &[u8]) -> Option<()> {
        let (block, offset) = (at / FRAME_SIZE, at % FRAME_SIZE);
        let whole = bytes.len() as u64 == FRAME_SIZE;
        let plan = self
            .overlay
            .prepare_write(&mut self.memory, block, whole)
            .ok()?;
        match plan {
            WritePlan::InPlace(frame) => self.memory.frames.store(frame, offset, bytes),
            WritePlan::New(new) => {
                if new.fill() == Fill::Base {
                    let start = (block * FRAME_SIZE) as usize;
                    let old = &self.base[start..start + FRAME_SIZE as usize];
                    self.memory.frames.store(new.frame(), 0, old);
                }
                self.memory.frames.store(new.frame(), offset, bytes);
                self.overlay.commit(&mut self.memory, new).ok()?;
            }
        }
        Some(())
    }
}
