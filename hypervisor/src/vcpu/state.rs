//! vCPUs as records, for the image that takes this one's place (`abi::state`).

use crate::vcpu::{Core, PowerState, Vcpu, attention};
use abi::control::work;
use abi::state::{self, power};
use core::sync::atomic::Ordering;
use machine_locks::SpinLock;
use model_addr::Ipa;
use model_vgic::{Distributor, Groups, Redistributor, VcpuSet};
use model_vpsci::Power;
use model_vtimer::PhysicalTimer;
use zerocopy::transmute;

impl Vcpu {
    /// Its interrupts go back to where they came from, as records have them. It stands still.
    ///
    /// Returns vCPUs that must look again, where others than this one run on.
    pub fn give_back_interrupts(&self, distributor: &SpinLock<Distributor>) -> VcpuSet {
        let mut core = self.core.lock();
        let mut distributor = distributor.lock();
        let mut redistributor = self.redistributor.lock();
        self.attention
            .fetch_or(attention::DELIVER, Ordering::SeqCst);
        core.lists
            .give_back(&mut redistributor, Some(&mut distributor))
    }

    /// Its record, after that.
    pub fn record(&self) -> state::Vcpu {
        self.recorded(|redistributor| redistributor.record())
    }

    /// The same, and nothing of it is here any more: it is off. `groups` as the distributor lets them through. `leave` is done
    /// while nobody can send it an SGI or look whether it is on.
    pub fn take(&self, groups: Groups, vcpus: usize, leave: impl FnOnce()) -> state::Vcpu {
        let record = self.recorded(|redistributor| {
            let record = redistributor.record();
            *redistributor = Redistributor::new(self.index.into(), vcpus);
            redistributor.set_groups(groups);
            leave();
            record
        });
        *self.core.lock() = Core::new(self.mpidr);
        *self.power.lock() = PowerState::default();
        self.stats.waiting_since.store(0, Ordering::Relaxed);
        record
    }

    fn recorded(&self, private: impl FnOnce(&mut Redistributor) -> state::Private) -> state::Vcpu {
        let core = self.core.lock();
        let (on, shown) = (self.power.lock(), core.stolen_shown);
        let state = match on.state {
            Power::Off => power::OFF,
            Power::OnPending => power::ON_PENDING,
            Power::On => power::ON,
        };
        state::Vcpu {
            registers: transmute!(core.context),
            el1: transmute!(core.el1),
            fp: transmute!(core.fp),
            timer: transmute!(core.timer),
            physical_timer: core.physical_timer.registers(),
            interface: transmute!(core.interface),
            stolen: [
                shown.is_some().into(),
                shown.unwrap_or(0),
                self.stats.get(work::STEAL),
            ],
            power: [state, on.entry.0, on.context],
            private: private(&mut self.redistributor.lock()),
        }
    }

    /// As a record has it; `false` where that makes no sense. `groups` as the distributor lets them through.
    #[must_use]
    pub fn restore(&self, record: &state::Vcpu, groups: Groups) -> bool {
        self.restore_with(record, groups, || {})
    }

    /// The same; `come` is done before anybody can send it an SGI.
    #[must_use]
    pub fn restore_with(&self, record: &state::Vcpu, groups: Groups, come: impl FnOnce()) -> bool {
        let [state, entry, context] = record.power;
        let state = match state {
            power::OFF => Power::Off,
            power::ON_PENDING => Power::OnPending,
            power::ON => Power::On,
            _ => return false,
        };
        {
            let mut on = self.power.lock();
            (on.state, on.entry, on.context) = (state, Ipa(entry), context);
        }
        let mut core = self.core.lock();
        core.context = transmute!(record.registers);
        core.el1 = transmute!(record.el1);
        core.fp = transmute!(record.fp);
        core.timer = transmute!(record.timer);
        core.physical_timer = PhysicalTimer::of(record.physical_timer);
        core.interface = transmute!(record.interface);
        let [is_shown, shown, steal] = record.stolen;
        core.stolen_shown = (is_shown != 0).then_some(shown);
        self.stats.work[work::STEAL].store(steal, Ordering::Relaxed);
        self.attention
            .fetch_or(attention::DELIVER, Ordering::SeqCst);
        // EL0, or EL1 with either stack pointer, in AArch64.
        let is_el1 = matches!(core.context.pstate & 0x1f, 0 | 4 | 5);
        let mut redistributor = self.redistributor.lock();
        let is_sound = is_el1 && redistributor.restore(&record.private, groups);
        come();
        is_sound
    }
}
