//! Every identifier that means something, and any that may not.

use model_addr::Ipa;
use model_vpsci::{Call, Capabilities, Random, Refusal, Reply, decode};
use proptest::prelude::*;

const NOTHING: Capabilities = Capabilities {
    entropy: false,
    stolen_time: false,
};
const ALL: Capabilities = Capabilities {
    entropy: true,
    stolen_time: true,
};

const NOT_SUPPORTED: Call = answered(-1);
const INVALID_PARAMETERS: Call = answered(-2);

const fn answered(value: i64) -> Call {
    Call::Answered(Reply::X0(value as u64))
}

fn call(function: u64, arguments: [u64; 3]) -> Call {
    decode(function, arguments, ALL)
}

/// Each range of identifiers whole, in both widths: the calls below and no others exist.
#[test]
fn nothing_else_exists() {
    let known = [
        (0x8000_0000, vec![0x0, 0x1]),
        (0xc000_0000, vec![]),
        (
            0x8400_0000,
            vec![0, 1, 2, 3, 4, 6, 8, 9, 0xa, 0x12, 0x50, 0x51, 0x52, 0x53],
        ),
        (0xc400_0000, vec![1, 3, 4, 0x12, 0x53]),
        (0x8500_0000, vec![]),
        (0xc500_0000, vec![0x20, 0x21]),
        (0x8600_0000, vec![0xff01, 0xff03]),
        (0xc600_0000, vec![0x20]),
    ];
    for (range, numbers) in known {
        for number in 0..0x1_0000u64 {
            let exists = call(range | number, [0; 3]) != Call::Unknown;
            assert_eq!(exists, numbers.contains(&number), "{range:#x} {number:#x}");
            // Not a fast call: not offered.
            assert_eq!(call((range | number) & 0x7fff_ffff, [0; 3]), Call::Unknown);
        }
    }
}

/// Only whole pages whose addresses do not wrap are marked.
#[test]
fn pages_are_marked_as_never_to_be_shared() {
    let mark = |at, pages, mark| call(0xc600_0020, [at, pages, mark]);
    let marked = |at, pages, never| Call::NeverShare {
        first: Ipa(at),
        pages,
        never,
    };
    assert_eq!(mark(0x4000_1000, 1, 1), marked(0x4000_1000, 1, true));
    assert_eq!(mark(0x4000_1000, 64, 0), marked(0x4000_1000, 64, false));
    assert_eq!(mark(0x1000, 1 << 30, 1), marked(0x1000, 1 << 30, true));
    let wrong = [
        (0x4000_1001, 1, 1),
        (0x4000_1000, 0, 1),
        (0x4000_1000, 1, 2),
        (0, 1 << 52, 1),
        (u64::MAX - 0xfff, 1, 1),
        (0x1000, u64::MAX, 0),
    ];
    for (at, pages, never) in wrong {
        assert_eq!(
            mark(at, pages, never),
            INVALID_PARAMETERS,
            "{at:#x} {pages}"
        );
    }
}

#[test]
fn psci_features_tells_what_exists() {
    for function in (0x8400_0000..0x8400_0040u64).chain(0xc400_0000..0xc400_0040) {
        let exists = call(function, [0; 3]) != Call::Unknown;
        let expected = if exists { answered(0) } else { NOT_SUPPORTED };
        assert_eq!(
            call(0x8400_000a, [function, 0, 0]),
            expected,
            "{function:#x}"
        );
    }
    assert_eq!(
        call(0x8400_000a, [0x8000_0000, 0, 0]),
        answered(0),
        "SMCCC_VERSION"
    );
    assert_eq!(
        call(0x8400_000a, [0x8400_0050, 0, 0]),
        NOT_SUPPORTED,
        "not of PSCI"
    );
}

#[test]
fn versions_and_fixed_answers() {
    assert_eq!(call(0x8400_0000, [7; 3]), answered(0x1_0001));
    assert_eq!(
        call(0xdead_beef_8400_0000, [7; 3]),
        answered(0x1_0001),
        "W0 counts"
    );
    assert_eq!(call(0x8000_0000, [7; 3]), answered(0x1_0002));
    assert_eq!(call(0x8400_0006, [0; 3]), answered(2));
    assert_eq!(call(0x8400_0002, [0; 3]), Call::CpuOff);
    assert_eq!(call(0x8400_0008, [0; 3]), Call::SystemOff);
    assert_eq!(call(0x8400_0009, [0; 3]), Call::SystemReset);
    assert_eq!(call(0xc400_0012, [0; 3]), Call::SystemReset);
    assert_eq!(call(0x8400_0012, [0x8000_0000, 0, 0]), INVALID_PARAMETERS);
    assert_eq!(Refusal::NotSupported.reply(), Reply::X0(u64::MAX));
}

