//! Any sequence of accesses: an owner who looks only after writes and at deadlines drives the line
//! as one who looks at every count.

use model_vtimer::{PhysicalTimer, Register};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Write(Register, u64),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    use Register::{Compare, Control, Value};
    prop_oneof![
        (0..4_u64).prop_map(|value| Event::Write(Control, value)),
        (0..200_u64).prop_map(|value| Event::Write(Compare, value)),
        (-50..50_i32).prop_map(|value| Event::Write(Value, u64::from(value.cast_unsigned()))),
        (0..40_u64).prop_map(Event::Pass),
    ]
}

/// The registers as the manual has them.
#[derive(Default)]
struct Plain {
    enabled: bool,
    masked: bool,
    compare: i128,
}

impl Plain {
    fn write(&mut self, register: Register, value: u64, now: u64) {
        match register {
            Register::Control => (self.enabled, self.masked) = (value & 1 != 0, value & 2 != 0),
            Register::Compare => self.compare = value.into(),
            Register::Value => self.compare = i128::from(now) + i128::from(value as u32 as i32),
        }
    }

    fn line(&self, now: u64) -> bool {
        self.enabled && !self.masked && i128::from(now) >= self.compare
    }
}

proptest! {
    #[test]
    fn the_line_follows(events in proptest::collection::vec(event(), 0..40)) {
        // Far enough from zero that no count is negative.
        let mut now = 100;
        let (mut timer, mut plain) = (PhysicalTimer::default(), Plain::default());
        let mut line = false;
        for event in events {
            match event {
                Event::Write(register, value) => {
                    timer.write(register, value, now);
                    plain.write(register, value, now);
                    line = timer.line(now);
                }
                Event::Pass(counts) => for _ in 0..counts {
                    now += 1;
                    if timer.deadline().is_some_and(|at| at <= now) {
                        line = timer.line(now);
                    }
                    prop_assert_eq!(line, plain.line(now));
                },
            }
            prop_assert_eq!(line, plain.line(now));
            let status = timer.read(Register::Control, now) & 4 != 0;
            prop_assert_eq!(status, plain.enabled && i128::from(now) >= plain.compare);
            prop_assert_eq!(timer.read(Register::Value, now) as u32 as i32, (plain.compare - i128::from(now)) as i32);
        }
    }
}
