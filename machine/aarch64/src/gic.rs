//! The machine's GICv3 as EL2 uses it (Arm IHI 0069): few interrupts, one security state,
//! priority drop and deactivation apart (EOImode 1), so that a guest can end what is its own.

use crate::cpu::{affinity, dsb_ishst, dsb_sy, isb};
use crate::list_registers;
use crate::mmio::{Register, register};
use core::ops::BitOr;
use core::sync::atomic::{AtomicU32, Ordering};
use model_addr::{Pa, PaRange};
use model_gic_forward::{CpuInterface, VirtualInterface};

/// The SGI by which one CPU makes another look at its work, and the one where OS-0 has the first eight.
pub const SGI_KICK: u32 = 0;
/// See [`SGI_KICK`].
pub const SGI_KICK_BESIDE: u32 = 8;
static KICK: AtomicU32 = AtomicU32::new(SGI_KICK);

/// The SGI by which CPUs make each other look at their work.
#[inline]
pub fn kick_sgi() -> u32 {
    KICK.load(Ordering::Relaxed)
}

/// OS-0 has the first eight SGIs. Before any CPU kicks another.
pub fn kick_beside_os0() {
    KICK.store(SGI_KICK_BESIDE, Ordering::Relaxed);
}

/// What [`acknowledge`] gives when nothing is pending.
pub const SPURIOUS: u32 = 1023;
/// INTIDs below are a CPU's own.
pub const FIRST_SPI: u32 = 32;

/// A priority mask that lets everything through, and one that lets only the most urgent through:
/// with two security states, priorities that are not secure begin in the middle.
pub const MASK_ALL: u8 = 0xf8;
/// See [`MASK_ALL`].
pub const MASK_URGENT: u8 = 0x80;
const PRIORITY: u8 = 0x80;
const GICD_TYPER: usize = 0x4;
const GICD_CTLR: usize = 0x0;
const GICD_IGROUPR: usize = 0x80;
const GICD_ISENABLER: usize = 0x100;
const GICD_ICENABLER: usize = 0x180;
const GICD_ISPENDR: usize = 0x200;
const GICD_ICPENDR: usize = 0x280;
const GICD_IPRIORITYR: usize = 0x400;
const GICD_ICFGR: usize = 0xc00;
const GICD_IROUTER: usize = 0x6000;
const GICD_PIDR2: usize = 0xffe8;
const GICR_CTLR: usize = 0x0;
const GICR_WAKER: usize = 0x14;
const GICR_TYPER: usize = 0x8;
const GICR_SGI_FRAME: usize = 0x1_0000;
const GICR_STRIDE: u64 = 0x2_0000;
const GICR_ISACTIVER0: usize = 0x300;
const GICR_ICACTIVER0: usize = 0x380;
const CTLR_RWP: u32 = 1 << 31;
/// GICR_CTLR: messages (LPIs) are taken; a change is under way.
const ENABLE_LPIS: u32 = 1;
const GICR_CTLR_RWP: u32 = 1 << 3;
/// GITS_CTLR: it translates; it has ended all that it was at.
const GITS_ENABLED: u32 = 1;
const GITS_QUIESCENT: u32 = 1 << 31;
/// How often a register is read that is about to change.
const TRIES: usize = 1_000_000;

/// The distributor.
#[derive(Clone, Copy, Debug)]
pub struct Distributor(Pa);

impl Distributor {
    /// The distributor whose registers are at `base`.
    ///
    /// # Safety
    ///
    /// A GICv3 distributor is there and EL2 has mapped it as Device memory.
    pub const unsafe fn new(base: Pa) -> Self {
        Self(base)
    }

    fn read32(self, offset: usize) -> u32 {
        // SAFETY: a register of the distributor that `new` was promised.
        unsafe { register::<u32>(self.0, offset).read_volatile() }
    }

    fn write32(self, offset: usize, value: u32) {
        // SAFETY: as above; EL2 is the only one that drives it.
        unsafe { register::<u32>(self.0, offset).write_volatile(value) }
    }

    /// Affinity routing on, group 1 on. Done once, by the first CPU.
    pub fn init(self) {
        const ARE: u32 = 1 << 4;
        const ENABLE_GROUP_1: u32 = 1 << 1;
        self.write32(GICD_CTLR, 0);
        self.wait();
        self.write32(GICD_CTLR, ARE);
        self.wait();
        self.write32(GICD_CTLR, ARE | ENABLE_GROUP_1);
        self.wait();
    }

