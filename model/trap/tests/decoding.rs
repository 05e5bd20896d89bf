//! Syndromes and instructions, encoded by hand or by an assembler, come back as what they are.
#![allow(clippy::unwrap_used)]

use model_addr::Ipa;
use model_trap::instruction::{self, Indexing, MmioInstruction, Offset};
use model_trap::{Exit, Fault, MmioAccess, SysregId};
use proptest::prelude::*;

fn decode(esr: u64, far: u64, hpfar: u64) -> Exit {
    model_trap::decode(esr, || [far, hpfar])
}

fn esr(class: u64, iss: u64) -> u64 {
    class << 26 | 1 << 25 | iss
}

#[test]
fn calls_and_waits() {
    assert_eq!(decode(esr(0x16, 0x1234), 0, 0), Exit::Hvc { imm: 0x1234 });
    assert_eq!(decode(esr(0x17, 0), 0, 0), Exit::Smc { imm: 0 });
    assert_eq!(
        decode(esr(0x01, 0x1e0_0000), 0, 0),
        Exit::Wfx { is_wfe: false }
    );
    assert_eq!(
        decode(esr(0x01, 0x1e0_0001), 0, 0),
        Exit::Wfx { is_wfe: true }
    );
    assert_eq!(decode(esr(0x01, 2), 0, 0), Exit::Wfx { is_wfe: false });
    assert_eq!(decode(esr(0x07, 0), 0, 0), Exit::FpSimd);
    assert_eq!(decode(esr(0x3c, 0), 0, 0), Exit::Other { class: 0x3c });
}

#[test]
fn a_permission_fault_does_not_say_where() {
    // STR w3, [..]: ISV, SAS = 2, SRT = 3, WnR, permission fault level 3.
    let iss = 1 << 24 | 2 << 22 | 3 << 16 | 1 << 6 | 0b00_1111;
    let Exit::DataAbort(fault) = decode(esr(0x24, iss), 0xffff_0000_1234_5678, u64::MAX) else {
        panic!("no data abort");
    };
    assert_eq!(fault.abort.fault, Fault::Permission);
    assert_eq!(
        (fault.abort.ipa, fault.abort.va),
        (None, Some(0xffff_0000_1234_5678))
    );
    assert!(fault.wants_write() && fault.is_refused_store());
    let access = MmioAccess {
        size: 4,
        write: true,
        sign_extend: false,
        wide: false,
        rt: 3,
    };
    assert_eq!(fault.access, Some(access));
}

#[test]
fn a_walk_that_lacks_permission_wants_to_write() {
    let iss = 1 << 24 | 1 << 7 | 0b00_1110;
    let Exit::DataAbort(fault) = decode(esr(0x24, iss), 0x678, 0x4_0001 << 4) else {
        panic!("no data abort");
    };
    assert_eq!(fault.abort.ipa, Some(Ipa(0x4000_1000)));
    assert!(fault.abort.walk && fault.wants_write() && !fault.is_refused_store());
    assert_eq!(fault.access, None);
    // So does the walk of a fetch.
    let Exit::InstructionAbort(fetch) = decode(esr(0x20, 1 << 7 | 0xe), 0x678, 0x4_0001 << 4)
    else {
        panic!("no instruction abort");
    };
    assert_eq!(fetch.ipa, Some(Ipa(0x4000_1000)));
    assert!(fetch.is_table_update());
}

#[test]
fn who_wants_to_write() {
    const WALK: u64 = 1 << 7;
    const MAINTENANCE: u64 = 1 << 8;
    const WRITE: u64 = 1 << 6;
    const TRANSLATION: u64 = 0b00_0111;
    const PERMISSION: u64 = 0b00_1111;
    // ISS, whether the page must be writable, whether it is a plain store to a read-only page.
    let cases = [
        (PERMISSION, false, false),
        (PERMISSION | WRITE, true, true),
        (PERMISSION | WALK, true, false),
        (PERMISSION | WRITE | WALK, true, false),
        // DC IVAC wants to write; if it did not, it would fault at the same place for ever.
        (PERMISSION | WRITE | MAINTENANCE, true, false),
        (TRANSLATION, false, false),
        (TRANSLATION | WRITE, true, false),
        (TRANSLATION | WALK, false, false),
        (TRANSLATION | WRITE | WALK, false, false),
        (TRANSLATION | WRITE | MAINTENANCE, false, false),
    ];
    for (iss, wants_write, is_refused_store) in cases {
        let Exit::DataAbort(fault) = decode(esr(0x24, iss), 0x40, 0x900 << 4) else {
            panic!("no data abort");
        };
        assert_eq!(fault.wants_write(), wants_write, "{iss:#x}");
        assert_eq!(fault.is_refused_store(), is_refused_store, "{iss:#x}");
        assert_eq!(
            fault.abort.is_table_update(),
            iss & (WALK | 0x3f) == WALK | PERMISSION
        );
        // Where the address is: of a permission fault, only the walk's.
        assert_eq!(
            fault.abort.ipa.is_some(),
            iss & 0x3f == TRANSLATION || iss & WALK != 0
        );
    }
}

