//! The model and its reference side by side, with the duties that EL2 has between them.

use crate::reference::Reference;
use machine_contract::ListRegisters;
use machine_fake::FakeListRegisters;
use model_vgic::{
    Distributor, Effects, ListFile, Redistributor, Sgi, SgiRegister, SyncNeeded, VcpuSet,
};

/// The virtual timer's PPI, and the physical one behind it.
pub const TIMER: usize = 27;
const PHYSICAL_TIMER: u32 = 30;

pub struct System {
    pub reference: Reference,
    dist: Distributor,
    redists: Vec<Redistributor>,
    files: Vec<ListFile>,
    lrs: Vec<FakeListRegisters>,
    /// Which vCPUs are on a CPU.
    on_cpu: Vec<bool>,
    /// Which were told to deliver while they were on none.
    owing: Vec<bool>,
    timer_line: Vec<bool>,
    /// What each guest has taken and not ended: interrupt and priority.
    running: Vec<Vec<(usize, u8)>>,
}

impl System {
    pub fn new(vcpus: usize, list_registers: usize) -> Self {
        Self {
            reference: Reference::new(vcpus),
            dist: Distributor::new(32, vcpus),
            redists: (0..vcpus)
                .map(|index| Redistributor::new(index, vcpus))
                .collect(),
            files: vec![ListFile::new(); vcpus],
            lrs: vec![FakeListRegisters::new(list_registers); vcpus],
            on_cpu: vec![true; vcpus],
            owing: vec![false; vcpus],
            timer_line: vec![false; vcpus],
            running: vec![Vec::new(); vcpus],
        }
    }

    pub fn vcpus(&self) -> usize {
        self.redists.len()
    }

    /// Runs `deliver` on `set` and on whom that names, as EL2 has to. `with_dist` says that the
    /// distributor is the reason.
    fn settle(&mut self, set: VcpuSet, with_dist: bool) {
        let mut left: Vec<(usize, bool)> = set.iter().map(|vcpu| (vcpu, with_dist)).collect();
        let mut rounds = 0;
        while let Some((vcpu, with_dist)) = left.pop() {
            rounds += 1;
            assert!(rounds < 100, "vCPUs interrupt each other for ever");
            if !self.on_cpu[vcpu] {
                self.owing[vcpu] = true;
                continue;
            }
            let file = &mut self.files[vcpu];
            let dist = (with_dist || file.needs_distributor()).then_some(&mut self.dist);
            let others = file.deliver(&mut self.redists[vcpu], dist, &mut self.lrs[vcpu]);
            assert!(!others.contains(vcpu));
            assert!(
                !self.lrs[vcpu].maintenance_due(),
                "it would come back at once"
            );
            left.extend(others.iter().map(|vcpu| (vcpu, true)));
        }
        self.sample_timers();
    }

    /// The physical timer interrupt of each vCPU that is on a CPU fires, if its line is high.
    fn sample_timers(&mut self) {
        for vcpu in 0..self.vcpus() {
            let lrs = &mut self.lrs[vcpu];
            if !self.on_cpu[vcpu]
                || !self.timer_line[vcpu]
                || lrs.physical_is_active(PHYSICAL_TIMER)
            {
                continue;
            }
            lrs.activate_physical(PHYSICAL_TIMER);
            self.reference.at(vcpu, TIMER).latch = true;
            let redist = &mut self.redists[vcpu];
            if !self.files[vcpu].inject_hw_ppi(redist, lrs, TIMER as u32, PHYSICAL_TIMER) {
                self.settle(VcpuSet::only(vcpu), false);
            }
        }
    }

    fn settle_private(&mut self, vcpu: usize, needed: bool) {
        let set = if needed {
            VcpuSet::only(vcpu)
        } else {
            VcpuSet::NONE
        };
        self.settle(set, false);
    }

    fn settle_effects(&mut self, effects: Effects) {
        let mut told = VcpuSet::NONE;
        if let Some(groups) = effects.groups {
            for (vcpu, redist) in self.redists.iter_mut().enumerate() {
                if redist.set_groups(groups) {
                    told = told.or(VcpuSet::only(vcpu));
                }
            }
        }
        self.settle(told, false);
        self.settle(effects.deliver, true);
    }

