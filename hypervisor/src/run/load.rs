//! The world switch: a vCPU's state into the CPU and out of it again.

use crate::memory::vmids;
use crate::run::entry::Loaded;
use crate::vcpu::{NOWHERE, Vcpu};
use crate::vms::Instance;
use arch::guest::{self, El1State};
use arch::tlb::{self, Reaches};
use arch::{list_registers::VirtualInterface, timer::VirtualTimer};
use core::sync::atomic::Ordering;
use model_vmid::{Drops, LastRun};

impl Loaded<'_> {
    /// Puts the vCPU into the executing CPU.
    pub(super) fn load(&mut self) {
        self.vcpu.running_on.store(self.cpu.id.0, Ordering::SeqCst);
        self.count_migration();
        load_address_space(self.cpu, self.vm, self.vcpu);
        // SAFETY: this CPU runs no guest until the rest is loaded: `load` is not preempted.
        unsafe { self.core.el1.load() }
        self.core.timer.load(self.vm.time_offset());
        self.core.interface.load();
        self.core.lists.load(&mut self.lists);
        let active = self.vcpu.redistributor.lock().hw_active();
        self.set_physical_active(active, true);
        if self.core.physical_timer.deadline().is_some() {
            self.drive_physical_timer();
        }
    }

    /// Takes the vCPU out of the executing CPU.
    pub(super) fn unload(&mut self) {
        if self.core.fp_loaded {
            // SAFETY: the flag says that `load` was called since this vCPU was loaded.
            unsafe { self.core.fp.save() }
            self.core.fp_loaded = false;
        }
        self.core.timer = VirtualTimer::save();
        self.cpu.guest_deadline.set(u64::MAX);
        self.core.interface = VirtualInterface::save();
        let others = {
            let mut distributor = self.vm.distributor.lock();
            let mut redistributor = self.vcpu.redistributor.lock();
            self.core
                .lists
                .save(&mut redistributor, Some(&mut distributor), &mut self.lists)
        };
        self.vm.call_vcpus(others, crate::vcpu::attention::DELIVER);
        let active = self.vcpu.redistributor.lock().hw_active();
        self.set_physical_active(active, false);
        let mut el1 = El1State::default();
        el1.save();
        self.core.el1 = el1;
        self.vcpu
            .stats
            .pc
            .store(self.core.context.pc, Ordering::Relaxed);
        self.vcpu.running_on.store(NOWHERE, Ordering::SeqCst);
    }

    /// The physical interrupts behind what the guest has not ended go with the vCPU: another
    /// vCPU's timer shares the same PPI.
    fn set_physical_active(&self, mut intids: u32, active: bool) {
        let Some(redistributor) = self.cpu.redistributor.get() else {
            return;
        };
        while intids != 0 {
            redistributor.set_active(intids.trailing_zeros(), active);
            intids &= intids - 1;
        }
    }

    fn count_migration(&self) {
        let here = u64::from(self.cpu.id.0);
        let before = self.vcpu.stats.last_cpu.swap(here, Ordering::Relaxed);
        if before != here && before != u64::MAX {
            crate::vcpu::stats::add(&self.vcpu.stats.migrations, 1);
        }
    }
}

/// Gives the CPU the VM's stage 2, and drops what another vCPU of it may have left here.
fn load_address_space(cpu: &crate::machine::cpu::Cpu, vm: &Instance, vcpu: &Vcpu) {
    let next = LastRun {
        vttbr: vm.space.vttbr(cpu.node),
        vcpu: vcpu.index,
    };
    let last = cpu.last_run.replace(next);
    if last.vttbr != next.vttbr {
        // SAFETY: the instance's own tables.
        unsafe { guest::load_stage2(next.vttbr) }
    }
    match last.drops_before(next, vm.space.is_nodes_own(next.vttbr)) {
        Drops::Nothing => {}
        Drops::Stage1 => tlb::flush_stage1_local(),
        Drops::Both => tlb::flush_vmid(Reaches::Here),
    }
    vmids::run_on(vm.space.vmid(), cpu.id, vm.vcpus.len() == 1);
}
