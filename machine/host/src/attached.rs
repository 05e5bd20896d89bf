//! The machine's devices behind virtio-mmio windows, and what comes for them from outside.

use crate::disk::Disk;
use crate::machine::Machine;
use crate::port::{Card, Port};
use crate::ram::Ram;
use crate::rng::Rng;
use crate::virtio::{self, Device, Window};

/// Bytes of `struct virtio_net_hdr_v1`.
const CARD_HEADER: usize = 12;

impl Machine {
    /// Gives the machine a disk that holds `content`.
    pub fn attach_disk(&mut self, content: Vec<u8>) {
        self.disk = Some(Device::new(Disk::new(content)));
    }

    /// What its disk holds, once it is switched off.
    pub fn take_disk(&mut self) -> Vec<u8> {
        self.disk
            .take()
            .map_or_else(Vec::new, |disk| disk.model.content)
    }

    /// Gives it a console port.
    pub fn attach_port(&mut self) {
        self.port = Some(Device::new(Port::default()));
    }

    /// Gives it a network card.
    pub fn attach_card(&mut self) {
        self.card = Some(Device::new(Card::default()));
    }

    /// Bytes have come for the console port.
    pub fn tell(&mut self, bytes: &[u8]) {
        let now = self.time;
        self.port
            .iter_mut()
            .for_each(|port| port.model.push(bytes.to_vec(), now));
        self.look_ahead();
    }

    /// Nobody takes what the console port is given to send, for so many counts.
    pub fn stop_hearing(&mut self, counts: u64) {
        let until = self.time + counts;
        self.port
            .iter_mut()
            .for_each(|port| port.model.deaf_until = until);
    }

    /// What the console port was given to send, a buffer at a time.
    pub fn hear(&mut self) -> Option<Vec<u8>> {
        self.port.as_mut()?.model.outgoing.pop_front()
    }

    /// A frame has come for the network card, whose header says nothing of it (virtio 1.2, 5.1.6).
    pub fn send_frame(&mut self, frame: &[u8]) {
        let now = self.time;
        if let Some(card) = &mut self.card {
            let message = [&[0; CARD_HEADER], frame].concat();
            card.model.push(message, now);
        }
        self.look_ahead();
    }

    /// The next frame that the network card was given to send.
    pub fn take_frame(&mut self) -> Option<Vec<u8>> {
        let mut message = self.card.as_mut()?.model.outgoing.pop_front()?;
        Some(message.split_off(CARD_HEADER.min(message.len())))
    }

    fn windows(&mut self) -> [Option<&mut dyn Window>; virtio::WINDOWS] {
        [
            self.disk.as_mut().map(|it| it as &mut dyn Window),
            self.port.as_mut().map(|it| it as &mut dyn Window),
            self.card.as_mut().map(|it| it as &mut dyn Window),
        ]
    }

    /// Does something with the device at an offset from the first window; nothing where there is none.
    pub(crate) fn at_window<R>(
        &mut self,
        offset: u64,
        action: impl FnOnce(&mut dyn Window, u64, (&Ram, u64, &mut Rng)) -> R,
    ) -> Option<R> {
        let (ram, now, rng) = (&self.ram, self.time, &mut self.rng);
        let device: Option<&mut dyn Window> = match offset / virtio::WINDOW_SIZE {
            0 => self.disk.as_mut().map(|it| it as _),
            1 => self.port.as_mut().map(|it| it as _),
            _ => self.card.as_mut().map(|it| it as _),
        };
        device.map(|device| action(device, offset % virtio::WINDOW_SIZE, (ram, now, rng)))
    }

    /// Notes when devices have something to do.
    fn look_ahead(&mut self) {
        let due = self
            .windows()
            .into_iter()
            .flatten()
            .filter_map(|it| it.next());
        self.due = due.min().unwrap_or(u64::MAX);
    }

    /// The interrupts' lines become what devices say.
    pub(crate) fn drive_devices(&mut self) {
        let lines = self.windows().map(|it| it.is_some_and(|it| it.line()));
        for (intid, line) in (virtio::INTERRUPT..).zip(lines) {
            self.gic.set_line(intid, line);
        }
        self.look_ahead();
    }

    /// Devices do what is due.
    pub(crate) fn work(&mut self) {
        if self.time < self.due {
            return;
        }
        let (ram, now, rng) = (&mut self.ram, self.time, &mut self.rng);
        let devices: [Option<&mut dyn Window>; virtio::WINDOWS] = [
            self.disk.as_mut().map(|it| it as _),
            self.port.as_mut().map(|it| it as _),
            self.card.as_mut().map(|it| it as _),
        ];
        for device in devices.into_iter().flatten() {
            device.work(ram, now, rng);
        }
        self.drive_devices();
    }
}
