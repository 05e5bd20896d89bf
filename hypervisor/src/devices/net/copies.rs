//! The copies that a frame takes.

use crate::devices::net::frame::Body;
use crate::guest::{DeviceView, Guest};
use crate::machine::stretch;
use machine_contract::{GuestMemory, GuestMemoryError};
use model_addr::FRAME_SIZE;
use model_virtio::{Runs, net::Frame};

/// Copies a frame to a receiver's memory. Where the stretch gets long as frames are put behind it, what is left is
/// away.
pub fn fill(
    to: &DeviceView<'_>,
    runs: &mut Runs<'_>,
    body: Body<'_>,
) -> Result<(), GuestMemoryError> {
    match body {
        Body::Own(head, rest) => {
            if (head.len() + rest.len()) as u64 > FRAME_SIZE {
                prepare(to, runs.clone())?;
            }
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

/// Puts frames behind what a long frame goes to: one at least, so that it gets there some time.
fn prepare(to: &DeviceView<'_>, mut runs: Runs<'_>) -> Result<(), GuestMemoryError> {
    let mut has_filled = false;
    while let Some(front) = runs.front() {
        let (ipa, left) = (front.ipa, FRAME_SIZE - front.ipa.offset());
        let piece = u64::from(front.len).min(left);
        let at_hand = to.space.at_hand(ipa, piece as usize, true, |_| ());
        if at_hand.is_none() {
            let must_stop = has_filled && stretch::is_long();
            if must_stop || to.touch(ipa, piece, true, false) < piece {
                return Err(GuestMemoryError::Away(ipa));
            }
            has_filled = true;
        }
        runs.advance(piece as u32);
    }
    Ok(())
}

/// Copies the bytes of a frame from `at` on to EL2; it has as many.
pub fn read(vm: &Guest, frame: &Frame, at: usize, into: &mut [u8]) -> Result<(), GuestMemoryError> {
    let head = frame.head();
    let of_head = head.get(at..).unwrap_or_default();
    let (first, rest) = into.split_at_mut(into.len().min(of_head.len()));
    first.copy_from_slice(&of_head[..first.len()]);
    let mut runs = Runs::new(frame.rest(), u32::MAX);
    runs.skip(at.saturating_sub(head.len()) as u32);
    runs.get(&vm.memory(), rest)
}
