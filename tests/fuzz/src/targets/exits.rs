//! What a guest's registers hold when it exits.

use crate::input::Input;
use model_trap::{decode, instruction};
use model_vpsci::Capabilities;
use model_vuart::Pl011;

/// Syndromes, and instructions in place of those that say too little.
pub fn syndrome(data: &[u8]) {
    let mut input = Input(data);
    while let (Some(esr), Some(far), Some(hpfar)) = (input.u64(), input.u64(), input.u64()) {
        let _ = decode(esr, || [far, hpfar]);
        let _ = instruction::decode(esr as u32);
    }
}

/// PSCI and SMCCC calls.
pub fn psci_call(data: &[u8]) {
    let capabilities = Capabilities {
        entropy: true,
        stolen_time: true,
    };
    let mut input = Input(data);
    while let (Some(function), Some(x1), Some(x2), Some(x3)) =
        (input.u64(), input.u64(), input.u64(), input.u64())
    {
        let _ = model_vpsci::decode(function, [x1, x2, x3], capabilities);
    }
}

/// Accesses of a PL011, and bytes that come in on its line.
pub fn uart(data: &[u8]) {
    go_on(Pl011::default(), Input(data));
}

/// The same from any state.
pub fn go_on(mut uart: Pl011, mut input: Input<'_>) {
    while let (Some(what), Some(value)) = (input.u16(), input.u32()) {
        let offset = u32::from(what & 0xfff);
        match what >> 12 & 3 {
            0 => drop(uart.read(offset)),
            1 => drop(uart.receive(value as u8)),
            _ => drop(uart.write(offset, value)),
        }
        let _ = uart.irq_level();
    }
}
