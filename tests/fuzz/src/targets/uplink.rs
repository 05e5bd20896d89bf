//! An OS-0 that writes what it likes into the area of its network device.

use crate::input::Input;
use abi::uplink::{AREA_BYTES, FRAME_AT, FRAME_MAX, FRAME_MIN, HEAD_BYTES, SLOT_BYTES};
use model_uplink::{Next, Uplink};

/// EL2's places against words that anybody wrote: what it touches is a slot of the area.
pub fn uplink(data: &[u8]) {
    let mut input = Input(data);
    let mut uplink = Uplink::new();
    while let Some(step) = input.u8() {
        let word = input.u32().unwrap_or(0) as u16;
        let at = if step & 1 == 0 {
            uplink.fill(usize::from(word), |_| u16::from(step >> 1))
        } else {
            match uplink.take(|_| word) {
                Next::Nothing => None,
                Next::Nonsense(at) => Some(at),
                Next::Frame { at, bytes } => {
                    assert!((FRAME_MIN..=FRAME_MAX).contains(&bytes));
                    assert!(at + FRAME_AT + bytes as u64 <= AREA_BYTES);
                    Some(at)
                }
            }
        };
        if let Some(at) = at {
            assert!(at >= HEAD_BYTES && at + SLOT_BYTES <= AREA_BYTES);
            assert_eq!((at - HEAD_BYTES) % SLOT_BYTES, 0);
        }
    }
}
