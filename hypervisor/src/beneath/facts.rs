//! What EL2 tells OS-0 of itself and of the CPU that asks, before anything is attached.

use crate::beneath::{attach, get, stage2};
use crate::machine::console;
use abi::os0::{FACTS, ID_REGISTERS, ID_REGISTERS_GIVEN, LOG_BYTES, REVISION, flag};
use arch::{entry::GuestContext, features, list_registers::HardwareLists};
use machine_contract::ListRegisters;

/// X0 to X17.
type Results = [u64; 18];
/// Major and minor.
const VERSION: u64 = 1;

/// The answer to one of [`FACTS`], [`ID_REGISTERS`] and `LOG`.
pub fn of(function: u32, first: u64, context: &GuestContext) -> Results {
    match function {
        FACTS => facts(first, context),
        ID_REGISTERS => {
            let mut results = [0; 18];
            for (result, (crm, op2)) in results[1..].iter_mut().zip(ID_REGISTERS_GIVEN) {
                *result = crate::machine::id_register(crm, op2);
            }
            results
        }
        _ => log(first),
    }
}

fn facts(expected: u64, context: &GuestContext) -> Results {
    let os0 = get();
    let exceptions = crate::machine::id_register(4, 0);
    let has = |shift: u32, flag: u64| (exceptions >> shift & 0xf != 0).then_some(flag);
    let seeded = crate::machine::entropy::is_seeded().then_some(flag::SEEDED);
    let flags = [has(12, flag::EL3), has(36, flag::SECURE_EL2), seeded];
    let flags = flags.into_iter().flatten().fold(0, |all, flag| all | flag);
    let mut results = [0; 18];
    results[1..12].copy_from_slice(&[
        REVISION,
        VERSION,
        os0.home.hidden.start.0,
        os0.home.hidden.size,
        HardwareLists::of_this_cpu().count() as u64,
        stage2::reach().0.ilog2().into(),
        features::physical_address_bits().into(),
        os0.distributor.architecture().into(),
        flags,
        attach::refusal(context, expected),
        os0.distributor.last_interrupt().into(),
    ]);
    results
}

fn log(from: u64) -> Results {
    let mut bytes = [0; LOG_BYTES];
    let (next, count) = console::read_back(from, &mut bytes);
    let mut results = [0; 18];
    results[1] = next;
    results[2] = count as u64;
    let (words, _) = bytes.as_chunks::<8>();
    for (result, word) in results[3..].iter_mut().zip(words) {
        *result = u64::from_le_bytes(*word);
    }
    results
}
