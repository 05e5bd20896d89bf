//! A VM's distributor: its SPIs (Arm IHI 0069, 12.9).

use crate::affinity::{VcpuSet, bits, vcpu_at};
use crate::bank::{Bank, Groups};
use crate::redistributor::{IIDR, PIDR2};
use crate::registers::{Fields, Register};
use crate::{FIRST_SPI, MAX_SPIS, SyncNeeded};

const BANKS: usize = MAX_SPIS as usize / 32;
/// In the place of a vCPU: nobody.
const NOBODY: u8 = u8::MAX;

const GICD_CTLR: u32 = 0x0000;
const GICD_TYPER: u32 = 0x0004;
const GICD_IIDR: u32 = 0x0008;
const GICD_IROUTER: u32 = 0x6000;
const GICD_IROUTER_END: u32 = 0x8000;
const GICD_PIDR2: u32 = 0xffe8;

/// Affinity routing on, and one security state: both fixed.
const CTLR_FIXED: u32 = 1 << 4 | 1 << 6;
/// Ten bits of interrupt number, and no SPI that goes to any one of several vCPUs.
const TYPER_FIXED: u32 = 9 << 19 | 1 << 25;

/// What a write asks the caller to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "vCPUs that are not told miss their interrupts"]
pub struct Effects {
    /// These vCPUs must run [`crate::ListFile::deliver`], with the distributor: interrupt those
    /// that run in the guest, wake those that wait.
    pub deliver: VcpuSet,
    /// Every [`crate::Redistributor`] must be told by its `set_groups`, before the lock of the
    /// distributor is given up.
    pub groups: Option<Groups>,
}

/// The SPIs of a VM, numbered from 32.
#[derive(Clone, Debug)]
pub struct Distributor {
    pub(crate) banks: [Bank; BANKS],
    /// `GICD_IROUTER` of each SPI, as `Aff3.Aff2.Aff1.Aff0`.
    pub(crate) routes: [u32; MAX_SPIS as usize],
    /// The vCPU each route names.
    targets: [u8; MAX_SPIS as usize],
    /// The vCPU on which each SPI is loaded or active.
    pub(crate) holders: [u8; MAX_SPIS as usize],
    pub(crate) groups: Groups,
    /// How many of `banks` there are.
    pub(crate) count: u8,
    pub(crate) vcpus: u8,
}

impl Distributor {
    /// A distributor with `spis` SPIs, rounded up to a multiple of 32 and at most [`MAX_SPIS`], of
    /// a VM with `vcpus` vCPUs. All SPIs are off, level sensitive and routed to vCPU 0.
    pub fn new(spis: u32, vcpus: usize) -> Self {
        let spis = if spis > MAX_SPIS { MAX_SPIS } else { spis };
        Self {
            banks: Default::default(),
            routes: [0; MAX_SPIS as usize],
            targets: [0; MAX_SPIS as usize],
            holders: [NOBODY; MAX_SPIS as usize],
            groups: Groups::empty(),
            count: spis.div_ceil(32) as u8,
            vcpus: vcpus as u8,
        }
    }

    /// The groups let through: what each [`crate::Redistributor`] is to be told.
    pub const fn groups(&self) -> Groups {
        self.groups
    }

    /// An edge of SPI `intid`. The vCPUs that must run [`crate::ListFile::deliver`].
    pub fn set_pending(&mut self, intid: u32) -> VcpuSet {
        self.change(intid, |bank, mask| bank.latch |= mask)
    }

    /// SPI `intid` is pending no more, unless its line is high. The vCPUs that must run
    /// [`crate::ListFile::deliver`].
    pub fn clear_pending(&mut self, intid: u32) -> VcpuSet {
        self.change(intid, Bank::clear_pending)
    }

    /// The line of SPI `intid` becomes high or low. The vCPUs that must run
    /// [`crate::ListFile::deliver`].
    pub fn set_level(&mut self, intid: u32, high: bool) -> VcpuSet {
        self.change(intid, |bank, mask| bank.set_level(mask, high))
    }

    fn change(&mut self, intid: u32, change: impl FnOnce(&mut Bank, u32)) -> VcpuSet {
        let Some(bank) = self.bank_mut(intid) else {
            return VcpuSet::NONE;
        };
        change(bank, 1 << (intid % 32));
        self.concerned(intid / 32 - 1, 1 << (intid % 32))
    }

