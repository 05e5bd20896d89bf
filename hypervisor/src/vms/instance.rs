//! A VM that runs: from its start to its end or reset. A VM that is started again is a new one.

use crate::cluster::span::{self, Spanned};
use crate::devices::net::frame::{Accepted, Incoming};
use crate::devices::network::{End, Plugged};
use crate::devices::{
    Block, Devices, Net, RegisterAccess, VirtualDevice, balloon::Balloon, clock::Clock,
    power_button::PowerButton, uart::Uart, virtio::as_a,
};
use crate::guest::{Guest, layout::Places, paging};
use crate::machine::stretch;
use crate::memory::{AddressSpace, Dismantling};
use crate::vcpu::{Vcpu, attention};
use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU8, Ordering};
use model_addr::VmId;

/// A running VM.
pub struct Instance {
    guest: Guest,
    /// Its PL011 and console.
    pub uart: Uart,
    /// Its power button.
    pub power_button: PowerButton,
    /// Its clock of the wall.
    pub clock: Clock,
    /// Its virtio devices, in the order of their windows.
    pub virtio: Devices,
    /// Where its guest finds them.
    pub places: Places,
    /// The first of its devices that goes on with work that was put off.
    next_device: AtomicU8,
}

impl Deref for Instance {
    type Target = Guest;