#[test]
fn cache_maintenance_does_not_want_to_write() {
    let iss = 1 << 8 | 1 << 6 | 0b00_0110;
    let Exit::DataAbort(fault) = decode(esr(0x24, iss), 0x40, 0x900 << 4) else {
        panic!("no data abort");
    };
    assert!(fault.cache_maintenance && fault.write && !fault.wants_write());
    assert_eq!(fault.abort.ipa, Some(Ipa(0x90_0040)));
}

#[test]
fn an_external_abort_may_not_know_its_address() {
    let Exit::InstructionAbort(abort) = decode(esr(0x20, 1 << 10 | 0x10), 0x40, 0x900 << 4) else {
        panic!("no instruction abort");
    };
    assert_eq!(
        (abort.fault, abort.va, abort.ipa),
        (Fault::External, None, None)
    );
}

const fn load(size: u8, rt: u8) -> MmioAccess {
    MmioAccess {
        size,
        write: false,
        sign_extend: false,
        wide: size == 8,
        rt,
    }
}

const fn store(size: u8, rt: u8) -> MmioAccess {
    MmioAccess {
        write: true,
        ..load(size, rt)
    }
}

const fn signed(size: u8, rt: u8, wide: bool) -> MmioAccess {
    MmioAccess {
        sign_extend: true,
        wide,
        ..load(size, rt)
    }
}

const fn one(first: MmioAccess, base: u8, offset: i16, indexing: Indexing) -> MmioInstruction {
    MmioInstruction {
        first,
        second: None,
        base,
        offset: Offset::Immediate(offset),
        indexing,
    }
}

const fn two(
    first: MmioAccess,
    second: MmioAccess,
    base: u8,
    offset: i16,
    indexing: Indexing,
) -> MmioInstruction {
    let offset = Offset::Immediate(offset);
    MmioInstruction {
        first,
        second: Some(second),
        base,
        offset,
        indexing,
    }
}

const fn indexed(
    first: MmioAccess,
    base: u8,
    (index, half, signed, shift): (u8, bool, bool, u8),
) -> MmioInstruction {
    let offset = Offset::Register {
        index,
        half,
        signed,
        shift,
    };
    MmioInstruction {
        first,
        second: None,
        base,
        offset,
        indexing: Indexing::Offset,
    }
}

#[test]
fn words_of_an_assembler() {
    use Indexing::{Offset, Post, Pre};
    let words = [
        (0xf8408441, one(load(8, 1), 2, 8, Post)), // ldr x1, [x2], #8
        (0xb85fcc83, one(load(4, 3), 4, -4, Pre)), // ldr w3, [x4, #-4]!
        (0x39001fe5, one(store(1, 5), 31, 7, Offset)), // strb w5, [sp, #7]
        (0x388014e6, one(signed(1, 6, true), 7, 1, Post)), // ldrsb x6, [x7], #1
        (0x78c02d28, one(signed(2, 8, false), 9, 2, Pre)), // ldrsh w8, [x9, #2]!
        (0xb80ff43f, one(store(4, 31), 1, 255, Post)), // str wzr, [x1], #255
        (0x79bffc62, one(signed(2, 2, true), 3, 8190, Offset)), // ldrsh x2, [x3, #8190]
        (0xf85fd0a4, one(load(8, 4), 5, -3, Offset)), // ldur x4, [x5, #-3]
        (0xb80048e6, one(store(4, 6), 7, 4, Offset)), // sttr w6, [x7, #4]
        // ldrsw x10, [x11, w12, sxtw #2]; str x13, [x14, x15, lsl #3]; ldrh w16, [x17, x18, sxtx]
        (
            0xb8acd96a,
            indexed(signed(4, 10, true), 11, (12, true, true, 2)),
        ),
        (0xf82f79cd, indexed(store(8, 13), 14, (15, false, false, 3))),
        (0x7872ea30, indexed(load(2, 16), 17, (18, false, true, 0))),
        (0xa9c152b3, two(load(8, 19), load(8, 20), 21, 16, Pre)), // ldp x19, x20, [x21, #16]!
        (0x28bf5f16, two(store(4, 22), store(4, 23), 24, -8, Post)), // stp w22, w23, [x24], #-8
        (0xa8426b79, two(load(8, 25), load(8, 26), 27, 32, Offset)), // ldnp x25, x26, [x27, #32]
        (
            0x697f8861,
            two(signed(4, 1, true), signed(4, 2, true), 3, -4, Offset),
        ), // ldpsw
        (0xa9bf7fff, two(store(8, 31), store(8, 31), 31, -16, Pre)), // stp xzr, xzr, [sp, #-16]!
    ];
    for (word, expected) in words {
        assert_eq!(instruction::decode(word), Some(expected), "{word:#x}");
    }
}