    /// Whether an SPI for `vcpu` that is more urgent than `mask` is pending, let through and in no
    /// list register.
    pub(crate) fn deliverable_below(&self, vcpu: usize, mask: u8) -> bool {
        let banks = self.banks.iter().take(self.count.into());
        (0..).zip(banks).any(|(n, bank)| {
            let candidates = bank.ready();
            candidates != 0
                && bank.deliverable_below(owned_by(vcpu, &self.targets, n, candidates), mask)
        })
    }

    /// The bank that holds `intid`, where that is an SPI of this distributor.
    pub(crate) fn bank_mut(&mut self, intid: u32) -> Option<&mut Bank> {
        let n = (intid / 32)
            .checked_sub(1)
            .filter(|&n| n < self.count.into())?;
        self.banks.get_mut(n as usize)
    }

    /// What `vcpu` has to put into list registers: bank and interrupts in it. Pending ones go
    /// where their route says, active ones where they became active.
    pub(crate) fn ready(&self, vcpu: usize) -> impl Iterator<Item = (u32, &Bank, u32)> {
        (0..)
            .zip(self.banks.iter().take(self.count.into()))
            .filter_map(move |(n, bank)| {
                let ready = bank.ready();
                if ready == 0 {
                    return None;
                }
                let mine = owned_by(vcpu, &self.targets, n, ready & !bank.active)
                    | owned_by(vcpu, &self.holders, n, ready & bank.active);
                (mine != 0).then_some((n, bank, mine))
            })
    }

    /// `vcpu` has loaded SPI `intid`. Whether its route leads to another vCPU.
    pub(crate) fn set_holder(&mut self, intid: u32, vcpu: usize) -> bool {
        let Some(spi) = spi_of(intid) else {
            return false;
        };
        self.holders[spi] = vcpu as u8;
        self.targets[spi] != vcpu as u8
    }

    /// The vCPU that SPI `intid` is routed to.
    pub(crate) fn is_target(&self, intid: u32, vcpu: usize) -> bool {
        spi_of(intid).is_some_and(|spi| self.targets[spi] == vcpu as u8)
    }

    /// The vCPUs that have to act on SPI `intid`.
    pub(crate) fn concerned_with(&self, intid: u32) -> VcpuSet {
        (intid / 32)
            .checked_sub(1)
            .map_or(VcpuSet::NONE, |n| self.concerned(n, 1 << (intid % 32)))
    }

    /// The vCPUs that have to act on the interrupts `mask` of bank `n`.
    fn concerned(&self, n: u32, mask: u32) -> VcpuSet {
        let Some(bank) = self.banks.get(n as usize) else {
            return VcpuSet::NONE;
        };
        let held = bank.loaded | bank.active;
        bits((bank.attention() & mask).into()).fold(VcpuSet::NONE, |set, bit| {
            let owners = if held >> bit & 1 != 0 {
                &self.holders
            } else {
                &self.targets
            };
            set.or(VcpuSet::only(owners[(n * 32 + bit) as usize].into()))
        })
    }

    /// The guest reads `size` bytes at `offset`. What is not supported, misaligned or of a wrong
    /// size reads as zero.
    ///
    /// `fresh` are the vCPUs whose list registers were published; reading pending or active state
    /// that others hold is refused.
    pub fn read(&self, offset: u32, size: u32, fresh: VcpuSet) -> Result<u64, SyncNeeded> {
        Ok(match (offset, size) {
            (GICD_CTLR, 4) => (CTLR_FIXED | self.groups.bits()).into(),
            (GICD_TYPER, 4) => (TYPER_FIXED | u32::from(self.count)).into(),
            (GICD_IIDR, 4) => IIDR.into(),
            (GICD_PIDR2, 4) => PIDR2.into(),
            (GICD_IROUTER..GICD_IROUTER_END, 4 | 8) => self.read_route(offset, size),
            _ => match self.shared_fields(offset, size) {
                Some((n, fields)) => self.read_fields(n, fields, fresh)?.into(),
                None => 0,
            },
        })
    }

    fn read_fields(&self, n: u32, fields: Fields, fresh: VcpuSet) -> Result<u32, SyncNeeded> {
        let bank = &self.banks[n as usize];
        if fields.register.shows_state() {
            let holders = bits(bank.loaded.into()).fold(VcpuSet::NONE, |set, bit| {
                set.or(VcpuSet::only(self.holders[(n * 32 + bit) as usize].into()))
            });
            let missing = holders.without(fresh);
            if !missing.is_empty() {
                return Err(SyncNeeded(missing));
            }
        }
        Ok(bank.read(fields))
    }

