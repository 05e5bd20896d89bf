//! A VM's distributor: its SPIs (Arm IHI 0069, 12.9).

use crate::affinity::{VcpuSet, bits, vcpu_at};
use crate::bank::{Bank, Groups};
use crate::redistributor::{IIDR, PIDR2};
use crate::registers::{Fields, Register};
use crate::{MAX_SPIS, SyncNeeded};
use abi::state::Spis;

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
    banks: [SpiBank; BANKS],
    groups: Groups,
    /// How many of `banks` there are.
    count: u8,
    vcpus: u8,
    /// vCPUs to which SPIs go; of the others, another host has each.
    own: VcpuSet,
}

/// 32 SPIs.
#[derive(Clone, Debug, Default)]
struct SpiBank {
    bank: Bank,
    /// `GICD_IROUTER` of each, as `Aff3.Aff2.Aff1.Aff0`.
    routes: [u32; 32],
    /// The vCPU each route names.
    targets: [u8; 32],
    /// The vCPU on which each is, of those that are loaded or active.
    holders: [u8; 32],
}

impl SpiBank {
    fn restore(&mut self, record: &Spis, groups: Groups, vcpus: u8) -> bool {
        let is_there = |bit: u32| record.holders[bit as usize] < vcpus;
        let is_valid = bits(record.interrupts.active.into()).all(is_there);
        let Some(bank) = Bank::of(record.interrupts, 0, groups).filter(|_| is_valid) else {
            return false;
        };
        (self.routes, self.holders) = (record.routes, record.holders);
        self.targets = record.routes.map(|route| target_of(route, vcpus));
        self.bank = bank;
        true
    }
}

impl Distributor {
    /// A distributor with `spis` SPIs, rounded up to a multiple of 32 and at most [`MAX_SPIS`], of
    /// a VM with `vcpus` vCPUs. All SPIs are off, level sensitive and routed to vCPU 0.
    pub fn new(spis: u32, vcpus: usize) -> Self {
        let spis = if spis > MAX_SPIS { MAX_SPIS } else { spis };
        Self {
            banks: Default::default(),
            groups: Groups::empty(),
            count: spis.div_ceil(32) as u8,
            vcpus: vcpus as u8,
            own: VcpuSet::first(vcpus),
        }
    }

    /// Other hosts have the vCPUs that are not `own`: SPIs that are routed to them go to vCPU 0.
    pub const fn keep_at(&mut self, own: VcpuSet) {
        self.own = own;
    }

    /// Lets SPIs of that vCPU go to vCPU 0, as another host gets it, after [`crate::ListFile::give_back`]. Whether vCPU 0 must
    /// run [`crate::ListFile::deliver`]; `None`, and nothing is done, while an SPI is active at that vCPU.
    pub fn give_away(&mut self, vcpu: u8) -> Option<bool> {
        let is_its = |owners: &[u8; 32], among: u32| owned_by(vcpu.into(), owners, among) != 0;
        let is_busy = |spis: &SpiBank| is_its(&spis.holders, spis.bank.state.active);
        if self.banks().any(is_busy) {
            return None;
        }
        self.own = self.own.without(VcpuSet::only(vcpu.into()));
        let mut is_concerned = false;
        for spis in self.banks.iter_mut().take(self.count.into()) {
            for (bit, target) in spis.targets.iter_mut().enumerate() {
                if *target == vcpu {
                    *target = 0;
                    spis.bank.mark_stale(1 << bit);
                    is_concerned = true;
                }
            }
        }
        Some(is_concerned)
    }

    /// The records of its SPIs, after [`crate::ListFile::give_back`] of all vCPUs.
    pub fn records(&self) -> impl Iterator<Item = Spis> {
        self.banks().map(|spis| Spis {
            interrupts: spis.bank.state,
            routes: spis.routes,
            holders: spis.holders,
        })
    }

    /// As records have it. `false` where they are not as many as this one has, or name a vCPU that there
    /// is not.
    #[must_use]
    pub fn restore(&mut self, records: impl ExactSizeIterator<Item = Spis>, groups: u32) -> bool {
        self.groups = Groups::from_bits_truncate(groups);
        let has_all = records.len() == usize::from(self.count);
        let mut pairs = self.banks.iter_mut().zip(records);
        has_all && pairs.all(|(spis, record)| spis.restore(&record, self.groups, self.vcpus))
    }

