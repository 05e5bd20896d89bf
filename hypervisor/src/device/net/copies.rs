//! The copies that a frame takes.

use super::Body;
use crate::network::Scratch;
use crate::vm::{DeviceView, Instance};
use machine_contract::{GuestMemory, GuestMemoryError};
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

/// Copies a whole frame to EL2.
pub fn gather<'a>(
    vm: &Instance,
    frame: &Frame,
    scratch: &'a mut Scratch,
) -> Result<&'a mut [u8], GuestMemoryError> {
    let bytes = &mut scratch.bytes()[..frame.bytes() as usize];
    let (head, mut rest) = bytes.split_at_mut(frame.head().len());
    head.copy_from_slice(frame.head());
    for segment in frame.rest() {
        let (part, others) = rest.split_at_mut(segment.len as usize);
        vm.memory().read(segment.ipa, part)?;
        rest = others;
    }
    Ok(bytes)
}
