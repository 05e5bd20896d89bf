//! A GICv3 with one security state (Arm IHI 0069): the distributor, redistributors and physical CPU interfaces, as far
//! as EL2 uses them.

/// Where the distributor is.
pub const DISTRIBUTOR: u64 = 0x0800_0000;
/// Where the redistributors are, and how far they are apart.
pub const REDISTRIBUTORS: u64 = 0x080a_0000;
/// See [`REDISTRIBUTORS`].
pub const STRIDE: u64 = 0x2_0000;
/// Interrupts that a line of the distributor's registers has.
const PER_WORD: u32 = 32;
/// The highest shared interrupt and the first.
const SPIS: usize = 64;
const FIRST_SPI: u32 = 32;
const SPURIOUS: u32 = 1023;
/// No interrupt is under way.
const IDLE: u8 = 0xff;

/// Thirty-two interrupts.
#[derive(Clone, Debug)]
struct Bank {
    enabled: u32,
    pending: u32,
    active: u32,
    /// Bits of interrupts that an edge raises.
    edge: u32,
    /// Lines that are high: a level is pending as long.
    lines: u32,
    priorities: [u8; 32],
}

impl Bank {
    const NEW: Self = Self {
        enabled: 0,
        pending: 0,
        active: 0,
        edge: 0,
        lines: 0,
        priorities: [0; 32],
    };

    fn set_line(&mut self, bit: u32, high: bool) {
        let mask = 1 << bit;
        if high && self.lines & mask == 0 && self.edge & mask != 0 {
            self.pending |= mask;
        }
        self.lines = self.lines & !mask | u32::from(high) << bit;
    }

    fn waiting(&self) -> u32 {
        (self.pending | self.lines & !self.edge) & self.enabled & !self.active
    }

    fn read(&self, offset: u64) -> u64 {
        match offset {
            0x100..0x200 => self.enabled.into(),
            0x200..0x300 => (self.pending | self.lines & !self.edge).into(),
            0x300..0x400 => self.active.into(),
            _ => 0,
        }
    }

    fn write(&mut self, offset: u64, value: u32) {
        match offset {
            0x100..0x180 => self.enabled |= value,
            0x180..0x200 => self.enabled &= !value,
            0x200..0x280 => self.pending |= value,
            0x280..0x300 => self.pending &= !value,
            0x300..0x380 => self.active |= value,
            0x380..0x400 => self.active &= !value,
            _ => {}
        }
    }

    fn read_edges(&self, half: u64) -> u64 {
        let sixteen = self.edge >> (16 * half);
        (0..16).fold(0, |word, n| {
            word | u64::from(sixteen >> n & 1) << (2 * n + 1)
        })
    }

    fn write_edges(&mut self, half: u64, value: u64) {
        for n in 0..16 {
            let bit = 1 << (n + 16 * half);
            if value >> (2 * n + 1) & 1 == 1 {
                self.edge |= bit;
            } else {
                self.edge &= !bit;
            }
        }
    }

    fn write_priorities(&mut self, at: usize, size: usize, value: u64) {
        let bytes = value.to_le_bytes();
        for (place, byte) in self.priorities.iter_mut().skip(at).zip(&bytes[..size]) {
            *place = *byte;
        }
    }
}

/// A CPU's part.
#[derive(Clone, Debug)]
struct Private {
    affinity: u64,
    bank: Bank,
    /// Priorities of what was acknowledged and not dropped, the last one last.
    running: Vec<u8>,
}

/// The interrupt controller.
#[derive(Debug)]
pub(crate) struct Gic {
    control: u32,
    private: Vec<Private>,
    shared: [Bank; SPIS / 32],
    routes: [u64; SPIS],
}

