//! What the boot loader and the `underpin` command hand to EL2.

use crate::input::Input;
use abi::bundle::control_rights;
use abi::bundle::{BLOCK_SIZE, Bundle, Place};
use abi::control::{PAYLOAD_MAX, Request};
use model_control::{Inbox, Right};

/// A bundle: VM descriptions, kernels, disk images by block.
pub fn bundle(data: &[u8]) {
    let Ok(bundle) = Bundle::parse(data) else {
        return;
    };
    if let Ok(Some(cluster)) = bundle.cluster() {
        assert!(cluster.host < cluster.hosts);
    }
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

/// What comes through a control port: pieces of a stream, each as long as its first byte says. Frames
/// that come out of it are decoded as those of VMs with each right.
pub fn stream(data: &[u8]) {
    let mut inbox = Inbox::default();
    let mut payload = Box::new([0; PAYLOAD_MAX]);
    let mut input = Input(data);
    while let Some(length) = input.u8() {
        let bytes = input.bytes(usize::from(length));
        let taken = inbox.push(bytes);
        assert!(taken == bytes.len() || inbox.room() == 0);
        while inbox.has_frame() {
            let taken = inbox.take(&mut payload);
            assert!(taken.is_some(), "a frame was there, and is not");
            let Some(header) = taken else { return };
            let content = payload[..header.length as usize].to_vec();
            let decoded = Request::decode(header.kind, &content);
            let may = model_control::right(control_rights::READ, header.kind);
            // Only what reads is let through to whoever may only read.
            let changes = matches!(
                decoded,
                Some(
                    Request::Create(_)
                        | Request::Set(_)
                        | Request::PowerOff
                        | Request::Trace(_)
                        | Request::Probe(_)
                )
            );
            assert!(!changes || may == Right::None);
        }
        assert!(inbox.room() > 0, "noise fills it for good");
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
