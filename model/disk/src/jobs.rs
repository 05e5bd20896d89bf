//! What a physical disk is at: transfers by the buffer that each has, who does them ([`Lane`]), and who waits for them.
//!
//! Paging asks here before it takes a page from a VM: one that a transfer under way will fill, or a request will
//! go on with, stays.

use crate::{DATA_AT_ONCE, Io};
use core::any::Any;
use model_addr::{Gfn, VmId};
use model_virtio::blk::{Request, SECTOR_SIZE};

/// A request of a VM that is under way.
pub trait UnderWay {
    /// Whose it is.
    fn vm(&self) -> VmId;
    /// What is asked for.
    fn request(&self) -> &Request;
}

/// Who hears of a transfer's end.
#[derive(Debug)]
pub enum Job<R, P> {
    /// A disk of a VM, which is at a part of a request.
    Request(R),
    /// A VM, of which a page comes or goes.
    Page(P),
}

/// What a buffer in the device's hands is for.
#[derive(Debug)]
pub struct Lent<R, P> {
    /// The partition's number on the machine.
    pub partition: u8,
    /// What was asked.
    pub io: Io,
    /// Who asked.
    pub job: Job<R, P>,
}

/// Where a partition lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number on the machine, from 1 on.
    pub number: u8,
    /// Its first sector on its disk.
    pub first: u64,
    /// Its sectors.
    pub sectors: u64,
}

impl Place {
    /// The place of partition `number`, from sector `first` on.
    pub const fn new(number: usize, first: u64, sectors: u64) -> Self {
        let number = number as u8;
        Self {
            number,
            first,
            sectors,
        }
    }
}

/// A way to have transfers done: a device that EL2 drives, or somebody who serves a disk. It has its own buffers, one
/// for each transfer; how one is laid out for whoever does it is its own affair.
pub trait Lane: Any {
    /// A buffer for data.
    type Buffer;

    /// Takes a free buffer, to be filled and asked with, or released; `None` where no more than `kept` are free.
    fn claim(&mut self, kept: usize) -> Option<(usize, Self::Buffer)>;
    /// Gives back a claimed buffer.
    fn release(&mut self, buffer: usize);
    /// Asks for a transfer between a claimed buffer and a partition; `false` where the buffer stays claimed, and nobody
    /// hears of it.
    fn ask(&mut self, buffer: usize, place: &Place, io: Io) -> bool;
    /// A buffer that comes back, claimed, and whether what was asked of it (`io_of` knows that) is done.
    fn take_back(
        &mut self,
        io_of: &dyn Fn(usize) -> Option<Io>,
    ) -> Option<(usize, Self::Buffer, bool)>;
    /// Tells the device that its interrupt has come.
    fn acknowledge(&mut self) {}
}

/// The transfers under way, at most one for each of `N` buffers.
#[derive(Debug)]
pub struct Jobs<R, P, const N: usize>([Option<Lent<R, P>>; N]);

impl<R, P, const N: usize> Default for Jobs<R, P, N> {
    fn default() -> Self {
        Self([const { None }; N])
    }
}

impl<R: UnderWay, P, const N: usize> Jobs<R, P, N> {
    /// Asks for a transfer with a claimed buffer, which `job` hears of. The job comes back, and the buffer stays claimed,
    /// where the transfer is not within the partition, or the lane does not take it.
    pub fn begin(
        &mut self,
        lane: &mut (impl Lane + ?Sized),
        (buffer, place): (usize, &Place),
        io: Io,
        job: Job<R, P>,
    ) -> Result<(), Job<R, P>> {
        let end = io.sector.checked_add(io.bytes.div_ceil(SECTOR_SIZE));
        let is_within = end.is_some_and(|end| end <= place.sectors) && io.bytes <= DATA_AT_ONCE;
        if !(is_within && lane.ask(buffer, place, io)) {
            return Err(job);
        }
        let partition = place.number;
        self.lend(buffer, Lent { partition, io, job });
        Ok(())
    }

    /// A buffer is the device's from now on.
    pub fn lend(&mut self, buffer: usize, lent: Lent<R, P>) {
        self.0[buffer % N] = Some(lent);
    }

    /// A buffer came back; what it was for.
    pub fn take(&mut self, buffer: usize) -> Option<Lent<R, P>> {
        self.0.get_mut(buffer)?.take()
    }

    /// What was asked of a buffer.
    pub fn io(&self, buffer: usize) -> Option<Io> {
        Some(self.0.get(buffer)?.as_ref()?.io)
    }

    fn all(&self) -> impl Iterator<Item = &Lent<R, P>> {
        self.0.iter().flatten()
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Whether something of a partition is under way.
    pub fn has_of(&self, partition: u8) -> bool {
        self.all().any(|lent| lent.partition == partition)
    }

    /// Whether a request of a VM that is under way uses a guest frame. A page that comes or goes keeps its own.
    pub fn uses(&self, vm: VmId, gfn: Gfn) -> bool {
        self.all().any(|lent| match &lent.job {
            Job::Request(request) => request.vm() == vm && request.request().uses(gfn),
            Job::Page(_) => false,
        })
    }

    /// The pages that come or go.
    pub fn pages(&mut self) -> impl Iterator<Item = &mut P> {
        self.0
            .iter_mut()
            .flatten()
            .filter_map(|lent| match &mut lent.job {
                Job::Page(page) => Some(page),
                Job::Request(_) => None,
            })
    }
}