#[test]
fn words_that_are_left_alone() {
    let words = [
        0x3dc00000, // ldr q0, [x0]
        0xc85f7c20, // ldxr x0, [x1]
        0xf8200041, // ldadd x0, x1, [x2]
        0xc8dffc20, // ldar x0, [x1]
        0xf9800000, // prfm pldl1keep, [x0]
        0x58000080, // ldr x0, .+16
        0xad000400, // stp q0, q1, [x0]
        0xd50b7420, // dc zva, x0
        0xd503201f, // nop
        0xf8408442, // ldr x2, [x2], #8: the base is loaded, too
        0xa9400000, // ldp x0, x0, [x0]
    ];
    for word in words {
        assert_eq!(instruction::decode(word), None, "{word:#x}");
    }
}

#[test]
fn addresses() {
    let pre = instruction::decode(0xb85fcc83).unwrap();
    assert_eq!(
        (pre.address(0x1000, 0), pre.written_back(0x1000, 0)),
        (0xffc, Some(0xffc))
    );
    let post = instruction::decode(0xf8408441).unwrap();
    assert_eq!(
        (post.address(0x1000, 0), post.written_back(0x1000, 0)),
        (0x1000, Some(0x1008))
    );
    let sxtw = instruction::decode(0xb8acd96a).unwrap();
    assert_eq!(sxtw.index(), Some(12));
    let minus_one = 0xdead_0000_ffff_ffff;
    assert_eq!(
        (sxtw.address(0x1000, minus_one), sxtw.written_back(0, 0)),
        (0xffc, None)
    );
    let lsl = instruction::decode(0xf82f79cd).unwrap();
    assert_eq!(lsl.address(0x1000, 3), 0x1018);
}

proptest! {
    #[test]
    fn any_word_decodes_to_something_sound(word: u32, base: u64, index: u64) {
        if let Some(instruction) = instruction::decode(word) {
            prop_assert!(matches!(instruction.first.size, 1 | 2 | 4 | 8));
            prop_assert!(instruction.base < 32 && instruction.first.rt < 32);
            instruction.address(base, index);
            instruction.written_back(base, index);
        }
    }

    /// Words of the two groups that hold loads and stores.
    #[test]
    fn loads_and_stores_decode(word: u32) {
        for group in [0b101 << 27, 0b111 << 27] {
            let word = word & !(0b1111 << 26) | group;
            if let Some(instruction) = instruction::decode(word) {
                prop_assert_eq!(instruction.second.is_some(), group == 0b101 << 27);
                if let Some(second) = instruction.second {
                    let first = MmioAccess { rt: second.rt, ..instruction.first };
                    prop_assert_eq!(first, second);
                }
            }
        }
    }

    #[test]
    fn any_syndrome_decodes(esr: u64, far: u64, hpfar: u64) {
        if let Exit::DataAbort(fault) = decode(esr, far, hpfar)
            && let Some(ipa) = fault.abort.ipa
        {
            prop_assert!(ipa.0 < 1 << 52);
            prop_assert!(fault.abort.walk || ipa.offset() == far & 0xfff);
        }
    }

    #[test]
    fn system_registers_round_trip(
        op0 in 0..4_u8, op1 in 0..8_u8, crn in 0..16_u8, crm in 0..16_u8, op2 in 0..8_u8,
        rt in 0..32_u8, is_read: bool,
    ) {
        let iss = u64::from(op0) << 20 | u64::from(op2) << 17 | u64::from(op1) << 14
            | u64::from(crn) << 10 | u64::from(rt) << 5 | u64::from(crm) << 1 | u64::from(is_read);
        let Exit::Sysreg(access) = decode(esr(0x18, iss), 0, 0) else {
            return Err(TestCaseError::fail("no system register"));
        };
        let register = access.register;
        prop_assert_eq!(register, SysregId::new(op0, op1, crn, crm, op2));
        prop_assert_eq!(
            (register.op0(), register.op1(), register.crn(), register.crm(), register.op2()),
            (op0, op1, crn, crm, op2)
        );
        prop_assert_eq!((access.rt, access.is_read), (rt, is_read));
    }

    #[test]
    fn data_aborts_round_trip(
        log2_size in 0..4_u64, rt in 0..32_u8, sign_extend: bool, wide: bool, write: bool,
        code in 4..12_u64, page in 0..1_u64 << 40, far: u64,
    ) {
        let iss = 1 << 24 | log2_size << 22 | u64::from(sign_extend) << 21 | u64::from(rt) << 16
            | u64::from(wide) << 15 | u64::from(write) << 6 | code;
        let Exit::DataAbort(fault) = decode(esr(0x24, iss), far, page << 4) else {
            return Err(TestCaseError::fail("no data abort"));
        };
        let expected = if code < 8 { Fault::Translation } else { Fault::AccessFlag };
        prop_assert_eq!(fault.abort.fault, expected);
        prop_assert_eq!(fault.abort.ipa, Some(Ipa(page << 12 | far & 0xfff)));
        let access = MmioAccess { size: 1 << log2_size, write, sign_extend, wide, rt };
        prop_assert_eq!(fault.access, Some(access));
    }
}
