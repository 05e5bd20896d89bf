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
            prepare_many(to, runs, head.len() + rest.len(), true)?;
            runs.put(to, head)?;
            runs.put(to, rest)
        }
        Body::Guest(vm, frame) => {
            prepare_many(to, runs, frame.head().len(), true)?;
            runs.put(to, frame.head())?;
            let mut rest = Runs::new(frame.rest(), u32::MAX);
            to.copy_from(runs, &vm.memory(), &mut rest)
        }
    }
}

/// As [`prepare`], where so many bytes of a frame are in more than two pages.
fn prepare_many(
    view: &DeviceView<'_>,
    runs: &mut Runs<'_>,
    bytes: usize,
    write: bool,
) -> Result<(), GuestMemoryError> {
    let in_one = runs.front().is_none_or(|front| bytes <= front.len as usize);
    if in_one && bytes as u64 <= FRAME_SIZE {
        return Ok(());
    }
    prepare(view, runs.clone(), bytes as u64, write)
}

/// Puts frames behind these bytes: one at least, so that the frame of the network gets there some time.
#[inline(never)]
fn prepare(
    view: &DeviceView<'_>,
    mut runs: Runs<'_>,
    mut bytes: u64,
    write: bool,
) -> Result<(), GuestMemoryError> {
    let mut has_filled = false;
    while bytes > 0
        && let Some(front) = runs.front()
    {
        let (ipa, left) = (front.ipa, FRAME_SIZE - front.ipa.offset());
        let piece = u64::from(front.len).min(left).min(bytes);
        let at_hand = view.space.at_hand(ipa, piece as usize, write, |_| ());
        if at_hand.is_none() {
            let must_stop = has_filled && stretch::is_long();
            if must_stop || view.touch(ipa, piece, write, false) < piece {
                return Err(GuestMemoryError::Away(ipa));
            }
            has_filled = true;
        }
        runs.advance(piece as u32);
        bytes -= piece;
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
    prepare_many(&vm.memory(), &mut runs, rest.len(), false)?;
    runs.get(&vm.memory(), rest)
}
