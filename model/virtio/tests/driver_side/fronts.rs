//! [`DeviceCore`] from both sides: a made-up front, as a function on PCI would be one (virtio 4.1), in front of real
//! devices, and made-up devices behind the window of virtio-mmio.

use crate::driver::{Buffer, DATA, Driver, QueueFeatures, Shape, ram, start};
use machine_contract::GuestMemory as _;
use model_virtio::blk::{Blk, Options};
use model_virtio::console::Console;
use model_virtio::net::{self, Net};
use model_virtio::{Causes, DeviceCore, Effect, Transport, Window, register};
use proptest::prelude::*;

/// The common configuration of a function on PCI (virtio 4.1.4.3), and its message-signalled interrupts.
#[derive(Default)]
struct Function {
    config_vector: u16,
    queue: u16,
    queue_vectors: [u16; 9],
    /// The vectors of interrupts that were sent.
    sent: Vec<u16>,
}

impl Function {
    fn write(&mut self, core: &mut dyn DeviceCore, offset: u64, value: u32) -> Effect {
        let at = match offset {
            0x00 => register::DEVICE_FEATURES_SEL,
            0x08 => register::DRIVER_FEATURES_SEL,
            0x0c => register::DRIVER_FEATURES,
            0x10 => {
                self.config_vector = value as u16;
                return Effect::None;
            }
            0x14 => register::STATUS,
            0x16 => {
                self.queue = value as u16;
                register::QUEUE_SEL
            }
            0x18 => register::QUEUE_SIZE,
            0x1a => {
                self.queue_vectors[usize::from(self.queue)] = value as u16;
                return Effect::None;
            }
            0x1c => register::QUEUE_READY,
            0x20 => register::QUEUE_DESC,
            0x24 => register::QUEUE_DESC + 4,
            0x28 => register::QUEUE_DRIVER,
            0x2c => register::QUEUE_DRIVER + 4,
            0x30 => register::QUEUE_DEVICE,
            0x34 => register::QUEUE_DEVICE + 4,
            _ => return Effect::None,
        };
        let effect = core.store(at, value);
        self.interrupt(core);
        effect
    }

    fn read(core: &dyn DeviceCore, offset: u64) -> u32 {
        match offset {
            0x04 => core.load(register::DEVICE_FEATURES),
            0x14 => core.load(register::STATUS),
            0x15 => core.load(register::CONFIG_GENERATION) & 0xff,
            0x18 => core.load(register::QUEUE_SIZE_MAX),
            0x1c => core.load(register::QUEUE_READY),
            _ => 0,
        }
    }

    /// Each queue has its notification at an address of its own.
    fn notify(core: &mut dyn DeviceCore, queue: u16) -> Effect {
        core.store(register::QUEUE_NOTIFY, queue.into())
    }

    /// Sends a message for each cause, which nobody acknowledges.
    fn interrupt(&mut self, core: &mut dyn DeviceCore) {
        let causes = core.causes();
        let is_of = |queue: usize| causes.contains(Causes::of_queue(queue));
        let queues = (0..self.queue_vectors.len()).filter(|queue| is_of(*queue));
        self.sent
            .extend(queues.map(|queue| self.queue_vectors[queue]));
        if causes.contains(Causes::CONFIG_CHANGE) {
            self.sent.push(self.config_vector);
        }
        core.acknowledge(causes);
    }

    /// As virtio 3.1.1 has it, all features accepted.
    fn start(&mut self, core: &mut dyn DeviceCore, queues: u16) -> Vec<Driver> {
        self.write(core, 0x14, 1);
        self.write(core, 0x14, 3);
        for half in 0..2 {
            self.write(core, 0x00, half);
            self.write(core, 0x08, half);
            let offered = Self::read(core, 0x04);
            self.write(core, 0x0c, offered);
        }
        self.write(core, 0x14, 0xb);
        assert_eq!(Self::read(core, 0x14), 0xb);
        self.write(core, 0x10, 40);
        let ring = QueueFeatures {
            event_idx: true,
            indirect: true,
        };
        let mut drivers = Vec::new();
        for queue in 0..queues {
            self.write(core, 0x16, queue.into());
            let size = Self::read(core, 0x18) as u16;
            let driver = Driver::new(queue.into(), size, ring);
            self.write(core, 0x18, size.into());
            self.write(core, 0x1a, 50 + u32::from(queue));
            let setup = &driver.setup;
            let places = [
                (0x20, setup.descriptors),
                (0x28, setup.driver),
                (0x30, setup.device),
            ];
            for (at, address) in places {
                self.write(core, at, address as u32);
                self.write(core, at + 4, (address >> 32) as u32);
            }
            self.write(core, 0x1c, 1);
            assert_eq!(Self::read(core, 0x1c), 1);
            drivers.push(driver);
        }
        self.write(core, 0x16, queues.into());
        assert_eq!(Self::read(core, 0x18), 0, "there is one queue more");
        assert_eq!(self.write(core, 0x14, 0xf), Effect::Live);
        drivers
    }
}

