//! What OS-0 may do to the GICv3 (Arm IHI 0069) while EL2 is beneath it and has interrupts of its own
//! on each CPU.
//!
//! OS-0 owns the controller, and its accesses go there as they are, but for the bits that belong to
//! EL2's private interrupts: those read as zero and are not changed, so that neither CPU hotplug nor a
//! kernel that starts anew (both silence every private interrupt) can silence EL2. The distributor's
//! group 1 stays on. Everything else, SPIs, LPIs and the ITS, is OS-0's alone.
//!
//! [`Filter::look`] says what an access concerns; the caller makes the access by [`Rule`].
#![no_std]
#![forbid(unsafe_code)]

/// The page that is accessed: the first 4 KiB of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The distributor's.
    Distributor,
    /// A redistributor's frame of SGIs and PPIs.
    Private,
}

/// How an access is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The bits of the access that are EL2's.
    own: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Zeroes that are written change nothing.
    WriteOne,
    /// What is written is what is read.
    Plain,
    /// As that, and all of it may be read.
    Shown,
}

impl Rule {
    /// What OS-0 reads where the hardware has `value`.
    pub const fn read(self, value: u64) -> u64 {
        match self.kind {
            Kind::Shown => value,
            _ => value & !self.own,
        }
    }

    /// What is written for `value`; `current` is what the hardware has.
    pub const fn write(self, value: u64, current: u64) -> u64 {
        match self.kind {
            Kind::WriteOne => value & !self.own,
            _ => value & !self.own | current & self.own,
        }
    }

    /// Whether [`Rule::write`] depends on what the hardware has.
    pub const fn needs_current(self) -> bool {
        self.own != 0 && !matches!(self.kind, Kind::WriteOne)
    }
}

/// `GICD_CTLR.EnableGrp1A` and `ARE_NS`.
const DISTRIBUTOR_ON: u64 = 1 << 1 | 1 << 4;

/// Keeps some private interrupts from OS-0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    own: u32,
}

impl Filter {
    /// Keeps the interrupts whose bits are set: 0 to 31.
    pub const fn new(own: u32) -> Self {
        Self { own }
    }

    /// The rule of an access to `bytes` (1, 2, 4 or 8) bytes at `offset` of a page.
    pub fn look(self, page: Page, offset: u16, bytes: u8) -> Rule {
        let kind = match (page, offset) {
            (Page::Distributor, 0..=3) => Kind::Shown,
            // Group, group modifier, non-maskable: IGROUPR0, IGRPMODR0, INMIR0; priorities;
            // configuration.
            (_, 0x80..0x100 | 0x400..0x420 | 0xc00..0xc08 | 0xd00..0xd80 | 0xf80..) => Kind::Plain,
            // Enable, pending, active.
            _ => Kind::WriteOne,
        };
        let mut own = 0;
        for byte in 0..bytes.min(8) {
            let bits = self.byte(page, offset.saturating_add(byte.into()));
            own |= u64::from(bits) << (u32::from(byte) * 8);
        }
        Rule { own, kind }
    }

