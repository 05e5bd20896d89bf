//! What a physical disk is at: transfers by the buffer that each has, and who waits for them.
//!
//! Paging asks here before it takes a page from a VM: one that a transfer under way will fill, or a request will
//! go on with, stays.

use crate::Io;
use model_addr::{Gfn, VmId};
use model_virtio::blk::Request;

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

/// The transfers under way, at most one for each of `N` buffers.
#[derive(Debug)]
pub struct Jobs<R, P, const N: usize>([Option<Lent<R, P>>; N]);

impl<R, P, const N: usize> Default for Jobs<R, P, N> {
    fn default() -> Self {
        Self([const { None }; N])
    }
}

impl<R: UnderWay, P, const N: usize> Jobs<R, P, N> {
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
