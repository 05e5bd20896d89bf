//! What is said of a VM to those who ask.

use crate::devices::uart::TYPED_ROOM;
use crate::drivers::port;
use crate::guest::{End, Guest, sessions, terminal::ROOM};
use crate::machine;
use crate::memory::regions;
use crate::vcpu::Vcpu;
use crate::vms::table::{Life, Vm};
use crate::vms::{holding, instance::Instance};
use abi::Text;
use abi::bundle::{NET_DOWN, VmRecord, kind};
use abi::control::{RawVcpu, RawVm, event, state, vcpu_state};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use model_control::Refusal;
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

/// What is counted of a VM; of one that has ended, as it was last.
pub fn read_vm(vm: &Vm) -> RawVm {
    let mut raw = vm.last().unwrap_or_else(RawVm::new_zeroed);
    let (record, terms) = (vm.record(), vm.terms());
    (raw.name, raw.kernel, raw.group) = (vm.name, kernel_name(&record), record.group);
    (raw.vcpus, raw.weight, raw.cap) = (record.vcpus, record.weight, record.cap.into());
    (raw.nets, raw.links_down) = (0, 0);
    for net in record.nets.iter().filter(|net| !net.switch.is_empty()) {
        raw.links_down |= u32::from(net.flags & NET_DOWN != 0) << raw.nets;
        raw.nets += 1;
    }
    raw.starts = vm.starts.load(Ordering::Relaxed);
    raw.claim = record.claim.into();
    (raw.is_alone, raw.hosts) = (record.is_alone().into(), record.hosts);
    raw.terms = [terms.base, terms.max, terms.overlays];
    raw.regions = regions::missing(&record);
    raw.memory = record.memory;
    if let Some(instance) = vm.instance() {
        read_instance(&instance, &mut raw);
    }
    raw
}

fn kernel_name(record: &VmRecord) -> Text<40> {
    let bundle = machine::get().bundle.as_ref();
    let entry = bundle.and_then(|bundle| bundle.entry(record.kernel));
    entry
        .filter(|entry| entry.kind == kind::KERNEL)
        .map_or_else(Text::default, |entry| entry.name)
}

fn read_instance(instance: &Instance, raw: &mut RawVm) {
    raw.state = match (instance.is_ending(), instance.is_paused()) {
        (true, _) => state::ENDING,
        (false, true) => state::PAUSED,
        (false, false) => state::RUNNING,
    };
    raw.reason = instance
        .reason()
        .map(reason)
        .or_else(|| instance.paging.complaint())
        .unwrap_or_default();
    let space = &instance.space;
    if let Some(hosts) = instance.with_session(|session, _| session.hosts()) {
        raw.hosts = hosts;
    }
    raw.node = instance.home.0.into();
    raw.memory = space.range().size;
    raw.target = holding::target(instance);
    raw.holding = zerocopy::transmute!(holding::holding(instance));
    raw.leaves = space.leaves().into();
    raw.bookkeeping =
        (size_of::<Instance>() + ROOM + TYPED_ROOM + size_of_val(&*instance.vcpus)) as u64;
    (raw.invalidations, raw.copies) = (space.invalidations(), space.copies());
    raw.events = zerocopy::transmute!(space.counts().1);
    raw.moving = instance.numa.is_moving().into();
    raw.waits = instance.paging.waits().all();
    raw.given_back = instance.given_back();
    raw.console = instance.terminal.counts();
    for vcpu in &instance.vcpus {
        for (sum, used) in raw.work.iter_mut().zip(vcpu.stats.used()) {
            *sum += used;
        }
    }
    let errors = instance.virtio.iter().map(|device| device.errors());
    raw.broken_queues += errors.sum::<u64>();
    for block in instance.disks() {
        let (in_memory, stored) = block.of_overlay(|disk| (disk.usage(), disk.stored()));
        raw.overlays = [raw.overlays[0] + in_memory, raw.overlays[1] + stored];
    }
    raw.counts = instance.counts();
}

/// What is counted of a vCPU. Nothing is asked of the vCPU itself.
pub fn read_vcpu(vm: &Guest, vcpu: &Vcpu) -> RawVcpu {
    let stats = &vcpu.stats;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let index = vcpu.index as u8;
    let (host, leaves) = vm
        .with_session(|session, _| (session.host_of(index), session.is_leaving(index)))
        .unwrap_or_default();
    let host = host.filter(|_| vm.is_elsewhere(index.into()));
    let state = match (vcpu.power.lock().state, vcpu.running_on()) {
        _ if leaves => vcpu_state::LEAVES,
        (model_vpsci::Power::Off, _) => vcpu_state::OFF,
        (_, Some(_)) => vcpu_state::RUNNING,
        (_, None) if stats.ready.load(Ordering::Relaxed) => vcpu_state::READY,
        (_, None) => vcpu_state::WAITING,
    };
    RawVcpu {
        state: host.map_or(state, |_| vcpu_state::ELSEWHERE),
        cpu: host.map_or(load(&stats.last_cpu) as u32, u32::from),
        migrations: load(&stats.migrations),
        pc: load(&stats.pc),
        work: stats.used(),
    }
}

/// Tells whoever watches that a VM's state has changed.
pub fn send_state(vm: &Vm) {
    let raw = read_vm(vm);
    port::send(event::STATE, 0, &[raw.as_bytes()]);
    sessions::state(raw.group, &raw);
}

/// What is said of it last.
impl Vm {
    /// Nothing of it runs any more: its instance, for the reaper. The VM is ending until what it had
    /// is free again; see [`Self::settle`].
    pub fn take_ended(&self) -> Option<Arc<Instance>> {
        let instance = self.instance()?;
        let mut raw = read_vm(self);
        raw.state = state::ENDING;
        (raw.holding, raw.overlays, raw.bookkeeping) = ([0; 7], [0; 2], 0);
        *self.life.lock() = Life::Ended(raw);
        Some(instance)
    }

    /// It was to start by itself, and cannot.
    pub fn refuse(&self, refusal: &Refusal) {
        if !matches!(&*self.life.lock(), Life::Defined) {
            return;
        }
        let mut raw = read_vm(self);
        let why = format_args!("not started: {}", refusal.sentence);
        let reason = Refusal::new(refusal.code, 0, why).sentence;
        (raw.state, raw.reason) = (state::ENDED, Text::cut(&reason));
        *self.life.lock() = Life::Ended(raw);
        send_state(self);
    }
}
