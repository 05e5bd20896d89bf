//! Any sequence of accesses while time passes, beside a clock that is counted second by second.

use model_vrtc::Pl031;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Pass(u32),
    Read(u32),
    Write(u32, u32),
    Park,
}

fn op() -> impl Strategy<Value = Op> {
    let offset = prop_oneof![
        8 => (0u32..8).prop_map(|n| n * 4),
        1 => 0xfd0u32..0x1010,
        1 => any::<u32>(),
    ];
    prop_oneof![
        (0u32..5000).prop_map(Op::Pass),
        any::<u32>().prop_map(Op::Pass),
        offset.clone().prop_map(Op::Read),
        (offset, any::<u32>()).prop_map(|(offset, value)| Op::Write(offset, value)),
        Just(Op::Park),
    ]
}

proptest! {
    #[test]
    fn it_counts_from_what_was_loaded(start: u32, ops in prop::collection::vec(op(), 0..60)) {
        let mut clock = Pl031::default();
        let (mut now, mut shown, mut loaded) = (start, start, 0);
        for op in ops {
            match op {
                Op::Pass(seconds) => {
                    now = now.wrapping_add(seconds);
                    shown = shown.wrapping_add(seconds);
                }
                Op::Write(8, value) => {
                    clock.write(8, value, now);
                    (shown, loaded) = (value, value);
                }
                Op::Write(offset, value) => clock.write(offset, value, now),
                Op::Read(0) => prop_assert_eq!(clock.read(0, now), shown),
                Op::Read(8) => prop_assert_eq!(clock.read(8, now), loaded),
                Op::Read(0xc) => prop_assert_eq!(clock.read(0xc, now), 1),
                Op::Read(offset) if !(0xfe0..0x1000).contains(&offset) => {
                    prop_assert_eq!(clock.read(offset, now), 0);
                }
                Op::Read(offset) => prop_assert!(clock.read(offset, now) < 0x100),
                Op::Park => clock = Pl031(clock.0),
            }
        }
        prop_assert_eq!(clock.read(0, now), shown);
    }
}

#[test]
fn a_driver_finds_a_primecell_031() {
    let id = |at: u32| {
        (0..4).fold(0, |id, n| {
            id | Pl031::default().read(at + 4 * n, 7) << (8 * n)
        })
    };
    assert_eq!((id(0xfe0), id(0xff0)), (0x0004_1031, 0xb105_f00d));
    assert_eq!(Pl031::default().read(0xfe1, 7), 0);
}
