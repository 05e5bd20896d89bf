//! GICv3 (Arm IHI 0069): distributor, redistributors and the CPU interface, in one security state
//! with affinity routing.

use core::arch::asm;

use crate::boot;
use crate::cpu;
use crate::device::Device;
use crate::timer;

/// GICD_CTLR.
pub const GICD_CTLR: usize = 0x0000;
/// GICD_TYPER.
pub const GICD_TYPER: usize = 0x0004;
/// What an acknowledge gives when nothing is pending.
pub const SPURIOUS: u32 = 1023;
/// The priority that [`init_cpu`] gives to SGIs and PPIs, and [`Line::set_up`] to a line.
pub const PRIORITY: u8 = 0xa0;
/// The lowest mask: all priorities pass.
pub const ALL_PRIORITIES: u8 = 0xff;

const ENABLE_GROUPS_AND_AFFINITY: u32 = 1 | 1 << 1 | 1 << 4;
const FRAME: usize = 0x2_0000;
const SGI_FRAME: usize = 0x1_0000;
const GICR_TYPER: usize = 0x08;
const GICR_WAKER: usize = 0x14;
const PROCESSOR_SLEEP: u32 = 1 << 1;
const CHILDREN_ASLEEP: u32 = 1 << 2;
const IGROUPR: usize = 0x80;
const ISENABLER: usize = 0x100;
const ICENABLER: usize = 0x180;
const ISPENDR: usize = 0x200;
const ICPENDR: usize = 0x280;
const ISACTIVER: usize = 0x300;
const ICACTIVER: usize = 0x380;
const IPRIORITYR: usize = 0x400;
const ICFGR: usize = 0xc00;
const IROUTER: usize = 0x6000;

macro_rules! cpu_interface {
    ($($(#[$doc:meta])* $read:ident, $write:ident, $register:literal;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $read() -> u64 {
            let value: u64;
            // SAFETY: the CPU interface changes only which interrupts come.
            unsafe { asm!(concat!("mrs {}, ", $register), out(reg) value, options(nostack)) };
            value
        }

        /// Writes the register of the same name.
        #[inline]
        pub fn $write(value: u64) {
            // SAFETY: the CPU interface changes only which interrupts come.
            unsafe {
                asm!(concat!("msr ", $register, ", {}"), "isb", in(reg) value, options(nostack));
            }
        }
    )*};
}

cpu_interface! {
    /// ICC_PMR_EL1: priorities at and above this number are held back.
    priority_mask, set_priority_mask, "S3_0_C4_C6_0";
    /// ICC_BPR1_EL1: which bits of a priority preempt.
    binary_point, set_binary_point, "S3_0_C12_C12_3";
    /// ICC_CTLR_EL1.
    control, set_control, "S3_0_C12_C12_4";
    /// ICC_IGRPEN0_EL1.
    group0, set_group0, "S3_0_C12_C12_6";
    /// ICC_IGRPEN1_EL1.
    group1, set_group1, "S3_0_C12_C12_7";
    /// ICC_SRE_EL1.
    system_registers, set_system_registers, "S3_0_C12_C12_5";
}

/// ICC_IAR1_EL1: takes the pending interrupt of highest priority.
#[inline]
pub fn acknowledge() -> u32 {
    let value: u64;
    // SAFETY: as for the other registers of the CPU interface.
    unsafe { asm!("mrs {}, S3_0_C12_C12_0", "dsb sy", out(reg) value, options(nostack)) };
    value as u32
}

/// ICC_IAR0_EL1: the same for group 0.
pub fn acknowledge_group0() -> u32 {
    let value: u64;
    // SAFETY: as above.
    unsafe { asm!("mrs {}, S3_0_C12_C8_0", "dsb sy", out(reg) value, options(nostack)) };
    value as u32
}

/// ICC_EOIR1_EL1: drops the priority, and deactivates in EOImode 0.
#[inline]
pub fn end(intid: u32) {
    // SAFETY: as above.
    unsafe { asm!("msr S3_0_C12_C12_1, {}", in(reg) u64::from(intid), options(nostack)) };
}

/// ICC_EOIR0_EL1.
pub fn end_group0(intid: u32) {
    // SAFETY: as above.
    unsafe { asm!("msr S3_0_C12_C8_1, {}", in(reg) u64::from(intid), options(nostack)) };
}

