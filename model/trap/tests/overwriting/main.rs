//! The loops of real kernels are recognised, from their first store on and no other way; what is
//! recognised does overwrite a page, says an interpreter of the few instructions.
#![allow(clippy::unwrap_used)]

mod kernels;

use kernels::{FUNCTIONS, Function};
use model_trap::overwrite::{
    CLEAR_WORDS, COPY_BEFORE, COPY_WORDS, Overwrite, Store, is_clear_loop, is_copy_loop,
};
use proptest::prelude::*;

const PAGE: u64 = 4096;
/// Somewhere in a kernel's linear map.
const TARGET: u64 = 0xffff_0000_0123_4000;
const SOURCE: u64 = 0xffff_0000_0777_7000;
/// EL1h, interrupts open, N and C set.
const PSTATE: u64 = 0xa000_0005;
/// Blocks of 64 bytes.
const DCZID: u64 = 4;

/// What is found where the store is word `pc` of this code.
fn look(store: &Store, code: &[u32], pc: usize) -> Option<Overwrite> {
    let kind = store.candidate()?;
    let found = match kind {
        Overwrite::Clear => code
            .get(pc..pc + CLEAR_WORDS)
            .is_some_and(|words| is_clear_loop(words.try_into().unwrap())),
        Overwrite::Copy => pc
            .checked_sub(COPY_BEFORE)
            .and_then(|from| code.get(from..from + COPY_WORDS))
            .is_some_and(|words| is_copy_loop(words.try_into().unwrap())),
    };
    found.then_some(kind)
}

impl Function {
    /// The state at the first store of the loop.
    fn state(&self) -> Store {
        let (x0, x1) = match self.kind {
            Overwrite::Clear => (TARGET, 64),
            Overwrite::Copy => (TARGET + 256, SOURCE + 128),
        };
        Store {
            va: TARGET,
            pstate: PSTATE,
            x0,
            x1,
            dczid: DCZID,
        }
    }

    /// The words that must be there.
    fn needed(&self) -> std::ops::Range<usize> {
        match self.kind {
            Overwrite::Clear => self.store..self.store + 4,
            Overwrite::Copy if self.words[self.store - 1] == 0xd503_201f => {
                self.store - 2..self.store + 27
            }
            Overwrite::Copy => self.store - 1..self.store + 27,
        }
    }

    fn find(&self, state: &Store) -> Option<Overwrite> {
        look(state, self.words, self.store)
    }
}

/// Goes on from word `pc`, and tells which blocks of 16 bytes of [`TARGET`] it and what follows
/// write until a word that none of the loops has, or for long enough.
fn run(store: &Store, code: &[u32], mut pc: usize) -> [bool; 256] {
    let mut written = [false; 256];
    let mut write = |from: u64, len: u64| {
        for at in (from..from + len).step_by(16) {
            if at & !0xfff == TARGET {
                written[(at % PAGE) as usize / 16] = true;
            }
        }
    };
    let (mut x0, mut x1) = (store.x0, store.x1);
    let mut z = store.pstate >> 30 & 1 != 0;
    for _ in 0..10_000 {
        let Some(word) = code.get(pc) else { break };
        pc += 1;
        match *word {
            0xd50b_7420 => {
                let block = 4 << (store.dczid & 15);
                write(x0 / block * block, block);
            }
            0x8b01_0000 => x0 = x0.wrapping_add(x1),
            0x9102_0000 => x0 = x0.wrapping_add(128),
            0x9102_0021 => x1 = x1.wrapping_add(128),
            0xf240_2c1f => z = x0.is_multiple_of(PAGE),
            // NOP; PRFM; LDP of pairs that are not x0 or x1.
            0xd503_201f | 0xf980_c021 => {}
            ldp if ldp & 0xffc0_03e0 == 0xa940_0020 => {}
            // B.NE
            b_ne if b_ne & 0xff00_001f == 0x5400_0001 => {
                if !z {
                    let words = (b_ne << 8) as i32 >> 13;
                    pc = (pc - 1).wrapping_add_signed(words as isize);
                }
            }
            // STNP, base x0
            stnp if stnp & 0xffc0_03e0 == 0xa800_0000 => {
                let offset = i64::from((stnp << 10) as i32 >> 25) * 8;
                write(x0.wrapping_add_signed(offset), 16);
            }
            _ => break,
        }
    }
    written
}

#[test]
fn loops_of_real_kernels() {
    for function in &FUNCTIONS {
        let (state, name) = (function.state(), function.name);
        assert_eq!(function.find(&state), Some(function.kind), "{name}");
        let written = run(&state, function.words, function.store);
        assert_eq!(written, [true; 256], "{name}");
        let el1t = with(state, |s| s.pstate = 0x4);
        assert_eq!(function.find(&el1t), Some(function.kind), "{name}");
        // Only from the first store on.
        for pc in (0..function.words.len()).filter(|pc| *pc != function.store) {
            assert_eq!(look(&state, function.words, pc), None, "{name}, {pc}");
        }
    }
    // As 6.1 patches itself on a CPU that does not prefetch.
    let old = &FUNCTIONS[3];
    let mut words = old.words.to_vec();
    words[15] = 0xf980_c021;
    let found = look(&old.state(), &words, old.store);
    assert_eq!(found, Some(Overwrite::Copy));
}

