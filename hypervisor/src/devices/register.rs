//! A virtio device's register window.

use crate::guest::{Guest, layout};
use model_virtio::{Device, Effect, Transport};

/// A guest's access of `size` bytes to the register at `offset` of a device's window.
#[derive(Clone, Copy)]
pub struct RegisterAccess {
    pub offset: u64,
    pub size: usize,
    /// What is written; `None`: it is read.
    pub value: Option<u64>,
}

/// Does a register access and what it asks for.
pub fn register<D: Device>(
    transport: &mut Transport<D>,
    vm: &Guest,
    n: usize,
    access: RegisterAccess,
    work: impl FnOnce(&mut Transport<D>, &Guest),
) -> u64 {
    let Some(value) = access.value else {
        return transport.read(access.offset, access.size);
    };
    match transport.write(access.offset, access.size, value) {
        Effect::Notify(_) | Effect::Live => work(transport, vm),
        Effect::None | Effect::Reset => {}
    }
    update_line(transport, vm, n);
    0
}

/// Shows the guest the device's interrupt line.
pub fn update_line<D: Device>(transport: &Transport<D>, vm: &Guest, n: usize) {
    vm.set_line(layout::VIRTIO_INTID + n as u32, transport.irq_level());
}