/// ICC_DIR_EL1: deactivates, in EOImode 1.
pub fn deactivate(intid: u32) {
    // SAFETY: as above.
    unsafe { asm!("msr S3_0_C12_C11_1, {}", "isb", in(reg) u64::from(intid), options(nostack)) };
}

/// ICC_RPR_EL1: the priority that runs; 0xff when idle.
pub fn running_priority() -> u8 {
    let value: u64;
    // SAFETY: reads a register of the CPU interface.
    unsafe { asm!("mrs {}, S3_0_C12_C11_3", out(reg) value, options(nostack)) };
    value as u8
}

/// ICC_HPPIR1_EL1: what [`acknowledge`] would give, mask aside.
pub fn highest_pending() -> u32 {
    let value: u64;
    // SAFETY: reads a register of the CPU interface.
    unsafe { asm!("isb", "mrs {}, S3_0_C12_C12_2", out(reg) value, options(nostack)) };
    value as u32
}

/// ICC_CTLR_EL1.EOImode: whether [`end`] only drops the priority.
pub fn set_split_end(split: bool) {
    set_control(control() & !2 | u64::from(split) << 1);
}

/// ICC_SGI1R_EL1.
#[inline]
fn generate(value: u64) {
    // SAFETY: interrupts CPUs of this guest, which have handlers.
    unsafe { asm!("dsb ishst", "msr S3_0_C12_C11_5, {}", "isb", in(reg) value, options(nostack)) };
}

/// Sends SGI `intid` to the CPU `affinity`.
#[inline]
pub fn send(intid: u32, affinity: u64) {
    let (aff0, aff1) = (affinity & 0xff, affinity >> 8 & 0xff);
    let (aff2, aff3) = (affinity >> 16 & 0xff, affinity >> 32 & 0xff);
    let range = aff0 >> 4 << 44;
    let target = 1 << (aff0 & 15);
    generate(aff3 << 48 | range | aff2 << 32 | u64::from(intid & 15) << 24 | aff1 << 16 | target);
}

/// Sends SGI `intid` to every CPU but this (IRM).
pub fn send_to_others(intid: u32) {
    generate(1 << 40 | u64::from(intid & 15) << 24);
}

/// The distributor.
pub fn distributor() -> Device {
    boot::machine().gicd
}

/// The redistributor of the CPU with `affinity`, both frames, if there is one.
pub fn redistributor_of(affinity: u64) -> Option<Device> {
    let all = boot::machine().gicr;
    let packed = affinity & 0xff_ffff | affinity >> 32 << 24;
    (0..all.size() / FRAME)
        .map(|index| all.part(index * FRAME, FRAME))
        .take(cpu::MAX_CPUS)
        .find(|frame| frame.read64(GICR_TYPER) >> 32 == packed)
}

/// The redistributor of this CPU.
pub fn redistributor() -> Device {
    let own = redistributor_of(cpu::affinity());
    assert!(own.is_some(), "no redistributor for this CPU");
    own.unwrap_or(Device::NONE)
}

/// Sets the distributor up: both groups and affinity routing on. Lines stay as they are.
pub fn init_distributor() {
    distributor().write32(GICD_CTLR, ENABLE_GROUPS_AND_AFFINITY);
}

/// Sets this CPU up: all SGIs and PPIs in group 1, disabled, not pending, of one priority; the
/// CPU interface on, with no mask.
///
/// # Panics
/// If the redistributor does not wake up.
pub fn init_cpu() {
    let redistributor = redistributor();
    let waker = redistributor.read32(GICR_WAKER);
    redistributor.write32(GICR_WAKER, waker & !PROCESSOR_SLEEP);
    let awake = timer::wait_until(1_000_000, || {
        redistributor.read32(GICR_WAKER) & CHILDREN_ASLEEP == 0
    });
    assert!(awake, "the redistributor does not wake up");

    let frame = redistributor.part(SGI_FRAME, SGI_FRAME);
    frame.write32(ICENABLER, !0);
    frame.write32(ICPENDR, !0);
    frame.write32(ICACTIVER, !0);
    frame.write32(IGROUPR, !0);
    for register in 0..8 {
        frame.write32(IPRIORITYR + 4 * register, u32::from(PRIORITY) * 0x0101_0101);
    }
    set_system_registers(system_registers() | 1);
    set_priority_mask(u64::from(ALL_PRIORITIES));
    set_binary_point(0);
    set_split_end(false);
    set_group1(1);
}

