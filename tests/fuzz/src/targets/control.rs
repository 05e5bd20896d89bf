//! What the boot loader and the `underpin` command hand to EL2.

use crate::input::Input;
use abi::bundle::{BLOCK_SIZE, Bundle, Place};
use abi::control::Request;

/// A bundle: VM descriptions, kernels, disk images by block.
pub fn bundle(data: &[u8]) {
    let Ok(bundle) = Bundle::parse(data) else {
        return;
    };
    for (n, entry) in bundle.entries() {
        let content = bundle.content(&entry).map(<[u8]>::len);
        assert_eq!(content, Some(entry.stored() as usize));
        let _ = bundle.vm(n);
        let Some(image) = bundle.image(n) else {
            continue;
        };
        assert_eq!(image.blocks(), image.size().div_ceil(BLOCK_SIZE as u64));
        assert_eq!(image.block(image.blocks()), Place::Zero);
        for block in 0..image.blocks() {
            if let Place::Page(page, _) = image.block(block) {
                let there = bundle.pages().filter_map(|range| data.get(range));
                assert!(
                    there
                        .into_iter()
                        .any(|run| run.as_ptr_range().contains(&page.as_ptr()))
                );
            }
        }
    }
    let mut end = 0;
    for range in bundle.pages() {
        assert!(range.start >= end && range.end <= data.len());
        assert!(range.start.is_multiple_of(BLOCK_SIZE) && range.end.is_multiple_of(BLOCK_SIZE));
        end = range.end;
    }
}

/// A control request: its number, then its payload.
pub fn request(data: &[u8]) {
    let mut input = Input(data);
    if let Some(kind) = input.u32() {
        // Payloads are aligned where they arrive: a copy is as aligned as can be asked for.
        let payload = input.0.to_vec();
        let _ = Request::decode(kind, &payload);
    }
}
