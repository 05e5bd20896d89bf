//! Search of all states that a model can reach, breadth first or depth first, for the tests of model crates.
//!
//! A [`State`] says what can happen next, and panics where something must not be. [`explore`] then prints the shortest
//! way there. States are told apart by a fingerprint of 128 bits: among 10^9 states, two have the same with a probability
//! of 10^-21.
//!
//! What is too large to be searched is drawn by seed, with [`random`].
#![forbid(unsafe_code)]

pub mod random;

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// State of a model, or of several with what is between them.
pub trait State: Clone {
    /// What happened; kept for each state, so that a failure can be explained.
    type Label: Clone + Debug;

    /// Returns the fingerprint of all that decides about the future.
    fn fingerprint(&self) -> u128;

    /// Returns all states that can follow. Panics if one of them must not be.
    fn successors(&self) -> Vec<(Self::Label, Self)>;

    /// Checks the state by itself. Panics if it must not be.
    fn check(&self) {}
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// States.
    pub states: usize,
    /// Steps from one state to another.
    pub steps: usize,
    /// Whether no state can come again, so that every way ends.
    pub terminates: bool,
}

/// Looks at every state that can be reached from `first`.
///
/// # Panics
/// A state must not be, or there are more than `states_max`.
pub fn explore<S: State>(first: S, states_max: usize) -> Found {
    look(first, states_max, VecDeque::pop_front)
}

/// As [`explore`], depth first: needs memory for the states of one way only, and a way that it prints is not the shortest.
///
/// # Panics
/// A state must not be, or there are more than `states_max`.
pub fn explore_deep<S: State>(first: S, states_max: usize) -> Found {
    look(first, states_max, VecDeque::pop_back)
}

/// States that were reached and not looked at, with their numbers.
type Reached<S> = VecDeque<(usize, S)>;

fn look<S: State>(
    first: S,
    states_max: usize,
    pop: fn(&mut Reached<S>) -> Option<(usize, S)>,
) -> Found {
    let mut numbers = HashMap::from([(first.fingerprint(), 0_usize)]);
    // How each state was reached first, by its number, and what follows it.
    let mut origins: Vec<Option<(usize, S::Label)>> = vec![None];
    let mut edges: Vec<(usize, usize)> = Vec::new();
    let mut reached = Reached::from([(0, first)]);
    while let Some((number, state)) = pop(&mut reached) {
        let looked = catch_unwind(AssertUnwindSafe(|| {
            state.check();
            state.successors()
        }));
        let successors = looked.unwrap_or_else(|panic| {
            print_way(&origins, number);
            resume_unwind(panic)
        });
        for (label, next) in successors {
            let count = numbers.len();
            let to = *numbers.entry(next.fingerprint()).or_insert(count);
            if to == count {
                assert!(count < states_max, "more than {states_max} states");
                origins.push(Some((number, label)));
                reached.push_back((count, next));
            }
            edges.push((number, to));
        }
    }
    Found {
        states: origins.len(),
        steps: edges.len(),
        terminates: is_acyclic(origins.len(), edges),
    }
}

fn print_way<L: Debug>(origins: &[Option<(usize, L)>], mut at: usize) {
    let mut way = Vec::new();
    while let Some((before, label)) = &origins[at] {
        way.push(label);
        at = *before;
    }
    println!("the way to the state that fails, in {} steps:", way.len());
    for label in way.into_iter().rev() {
        println!("  {label:?}");
    }
}

/// Takes states away whose predecessors are all gone, as long as there are any.
fn is_acyclic(states: usize, mut edges: Vec<(usize, usize)>) -> bool {
    edges.sort_unstable();
    let mut predecessors = vec![0_u32; states];
    for (_, to) in &edges {
        predecessors[*to] += 1;
    }
    let mut free: Vec<usize> = (0..states).filter(|n| predecessors[*n] == 0).collect();
    let mut gone = 0;
    while let Some(state) = free.pop() {
        gone += 1;
        let begin = edges.partition_point(|(from, _)| *from < state);
        for (_, to) in edges[begin..].iter().take_while(|(from, _)| *from == state) {
            predecessors[*to] -= 1;
            if predecessors[*to] == 0 {
                free.push(*to);
            }
        }
    }
    gone == states
}

/// Hasher with 128 bits for [`State::fingerprint`], quicker than the standard one.
#[derive(Clone, Debug)]
pub struct Fingerprint([u64; 2]);

impl Default for Fingerprint {
    fn default() -> Self {
        Self([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344])
    }
}

impl Fingerprint {
    /// Returns the fingerprint of a value.
    pub fn of(value: &impl Hash) -> u128 {
        let mut hasher = Self::default();
        value.hash(&mut hasher);
        let low = u128::from(hasher.finish());
        hasher.mix(1);
        low << 64 | u128::from(hasher.finish())
    }

    fn mix(&mut self, word: u64) {
        let [a, b] = self.0;
        let wide = u128::from(a ^ word) * 0x9e37_79b9_7f4a_7c15;
        let other = u128::from(b ^ word.rotate_left(32)) * 0xd6e8_feb8_6659_fd93;
        let fold = |wide: u128| wide as u64 ^ (wide >> 64) as u64;
        // Each half keeps what a product with few bits would lose.
        self.0 = [
            fold(wide) ^ b.rotate_left(23),
            fold(other).wrapping_add(a.rotate_left(41)),
        ];
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn write_u8(&mut self, n: u8) {
        self.mix(n.into());
    }

    fn write_u16(&mut self, n: u16) {
        self.mix(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }

    fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.mix(0);
        last.mix(2);
        last.0[0] ^ last.0[1].rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fingerprint, Found, State, explore, explore_deep};

    /// A counter that goes up to a limit, by one or two, and perhaps back to zero.
    #[derive(Clone)]
    struct Counter {
        at: u32,
        most: u32,
        returns: bool,
    }

    impl State for Counter {
        type Label = u32;

        fn fingerprint(&self) -> u128 {
            Fingerprint::of(&self.at)
        }

        fn successors(&self) -> Vec<(u32, Self)> {
            let next = [self.at + 1, self.at + 2].into_iter();
            let mut next: Vec<u32> = next.filter(|n| *n < self.most).collect();
            if self.returns && self.at == self.most - 1 {
                next.push(0);
            }
            next.into_iter()
                .map(|at| (at, Self { at, ..self.clone() }))
                .collect()
        }

        fn check(&self) {
            assert!(self.at < 1000, "a thousand");
        }
    }

    fn counter(most: u32, returns: bool) -> Found {
        let first = Counter {
            at: 0,
            most,
            returns,
        };
        explore(first, 10_000)
    }

    #[test]
    fn all_states_are_counted_and_cycles_found() {
        let found = counter(100, false);
        assert_eq!((found.states, found.steps), (100, 99 + 98));
        assert!(found.terminates);
        let first = Counter {
            at: 0,
            most: 100,
            returns: false,
        };
        assert_eq!(explore_deep(first, 10_000), found);
        assert!(!counter(100, true).terminates);
    }

    #[test]
    #[should_panic(expected = "a thousand")]
    fn failures_are_passed_on() {
        counter(2000, false);
    }
}