/// One interrupt, in the redistributor of one CPU (SGI, PPI) or in the distributor (SPI).
#[derive(Clone, Copy)]
pub struct Line {
    registers: Device,
    intid: u32,
}

impl Line {
    /// The line `intid`; SGIs and PPIs are those of this CPU.
    pub fn new(intid: u32) -> Self {
        let registers = if intid < 32 {
            redistributor().part(SGI_FRAME, SGI_FRAME)
        } else {
            distributor()
        };
        Self { registers, intid }
    }

    /// Its number.
    pub const fn intid(&self) -> u32 {
        self.intid
    }

    /// Group 1, [`PRIORITY`], nothing pending or active, routed to this CPU, and enabled.
    pub fn set_up(&self) {
        self.disable();
        self.set_pending(false);
        self.set_active(false);
        self.set_group1(true);
        self.set_priority(PRIORITY);
        if self.intid >= 32 {
            self.route(cpu::affinity());
        }
        self.enable();
    }

    fn read_bit(&self, register: usize) -> bool {
        let value = self
            .registers
            .read32(register + self.intid as usize / 32 * 4);
        value >> (self.intid % 32) & 1 != 0
    }

    fn write_bit(&self, register: usize) {
        let register = register + self.intid as usize / 32 * 4;
        self.registers.write32(register, 1 << (self.intid % 32));
    }

    /// Lets it through.
    pub fn enable(&self) {
        self.write_bit(ISENABLER);
    }

    /// Holds it back.
    pub fn disable(&self) {
        self.write_bit(ICENABLER);
    }

    /// Whether it is enabled.
    pub fn is_enabled(&self) -> bool {
        self.read_bit(ISENABLER)
    }

    /// Makes it pending, or not.
    pub fn set_pending(&self, pending: bool) {
        self.write_bit(if pending { ISPENDR } else { ICPENDR });
    }

    /// Whether it is pending.
    pub fn is_pending(&self) -> bool {
        self.read_bit(ISPENDR)
    }

    /// Makes it active, or not.
    pub fn set_active(&self, active: bool) {
        self.write_bit(if active { ISACTIVER } else { ICACTIVER });
    }

    /// Whether it is active.
    pub fn is_active(&self) -> bool {
        self.read_bit(ISACTIVER)
    }

    /// Moves it to group 1, or to group 0.
    pub fn set_group1(&self, group1: bool) {
        let register = IGROUPR + self.intid as usize / 32 * 4;
        let others = self.registers.read32(register) & !(1 << (self.intid % 32));
        self.registers
            .write32(register, others | u32::from(group1) << (self.intid % 32));
    }

    /// Whether it is in group 1.
    pub fn is_group1(&self) -> bool {
        self.read_bit(IGROUPR)
    }

    /// Sets its priority, by a byte access.
    pub fn set_priority(&self, priority: u8) {
        self.registers
            .write8(IPRIORITYR + self.intid as usize, priority);
    }

    /// Its priority, as far as it is implemented.
    pub fn priority(&self) -> u8 {
        self.registers.read8(IPRIORITYR + self.intid as usize)
    }

    /// Makes it edge-triggered, or level-sensitive.
    pub fn set_edge(&self, edge: bool) {
        let register = ICFGR + self.intid as usize / 16 * 4;
        let shift = self.intid % 16 * 2;
        let others = self.registers.read32(register) & !(0b10 << shift);
        self.registers
            .write32(register, others | u32::from(edge) << (shift + 1));
    }

    /// Whether it is edge-triggered.
    pub fn is_edge(&self) -> bool {
        let value = self.registers.read32(ICFGR + self.intid as usize / 16 * 4);
        value >> (self.intid % 16 * 2) & 0b10 != 0
    }

    /// Routes an SPI to the CPU `affinity`.
    pub fn route(&self, affinity: u64) {
        self.registers
            .write64(IROUTER + 8 * self.intid as usize, affinity);
    }

    /// Routes an SPI to any CPU (IRM).
    pub fn route_to_any(&self) {
        self.route(1 << 31);
    }

    /// What GICD_IROUTER holds.
    pub fn target(&self) -> u64 {
        self.registers.read64(IROUTER + 8 * self.intid as usize)
    }
}