    fn wait(self) {
        while self.read32(GICD_CTLR) & CTLR_RWP != 0 {
            core::hint::spin_loop();
        }
    }

    /// Lets the shared interrupt `intid` (32..1020) reach the executing CPU.
    pub fn enable_here(self, intid: u32, edge: bool) {
        let (word, bit) = (intid as usize / 32 * 4, 1 << (intid % 32));
        let config = GICD_ICFGR + intid as usize / 16 * 4;
        let edge_bit = 2 << (intid % 16 * 2);
        let level = self.read32(config) & !edge_bit;
        self.write32(config, level | if edge { edge_bit } else { 0 });
        self.write32(GICD_IGROUPR + word, self.read32(GICD_IGROUPR + word) | bit);
        // SAFETY: byte and doubleword registers of the distributor, as `new` was promised.
        unsafe {
            register::<u8>(self.0, GICD_IPRIORITYR + intid as usize).write_volatile(PRIORITY);
            register::<u64>(self.0, GICD_IROUTER + intid as usize * 8).write_volatile(affinity());
        }
        self.write32(GICD_ISENABLER + word, bit);
    }
}

impl Distributor {
    /// Makes the shared interrupt `intid` (32..1020) pending. A write-one register: whoever owns the
    /// distributor may use it at the same time.
    pub fn set_pending(self, intid: u32) {
        self.write32(GICD_ISPENDR + intid as usize / 32 * 4, 1 << (intid % 32));
    }

    /// None of its shared interrupts is enabled, pending or active any more.
    pub fn silence(self) {
        for word in 1..=self.last_interrupt() as usize / 32 {
            self.write32(GICD_ICENABLER + word * 4, !0);
        }
        self.wait();
        for word in 1..=self.last_interrupt() as usize / 32 {
            self.write32(GICD_ICPENDR + word * 4, !0);
            self.write32(GICR_ICACTIVER0 + word * 4, !0);
        }
    }

    /// Whether `at` lies in its first page.
    pub fn contains(self, at: Pa) -> bool {
        at.0 >> 12 == self.0.0 >> 12
    }

    /// The highest of its shared interrupts (`GICD_TYPER.ITLinesNumber`).
    pub fn last_interrupt(self) -> u32 {
        (32 * (self.read32(GICD_TYPER) & 0x1f) + 31).min(1019)
    }

    /// The version of its architecture: 3 or 4.
    pub fn architecture(self) -> u32 {
        self.read32(GICD_PIDR2) >> 4 & 0xf
    }

    /// Whether an edge raises the shared interrupt `intid`.
    pub fn is_edge(self, intid: u32) -> bool {
        self.read32(GICD_ICFGR + intid as usize / 16 * 4) >> (intid % 16 * 2 + 1) & 1 == 1
    }
}

/// The redistributor of one CPU.
#[derive(Clone, Copy, Debug)]
pub struct Redistributor(Pa);

impl Redistributor {
    /// Finds the executing CPU's redistributor among those in `regions`.
    ///
    /// # Safety
    ///
    /// The regions hold GICv3 redistributors and EL2 has mapped them as Device memory.
    pub unsafe fn find_own(regions: &[PaRange]) -> Option<Self> {
        let wanted = compact_affinity(affinity());
        // SAFETY: the caller's promise.
        let mut all = unsafe { Self::all(regions) };
        all.find(|own| {
            // SAFETY: as above.
            let typer = unsafe { register::<u64>(own.0, GICR_TYPER).read_volatile() };
            typer >> 32 == wanted
        })
    }