    pub fn send_sgi(&mut self, sender: usize, register: SgiRegister, value: u64) {
        let sgi = Sgi::decode(register, value, sender, self.vcpus());
        for vcpu in sgi.targets.iter() {
            let interrupt = self.reference.at(vcpu, sgi.intid as usize);
            interrupt.latch |= sgi.group1_too || !interrupt.group1;
            let needed = self.redists[vcpu].receive_sgi(sgi.intid, sgi.group1_too);
            self.settle_private(vcpu, needed);
        }
    }

    pub fn set_timer(&mut self, vcpu: usize, high: bool) {
        self.timer_line[vcpu] = high;
        self.sample_timers();
    }

    pub fn set_line(&mut self, vcpu: usize, intid: usize, high: bool) {
        self.reference.at(vcpu, intid).set_line(high);
        if intid < 32 {
            let needed = self.redists[vcpu].set_level(intid as u32, high);
            self.settle_private(vcpu, needed);
        } else {
            let set = self.dist.set_level(intid as u32, high);
            self.settle(set, true);
        }
    }

    pub fn pulse(&mut self, vcpu: usize, intid: usize, pending: bool) {
        self.reference.at(vcpu, intid).latch = pending;
        if intid < 32 {
            let redist = &mut self.redists[vcpu];
            let needed = if pending {
                redist.set_pending(intid as u32)
            } else {
                redist.clear_pending(intid as u32)
            };
            self.settle_private(vcpu, needed);
        } else {
            let set = if pending {
                self.dist.set_pending(intid as u32)
            } else {
                self.dist.clear_pending(intid as u32)
            };
            self.settle(set, true);
        }
    }

    /// A write to the distributor, or to the redistributor of `vcpu`.
    pub fn write(&mut self, redist: Option<usize>, offset: u32, size: u32, value: u64) {
        if let Some(vcpu) = redist {
            let needed = self.redists[vcpu].write(0x1_0000 + offset, size, value);
            self.settle_private(vcpu, needed);
        } else {
            let effects = self.dist.write(offset, size, value);
            self.settle_effects(effects);
        }
    }

    /// A read, after every vCPU that it asks for has published.
    pub fn read(&mut self, redist: Option<usize>, offset: u32) -> u64 {
        let mut fresh = VcpuSet::NONE;
        loop {
            let value = match redist {
                Some(vcpu) => self.redists[vcpu].read(0x1_0000 + offset, 4, fresh.contains(vcpu)),
                None => self.dist.read(offset, 4, fresh),
            };
            let SyncNeeded(missing) = match value {
                Ok(value) => return value,
                Err(sync) => sync,
            };
            assert!(missing.without(fresh) == missing, "asked twice");
            for vcpu in missing.iter() {
                if !self.on_cpu[vcpu] {
                    continue;
                }
                let (file, redist) = (&mut self.files[vcpu], &mut self.redists[vcpu]);
                let others = file.publish(redist, Some(&mut self.dist), &mut self.lrs[vcpu]);
                self.settle(others.or(VcpuSet::only(vcpu)), true);
            }
            // What was delivered in between changed no pending or active state.
            fresh = fresh.or(missing);
        }
    }

