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
use core::{fmt, ptr::NonNull, sync::atomic::Ordering};
use machine_locks::Once;
use virtio_drivers::Error;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport as _};

/// What raises which interrupt.
#[derive(Default)]
struct Routes {
    control: Option<u32>,
    card: Option<u32>,
    disks: heapless::Vec<(u32, usize), { disk::DISKS_MAX }>,
}

static ROUTES: Once<Routes> = Once::new();

/// Finds and starts the devices; their interrupts come to the executing CPU.
pub fn init(distributor: gic::Distributor) {
    let mut routes = Routes::default();
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
        let used = match transport.device_type() {
            DeviceType::Console if routes.control.is_none() => {
                let started = port::start(transport);
                let is_used = has_started(format_args!("the control port"), started);
                routes.control = is_used.then_some(interrupt.intid);
                is_used
            }
            DeviceType::Block => {
                let number = routes.disks.len();
                let started = disk::start(number, transport);
                has_started(format_args!("physical disk {number}"), started)
                    && routes.disks.push((interrupt.intid, number)).is_ok()
            }
            DeviceType::Network if routes.card.is_none() => {
                let started = nic::start(transport);
                let is_used = has_started(format_args!("the network card"), started);
                routes.card = is_used.then_some(interrupt.intid);
                is_used
            }
            _ => false,
        };
        if used {
            distributor.enable_here(interrupt.intid, interrupt.edge);
        }
    }
    if routes.control.is_some() {
        // What came in before the interrupt was let through raised no edge that counts.
        port::acknowledge();
    } else {
        log::warn!("no virtio console: the machine cannot be controlled from outside");
    }
    let _ = ROUTES.set(routes);
}

/// Whether a device has started; says why where it has not.
fn has_started(what: fmt::Arguments<'_>, started: Result<(), Error>) -> bool {
    if let Err(error) = &started {
        log::warn!("{what} does not start: {error}");
    }
    started.is_ok()
}

/// A device interrupt.
pub fn interrupt(cpu: &'static Cpu, intid: u32) {
    let Some(routes) = ROUTES.get() else { return };
    // A guest may have left for it.
    cpu.stretch.begin(cpu.stretch.interrupted.get(), Kind::Exit);
    if routes.control == Some(intid) {
        port::acknowledge();
        // Requests are served between guests, not in the middle of one.
        cpu.reschedule.store(true, Ordering::Relaxed);
    } else if routes.card == Some(intid) {
        nic::interrupt();
    } else if let Some(&(_, number)) = routes.disks.iter().find(|(disk, _)| *disk == intid)
        && disk::interrupt(number)
    {
        due::request();
        cpu.reschedule.store(true, Ordering::Relaxed);
    }
}
