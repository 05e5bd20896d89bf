//! Any sequence of accesses and received bytes, beside a queue.

use model_vuart::{FIFO_DEPTH, Pl011};
use proptest::prelude::*;
use std::collections::VecDeque;

const DR: u32 = 0x00;
const LCR_H: u32 = 0x2c;
const CR: u32 = 0x30;
const IMSC: u32 = 0x38;
const RIS: u32 = 0x3c;
const MIS: u32 = 0x40;

#[derive(Clone, Copy, Debug)]
enum Op {
    Receive(u8),
    Read(u32),
    Write(u32, u32),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let offset = prop_oneof![
        8 => (0u32..0x14).prop_map(|n| n * 4),
        4 => Just(DR),
        1 => 0xfd0u32..0x1010,
        1 => any::<u32>(),
    ];
    prop_oneof![
        20 => any::<u8>().prop_map(Op::Receive),
        20 => offset.clone().prop_map(Op::Read),
        10 => (offset, any::<u32>()).prop_map(|(offset, value)| Op::Write(offset, value)),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn bytes_come_in_order_and_the_line_is_ris_and_imsc(ops in prop::collection::vec(op(), 0..300)) {
        let mut uart = Pl011::default();
        let mut queue = VecDeque::new();
        let (mut has_fifo, mut loops) = (false, false);
        for op in ops {
            // A record says all of it.
            uart = Pl011::of(&uart.record()).unwrap_or_default();
            let depth = if has_fifo { FIFO_DEPTH } else { 1 };
            prop_assert_eq!(uart.room(), depth - queue.len());
            match op {
                Op::Receive(byte) => {
                    prop_assert_eq!(uart.receive(byte), queue.len() < depth);
                    if queue.len() < depth {
                        queue.push_back(byte);
                    }
                }
                Op::Read(DR) => {
                    prop_assert_eq!(uart.read(DR), queue.pop_front().unwrap_or(0).into());
                }
                Op::Read(offset) => drop(uart.read(offset)),
                Op::Write(DR, value) => {
                    let sent = uart.write(DR, value);
                    prop_assert_eq!(sent, (!loops).then_some(value as u8));
                    if loops && queue.len() < depth {
                        queue.push_back(value as u8);
                    }
                }
                Op::Write(offset, value) => {
                    prop_assert_eq!(uart.write(offset, value), None);
                    if offset == LCR_H && (value >> 4 & 1 != 0) != has_fifo {
                        has_fifo = !has_fifo;
                        queue.clear();
                    }
                    if offset == CR {
                        loops = value & 0x81 == 0x81;
                    }
                }
                Op::Reset => {
                    uart = Pl011::default();
                    queue.clear();
                    (has_fifo, loops) = (false, false);
                }
            }
            let (raw, mask) = (uart.read(RIS), uart.read(IMSC));
            prop_assert_eq!(uart.irq_level(), raw & mask != 0);
            prop_assert_eq!(uart.read(MIS), raw & mask);
            prop_assert_eq!(raw >> 6 & 1 != 0 && queue.is_empty(), false, "timeout of nothing");
        }
    }
}
