//! A vCPU's list registers: what is in which, and which interrupt goes in next.

mod short_way;
mod uses;

use crate::affinity::{VcpuSet, bits};
use crate::bank::{Bank, Loaded};
use crate::list_register::{
    ACTIVE, EOI, GROUP1, HW, PENDING, STATE, intid, priority, with_physical, with_priority,
};
use crate::{Distributor, FIRST_SPI, MAX_LIST_REGISTERS, Redistributor};
use machine_contract::ListRegisters;
use uses::Uses;

/// The list registers of one vCPU. Only the CPU that has the vCPU loaded uses it.
#[derive(Clone, Debug, Default)]
pub struct ListFile {
    /// What each register in use was last known to hold: all of it while the vCPU is on no CPU,
    /// all but the state while it is.
    values: [u64; MAX_LIST_REGISTERS],
    /// Which registers are in use, and how.
    uses: Uses,
    /// More is ready than fits.
    overfull: bool,
}

/// Where a vCPU's interrupts come from.
struct Sources<'a> {
    redist: &'a mut Redistributor,
    dist: Option<&'a mut Distributor>,
}

/// An interrupt that belongs into a list register.
#[derive(Clone, Copy)]
struct Candidate {
    intid: u32,
    urgency: u16,
}

impl ListFile {
    /// Nothing in any list register.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether [`Self::deliver`], [`Self::publish`] and [`Self::save`] have something to do at the
    /// distributor, even if it has nothing new for this vCPU.
    pub const fn needs_distributor(&self) -> bool {
        self.uses.shared() != 0 || self.overfull
    }

    /// Brings the list registers up to date before the guest runs on: folds back what the guest
    /// has ended, pulls back what became stale, fills free registers with the most urgent
    /// interrupts, and asks for the underflow interrupt when some do not fit. Where all are
    /// taken, a more urgent interrupt displaces the least urgent one the guest has not taken.
    ///
    /// `dist` may be left out when neither [`Self::needs_distributor`] nor an [`crate::Effects`]
    /// of the distributor asks for it. Answers the other vCPUs that must run this now, since an
    /// SPI that this one held is theirs.
    pub fn deliver(
        &mut self,
        redist: &mut Redistributor,
        dist: Option<&mut Distributor>,
        lrs: &mut impl ListRegisters,
    ) -> VcpuSet {
        if dist.is_none() && self.deliver_private(redist, lrs) {
            return VcpuSet::NONE;
        }
        let mut sources = Sources { redist, dist };
        let mut freed = self.fold(&mut sources, lrs);
        if sources.any_stale() {
            freed |= self.pull_back_stale(&mut sources, lrs);
        }
        let others = self.others_concerned(&sources, freed);
        sources.redist.release_physical(lrs);
        let left = self.fill(&mut sources, lrs);
        if left && self.must_watch(lrs) {
            self.watch_all(&mut sources, lrs);
        } else {
            self.merge_refired(&mut sources, lrs);
        }
        let overfull = left || sources.dist.is_none() && self.overfull;
        if overfull != self.overfull {
            self.overfull = overfull;
            ask_for_underflow(overfull, lrs);
        }
        others
    }

    /// Copies what the list registers say to where other vCPUs' reads and
    /// [`Self::has_deliverable`] find it: before the vCPU's own reads of pending and active state,
    /// and when another asks ([`crate::SyncNeeded`]). `dist` as for [`Self::deliver`], whose
    /// answer this gives too.
    pub fn publish(
        &mut self,
        redist: &mut Redistributor,
        dist: Option<&mut Distributor>,
        lrs: &mut impl ListRegisters,
    ) -> VcpuSet {
        let mut sources = Sources { redist, dist };
        let freed = self.fold(&mut sources, lrs);
        for n in bits(self.uses.occupied().into()) {
            let value = self.values[n as usize] & !STATE | lrs.read(n as usize) & STATE;
            self.values[n as usize] = value;
            if let Some(bank) = sources.bank(intid(value)) {
                let latched = value & PENDING != 0 && self.uses.is_latched(n);
                bank.publish(intid(value) % 32, latched, value & ACTIVE != 0);
            }
        }
        self.others_concerned(&sources, freed)
    }