    #[inline]
    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Instance {
    /// A VM about to run.
    pub fn new(guest: Guest, virtio: Devices, places: Places) -> Self {
        Self {
            guest,
            places,
            uart: Uart::new(),
            power_button: PowerButton::new(),
            clock: Clock::new(),
            virtio,
            next_device: AtomicU8::new(0),
        }
    }

    /// Its virtio devices of one kind, in the order of their windows.
    pub fn all<D: VirtualDevice>(&self) -> impl Iterator<Item = &D> {
        self.virtio.iter().filter_map(|device| as_a(&**device))
    }

    /// The device of that kind behind a window.
    pub fn at<D: VirtualDevice>(&self, window: usize) -> Option<&D> {
        as_a(&**self.virtio.get(window)?)
    }

    /// Its balloon, if its guest has a driver for it.
    pub fn balloon(&self) -> Option<&Balloon> {
        self.all().find(|balloon: &&Balloon| balloon.has_driver())
    }

    /// How many of `max` guest frames its guest was asked to keep to; `None` where there is no driver
    /// to ask.
    pub fn target(&self, max: u64) -> Option<u64> {
        let pages = self.balloon()?.target();
        Some(max.saturating_sub(pages.into()))
    }

    /// Asks the guest to keep to `frames` of `max` guest frames; `false` where there is nobody to ask.
    pub fn set_target(&self, frames: u64, max: u64) -> bool {
        let pages = max.saturating_sub(frames) as u32;
        let asked = self.balloon().map(|it| it.set_target(self, pages));
        asked.is_some()
    }

    /// Guest frames that the guest gave to its balloon, and that it reported free.
    pub fn given_back(&self) -> [u64; 2] {
        let counts = self.all().next().map(Balloon::counts).unwrap_or_default();
        [counts.inflated, counts.reported]
    }

    /// Its disks.
    pub fn disks(&self) -> impl Iterator<Item = &Block> {
        self.all()
    }

    /// Puts off device work that waited for its time, where that has come. All are asked: each asks for its next time.
    pub fn wake_devices(&self) {
        let devices = self.virtio.iter();
        if devices.fold(false, |is_due, device| is_due | device.is_due()) {
            self.put_off_device_work();
        }
    }

    /// A vCPU waits or leaves its CPU: devices do what was left for then, and tell the drivers.
    #[inline]
    pub fn tell_drivers(&self) {
        if self.has_untold.load(Ordering::Relaxed) {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        self.has_untold.store(false, Ordering::Relaxed);
        self.all().for_each(|net: &Net| net.send(self));
    }

    /// Goes on with device work that was put off, from the device on that was left out the last time.
    pub fn continue_devices(&self) {
        let first = usize::from(self.next_device.load(Ordering::Relaxed));
        let (later, sooner) = self.virtio.split_at(first.min(self.virtio.len()));
        let in_turn = (first..).zip(sooner).chain((0..).zip(later));
        let all = self.take_put_off();
        let mut left = all;
        for (n, device) in in_turn.filter(|(n, _)| all >> n & 1 != 0) {
            if left != all && stretch::is_long() {
                self.next_device.store(n as u8, Ordering::Relaxed);
                self.put_off_work_of(left);
                break;
            }
            left &= !(1 << n);
            device.proceed(self);
        }
        paging::bring_wanted(self);
    }

    /// An access to the registers of virtio device `n`.
    pub fn virtio_access(&self, n: u8, access: RegisterAccess) -> u64 {
        if access.value.is_some() {
            stretch::begin_access();
        }
        let device = self.virtio.get(usize::from(n));
        let read = device.map_or(0, |device| device.access(self, access));
        paging::bring_wanted(self);
        read
    }

    /// Takes it apart, once nothing runs or refers to it.
    pub fn dismantle(self) -> Dismantling {
        self.guest.dismantle()
    }
}

impl Plugged for Instance {
    fn take(&self, window: usize, incoming: Incoming<'_>, waiter: Option<u8>) -> Accepted {
        let net = self.at::<Net>(window);
        let accepted = net.map_or(Accepted::Over, |net| net.take(self, incoming, waiter));
        // Its own vCPUs may all wait, and touch no device: what it lacks is brought for it.
        let lacks = matches!(accepted, Accepted::Full | Accepted::Away);
        if lacks && !self.space.spans() && !self.must_stand_still() {
            paging::bring_wanted(self);
        }
        accepted
    }

    fn send(&self, window: usize) {
        if let Some(net) = self.at::<Net>(window) {
            net.send(self);
        }
    }

    fn pass_over(&self, window: usize) {
        if let Some(net) = self.at::<Net>(window) {
            net.pass_over();
        }
    }
}

impl Spanned for Instance {
    fn id(&self) -> VmId {
        self.guest.id
    }

    fn life(&self) -> u32 {
        self.guest.life()
    }

    fn count(&self) -> u64 {
        self.guest.time()
    }

    fn reaches(&self, count: u64) -> Option<bool> {
        self.guest.reaches(count)
    }

    fn space(&self) -> &AddressSpace {
        &self.guest.space
    }

    fn vcpus(&self) -> &[Vcpu] {
        &self.guest.vcpus
    }

    fn is_elsewhere(&self, vcpu: usize) -> bool {
        self.guest.is_elsewhere(vcpu)
    }

    fn put_off_device_work(&self) {
        self.guest.put_off_device_work();
    }

    fn end(&self, why: fmt::Arguments<'_>) {
        self.guest.end(why);
    }

    fn part(&self) {
        self.guest.with_session(|session, send| session.part(send));
    }
}

/// A VM is about to run: frames and other hosts find it.
pub fn connect(vm: &Arc<Instance>) {
    if vm.space.spans() {
        for vcpu in &vm.vcpus {
            vcpu.attention.fetch_or(attention::SPANS, Ordering::SeqCst);
        }
        span::enter(Arc::clone(vm) as Arc<dyn Spanned>);
    }
    for window in 0..vm.virtio.len() {
        if let Some(net) = vm.at::<Net>(window) {
            let end = End::Vm(Arc::clone(vm) as Arc<dyn Plugged>, window);
            net.cable().lan().set_end(net.cable().port(), Some(end));
        }
    }
}

/// A VM has ended: no frame finds it any more.
pub fn disconnect(vm: &Instance) {
    span::leave(vm.id);
    for cable in vm.all().map(Net::cable) {
        cable.lan().set_end(cable.port(), None);
    }
}
