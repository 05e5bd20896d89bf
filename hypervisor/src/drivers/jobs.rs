//! What disks are asked to do, as whoever asked has it while a disk is at it; and who is told when that has ended.

use crate::drivers::disk::{Buffer, Io};
use alloc::boxed::Box;
use machine_locks::Once;
use model_addr::{Gfn, Mfn, VmId};
use model_disk::{Budget, Loaded, Progress, Side, UnderWay};
use model_paging::Token;
use model_virtio::blk::{Request, Status};

/// Who hears of a transfer's end: a disk of a VM, or a VM of which a page comes or goes.
pub type Job = model_disk::Job<Box<Part>, Move>;

/// Who is told of a job's end: given at boot.
pub struct Ends {
    /// What that said was done with the buffer, or went wrong: the request goes on, as far as the pass allows.
    pub request: fn(Box<Part>, (Buffer, Io), bool, &mut Budget),
    /// The disk is done with a page, or could not do it.
    pub page: fn(&Move, Buffer, bool),
}

/// As they were given.
pub static ENDS: Once<Ends> = Once::new();

/// What a transfer has brought, and to where.
pub type Came = Option<(Buffer, Loaded)>;

/// A buffer that is being filled for the next transfer of a partition.
pub type Filling = (Buffer, Side, Io);

/// A request of a VM, which a physical disk may be at, or which goes on in a later pass.
pub struct Part {
    /// The VM.
    pub vm: VmId,
    /// Its virtio window.
    pub window: usize,
    /// The request.
    pub request: Request,
    /// How far it is.
    pub progress: Progress,
    /// The partition that is at it.
    pub side: Side,
    /// What a transfer has brought for it, and to where.
    pub came: Came,
    /// What goes on in the next pass.
    pub filling: Option<Filling>,
    /// When it was taken from the ring, in counts.
    pub since: u64,
    /// How it ended, and the count before which its driver is not told.
    pub end: (Status, u64),
    /// The one that waits behind it.
    pub next: Option<Box<Part>>,
}

impl Part {
    /// Of a VM's device at that window; of no request yet.
    pub fn new(vm: VmId, window: usize) -> Self {
        Self {
            vm,
            window,
            request: Request::default(),
            progress: Progress::default(),
            side: Side::default(),
            came: None,
            filling: None,
            since: 0,
            end: (Status::Ok, 0),
            next: None,
        }
    }
}

impl UnderWay for Box<Part> {
    fn vm(&self) -> VmId {
        self.vm
    }

    fn request(&self) -> &Request {
        &self.request
    }
}

/// A page on its way.
pub struct Move {
    /// Whose it is.
    pub vm: VmId,
    /// Which one.
    pub gfn: Gfn,
    /// Where on a disk.
    pub token: Token,
    /// Which way.
    pub kind: Kind,
    /// When it began, in counts.
    pub began: u64,
}

/// Which way a page goes.
pub enum Kind {
    /// Into a frame; these wait for it.
    In(u64),
    /// Out of this frame.
    Out(Mfn),
}