#[test]
fn cpu_on_takes_arguments_by_width() {
    let high = 0xffff_ffff_0000_0000;
    let on = |target, entry, context| Call::CpuOn {
        target,
        entry: Ipa(entry),
        context,
    };
    assert_eq!(
        call(0x8400_0003, [high | 0x102, high | 0x4000, high | 5]),
        on(0x102, 0x4000, 5)
    );
    assert_eq!(
        call(0xc400_0003, [0x102, high, high | 5]),
        on(0x102, high, high | 5)
    );
    assert_eq!(
        call(0xc400_0003, [0x12_0034_5678, 0, 0]),
        on(0x1234_5678, 0, 0)
    );
    for bit in (24..32).chain(40..64) {
        assert_eq!(
            call(0xc400_0003, [1 << bit, 0, 0]),
            INVALID_PARAMETERS,
            "bit {bit}"
        );
        assert_eq!(
            call(0xc400_0004, [1 << bit, 0, 0]),
            INVALID_PARAMETERS,
            "bit {bit}"
        );
    }
    assert_eq!(
        call(0x8400_0004, [3, 0, 0]),
        Call::AffinityInfo { target: 3 }
    );
    assert_eq!(call(0x8400_0004, [3, 1, 0]), INVALID_PARAMETERS);
}

#[test]
fn every_wellformed_power_state_is_standby() {
    for state in [0, 1, 0xffff, 1 << 16, 1 << 16 | 3 << 24 | 7] {
        assert_eq!(call(0xc400_0001, [state, 0, 0]), Call::Standby);
    }
    for bit in (17..24).chain(26..64) {
        assert_eq!(
            call(0xc400_0001, [1 << bit, 0, 0]),
            INVALID_PARAMETERS,
            "bit {bit}"
        );
    }
}

#[test]
fn workarounds_are_not_offered() {
    let feature = |function| call(0x8000_0001, [function, 0, 0]);
    for function in [0x8000_8000, 0x8000_7fff, 0x8000_3fff, 0x8000_0002] {
        assert_eq!(feature(function), NOT_SUPPORTED);
    }
    assert_eq!(feature(0x8000_0001), answered(0));
}

#[test]
fn stolen_time_is_offered_where_there_is_some() {
    assert_eq!(call(0x8000_0001, [0xc500_0020, 0, 0]), answered(0));
    assert_eq!(call(0xc500_0020, [0xc500_0021, 0, 0]), answered(0));
    assert_eq!(call(0xc500_0020, [0xc500_0022, 0, 0]), NOT_SUPPORTED);
    assert_eq!(call(0xc500_0021, [0; 3]), Call::StolenTime);
    assert_eq!(call(0x8500_0021, [0; 3]), Call::Unknown, "not of 32 bits");
    assert_eq!(decode(0xc500_0021, [0; 3], NOTHING), Call::Unknown);
    assert_eq!(
        decode(0xc500_0020, [0xc500_0021, 0, 0], NOTHING),
        Call::Unknown
    );
    assert_eq!(
        decode(0x8000_0001, [0xc500_0020, 0, 0], NOTHING),
        NOT_SUPPORTED
    );
}

fn random(function: u64, bits: u64) -> Option<Random> {
    match call(function, [bits, 0, 0]) {
        Call::Random(random) => Some(random),
        other => {
            assert_eq!(other, INVALID_PARAMETERS);
            None
        }
    }
}

#[test]
fn random_bits_are_as_many_as_asked_for() {
    for (function, width) in [(0x8400_0053, 32), (0xc400_0053, 64)] {
        for bits in 0..=300 {
            let random = random(function, bits);
            assert_eq!(random.is_some(), (1..=3 * width).contains(&bits));
            let Some(random) = random else { continue };
            let Reply::X0To3([status, x1, x2, x3]) = random.reply([u64::MAX; 3]) else {
                panic!("four registers");
            };
            assert_eq!(status, 0);
            let ones = [x3, x2, x1].map(|register| u64::from(register.trailing_ones()));
            let expected: [u64; 3] =
                std::array::from_fn(|i| bits.saturating_sub(width * i as u64).min(width));
            assert_eq!(ones, expected);
            assert_eq!(ones.map(|n| n as u32), [x3, x2, x1].map(u64::count_ones));
        }
    }
    for function in [
        0x8400_0050,
        0x8400_0051,
        0x8400_0052,
        0x8400_0053,
        0xc400_0053,
    ] {
        assert_eq!(decode(function, [32, 0, 0], NOTHING), Call::Unknown);
        assert_eq!(call(0x8400_0051, [function, 0, 0]), answered(0));
    }
    assert_eq!(call(0x8400_0050, [0; 3]), answered(0x1_0000));
    assert_eq!(Random::NO_ENTROPY, Reply::X0((-3i64) as u64));
}

#[test]
fn the_uuid_comes_in_four_words() {
    let expected = Reply::X0To3([0x541d_adb3, 0x5c4a_f56c, 0x1f2f_3c9a, 0x267d_0b4f]);
    assert_eq!(call(0x8600_ff01, [0; 3]), Call::Answered(expected));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_registers_panic(
        function in prop_oneof![any::<u64>(), 0x8000_0000u64..0x8000_0010, 0x8400_0000u64..0x8400_0060,
            0xc400_0000u64..0xc400_0060],
        arguments: [u64; 3],
        entropy: [u64; 3],
    ) {
        for capabilities in [NOTHING, ALL] {
            if let Call::Random(random) = decode(function, arguments, capabilities) {
                prop_assert!(matches!(random.reply(entropy), Reply::X0To3([0, ..])));
            }
        }
    }
}
