//! The registers that a distributor and the SGI frame of a redistributor have alike: one or more
//! bits per interrupt, at the same offsets (Arm IHI 0069, 12.9 and 12.11).

/// A register with a field per interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Group,
    SetEnable,
    ClearEnable,
    SetPending,
    ClearPending,
    SetActive,
    ClearActive,
    Priority,
    Configuration,
}

impl Register {
    /// Whether it shows pending or active state, which list registers may hold.
    pub(crate) const fn shows_state(self) -> bool {
        matches!(
            self,
            Self::SetPending | Self::ClearPending | Self::SetActive | Self::ClearActive
        )
    }
}

/// Fields of consecutive interrupts, all in one bank of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) register: Register,
    /// Which bank: its first interrupt is 32 times this.
    pub(crate) bank: usize,
    /// The first interrupt meant, within its bank.
    pub(crate) first: u32,
    /// How many interrupts are meant.
    pub(crate) count: u32,
}

impl Fields {
    /// What an access of `size` bytes at `offset` means; `None` where there is no such register or
    /// it does not take such accesses: those read as zero and ignore writes.
    pub(crate) const fn decode(offset: u32, size: u32) -> Option<Self> {
        let word = size == 4 && offset.is_multiple_of(4);
        let (register, intid, count) = match offset {
            0x080..0x400 if word => (one_bit(offset), offset % 0x80 * 8, 32),
            0x400..0x800 if word || size == 1 => (Register::Priority, offset - 0x400, size),
            0xc00..0xd00 if word => (Register::Configuration, (offset - 0xc00) * 4, 16),
            _ => return None,
        };
        Some(Self {
            register,
            bank: intid as usize / 32,
            first: intid % 32,
            count,
        })
    }
}

/// The registers with one bit per interrupt: 0x80 bytes each from 0x080 on.
const fn one_bit(offset: u32) -> Register {
    match offset / 0x80 {
        1 => Register::Group,
        2 => Register::SetEnable,
        3 => Register::ClearEnable,
        4 => Register::SetPending,
        5 => Register::ClearPending,
        6 => Register::SetActive,
        _ => Register::ClearActive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_mean_what_the_architecture_says() {
        let at = |offset, size| {
            Fields::decode(offset, size)
                .map(|f| (f.register, f.bank as u32 * 32 + f.first, f.count))
        };
        assert_eq!(at(0x084, 4), Some((Register::Group, 32, 32)));
        assert_eq!(at(0x100, 4), Some((Register::SetEnable, 0, 32)));
        assert_eq!(at(0x39c, 4), Some((Register::ClearActive, 224, 32)));
        assert_eq!(at(0x427, 1), Some((Register::Priority, 39, 1)));
        assert_eq!(at(0x424, 4), Some((Register::Priority, 36, 4)));
        assert_eq!(at(0xc0c, 4), Some((Register::Configuration, 48, 16)));
        for (offset, size) in [
            (0x100, 8),
            (0x102, 4),
            (0x100, 1),
            (0x400, 2),
            (0x401, 4),
            (0xd00, 4),
        ] {
            assert_eq!(at(offset, size), None, "{offset:#x} {size}");
        }
    }
}
