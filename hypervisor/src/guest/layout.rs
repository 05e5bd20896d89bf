//! Where a guest finds what, as ranges and interrupt numbers; the addresses are
//! [`model_guest_image::map`]'s.

use model_addr::{Ipa, IpaRange};
use model_guest_image::map;
use model_mmio::{MmioMap, Refused};

pub use model_guest_image::map::{POWER_BUTTON_LINE, REDISTRIBUTOR_SIZE};

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

/// The device at an address.
#[derive(Clone, Copy, Default)]
pub enum Place {
    /// The PL011.
    #[default]
    Uart,
    /// The interrupt distributor.
    Distributor,
    /// The redistributors, one after the other.
    Redistributors,
    /// The register window of that virtio device.
    Virtio(u8),
    /// The PL061 with the power button.
    Button,
    /// The PL031.
    Clock,
    /// A device at the first host of a VM that spans hosts.
    Elsewhere,
}

/// The devices of a VM, by address.
pub type Places = MmioMap<Place, 16>;

/// The table of a VM with so many vCPUs, whose devices the first of its hosts has.
pub fn places_elsewhere(vcpus: usize) -> Result<Places, Refused> {
    let mut places = Places::default();
    let redistributors = IpaRange::of(map::REDISTRIBUTORS, REDISTRIBUTOR_SIZE * vcpus as u64);
    let virtio = IpaRange::of(map::VIRTIO, map::VIRTIO_SIZE * VIRTIO_MAX as u64);
    places.add(redistributors, Place::Redistributors)?;
    for range in [map::DISTRIBUTOR, map::UART, map::GPIO, map::RTC, virtio] {
        places.add(range, Place::Elsewhere)?;
    }
    Ok(places)
}

/// The table of a VM with so many vCPUs and virtio devices.
pub fn places(vcpus: usize, virtio: usize) -> Result<Places, Refused> {
    let mut places = Places::default();
    let redistributors = IpaRange::of(map::REDISTRIBUTORS, REDISTRIBUTOR_SIZE * vcpus as u64);
    let own = [
        (map::UART, Place::Uart),
        (map::DISTRIBUTOR, Place::Distributor),
        (redistributors, Place::Redistributors),
        (map::GPIO, Place::Button),
        (map::RTC, Place::Clock),
    ];
    let start = |n: u8| Ipa(map::VIRTIO.0 + map::VIRTIO_SIZE * u64::from(n));
    let window = |n| (IpaRange::of(start(n), map::VIRTIO_SIZE), Place::Virtio(n));
    for (range, place) in own.into_iter().chain((0..virtio as u8).map(window)) {
        places.add(range, place)?;
    }
    Ok(places)
}
