//! The register file, as a driver probes it.

use crate::driver::{Driver, set_up_queue, start};
use model_virtio::blk::{Blk, Options};
use model_virtio::console::Console;
use model_virtio::rng::Rng;
use model_virtio::{Device, Effect, QueueError, Transport, Window as _};

const STATUS: u64 = 0x070;

fn blk() -> Transport<Blk> {
    Transport::new(Blk::new(Options {
        capacity: 100,
        ..Options::default()
    }))
}

fn accept<D: Device>(transport: &mut Transport<D>, features: u64) {
    for half in 0..2 {
        transport.write(0x024, 4, half);
        transport.write(0x020, 4, features >> (32 * half) & 0xffff_ffff);
    }
}

#[test]
fn the_device_names_itself() {
    let transport = blk();
    assert_eq!(transport.read(0, 4), 0x7472_6976);
    assert_eq!(transport.read(4, 4), 2);
    assert_eq!(transport.read(8, 4), 2);
    assert_eq!(Transport::new(Console::default()).read(8, 4), 3);
    assert_eq!(Transport::new(Rng::default()).read(8, 4), 4);
    for shared_memory in [0x0b0, 0x0b4, 0x0b8, 0x0bc] {
        assert_eq!(transport.read(shared_memory, 4), 0xffff_ffff);
    }
    assert_eq!(
        (
            transport.read(0, 2),
            transport.read(0, 8),
            transport.read(1, 4)
        ),
        (0, 0, 0)
    );
    assert_eq!(transport.read(u64::MAX, 4), 0);
}

#[test]
fn features_are_agreed_or_refused() {
    let mut transport = blk();
    transport.write(0x014, 4, 1);
    assert_eq!(transport.read(0x010, 4), 1);
    transport.write(0x014, 4, 2);
    assert_eq!(transport.read(0x010, 4), 0);
    // Without VERSION_1, and with a feature that was not offered.
    for wrong in [1 << 9, 1 << 32 | 1 << 5, 1 << 32 | 1 << 63] {
        transport.write(STATUS, 4, 0);
        transport.write(STATUS, 4, 3);
        accept(&mut transport, wrong);
        transport.write(STATUS, 4, 0xb);
        assert_eq!(transport.read(STATUS, 4), 3);
        assert_eq!(transport.write(STATUS, 4, 0xf), Effect::None);
        assert_eq!(transport.read(STATUS, 4), 0x43);
        assert_eq!(transport.errors().1, Some(QueueError::Legacy));
        assert!(!transport.irq_level());
    }
    transport.write(STATUS, 4, 0);
    transport.write(STATUS, 4, 3);
    accept(&mut transport, 1 << 32 | 1 << 9);
    transport.write(STATUS, 4, 0xb);
    assert_eq!(transport.read(STATUS, 4), 0xb);
    // Fixed from here on; bits cannot be taken back nor the broken bit set.
    accept(&mut transport, 1 << 63);
    assert_eq!(transport.write(STATUS, 4, 0x4f), Effect::Live);
    assert_eq!(transport.read(STATUS, 4), 0xf);
    transport.write(STATUS, 4, 1);
    assert_eq!(transport.read(STATUS, 4), 0xf);
    assert_eq!(transport.write(STATUS, 4, 0), Effect::Reset);
    assert_eq!(transport.read(STATUS, 4), 0);
}

