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
use queue::Transport;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport as _};

/// The most physical disks.
const DISKS_MAX: usize = 4;

/// What raises which interrupt.
struct Routes {
    control: Option<u32>,
    card: Option<u32>,
    disks: heapless::Vec<(u32, usize), DISKS_MAX>,
}

static ROUTES: Once<Routes> = Once::new();

/// Finds and starts the devices; their interrupts come to the executing CPU.
pub fn init(distributor: gic::Distributor) {
    let mut routes = Routes {
        control: None,
        card: None,
        disks: heapless::Vec::new(),
    };
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
                start_control(transport, &mut routes, interrupt.intid)
            }
            DeviceType::Block => start_disk(transport, &mut routes, interrupt.intid),
            DeviceType::Network if routes.card.is_none() => {
                start_card(transport, &mut routes, interrupt.intid)
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

fn start_control(transport: Transport, routes: &mut Routes, intid: u32) -> bool {
    match port::start(transport) {
        Ok(()) => {
            routes.control = Some(intid);
            true
        }
        Err(error) => {
            log::warn!("the control port does not start: {error}");
            false
        }
    }
}

fn start_disk(transport: Transport, routes: &mut Routes, intid: u32) -> bool {
    let number = routes.disks.len();
    match disk::start(number, transport) {
        Ok(()) => routes.disks.push((intid, number)).is_ok(),
        Err(error) => {
            log::warn!("physical disk {number} does not start: {error}");
            false
        }
    }
}

fn start_card(transport: Transport, routes: &mut Routes, intid: u32) -> bool {
    match nic::start(transport) {
        Ok(()) => {
            routes.card = Some(intid);
            true
        }
        Err(error) => {
            log::warn!("the network card does not start: {error}");
            false
        }
    }
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