impl Gic {
    /// After reset, for CPUs of these affinities.
    pub(crate) fn new(affinities: &[u64]) -> Self {
        let private = |affinity: &u64| Private {
            affinity: *affinity,
            bank: Bank {
                edge: 0xffff,
                ..Bank::NEW
            },
            running: Vec::new(),
        };
        Self {
            control: 0,
            private: affinities.iter().map(private).collect(),
            shared: [Bank::NEW; SPIS / 32],
            routes: [0; SPIS],
        }
    }

    /// Sets the line of a CPU's own interrupt.
    pub(crate) fn set_private_line(&mut self, cpu: usize, intid: u32, high: bool) {
        self.private[cpu].bank.set_line(intid, high);
    }

    /// Sets the line of shared interrupt `intid`.
    pub(crate) fn set_line(&mut self, intid: u32, high: bool) {
        let place = (intid - FIRST_SPI) as usize;
        self.shared[place / 32].set_line(place as u32 % 32, high);
    }

    /// What `cpu` would acknowledge with that priority mask.
    pub(crate) fn highest(&self, cpu: usize, mask: u8) -> Option<(u32, u8)> {
        let own = &self.private[cpu];
        let running = own.running.last().copied().unwrap_or(IDLE);
        let mut best: Option<(u32, u8)> = None;
        let mut look = |bank: &Bank, first: u32, reaches: &dyn Fn(u32) -> bool| {
            let mut waiting = bank.waiting();
            while waiting != 0 {
                let bit = waiting.trailing_zeros();
                waiting &= waiting - 1;
                let priority = bank.priorities[bit as usize];
                let is_urgent = priority < mask && priority < running;
                if is_urgent && best.is_none_or(|(_, other)| priority < other) && reaches(bit) {
                    best = Some((first + bit, priority));
                }
            }
        };
        look(&own.bank, 0, &|_| true);
        for (n, bank) in self.shared.iter().enumerate() {
            let routes = &self.routes[32 * n..32 * (n + 1)];
            let reaches = |bit: u32| routes[bit as usize] == own.affinity;
            look(bank, FIRST_SPI + PER_WORD * n as u32, &reaches);
        }
        best
    }

    /// Acknowledges (`ICC_IAR1_EL1`).
    pub(crate) fn acknowledge(&mut self, cpu: usize, mask: u8) -> u32 {
        let Some((intid, priority)) = self.highest(cpu, mask) else {
            return SPURIOUS;
        };
        self.private[cpu].running.push(priority);
        let (bank, bit) = self.bank(cpu, intid);
        bank.active |= bit;
        bank.pending &= !bit;
        intid
    }

    fn bank(&mut self, cpu: usize, intid: u32) -> (&mut Bank, u32) {
        let bit = 1 << (intid % PER_WORD);
        if intid < FIRST_SPI {
            return (&mut self.private[cpu].bank, bit);
        }
        let place = ((intid / PER_WORD) as usize - 1).min(SPIS / 32 - 1);
        (&mut self.shared[place], bit)
    }

    /// Drops the running priority (`ICC_EOIR1_EL1` with EOImode 1).
    pub(crate) fn drop_priority(&mut self, cpu: usize) {
        self.private[cpu].running.pop();
    }

    /// `ICC_RPR_EL1`.
    pub(crate) fn running_priority(&self, cpu: usize) -> u8 {
        self.private[cpu].running.last().copied().unwrap_or(IDLE)
    }

    /// Ends an interrupt (`ICC_DIR_EL1`, or a list register with HW set).
    pub(crate) fn deactivate(&mut self, cpu: usize, intid: u32) {
        let (bank, bit) = self.bank(cpu, intid);
        bank.active &= !bit;
    }

    /// Raises SGI 0 for a CPU, which nobody has sent.
    pub(crate) fn kick(&mut self, cpu: usize) {
        self.private[cpu].bank.pending |= 1;
    }

