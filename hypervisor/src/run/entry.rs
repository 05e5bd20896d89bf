//! Running a vCPU on the executing CPU, from exit to exit.

use crate::cluster::span;
use crate::guest::layout::{self, Place};
use crate::machine::{Cpu, Kind, due, stretch};
use crate::run::exit;
use crate::vcpu::{Core, Exits, Outcome, Vcpu, attention};
use crate::vms::Instance;
use abi::control::{off_cpu, trace, work};
use arch::entry::{self, Leave};
use arch::guest;
use arch::list_registers::HardwareLists;
use arch::timer::{self, VirtualTimer};
use core::sync::atomic::Ordering;
use machine_locks::SpinGuard;
use model_mmio::Row;
use model_vpsci::Power;

/// The interrupt of the EL1 physical timer.
const PHYSICAL_TIMER_PPI: u32 = 16 + model_guest_image::map::TIMER_PPIS[1];

/// What follows an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Back into the guest.
    Resume,
    /// Off the CPU.
    Leave(Outcome),
}

/// A vCPU in the executing CPU.
pub struct Loaded<'a> {
    /// The CPU.
    pub cpu: &'static Cpu,
    /// The VM.
    pub vm: &'a Instance,
    /// The vCPU.
    pub vcpu: &'a Vcpu,
    /// Its state: EL1 registers, timer and interface are in the hardware.
    pub core: SpinGuard<'a, Core>,
    /// The CPU's list registers.
    pub lists: HardwareLists,
    /// The device that its guest used last.
    pub place: Row<Place>,
    /// Counts that it slept in the CPU.
    pub slept: u64,
    /// Where exits are traced or timed: how many there were at the last, and what it had slept.
    observed: Option<(Exits, u64)>,
}

/// Runs the vCPU until it must leave.
pub fn run(cpu: &'static Cpu, vm: &Instance, vcpu: &Vcpu) -> Outcome {
    let arrived = timer::now();
    if vcpu.power.lock().state == Power::Off {
        return Outcome::Off;
    }
    if vm.must_stand_still() {
        return Outcome::Stopped;
    }
    let core = vcpu.core.lock();
    let mut loaded = Loaded {
        cpu,
        vm,
        vcpu,
        core,
        lists: HardwareLists::of_this_cpu(),
        place: Row::default(),
        slept: 0,
        observed: None,
    };
    loaded.account_wait(arrived);
    loaded.begin_if_turned_on();
    loaded.load();
    if vm.space.spans() {
        guest::trap_tlb_maintenance(true);
    }
    loaded.show_stolen_time();
    let outcome = loaded.run_loaded(arrived);
    vm.tell_drivers();
    exit::settle_errors(&mut loaded);
    loaded.unload();
    if vm.space.spans() {
        guest::trap_tlb_maintenance(false);
        if outcome == Outcome::Preempted {
            span::let_go(vcpu.index, 0, true);
        }
    }
    vm.terminal.flush();
    if outcome == Outcome::Off {
        loaded.turned_off();
    }
    vcpu.stats
        .ready
        .store(outcome == Outcome::Preempted, Ordering::Relaxed);
    let left = timer::now();
    vcpu.stats.waiting_since.store(left, Ordering::Relaxed);
    loaded.trace_switch(arrived, outcome);
    outcome
}

