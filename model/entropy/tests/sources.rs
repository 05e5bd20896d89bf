//! What makes a generator, and what does not.
#![allow(clippy::unwrap_used, reason = "a test")]

use model_entropy::{Generator, Pool, Source, ask_firmware, is_sound};
use std::collections::BTreeSet;

const TREE: [u64; 4] = [0x0123, 0x4567, 0x89ab, 0xcdef];
const FIRMWARE: [u64; 3] = [0x1111_2222, 0x3333_4444, 0x5555_6666];
const CPU: [u64; 4] = [11, 12, 13, 14];

/// What a machine with these sources gives first.
fn first(given: &[(Source, &[u64])]) -> Option<[u64; 4]> {
    let mut pool = Pool::default();
    for (source, words) in given {
        pool.add(*source, words);
    }
    pool.generator().map(|mut generator| generator.words())
}

#[test]
fn each_source_is_enough_and_none_is_not() {
    let all: [(Source, &[u64]); 3] = [
        (Source::Tree, &TREE),
        (Source::Firmware, &FIRMWARE),
        (Source::Cpu, &CPU),
    ];
    let mut seen = BTreeSet::new();
    for mask in 0..8 {
        let there = all.iter().filter(|(source, _)| mask & *source as u8 != 0);
        let there: Vec<_> = there.copied().collect();
        let found = first(&there);
        assert_eq!(found.is_some(), mask != 0, "{mask}");
        // Each source makes a difference, with whatever others there are.
        assert!(found.is_none_or(|words| seen.insert(words)), "{mask}");
    }
}

#[test]
fn broken_sources_do_not_count() {
    let broken: [&[u64]; 8] = [
        &[],
        &[0x1234_5678],
        &[0, 0, 0, 0],
        &[u64::MAX; 4],
        &[7, 7, 7, 7],
        &[7, 8, 7, 8],
        &[7, 8, 0],
        &[u64::MAX, 7, 8],
    ];
    for words in broken {
        assert!(!is_sound(words), "{words:?}");
        for source in Source::ALL {
            let mut pool = Pool::default();
            assert!(!pool.add(source, words));
            pool.stir(42);
            assert!(!pool.counts(source));
            assert!(pool.generator().is_none(), "{words:?}");
        }
        // It is mixed in all the same, and does no harm.
        let mixed = first(&[(Source::Cpu, words), (Source::Tree, &TREE)]);
        assert!(mixed.is_some() && mixed != first(&[(Source::Tree, &TREE)]));
    }
    assert!(is_sound(&[7, 8]));
}

#[test]
fn what_is_mixed_in_is_told_apart() {
    let stirred = |value| {
        let mut pool = Pool::default();
        pool.add(Source::Tree, &TREE);
        pool.stir(value);
        pool.generator().unwrap().words::<2>()
    };
    assert_ne!(stirred(1), stirred(2));
    let [head @ .., last] = TREE;
    let parts = [(Source::Tree, &head[..]), (Source::Tree, &[last][..])];
    assert_ne!(first(&parts), first(&[(Source::Tree, &TREE)]));
}

fn generator() -> Generator {
    let mut pool = Pool::default();
    assert!(pool.add(Source::Tree, &TREE));
    pool.generator().unwrap()
}

#[test]
fn nothing_comes_twice() {
    let (mut root, mut seen) = (generator(), BTreeSet::new());
    let mut forks: Vec<_> = (0..8).map(|_| root.fork()).collect();
    forks.push(root);
    for _ in 0..100 {
        for own in &mut forks {
            let mut bytes = [0; 96];
            own.fill(&mut bytes);
            for word in bytes.chunks(8) {
                assert!(seen.insert(word.to_vec()), "{word:?}");
            }
            assert!(seen.insert(own.words::<1>()[0].to_le_bytes().to_vec()));
        }
    }
}

/// Every length is filled, and no byte of it stays.
#[test]
fn any_length_is_filled() {
    let mut own = generator();
    for length in 0..130 {
        let mut or = vec![0; length];
        for _ in 0..40 {
            let mut bytes = vec![0; length];
            own.fill(&mut bytes);
            or.iter_mut().zip(bytes).for_each(|(or, byte)| *or |= byte);
        }
        assert!(or.iter().all(|byte| *byte == 0xff), "{length}");
    }
}

/// The bytes of BLAKE2s-256 as another implementation (Python's hashlib) computes them from the layout that
/// the crate describes.
#[test]
fn answers_are_known() {
    let mut bytes = [0; 40];
    let mut own = generator();
    own.fill(&mut bytes);
    let hex = |bytes: &[u8]| {
        let add = |hex: String, byte: &u8| format!("{hex}{byte:02x}");
        bytes.iter().fold(String::new(), add)
    };
    assert_eq!(
        hex(&bytes),
        "5844ada16d1ed891ae2f5f57f44cd9bf2bee79640e5e2582d321958bf19211dcdaccb90bbabbebba"
    );
    own.fill(&mut bytes[..8]);
    assert_eq!(hex(&bytes[..8]), "9b625e04b643b664");
}

/// Firmware that answers these calls, in this order, and no other.
fn firmware(answers: &[(u32, u64, [u64; 4])]) -> Option<[u64; 3]> {
    let mut answers = answers.iter();
    let found = ask_firmware(|function, argument| {
        let (expected, with, answer) = answers.next().unwrap();
        assert_eq!((function, argument), (*expected, *with));
        *answer
    });
    assert_eq!(answers.next(), None);
    found
}

#[test]
fn firmware_is_asked_only_what_it_has() {
    const NONE: u64 = -1i64 as u64;
    let there = [
        (0x8400_0000, 0, [0x1_0001, 0, 0, 0]),
        (0x8400_000a, 0x8000_0000, [0; 4]),
        (0x8000_0000, 0, [0x1_0002, 0, 0, 0]),
        (0x8400_0050, 0, [0x1_0000, 0, 0, 0]),
        (0x8400_0051, 0xc400_0053, [0; 4]),
        (0xc400_0053, 192, [0, 3, 2, 1]),
    ];
    assert_eq!(firmware(&there), Some([1, 2, 3]));
    for n in 0..there.len() {
        // It ends with the first call that is not there, by 32 bits or 64.
        for refusal in [NONE, 0xffff_ffff] {
            let mut some = there[..=n].to_vec();
            some[n].2 = [refusal, 9, 9, 9];
            assert_eq!(firmware(&some), None, "{n}");
        }
    }
    for (n, old) in [(0, 2), (2, 0x1_0000), (3, 0xffff)] {
        let mut some = there[..=n].to_vec();
        some[n].2[0] = old;
        assert_eq!(firmware(&some), None, "{n}");
    }
    let mut late = there.to_vec();
    late.insert(5, (0xc400_0053, 192, [-3i64 as u64, 0, 0, 0]));
    assert_eq!(firmware(&late), Some([1, 2, 3]));
    let never = (0xc400_0053, 192, [-3i64 as u64, 0, 0, 0]);
    late.truncate(5);
    late.extend([never; 16]);
    assert_eq!(firmware(&late), None);
}
