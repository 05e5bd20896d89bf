//! Interrupts of an operating system that owns the machine's GICv3 (Arm IHI 0069), while EL2 is
//! beneath it: EL2 takes each and hands it on in a list register of the same CPU.
//!
//! The system keeps distributor, redistributors and ITS; only the CPU interface becomes virtual
//! ([`carry`]). [`Forwarder::forward`] takes one interrupt:
//!
//! | What | List register | Ended by |
//! |---|---|---|
//! | SPI, PPI | linked to the physical one, which stays active | the system's own end |
//! | SGI | not linked; a second one joins the first | EL2 at once |
//! | LPI | not linked (no room for its number); it has no active state | EL2 at once |
//!
//! [`give_back`] empties the list registers when EL2 steps aside: what was handed over and not yet
//! taken becomes pending in the hardware again. That cannot be done for an LPI, so a CPU that holds
//! one must [hold](Forwarder::hold) new interrupts, run on, and try again.
#![no_std]
#![forbid(unsafe_code)]

mod carry;
mod saved;

pub use carry::{CpuInterface, VirtualInterface, active_priority_registers, carry, return_carried};
pub use saved::SavedLists;

use machine_contract::ListRegisters;

/// The first PPI: what is below is an SGI.
const FIRST_PPI: u32 = 16;
/// The first LPI.
pub const FIRST_LPI: u32 = 8192;
/// What is not an interrupt: 1020 to 1023.
const SPECIAL: core::ops::Range<u32> = 1020..FIRST_LPI;

const PENDING: u64 = 1 << 62;
const ACTIVE: u64 = 1 << 63;
const HW: u64 = 1 << 61;
const GROUP1: u64 = 1 << 60;

/// The executing CPU's part of the physical GIC.
pub trait PhysicalGic {
    /// Whether an interrupt is for EL2 and not for the system.
    fn is_own(&self, intid: u32) -> bool;
    /// Takes the pending interrupt with the highest priority (`ICC_IAR1_EL1`); 1023 if none is.
    fn acknowledge(&mut self) -> u32;
    /// The priority of what was acknowledged last (`ICC_RPR_EL1`).
    fn running_priority(&mut self) -> u8;
    /// Drops that priority (`ICC_EOIR1_EL1` with EOImode 1); the interrupt stays active.
    fn drop_priority(&mut self, intid: u32);
    /// Ends an active interrupt (`ICC_DIR_EL1`).
    fn deactivate(&mut self, intid: u32);
    /// Holds all interrupts back but the maintenance interrupt (`ICC_PMR_EL1`), or lets them
    /// through. To hold means to be sure that the maintenance interrupt can come: its owner may
    /// have silenced it.
    fn hold(&mut self, on: bool);
    /// Makes an SGI, PPI or SPI pending (`GICR_ISPENDR0`, `GICD_ISPENDR`).
    fn set_pending(&mut self, intid: u32);
    /// Whether an edge raises it (`GICR_ICFGR`, `GICD_ICFGR`): its level does not make it pending
    /// again.
    fn is_edge(&mut self, intid: u32) -> bool;
}

/// What became of one physical interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// It is in a list register.
    Given(u32),
    /// All list registers are in use: nothing was acknowledged, and the maintenance interrupt will
    /// say when there is room.
    Held,
    /// It was the maintenance interrupt: others come through again.
    Maintenance,
    /// It is EL2's own: its priority is dropped, and it is still active.
    Own(u32),
    /// Nothing was pending.
    Spurious,
}

/// Hands on the interrupts of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarder {
    maintenance: u32,
    held: bool,
}

impl Forwarder {
    /// Lets everything through. `maintenance` is the maintenance interrupt's number.
    pub const fn new(maintenance: u32) -> Self {
        Self {
            maintenance,
            held: false,
        }
    }