    /// The vCPU leaves this CPU: publishes, then keeps what the list registers hold and empties
    /// them. [`Redistributor::hw_active`] then says which physical interrupts go with the vCPU.
    pub fn save(
        &mut self,
        redist: &mut Redistributor,
        dist: Option<&mut Distributor>,
        lrs: &mut impl ListRegisters,
    ) -> VcpuSet {
        let others = self.publish(redist, dist, lrs);
        for n in bits(self.uses.occupied().into()) {
            lrs.write(n as usize, 0);
        }
        if self.overfull {
            ask_for_underflow(false, lrs);
        }
        others
    }

    /// The vCPU comes to a CPU whose list registers are empty: puts back what [`Self::save`] kept.
    pub fn load(&self, lrs: &mut impl ListRegisters) {
        for n in bits(self.uses.occupied().into()) {
            lrs.write(n as usize, self.values[n as usize]);
        }
        if self.overfull {
            ask_for_underflow(true, lrs);
        }
    }

    /// The vCPU is turned off (PSCI CPU_OFF), after [`Self::save`]: its interrupts go back to where
    /// they came from. Answers the vCPUs that must run [`Self::deliver`].
    pub fn turn_off(
        &mut self,
        redist: &mut Redistributor,
        dist: Option<&mut Distributor>,
    ) -> VcpuSet {
        let others = self.give_back(redist, dist);
        redist.forget_physical();
        others
    }

    /// As [`Self::turn_off`] of a vCPU that stays on: nothing is forgotten. It must run [`Self::deliver`]
    /// before its guest goes on.
    pub fn give_back(
        &mut self,
        redist: &mut Redistributor,
        dist: Option<&mut Distributor>,
    ) -> VcpuSet {
        let mut sources = Sources { redist, dist };
        let freed = self.uses.occupied();
        for n in bits(freed.into()) {
            self.unload(n, self.values[n as usize], &mut sources);
        }
        self.overfull = false;
        self.others_concerned(&sources, freed)
    }

    /// Whether a WFI of the guest must return at once: an interrupt more urgent than `mask`
    /// (`ICH_VMCR_EL2.VPMR`; 0xff for any) is pending and let through, whatever `PSTATE.I` says.
    ///
    /// After [`Self::publish`] or [`Self::save`]; `dist` may be left out where it has nothing new.
    pub fn has_deliverable(
        &self,
        redist: &Redistributor,
        dist: Option<&Distributor>,
        mask: u8,
    ) -> bool {
        let is_pending = |n: u32| {
            let value = self.values[n as usize];
            value & STATE == PENDING && priority(value) < mask
        };
        bits(self.uses.occupied().into()).any(is_pending)
            || redist.bank.deliverable_below(u32::MAX, mask)
            || dist.is_some_and(|dist| dist.deliverable_below(redist.index(), mask))
    }

    /// Takes what the guest has ended out of the books. Answers the registers it was in.
    fn fold(&mut self, sources: &mut Sources, lrs: &mut impl ListRegisters) -> u16 {
        let within_reach = self.within_reach(sources);
        let mut ended = within_reach & lrs.empty();
        for n in bits((self.uses.watched() & within_reach & !ended).into()) {
            if lrs.read(n as usize) & STATE == 0 {
                ended |= 1 << n;
                // It asks for the maintenance interrupt for as long as it stays.
                lrs.write(n as usize, 0);
            }
        }
        for n in bits(ended.into()) {
            self.unload(n, self.values[n as usize] & !STATE, sources);
        }
        ended
    }

    /// Pulls back what became stale. Answers the registers it was in.
    fn pull_back_stale(&mut self, sources: &mut Sources, lrs: &mut impl ListRegisters) -> u16 {
        let mut freed = 0;
        for n in bits(self.uses.occupied().into()) {
            let intid = intid(self.values[n as usize]);
            if sources
                .bank(intid)
                .is_some_and(|bank| is_in(bank.stale(), intid))
            {
                self.pull_back(n, sources, lrs);
                lrs.write(n as usize, 0);
                freed |= 1 << n;
            }
        }
        freed
    }

    /// Fills list registers, the most urgent interrupt first. Whether some did not fit.
    fn fill(&mut self, sources: &mut Sources, lrs: &mut impl ListRegisters) -> bool {
        // Each displaced interrupt is less urgent than what took its place, so this ends.
        while let Some(next) = sources.most_urgent() {
            let free = self.free_register(lrs.count());
            let Some(n) = free.or_else(|| self.displace(next, sources, lrs)) else {
                return true;
            };
            self.put(n, next.intid, false, sources, lrs);
        }
        false
    }

