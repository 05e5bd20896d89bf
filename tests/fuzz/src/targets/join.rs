//! Messages of hosts that have the cluster's key to one that joins: as they come, or nearly right.

use crate::input::Input;
use abi::cluster::{
    BEAT, Beat, DESCRIPTION, Description, FAREWELL, FEATURES_MAX, Farewell, HOSTS_MAX, PROPOSE,
    PROTOCOL, Propose,
};
use model_membership::{Actions, Change, Event, Membership, Settings, Standing};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

const HOSTS: usize = 3;
const OWN: u8 = 1;

/// Remembers the number of the latest beat, so that answers can be right.
#[derive(Default)]
struct Owner {
    numbers: [u32; HOSTS],
    refuses: bool,
}

impl Actions for Owner {
    fn send(&mut self, host: u8, message: &[u8]) -> bool {
        assert!(message.len() <= abi::link::URGENT_MAX && host != OWN);
        if message[0] == BEAT && message[4..8] != [0; 4] {
            self.numbers[usize::from(host)] = u32::from(message[4]);
        }
        !self.refuses
    }

    fn changed(&mut self, _: Change) {}
}

fn description(life: u64) -> Description {
    Description {
        kind: DESCRIPTION,
        protocol: PROTOCOL,
        page_log2: 12,
        zva_log2: 6,
        version: 1.into(),
        clock_hz: 1000.into(),
        cache_lines: 4.into(),
        frame_bytes: 1514.into(),
        life: life.into(),
        features: [U64::ZERO; FEATURES_MAX],
    }
}

/// Makes the message that a byte says: bytes of the input, or one that is sound but for its values.
fn message(host: u8, owner: &Owner, input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.u8().unwrap_or(0);
    let small = |input: &mut Input<'_>| u64::from(input.u8().unwrap_or(0) % 8);
    match kind % 4 {
        0 => description(small(input)).as_bytes().to_vec(),
        1 => {
            let right = owner.numbers[usize::from(host) % HOSTS];
            let beat = Beat {
                kind: BEAT,
                with: kind >> 7,
                zeroes: [0; 2],
                number: u32::from(kind >> 4 & 7).into(),
                echo: right.into(),
                accepted: (small(input) << 8 | small(input)).into(),
                life: small(input).into(),
            };
            beat.as_bytes().to_vec()
        }
        2 => {
            let mut lives = [U64::ZERO; HOSTS_MAX];
            lives[0] = small(input).into();
            lives[1] = (1000 + small(input)).into();
            lives[2] = small(input).into();
            let propose = Propose {
                kind: PROPOSE,
                zeroes: [0; 7],
                id: (small(input) << 8 | u64::from(host)).into(),
                lives,
            };
            propose.as_bytes().to_vec()
        }
        _ if kind & 0x80 != 0 => {
            let farewell = Farewell {
                kind: FAREWELL,
                zeroes: [0; 7],
                life: small(input).into(),
            };
            farewell.as_bytes().to_vec()
        }
        _ => {
            let len = usize::from(input.u8().unwrap_or(0));
            input.bytes(len).to_vec()
        }
    }
}

/// Sessions, messages and times in any order. A member is always one that fits, and this host is in its membership.
pub fn join(data: &[u8]) {
    let settings = Settings {
        beat_ns: 10,
        stop_ns: 30,
        declare_ns: 50,
        ..Settings::new(OWN)
    };
    let Some(mut membership) = Membership::<HOSTS>::new(settings, description(1000)) else {
        return;
    };
    let (mut input, mut owner, mut now) = (Input(data), Owner::default(), 0);
    while let Some(kind) = input.u8() {
        let host = kind >> 2 & 3;
        match kind & 3 {
            0 => membership.step(now, Event::Up(host), &mut owner),
            1 if kind >> 6 == 0 => membership.step(now, Event::Down(host), &mut owner),
            1 => now += u64::from(kind >> 4),
            _ => {
                let message = message(host, &owner, &mut input);
                membership.step(now, Event::Message(host, &message), &mut owner);
            }
        }
        owner.refuses = kind == 0xff;
        membership.step(now, Event::Tick, &mut owner);
        let view = membership.view();
        assert_ne!(view.lives[usize::from(OWN)], 0);
        for host in (0..HOSTS as u8).filter(|host| *host != OWN) {
            let is_in = view.lives[usize::from(host)] != 0;
            assert!(!is_in || membership.standing(host) == Standing::Fit);
        }
        assert!(membership.deadline() <= now + 50);
    }
}
