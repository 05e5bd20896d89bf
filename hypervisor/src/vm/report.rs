//! What is said of a VM to those who ask.

use super::instance::{End, Instance};
use super::table::Vm;
use crate::control::{port, vms};
use crate::device::virtio::Slot;
use crate::host::{self, nanoseconds};
use crate::vcpu::Vcpu;
use abi::Text;
use abi::bundle::{NET_DOWN, VmRecord, kind};
use abi::control::{VcpuStatus, VmStatus, event, state, vcpu_state};
use core::sync::atomic::Ordering;
use zerocopy::{FromZeros, IntoBytes};

/// A sentence for an end.
pub fn reason(end: End) -> Text<96> {
    match end {
        End::PowerOff => Text::cut("powered off"),
        End::Reset => Text::cut("reset"),
        End::Killed => Text::cut("killed"),
        End::Failed(text) => text,
    }
}

/// How a VM stands.
pub fn vm_status(vm: &Vm) -> VmStatus {
    let mut status = vm.last_status().unwrap_or_else(VmStatus::new_zeroed);
    (status.nets, status.links_down) = (0, 0);
    let record = vm.record();
    status.name = vm.name;
    status.kernel = kernel_name(&record);
    (status.vcpus, status.weight, status.cap) = (record.vcpus, record.weight, record.cap);
    status.memory = record.memory;
    for net in record.nets.iter().filter(|net| !net.switch.is_empty()) {
        status.links_down |= u32::from(net.flags & NET_DOWN != 0) << status.nets;
        status.nets += 1;
    }
    status.starts = vm.starts.load(Ordering::Relaxed);
    if let Some(instance) = vm.instance() {
        status.memory = instance.space.range().size;
        describe(&instance, &mut status);
    }
    status
}

fn kernel_name(record: &VmRecord) -> Text<40> {
    let bundle = host::get().bundle.as_ref();
    let entry = bundle.and_then(|bundle| bundle.entry(record.kernel));
    entry
        .filter(|entry| entry.kind == kind::KERNEL)
        .map_or_else(Text::default, |entry| entry.name)
}

fn describe(instance: &Instance, status: &mut VmStatus) {
    status.state = match (instance.is_ending(), instance.is_paused()) {
        (true, _) => state::ENDING,
        (false, true) => state::PAUSED,
        (false, false) => state::RUNNING,
    };
    status.reason = instance
        .reason()
        .map(reason)
        .or_else(|| instance.paging.complaint())
        .unwrap_or_default();
    (status.touched, status.overhead) = instance.space.usage();
    status.overhead += size_of::<Instance>() as u64 + size_of_val(&*instance.vcpus) as u64;
    status.invalidations = instance.space.invalidations();
    status.node = instance.home.0.into();
    for vcpu in &instance.vcpus {
        let each = vcpu_status(vcpu);
        status.run_ns += each.run_ns;
        status.steal_ns += each.steal_ns;
        status.hypervisor_ns += each.hypervisor_ns;
        status.idle_ns += each.idle_ns;
        add(&mut status.exits, each.exits);
        add(&mut status.exit_ns, each.exit_ns);
    }
    let mut errors = 0;
    for slot in &instance.virtio {
        errors += slot.errors();
        if let Slot::Block(block) = slot {
            let (overlay, stored) = block.overlay_usage();
            status.overlay += overlay;
            status.stored += stored;
            let (requests, bytes) = block.counts();
            add(&mut status.disk, requests);
            add(&mut status.disk_bytes, bytes);
            let served = block.served();
            status.disk_errors += served.errors;
            status.disk_ns += served.nanoseconds;
            add(&mut status.disk_latency, served.latency);
        }
        if let Slot::Net(net) = slot {
            net.add_to(status);
        }
    }
    status.console = instance.uart.terminal.counts();
    let [registers, accesses, calls] = instance.oddities.counts();
    status.oddities = [registers, accesses, errors, calls];
}

fn add<const N: usize>(sums: &mut [u64; N], values: [u64; N]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}

/// How a vCPU stands. Nothing is asked of the vCPU itself.
pub fn vcpu_status(vcpu: &Vcpu) -> VcpuStatus {
    let stats = &vcpu.stats;
    let load = |counter: &core::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let time = |counter| nanoseconds(load(counter));
    let state = match (vcpu.power.lock().state, vcpu.running_on()) {
        (model_vpsci::Power::Off, _) => vcpu_state::OFF,
        (_, Some(_)) => vcpu_state::RUNNING,
        (_, None) if stats.ready.load(Ordering::Relaxed) => vcpu_state::READY,
        (_, None) => vcpu_state::WAITING,
    };
    VcpuStatus {
        state,
        cpu: load(&stats.last_cpu) as u32,
        run_ns: time(&stats.run),
        steal_ns: time(&stats.steal),
        hypervisor_ns: time(&stats.hypervisor),
        idle_ns: time(&stats.idle),
        migrations: load(&stats.migrations),
        pc: load(&stats.pc),
        exits: core::array::from_fn(|class| load(&stats.exits[class])),
        exit_ns: stats.exit_counts().map(nanoseconds),
    }
}

/// Tells whoever watches that a VM's state has changed.
pub fn send_state(vm: &Vm) {
    let status = vm_status(vm);
    port::send(event::STATE, 0, &[status.as_bytes()]);
    vms::state(vm.group(), &status);
}
