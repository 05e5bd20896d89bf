//! What a VM's virtio devices have in common, whatever they are: [`VirtualDevice`].

use crate::devices::register::RegisterAccess;
use crate::guest::{Guest, layout};
use crate::machine::{due, entropy};
use abi::state;
use alloc::{boxed::Box, vec::Vec};
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::{Rank, SpinGuard, SpinLock};
use model_addr::Gfn;
use model_virtio::{Device, Effect, Status, Transport, console, rng};

/// Bytes that a console moves in one go: each takes up to 45 instructions.
const BYTES_AT_ONCE: usize = 512;
/// Bytes that the entropy source makes in one go: each takes about a hundred instructions.
const RANDOM_AT_ONCE: usize = 256;

/// A device of a VM, as all else knows it.
pub trait VirtualDevice: Any + Send + Sync {
    /// Does a guest's access to its registers, and gives what was read.
    fn access(&self, vm: &Guest, access: RegisterAccess) -> u64;
    /// Goes on with work that was put off.
    fn proceed(&self, vm: &Guest);
    /// Whether its queues, or a request under way, use a guest frame; yes where that cannot be told.
    fn uses(&self, gfn: Gfn) -> bool;
    /// Its VM stands still: no page is kept for what its queues hold and nobody has taken.
    fn let_go(&self);
    /// Whether work that waited for its time may be done; asks to be asked again where it may later. It does not
    /// wait for whoever is at it: the VM is to see for itself.
    fn is_due(&self) -> bool;
    /// Frames that it holds for its VM alone, as of its last work: whoever asks does not wait for what it is at.
    fn frames(&self) -> u64;
    /// Queues that its driver broke since the start, and pages that it gave and were not its to give.
    fn errors(&self) -> u64;
    /// Makes its record, for the image that takes this one's place; an error says what has none.
    fn record(&self) -> Result<state::Device, &'static str>;
    /// Restores it from a record; `false` where that is of another device, or makes no sense.
    fn restore(&self, record: &state::Device) -> bool;
}

/// All devices of a VM, in the order of their windows.
pub type Devices = Vec<Box<dyn VirtualDevice>>;

/// The device, if it is of that kind.
pub fn as_a<D: VirtualDevice>(device: &dyn VirtualDevice) -> Option<&D> {
    (device as &dyn Any).downcast_ref()
}

/// Work of a kind of device behind its registers, under the device's lock.
pub trait Behaviour: Send + 'static {
    /// As the driver sees it.
    type Device: Device;
    /// Whether some of its work waits for its time, as [`Self::due`] says.
    const WAITS: bool = false;

    /// Its registers and queues.
    fn transport(&mut self) -> &mut Transport<Self::Device>;

    /// Goes on with work, as far as one pass goes.
    fn work(&mut self, vm: &Guest);

    /// Does what a driver asks for that has put work into a queue, is set up, or starts over.
    fn notified(&mut self, vm: &Guest) {
        self.work(vm);
    }

    /// Whether its queues, or a request under way, use a guest frame.
    fn uses(&mut self, gfn: Gfn) -> bool {
        self.transport().uses(gfn)
    }

    /// The count from which on work that waits for its time may be done.
    fn due(&mut self) -> Option<u64> {
        None
    }

    /// Frames that it holds for its VM alone.
    fn frames(&self) -> u64 {
        0
    }

    /// Counts what [`VirtualDevice::errors`] tells.
    fn errors(&mut self) -> u64 {
        self.transport().errors().0.into()
    }

    /// Makes its record; an error says what has none.
    fn record(&mut self) -> Result<state::Device, &'static str> {
        Ok(self.transport().record())
    }

    /// Restores it from a record; `false` where that is of another device, or makes no sense.
    fn restore(&mut self, record: &state::Device) -> bool {
        self.transport().restore(record)
    }
}

/// A device with a lock around it.
pub struct Virtio<B> {
    /// Its place among the VM's devices.
    window: usize,
    /// What [`VirtualDevice::frames`] tells.
    frames: AtomicU64,
    pub(super) state: SpinLock<B>,
}

