//! Frames and cables against a switch.

use crate::input::Input;
use model_ethernet::{Limit, Mac, PortOptions, PortSet, Switch, Verdict};

const HZ: u64 = 1000;

/// Ports that come and go, and frames from them.
pub fn switch(data: &[u8]) {
    let mut input = Input(data);
    let (mut switch, mut now) = (Switch::new(HZ), 0);
    while let Some(step) = input.u8() {
        let Some(()) = one(step, &mut input, &mut switch, &mut now) else {
            return;
        };
        assert!(switch.learned() <= 512);
    }
}

fn one(step: u8, input: &mut Input<'_>, switch: &mut Switch, now: &mut u64) -> Option<()> {
    match step % 8 {
        0 => {
            let (own, learns) = (mac(input)?, input.u16()?);
            let limit = Limit {
                per_second: input.u8()?.into(),
                burst: input.u8()?.into(),
            };
            let options = PortOptions {
                mac: (step & 8 == 0).then_some(own),
                learns,
                bytes: (step & 16 == 0).then_some(limit),
                floods: (step & 32 == 0).then_some(limit),
            };
            let before = switch.ports();
            if let Ok(port) = switch.attach(options) {
                assert_eq!(switch.ports(), PortSet(before.0 | 1 << port));
            }
        }
        1 => switch.detach(input.u8()?),
        2 => *now += u64::from(input.u16()?) << (step >> 3),
        _ => {
            let (from, source, destination) = (input.u8()?, mac(input)?, mac(input)?);
            let bytes = input.u16()?.into();
            match switch.forward(from, source, destination, bytes, *now) {
                Verdict::To(to) => assert!(to != from && switch.ports().iter().any(|p| p == to)),
                Verdict::Flood(ports) => {
                    assert_eq!(ports.0 & !switch.ports().0, 0);
                    assert!(ports.iter().all(|port| port != from));
                }
                Verdict::Drop(_) => {}
            }
        }
    }
    Some(())
}

/// One of few addresses, so that they meet again.
fn mac(input: &mut Input<'_>) -> Option<Mac> {
    let byte = input.u8()?;
    Some(if byte == 0xff {
        [0xff; 6]
    } else {
        [byte >> 6, 0, 0, 0, 0, byte & 0x3f]
    })
}
