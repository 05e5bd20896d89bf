//! A vCPU's redistributor: its SGIs and PPIs (Arm IHI 0069, 12.11).

use crate::affinity::{affinity_of, bits};
use crate::bank::{Bank, Groups};
use crate::registers::{Fields, Register};
use crate::{FIRST_SPI, SyncNeeded, VcpuSet};
use abi::state::{Local, Private};
use machine_contract::ListRegisters;

/// The SGIs among the private interrupts.
const SGIS: u32 = 0xffff;
/// Where the SGI frame begins, after the RD frame.
const SGI_FRAME: u32 = 0x1_0000;

const GICR_IIDR: u32 = 0x0004;
const GICR_TYPER: u32 = 0x0008;
const GICR_TYPER_HIGH: u32 = 0x000c;
const GICR_WAKER: u32 = 0x0014;
const GICR_PIDR2: u32 = 0xffe8;

const TYPER_LAST: u32 = 1 << 4;
const TYPER_PROCESSOR_SHIFT: u32 = 8;
const WAKER_PROCESSOR_SLEEP: u32 = 1 << 1;
const WAKER_CHILDREN_ASLEEP: u32 = 1 << 2;

/// `GICR_IIDR` and `GICD_IIDR`: implementer Arm, as the architecture's `PIDR2` says too.
pub(crate) const IIDR: u32 = 0x43b;
/// `GICR_PIDR2` and `GICD_PIDR2`: architecture revision 3.
pub(crate) const PIDR2: u32 = 0x3b;

/// The SGIs 0..=15 and PPIs 16..=31 of one vCPU.
#[derive(Clone, Debug)]
pub struct Redistributor {
    pub(crate) bank: Bank,
    /// What a record has beside the interrupts. A physical interrupt's number is valid where it is active.
    pub(crate) local: Local,
    index: u8,
    last: bool,
}

impl Redistributor {
    /// That of vCPU `index` of a VM with `vcpus` vCPUs: everything off and the vCPU asleep.
    pub fn new(index: usize, vcpus: usize) -> Self {
        Self {
            bank: Bank::edge_triggered(SGIS),
            local: Local {
                asleep: 1,
                ..Local::ZERO
            },
            index: index as u8,
            last: index + 1 >= vcpus,
        }
    }

    /// Its record, after [`crate::ListFile::give_back`].
    pub const fn record(&self) -> Private {
        Private {
            interrupts: self.bank.state,
            local: self.local,
        }
    }

    /// As a record has it, of a vCPU none of whose interrupts is in a list register; `groups` are those
    /// that the distributor lets through. `false` where it is none that a vCPU could have come to.
    #[must_use]
    pub fn restore(&mut self, record: &Private, groups: Groups) -> bool {
        let local = record.local;
        let is_ppi = |intid: u32| (16..FIRST_SPI).contains(&intid);
        let is_its = |intid| is_ppi(intid) && is_ppi(local.physical[intid as usize].into());
        let is_valid = local.asleep <= 1 && bits(local.physical_active.into()).all(is_its);
        let bank = Bank::of(record.interrupts, SGIS, groups).filter(|_| is_valid);
        bank.map(|bank| (self.bank, self.local) = (bank, local))
            .is_some()
    }

    /// The vCPU's number in its VM.
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// Takes over the groups the distributor lets through ([`crate::Effects::groups`]). Whether
    /// the vCPU must run [`crate::ListFile::deliver`].
    pub fn set_groups(&mut self, groups: Groups) -> bool {
        self.bank.set_groups(groups);
        self.needs_delivery()
    }

    /// An SGI arrives, or an edge of PPI `intid`. Whether the vCPU must run
    /// [`crate::ListFile::deliver`].
    #[inline]
    pub fn set_pending(&mut self, intid: u32) -> bool {
        let Some(mask) = Self::mask_of(intid) else {
            return false;
        };
        self.bank.state.latch |= mask;
        self.bank.open & mask != 0
    }

    /// An [`crate::Sgi`] arrives. Whether the vCPU must run [`crate::ListFile::deliver`].
    #[inline]
    pub fn receive_sgi(&mut self, intid: u32, group1_too: bool) -> bool {
        (group1_too || !self.bank.is_group1(intid)) && self.set_pending(intid & 0xf)
    }

    /// Interrupt `intid` is pending no more, unless its line is high.
    pub fn clear_pending(&mut self, intid: u32) -> bool {
        let Some(mask) = Self::mask_of(intid) else {
            return false;
        };
        self.bank.clear_pending(mask);
        self.needs_delivery()
    }

