//! A VM's PL011.

use crate::devices::register::IrqLine;
use crate::guest::{Guest, layout};
use abi::state::{self, Sink, kind};
use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use machine_locks::{Rank, SpinLock};
use model_vuart::Pl011;

const DATA: u64 = 0x00;
const FLAGS: u64 = 0x18;
const FLAG_TX_FULL: u64 = 1 << 5;
const FLAG_TX_EMPTY: u64 = 1 << 7;
/// Typed bytes that wait for the guest to take them, on the heap: VMs are made on the stack.
pub const TYPED_ROOM: usize = 4096;

struct State {
    pl011: Pl011,
    typed: Box<heapless::Deque<u8, TYPED_ROOM>>,
    line: IrqLine,
}

/// A PL011.
pub struct Uart {
    state: SpinLock<State>,
}

impl Uart {
    /// A UART after reset.
    pub fn new() -> Self {
        let state = State {
            pl011: Pl011::default(),
            typed: Box::default(),
            line: IrqLine::new(layout::UART_INTID),
        };
        Self {
            state: SpinLock::new(Rank::Device, state),
        }
    }

    /// The guest reads the register at `offset`. Most reads are of the flags, on which the
    /// interrupt line does not depend.
    #[inline]
    pub fn load(&self, vm: &Guest, offset: u64) -> u64 {
        if offset != FLAGS {
            return self.load_and_signal(vm, offset);
        }
        let flags = u64::from(self.state.lock().pl011.read(FLAGS as u32));
        if vm.terminal.has_room() {
            flags
        } else {
            flags & !FLAG_TX_EMPTY | FLAG_TX_FULL
        }
    }

    #[inline(never)]
    fn load_and_signal(&self, vm: &Guest, offset: u64) -> u64 {
        let mut state = self.state.lock();
        let read = state.pl011.read(offset as u32);
        if offset == DATA {
            state.refill();
        }
        state.update_line(vm);
        read.into()
    }

    /// The guest writes the register at `offset`. Most writes are bytes that it sends.
    #[inline(never)]
    pub fn store(&self, vm: &Guest, offset: u64, value: u64) {
        let sent = {
            let mut state = self.state.lock();
            let sent = if offset == DATA {
                state.pl011.send(value as u8)
            } else {
                state.pl011.write(offset as u32, value as u32)
            };
            state.update_line(vm);
            sent
        };
        if let Some(byte) = sent {
            vm.terminal.is_uart.store(true, Ordering::Relaxed);
            vm.terminal.put(byte);
        }
    }

    /// Somebody typed: how many of the bytes were taken.
    pub fn receive(&self, vm: &Guest, bytes: &[u8]) -> usize {
        let mut state = self.state.lock();
        let taken = bytes
            .iter()
            .take_while(|&&byte| state.typed.push_back(byte).is_ok())
            .count();
        state.refill();
        state.update_line(vm);
        taken
    }
}

/// As records, for the image that takes this one's place.
impl Uart {
    /// Writes its record, and what was typed and waits.
    pub fn write(&self, vm: &Guest, to: &mut impl Sink) {
        let state = self.state.lock();
        let in_use = vm.terminal.is_uart.load(Ordering::Relaxed).into();
        let record = state.pl011.record();
        to.put(kind::UART, &state::Uart { in_use, ..record });
        let (front, back) = state.typed.as_slices();
        to.put(kind::TYPED, front);
        to.add(back);
    }

    /// As a record has it; `false` where that makes no sense.
    #[must_use]
    pub fn restore(&self, vm: &Guest, record: &state::Uart, typed: &[u8]) -> bool {
        let Some(pl011) = Pl011::of(record) else {
            return false;
        };
        let mut state = self.state.lock();
        state.line.restore(pl011.irq_level());
        state.pl011 = pl011;
        vm.terminal
            .is_uart
            .store(record.in_use != 0, Ordering::Relaxed);
        typed
            .iter()
            .all(|byte| state.typed.push_back(*byte).is_ok())
    }
}

impl State {
    /// Moves typed bytes into the receive FIFO as far as they fit.
    fn refill(&mut self) {
        while self.pl011.room() > 0
            && let Some(byte) = self.typed.pop_front()
        {
            self.pl011.receive(byte);
        }
    }

    fn update_line(&mut self, vm: &Guest) {
        self.line.show(vm, self.pl011.irq_level());
    }
}
