//! Any sequence of accesses and levels, beside eight lines that are described one by one.

use model_vgpio::{LINES, Pl061};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Input(u8, bool),
    Read(u32),
    Write(u32, u32),
}

fn op() -> impl Strategy<Value = Op> {
    let offset = prop_oneof![
        4 => (0u32..0x100).prop_map(|n| n * 4),
        8 => (0x100u32..0x10a).prop_map(|n| n * 4),
        1 => 0xfd0u32..0x1010,
        1 => any::<u32>(),
    ];
    prop_oneof![
        20 => (0..=LINES, any::<bool>()).prop_map(|(line, high)| Op::Input(line, high)),
        10 => offset.clone().prop_map(Op::Read),
        20 => (offset, any::<u32>()).prop_map(|(offset, value)| Op::Write(offset, value)),
    ]
}

/// One line.
#[derive(Clone, Copy, Default)]
struct Line {
    input: bool,
    output: bool,
    is_output: bool,
    level_sense: bool,
    both_edges: bool,
    rising: bool,
    enabled: bool,
    alternate: bool,
    edge: bool,
}

impl Line {
    fn pin(self) -> bool {
        if self.is_output {
            self.output
        } else {
            self.input
        }
    }

    fn raw(self) -> bool {
        if self.level_sense {
            self.pin() == self.rising
        } else {
            self.edge
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.pin();
        change(self);
        if !self.level_sense && before != self.pin() {
            self.edge |= self.both_edges || self.pin() == self.rising;
        }
    }

    fn write(&mut self, n: usize, offset: u32, value: u32) {
        let high = value >> n & 1 != 0;
        self.change(|line| match offset {
            0..0x400 if offset >> 2 >> n & 1 != 0 => line.output = high,
            0x400 => line.is_output = high,
            0x404 => line.level_sense = high,
            0x408 => line.both_edges = high,
            0x40c => line.rising = high,
            0x410 => line.enabled = high,
            0x41c => line.edge &= !high,
            0x420 => line.alternate = high,
            _ => {}
        });
    }

    fn read(self, n: usize, offset: u32) -> bool {
        match offset {
            0..0x400 => self.pin() && offset >> 2 >> n & 1 != 0,
            0x400 => self.is_output,
            0x404 => self.level_sense,
            0x408 => self.both_edges,
            0x40c => self.rising,
            0x410 => self.enabled,
            0x414 => self.raw(),
            0x418 => self.raw() && self.enabled,
            0x420 => self.alternate,
            _ => false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn each_line_is_its_own(ops in prop::collection::vec(op(), 0..300)) {
        let mut gpio = Pl061::default();
        let mut lines = [Line::default(); LINES as usize];
        for op in ops {
            match op {
                Op::Input(n, high) => {
                    gpio.set_input(n, high);
                    if let Some(line) = lines.get_mut(usize::from(n)) {
                        line.change(|line| line.input = high);
                    }
                }
                // The identification is told by a test of its own.
                Op::Read(0xfe0..0x1000) => {}
                Op::Read(offset) => {
                    let expected = lines.iter().enumerate();
                    let expected = expected.map(|(n, line)| u32::from(line.read(n, offset)) << n);
                    prop_assert_eq!(gpio.read(offset), expected.sum::<u32>());
                }
                Op::Write(offset, value) => {
                    gpio.write(offset, value);
                    lines.iter_mut().enumerate().for_each(|(n, line)| line.write(n, offset, value));
                }
            }
            prop_assert_eq!(gpio.irq_level(), lines.iter().any(|line| line.raw() && line.enabled));
            for n in 0..=LINES {
                let enabled = lines.get(usize::from(n)).is_some_and(|line| line.enabled);
                prop_assert_eq!(gpio.is_enabled(n), enabled);
            }
        }
    }
}