    /// Takes one physical interrupt and hands it on.
    pub fn forward(
        &mut self,
        lists: &mut impl ListRegisters,
        gic: &mut impl PhysicalGic,
    ) -> Forwarded {
        let is_full = lists.empty() & mask(lists.count()) == 0;
        if is_full && !self.held {
            self.hold(lists, gic);
            return Forwarded::Held;
        }
        // With all else held back, only EL2's own can be what is acknowledged.
        let intid = gic.acknowledge();
        if SPECIAL.contains(&intid) {
            return Forwarded::Spurious;
        }
        let priority = gic.running_priority();
        gic.drop_priority(intid);
        if gic.is_own(intid) {
            return Forwarded::Own(intid);
        }
        if intid == self.maintenance {
            gic.deactivate(intid);
            self.release(lists, gic);
            return Forwarded::Maintenance;
        }
        if intid < FIRST_PPI {
            gic.deactivate(intid);
        }
        place(lists, intid, priority);
        Forwarded::Given(intid)
    }

    /// Holds new interrupts back until list registers are free again.
    pub fn hold(&mut self, lists: &mut impl ListRegisters, gic: &mut impl PhysicalGic) {
        self.held = true;
        gic.hold(true);
        lists.set_underflow_interrupt(true);
    }

    /// Holds new interrupts back until [`give_back`] succeeds: for a system that takes what is in its
    /// list registers and tries again at once.
    pub fn hold_for_leaving(&mut self, gic: &mut impl PhysicalGic) {
        self.held = true;
        gic.hold(true);
    }

    /// The system leaves the CPU to somebody else, whose interrupts are not to be held back: more of
    /// the system's own may come for it meanwhile.
    pub fn leave(&mut self, gic: &mut impl PhysicalGic) {
        if self.held {
            self.held = false;
            gic.hold(false);
        }
    }

    fn release(&mut self, lists: &mut impl ListRegisters, gic: &mut impl PhysicalGic) {
        self.held = false;
        lists.set_underflow_interrupt(false);
        gic.hold(false);
    }
}

const fn mask(count: usize) -> u16 {
    if count >= 16 {
        u16::MAX
    } else {
        (1 << count) - 1
    }
}

/// Puts an interrupt into a list register: the one that has it already, or an empty one.
fn place(lists: &mut impl ListRegisters, intid: u32, priority: u8) {
    let empty = lists.empty() & mask(lists.count());
    let holders = (0..lists.count()).filter(|n| empty >> n & 1 == 0);
    for n in holders {
        let value = lists.read(n);
        if value as u32 == intid {
            lists.write(n, value | PENDING);
            return;
        }
    }
    let link = if (FIRST_PPI..FIRST_LPI).contains(&intid) {
        HW | u64::from(intid) << 32
    } else {
        0
    };
    let value = PENDING | GROUP1 | u64::from(priority) << 48 | link | u64::from(intid);
    if empty != 0 {
        lists.write(empty.trailing_zeros() as usize, value);
    }
}

/// Why list registers cannot be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// One holds an LPI, which only the system itself can take.
    Lpi(u32),
    /// The system is in the middle of handling one.
    Active(u32),
}

/// Whether [`give_back`] can be done.
///
/// # Errors
/// What stands against it.
pub fn check_give_back(lists: &impl ListRegisters) -> Result<(), Busy> {
    for value in held(lists) {
        let intid = value as u32;
        if value & ACTIVE != 0 {
            return Err(Busy::Active(intid));
        }
        if intid >= FIRST_LPI {
            return Err(Busy::Lpi(intid));
        }
    }
    Ok(())
}

/// Empties the list registers: what they hold is pending in the hardware again.
///
/// # Errors
/// As [`check_give_back`]; nothing is changed then.
pub fn give_back(lists: &mut impl ListRegisters, gic: &mut impl PhysicalGic) -> Result<(), Busy> {
    check_give_back(lists)?;
    for n in 0..lists.count() {
        let value = lists.read(n);
        if lists.empty() >> n & 1 == 1 {
            continue;
        }
        let intid = value as u32;
        if value & HW != 0 {
            // A level that is still high makes it pending by itself.
            gic.deactivate(intid);
            if gic.is_edge(intid) {
                gic.set_pending(intid);
            }
        } else {
            gic.set_pending(intid);
        }
        lists.write(n, 0);
    }
    Ok(())
}

fn held(lists: &impl ListRegisters) -> impl Iterator<Item = u64> + '_ {
    (0..lists.count())
        .filter(|n| lists.empty() >> n & 1 == 0)
        .map(|n| lists.read(n))
}
