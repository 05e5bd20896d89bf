//! A VM's virtio devices, each behind its register window.

use crate::devices::register::{RegisterAccess, register, update_line};
use crate::devices::{balloon::Balloon, block::Block, control_port::ControlPort, net::Net};
use crate::guest::Guest;
use crate::machine::entropy;
use abi::state;
use core::sync::atomic::Ordering;
use machine_locks::{Rank, SpinLock};
use model_addr::Gfn;
use model_virtio::{Transport, console::Console, rng::Rng};

/// Bytes that a console moves in one go: each takes up to 45 instructions.
const BYTES_AT_ONCE: usize = 512;
/// Bytes that the entropy source makes in one go: each takes about a hundred instructions.
const RANDOM_AT_ONCE: usize = 256;

/// One device.
#[expect(clippy::large_enum_variant, reason = "a few for each VM")]
pub enum Slot {
    /// A disk.
    Block(Block),
    /// A console.
    Console(SpinLock<Transport<Console>>),
    /// An entropy source.
    Rng(SpinLock<Transport<Rng>>),
    /// A balloon.
    Balloon(Balloon),
    /// A network device.
    Net(Net),
    /// The way to ask the hypervisor.
    Control(ControlPort),
}

impl Slot {
    /// A console.
    pub fn console() -> Self {
        Self::Console(SpinLock::new(
            Rank::Device,
            Transport::new(Console::default()),
        ))
    }

    /// An entropy source.
    pub fn rng() -> Self {
        Self::Rng(SpinLock::new(Rank::Device, Transport::new(Rng::default())))
    }

    /// Does a guest's access to window `n`; what it read.
    pub fn access(&self, vm: &Guest, n: usize, access: RegisterAccess) -> u64 {
        match self {
            Self::Block(block) => block.access(vm, n, access),
            Self::Console(transport) => {
                let mut transport = transport.lock();
                register(&mut transport, vm, n, access, transmit)
            }
            Self::Rng(transport) => {
                let mut transport = transport.lock();
                register(&mut transport, vm, n, access, fill)
            }
            Self::Balloon(balloon) => balloon.access(vm, n, access),
            Self::Net(net) => net.access(vm, n, access),
            Self::Control(port) => port.access(vm, n, access),
        }
    }

    /// Goes on with work that was put off.
    pub fn proceed(&self, vm: &Guest, n: usize) {
        match self {
            Self::Block(block) => block.proceed(vm, n),
            Self::Console(transport) => {
                let mut transport = transport.lock();
                transmit(&mut transport, vm);
                update_line(&transport, vm, n);
            }
            Self::Rng(transport) => {
                let mut transport = transport.lock();
                fill(&mut transport, vm);
                update_line(&transport, vm, n);
            }
            Self::Balloon(balloon) => balloon.proceed(vm, n),
            Self::Net(net) => net.proceed(vm, n),
            Self::Control(port) => port.proceed(vm, n),
        }
    }

    /// Whether its queues, or a request under way, use a guest frame; yes where that cannot be told.
    pub fn uses(&self, gfn: Gfn) -> bool {
        match self {
            Self::Block(block) => block.uses(gfn),
            Self::Console(transport) => transport.try_lock().is_none_or(|it| it.uses(gfn)),
            Self::Rng(transport) => transport.try_lock().is_none_or(|it| it.uses(gfn)),
            Self::Balloon(balloon) => balloon.uses(gfn),
            Self::Net(net) => net.uses(gfn),
            Self::Control(port) => port.uses(gfn),
        }
    }

    /// Its record; or what has none.
    pub fn record(&self) -> Result<state::Device, &'static str> {
        Ok(match self {
            Self::Block(block) => block.record().ok_or("a disk that is at work")?,
            Self::Console(transport) => transport.lock().record(),
            Self::Rng(transport) => transport.lock().record(),
            Self::Balloon(balloon) => balloon.record(),
            Self::Net(net) => net.record(),
            Self::Control(port) => port.record(),
        })
    }

    /// As a record has it; `false` where that is of another device, or makes no sense.
    #[must_use]
    pub fn restore(&self, record: &state::Device) -> bool {
        match self {
            Self::Block(block) => block.restore(record),
            Self::Console(transport) => transport.lock().restore(record),
            Self::Rng(transport) => transport.lock().restore(record),
            Self::Balloon(balloon) => balloon.restore(record),
            Self::Net(net) => net.restore(record),
            Self::Control(port) => port.restore(record),
        }
    }

    /// Queues that their drivers broke, since the start, and pages that a balloon refused.
    pub fn errors(&self) -> u64 {
        let (errors, _) = match self {
            Self::Block(block) => return block.errors(),
            Self::Console(transport) => transport.lock().errors(),
            Self::Rng(transport) => transport.lock().errors(),
            Self::Balloon(balloon) => return balloon.errors(),
            Self::Net(net) => return net.errors(),
            Self::Control(port) => return port.errors(),
        };
        errors.into()
    }

    /// Somebody typed: how many bytes a console took; `None` where this is none, or its driver is
    /// not there.
    pub fn receive(&self, vm: &Guest, n: usize, bytes: &[u8]) -> Option<usize> {
        let Self::Console(transport) = self else {
            return None;
        };
        let mut transport = transport.lock();
        if !transport
            .status()
            .contains(model_virtio::mmio::Status::DRIVER_OK)
        {
            return None;
        }
        let taken = transport.receive(&vm.memory(), bytes);
        update_line(&transport, vm, n);
        Some(taken)
    }
}

fn transmit(transport: &mut Transport<Console>, vm: &Guest) {
    let progress = transport.transmit(&vm.memory(), BYTES_AT_ONCE, |bytes| {
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

fn fill(transport: &mut Transport<Rng>, vm: &Guest) {
    let filled = transport.fill(&vm.memory(), RANDOM_AT_ONCE, entropy::fill);
    if filled.more {
        vm.put_off_device_work();
    }
}
