//! OS-0's vCPU on a CPU that VMs share: the world switch, and its turns.

use crate::beneath::interrupts::{Beside, OwnGic};
use crate::beneath::run::{Next, step};
use crate::beneath::{Os0Cpu, get, restart, this};
use crate::machine::{self, Cpu, Kind, cpu, due, stretch};
use crate::vcpu::{Outcome, sched};
use arch::entry::{self, GuestContext};
use arch::guest::{self, El1State};
use arch::list_registers::{HardwareLists, VirtualInterface};
use arch::native::{self, OwnersFp};
use arch::timer::{self, VirtualTimer};
use core::sync::atomic::Ordering;
use machine_contract::ListRegisters;
use model_gic_forward::{Forwarded, SavedLists};
use model_native_el1::Native;
use model_vmid::LastRun;

/// What OS-0 has in a CPU, and that CPU's own traps for it. General registers are here always, the
/// rest while a VM runs. By default as a CPU has it that arrives.
#[derive(Default)]
pub struct World {
    /// General registers.
    pub context: GuestContext,
    el1: El1State,
    timer: VirtualTimer,
    interface: VirtualInterface,
    /// Set where it is not in the CPU.
    is_away: bool,
    /// The count at which it left the CPU and could have gone on.
    waits_since: Option<u64>,
}

/// OS-0's floating point, which stays in the registers until a VM uses its own.
pub struct Fp {
    state: OwnersFp,
    is_away: bool,
}

impl Fp {
    pub const NEW: Self = Self {
        state: OwnersFp::RESET,
        is_away: false,
    };
}

impl World {
    /// As a CPU has it that is started: the executing one, in which it is not.
    pub fn begin_anew(&mut self, me: &Os0Cpu, entry: u64, argument: u64) {
        let el1 = El1State::reset(self.el1.vmpidr);
        *self = Self {
            el1,
            is_away: true,
            ..Self::default()
        };
        self.context.pstate = crate::beneath::run::PSTATE;
        self.context.pc = entry;
        self.context.registers[0] = argument;
        me.lists
            .set(SavedLists::save(&mut HardwareLists::of_this_cpu(), false));
    }

    /// Puts OS-0 into the CPU, if it is not.
    pub fn load(&mut self, me: &Os0Cpu, native: &Native) {
        if !self.is_away {
            return;
        }
        self.is_away = false;
        let hcr = if me.shares.get() {
            native::beside(native.hcr)
        } else {
            native::beneath(native.hcr)
        };
        let (vtcr, vttbr) = get().stage2;
        // SAFETY: OS-0's own registers and tables, and it owns the machine. Its TLB entries have a
        // VMID of their own, and it runs on no other CPU.
        unsafe { native::let_through(native, hcr, vtcr, vttbr) }
        me.cpu.last_run.set(LastRun { vttbr, vcpu: 0 });
        {
            let mut fp = me.fp.lock();
            if fp.is_away {
                // SAFETY: a VM's floating point is saved when it leaves the CPU.
                unsafe { fp.state.load(native) }
                fp.is_away = false;
            }
        }
        // SAFETY: nothing runs at EL1 until all of OS-0 is loaded.
        unsafe { self.el1.load() }
        self.timer.load(0);
        self.interface.load();
        let saved = me.lists.get();
        let mut lists = HardwareLists::of_this_cpu();
        if saved.load(&mut lists) {
            lists.set_underflow_interrupt(true);
        }
        set_timer_active(me, &saved, true);
    }

    /// Takes OS-0 out of the CPU, which VMs get.
    pub fn unload(&mut self, me: &Os0Cpu, native: &Native) {
        self.is_away = true;
        self.timer = VirtualTimer::save();
        self.interface = VirtualInterface::save();
        let mut lists = HardwareLists::of_this_cpu();
        let waits = lists.underflow_interrupt();
        let saved = SavedLists::save(&mut lists, waits);
        lists.set_underflow_interrupt(false);
        set_timer_active(me, &saved, false);
        me.lists.set(saved);
        let mut forwarder = me.forwarder.get();
        forwarder.leave(&mut me.gic(Beside::Away));
        me.forwarder.set(forwarder);
        self.el1.save();
        // SAFETY: no guest runs until a vCPU is loaded.
        unsafe { guest::init_cpu(machine::get().vtcr, native) }
    }
}

/// The virtual timer's interrupt is shared: that of OS-0 is active only while OS-0 has the timer.
fn set_timer_active(me: &Os0Cpu, lists: &SavedLists, active: bool) {
    let timer = machine::get().tree.timer.virtual_timer.intid;
    if lists.holds(timer)
        && let Some(redistributor) = me.redistributor.get()
    {
        redistributor.set_active(timer, active);
    }
}