    /// The groups let through: what each [`crate::Redistributor`] is to be told.
    pub const fn groups(&self) -> Groups {
        self.groups
    }

    /// An edge of SPI `intid`. The vCPUs that must run [`crate::ListFile::deliver`].
    pub fn set_pending(&mut self, intid: u32) -> VcpuSet {
        self.change(intid, |bank, mask| bank.state.latch |= mask)
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
        self.concerned_with(intid)
    }

    /// Whether an SPI for `vcpu` that is more urgent than `mask` is pending, let through and in no
    /// list register.
    pub(crate) fn deliverable_below(&self, vcpu: usize, mask: u8) -> bool {
        self.banks().any(|SpiBank { bank, targets, .. }| {
            let candidates = bank.ready();
            candidates != 0 && bank.deliverable_below(owned_by(vcpu, targets, candidates), mask)
        })
    }

    /// The bank that holds `intid`, where that is an SPI of this distributor.
    pub(crate) fn bank_mut(&mut self, intid: u32) -> Option<&mut Bank> {
        Some(&mut self.spis_mut(intid)?.bank)
    }

    fn spis_mut(&mut self, intid: u32) -> Option<&mut SpiBank> {
        let n = bank_of(intid).filter(|&n| n < self.count.into())?;
        self.banks.get_mut(n)
    }

    fn banks(&self) -> impl Iterator<Item = &SpiBank> {
        self.banks.iter().take(self.count.into())
    }

    /// What `vcpu` has to put into list registers: bank and interrupts in it. Pending ones go
    /// where their route says, active ones where they became active.
    pub(crate) fn ready(&self, vcpu: usize) -> impl Iterator<Item = (u32, &Bank, u32)> {
        (0..).zip(self.banks()).filter_map(move |(n, spis)| {
            let (bank, ready) = (&spis.bank, spis.bank.ready());
            if ready == 0 {
                return None;
            }
            let mine = owned_by(vcpu, &spis.targets, ready & !bank.state.active)
                | owned_by(vcpu, &spis.holders, ready & bank.state.active);
            (mine != 0).then_some((n, bank, mine))
        })
    }

    /// `vcpu` has loaded SPI `intid`. Whether its route leads to another vCPU.
    pub(crate) fn set_holder(&mut self, intid: u32, vcpu: usize) -> bool {
        let Some(spis) = self.spis_mut(intid) else {
            return false;
        };
        spis.holders[intid as usize % 32] = vcpu as u8;
        spis.targets[intid as usize % 32] != vcpu as u8
    }

    /// The vCPU that SPI `intid` is routed to.
    pub(crate) fn is_target(&self, intid: u32, vcpu: usize) -> bool {
        let spis = bank_of(intid).and_then(|n| self.banks.get(n));
        spis.is_some_and(|spis| spis.targets[intid as usize % 32] == vcpu as u8)
    }

    /// The vCPUs that have to act on SPI `intid`.
    pub(crate) fn concerned_with(&self, intid: u32) -> VcpuSet {
        bank_of(intid).map_or(VcpuSet::NONE, |n| self.concerned(n, 1 << (intid % 32)))
    }

