//! Outcomes of scripts on a single machine: each instruction is done at once, and invalidations too.

use super::{Memory, Op, Translations, WORDS, Word, perform};
use abi::coherence::Access;
use std::collections::HashSet;

/// What the vCPUs have loaded, and the memory at the end.
pub type Outcome = (Vec<Vec<u8>>, Vec<[u8; WORDS]>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Single {
    at: Vec<usize>,
    registers: Vec<Vec<u8>>,
    tlbs: Vec<Translations>,
    memory: Plain,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Plain(Vec<[u8; WORDS]>);

impl Memory for Plain {
    fn load(&mut self, word: Word) -> Result<u8, (u32, Access)> {
        Ok(self.0[word.0 as usize][word.1])
    }

    fn may_store(&mut self, _: u32, _: Access) -> Result<(), (u32, Access)> {
        Ok(())
    }

    fn store(&mut self, word: Word, value: u8) {
        self.0[word.0 as usize][word.1] = value;
    }
}

/// Returns all outcomes that sequential consistency allows.
pub fn outcomes(scripts: &[Vec<Op>], initial: &[[u8; WORDS]]) -> HashSet<Outcome> {
    let first = Single {
        at: vec![0; scripts.len()],
        registers: vec![Vec::new(); scripts.len()],
        tlbs: vec![Vec::new(); scripts.len()],
        memory: Plain(initial.to_vec()),
    };
    let mut seen = HashSet::from([first.clone()]);
    let mut waiting = vec![first];
    let mut outcomes = HashSet::new();
    while let Some(state) = waiting.pop() {
        let mut is_over = true;
        for (n, script) in scripts.iter().enumerate() {
            let Some(op) = script.get(state.at[n]) else {
                continue;
            };
            is_over = false;
            let mut next = state.clone();
            next.at[n] += 1;
            if let Op::Tlbi(entry) = op {
                for tlb in &mut next.tlbs {
                    tlb.retain(|(known, _)| known != entry);
                }
            } else {
                let (tlb, registers) = (&mut next.tlbs[n], &mut next.registers[n]);
                perform(*op, &mut next.memory, tlb, registers).unwrap();
            }
            if seen.insert(next.clone()) {
                waiting.push(next);
            }
        }
        if is_over {
            outcomes.insert((state.registers, state.memory.0));
        }
    }
    outcomes
}
