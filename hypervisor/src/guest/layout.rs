//! Where a guest finds what, as ranges and interrupt numbers; the addresses are
//! [`model_guest_image::map`]'s.

use model_addr::{Ipa, IpaRange};
use model_guest_image::map;

pub use model_guest_image::map::{
    DISTRIBUTOR, GPIO, POWER_BUTTON_LINE, REDISTRIBUTOR_SIZE, RTC, UART,
};

/// Redistributors, one after the other, up to the UART.
pub const REDISTRIBUTORS: IpaRange = IpaRange::of(
    map::REDISTRIBUTORS,
    map::UART.start.0 - map::REDISTRIBUTORS.0,
);
/// virtio-mmio windows, one after the other.
pub const VIRTIO: IpaRange = IpaRange::of(map::VIRTIO, map::VIRTIO_SIZE * VIRTIO_MAX as u64);
/// The most virtio devices.
pub const VIRTIO_MAX: usize = 10;
/// Memory.
pub const RAM_START: Ipa = map::RAM;
/// The interrupt of the virtual timer.
pub const TIMER_PPI: u32 = 16 + map::TIMER_PPIS[2];
/// The interrupt of the PL011.
pub const UART_INTID: u32 = 32 + map::UART_SPI;
/// The interrupt of the PL061.
pub const GPIO_INTID: u32 = 32 + map::GPIO_SPI;
/// The interrupt of the first virtio device; the others follow.
pub const VIRTIO_INTID: u32 = 32 + map::VIRTIO_SPI;
/// SPIs of the distributor.
pub const SPIS: u32 = 224;