/// Runs OS-0's vCPU of this CPU until it must leave; also gives when it is to be woken.
pub fn turn(cpu: &'static Cpu) -> (Outcome, Option<u64>) {
    let me = this();
    if let Some(outcome) = restart::look(me) {
        return (outcome, None);
    }
    let native = me.native.get();
    let mut world = me.world.lock();
    let came = timer::now();
    let stolen = came - world.waits_since.unwrap_or(came);
    cpu.os0[1].fetch_add(stolen, Ordering::Relaxed);
    world.load(me, &native);
    stretch::end();
    let outcome = loop {
        let next = step(me, &mut world.context);
        if !me.shares.get() {
            break Outcome::Off;
        }
        let is_to_leave = cpu.reschedule.load(Ordering::Relaxed) || !me.course.goes_on();
        let ends = match next {
            _ if is_to_leave || due::is_needed() => Some(Outcome::Preempted),
            Next::Leave => Some(Outcome::Preempted),
            Next::Wait if is_idle() => Some(Outcome::Waiting),
            Next::Go | Next::Wait => None,
        };
        // A system error of its own is OS-0's to take, at EL1, and must not end the VM that comes.
        if let Some(outcome) = ends
            && !entry::has_pending_error()
        {
            break outcome;
        }
    };
    cpu.stretch.begin(timer::now(), Kind::Switch);
    world.unload(me, &native);
    let left = timer::now();
    cpu.os0[0].fetch_add(left - came, Ordering::Relaxed);
    world.waits_since = (outcome == Outcome::Preempted).then_some(left);
    (outcome, world.timer.deadline())
}

/// Whether OS-0, which is in the CPU, has nothing to take.
fn is_idle() -> bool {
    let lists = HardwareLists::of_this_cpu();
    let used = !lists.empty();
    let mut all = 0..lists.count();
    !VirtualTimer::is_loaded_asserted()
        && !all.any(|n| used >> n & 1 == 1 && lists.read(n) >> 62 & 1 == 1)
}

/// Whether OS-0, which is not in the CPU, has something to take.
pub fn has_interrupt() -> bool {
    this().lists.get().has_pending()
}

/// A physical interrupt came while OS-0 is not in the CPU: what is its, is kept for it.
pub fn take_away() -> Forwarded {
    let me = this();
    let mut forwarder = me.forwarder.get();
    let mut lists = me.lists.get();
    let outcome = forwarder.forward(&mut lists, &mut me.gic(Beside::Away));
    me.lists.set(lists);
    me.forwarder.set(forwarder);
    outcome
}

/// OS-0 has something to do on this CPU.
pub fn call() {
    sched::wake(this().entity);
}

/// A VM is about to use floating point on this CPU: OS-0's is put aside.
pub fn put_fp_aside() {
    let me = this();
    let mut fp = me.fp.lock();
    if !fp.is_away {
        fp.state.save(&me.native.get());
        fp.is_away = true;
    }
}

/// An interrupt of EL2's own while OS-0 runs; its priority is dropped.
pub fn own_interrupt(me: &Os0Cpu, gic: &mut OwnGic, intid: u32) -> Next {
    use model_gic_forward::PhysicalGic;
    let is_alarm = intid == machine::get().tree.timer.hypervisor_timer.intid;
    if is_alarm {
        timer::clear_alarm();
    }
    gic.deactivate(intid);
    if is_alarm {
        crate::run::housekeeping::wake(me.cpu);
        if timer::now() >= me.cpu.slice_end.get() {
            return Next::Leave;
        }
        due::set_alarm(me.cpu);
    }
    Next::Go
}

/// EL2 shares the CPU between OS-0 and VMs as long as OS-0 says so.
pub fn share(me: &'static Os0Cpu) {
    let tree = &machine::get().tree;
    let own = [arch::gic::kick_sgi(), tree.timer.hypervisor_timer.intid];
    if let Some(redistributor) = me.redistributor.get() {
        for intid in own {
            redistributor.enable_urgent(intid);
        }
        redistributor.enable(tree.gic.maintenance.intid);
        redistributor.enable(tree.timer.virtual_timer.intid);
    }
    if sched::enter_os0(me.entity, me.cpu) {
        crate::run::cpu_loop::run_while(cpu::this(), || me.shares.get());
        sched::leave(me.entity);
    }
    timer::clear_alarm();
    if let Some(redistributor) = me.redistributor.get() {
        for intid in own {
            redistributor.disable(intid);
        }
    }
    crate::beneath::loans::hold().unshare();
}
