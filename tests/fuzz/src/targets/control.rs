//! What the boot loader and the `underpin` command hand to EL2.

use crate::input::Input;
use abi::bundle::Bundle;
use abi::control::Request;

/// A bundle: VM descriptions, kernels, disk images.
pub fn bundle(data: &[u8]) {
    let Ok(bundle) = Bundle::parse(data) else {
        return;
    };
    for (n, entry) in bundle.entries() {
        assert_eq!(
            bundle.content(&entry).map(<[u8]>::len),
            Some(entry.size as usize)
        );
        let _ = bundle.vm(n);
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
