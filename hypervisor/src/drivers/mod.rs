//! The machine's own devices that EL2 drives: a console port for control, disks, and a network
//! card. All are
//! virtio over mmio, as on the reference machine.

pub mod channel;
pub mod disk;
pub mod jobs;
pub mod nic;
pub mod port;
pub mod queue;
pub mod requests;
mod served;
pub mod uplink;

pub use jobs::{ENDS, Ends, Job, Move, Part};
pub use requests::Incoming;

pub use disk::{Buffer, Extent, Io, Operation, Partition};

use crate::machine::{self, Cpu, Kind, due};
use arch::gic;
use core::{ptr::NonNull, sync::atomic::Ordering};
use machine_locks::Once;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport as _};

/// What raises an interrupt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Control,
    Card,
    Disk(usize),
}

/// The devices that EL2 drives, by the number of their interrupts.
static ROUTES: Once<heapless::LinearMap<u32, Source, { disk::DISKS_MAX + 2 }>> = Once::new();

/// Finds and starts the devices; their interrupts come to the executing CPU.
pub fn init(distributor: gic::Distributor) {
    let mut routes = heapless::LinearMap::new();
    for window in &machine::get().tree.virtio {
        let Some(header) = NonNull::new(core::ptr::with_exposed_provenance_mut::<VirtIOHeader>(
            window.registers.start.0 as usize,
        )) else {
            continue;
        };
        // SAFETY: the device tree says that a virtio-mmio window is there; EL2 has mapped it as
        // Device memory and drives it nowhere else.
        let Ok(transport) = (unsafe { MmioTransport::new(header, window.registers.size as usize) })
        else {
            continue;
        };
        let interrupt = window.interrupt;
        let has = |source| routes.values().any(|other| *other == source);
        let (what, source, started) = match transport.device_type() {
            DeviceType::Console if !has(Source::Control) => {
                ("control port", Source::Control, port::start(transport))
            }
            DeviceType::Network if !has(Source::Card) => {
                ("network card", Source::Card, nic::start(transport))
            }
            DeviceType::Block => {
                let is_free = |n: &usize| !has(Source::Disk(*n));
                let n = (0..disk::DISKS_MAX)
                    .find(is_free)
                    .unwrap_or(disk::DISKS_MAX);
                ("physical disk", Source::Disk(n), disk::start(n, transport))
            }
            _ => continue,
        };
        match started {
            // There is a place for each.
            Ok(()) if routes.insert(interrupt.intid, source).is_ok() => {
                distributor.enable_here(interrupt.intid, interrupt.edge);
            }
            Ok(()) => {}
            Err(error) => log::warn!("the {what} does not start: {error}"),
        }
    }
    if routes.values().any(|source| *source == Source::Control) {
        // What came in before the interrupt was let through raised no edge that counts.
        port::acknowledge();
    } else {
        log::warn!("no virtio console: the machine cannot be controlled from outside");
    }
    let _ = ROUTES.set(routes);
}

/// A device interrupt.
pub fn interrupt(cpu: &'static Cpu, intid: u32) {
    let source = ROUTES.get().and_then(|routes| routes.get(&intid));
    // A guest may have left for it.
    cpu.stretch.begin(cpu.stretch.interrupted.get(), Kind::Exit);
    match source {
        Some(Source::Control) => {
            port::acknowledge();
            // Requests are served between guests, not in the middle of one.
            cpu.reschedule.store(true, Ordering::Relaxed);
        }
        Some(Source::Card) => is_left(cpu, nic::interrupt()),
        Some(Source::Disk(number)) => is_left(cpu, disk::interrupt(*number)),
        None => {}
    }
}

/// Something that has come is left for later, or nothing is.
fn is_left(cpu: &Cpu, is_left: bool) {
    if is_left {
        due::request();
        cpu.reschedule.store(true, Ordering::Relaxed);
    }
}
