//! What the firmware and a kernel file say.

use model_guest_image::ImageHeader;
use model_machine_tree::{blob_size, read};

/// The machine's device tree.
pub fn device_tree(data: &[u8]) {
    if let Some(size) = blob_size(data)
        && let Some(blob) = data.get(..size)
    {
        let _ = read(blob);
    }
    let _ = read(data);
}

/// A kernel's header.
pub fn kernel_image(data: &[u8]) {
    let _ = ImageHeader::parse(data);
}