    /// All redistributors in `regions`.
    ///
    /// # Safety
    ///
    /// As [`Self::find_own`].
    pub unsafe fn all(regions: &[PaRange]) -> impl Iterator<Item = Self> + '_ {
        const LAST: u64 = 1 << 4;
        regions.iter().flat_map(|region| {
            let mut is_over = false;
            (0..region.size / GICR_STRIDE).map_while(move |n| {
                let frame = Pa(region.start.0 + n * GICR_STRIDE);
                if is_over {
                    return None;
                }
                // SAFETY: the frame lies inside a region of redistributors.
                let typer = unsafe { register::<u64>(frame, GICR_TYPER).read_volatile() };
                is_over = typer & LAST != 0;
                Some(Self(frame))
            })
        })
    }

    /// The first page of its SGI frame.
    pub fn private_page(self) -> Pa {
        Pa(self.0.0 + GICR_SGI_FRAME as u64)
    }

    /// No message comes here any more, and of the CPU's own interrupts none but those of `kept`.
    pub fn silence(self, kept: u32) {
        let control = register::<u32>(self.0, GICR_CTLR);
        // SAFETY: registers of a redistributor, whose owner is gone; those that are kept do not change.
        unsafe {
            control.write_volatile(control.read_volatile() & !ENABLE_LPIS);
            wait_until(|| control.read_volatile() & GICR_CTLR_RWP == 0);
            for offset in [GICD_ICENABLER, GICD_ICPENDR, GICR_ICACTIVER0] {
                self.sgi_frame(offset).write_volatile(!kept);
            }
        }
    }

    fn sgi_frame(self, offset: usize) -> Register<u32> {
        register(self.0, GICR_SGI_FRAME + offset)
    }

    /// Wakes the redistributor, silences all its interrupts and puts them into group 1.
    pub fn init(self) {
        const PROCESSOR_SLEEP: u32 = 1 << 1;
        const CHILDREN_ASLEEP: u32 = 1 << 2;
        // SAFETY: registers of this CPU's redistributor, which no other CPU writes.
        unsafe {
            let waker = register::<u32>(self.0, GICR_WAKER);
            waker.write_volatile(waker.read_volatile() & !PROCESSOR_SLEEP);
            while waker.read_volatile() & CHILDREN_ASLEEP != 0 {
                core::hint::spin_loop();
            }
            self.sgi_frame(GICD_ICENABLER).write_volatile(!0);
            self.sgi_frame(GICR_ICACTIVER0).write_volatile(!0);
            self.sgi_frame(GICD_IGROUPR).write_volatile(!0);
            for word in 0..8 {
                self.sgi_frame(GICD_IPRIORITYR + word * 4)
                    .write_volatile(u32::from_ne_bytes([PRIORITY; 4]));
            }
        }
    }

    /// Lets this CPU's own interrupt `intid` (0..32) through.
    pub fn enable(self, intid: u32) {
        // SAFETY: a write-one-to-set register of this CPU's redistributor.
        unsafe { self.sgi_frame(GICD_ISENABLER).write_volatile(1 << intid) }
    }

    /// Sets or clears the active state of this CPU's interrupt `intid` (0..32).
    pub fn set_active(self, intid: u32, active: bool) {
        let offset = if active {
            GICR_ISACTIVER0
        } else {
            GICR_ICACTIVER0
        };
        // SAFETY: write-one registers of this CPU's redistributor.
        unsafe { self.sgi_frame(offset).write_volatile(1 << intid) }
    }
}

impl Redistributor {
    /// Lets this CPU's own interrupt `intid` (0..32) through before all others, whatever the owner
    /// of the redistributor has made of it.
    pub fn enable_urgent(self, intid: u32) {
        let priority = GICD_IPRIORITYR + intid as usize;
        // SAFETY: a byte register and a write-one register of this CPU's redistributor; they concern
        // an interrupt that is EL2's.
        unsafe {
            let byte = self.sgi_frame(0).cast::<u8>().add(priority);
            byte.write_volatile(0);
            self.sgi_frame(GICD_ISENABLER).write_volatile(1 << intid);
        }
        settle();
    }

    /// Holds this CPU's own interrupt `intid` (16..32) back.
    pub fn disable(self, intid: u32) {
        // SAFETY: a write-one register of this CPU's redistributor.
        unsafe { self.sgi_frame(GICD_ICENABLER).write_volatile(1 << intid) }
    }

    /// Makes this CPU's own interrupt `intid` (0..32) pending.
    pub fn set_pending(self, intid: u32) {
        // SAFETY: a write-one register of this CPU's redistributor.
        unsafe { self.sgi_frame(GICD_ISPENDR).write_volatile(1 << intid) }
    }

    /// Whether an edge raises this CPU's own interrupt `intid` (0..32).
    pub fn is_edge(self, intid: u32) -> bool {
        let offset = GICD_ICFGR + intid as usize / 16 * 4;
        // SAFETY: a register of this CPU's redistributor.
        let word = unsafe { self.sgi_frame(offset).read_volatile() };
        word >> (intid % 16 * 2 + 1) & 1 == 1
    }
}

/// Stops what translates messages (an ITS).
///
/// # Safety
///
/// `translator` is one, EL2 has mapped it as Device memory, and its owner is gone.
pub unsafe fn silence_translator(translator: PaRange) {
    let control = register::<u32>(translator.start, 0); // GITS_CTLR
    // SAFETY: the caller's promise.
    unsafe {
        control.write_volatile(control.read_volatile() & !GITS_ENABLED);
        wait_until(|| control.read_volatile() & GITS_QUIESCENT != 0);
    }
}

