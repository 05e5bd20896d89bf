//! A virtio-blk driver with one request at a time.

use crate::{Disk, Guest, Interrupts};
use model_addr::Ipa;
use model_virtio::{Effect, Window as _};

const QUEUE_SIZE: u64 = 8;

/// Registers of the transport (virtio 4.2.2).
mod reg {
    pub const DEVICE_FEATURES: u64 = 0x010;
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub const QUEUE_SIZE: u64 = 0x038;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACK: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESC_LOW: u64 = 0x080;
    pub const QUEUE_DRIVER_LOW: u64 = 0x090;
    pub const QUEUE_DEVICE_LOW: u64 = 0x0a0;
}

/// What a request asks for (virtio 5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `VIRTIO_BLK_T_IN`.
    Read = 0,
    /// `VIRTIO_BLK_T_OUT`.
    Write = 1,
    /// `VIRTIO_BLK_T_FLUSH`.
    Flush = 4,
    /// `VIRTIO_BLK_T_DISCARD`.
    Discard = 11,
    /// `VIRTIO_BLK_T_WRITE_ZEROES`.
    WriteZeroes = 13,
}

/// A driver, and the interrupt controller that it waits for.
pub struct Driver {
    /// Four pages of the guest: descriptors, driver's ring, device's ring, header and status.
    rings: Ipa,
    interrupts: Interrupts,
    requests: u16,
}

impl Driver {
    /// Finds the device and sets its queue up (virtio 3.1.1).
    pub fn start(guest: &Guest<'_>, disk: &mut Disk<'_>, rings: Ipa) -> Self {
        assert!(guest.put(rings, &[0; 0x4000]));
        let driver = Self {
            rings,
            interrupts: Interrupts::new(),
            requests: 0,
        };
        let offered = disk.transport.read(reg::DEVICE_FEATURES, 4);
        let mut write = |register, value| disk.transport.write(register, 4, value);
        for status in [1, 3] {
            write(reg::STATUS, status);
        }
        // VIRTIO_BLK_F_DISCARD and _WRITE_ZEROES, where they are offered; VIRTIO_F_VERSION_1.
        for (half, features) in [(0, offered & (1 << 13 | 1 << 14)), (1, 1)] {
            write(reg::DRIVER_FEATURES_SEL, half);
            write(reg::DRIVER_FEATURES, features);
        }
        write(reg::STATUS, 0xb);
        write(reg::QUEUE_SIZE, QUEUE_SIZE);
        for (register, at) in [
            (reg::QUEUE_DESC_LOW, driver.rings),
            (reg::QUEUE_DRIVER_LOW, driver.available()),
            (reg::QUEUE_DEVICE_LOW, driver.used()),
        ] {
            write(register, at.0 & 0xffff_ffff);
            write(register + 4, at.0 >> 32);
        }
        write(reg::QUEUE_READY, 1);
        assert_eq!(write(reg::STATUS, 0xf), Effect::Live);
        driver
    }

    fn available(&self) -> Ipa {
        Ipa(self.rings.0 + 0x1000)
    }

    fn used(&self) -> Ipa {
        Ipa(self.rings.0 + 0x2000)
    }

    fn header(&self) -> Ipa {
        Ipa(self.rings.0 + 0x3000)
    }

    fn status(&self) -> Ipa {
        Ipa(self.rings.0 + 0x3800)
    }

    /// Puts a request with up to six data buffers into the ring. It touches nothing that
    /// [`Self::start`] has not touched: it needs no memory.
    pub fn submit(&mut self, guest: &Guest<'_>, (kind, sector): (Kind, u64), data: &[(Ipa, u64)]) {
        let mut header = [0; 16];
        header[0] = kind as u8;
        header[8..].copy_from_slice(&sector.to_le_bytes());
        let data = data.iter().map(|(at, len)| (*at, *len, kind == Kind::Read));
        let mut buffers = vec![(self.header(), 16, false)];
        buffers.extend(data);
        buffers.push((self.status(), 1, true));
        let mut descriptors = Vec::new();
        for (n, (ipa, len, device_writes)) in (1_u16..).zip(&buffers) {
            descriptors.extend(ipa.0.to_le_bytes());
            descriptors.extend((*len as u32).to_le_bytes());
            let has_next = usize::from(n) < buffers.len();
            let flags = u16::from(has_next) | u16::from(*device_writes) << 1;
            descriptors.extend(flags.to_le_bytes());
            descriptors.extend(n.to_le_bytes());
        }
        let slot = self.available().0 + 4 + 2 * (u64::from(self.requests) % QUEUE_SIZE);
        self.requests = self.requests.wrapping_add(1);
        let stores: [(Ipa, &[u8]); 5] = [
            (self.header(), &header),
            (self.status(), &[0xff]),
            (self.rings, &descriptors),
            (Ipa(slot), &[0, 0]),
            (Ipa(self.available().0 + 2), &self.requests.to_le_bytes()),
        ];
        assert!(stores.iter().all(|(ipa, bytes)| guest.put(*ipa, bytes)));
    }

    /// The vCPU exits for the doorbell; the driver then waits for its interrupt. The status.
    pub fn ring(&mut self, guest: &Guest<'_>, disk: &mut Disk<'_>) -> u8 {
        let effect = disk.transport.write(reg::QUEUE_NOTIFY, 4, 0);
        assert_eq!(effect, Effect::Notify(0));
        disk.serve(guest);
        self.interrupts.set_line(disk.transport.irq_level());
        let taken = self.interrupts.acknowledge();
        assert!(taken.is_some(), "the interrupt is lost");
        let reasons = disk.transport.read(reg::INTERRUPT_STATUS, 4);
        assert_eq!(reasons, 1, "a buffer was used, and no error");
        disk.transport.write(reg::INTERRUPT_ACK, 4, reasons);
        self.interrupts.set_line(disk.transport.irq_level());
        self.interrupts.end(taken.unwrap());
        assert_eq!(self.interrupts.acknowledge(), None, "once");
        let used = guest.get(Ipa(self.used().0 + 2), 2);
        assert_eq!(used, self.requests.to_le_bytes());
        guest.get(self.status(), 1)[0]
    }
}
