//! The short way into a list register, for what happens most: one private interrupt that fires,
//! an SGI or the virtual timer. Does what [`ListFile::deliver`] would do, or leaves it to that.

use super::{ListFile, fixed_fields};
use crate::affinity::bits;
use crate::list_register::{HW, PENDING, STATE, intid, with_physical};
use crate::{MAX_LIST_REGISTERS, Redistributor};
use machine_contract::ListRegisters;

impl ListFile {
    /// The physical interrupt `physical` (a PPI, active since EL2 took it) has fired for PPI
    /// `intid` of the vCPU that is loaded here, the virtual timer's. Puts it straight into a list
    /// register, so that the guest ends the physical interrupt with it.
    ///
    /// `false` where that was not possible: it is pending then, and [`Self::deliver`] is to be run.
    pub fn inject_hw_ppi(
        &mut self,
        redist: &mut Redistributor,
        lrs: &mut impl ListRegisters,
        intid: u32,
        physical: u32,
    ) -> bool {
        let bit = intid % 32;
        let mask = 1 << bit;
        if redist.bank.loaded & mask != 0 {
            if self.refire(redist, lrs, with_physical(physical as u8) | u64::from(bit)) {
                return true;
            }
            self.retire_private(redist, lrs);
        }
        redist.local.physical[bit as usize] = physical as u8;
        redist.local.physical_active |= mask;
        let bank = &mut redist.bank;
        let fits = bank.open & !(bank.loaded | bank.state.active | bank.state.latch) & mask != 0;
        // Where more is ready than fits, what waits may be more urgent.
        match self.free_register(lrs.count()) {
            Some(n) if fits && !self.overfull => {
                bank.load_fired(bit);
                let value = with_physical(physical as u8) | fixed_fields(bank, bit);
                self.put_private(n, value, lrs);
                true
            }
            _ => {
                bank.state.latch |= mask;
                false
            }
        }
    }

    /// The common case of [`Self::deliver`] made short: at most one private interrupt that fired
    /// is to be done, and there is room. Whether that was all.
    #[inline]
    pub(super) fn deliver_private(
        &mut self,
        redist: &mut Redistributor,
        lrs: &mut impl ListRegisters,
    ) -> bool {
        if self.uses.watched() != 0 || self.overfull {
            return false;
        }
        self.retire_private(redist, lrs);
        let bank = &redist.bank;
        let fired =
            bank.ready() & bank.state.edge & !(bank.state.active | redist.local.physical_active);
        if redist.attention() != fired || fired & fired.wrapping_sub(1) != 0 {
            return false;
        }
        if fired == 0 {
            return true;
        }
        let Some(n) = self.free_register(lrs.count()) else {
            return false;
        };
        let bit = fired.trailing_zeros();
        redist.bank.state.latch &= !fired;
        redist.bank.load_fired(bit);
        let value = fixed_fields(&redist.bank, bit);
        self.put_private(n, value, lrs);
        true
    }

    /// The hardware interrupt with these `numbers` has fired again since the guest ended it: the
    /// same register takes it again, if it is the first that has ended and nothing changed.
    #[inline]
    fn refire(
        &mut self,
        redist: &mut Redistributor,
        lrs: &mut impl ListRegisters,
        numbers: u64,
    ) -> bool {
        const NUMBERS: u64 = HW | ((1 << 48) - 1);
        let mask = 1 << (intid(numbers) % 32);
        let ended = self.uses.occupied() & lrs.empty();
        let n = ended.trailing_zeros();
        let value = self.values[n as usize % MAX_LIST_REGISTERS];
        let bank = &redist.bank;
        let fits = bank.open & !(bank.stale() | bank.state.latch) & mask != 0;
        if ended == 0 || value & NUMBERS != numbers || !fits || self.overfull {
            return false;
        }
        redist.bank.load_fired(intid(numbers) % 32);
        self.put_private(n, value & !STATE, lrs);
        true
    }

    /// Puts the private interrupt of `value`, which fired, into the free register `n`.
    #[inline]
    fn put_private(&mut self, n: u32, value: u64, lrs: &mut impl ListRegisters) {
        let value = value | PENDING;
        self.values[n as usize % MAX_LIST_REGISTERS] = value;
        self.uses.take(n, false, true, false);
        lrs.write(n as usize, value);
    }

    /// Takes the private interrupts that the guest has ended out of the books, but not the
    /// watched ones.
    #[inline]
    fn retire_private(&mut self, redist: &mut Redistributor, lrs: &impl ListRegisters) {
        let others = self.uses.watched() | self.uses.shared();
        for n in bits((self.uses.occupied() & !others & lrs.empty()).into()) {
            let value = self.values[n as usize % MAX_LIST_REGISTERS];
            redist.bank.unload(intid(value) % 32, false, false);
            if value & HW != 0 {
                redist.local.physical_active &= !(1 << (intid(value) % 32));
            }
            self.uses.give_up(n);
        }
    }
}
