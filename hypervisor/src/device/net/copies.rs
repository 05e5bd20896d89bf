//! The copies that a frame takes.

use super::Body;
use crate::vm::{DeviceView, Instance};
use machine_contract::GuestMemoryError;
use model_virtio::Runs;
use model_virtio::net::Frame;

/// Copies a frame to a receiver's memory.
pub fn fill(
    to: &DeviceView<'_>,
    runs: &mut Runs<'_>,
    body: Body<'_>,
) -> Result<(), GuestMemoryError> {
    match body {
        Body::Own(head, rest) => {
            runs.put(to, head)?;
            runs.put(to, rest)
        }
        Body::Guest(vm, frame) => {
            runs.put(to, frame.head())?;
            let mut rest = Runs::new(frame.rest(), u32::MAX);
            to.copy_from(runs, &vm.memory(), &mut rest)
        }
    }
}

/// Copies the bytes of a frame from `at` on to EL2; it has as many.
pub fn read(
    vm: &Instance,
    frame: &Frame,
    at: usize,
    into: &mut [u8],
) -> Result<(), GuestMemoryError> {
    let head = frame.head();
    let of_head = head.get(at..).unwrap_or_default();
    let (first, rest) = into.split_at_mut(into.len().min(of_head.len()));
    first.copy_from_slice(&of_head[..first.len()]);
    let mut runs = Runs::new(frame.rest(), u32::MAX);
    runs.skip(at.saturating_sub(head.len()) as u32);
    runs.get(&vm.memory(), rest)
}