impl Loaded<'_> {
    #[inline(never)]
    fn run_loaded(&mut self, mut left_guest: u64) -> Outcome {
        let vcpu = self.vcpu;
        stretch::end();
        loop {
            let mut entered = timer::now();
            let asked = u64::from(vcpu.attention.load(Ordering::Relaxed));
            // It is asked for something, or the exit took long.
            if asked | (entered - left_guest) >> stretch::SHORT_BITS != 0 {
                self.cpu.stretch.begin(left_guest, Kind::Exit);
                if let Flow::Leave(outcome) = self.attend(left_guest) {
                    // What it slept in place was taken from this.
                    vcpu.stats.add(work::HYPERVISOR, timer::now() - left_guest);
                    return outcome;
                }
                stretch::end();
                // It put off device work: the guest leaves at once for it, after what else is pending.
                if vcpu.attention.load(Ordering::Relaxed) & attention::DEVICE != 0 {
                    self.cpu.kick();
                }
                entered = timer::now();
            }
            vcpu.stats.add(work::HYPERVISOR, entered - left_guest);
            // SAFETY: `load` has put this vCPU's state into the CPU, and its VM's stage 2 maps
            // frames of the VM alone.
            let leave = unsafe { entry::enter(&mut self.core.context) };
            left_guest = timer::now();
            vcpu.stats.add(work::RUN, left_guest - entered);
            let flow = match leave {
                Leave::Synchronous => exit::synchronous(self),
                Leave::Interrupt => {
                    self.cpu.stretch.interrupted.set(left_guest);
                    exit::interrupt(self)
                }
                Leave::FastInterrupt => Flow::Resume,
                Leave::SystemError => exit::system_error(self),
                Leave::Aarch32 => exit::end_vm(self, "it switched to AArch32"),
            };
            if let Flow::Leave(outcome) = flow {
                self.cpu.stretch.begin(left_guest, Kind::Exit);
                vcpu.stats.add(work::HYPERVISOR, timer::now() - left_guest);
                if vcpu.attention.load(Ordering::Relaxed) & attention::OBSERVED != 0 {
                    self.observe(left_guest);
                }
                return outcome;
            }
        }
    }

    /// Does what others asked for; the guest has left at that count.
    #[inline(never)]
    fn attend(&mut self, left_guest: u64) -> Flow {
        let asked = self
            .vcpu
            .attention
            .fetch_and(attention::STAYS, Ordering::SeqCst);
        if asked & attention::STAND_STILL != 0 && self.stands_still() {
            // What else was asked stays to be done when it runs again.
            self.vcpu
                .attention
                .fetch_or(asked & !attention::STAND_STILL, Ordering::SeqCst);
            return Flow::Leave(Outcome::Stopped);
        }
        if asked & (attention::SPANS | attention::LEASE) != 0 {
            if !span::may_run() {
                let kept = asked & !(attention::PAGE | attention::LEASE);
                self.vcpu.attention.fetch_or(kept, Ordering::SeqCst);
                return Flow::Leave(Outcome::Stopped);
            }
            if asked & attention::LEASE != 0 {
                span::let_go(self.vcpu.index, self.core.context.pc, false);
            }
        }
        if asked & attention::CLOCK != 0 {
            VirtualTimer::save().load(self.vm.time_offset());
        }
        if asked & attention::DEVICE != 0 {
            if stretch::is_long() {
                // The exit has put it off: another stretch goes on with it.
                self.vcpu
                    .attention
                    .fetch_or(attention::DEVICE, Ordering::Relaxed);
            } else {
                self.cpu.stretch.turn_to(Kind::Device);
                self.vm.continue_devices();
            }
        }
        if asked & (attention::DELIVER | attention::DEVICE) != 0 {
            self.deliver();
        }
        if asked & attention::PUBLISH != 0 {
            self.publish();
            self.vm.note_published(self.vcpu.index);
        }
        if asked & attention::OBSERVED != 0 {
            self.observe(left_guest);
        }
        if asked & attention::REMOTE != 0 {
            return self.take_answer();
        }
        Flow::Resume
    }

    /// Whether the vCPU leaves the CPU: its VM stands still, or another host is to get the vCPU.
    #[cold]
    fn stands_still(&self) -> bool {
        if self.vm.must_stand_still() {
            return true;
        }
        let is_left = self.core.asked.is_none() && self.vm.is_left_by(self.vcpu.index);
        if is_left {
            due::request();
        }
        is_left
    }

    /// Times the exit that ends now, and notes it where exits are traced. What it was is told by
    /// the counters, of which the first look only knows where they stand.
    #[cold]
    fn observe(&mut self, left_guest: u64) {
        let stats = &self.vcpu.stats;
        let Some((before, slept)) = self.observed.replace((stats.exits(), self.slept)) else {
            return;
        };
        let Some(class) = stats.class_since(&before) else {
            return;
        };
        let took = timer::now().wrapping_sub(left_guest);
        stats.time(class, took.saturating_sub(self.slept - slept));
        if self.cpu.trace.wants(trace::EXIT) {
            self.note(trace::EXIT, class as u8, left_guest, self.core.context.pc);
        }
        let sampled = attention::SAMPLE;
        let before = self.vcpu.attention.fetch_and(!sampled, Ordering::Relaxed);
        if before & attention::TRACE == 0 {
            self.observed = None;
        }
    }

    /// Notes the turn that ends now, where switches are traced.
    fn trace_switch(&self, arrived: u64, outcome: Outcome) {
        if self.cpu.trace.wants(trace::SWITCH) {
            let why = match outcome {
                Outcome::Preempted => off_cpu::PREEMPTED,
                Outcome::Waiting => off_cpu::WAITING,
                Outcome::Off => off_cpu::OFF,
                Outcome::Stopped => off_cpu::STOPPED,
            };
            self.note(trace::SWITCH, why, arrived, self.core.context.pc);
        }
    }

    /// Notes what happened to this vCPU from then until now; see [`trace`].
    #[cold]
    pub fn note(&self, kind: u8, detail: u8, since: u64, value: u64) {
        let whose = Some((self.vm.id.index, self.vcpu.index));
        self.cpu.trace.note((kind, detail), whose, since, value);
    }

    /// Brings the list registers up to date with the vGIC.
    pub fn deliver(&mut self) {
        let mut distributor = self.vm.distributor.lock();
        let mut redistributor = self.vcpu.redistributor.lock();
        let lists = &mut self.core.lists;
        let others = lists.deliver(&mut redistributor, Some(&mut distributor), &mut self.lists);
        drop((redistributor, distributor));
        self.vm.call_vcpus(others, attention::DELIVER);
    }

    /// As [`Self::deliver`] where only SGIs and PPIs can have changed: without the VM's lock.
    pub fn deliver_private(&mut self) {
        if self.core.lists.needs_distributor() {
            return self.deliver();
        }
        let mut redistributor = self.vcpu.redistributor.lock();
        let others = self
            .core
            .lists
            .deliver(&mut redistributor, None, &mut self.lists);
        drop(redistributor);
        self.vm.call_vcpus(others, attention::DELIVER);
    }

    /// The virtual timer's interrupt is its line: where the guest has stopped the timer since it
    /// fired, nothing is pending any more.
    pub fn withdraw_timer(&mut self) {
        if VirtualTimer::is_loaded_asserted() {
            return;
        }
        let withdrawn = {
            let mut redistributor = self.vcpu.redistributor.lock();
            redistributor.clear_pending(layout::TIMER_PPI)
        };
        if withdrawn {
            self.deliver_private();
        }
    }

    /// The physical timer's interrupt line becomes what it must be now, and the CPU's alarm is
    /// set for when that changes by itself.
    #[inline(never)]
    pub fn drive_physical_timer(&mut self) {
        let high = self.core.physical_timer.line(timer::now());
        let deadline = self.core.physical_timer.deadline();
        self.cpu.guest_deadline.set(deadline.unwrap_or(u64::MAX));
        due::set_alarm(self.cpu);
        let changed = {
            let mut redistributor = self.vcpu.redistributor.lock();
            redistributor.set_level(PHYSICAL_TIMER_PPI, high)
        };
        if changed {
            self.deliver_private();
        }
    }

    /// Shows others what the list registers say.
    pub fn publish(&mut self) {
        let mut distributor = self.vm.distributor.lock();
        let mut redistributor = self.vcpu.redistributor.lock();
        let lists = &mut self.core.lists;
        let others = lists.publish(&mut redistributor, Some(&mut distributor), &mut self.lists);
        drop((redistributor, distributor));
        self.vm.call_vcpus(others, attention::DELIVER);
    }

    /// If the vCPU was just turned on: it begins where CPU_ON said.
    fn begin_if_turned_on(&mut self) {
        let mut power = self.vcpu.power.lock();
        if power.state == Power::OnPending {
            power.state.arrive();
            self.core
                .start_at(self.vcpu.mpidr, power.entry.0, power.context);
        }
    }

    fn turned_off(&mut self) {
        let others = {
            let mut distributor = self.vm.distributor.lock();
            let mut redistributor = self.vcpu.redistributor.lock();
            redistributor.set_level(PHYSICAL_TIMER_PPI, false);
            self.core
                .lists
                .turn_off(&mut redistributor, Some(&mut distributor))
        };
        self.vm.call_vcpus(others, attention::DELIVER);
        self.vcpu.power.lock().state.turn_off();
    }

    /// The time since the vCPU left its last CPU was idle, or stolen from it.
    fn account_wait(&self, now: u64) {
        let since = self.vcpu.stats.waiting_since.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        let stats = &self.vcpu.stats;
        let waited = now.saturating_sub(since);
        let place = if stats.ready.load(Ordering::Relaxed) {
            work::STEAL
        } else {
            work::IDLE
        };
        stats.add(place, waited);
    }
}