/// Waits for a register, a while.
fn wait_until(is_so: impl Fn() -> bool) {
    let _ = (0..TRIES).any(|_| is_so());
}

/// Reads a register of the interrupt controller, or of another device that no read changes, of `size` (1, 2, 4 or 8) bytes.
///
/// # Safety
///
/// `at` lies in one of its frames, which EL2 has mapped, and is a multiple of `size`.
pub unsafe fn read_register(at: Pa, size: u8) -> u64 {
    // SAFETY: the caller's promise; reads of these frames change nothing.
    unsafe {
        match size {
            1 => register::<u8>(at, 0).read_volatile().into(),
            2 => register::<u16>(at, 0).read_volatile().into(),
            4 => register::<u32>(at, 0).read_volatile().into(),
            _ => register::<u64>(at, 0).read_volatile(),
        }
    }
}

/// Writes one, as [`read_register`] reads it.
///
/// # Safety
///
/// As [`read_register`]; and its owner wants it.
pub unsafe fn write_register(at: Pa, size: u8, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => register::<u8>(at, 0).write_volatile(value as u8),
            2 => register::<u16>(at, 0).write_volatile(value as u16),
            4 => register::<u32>(at, 0).write_volatile(value as u32),
            _ => register::<u64>(at, 0).write_volatile(value),
        }
    }
}

/// Aff3.Aff2.Aff1.Aff0 as 32 bits, as `GICR_TYPER` has it.
fn compact_affinity(affinity: u64) -> u64 {
    (affinity >> 8 & 0xff00_0000) | (affinity & 0xff_ffff)
}

/// Sets up the executing CPU's interface: system registers, all priorities, EOImode 1.
pub fn init_cpu_interface() {
    // SAFETY: EL2's own physical interface; guests see the virtual one.
    unsafe {
        write_sysreg!("s3_4_c12_c9_5", 0xf_u64); // ICC_SRE_EL2: SRE, DFB, DIB, Enable
        isb();
        write_sysreg!("s3_0_c4_c6_0", 0xff_u64); // ICC_PMR_EL1
        write_sysreg!("s3_0_c12_c12_3", 0_u64); // ICC_BPR1_EL1
        write_sysreg!("s3_0_c12_c12_4", 2_u64); // ICC_CTLR_EL1.EOImode
        write_sysreg!("s3_0_c12_c12_7", 1_u64); // ICC_IGRPEN1_EL1
    }
    isb();
}

/// The executing CPU's interface as whoever runs at EL1 has set it.
pub fn read_interface() -> CpuInterface {
    CpuInterface {
        priority_mask: read_sysreg!("s3_0_c4_c6_0"),
        binary_points: [
            read_sysreg!("s3_0_c12_c8_3"),
            read_sysreg!("s3_0_c12_c12_3"),
        ],
        control: read_sysreg!("s3_0_c12_c12_4"),
        groups: [
            read_sysreg!("s3_0_c12_c12_6"),
            read_sysreg!("s3_0_c12_c12_7"),
        ],
        active_priorities: [
            read_sysreg!("s3_0_c12_c8_4"), // ICC_AP0R0_EL1
            // ICC_AP1R0_EL1. In which of more registers an active one is, the running priority does not ask.
            read_sysreg!("s3_0_c12_c9_0") | u64::from(running_priority() != IDLE),
        ],
    }
}

/// The executing CPU's virtual interface.
pub fn read_virtual_interface() -> VirtualInterface {
    let list_registers::VirtualInterface {
        control,
        active_priorities,
    } = list_registers::VirtualInterface::save();
    VirtualInterface {
        control,
        active_priorities: active_priorities.map(|group| group.into_iter().fold(0, BitOr::bitor)),
    }
}

/// Gives EL1 the virtual interface in this state, with empty list registers, and EL2 the physical
/// one.
pub fn begin_forwarding(carried: VirtualInterface) {
    // Nothing is being handled (`carry`).
    let carried = list_registers::VirtualInterface {
        control: carried.control,
        ..Default::default()
    };
    carried.load();
    // SAFETY: the physical interface is EL2's from now on, and the virtual one behaves for EL1 as
    // the physical one did (`model_gic_forward::carry`).
    unsafe {
        write_sysreg!("s3_0_c12_c12_4", 2_u64); // ICC_CTLR_EL1.EOImode
        write_sysreg!("s3_0_c12_c12_3", 0_u64); // ICC_BPR1_EL1
        write_sysreg!("s3_0_c4_c6_0", u64::from(MASK_ALL)); // ICC_PMR_EL1
        write_sysreg!("s3_0_c12_c12_7", 1_u64); // ICC_IGRPEN1_EL1
    }
    isb();
}

