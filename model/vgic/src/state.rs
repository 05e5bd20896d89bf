//! Distributors and redistributors as records, for images of any version (`abi::state`).

use crate::bank::{Bank, Groups};
use crate::{Distributor, FIRST_SPI, MAX_SPIS, Redistributor};
use abi::state::{Private, Spis};

impl Redistributor {
    /// Its record, after [`crate::ListFile::give_back`].
    pub const fn record(&self) -> Private {
        Private {
            interrupts: self.bank.record(),
            physical_active: self.physical_active,
            physical: self.physical,
            asleep: self.asleep as u32,
        }
    }

    /// As a record has it, of a vCPU none of whose interrupts is in a list register; `groups` are those
    /// that the distributor lets through. `false` where what is active physically is none of a CPU's PPIs.
    #[must_use]
    pub fn restore(&mut self, record: &Private, groups: Groups) -> bool {
        let is_ppi = |intid: u32| (16..FIRST_SPI).contains(&intid);
        let is_wrong = |(intid, physical): (u32, &u8)| {
            record.physical_active >> intid & 1 != 0
                && !(is_ppi(intid) && is_ppi(u32::from(*physical)))
        };
        if (0..).zip(&record.physical).any(is_wrong) {
            return false;
        }
        self.bank = Bank::of(&record.interrupts, Self::SGIS, groups);
        self.physical_active = record.physical_active;
        self.physical = record.physical;
        self.asleep = record.asleep != 0;
        true
    }
}

impl Distributor {
    /// The records of its shared interrupts, after [`crate::ListFile::give_back`] of all vCPUs.
    pub fn records(&self) -> impl Iterator<Item = Spis> + '_ {
        let count = usize::from(self.count);
        self.banks.iter().take(count).enumerate().map(|(n, bank)| {
            let at = n * 32..n * 32 + 32;
            let mut spis = Spis {
                interrupts: bank.record(),
                routes: [0; 32],
                holders: [0; 32],
            };
            spis.routes.copy_from_slice(&self.routes[at.clone()]);
            spis.holders.copy_from_slice(&self.holders[at]);
            spis
        })
    }

    /// As records have it. `false` where they are not as many as this one has, or name a vCPU that there
    /// is not.
    #[must_use]
    pub fn restore(&mut self, records: impl ExactSizeIterator<Item = Spis>, groups: u32) -> bool {
        if records.len() != usize::from(self.count) {
            return false;
        }
        self.groups = Groups::from_bits_truncate(groups);
        for (n, record) in records.enumerate() {
            self.banks[n] = Bank::of(&record.interrupts, 0, self.groups);
            for (bit, (route, holder)) in record.routes.into_iter().zip(record.holders).enumerate()
            {
                let is_active = record.interrupts.active >> bit & 1 != 0;
                if is_active && holder >= self.vcpus {
                    return false;
                }
                self.holders[n * 32 + bit] = holder;
                self.set_route(n * 32 + bit, route);
            }
        }
        true
    }
}

const _: () = assert!(MAX_SPIS.is_multiple_of(32));