    /// The bits of one byte of the page that are EL2's.
    fn byte(self, page: Page, offset: u16) -> u8 {
        if page == Page::Distributor {
            return if offset == 0 { DISTRIBUTOR_ON as u8 } else { 0 };
        }
        let word = |first: u16| (self.own >> ((offset - first) * 8)) as u8;
        match offset {
            0x400..0x420 if self.own >> (offset - 0x400) & 1 == 1 => 0xff,
            0xc00..0xc08 => {
                let four = self.own >> ((offset - 0xc00) * 4) & 0xf;
                (0..4).fold(0, |bits, n| bits | (((four >> n & 1) * 3) << (2 * n)) as u8)
            }
            0x80..0x84
            | 0x100..0x104
            | 0x180..0x184
            | 0x200..0x204
            | 0x280..0x284
            | 0x300..0x304
            | 0x380..0x384
            | 0xd00..0xd04
            | 0xf80..0xf84 => word(offset & !3),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A private interrupt as the architecture describes it, one field for each register.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Interrupt {
        bits: [bool; 6],
        priority: u8,
        config: u8,
    }

    /// Plain bits (group, modifier, non-maskable), then those that are set and cleared by ones
    /// (enabled, pending, active): the registers' offsets.
    const PLAIN: [u16; 3] = [0x80, 0xd00, 0xf80];
    const SET: [u16; 3] = [0x100, 0x200, 0x300];

    /// A frame of 32 of them, written byte by byte.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Frame([Interrupt; 32]);

    impl Frame {
        fn read_byte(&self, offset: u16) -> u8 {
            let bits = |bit: usize, first: u16| {
                (0..8).fold(0, |byte, n| {
                    let at = usize::from(offset - first) * 8 + n;
                    byte | u8::from(self.0[at].bits[bit]) << n
                })
            };
            match offset {
                0x400..0x420 => self.0[usize::from(offset - 0x400)].priority,
                0xc00..0xc08 => (0..4).fold(0, |byte, n| {
                    byte | self.0[usize::from(offset - 0xc00) * 4 + n].config << (2 * n)
                }),
                _ => match register(offset) {
                    Some((bit, first, _)) => bits(bit, first),
                    None => 0,
                },
            }
        }

        fn write_byte(&mut self, offset: u16, value: u8) {
            match offset {
                0x400..0x420 => self.0[usize::from(offset - 0x400)].priority = value,
                0xc00..0xc08 => {
                    for n in 0..4 {
                        self.0[usize::from(offset - 0xc00) * 4 + n].config = value >> (2 * n) & 3;
                    }
                }
                _ => {
                    let Some((bit, first, how)) = register(offset) else {
                        return;
                    };
                    for n in 0..8 {
                        let it = &mut self.0[usize::from(offset - first) * 8 + n].bits[bit];
                        let one = value >> n & 1 == 1;
                        match how {
                            0 => *it = one,
                            1 => *it |= one,
                            _ => *it &= !one,
                        }
                    }
                }
            }
        }

        fn read(&self, offset: u16, bytes: u8) -> u64 {
            let byte = |n: u8| u64::from(self.read_byte(offset + u16::from(n)));
            (0..bytes).fold(0, |value, n| value | byte(n) << (n * 8))
        }

        fn write(&mut self, offset: u16, bytes: u8, value: u64) {
            for n in 0..bytes {
                self.write_byte(offset + u16::from(n), (value >> (n * 8)) as u8);
            }
        }
    }

    /// Which bit, the register's first byte, and whether it is plain, sets or clears.
    fn register(offset: u16) -> Option<(usize, u16, u8)> {
        let first = offset & !3;
        let plain = PLAIN
            .iter()
            .position(|own| *own == first)
            .map(|n| (n, first, 0));
        let set = SET
            .iter()
            .position(|own| *own == first)
            .map(|n| (n + 3, first, 1));
        let clear = SET
            .iter()
            .position(|own| *own + 0x80 == first)
            .map(|n| (n + 3, first, 2));
        plain.or(set).or(clear)
    }

    fn offsets() -> impl Strategy<Value = (u16, u8)> {
        let word = prop::sample::select(
            [
                0x80, 0x100, 0x180, 0x200, 0x280, 0x300, 0x380, 0xd00, 0xf80, 0xc00, 0xc04, 0x84,
                0xc08,
            ]
            .to_vec(),
        );
        let whole = word.prop_map(|offset| (offset, 4));
        let priority = (0..32_u16).prop_map(|n| (0x400 + n, 1));
        let priorities = (0..8_u16).prop_map(|n| (0x400 + 4 * n, 4));
        let wide = prop::sample::select([0x80, 0x300, 0x400, 0x418, 0xc00].to_vec());
        let wide = wide.prop_map(|offset| (offset, 8));
        prop_oneof![3 => whole, 1 => priority, 1 => priorities, 1 => wide]
    }

    proptest! {
        /// EL2's interrupts never change, and all others are as on a machine without EL2.
        #[test]
        fn own_interrupts_stay_and_others_obey(
            own: u32,
            first: [u32; 8],
            accesses in prop::collection::vec((offsets(), any::<u64>()), 0..60),
        ) {
            let filter = Filter::new(own);
            let mut alone = Frame::default();
            for (n, value) in first.into_iter().enumerate() {
                alone.write(0x400 + 4 * n as u16, 4, value.into());
                alone.write([0x80, 0x100, 0x200, 0x300, 0xc00, 0xc04, 0xd00, 0xf80][n], 4, value.into());
            }
            let before = alone.clone();
            let mut shared = alone.clone();
            for ((offset, bytes), value) in accesses {
                let rule = filter.look(Page::Private, offset, bytes);
                let value = value & (u64::MAX >> (64 - u32::from(bytes) * 8));
                let current = if rule.needs_current() { shared.read(offset, bytes) } else { 0 };
                shared.write(offset, bytes, rule.write(value, current));
                alone.write(offset, bytes, value);
                let seen = rule.read(shared.read(offset, bytes));
                // What is EL2's reads as zero, all else as it is.
                let mut masked = alone.clone();
                for n in (0..32).filter(|n| own >> n & 1 == 1) {
                    masked.0[n] = Interrupt::default();
                }
                prop_assert_eq!(seen, masked.read(offset, bytes), "{:#x}", offset);
            }
            for n in 0..32 {
                let expected = if own >> n & 1 == 1 { before.0[n] } else { alone.0[n] };
                prop_assert_eq!(shared.0[n], expected, "interrupt {}", n);
            }
        }

        /// Of the distributor only its switch is kept.
        #[test]
        fn the_distributor_stays_on(own: u32, offset in 0..0x400_u16, value: u32) {
            let rule = Filter::new(own).look(Page::Distributor, offset * 4, 4);
            let written = rule.write(value.into(), DISTRIBUTOR_ON);
            let expected = u64::from(value) | if offset == 0 { DISTRIBUTOR_ON } else { 0 };
            prop_assert_eq!(written, expected);
            prop_assert_eq!(rule.read(value.into()), u64::from(value));
        }
    }

    #[test]
    fn a_kernel_that_starts_anew_silences_all_but_el2() {
        let filter = Filter::new(1 << 25);
        let rule = filter.look(Page::Private, 0x180, 4);
        assert_eq!(rule.write(0xffff_ffff, 0), 0xfdff_ffff);
        let rules: Vec<_> = [0x418, 0x419]
            .map(|at| filter.look(Page::Private, at, 1))
            .into();
        assert_eq!(
            (rules[0].write(0xa0, 0), rules[1].write(0xa0, 0)),
            (0xa0, 0)
        );
    }
}