    /// The line of PPI `intid` becomes high or low. Whether the vCPU must run
    /// [`crate::ListFile::deliver`].
    pub fn set_level(&mut self, intid: u32, high: bool) -> bool {
        let Some(mask) = Self::mask_of(intid) else {
            return false;
        };
        self.bank.set_level(mask & !SGIS, high);
        self.bank.attention() & mask != 0
    }

    /// Whether the vCPU must run [`crate::ListFile::deliver`] for a private interrupt.
    pub fn needs_delivery(&self) -> bool {
        self.attention() != 0
    }

    /// The interrupts that the next [`crate::ListFile::deliver`] has to act on.
    #[inline]
    pub(crate) fn attention(&self) -> u32 {
        self.bank.attention() | self.physical_orphans()
    }

    /// The physical interrupts (PPIs, bit = number) that are active on behalf of this vCPU. When
    /// it leaves a CPU their active state is to be cleared there, and set on the CPU it comes to.
    pub fn hw_active(&self) -> u32 {
        bits(self.local.physical_active.into()).fold(0, |set, bit| {
            set | 1 << (self.local.physical[bit as usize] % 32)
        })
    }

    /// Forgets the physical interrupts that wait for this vCPU: it is turned off, and those whose
    /// line stays high will fire again.
    pub(crate) fn forget_physical(&mut self) {
        self.bank.state.latch &= !self.local.physical_active;
        self.local.physical_active = 0;
    }

    /// Ends the physical interrupts whose virtual ones the guest took back.
    pub(crate) fn release_physical(&mut self, lrs: &mut impl ListRegisters) {
        let orphans = self.physical_orphans();
        for bit in bits(orphans.into()) {
            lrs.deactivate_physical(self.local.physical[bit as usize].into());
        }
        self.local.physical_active &= !orphans;
    }

    fn physical_orphans(&self) -> u32 {
        self.local.physical_active
            & !(self.bank.loaded | self.bank.state.latch | self.bank.state.active)
    }

    fn mask_of(intid: u32) -> Option<u32> {
        (intid < FIRST_SPI).then(|| 1 << intid)
    }

    /// The guest reads `size` bytes at `offset` in the RD frame and the SGI frame after it. What
    /// is not supported, misaligned or of a wrong size reads as zero.
    ///
    /// `fresh` says that the vCPU's own list registers were published; otherwise reading pending
    /// or active state of a loaded interrupt is refused.
    pub fn read(&self, offset: u32, size: u32, fresh: bool) -> Result<u64, SyncNeeded> {
        let last = if self.last { TYPER_LAST } else { 0 };
        let typer = u64::from(affinity_of(self.index())) << 32
            | u64::from(u32::from(self.index) << TYPER_PROCESSOR_SHIFT | last);
        Ok(match (offset, size) {
            (GICR_IIDR, 4) => IIDR.into(),
            (GICR_TYPER, 8) => typer,
            (GICR_TYPER, 4) => typer & 0xffff_ffff,
            (GICR_TYPER_HIGH, 4) => typer >> 32,
            (GICR_WAKER, 4) if self.local.asleep != 0 => {
                (WAKER_PROCESSOR_SLEEP | WAKER_CHILDREN_ASLEEP).into()
            }
            (GICR_PIDR2, 4) => PIDR2.into(),
            _ => match private_fields(offset, size) {
                Some(fields)
                    if fields.register.shows_state() && !fresh && self.bank.loaded != 0 =>
                {
                    return Err(SyncNeeded(VcpuSet::only(self.index())));
                }
                Some(fields) => self.bank.read(fields).into(),
                None => 0,
            },
        })
    }

    /// The guest writes `size` bytes at `offset` in the RD frame and the SGI frame after it. What
    /// is not supported, misaligned or of a wrong size is ignored. Whether the vCPU must run
    /// [`crate::ListFile::deliver`].
    ///
    /// A vCPU asleep by `GICR_WAKER` gets its interrupts all the same: guests that never wake
    /// their redistributor run on other hypervisors too.
    pub fn write(&mut self, offset: u32, size: u32, value: u64) -> bool {
        match (offset, size, private_fields(offset, size)) {
            (GICR_WAKER, 4, _) => self.local.asleep = value as u32 >> 1 & 1,
            (_, _, Some(fields)) if is_fixed(fields) => {}
            (_, _, Some(fields)) => {
                self.bank.write(fields, value as u32);
            }
            _ => {}
        }
        self.needs_delivery()
    }
}

/// The fields of private interrupts at `offset`, which counts from the RD frame.
fn private_fields(offset: u32, size: u32) -> Option<Fields> {
    let fields = Fields::decode(offset.checked_sub(SGI_FRAME)?, size)?;
    (fields.bank == 0).then_some(fields)
}

/// SGIs are edge triggered, whatever is written.
fn is_fixed(fields: Fields) -> bool {
    fields.register == Register::Configuration && fields.first == 0
}