#[test]
fn queues_are_selected_checked_and_frozen() {
    let mut transport = blk();
    assert_eq!(transport.read(0x034, 4), 256);
    transport.write(0x030, 4, 1);
    assert_eq!(transport.read(0x034, 4), 0);
    transport.write(0x044, 4, 1);
    assert_eq!(transport.read(0x044, 4), 0);
    let (mut transport, drivers) = start(Console::default(), 0, 64);
    assert_eq!(transport.write(0x050, 4, 1), Effect::Notify(1));
    assert_eq!(transport.write(0x050, 4, 2), Effect::None);
    assert_eq!(transport.write(0x050, 4, 0x1_0001), Effect::None);
    assert_eq!(transport.write(0x050, 2, 1), Effect::None);
    // A ready queue does not move.
    let mut elsewhere = drivers[1].setup;
    elsewhere.descriptors = 1;
    set_up_queue(&mut transport, 1, &elsewhere);
    assert_eq!(transport.errors().0, 0);
    // A stopped one does, and is checked.
    transport.write(0x044, 4, 0);
    assert_eq!(transport.read(0x044, 4), 0);
    assert_eq!(transport.write(0x050, 4, 1), Effect::None);
    set_up_queue(&mut transport, 1, &elsewhere);
    assert_eq!(transport.errors().0, 1);
    assert_eq!(transport.read(STATUS, 4), 0x4f);
    assert!(transport.irq_level());
    // A broken device is deaf until it is reset.
    assert_eq!(transport.write(0x050, 4, 0), Effect::None);
    transport.write(STATUS, 4, 0);
    assert!(!transport.irq_level());
    assert_eq!(transport.errors().0, 1);
}

#[test]
fn a_queue_is_not_ready_before_features_are_agreed() {
    let mut transport = blk();
    let driver = Driver::new(0, 64, crate::driver::QueueFeatures::default());
    set_up_queue(&mut transport, 0, &driver.setup);
    assert_eq!(transport.read(0x044, 4), 0);
}

/// It looks at no version, accepts no feature beyond bit 31, and says in pages where its queue is.
#[test]
fn a_legacy_driver_reads_that_the_device_gave_up() {
    let mut transport = blk();
    transport.write(STATUS, 4, 3);
    transport.write(0x020, 4, 1 << 9);
    transport.write(0x028, 4, 4096);
    transport.write(0x038, 4, 64);
    transport.write(0x03c, 4, 4096);
    // It looks whether the queue is in use, first.
    transport.write(0x040, 4, 0);
    assert_eq!(transport.read(STATUS, 4), 3);
    transport.write(0x040, 4, 0x4_0000);
    assert_eq!((transport.read(0x040, 4), transport.read(0x044, 4)), (0, 0));
    assert_eq!(transport.read(STATUS, 4), 0x43);
    assert_eq!(transport.errors(), (1, Some(QueueError::Legacy)));
    assert_eq!(transport.write(STATUS, 4, 7), Effect::None);
    assert_eq!(transport.read(STATUS, 4), 0x43);
    assert_eq!(transport.write(0x050, 4, 0), Effect::None);
    // It is as new for one that knows how.
    transport.write(STATUS, 4, 0);
    assert_eq!(transport.read(STATUS, 4), 0);
}

/// QueueReady stays 0, the status says that a reset is due, and the driver is interrupted as soon as
/// it takes interrupts.
#[test]
fn a_queue_size_that_does_not_fit_is_read_back() {
    for (size, fits) in [
        (0, false),
        (1, true),
        (3, false),
        (128, true),
        (255, false),
        (256, true),
        (512, false),
        (0x8000, false),
        (0x1_0000, false),
        (0x1_0080, false),
        (0x8000_0000, false),
    ] {
        let mut transport = blk();
        transport.write(STATUS, 4, 3);
        accept(&mut transport, 1 << 32);
        transport.write(STATUS, 4, 0xb);
        let mut setup = Driver::new(0, 256, crate::driver::QueueFeatures::default()).setup;
        setup.size = size;
        set_up_queue(&mut transport, 0, &setup);
        assert_eq!(transport.read(0x044, 4), u64::from(fits), "{size:#x}");
        let broken = if fits { 0 } else { 0x40 };
        assert_eq!(transport.read(STATUS, 4), 0xb | broken, "{size:#x}");
        assert!(!transport.irq_level());
        transport.write(STATUS, 4, 0xf);
        assert_eq!(transport.read(STATUS, 4), 0xf | broken, "{size:#x}");
        assert_eq!(transport.is_live(), fits);
        let change = if fits { 0 } else { 2 };
        assert_eq!(transport.read(0x060, 4), change, "{size:#x}");
        assert_eq!(transport.irq_level(), !fits);
    }
}
