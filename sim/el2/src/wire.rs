//! What switches and the network card must do with frames: bring each at most once to whoever it is for, unchanged, and to
//! nobody else.

use machine_host::rng::Rng;
use std::collections::BTreeSet;

/// Bytes of destination, source, type and two of padding, behind which a frame has its number.
const HEAD: usize = 16;
/// A frame's bytes, at least and at most.
pub const SHORTEST: u64 = 64;
/// See [`SHORTEST`].
pub const LONGEST: u64 = 1512;
/// The last byte of an address that is nobody's, outside.
pub const OUTSIDE: u8 = 0x99;
const ETHERTYPE: [u8; 4] = [0x88, 0xb5, 0, 0];

/// A VM's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net {
    /// The switch that it is plugged into.
    pub switch: &'static str,
    /// That switch has a way out.
    pub has_uplink: bool,
}

/// The address of a VM, by number, or [`OUTSIDE`].
pub const fn address(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// The first 16 bytes of a frame, as words.
pub fn head(to: [u8; 6], from: [u8; 6]) -> [u64; 2] {
    let bytes = [&to[..], &from[..], &ETHERTYPE[..]].concat();
    let word = |part: &[u8]| {
        part.iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    [word(&bytes[..8]), word(&bytes[8..])]
}

/// Whoever gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Vm(usize),
    Outside,
}

#[derive(Debug, Default)]
struct Frame {
    /// `None`: it was never sent.
    bytes: Option<Vec<u8>>,
    from: Option<End>,
    /// The VM that it is for ran when it was sent, in that life: while that lasts, it is no other's.
    is_only_for: Option<(usize, u32)>,
    got: BTreeSet<End>,
}

/// All frames.
#[derive(Debug)]
pub struct Wire {
    nets: Vec<Option<Net>>,
    frames: Vec<Frame>,
    /// Frames that have arrived.
    pub arrived: u64,
}

impl Wire {
    /// The wires between VMs with these devices.
    pub fn new(nets: Vec<Option<Net>>) -> Self {
        Self {
            nets,
            frames: Vec::new(),
            arrived: 0,
        }
    }

    /// The number of the next frame.
    pub fn begin(&mut self) -> u64 {
        self.frames.push(Frame::default());
        self.frames.len() as u64 - 1
    }

    /// A VM sends a frame; `life` gives the number of a VM's life, if it is certain that it runs.
    pub fn send(&mut self, vm: usize, bytes: Vec<u8>, life: impl Fn(usize) -> Option<u32>) {
        self.note(End::Vm(vm), bytes, life);
    }

    fn note(&mut self, from: End, bytes: Vec<u8>, life: impl Fn(usize) -> Option<u32>) {
        let to = usize::from(bytes[5]);
        let is_here =
            bytes[..5] == address(0)[..5] && self.nets.get(to).is_some_and(Option::is_some);
        let number = number_of(&bytes);
        if let Some(frame) = self.frames.get_mut(number) {
            let life = is_here.then(|| life(to)).flatten();
            frame.is_only_for = life.map(|life| (to, life));
            (frame.bytes, frame.from) = (Some(bytes), Some(from));
        }
    }

    /// A frame of the world outside.
    pub fn make_outside(&mut self, rng: &mut Rng, life: impl Fn(usize) -> Option<u32>) -> Vec<u8> {
        let number = self.begin();
        let to = match rng.below(self.nets.len() as u64 + 1) as u8 {
            vm if usize::from(vm) < self.nets.len() => address(vm),
            _ => [0xff; 6],
        };
        let words = head(to, address(OUTSIDE));
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(number.to_le_bytes());
        let length = (SHORTEST + rng.below(LONGEST - SHORTEST)) as usize;
        while bytes.len() < length {
            bytes.push(rng.next() as u8);
        }
        self.note(End::Outside, bytes.clone(), life);
        bytes
    }

    /// The card was given a frame to send; `life` as for [`Self::send`].
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn got_outside(
        &mut self,
        bytes: &[u8],
        life: impl Fn(usize) -> Option<u32>,
    ) -> Result<(), String> {
        self.got(End::Outside, bytes, life)
    }

    /// A VM has got a frame; `life` as for [`Self::send`].
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn got_vm(
        &mut self,
        vm: usize,
        bytes: &[u8],
        life: impl Fn(usize) -> Option<u32>,
    ) -> Result<(), String> {
        self.got(End::Vm(vm), bytes, life)
    }

    fn got(
        &mut self,
        end: End,
        bytes: &[u8],
        life: impl Fn(usize) -> Option<u32>,
    ) -> Result<(), String> {
        let number = if bytes.len() < HEAD + 8 {
            usize::MAX
        } else {
            number_of(bytes)
        };
        let nets = &self.nets;
        let switches = |end: End| match end {
            End::Vm(vm) => nets.get(vm).copied().flatten(),
            End::Outside => None,
        };
        let frame = self.frames.get_mut(number);
        let (frame, from) = frame
            .and_then(|frame| frame.from.map(|from| (frame, from)))
            .ok_or_else(|| format!("{end:?} gets {} bytes that nobody sent", bytes.len()))?;
        let wrong = |what: &str| Err(format!("{end:?} gets frame {number} of {from:?}: {what}"));
        if frame.bytes.as_deref() != Some(bytes) {
            return wrong("it is not as it was sent");
        }
        if !frame.got.insert(end) {
            return wrong("it has it already");
        }
        if end == from {
            return wrong("it is its own");
        }
        let is_wired = match (from, end) {
            (End::Vm(_), End::Vm(_)) => match (switches(from), switches(end)) {
                (Some(one), Some(other)) => one.switch == other.switch,
                _ => false,
            },
            (End::Vm(_), End::Outside) | (End::Outside, End::Vm(_)) => {
                let net = switches(from).or(switches(end));
                net.is_some_and(|net| net.has_uplink)
            }
            (End::Outside, End::Outside) => false,
        };
        if !is_wired {
            return wrong("no wire goes there");
        }
        let source = match from {
            End::Vm(vm) => address(vm as u8),
            End::Outside => address(OUTSIDE),
        };
        if bytes[6..12] != source {
            return wrong("its source is another's");
        }
        let is_mine = |vm: usize| end == End::Vm(vm);
        let same_switch = |vm: usize| match (switches(from), switches(End::Vm(vm))) {
            (Some(one), Some(other)) => one.switch == other.switch,
            (None, Some(net)) => net.has_uplink,
            _ => false,
        };
        // A frame for a VM that has ended while it was on its way is for all, as one for an address that nobody has.
        let is_anothers = |(vm, its)| life(vm) == Some(its) && same_switch(vm) && !is_mine(vm);
        if frame.is_only_for.is_some_and(is_anothers) {
            return wrong("it is for another VM");
        }
        self.arrived += 1;
        Ok(())
    }
}

fn number_of(bytes: &[u8]) -> usize {
    let number = bytes
        .get(HEAD..HEAD + 8)
        .and_then(|part| part.try_into().ok());
    number.map_or(usize::MAX, |part| u64::from_le_bytes(part) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: Net = Net {
        switch: "lan",
        has_uplink: true,
    };

    /// All are in their first life.
    const RUNS: fn(usize) -> Option<u32> = |_| Some(1);

    /// A frame of 64 bytes to `to`, from VM `from`.
    fn frame(wire: &mut Wire, from: u8, to: [u8; 6]) -> Vec<u8> {
        let number = wire.begin();
        let words = head(to, address(from));
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(number.to_le_bytes());
        bytes.resize(64, 7);
        wire.send(from.into(), bytes.clone(), RUNS);
        bytes
    }

    #[test]
    fn a_frame_comes_once_as_it_was_to_whoever_it_is_for() {
        let apart = Net {
            switch: "dmz",
            has_uplink: false,
        };
        let mut wire = Wire::new(vec![Some(LAN), Some(LAN), Some(LAN), Some(apart), None]);
        let to_one = frame(&mut wire, 0, address(1));
        let mut changed = to_one.clone();
        changed[40] = 8;
        assert!(wire.got_vm(1, &changed, RUNS).is_err());
        assert!(wire.got_vm(1, &to_one, RUNS).is_ok());
        assert!(wire.got_vm(1, &to_one, RUNS).is_err(), "twice");
        assert!(wire.got_vm(2, &to_one, RUNS).is_err(), "another's");
        assert!(
            wire.got_outside(&to_one, RUNS).is_err(),
            "another's, outside"
        );
        let to_all = frame(&mut wire, 0, [0xff; 6]);
        assert!(wire.got_vm(2, &to_all, RUNS).is_ok() && wire.got_outside(&to_all, RUNS).is_ok());
        assert!(wire.got_vm(0, &to_all, RUNS).is_err(), "its own");
        assert!(wire.got_vm(3, &to_all, RUNS).is_err(), "another switch");
        assert!(wire.got_vm(4, &to_all, RUNS).is_err(), "no device");
        let mut lies = frame(&mut wire, 0, [0xff; 6]);
        lies[11] = 0x77;
        wire.send(0, lies.clone(), RUNS);
        assert!(
            wire.got_vm(1, &lies, RUNS).is_err(),
            "from an address that is not its"
        );
    }

    #[test]
    fn a_frame_for_a_vm_that_has_ended_since_is_for_all() {
        let mut wire = Wire::new(vec![Some(LAN); 3]);
        let to_one = frame(&mut wire, 0, address(1));
        assert!(wire.got_vm(2, &to_one, RUNS).is_err(), "another's");
        let to_one = frame(&mut wire, 0, address(1));
        assert!(wire.got_vm(2, &to_one, |_| None).is_ok());
        let to_one = frame(&mut wire, 0, address(1));
        let again = |vm| Some(1 + u32::from(vm == 1));
        assert!(wire.got_vm(2, &to_one, again).is_ok());
    }
}
