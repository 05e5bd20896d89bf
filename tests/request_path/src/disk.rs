//! A disk of any kind behind its virtio-blk device, and the physical disks that it may be on.

use crate::host::{Host, Partition, Tables};
use crate::{Guest, Image};
use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, Gfn, Mfn, NodeId, VmId};
use model_address_space::Frames;
use model_disk::{
    Backing, Base, Budget, Bytes, CowDisk, DATA_AT_ONCE, Io, Loaded, Pass, Piece, Progress, Side,
    Transfer, Turn, execute, fill,
};
use model_frame_table::{Owner, Purpose};
use model_virtio::Transport;
use model_virtio::blk::{Blk, Next, Options, Request, SECTOR_SIZE, Status};

/// A disk as a user of frames has a number that no guest frame has.
const DISK: Gfn = Gfn(0xffff_ff00);
/// A buffer: 32 frames, of which those behind the data of a transfer hold what was there before.
const BUFFER_ORDER: u8 = 5;
const STALE: u8 = 0x5a;
/// Steps of one request, which ends long before.
const STEPS_MAX: u32 = 10_000;

/// What a disk is made of.
pub enum Kind<'a> {
    /// An image, and what the VM writes over it in frames.
    Cow(&'a Image),
    /// A partition that many read, and what the VM writes over it in frames.
    CowPartition(Partition<'a>),
    /// An image, and what the VM writes over it in slots of a partition.
    CowOn(&'a Image, Partition<'a>),
    /// A partition that many read, and what the VM writes over it in slots of another.
    CowPartitionOn(Partition<'a>, Partition<'a>),
    /// An image that nobody writes.
    ReadOnly(&'a Image),
    /// A partition that is the VM's alone.
    Persistent(Partition<'a>),
}

/// A disk behind a virtio-blk device.
pub struct Disk<'a> {
    /// The device, as the guest's driver reaches it.
    pub transport: Transport<Blk>,
    frames: &'a FakeFrames,
    /// Bytes.
    size: u64,
    backing: Backing<Host<'a>>,
    tables: Tables,
    /// The buffers for the base's partition and for the overlay's.
    buffers: [Mfn; 2],
    /// The passes that the last request took.
    passes: u32,
    /// Pages that it paid for, and bytes that it really moved.
    paid: (u32, u64),
    is_past: fn(u32) -> bool,
}

impl<'a> Disk<'a> {
    /// A disk of `vm` that looks like `image` at first and keeps `limit` blocks.
    pub fn new(frames: &'a FakeFrames, image: &'a Image, vm: VmId, limit: u64) -> Self {
        Self::of(frames, Kind::Cow(image), vm, limit)
    }

    /// A disk of `vm` of that kind, which keeps `limit` blocks of its own over a base.
    pub fn of(frames: &'a FakeFrames, kind: Kind<'a>, vm: VmId, limit: u64) -> Self {
        Self::numbered(frames, kind, (vm, 0), limit)
    }

    /// The same, which is that disk of the VM's.
    pub fn numbered(frames: &'a FakeFrames, kind: Kind<'a>, of: (VmId, u64), limit: u64) -> Self {
        Self::sized(frames, kind, of, (None, limit))
    }

    /// The same, of so many bytes, which may be more than its base has.
    pub fn sized(
        frames: &'a FakeFrames,
        kind: Kind<'a>,
        (vm, number): (VmId, u64),
        (size, limit): (Option<u64>, u64),
    ) -> Self {
        let (tables, gfn) = (Tables::default(), DISK.add(number));
        let cow = |base: Base<Host<'a>>, store| {
            let (size, user) = (size.unwrap_or(base.size()), Owner { vm, gfn });
            let place = (Host(frames), tables.clone());
            let disk = CowDisk::new((base, store), (size, limit * FRAME_SIZE), place, user, true);
            (Backing::Cow(disk.unwrap()), size)
        };
        let (backing, size) = match kind {
            Kind::Cow(image) => cow(Base::Image(image), None),
            Kind::CowPartition(base) => cow(Base::Partition(Box::new(base)), None),
            Kind::CowOn(image, store) => cow(Base::Image(image), Some(Box::new(store))),
            Kind::CowPartitionOn(base, store) => {
                cow(Base::Partition(Box::new(base)), Some(Box::new(store)))
            }
            Kind::ReadOnly(image) => (Backing::ReadOnly(image, true), image.blocks() * FRAME_SIZE),
            Kind::Persistent(partition) => {
                let size = partition.len() as u64;
                (Backing::Partition(Box::new(partition)), size)
            }
        };
        let options = Options {
            capacity: size / SECTOR_SIZE,
            read_only: matches!(backing, Backing::ReadOnly(..)),
            discard: matches!(backing, Backing::Cow(_)),
            ..Options::default()
        };
        let mut disk = Self {
            transport: Transport::new(Blk::new(options)),
            frames,
            size,
            backing,
            tables,
            buffers: [Mfn(0); 2],
            passes: 0,
            paid: (0, 0),
            is_past: |_| false,
        };
        for (buffer, side) in [Side::Base, Side::Overlay].into_iter().enumerate() {
            if disk.backing.partition(side).is_some() {
                let taken = frames.allocate(NodeId(0), BUFFER_ORDER, Purpose::Hypervisor);
                disk.buffers[buffer] = taken.unwrap();
                frames.zero(disk.buffers[buffer], 1 << BUFFER_ORDER);
                disk.spoil(disk.buffers[buffer]);
            }
        }
        disk
    }

    /// Lets allocations of the overlay's tables fail, as [`machine_fake::FakeTables::fail_after`].
    pub fn fail_tables_after(&mut self, successes: Option<u64>) {
        self.tables.fail_after(successes);
    }

    /// From now on others use nothing that it holds, and it nothing of theirs.
    pub fn keep_alone(&mut self) {
        if let Backing::Cow(disk) = &mut self.backing {
            disk.share = false;
        }
    }

    /// From now on each pass ends after one piece of work.
    pub fn take_long(&mut self) {
        self.is_past = |_| true;
    }

    /// How many passes the last request took, transfers apart.
    pub fn passes(&self) -> u32 {
        self.passes
    }

    /// Pages that the last request has paid for, as they may have got a frame, and bytes that a limited rate
    /// counts of it.
    pub fn paid(&self) -> (u32, u64) {
        self.paid
    }

    /// Serves every request that the driver has made available; how many were answered.
    pub fn serve(&mut self, guest: &Guest<'_>) -> usize {
        let mut request = Request::default();
        for answered in 0.. {
            match self.transport.next_request(guest, &mut request) {
                Next::Empty => return answered,
                Next::Answered => {}
                Next::Request => {
                    let status = self.execute(guest, &request);
                    self.transport.complete(guest, &request, status);
                }
            }
        }
        0
    }

    /// Does a request as EL2 does, with no other at the same time.
    fn execute(&mut self, guest: &Guest<'_>, request: &Request) -> Status {
        let mut progress = Progress::new(true);
        let mut loaded = None;
        (self.passes, self.paid) = (0, (0, 0));
        for _ in 0..STEPS_MAX {
            let mut budget = Budget::until(self.is_past);
            let mut pass = Pass {
                machine: Host(self.frames),
                guest,
                budget: &mut budget,
            };
            let backing = &mut self.backing;
            let mut turn = execute(&mut pass, backing, request, &mut progress, loaded);
            self.passes += 1;
            self.paid = (self.paid.0 + budget.pages(), progress.moved.unwrap_or(0));
            while let Turn::Needs(side, io) = turn {
                match self.transfer((guest, request), &mut progress, (side, io), loaded) {
                    Ok(brought) => {
                        loaded = Some(brought);
                        break;
                    }
                    Err(next) => (turn, loaded) = (next, None),
                }
            }
            match turn {
                Turn::Done(status) => return status,
                Turn::Later => loaded = None,
                Turn::Needs(..) | Turn::More => {}
            }
        }
        // Somebody waits for memory for ever.
        Status::IoError
    }

    /// Lets a physical disk do what a request needs.
    fn transfer(
        &mut self,
        (guest, request): (&Guest<'_>, &Request),
        progress: &mut Progress,
        (side, io): (Side, Io),
        mut loaded: Option<Loaded>,
    ) -> Result<Loaded, Turn> {
        let page = self.buffers[side as usize];
        if loaded.is_none_or(|loaded| loaded.page != page) {
            self.spoil(page);
        }
        let io = loop {
            let mut budget = Budget::until(self.is_past);
            let mut pass = Pass {
                machine: Host(self.frames),
                guest,
                budget: &mut budget,
            };
            let (backing, what) = (&mut self.backing, (request, &mut *progress));
            match fill(&mut pass, backing, what, (io, page), loaded) {
                // Only the buffer is kept for the next pass.
                Err(Turn::More) => loaded = None,
                filled => break filled?,
            }
            self.passes += 1;
        };
        let failed = Err(Turn::Done(Status::IoError));
        let partition = self.backing.partition(side).unwrap();
        let (at, len) = ((io.sector * SECTOR_SIZE) as usize, io.bytes as usize);
        if io.bytes > DATA_AT_ONCE || at + len > partition.len() || !partition.works() {
            return failed;
        }
        let (host, all) = (Host(self.frames), Bytes::frames(page, 1 << BUFFER_ORDER));
        let data = all.part(0, io.bytes).unwrap();
        match io.operation {
            Transfer::Read => {
                let mut bytes = vec![0; len];
                partition.load(at, &mut bytes);
                host.store(data, &bytes);
            }
            Transfer::Write => partition.store(at, &host.load(data)),
            Transfer::Flush => partition.flush(),
        }
        // The status is behind the data.
        host.store(all.part(io.bytes, 1).unwrap(), &[0]);
        Ok(Loaded { page, side, io })
    }

    fn spoil(&self, buffer: Mfn) {
        let all = Bytes::frames(buffer, 1 << BUFFER_ORDER);
        Host(self.frames).store(all, &vec![STALE; all.len() as usize]);
    }

    /// The disk's contents, past the device.
    pub fn contents(&self) -> Vec<u8> {
        let disk = match &self.backing {
            Backing::Partition(partition) => return partition.bytes(),
            Backing::ReadOnly(image, _) => return self.image(image),
            Backing::Cow(disk) => disk,
        };
        let base = match &disk.base {
            Base::Image(image) => self.image(image),
            Base::Partition(partition) => partition.bytes(),
        };
        let page = FRAME_SIZE as usize;
        let block = |at: usize| match disk.locate(at as u64) {
            Piece::Base => base[at..at + page].to_vec(),
            Piece::Frame(frame) => self.frames.contents(frame).unwrap(),
            Piece::Stored(slot) => {
                let mut bytes = vec![0; page];
                let store = disk.store().unwrap();
                store.load(slot as usize * page, &mut bytes);
                bytes
            }
            Piece::Zero => vec![0; page],
        };
        let size = self.size;
        let blocks = (0..size as usize).step_by(page).flat_map(block);
        blocks.take(size as usize).collect()
    }

    fn image(&self, image: &Image) -> Vec<u8> {
        let block = |block| match image.frame(block) {
            Some(frame) => self.frames.contents(frame).unwrap(),
            None => vec![0; FRAME_SIZE as usize],
        };
        (0..image.blocks()).flat_map(block).collect()
    }

    /// Gives all memory back; how many tables are left then.
    pub fn end(self) -> usize {
        for buffer in self.buffers.into_iter().filter(|buffer| *buffer != Mfn(0)) {
            Frames::free(self.frames, buffer, BUFFER_ORDER);
        }
        if let Backing::Cow(disk) = self.backing {
            let mut remains = disk.dismantle();
            while !remains.step(100) {}
        }
        self.tables.in_use()
    }
}