    /// Whether a register may become free long before only one is left in use, which is when the
    /// underflow interrupt comes: not while none is active, since what waits is no more urgent
    /// than what is pending in them.
    fn must_watch(&self, lrs: &impl ListRegisters) -> bool {
        let is_active = |n: u32| lrs.read(n as usize) & ACTIVE != 0;
        lrs.count() == 1 || bits(self.uses.occupied().into()).any(is_active)
    }

    /// Makes every register tell its end. What became pending once more waits until then.
    fn watch_all(&mut self, sources: &mut Sources, lrs: &mut impl ListRegisters) {
        for n in bits(self.within_reach(sources).into()) {
            self.pull_back(n, sources, lrs);
            self.put(n, intid(self.values[n as usize]), true, sources, lrs);
        }
    }

    /// The registers in use whose interrupts' banks are at hand.
    fn within_reach(&self, sources: &Sources) -> u16 {
        let missing = if sources.dist.is_some() {
            0
        } else {
            self.uses.shared()
        };
        self.uses.occupied() & !missing
    }

    /// Pulls back the least urgent interrupt the guest has not taken, if `next` is more urgent.
    fn displace(
        &mut self,
        next: Candidate,
        sources: &mut Sources,
        lrs: &impl ListRegisters,
    ) -> Option<u32> {
        let (n, least) = bits(self.within_reach(sources).into())
            .filter(|&n| lrs.read(n as usize) & STATE == PENDING)
            .map(|n| (n, urgency(false, priority(self.values[n as usize]))))
            .max_by_key(|&(_, urgency)| urgency)?;
        if least <= next.urgency {
            return None;
        }
        self.pull_back(n, sources, lrs);
        Some(n)
    }

    /// Puts interrupt `intid` into the free register `n`, where it tells its end if `watch` or if
    /// its line or route ask for that.
    #[inline]
    fn put(
        &mut self,
        n: u32,
        intid: u32,
        watch: bool,
        sources: &mut Sources,
        lrs: &mut impl ListRegisters,
    ) {
        let Some(bank) = sources.bank(intid) else {
            return;
        };
        let Loaded {
            active,
            latched,
            level,
        } = bank.load(intid % 32);
        let mut value = fixed_fields(bank, intid) | if active { ACTIVE } else { PENDING };
        // A hardware interrupt cannot be pending and active, nor be watched: where that is needed
        // it goes in as one of software, and EL2 ends the physical one when it sees the end.
        let fits_hardware = !watch && !is_in(bank.refired(), intid);
        let is_physical = intid < FIRST_SPI && is_in(sources.redist.local.physical_active, intid);
        if is_physical && fits_hardware {
            value |= with_physical(sources.redist.local.physical[intid as usize]);
        } else {
            let vcpu = sources.redist.index();
            let dist = sources.dist.as_deref_mut();
            let goes_elsewhere = dist.is_some_and(|dist| dist.set_holder(intid, vcpu));
            if level || is_physical || goes_elsewhere || watch {
                value |= EOI;
            }
        }
        self.occupy(n, value, latched);
        lrs.write(n as usize, value);
    }

    /// Makes loaded interrupts that became pending once more pending in their list registers.
    fn merge_refired(&mut self, sources: &mut Sources, lrs: &mut impl ListRegisters) {
        if sources.redist.bank.refired() == 0 && self.uses.shared() == 0 {
            return;
        }
        for n in bits(self.uses.occupied().into()) {
            let intid = intid(self.values[n as usize]);
            if !sources.is_refired_here(intid) {
                continue;
            }
            if intid < FIRST_SPI && is_in(sources.redist.local.physical_active, intid) {
                self.pull_back(n, sources, lrs);
                self.put(n, intid, false, sources, lrs);
            }
            if let Some(bank) = sources
                .bank(intid)
                .filter(|bank| is_in(bank.refired(), intid))
            {
                let state = lrs.read(n as usize) & STATE | PENDING;
                bank.state.latch &= !(1 << (intid % 32));
                bank.publish(intid % 32, true, state & ACTIVE != 0);
                self.uses.set_latched(n);
                lrs.write(n as usize, self.values[n as usize] & !STATE | state);
            }
        }
    }

    fn pull_back(&mut self, n: u32, sources: &mut Sources, lrs: &impl ListRegisters) {
        let state = lrs.read(n as usize) & STATE;
        self.unload(n, self.values[n as usize] & !STATE | state, sources);
    }