fn buffer(len: u32, writable: bool) -> Buffer {
    let ipa = DATA;
    Buffer { ipa, len, writable }
}

/// The same device works behind a front that has an interrupt for each queue: it says which queue was used.
#[test]
fn a_front_with_vectors_has_one_for_each_queue() {
    let (guest, mut function) = (ram(), Function::default());
    let mut console = Transport::new(Console::default());
    let mut drivers = function.start(&mut console, 2);
    assert_eq!(Function::notify(&mut console, 2), Effect::None);
    for queue in [1, 0, 1] {
        let driver = &mut drivers[usize::from(queue)];
        driver.set_interrupts(&guest, true);
        driver.add(&guest, &[buffer(5, queue == 0)], Shape::Direct);
        driver.publish(&guest);
        assert_eq!(Function::notify(&mut console, queue), Effect::Notify(queue));
        if queue == 1 {
            guest.write(DATA, b"hello").unwrap();
            let mut said = Vec::new();
            console.transmit(&guest, 100, |bytes| said.extend_from_slice(bytes));
            assert_eq!(said, b"hello");
        } else {
            assert_eq!(console.receive(&guest, b"typed"), 5);
        }
        function.interrupt(&mut console);
        assert_eq!(std::mem::take(&mut function.sent), [50 + queue]);
        assert!(console.causes().is_empty() && !console.irq_level());
        assert!(drivers[usize::from(queue)].reap(&guest).is_some());
    }
    // A driver that breaks a ring hears of it by the vector of the configuration.
    drivers[1].add(&guest, &[buffer(0, false)], Shape::Direct);
    drivers[1].publish(&guest);
    console.transmit(&guest, 100, |_| ());
    function.interrupt(&mut console);
    assert_eq!(function.sent, [40]);
    assert_eq!(Function::read(&console, 0x14), 0x4f);
}

/// Behind the window, one bit stands for all queues, and acknowledging it is for all of them.
#[test]
fn a_window_has_one_cause_for_all_queues() {
    let guest = ram();
    let (mut console, mut drivers) = start(Console::default(), 0, 64);
    for (queue, driver) in drivers.iter_mut().enumerate() {
        driver.set_interrupts(&guest, true);
        driver.add(&guest, &[buffer(5, queue == 0)], Shape::Direct);
        driver.publish(&guest);
    }
    assert_eq!(console.line_changed(), None);
    console.transmit(&guest, 100, |_| ());
    assert_eq!(console.receive(&guest, b"typed"), 5);
    assert!(
        console
            .causes()
            .contains(Causes::of_queue(0) | Causes::of_queue(1))
    );
    assert_eq!(
        (console.read(0x060, 4), console.record().registers.interrupt),
        (1, 1)
    );
    assert_eq!(
        (console.line_changed(), console.line_changed()),
        (Some(true), None)
    );
    let mut restored = Transport::new(Console::default());
    assert!(restored.restore(&console.record()));
    assert_eq!(
        (restored.irq_level(), restored.line_changed()),
        (true, None)
    );
    console.write(0x064, 4, 2);
    assert_eq!(console.line_changed(), None);
    console.write(0x064, 4, 1);
    assert_eq!(
        (console.read(0x060, 4), console.causes()),
        (0, Causes::empty())
    );
    assert_eq!(
        (console.line_changed(), console.line_changed()),
        (Some(false), None)
    );
}

/// What a driver does to a device, by whichever front.
#[derive(Clone, Copy, Debug)]
enum Step {
    Status(u32),
    Accept(u32, u32),
    Queue(u16),
    Size(u16),
    Address(u64, u32),
    Ready,
    Notify(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![Just(0), Just(1), Just(3), Just(0xb), Just(0xf), 0..256_u32].prop_map(Step::Status),
        3 => (0..3_u32, prop_oneof![Just(1), 0..16_u32, any::<u32>()]).prop_map(|(half, bits)| Step::Accept(half, bits)),
        3 => (0..5_u16).prop_map(Step::Queue),
        2 => prop_oneof![Just(16), Just(64), any::<u16>()].prop_map(Step::Size),
        4 => (0..6_u64, prop_oneof![Just(0), Just(0x4000_1000), any::<u32>()]).prop_map(|(which, half)| Step::Address(which, half)),
        3 => Just(Step::Ready),
        2 => (0..5_u16).prop_map(Step::Notify),
    ]
}