/// Gives EL1 the physical interface back, in this state. The list registers are empty.
pub fn end_forwarding(physical: CpuInterface) {
    // SAFETY: the interface is EL1's again, as EL1 has set it.
    unsafe {
        write_sysreg!("s3_4_c12_c11_0", 0_u64); // ICH_HCR_EL2
        write_sysreg!("s3_0_c12_c12_4", physical.control & 3); // ICC_CTLR_EL1
        write_sysreg!("s3_0_c12_c8_3", physical.binary_points[0]); // ICC_BPR0_EL1
        write_sysreg!("s3_0_c12_c12_3", physical.binary_points[1]); // ICC_BPR1_EL1
        write_sysreg!("s3_0_c4_c6_0", physical.priority_mask); // ICC_PMR_EL1
        write_sysreg!("s3_0_c12_c12_6", physical.groups[0]); // ICC_IGRPEN0_EL1
        write_sysreg!("s3_0_c12_c12_7", physical.groups[1]); // ICC_IGRPEN1_EL1
    }
    isb();
}

/// The running priority while nothing is handled.
const IDLE: u8 = 0xff;

/// The priority of what was acknowledged last.
#[inline]
pub fn running_priority() -> u8 {
    read_sysreg!("s3_0_c12_c11_3") as u8 // ICC_RPR_EL1
}

/// Interrupts of this priority value and above wait.
pub fn set_priority_mask(mask: u8) {
    // SAFETY: EL2's own physical interface.
    unsafe { write_sysreg!("s3_0_c4_c6_0", u64::from(mask)) } // ICC_PMR_EL1
    isb();
}

/// Sends an SGI for whoever wrote `value` to one of the three registers at EL1.
pub fn send_for(register: SgiRegister, value: u64) {
    // SAFETY: the sender owns the machine, and its targets are OS-0's CPUs.
    unsafe {
        match register {
            SgiRegister::Sgi1r => write_sysreg!("s3_0_c12_c11_5", value),
            SgiRegister::Asgi1r => write_sysreg!("s3_0_c12_c11_6", value),
            SgiRegister::Sgi0r => write_sysreg!("s3_0_c12_c11_7", value),
        }
    }
    isb();
}

/// By which an SGI is sent (`ICC_SGI1R_EL1`, `ICC_ASGI1R_EL1`, `ICC_SGI0R_EL1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SgiRegister {
    /// Group 1.
    Sgi1r,
    /// Group 1 of the other security state.
    Asgi1r,
    /// Group 0.
    Sgi0r,
}

/// Takes the pending interrupt with the highest priority; [`SPURIOUS`] if there is none.
#[inline]
pub fn acknowledge() -> u32 {
    read_sysreg!("s3_0_c12_c12_0") as u32 // ICC_IAR1_EL1
}

/// Drops the running priority of an acknowledged interrupt; it stays active.
#[inline]
pub fn drop_priority(intid: u32) {
    // SAFETY: EL2 acknowledged it on this CPU.
    unsafe { write_sysreg!("s3_0_c12_c12_1", u64::from(intid)) } // ICC_EOIR1_EL1
}

/// Ends an active interrupt.
#[inline]
pub fn deactivate(intid: u32) {
    // SAFETY: ending an interrupt that is not active has no effect.
    unsafe { write_sysreg!("s3_0_c12_c11_1", u64::from(intid)) } // ICC_DIR_EL1
}

/// Sends [`kick_sgi`] to the CPU with that affinity.
pub fn kick(affinity: u64) {
    let target = 1 << (affinity & 0xf)
        | (affinity >> 8 & 0xff) << 16
        | (affinity >> 16 & 0xff) << 32
        | (affinity >> 4 & 0xf) << 44
        | (affinity >> 32 & 0xff) << 48;
    dsb_ishst(); // makes the work visible
    // SAFETY: an SGI only makes the other CPU look at its work.
    unsafe { write_sysreg!("s3_0_c12_c11_5", target | u64::from(kick_sgi()) << 24) } // ICC_SGI1R_EL1
    isb();
}

/// Waits until the interface has seen earlier writes to device registers.
pub fn settle() {
    dsb_sy();
    isb();
}
