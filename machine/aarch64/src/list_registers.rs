//! The executing CPU's list registers and virtual CPU interface (`ICH_*_EL2`).

use crate::gic;
use machine_contract::ListRegisters;
use model_gic_forward::active_priority_registers;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// This CPU's list registers. Zero-sized: it stands for the hardware of whichever CPU runs it.
#[derive(Clone, Copy, Debug)]
pub struct HardwareLists {
    count: u8,
}

impl HardwareLists {
    /// The executing CPU's.
    pub fn of_this_cpu() -> Self {
        Self {
            count: (read_sysreg!("s3_4_c12_c11_1") & 0x1f) as u8 + 1,
        } // ICH_VTR_EL2
    }

    /// Whether the underflow maintenance interrupt is on.
    pub fn underflow_interrupt(&self) -> bool {
        read_sysreg!("s3_4_c12_c11_0") & 2 != 0 // ICH_HCR_EL2.UIE
    }
}

macro_rules! by_number {
    ($n:expr, $access:ident $(, $value:expr)?) => {
        match $n {
            0 => $access!("s3_4_c12_c12_0" $(, $value)?),
            1 => $access!("s3_4_c12_c12_1" $(, $value)?),
            2 => $access!("s3_4_c12_c12_2" $(, $value)?),
            3 => $access!("s3_4_c12_c12_3" $(, $value)?),
            4 => $access!("s3_4_c12_c12_4" $(, $value)?),
            5 => $access!("s3_4_c12_c12_5" $(, $value)?),
            6 => $access!("s3_4_c12_c12_6" $(, $value)?),
            7 => $access!("s3_4_c12_c12_7" $(, $value)?),
            8 => $access!("s3_4_c12_c13_0" $(, $value)?),
            9 => $access!("s3_4_c12_c13_1" $(, $value)?),
            10 => $access!("s3_4_c12_c13_2" $(, $value)?),
            11 => $access!("s3_4_c12_c13_3" $(, $value)?),
            12 => $access!("s3_4_c12_c13_4" $(, $value)?),
            13 => $access!("s3_4_c12_c13_5" $(, $value)?),
            14 => $access!("s3_4_c12_c13_6" $(, $value)?),
            _ => $access!("s3_4_c12_c13_7" $(, $value)?),
        }
    };
}

impl ListRegisters for HardwareLists {
    #[inline]
    fn count(&self) -> usize {
        self.count.into()
    }

    #[inline]
    fn empty(&self) -> u16 {
        read_sysreg!("s3_4_c12_c11_5") as u16 // ICH_ELRSR_EL2
    }

    #[inline]
    fn read(&self, n: usize) -> u64 {
        by_number!(n, read_sysreg)
    }

    #[inline]
    fn write(&mut self, n: usize, value: u64) {
        // SAFETY: a list register takes effect on the guest that this CPU enters next; EL2 reads
        // what the vGIC put there for exactly that guest. Registers past the count are never
        // named (contract of the trait).
        unsafe { by_number!(n, write_sysreg, value) }
    }

    fn set_underflow_interrupt(&mut self, on: bool) {
        // SAFETY: EN stays set, UIE follows; both concern the guest interface of this CPU.
        unsafe { write_sysreg!("s3_4_c12_c11_0", 1 | u64::from(on) << 1) } // ICH_HCR_EL2
    }

    fn deactivate_physical(&mut self, intid: u32) {
        gic::deactivate(intid);
    }
}

/// What the virtual CPU interface holds beside the list registers; after reset: everything masked and off.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct VirtualInterface {
    /// `ICH_VMCR_EL2`: priority mask, binary points, group enables.
    pub control: u64,
    /// `ICH_AP0R0_EL2` to `ICH_AP0R3_EL2` and `ICH_AP1R0_EL2` to `ICH_AP1R3_EL2`: active priorities of each group,
    /// of as many registers as the CPU has ([`active_priority_registers`]).
    pub active_priorities: [[u64; 4]; 2],
}

impl VirtualInterface {
    /// Reads this CPU's.
    #[inline]
    pub fn save() -> Self {
        let mut saved = Self {
            control: read_sysreg!("s3_4_c12_c11_7"),
            ..Self::default()
        };
        let [group_0, group_1] = &mut saved.active_priorities;
        group_0[0] = read_sysreg!("s3_4_c12_c8_0");
        group_1[0] = read_sysreg!("s3_4_c12_c9_0");
        let registers = active_priority_registers(read_sysreg!("s3_4_c12_c11_1")); // ICH_VTR_EL2
        if registers > 1 {
            group_0[1] = read_sysreg!("s3_4_c12_c8_1");
            group_1[1] = read_sysreg!("s3_4_c12_c9_1");
        }
        if registers > 2 {
            group_0[2..]
                .copy_from_slice(&[read_sysreg!("s3_4_c12_c8_2"), read_sysreg!("s3_4_c12_c8_3")]);
            group_1[2..]
                .copy_from_slice(&[read_sysreg!("s3_4_c12_c9_2"), read_sysreg!("s3_4_c12_c9_3")]);
        }
        saved
    }

    /// Puts it into this CPU's, and turns the interface on.
    #[inline]
    pub fn load(&self) {
        let [group_0, group_1] = &self.active_priorities;
        let registers = active_priority_registers(read_sysreg!("s3_4_c12_c11_1")); // ICH_VTR_EL2
        // SAFETY: these registers concern the guest that this CPU enters next, and the CPU has them.
        unsafe {
            write_sysreg!("s3_4_c12_c11_7", self.control);
            write_sysreg!("s3_4_c12_c8_0", group_0[0]);
            write_sysreg!("s3_4_c12_c9_0", group_1[0]);
            if registers > 1 {
                write_sysreg!("s3_4_c12_c8_1", group_0[1]);
                write_sysreg!("s3_4_c12_c9_1", group_1[1]);
            }
            if registers > 2 {
                write_sysreg!("s3_4_c12_c8_2", group_0[2]);
                write_sysreg!("s3_4_c12_c8_3", group_0[3]);
                write_sysreg!("s3_4_c12_c9_2", group_1[2]);
                write_sysreg!("s3_4_c12_c9_3", group_1[3]);
            }
            write_sysreg!("s3_4_c12_c11_0", 1_u64);
        }
    }

    /// The priority mask of the interface in this CPU: interrupts of this value and above wait.
    pub fn loaded_priority_mask() -> u8 {
        (read_sysreg!("s3_4_c12_c11_7") >> 24) as u8
    }
}