/// Does a step by both fronts; what they say of it.
fn both(
    step: Step,
    window: &mut impl Window,
    function: &mut Function,
    core: &mut dyn DeviceCore,
) -> [Effect; 2] {
    match step {
        Step::Status(status) => [
            window.write(0x070, 4, status.into()),
            function.write(core, 0x14, status),
        ],
        Step::Accept(half, bits) => {
            window.write(0x024, 4, half.into());
            function.write(core, 0x08, half);
            [
                window.write(0x020, 4, bits.into()),
                function.write(core, 0x0c, bits),
            ]
        }
        Step::Queue(queue) => [
            window.write(0x030, 4, queue.into()),
            function.write(core, 0x16, queue.into()),
        ],
        Step::Size(size) => [
            window.write(0x038, 4, size.into()),
            function.write(core, 0x18, size.into()),
        ],
        Step::Address(which, half) => {
            let at = 0x080 + 0x10 * (which / 2) + 4 * (which % 2);
            [
                window.write(at, 4, half.into()),
                function.write(core, 0x20 + 4 * which, half),
            ]
        }
        Step::Ready => [window.write(0x044, 4, 1), function.write(core, 0x1c, 1)],
        Step::Notify(queue) => [
            window.write(0x050, 4, queue.into()),
            Function::notify(core, queue),
        ],
    }
}

fn same_by_both<D: model_virtio::Device>(
    mut make: impl FnMut() -> D,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let (mut window, mut behind, mut function) = (
        Transport::new(make()),
        Transport::new(make()),
        Function::default(),
    );
    for step in steps {
        let [by_window, by_function] = both(*step, &mut window, &mut function, &mut behind);
        prop_assert_eq!(by_window, by_function);
        // The function's driver acknowledges nothing.
        window.write(0x064, 4, 3);
        prop_assert_eq!(window.record(), behind.record());
        let shown = |at: u64| window.read(at, 4) as u32;
        let pairs = [(0x070, 0x14), (0x034, 0x18), (0x044, 0x1c)];
        for (at, offset) in pairs {
            prop_assert_eq!(shown(at), Function::read(&behind, offset));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(100))]

    #[test]
    fn fronts_agree(steps in prop::collection::vec(step(), 0..60)) {
        same_by_both(Console::default, &steps)?;
        same_by_both(|| Blk::new(Options { capacity: 100, ..Options::default() }), &steps)?;
        same_by_both(|| Net::new(net::Options { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, offloads: true, pairs: 2 }), &steps)?;
    }
}

/// A device that only notes what it is asked.
#[derive(Default)]
struct Noted {
    config: Vec<u8>,
    stored: Vec<(u64, u32)>,
    config_stored: Vec<(usize, Vec<u8>)>,
    causes: Causes,
}

impl DeviceCore for Noted {
    fn load(&self, register: u64) -> u32 {
        0x5000_0000 | register as u32
    }

    fn store(&mut self, register: u64, value: u32) -> Effect {
        self.stored.push((register, value));
        Effect::Notify(register as u16)
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn write_config(&mut self, at: usize, bytes: &[u8]) {
        self.config_stored.push((at, bytes.to_vec()));
    }

    fn causes(&self) -> Causes {
        self.causes
    }

    fn acknowledge(&mut self, causes: Causes) {
        self.causes.remove(causes);
    }
}

proptest! {
    /// A window has five registers of its own and the configuration space; all else is the device's, by words.
    #[test]
    fn a_window_keeps_little_for_itself(
        offset in prop_oneof![(0..0x40_u64).prop_map(|n| 4 * n), 0..0x120_u64, any::<u64>()],
        size in prop_oneof![Just(4), prop::sample::select(vec![1_usize, 2, 8])],
        value in any::<u64>(),
        config in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        let mut noted = Noted { config: config.clone(), causes: Causes::of_queue(3), ..Noted::default() };
        let read = noted.read(offset, size);
        let expected = match offset {
            0x100.. => {
                let at = usize::try_from(offset - 0x100).unwrap();
                let bytes = config.iter().skip(at).take(size).enumerate();
                bytes.map(|(n, byte)| u64::from(*byte) << (8 * n)).sum()
            }
            _ if size != 4 => 0,
            0x000 => 0x7472_6976,
            0x004 => 2,
            0x00c => 0x5044_4e55,
            0x060 => 1,
            0x0b0..=0x0bc => 0xffff_ffff,
            _ => 0x5000_0000 | offset,
        };
        prop_assert_eq!(read, expected);
        let effect = noted.write(offset, size, value);
        let is_config = offset >= 0x100;
        let to_config = is_config && size <= 4;
        let is_ack = size == 4 && offset == 0x064;
        let to_device = size == 4 && !is_config && !is_ack;
        prop_assert_eq!(effect, if to_device { Effect::Notify(offset as u16) } else { Effect::None });
        let stored = to_device.then_some((offset, value as u32));
        prop_assert_eq!(noted.stored, Vec::from_iter(stored));
        let bytes = value.to_le_bytes().into_iter().take(size).collect();
        let written = to_config.then(|| (usize::try_from(offset - 0x100).unwrap(), bytes));
        prop_assert_eq!(noted.config_stored, Vec::from_iter(written));
        prop_assert_eq!(noted.causes.contains(Causes::USED_BUFFER), !(is_ack && value & 1 == 1));
    }
}