#[test]
fn each_bit_of_each_word_counts() {
    for function in &FUNCTIONS {
        let needed = function.needed();
        for word in 0..function.words.len() {
            for bit in 0..32 {
                let mut words = function.words.to_vec();
                words[word] ^= 1 << bit;
                let found = look(&function.state(), &words, function.store);
                let expected = (!needed.contains(&word)).then_some(function.kind);
                assert_eq!(found, expected, "{}, word {word}, bit {bit}", function.name);
            }
        }
    }
}

fn with(mut state: Store, change: impl FnOnce(&mut Store)) -> Store {
    change(&mut state);
    state
}

/// What is wrong with a state, and what makes it so.
type Change = (&'static str, fn(&mut Store));

#[test]
fn the_state_counts() {
    let changes: [Change; 11] = [
        ("EL0", |s| s.pstate = 0),
        ("AArch32", |s| s.pstate = 0x14),
        ("EL2", |s| s.pstate = 0x9),
        ("inside the page", |s| (s.va, s.x0) = (s.va + 64, s.x0 + 64)),
        ("another store", |s| s.va += 64),
        ("another page", |s| s.va += PAGE),
        ("another target", |s| s.x0 += 64),
        ("a target in another page", |s| s.x0 += PAGE),
        ("no stride, no source", |s| s.x1 = 0),
        ("twice the stride, a source inside a page", |s| s.x1 += 64),
        ("another stride, the source itself", |s| {
            (s.dczid, s.x1) = (5, if s.x1 == 64 { 64 } else { TARGET + 128 });
        }),
    ];
    for function in &FUNCTIONS {
        for (what, change) in changes {
            let state = with(function.state(), change);
            assert_eq!(function.find(&state), None, "{}: {what}", function.name);
        }
    }
    // The branch would not be taken.
    let last = with(FUNCTIONS[4].state(), |s| s.pstate |= 1 << 30);
    assert_eq!(FUNCTIONS[4].find(&last), None);
}

/// `memset` of 6.12 clears blocks until a count in x2 is used up.
#[test]
fn a_lone_dc_zva_proves_nothing() {
    let memset = [
        0xcb05_0042, // sub x2, x2, x5
        0xd50b_7428, // dc zva, x8
        0x8b05_0108, // add x8, x8, x5
        0xeb05_0042, // subs x2, x2, x5
        0x54ff_ffaa, // b.ge
        0xea06_0042, // ands x2, x2, x6
        0x54ff_f701, // b.ne
    ];
    let state = FUNCTIONS[0].state();
    assert_eq!(look(&state, &memset, 1), None);
    let alone = [0xd50b_7420, 0xd65f_03c0, 0, 0];
    assert_eq!(look(&state, &alone, 0), None);
}

/// A function, entered anywhere in any plausible state, with some words exchanged.
fn scene() -> impl Strategy<Value = (Store, Vec<u32>, usize)> {
    let x0 = prop_oneof![
        Just(TARGET),
        Just(TARGET + 256),
        Just(TARGET + 128),
        (0..9000_u64).prop_map(|n| TARGET + n)
    ];
    let x1 = prop_oneof![
        Just(64_u64),
        Just(SOURCE + 128),
        Just(TARGET + 128),
        any::<u64>()
    ];
    let swaps = prop::collection::vec((0..44_usize, 0..44_usize), 0..2);
    let entry = prop_oneof![Just(None), (0..44_usize).prop_map(Some)];
    let which = (0..FUNCTIONS.len(), entry);
    (which, x0, x1, any::<[bool; 3]>(), swaps).prop_map(|((n, entry), x0, x1, bits, swaps)| {
        let function = &FUNCTIONS[n];
        let mut words = function.words.to_vec();
        for (a, b) in swaps {
            let len = words.len();
            words[a % len] = function.words[b % len];
        }
        let entry = entry.unwrap_or(function.store) % words.len();
        let state = Store {
            va: if bits[0] { x0 } else { x0.wrapping_sub(256) },
            pstate: PSTATE | u64::from(bits[1]) << 30,
            x0,
            x1,
            dczid: DCZID + u64::from(bits[2]),
        };
        (state, words, entry)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    /// Whatever is recognised overwrites the page, all of it.
    #[test]
    fn what_is_recognised_is_overwritten((state, words, pc) in scene()) {
        if look(&state, &words, pc).is_some() {
            prop_assert_eq!(run(&state, &words, pc), [true; 256]);
        }
    }

    /// Any state is taken, and nothing but loops is found.
    #[test]
    fn any_state_is_safe(va: u64, pstate: u64, x0: u64, x1: u64, dczid: u64, word: u32) {
        for va in [va, va & !0xfff] {
            let state = Store { va, pstate, x0, x1, dczid };
            prop_assert_eq!(look(&state, &[word; 64], 32), None);
        }
    }
}
