//! What the firmware and a kernel file say.

use abi::upgrade::{Mark, VERSION};
use model_guest_image::ImageHeader;
use model_machine_tree::{blob_size, read};
use tools_abi::image::seal;

/// The machine's device tree.
pub fn device_tree(data: &[u8]) {
    if let Some(size) = blob_size(data)
        && let Some(blob) = data.get(..size)
    {
        let _ = read(blob);
    }
    let _ = read(data);
}

/// An image that is to take the hypervisor's place; and one that was sealed is one.
pub fn image(data: &[u8]) {
    let room = 1 << 20;
    if let Ok(mark) = Mark::of(data) {
        let _ = mark.fits(VERSION, room);
    }
    let mut file = data.to_vec();
    let mark = Mark {
        oldest: VERSION,
        newest: VERSION,
        memory_bytes: data.len() as u64,
        ..Mark::default()
    };
    if seal(mark, &mut file) {
        let found = Mark::of(&file);
        assert_eq!(
            found.and_then(|found| found.fits(VERSION, u64::MAX)),
            Ok(())
        );
    }
}

/// A kernel's header.
pub fn kernel_image(data: &[u8]) {
    let _ = ImageHeader::parse(data);
}