    /// Register `n`, which holds `value`, is given up: what is left of the interrupt goes back to
    /// where it came from.
    #[inline]
    fn unload(&mut self, n: u32, value: u64, sources: &mut Sources) {
        let bit = intid(value) % 32;
        let latched = value & PENDING != 0 && self.uses.is_latched(n);
        if value & HW != 0 && value & STATE == 0 {
            sources.redist.local.physical_active &= !(1 << bit);
        }
        if let Some(bank) = sources.bank(intid(value)) {
            bank.unload(bit, latched, value & ACTIVE != 0);
        }
        self.uses.give_up(n);
    }

    /// Notes that register `n` holds `value`.
    #[inline]
    fn occupy(&mut self, n: u32, value: u64, latched: bool) {
        self.values[n as usize % MAX_LIST_REGISTERS] = value;
        let watched = value & (HW | EOI) == EOI;
        self.uses
            .take(n, watched, latched, intid(value) >= FIRST_SPI);
    }

    /// A register that is not in use, of `count`.
    fn free_register(&self, count: usize) -> Option<u32> {
        let n = self.uses.occupied().trailing_ones();
        ((n as usize) < count.min(MAX_LIST_REGISTERS)).then_some(n)
    }

    /// The other vCPUs that have to act on SPIs that were in the registers `freed`.
    fn others_concerned(&self, sources: &Sources, freed: u16) -> VcpuSet {
        let Some(dist) = sources.dist.as_deref() else {
            return VcpuSet::NONE;
        };
        bits(freed.into())
            .map(|n| dist.concerned_with(intid(self.values[n as usize])))
            .fold(VcpuSet::NONE, VcpuSet::or)
            .without(VcpuSet::only(sources.redist.index()))
    }
}

impl Sources<'_> {
    /// The bank that holds `intid`.
    fn bank(&mut self, intid: u32) -> Option<&mut Bank> {
        if intid < FIRST_SPI {
            Some(&mut self.redist.bank)
        } else {
            self.dist.as_deref_mut()?.bank_mut(intid)
        }
    }

    /// Whether a loaded interrupt may be stale. Those of the distributor are looked at one by one.
    fn any_stale(&self) -> bool {
        self.redist.bank.stale() != 0 || self.dist.is_some()
    }

    /// Whether the loaded `intid` became pending once more, and for this vCPU.
    fn is_refired_here(&mut self, intid: u32) -> bool {
        let vcpu = self.redist.index();
        let goes_here = intid < FIRST_SPI
            || self
                .dist
                .as_ref()
                .is_some_and(|dist| dist.is_target(intid, vcpu));
        goes_here
            && self
                .bank(intid)
                .is_some_and(|bank| is_in(bank.refired(), intid))
    }

    /// The interrupt that belongs into a list register first.
    fn most_urgent(&self) -> Option<Candidate> {
        let redist = &self.redist.bank;
        let mut best = best_of(None, 0, redist, redist.ready());
        if let Some(dist) = self.dist.as_deref() {
            for (n, bank, mine) in dist.ready(self.redist.index()) {
                best = best_of(best, FIRST_SPI + 32 * n, bank, mine);
            }
        }
        best
    }
}

/// A single list register is never more than the one valid that underflow means: there the
/// interrupt would come for ever, and the register is watched instead.
fn ask_for_underflow(on: bool, lrs: &mut impl ListRegisters) {
    if lrs.count() > 1 {
        lrs.set_underflow_interrupt(on);
    }
}

/// The more urgent of `best` and the interrupts `among` in `bank`, whose first is `first`.
fn best_of(best: Option<Candidate>, first: u32, bank: &Bank, among: u32) -> Option<Candidate> {
    bits(among.into()).fold(best, |best, bit| {
        let urgency = urgency(bank.state.active >> bit & 1 != 0, bank.priority(bit));
        match best {
            Some(best) if best.urgency <= urgency => Some(best),
            _ => Some(Candidate {
                intid: first + bit,
                urgency,
            }),
        }
    })
}

/// Whether the word of its bank has the bit of `intid`.
const fn is_in(word: u32, intid: u32) -> bool {
    word >> (intid % 32) & 1 != 0
}

/// Active interrupts come before all others, since the guest's end of them looks for their
/// register; then the lower priority value.
const fn urgency(active: bool, priority: u8) -> u16 {
    if active { 0 } else { 1 + priority as u16 }
}

/// The fields of a list register that come from the interrupt's configuration.
fn fixed_fields(bank: &Bank, intid: u32) -> u64 {
    let group = if bank.is_group1(intid) { GROUP1 } else { 0 };
    group | with_priority(bank.priority(intid % 32)) | u64::from(intid)
}
