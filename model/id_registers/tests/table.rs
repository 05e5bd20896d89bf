//! What guests are shown of real and of invented CPUs.

use std::collections::BTreeSet;

use model_id_registers::{GuestIdRegisters, HostIdRegisters, Order, Shown, registers};
use proptest::prelude::*;

const PLAIN: Shown = Shown {
    pa_bits: 40,
    pointer_auth: false,
    mops: false,
};
const ALL: Shown = Shown {
    pa_bits: 52,
    pointer_auth: true,
    mops: true,
};

/// Neoverse N1's registers (its Technical Reference Manual; as QEMU models it).
fn neoverse_n1() -> HostIdRegisters {
    HostIdRegisters::new(|crm, op2| match (crm, op2) {
        (4, 0) => 0x1100_0000_1111_1112,
        (4, 1) => 0x20,
        (5, 0) => 0x0000_0001_1030_5408,
        (6, 0) => 0x0000_1000_1021_1120,
        (6, 1) => 0x0000_0000_0010_0001,
        (7, 0) => 0x0000_0000_0010_1125,
        (7, 1) => 0x0000_0000_1021_2122,
        (7, 2) => 0x0000_0000_0000_1011,
        _ => 0,
    })
}

#[test]
fn neoverse_n1_as_a_guest_sees_it() {
    let guest = GuestIdRegisters::new(&neoverse_n1(), PLAIN);
    assert_eq!(guest.read(4, 0), 0x1100_0000_0111_0011);
    assert_eq!(guest.read(4, 1), 0x20);
    assert_eq!(guest.read(5, 0), 0x0000_00f0_0010_1006);
    assert_eq!(guest.read(6, 0), 0x0000_1000_1021_1120);
    assert_eq!(guest.read(6, 1), 0x0010_0001);
    assert_eq!(guest.read(7, 0), 0x0010_0122);
    assert_eq!(guest.read(7, 1), 0x0020_2002);
    assert_eq!(guest.read(7, 2), 0x10);
    for (crm, op2) in [
        (0, 0),
        (1, 0),
        (3, 7),
        (4, 4),
        (4, 5),
        (5, 1),
        (7, 3),
        (7, 7),
    ] {
        assert_eq!(guest.read(crm, op2), 0, "CRm {crm} op2 {op2}");
    }
}

#[test]
fn switches_show_what_they_name() {
    let rich = HostIdRegisters::new(|_, _| 0x1111_1111_1111_1111);
    let (off, on) = (
        GuestIdRegisters::new(&rich, PLAIN),
        GuestIdRegisters::new(&rich, ALL),
    );
    assert_eq!(on.read(6, 1) & !off.read(6, 1), 0x1100_0110);
    assert_eq!(on.read(6, 2) & !off.read(6, 2), 0x0101_1100);
    let wide = HostIdRegisters::new(|_, _| 6);
    let pa_range =
        |pa_bits| GuestIdRegisters::new(&wide, Shown { pa_bits, ..PLAIN }).read(7, 0) & 0xf;
    assert_eq!(
        [32, 36, 39, 40, 42, 44, 48, 52].map(pa_range),
        [0, 1, 1, 2, 3, 4, 5, 5]
    );
}

#[test]
fn what_is_missing_on_one_cpu_is_not_shown() {
    // Signed fields: FP and AdvSIMD are missing (0b1111) on the second.
    let first = HostIdRegisters::new(|crm, op2| u64::from((crm, op2) == (4, 0)) << 16);
    let second = HostIdRegisters::new(|crm, op2| if (crm, op2) == (4, 0) { 0xff << 16 } else { 0 });
    assert_eq!(first.minimum(second).get(4, 0), 0xff << 16);
    // SpecSEI warns: the higher one counts.
    let calm = HostIdRegisters::new(|_, _| 0);
    let wild = HostIdRegisters::new(|crm, op2| u64::from((crm, op2) == (7, 1)) << 24);
    assert_eq!(calm.minimum(wild).get(7, 1), 1 << 24);
}

