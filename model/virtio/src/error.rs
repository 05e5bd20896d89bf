//! What a driver cannot be forgiven.

use machine_contract::GuestMemoryError;

/// How a driver broke the rules of a virtqueue or of the request in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// The size is no power of two within the maximum, or an address is misaligned or wraps.
    Layout,
    /// The available index is ahead by more than the queue's size.
    Overrun,
    /// A descriptor index beyond its table.
    NoSuchDescriptor,
    /// A descriptor of no bytes.
    EmptyDescriptor,
    /// A buffer to read behind one to write.
    ReadableAfterWritable,
    /// More than [`MAX_SEGMENTS`] descriptors: a loop, or a driver deaf to `seg_max`.
    TooManySegments,
    /// 4 GiB or more in one chain.
    TooManyBytes,
    /// An indirect table that is nested, empty, oversized or continued.
    Indirect,
    /// A request too short for the device's own header and status.
    Truncated,
    /// A driver of the interface before virtio 1.0, or one that uses the device without agreed features.
    Legacy,
    /// A ring, table or buffer is not where the guest has memory.
    Memory(GuestMemoryError),
}

impl From<GuestMemoryError> for QueueError {
    fn from(error: GuestMemoryError) -> Self {
        Self::Memory(error)
    }
}

impl QueueError {
    /// Whether memory is not there yet: the same may go well later.
    pub(crate) const fn is_want_of_memory(&self) -> bool {
        use GuestMemoryError::{Away, NoFrame};
        matches!(self, Self::Memory(Away(_) | NoFrame(_)))
    }
}
