//! Fuzz targets on every boundary: whatever the bytes are, a target returns, soon and without a
//! panic.
#![forbid(unsafe_code)]

mod campaign;
mod input;
mod mutate;
mod targets;

pub use campaign::{Failure, campaign, replay, save_failure, seeds};
pub use mutate::Mutator;

/// A boundary: takes the bytes that come over it.
pub type Target = fn(&[u8]);

/// Every target by its name, which is its folder in `seeds/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("bundle", targets::control::bundle),
    ("coherence_message", targets::coherence::coherence_message),
    ("control_request", targets::control::request),
    ("control_stream", targets::control::stream),
    ("device_tree", targets::machine::device_tree),
    ("gic", targets::gic::gic),
    ("image", targets::machine::image),
    ("join", targets::join::join),
    ("kernel_image", targets::machine::kernel_image),
    ("link_frame", targets::link::link_frame),
    ("overlay", targets::overlay::overlay),
    ("partitions", targets::partitions::partitions),
    ("psci_call", targets::exits::psci_call),
    ("served", targets::served::served),
    ("shared_disk", targets::shared_disk::shared_disk),
    ("span_message", targets::span::span_message),
    ("state", targets::state::state),
    ("switch", targets::switch::switch),
    ("syndrome", targets::exits::syndrome),
    ("uart", targets::exits::uart),
    ("uplink", targets::uplink::uplink),
    ("virtio_balloon", targets::virtio::balloon),
    ("virtio_blk", targets::virtio::blk),
    ("virtio_console", targets::virtio::console),
    ("virtio_net", targets::virtio::net),
    ("virtio_port", targets::virtio::port),
    ("virtio_rng", targets::virtio::rng),
];

/// The target of that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}