    /// The vCPUs that have to act on the interrupts `mask` of bank `n`.
    fn concerned(&self, n: usize, mask: u32) -> VcpuSet {
        let Some(spis) = self.banks.get(n) else {
            return VcpuSet::NONE;
        };
        let bank = &spis.bank;
        let held = bank.loaded | bank.state.active;
        bits((bank.attention() & mask).into()).fold(VcpuSet::NONE, |set, bit| {
            let owners = if held >> bit & 1 != 0 {
                &spis.holders
            } else {
                &spis.targets
            };
            set.or(VcpuSet::only(owners[bit as usize].into()))
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

    fn read_fields(&self, n: usize, fields: Fields, fresh: VcpuSet) -> Result<u32, SyncNeeded> {
        let SpiBank { bank, holders, .. } = &self.banks[n];
        if fields.register.shows_state() {
            let holders = bits(bank.loaded.into()).fold(VcpuSet::NONE, |set, bit| {
                set.or(VcpuSet::only(holders[bit as usize].into()))
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
            self.banks[n].bank.set_groups(groups);
            deliver = deliver.or(self.concerned(n, u32::MAX));
        }
        Effects {
            deliver,
            groups: Some(groups),
        }
    }

    fn write_fields(&mut self, n: usize, fields: Fields, value: u32) -> Effects {
        let spis = &mut self.banks[n];
        let bank = &mut spis.bank;
        if fields.register == Register::SetActive {
            // It became active by a write: the vCPU that would have got it has to end it.
            for bit in bits((value & !(bank.state.active | bank.loaded)).into()) {
                spis.holders[bit as usize] = spis.targets[bit as usize];
            }
        }
        let touched = bank.write(fields, value);
        Effects {
            deliver: self.concerned(n, touched),
            groups: None,
        }
    }

    /// The fields of SPIs at `offset`, and which bank they are in.
    fn shared_fields(&self, offset: u32, size: u32) -> Option<(usize, Fields)> {
        let fields = Fields::decode(offset, size)?;
        let n = fields.bank.checked_sub(1)?;
        (n < self.count.into()).then_some((n, fields))
    }

    /// The SPI whose `GICD_IROUTER` an access means: its bank and its place there.
    fn routed(&self, offset: u32, size: u32) -> Option<(usize, usize)> {
        let intid = (offset - GICD_IROUTER) / 8;
        let n = bank_of(intid).filter(|&n| n < self.count.into() && offset.is_multiple_of(size))?;
        Some((n, intid as usize % 32))
    }

    fn read_route(&self, offset: u32, size: u32) -> u64 {
        let Some((n, bit)) = self.routed(offset, size) else {
            return 0;
        };
        let route = unpack_route(self.banks[n].routes[bit]);
        match (size, offset % 8) {
            (8, _) => route,
            (_, 0) => route & 0xffff_ffff,
            _ => route >> 32,
        }
    }

    fn write_route(&mut self, offset: u32, size: u32, value: u64) -> Effects {
        let Some((n, bit)) = self.routed(offset, size) else {
            return Effects::default();
        };
        let spis = &mut self.banks[n];
        let old = spis.routes[bit];
        let new = match (size, offset % 8) {
            (8, _) => pack_route(value),
            (_, 0) => old & 0xff00_0000 | value as u32 & 0x00ff_ffff,
            _ => old & 0x00ff_ffff | (value as u32) << 24,
        };
        spis.routes[bit] = new;
        let target = target_of(new, self.vcpus);
        let is_elsewhere = target < self.vcpus && !self.own.contains(target.into());
        spis.targets[bit] = if is_elsewhere { 0 } else { target };
        spis.bank.mark_stale(1 << bit);
        Effects {
            deliver: self.concerned(n, 1 << bit),
            groups: None,
        }
    }
}

/// The interrupts of `among` that `owners` gives to `vcpu`.
fn owned_by(vcpu: usize, owners: &[u8; 32], among: u32) -> u32 {
    bits(among.into())
        .filter(|bit| usize::from(owners[*bit as usize]) == vcpu)
        .fold(0, |mine, bit| mine | 1 << bit)
}

/// The bank of SPI `intid`, counted from the first of SPIs.
fn bank_of(intid: u32) -> Option<usize> {
    (intid as usize / 32).checked_sub(1)
}

/// The vCPU of so many that a route names.
fn target_of(route: u32, vcpus: u8) -> u8 {
    vcpu_at(route, vcpus.into()).map_or(NOBODY, |index| index as u8)
}

/// The affinity in a value of `GICD_IROUTER`: Aff3 is apart from the others.
const fn pack_route(value: u64) -> u32 {
    value as u32 & 0x00ff_ffff | ((value >> 32) as u32) << 24
}

const fn unpack_route(affinity: u32) -> u64 {
    (affinity & 0x00ff_ffff) as u64 | (affinity as u64 >> 24) << 32
}
