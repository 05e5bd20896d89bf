//! Where a guest finds its devices: the addresses and interrupts of QEMU's `virt` machine.

use model_addr::{Ipa, IpaRange};

/// The interrupt distributor.
pub const DISTRIBUTOR: IpaRange = IpaRange::of(Ipa(0x0800_0000), 0x1_0000);
/// The first vCPU's redistributor; the others follow, each [`REDISTRIBUTOR_SIZE`] further on.
pub const REDISTRIBUTORS: Ipa = Ipa(0x080a_0000);
/// Bytes of a redistributor: its two 64 KiB frames.
pub const REDISTRIBUTOR_SIZE: u64 = 0x2_0000;
/// The PL011 UART.
pub const UART: IpaRange = IpaRange::of(Ipa(0x0900_0000), 0x1000);
/// The UART's SPI, counted from INTID 32.
pub const UART_SPI: u32 = 1;
/// The PL031 real-time clock.
pub const RTC: IpaRange = IpaRange::of(Ipa(0x0901_0000), 0x1000);
/// The PL061 GPIO with the power button.
pub const GPIO: IpaRange = IpaRange::of(Ipa(0x0903_0000), 0x1000);
/// The GPIO's SPI, counted from INTID 32.
pub const GPIO_SPI: u32 = 7;
/// The GPIO's line that the power button drives high while it is pressed.
pub const POWER_BUTTON_LINE: u8 = 3;
/// The first virtio-mmio transport; the others follow, each [`VIRTIO_SIZE`] further on.
pub const VIRTIO: Ipa = Ipa(0x0a00_0000);
/// Bytes of a virtio-mmio transport.
pub const VIRTIO_SIZE: u64 = 0x200;
/// The first transport's SPI, counted from INTID 32; the others follow.
pub const VIRTIO_SPI: u32 = 16;
/// Where memory begins.
pub const RAM: Ipa = Ipa(0x4000_0000);

/// PPIs of the generic timer, counted from INTID 16: secure and non-secure EL1 physical, EL1
/// virtual, EL2 physical.
pub const TIMER_PPIS: [u32; 4] = [13, 14, 11, 10];
