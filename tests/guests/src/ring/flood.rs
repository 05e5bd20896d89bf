//! A flood of frames that a host of a cluster must take for a member's until it has looked at them (`abi/src/link.rs`).

use machine_bare::cpu;
use machine_bare::machine::Machine;
use machine_bare::timer;

use super::{Host, Words};

const VERSION: u8 = 2;
const HELLO: u8 = 1;
const SEALED: u8 = 3;
/// Who is flooded, and in whose name.
const VICTIM: u8 = 1;
const MEMBER: u8 = 2;

/// What says whose a frame is.
#[derive(Clone, Copy, Default)]
struct Seen {
    session: u32,
    stamp: u64,
    counter: u64,
}

/// Floods for ever.
pub fn run(machine: &Machine, host: &mut Host, what: &str) -> ! {
    let kind = match what {
        "hellos" => HELLO,
        "sealed" | "copies" => SEALED,
        _ => 0,
    };
    let [bytes, busy, from] =
        [("length", 60), ("busy", 0), ("from", 0)].map(|(key, usual)| machine.number(key, usual));
    let mut seen = Seen::default();
    let mut counter = 0;
    loop {
        while host.overhear(&mut seen) {}
        if timer::now() < from || (kind == SEALED && seen.counter == 0) {
            continue;
        }
        cpu::spin(busy);
        // Ahead of the member's, so that none is taken for a replayed one; or as its latest frame begins.
        counter = counter.max(seen.counter + (1 << 20)) + 1;
        let head = if what == "copies" {
            seen
        } else {
            Seen { counter, ..seen }
        };
        host.put(forged(kind, head), bytes);
    }
}

/// The first words of a frame from the member to the victim.
fn forged(kind: u8, seen: Seen) -> Words {
    let [a, b, c, d] = seen.session.to_le_bytes();
    [
        u64::from_le_bytes([0x52, 0x54, 0, 0, 0, VICTIM, 0x52, 0x54]),
        u64::from_le_bytes([0, 0, 0, 0, 0x88, 0xb5, VERSION, kind]),
        u64::from_le_bytes([MEMBER, VICTIM, 0, 0, 0, 0, a, b]),
        u64::from_le_bytes([c, d, 0, 0, 0, 0, 0, 0]) | seen.stamp << 16,
        seen.stamp >> 48 | seen.counter << 16,
    ]
}

impl Host {
    /// Learns from a frame of the member to the victim.
    fn overhear(&mut self, seen: &mut Seen) -> bool {
        let Some((words, ..)) = self.receive() else {
            return false;
        };
        let [.., kind] = words[1].to_le_bytes();
        let [from, to, .., a, b] = words[2].to_le_bytes();
        let [c, d, ..] = words[3].to_le_bytes();
        if (kind, from, to) == (SEALED, MEMBER, VICTIM) {
            *seen = Seen {
                session: u32::from_le_bytes([a, b, c, d]),
                stamp: words[3] >> 16 | words[4] << 48,
                // Its last bytes, which are zeroes, are in the next word.
                counter: words[4] >> 16,
            };
        }
        true
    }
}
