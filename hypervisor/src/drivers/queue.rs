//! A virtqueue of a physical device with fixed buffers: what EL2's drivers need of virtio.

use crate::memory::frames;
use arch::frames::Ram;
use core::ptr::NonNull;
use model_addr::{FRAME_SIZE, NodeId, Pa};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceStatus, Transport as _};
use virtio_drivers::{BufferDirection, Error, Hal, PhysAddr};

/// The transport of every device that EL2 drives.
pub type Transport = MmioTransport<'static>;

/// EL2's memory as virtio-drivers asks for it: one to one, and coherent with the devices.
pub struct El2Memory;

// SAFETY: frames come from the pools, zeroed, and belong to the caller until they go back; EL2
// maps memory one to one, so machine addresses are what devices use.
unsafe impl Hal for El2Memory {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let order = pages.next_power_of_two().ilog2() as u8;
        let Some(first) = frames::take_for_el2(NodeId(0), order) else {
            return (0, NonNull::dangling());
        };
        let address = first.address().0;
        let pointer = core::ptr::with_exposed_provenance_mut(address as usize);
        (
            address,
            NonNull::new(pointer).unwrap_or(NonNull::dangling()),
        )
    }

    unsafe fn dma_dealloc(address: PhysAddr, _: NonNull<u8>, pages: usize) -> i32 {
        frames::free(Pa(address).frame(), pages.next_power_of_two().ilog2() as u8);
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        let pointer = core::ptr::with_exposed_provenance_mut(address as usize);
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr().expose_provenance() as PhysAddr
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// What the device does with a buffer.
#[derive(Clone, Copy)]
struct Lent {
    /// Its name for it, or [`NONE`].
    token: u16,
    /// It reads so many bytes, and writes so many behind them.
    reads: u32,
    writes: u32,
}

/// No token: a queue has fewer.
const NONE: u16 = u16::MAX;
const NOT_LENT: Lent = Lent {
    token: NONE,
    reads: 0,
    writes: 0,
};

/// A queue of `SIZE` descriptors and `SLOTS` buffers of whole frames. A buffer in the device's
/// hands holds, behind bytes that are skipped, what the device reads, and behind that what it
/// writes.
pub struct BufferQueue<const SIZE: usize, const SLOTS: usize> {
    /// Descriptors.
    pub queue: VirtQueue<El2Memory, SIZE>,
    /// All of them.
    pub buffers: [Ram; SLOTS],
    /// Those that are free, a bit each.
    free: u128,
    lent: [Lent; SLOTS],
    /// The buffer that was lent last with each token.
    slots: [u8; SIZE],
    number: u16,
    skip: u64,
}

impl<const SIZE: usize, const SLOTS: usize> BufferQueue<SIZE, SLOTS> {
    /// Queue `number` of the device, with buffers of 2^`order` frames of which the first `skip`
    /// bytes are not used.
    pub fn new(
        transport: &mut Transport,
        number: u16,
        order: u8,
        skip: u64,
    ) -> Result<Self, Error> {
        const { assert!(SLOTS <= 128) }
        let queue = VirtQueue::new(transport, number, false, false)?;
        let mut buffers = [Ram::EMPTY; SLOTS];
        for buffer in &mut buffers {
            let first = frames::take_for_el2(NodeId(0), order).ok_or(Error::DmaError)?;
            *buffer = frames::ram(first, 1 << order);
        }
        Ok(Self {
            queue,
            buffers,
            free: u128::MAX >> (128 - SLOTS),
            lent: [NOT_LENT; SLOTS],
            slots: [0; SIZE],
            number,
            skip,
        })
    }

    /// How many buffers are free.
    pub fn free(&self) -> usize {
        self.free.count_ones() as usize
    }

    /// Takes a free buffer, to be filled and lent, or released.
    pub fn claim(&mut self) -> Option<(usize, Ram)> {
        let slot = self.free.trailing_zeros() as usize;
        let buffer = self.buffers.get(slot)?;
        self.free &= self.free - 1;
        Some((slot, *buffer))
    }

    /// Gives back a claimed buffer.
    pub fn release(&mut self, slot: usize) {
        self.free |= 1 << slot;
    }

    /// Lends a claimed buffer to the device: it reads `reads` bytes behind those that are skipped
    /// and may write `writes` bytes behind them.
    pub fn lend(
        &mut self,
        transport: &mut Transport,
        slot: usize,
        reads: u32,
        writes: u32,
    ) -> Result<(), Error> {
        let (read, written) = parts(self.buffers[slot], self.skip, reads, writes);
        // SAFETY: the buffers are EL2's for ever and are not touched until `take_back`.
        let token = unsafe {
            match (reads, writes) {
                (_, 0) => self.queue.add(&[read], &mut []),
                (0, _) => self.queue.add(&[], &mut [written]),
                _ => self.queue.add(&[read], &mut [written]),
            }?
        };
        self.lent[slot] = Lent {
            token,
            reads,
            writes,
        };
        self.slots[usize::from(token)] = slot as u8;
        if self.queue.should_notify() {
            transport.notify(self.number);
        }
        Ok(())
    }

    /// A buffer that the device is done with, claimed now, and how many bytes it wrote.
    pub fn take_back(&mut self) -> Option<(usize, Ram, u32)> {
        let token = self.queue.peek_used()?;
        // The device names it: it may be none that it has.
        let slot = usize::from(*self.slots.get(usize::from(token))?);
        let lent = &mut self.lent[slot];
        if lent.token != token {
            return None;
        }
        let Lent { reads, writes, .. } = core::mem::replace(lent, NOT_LENT);
        let (read, written) = parts(self.buffers[slot], self.skip, reads, writes);
        // SAFETY: the same buffers as in `lend`.
        let len = unsafe {
            match (reads, writes) {
                (_, 0) => self.queue.pop_used(token, &[read], &mut []),
                (0, _) => self.queue.pop_used(token, &[], &mut [written]),
                _ => self.queue.pop_used(token, &[read], &mut [written]),
            }
        };
        Some((slot, self.buffers[slot], len.unwrap_or(0).min(writes)))
    }
}

/// The two parts of a buffer, as virtio-drivers wants them: only their addresses are used.
fn parts(buffer: Ram, skip: u64, reads: u32, writes: u32) -> (&'static [u8], &'static mut [u8]) {
    let start = (buffer.start().0 + skip) as usize;
    debug_assert!(skip + u64::from(reads) + u64::from(writes) <= buffer.size());
    // SAFETY: the buffer is EL2's own for ever and holds both parts (callers stay within it); no
    // other reference to it is formed.
    unsafe {
        (
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance(start), reads as usize),
            core::slice::from_raw_parts_mut(
                core::ptr::with_exposed_provenance_mut(start + reads as usize),
                writes as usize,
            ),
        )
    }
}

/// Begins the driver's half of the handshake with the features in `wanted` that the device has.
pub fn begin(transport: &mut Transport, wanted: u64) {
    const VERSION_1: u64 = 1 << 32;
    const DRIVER: DeviceStatus = DeviceStatus::ACKNOWLEDGE.union(DeviceStatus::DRIVER);
    transport.set_status(DeviceStatus::empty());
    transport.set_status(DRIVER);
    let offered = transport.read_device_features();
    transport.write_driver_features(offered & (wanted | VERSION_1));
    transport.set_status(DRIVER | DeviceStatus::FEATURES_OK);
    transport.set_guest_page_size(FRAME_SIZE as u32);
}
