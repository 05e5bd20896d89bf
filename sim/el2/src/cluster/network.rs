//! The network between hosts, and what goes wrong with it and with them.

use super::MS;
use super::world::World;
use abi::link::ETHERTYPE;
use machine_host::rng::Rng;

/// How much later a frame arrives that another one overtakes, and the second copy of one, at most: such a copy may come
/// when its session has long ended.
const LATE_NS: [u64; 2] = [MS, 3_000 * MS];
/// How long a host is away or stands still, at most.
const AWAY_NS: u64 = 3_500 * MS;
/// Bytes of the addresses of a frame, which are the switch's affair.
const ADDRESSES: usize = 12;
/// Bytes of a stranger's frame behind its head.
const STRANGE_BYTES: usize = 46;

/// A network.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    /// The shortest time from card to card, in nanoseconds.
    pub latency_ns: u64,
    /// Frames that are lost, in percent; and one in so many that arrives twice, and that arrives with a wrong bit.
    loss_percent: u64,
    repeats: u64,
    corrupts: u64,
    late_ns: [u64; 2],
    /// From whom nothing arrives at whom.
    is_cut: Vec<Vec<bool>>,
}

/// A copy of a frame on its way.
pub struct Sent {
    pub frame: Vec<u8>,
    /// It is not what was sent.
    pub is_damaged: bool,
    /// It comes a second time.
    pub is_repeat: bool,
}

impl Network {
    /// A network of so many hosts.
    pub fn new(rng: &mut Rng, hosts: usize) -> Self {
        Self {
            rng: Rng::new(rng.next()),
            latency_ns: [100_000, 300_000, MS, 2 * MS][rng.below(4) as usize],
            loss_percent: [0, 1, 5, 20][rng.below(4) as usize],
            repeats: 20,
            corrupts: 50,
            late_ns: LATE_NS,
            is_cut: vec![vec![false; hosts]; hosts],
        }
    }

    /// Copies of a frame that arrive, each so many nanoseconds after it left.
    pub fn copies(&mut self, from: usize, to: usize, frame: &[u8]) -> Vec<(u64, Sent)> {
        let repeats = u64::from(self.rng.below(self.repeats) == 0);
        let mut copies = Vec::new();
        for copy in 0..=repeats {
            if self.is_cut[from][to] || self.rng.below(100) < self.loss_percent {
                continue;
            }
            let mut frame = frame.to_vec();
            let is_damaged = self.rng.below(self.corrupts) == 0;
            if is_damaged {
                let at = self.rng.below(frame.len() as u64) as usize;
                frame[at.max(ADDRESSES)] ^= 1 << self.rng.below(8);
            }
            let late = self.rng.below(self.late_ns[copy as usize]);
            let sent = Sent {
                frame,
                is_damaged,
                is_repeat: copy > 0,
            };
            copies.push((self.latency_ns + late, sent));
        }
        copies
    }

    /// All hosts reach each other.
    pub fn mend(&mut self) {
        self.is_cut.iter_mut().for_each(|row| row.fill(false));
    }

    /// From now on every frame arrives, once, as it was and soon.
    pub fn calm(&mut self) {
        (self.loss_percent, self.repeats, self.corrupts) = (0, u64::MAX, u64::MAX);
        self.late_ns = [MS; 2];
    }
}

/// A frame of somebody without the key: bytes that mean nothing, or made of a frame that went to that host.
pub fn strange(rng: &mut Rng, to: &[u8], heard: &[u8]) -> Vec<u8> {
    let mut frame = heard.to_vec();
    let after = ADDRESSES + ETHERTYPE.len();
    match (rng.below(8), frame.len().checked_sub(after)) {
        (0, Some(1..)) => {}
        (1, Some(rest @ 1..)) => frame[after + rng.below(rest as u64) as usize] ^= 1,
        (2, Some(rest @ 1..)) => frame.truncate(after + rng.below(rest as u64) as usize),
        _ => {
            let mut bytes = [0; STRANGE_BYTES];
            bytes.fill_with(|| rng.next() as u8);
            frame = [to, &bytes[..ADDRESSES - to.len()], &ETHERTYPE, &bytes].concat();
        }
    }
    frame
}

/// Something goes wrong, or is mended.
pub fn fault(rng: &mut Rng, network: &mut Network, world: &mut World) {
    let hosts = network.is_cut.len();
    let [a, b] = [rng.below(hosts as u64), rng.below(hosts as u64)].map(|host| host as usize);
    let until = world.now + rng.below(AWAY_NS);
    match rng.below(6) {
        0 => network.is_cut[a][b] ^= true,
        1 => (network.is_cut[a][b], network.is_cut[b][a]) = (true, true),
        2 => network.mend(),
        3 => {
            network.is_cut[a].fill(true);
            network.is_cut.iter_mut().for_each(|row| row[a] = true);
        }
        4 => world.crash(a, until),
        _ => world.stall(a, until),
    }
}