    /// The guest writes `size` bytes at `offset`. What is not supported, misaligned or of a wrong
    /// size is ignored.
    pub fn write(&mut self, offset: u32, size: u32, value: u64) -> Effects {
        match (offset, size) {
            (GICD_CTLR, 4) => self.write_control(value as u32),
            (GICD_IROUTER..GICD_IROUTER_END, 4 | 8) => self.write_route(offset, size, value),
            _ => {
                if let Some((n, fields)) = self.shared_fields(offset, size) {
                    return self.write_fields(n, fields, value as u32);
                }
                Effects::default()
            }
        }
    }

    fn write_control(&mut self, value: u32) -> Effects {
        let groups = Groups::from_bits_truncate(value);
        if groups == self.groups {
            return Effects::default();
        }
        self.groups = groups;
        let mut deliver = VcpuSet::NONE;
        for n in 0..self.count.into() {
            self.banks[n as usize].set_groups(groups);
            deliver = deliver.or(self.concerned(n, u32::MAX));
        }
        Effects {
            deliver,
            groups: Some(groups),
        }
    }

    fn write_fields(&mut self, n: u32, fields: Fields, value: u32) -> Effects {
        let bank = &mut self.banks[n as usize];
        if fields.register == Register::SetActive {
            // It became active by a write: the vCPU that would have got it has to end it.
            for bit in bits((value & !(bank.active | bank.loaded)).into()) {
                let spi = (n * 32 + bit) as usize;
                self.holders[spi] = self.targets[spi];
            }
        }
        let touched = bank.write(fields, value);
        Effects {
            deliver: self.concerned(n, touched),
            groups: None,
        }
    }

    /// The fields of SPIs at `offset`, and which bank they are in.
    fn shared_fields(&self, offset: u32, size: u32) -> Option<(u32, Fields)> {
        let fields = Fields::decode(offset, size)?;
        let n = (fields.bank as u32).checked_sub(1)?;
        (n < self.count.into()).then_some((n, fields))
    }

    /// The SPI whose `GICD_IROUTER` an access means.
    fn routed(&self, offset: u32, size: u32) -> Option<usize> {
        let spi = spi_of((offset - GICD_IROUTER) / 8)?;
        (spi < usize::from(self.count) * 32 && offset.is_multiple_of(size)).then_some(spi)
    }

    fn read_route(&self, offset: u32, size: u32) -> u64 {
        let Some(spi) = self.routed(offset, size) else {
            return 0;
        };
        let route = unpack_route(self.routes[spi]);
        match (size, offset % 8) {
            (8, _) => route,
            (_, 0) => route & 0xffff_ffff,
            _ => route >> 32,
        }
    }

    fn write_route(&mut self, offset: u32, size: u32, value: u64) -> Effects {
        let Some(spi) = self.routed(offset, size) else {
            return Effects::default();
        };
        let old = self.routes[spi];
        let new = match (size, offset % 8) {
            (8, _) => pack_route(value),
            (_, 0) => old & 0xff00_0000 | value as u32 & 0x00ff_ffff,
            _ => old & 0x00ff_ffff | (value as u32) << 24,
        };
        self.set_route(spi, new);
        let (n, mask) = (spi as u32 / 32, 1 << (spi % 32));
        self.banks[n as usize].mark_stale(mask);
        Effects {
            deliver: self.concerned(n, mask),
            groups: None,
        }
    }
}

impl Distributor {
    /// SPI `spi`, counted from zero, goes where that says.
    pub(crate) fn set_route(&mut self, spi: usize, route: u32) {
        self.routes[spi] = route;
        self.targets[spi] = vcpu_at(route, self.vcpus.into()).map_or(NOBODY, |index| index as u8);
    }
}

/// The interrupts of `among` in bank `n` that `owners` gives to `vcpu`.
fn owned_by(vcpu: usize, owners: &[u8; MAX_SPIS as usize], n: u32, among: u32) -> u32 {
    bits(among.into())
        .filter(|bit| usize::from(owners[(n * 32 + bit) as usize]) == vcpu)
        .fold(0, |mine, bit| mine | 1 << bit)
}

/// The SPI, counted from zero, that is interrupt `intid`.
fn spi_of(intid: u32) -> Option<usize> {
    intid
        .checked_sub(FIRST_SPI)
        .filter(|&spi| spi < MAX_SPIS)
        .map(|spi| spi as usize)
}

/// The affinity in a value of `GICD_IROUTER`: Aff3 is apart from the others.
const fn pack_route(value: u64) -> u32 {
    value as u32 & 0x00ff_ffff | ((value >> 32) as u32) << 24
}

const fn unpack_route(affinity: u32) -> u64 {
    (affinity & 0x00ff_ffff) as u64 | (affinity as u64 >> 24) << 32
}
