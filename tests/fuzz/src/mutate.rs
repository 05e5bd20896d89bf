//! Changes seeds into inputs, the same way every time for the same number.

/// Largest input made.
const MAX_INPUT: usize = 1 << 16;
/// Numbers that tend to stand at an edge.
const EDGES: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0x1000,
    0x7fff,
    0xffff,
    0x4000_0000,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX,
];

/// A source of inputs: the seeds, and what it made of them.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
    pool: Vec<Vec<u8>>,
}

impl Mutator {
    /// Inputs made from `seeds`, determined by `seed`.
    pub fn new(seed: u64, seeds: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut pool: Vec<_> = seeds.into_iter().collect();
        pool.push(vec![0; 64]);
        Self {
            state: seed ^ 0x9e37_79b9_7f4a_7c15 | 1,
            pool,
        }
    }

    /// The next input.
    pub fn input(&mut self) -> Vec<u8> {
        let from = self.below(self.pool.len());
        let mut input = self.pool[from].clone();
        // Mostly few changes, so that the input still gets somewhere.
        for _ in 0..1 << self.below(5) {
            self.change(&mut input);
        }
        input.truncate(MAX_INPUT);
        input
    }

    /// xorshift64* (Vigna 2016).
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, or zero.
    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len());
        match self.below(8) {
            0 => self.at(input, at, |byte, random| byte ^ 1 << (random % 8)),
            1 => self.at(input, at, |_, random| random as u8),
            2 => self.at(input, at, |byte, random| {
                byte.wrapping_add(random as u8 % 17).wrapping_sub(8)
            }),
            3 => {
                let number = EDGES[self.below(EDGES.len())].to_le_bytes();
                let width = 1 << self.below(4);
                for (to, from) in input[at..].iter_mut().zip(&number[..width]) {
                    *to = *from;
                }
            }
            4 => {
                let end = at + self.below((input.len() - at).min(64));
                input.drain(at..end);
            }
            5 => {
                let other = self.below(self.pool.len());
                let from = self.below(self.pool[other].len());
                let len = self.below((self.pool[other].len() - from).min(256));
                let piece = self.pool[other][from..from + len].to_vec();
                input.splice(at..at, piece);
            }
            6 => {
                let from = self.below(input.len());
                let len = self.below((input.len() - from.max(at)).min(64));
                input.copy_within(from..from + len, at);
            }
            _ => {
                let more = self.below(16);
                for _ in 0..more {
                    let byte = self.next() as u8;
                    input.push(byte);
                }
            }
        }
    }

    fn at(&mut self, input: &mut [u8], at: usize, change: impl Fn(u8, u64) -> u8) {
        let random = self.next() >> 8;
        if let Some(byte) = input.get_mut(at) {
            *byte = change(*byte, random);
        }
    }
}