#[test]
fn a_guest_on_several_hosts_has_what_all_have() {
    const ISAR0: (u8, u8) = (6, 0);
    const MMFR1: (u8, u8) = (7, 1);
    let host = |value: fn(u8, u8) -> u64| HostIdRegisters::new(value);
    let all = host(|_, _| 0x2222_2222_2222_2222);
    let shown = Shown {
        pa_bits: 48,
        pointer_auth: false,
        mops: false,
    };
    let alone = GuestIdRegisters::new(&all, shown);
    assert_eq!(alone.read(MMFR1.0, MMFR1.1) & 0xf, 2, "HAFDBS");
    let same = alone.spanning(all);
    assert_eq!(
        same.read(MMFR1.0, MMFR1.1),
        alone.read(MMFR1.0, MMFR1.1) & !0xf
    );
    assert_eq!(same.read(ISAR0.0, ISAR0.1), alone.read(ISAR0.0, ISAR0.1));
    let less = alone.spanning(host(|_, _| 0x1111_1111_1111_1111));
    assert_eq!(less.read(ISAR0.0, ISAR0.1) >> 20 & 0xf, 1, "Atomic");
}

#[test]
fn no_field_is_named_twice() {
    let mut places = BTreeSet::new();
    let mut names = BTreeSet::new();
    for register in registers() {
        assert!((1..8).contains(&register.crm) && register.op2 < 8);
        for field in register.fields {
            assert!(field.shift % 4 == 0 && field.shift < 64);
            assert!(
                places.insert((register.crm, register.op2, field.shift)),
                "{}",
                field.name
            );
            assert!(
                names.insert(field.name) && !field.why.is_empty(),
                "{}",
                field.name
            );
        }
    }
}

/// How much a value promises, as an independent ordering.
fn promise(order: Order, value: u8) -> i32 {
    let value = i32::from(value);
    match order {
        Order::Unsigned => value,
        Order::Signed => value - if value > 7 { 16 } else { 0 },
        Order::Warning => -value,
    }
}

fn host() -> impl Strategy<Value = HostIdRegisters> {
    prop::array::uniform32(any::<u64>()).prop_map(|words| {
        HostIdRegisters::new(|crm, op2| words[usize::from(crm & 3) * 8 + usize::from(op2)])
    })
}

proptest! {
    #[test]
    fn no_guest_field_promises_more_than_the_host(
        host in host(), pa_bits in 32..64_u8, pointer_auth: bool, mops: bool,
    ) {
        let guest = GuestIdRegisters::new(&host, Shown { pa_bits, pointer_auth, mops });
        for register in registers() {
            let (crm, op2) = (register.crm, register.op2);
            let mut named = 0;
            for field in register.fields {
                named |= field.mask();
                let shown = field.get(guest.read(crm, op2));
                let real = field.get(host.get(crm, op2));
                prop_assert!(
                    promise(field.order, shown) <= promise(field.order, real),
                    "{} {}: {shown} over {real}", register.name, field.name
                );
            }
            prop_assert_eq!(guest.read(crm, op2) & !named, 0);
        }
    }

    #[test]
    fn the_minimum_is_a_minimum(a in host(), b in host(), c in host()) {
        prop_assert_eq!(a.minimum(b), b.minimum(a));
        prop_assert_eq!(a.minimum(a), a);
        prop_assert_eq!(a.minimum(b).minimum(c), a.minimum(b.minimum(c)));
        // A guest of the common minimum could run on either.
        let both = GuestIdRegisters::new(&a.minimum(b), PLAIN);
        let one = GuestIdRegisters::new(&a, PLAIN);
        for register in registers() {
            for field in register.fields {
                let value = |guest: &GuestIdRegisters| {
                    promise(field.order, field.get(guest.read(register.crm, register.op2)))
                };
                prop_assert!(value(&both) <= value(&one));
            }
        }
    }
}