    /// Sends an SGI (`ICC_SGI1R_EL1`).
    pub(crate) fn send(&mut self, value: u64) {
        let intid = value >> 24 & 0xf;
        let cluster =
            (value >> 16 & 0xff) << 8 | (value >> 32 & 0xff) << 16 | (value >> 48 & 0xff) << 32;
        for own in &mut self.private {
            let (high, low) = (own.affinity & !0xff, own.affinity & 0xff);
            let is_target =
                high == cluster && low >> 4 == value >> 44 & 0xf && value >> (low & 0xf) & 1 == 1;
            if is_target {
                own.bank.pending |= 1 << intid;
            }
        }
    }

    /// Reads a register of the distributor.
    pub(crate) fn read_distributor(&self, offset: u64) -> u64 {
        match offset {
            0 => self.control.into(),
            4 => SPIS as u64 / 32,
            0xffe8 => 0x3b,
            0x6000..0x8000 => self.routes.get(Self::route(offset)).copied().unwrap_or(0),
            0xc00..0xd00 => {
                let half = (offset - 0xc00) / 4;
                self.shared_bank(half / 2)
                    .map_or(0, |bank| bank.read_edges(half % 2))
            }
            _ => self
                .shared_bank(offset % 0x80 / 4)
                .map_or(0, |bank| bank.read(offset)),
        }
    }

    fn route(offset: u64) -> usize {
        ((offset - 0x6000) / 8).wrapping_sub(FIRST_SPI.into()) as usize
    }

    /// The bank of word `word`, of which number 0 is each CPU's own.
    fn shared_bank(&self, word: u64) -> Option<&Bank> {
        self.shared.get((word as usize).wrapping_sub(1))
    }

    /// Writes a register of the distributor.
    pub(crate) fn write_distributor(&mut self, offset: u64, size: usize, value: u64) {
        let of_word = |word: u64| (word as usize).wrapping_sub(1);
        match offset {
            0 => self.control = value as u32,
            0x6000..0x8000 => {
                if let Some(route) = self.routes.get_mut(Self::route(offset)) {
                    *route = value;
                }
            }
            0x400..0x800 => {
                let intid = offset as usize - 0x400;
                if let Some(bank) = self.shared.get_mut(of_word(intid as u64 / 32)) {
                    bank.write_priorities(intid % 32, size, value);
                }
            }
            0xc00..0xd00 => {
                let half = (offset - 0xc00) / 4;
                if let Some(bank) = self.shared.get_mut(of_word(half / 2)) {
                    bank.write_edges(half % 2, value);
                }
            }
            _ => {
                if let Some(bank) = self.shared.get_mut(of_word(offset % 0x80 / 4)) {
                    bank.write(offset, value as u32);
                }
            }
        }
    }

    /// Reads a register of the redistributors.
    pub(crate) fn read_redistributor(&self, offset: u64) -> u64 {
        let number = (offset / STRIDE) as usize;
        let Some(own) = self.private.get(number) else {
            return 0;
        };
        let is_last = number + 1 == self.private.len();
        match offset % STRIDE {
            8 => {
                let affinity = own.affinity & 0xff_ffff | own.affinity >> 8 & 0xff00_0000;
                affinity << 32 | (number as u64) << 8 | u64::from(is_last) << 4
            }
            0x1_0c00 => own.bank.read_edges(0),
            0x1_0c04 => own.bank.read_edges(1),
            at @ 0x1_0000.. => own.bank.read(at - 0x1_0000),
            _ => 0,
        }
    }

    /// Writes a register of the redistributors.
    pub(crate) fn write_redistributor(&mut self, offset: u64, size: usize, value: u64) {
        let Some(own) = self.private.get_mut((offset / STRIDE) as usize) else {
            return;
        };
        match offset % STRIDE {
            at @ 0x1_0400..0x1_0420 => {
                own.bank
                    .write_priorities(at as usize - 0x1_0400, size, value);
            }
            0x1_0c04 => own.bank.write_edges(1, value),
            at @ 0x1_0100..0x1_0400 => own.bank.write(at - 0x1_0000, value as u32),
            _ => {}
        }
    }
}