impl<B: Behaviour> Virtio<B> {
    /// A device at that place among the VM's.
    pub(super) fn with(window: usize, state: B) -> Self {
        let state = SpinLock::new(Rank::Device, state);
        Self {
            window,
            frames: AtomicU64::new(0),
            state,
        }
    }

    /// After its work: tells what it holds, and shows the guest the interrupt line.
    pub(super) fn show(&self, vm: &Guest, state: &mut B) {
        self.tell_frames(state);
        show_line(vm, self.window, state.transport());
    }

    /// Tells what it holds.
    pub(super) fn tell_frames(&self, state: &B) {
        self.frames.store(state.frames(), Ordering::Relaxed);
    }
}

/// Shows the guest the interrupt line of a device, where that has changed.
#[inline]
pub fn show_line<D: Device>(vm: &Guest, window: usize, transport: &mut Transport<D>) {
    if let Some(level) = transport.line_changed() {
        vm.set_line(layout::VIRTIO_INTID + window as u32, level);
    }
}

impl<B: Behaviour> VirtualDevice for Virtio<B> {
    fn access(&self, vm: &Guest, access: RegisterAccess) -> u64 {
        let mut state = self.state.lock();
        let (read, effect) = access.on(state.transport());
        if effect != Effect::None {
            state.notified(vm);
            self.tell_frames(&state);
        }
        show_line(vm, self.window, state.transport());
        read
    }

    fn proceed(&self, vm: &Guest) {
        let mut state = self.state.lock();
        state.work(vm);
        self.show(vm, &mut state);
    }

    fn uses(&self, gfn: Gfn) -> bool {
        let state = self.state.try_lock();
        state.is_none_or(|mut state| state.uses(gfn))
    }

    fn let_go(&self) {
        self.state.lock().transport().let_go();
    }

    fn is_due(&self) -> bool {
        let is_due = |mut state: SpinGuard<'_, B>| state.due().is_some_and(due::has_come);
        B::WAITS && self.state.try_lock().is_none_or(is_due)
    }

    fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    fn errors(&self) -> u64 {
        self.state.lock().errors()
    }

    fn record(&self) -> Result<state::Device, &'static str> {
        self.state.lock().record()
    }

    fn restore(&self, record: &state::Device) -> bool {
        self.state.lock().restore(record)
    }
}

/// A console.
pub type Console = Virtio<Transport<console::Console>>;

impl Console {
    /// A console at which nobody has typed.
    pub fn new(window: usize) -> Self {
        Self::with(window, Transport::new(console::Console::default()))
    }

    /// Takes what somebody typed: how many bytes; `None` where its driver is not there.
    pub fn receive(&self, vm: &Guest, bytes: &[u8]) -> Option<usize> {
        let mut state = self.state.lock();
        if !state.status().contains(Status::DRIVER_OK) {
            return None;
        }
        let taken = state.receive(&vm.memory(), bytes);
        self.show(vm, &mut state);
        Some(taken)
    }
}

impl Behaviour for Transport<console::Console> {
    type Device = console::Console;

    fn transport(&mut self) -> &mut Self {
        self
    }

    fn work(&mut self, vm: &Guest) {
        let progress = self.transmit(&vm.memory(), BYTES_AT_ONCE, |bytes| {
            for &byte in bytes {
                vm.terminal.put(byte);
            }
        });
        if progress.bytes > 0 {
            vm.terminal.is_uart.store(false, Ordering::Relaxed);
        }
        if progress.more {
            vm.put_off_device_work();
        }
    }
}

/// An entropy source.
pub type Rng = Virtio<Transport<rng::Rng>>;

impl Rng {
    /// A source that gives the machine's entropy.
    pub fn new(window: usize) -> Self {
        Self::with(window, Transport::new(rng::Rng::default()))
    }
}

impl Behaviour for Transport<rng::Rng> {
    type Device = rng::Rng;

    fn transport(&mut self) -> &mut Self {
        self
    }

    fn work(&mut self, vm: &Guest) {
        let filled = self.fill(&vm.memory(), RANDOM_AT_ONCE, entropy::fill);
        if filled.more {
            vm.put_off_device_work();
        }
    }
}