    /// The guest on `vcpu` takes an interrupt, if one is signalled: the one it ought to.
    pub fn acknowledge(&mut self, vcpu: usize) -> bool {
        if !self.on_cpu[vcpu] {
            return false;
        }
        let running = self.running[vcpu]
            .last()
            .map_or(u16::MAX, |&(_, priority)| priority.into());
        let delayed = self.owing.iter().any(|owing| *owing);
        let signalled = self.lrs[vcpu].guest_signalled().map(|intid| intid as usize);
        let candidates = self.reference.candidates(vcpu);
        let full = self.reference.active_count(vcpu) >= self.lrs[vcpu].count();
        let best = candidates
            .iter()
            .filter(|(intid, priority)| {
                u16::from(*priority) < running && !(delayed && *intid >= 32)
            })
            .map(|(_, priority)| *priority)
            .min();
        let Some(intid) = signalled else {
            assert!(
                best.is_none() || full,
                "vCPU {vcpu} misses one of {candidates:?}"
            );
            return false;
        };
        let priority = candidates.iter().find(|(candidate, _)| *candidate == intid);
        assert!(
            priority.is_some(),
            "vCPU {vcpu} gets {intid}, not one of {candidates:?}"
        );
        let priority = priority.map_or(0, |&(_, priority)| priority);
        assert!(
            best.is_none_or(|best| priority <= best),
            "{intid} before {candidates:?}"
        );
        let lrs = &mut self.lrs[vcpu];
        let taken = lrs
            .guest_acknowledge()
            .or_else(|| lrs.guest_acknowledge_group0());
        assert_eq!(taken, Some(intid as u32));
        self.reference.acknowledge(vcpu, intid);
        self.running[vcpu].push((intid, priority));
        true
    }

    /// The guest on `vcpu` ends what it took last.
    pub fn end(&mut self, vcpu: usize) -> bool {
        if !self.on_cpu[vcpu] {
            return false;
        }
        let Some((intid, _)) = self.running[vcpu].pop() else {
            return false;
        };
        let lrs = &mut self.lrs[vcpu];
        let unlisted = lrs.unlisted_ends();
        lrs.guest_end(intid as u32);
        if lrs.unlisted_ends() == unlisted {
            assert!(self.reference.at(vcpu, intid).may_be_active_on(vcpu));
            self.reference.clear_active(vcpu, intid);
        } else if self.reference.at(vcpu, intid).active_on == Some(vcpu) {
            let registers = self.lrs[vcpu].count();
            assert!(
                self.reference.active_count(vcpu) > registers,
                "{intid} is in no register"
            );
        }
        if self.lrs[vcpu].maintenance_due() {
            self.settle(VcpuSet::only(vcpu), false);
        }
        self.sample_timers();
        true
    }

    pub fn leave(&mut self, vcpu: usize) {
        if !self.on_cpu[vcpu] {
            return;
        }
        let (file, redist, lrs) = (
            &mut self.files[vcpu],
            &mut self.redists[vcpu],
            &mut self.lrs[vcpu],
        );
        let others = file.save(redist, Some(&mut self.dist), lrs);
        assert_eq!(lrs.listed().count(), 0);
        assert!(!lrs.maintenance_due());
        assert_eq!(
            redist.hw_active() != 0,
            lrs.physical_is_active(PHYSICAL_TIMER)
        );
        if redist.hw_active() != 0 {
            assert_eq!(redist.hw_active(), 1 << PHYSICAL_TIMER);
            lrs.deactivate_physical(PHYSICAL_TIMER);
        }
        self.on_cpu[vcpu] = false;
        self.check_wfi(vcpu);
        self.settle(others, true);
    }

    /// A vCPU that left: WFI is over when something is deliverable.
    fn check_wfi(&mut self, vcpu: usize) {
        let delayed = self.owing.iter().any(|owing| *owing);
        let full = self.reference.active_count(vcpu) >= self.lrs[vcpu].count();
        if delayed || full {
            return;
        }
        let candidates = self.reference.candidates(vcpu);
        for mask in [0xff, 0x80, 0x08] {
            let expected = candidates.iter().any(|(_, priority)| *priority < mask);
            let (file, redist) = (&self.files[vcpu], &self.redists[vcpu]);
            assert_eq!(
                file.has_deliverable(redist, Some(&self.dist), mask),
                expected
            );
        }
    }

    pub fn come_back(&mut self, vcpu: usize) {
        if self.on_cpu[vcpu] {
            return;
        }
        self.files[vcpu].load(&mut self.lrs[vcpu]);
        if self.redists[vcpu].hw_active() != 0 {
            self.lrs[vcpu].activate_physical(PHYSICAL_TIMER);
        }
        self.on_cpu[vcpu] = true;
        self.owing[vcpu] = false;
        self.settle(VcpuSet::only(vcpu), true);
    }
}
