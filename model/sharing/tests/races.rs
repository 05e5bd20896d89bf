//! CPUs share, write, leave and evict the same contents at the same time. Whoever uses a frame
//! sees what it joined for until it leaves, and in the end nothing is lost.
#![allow(clippy::unwrap_used, reason = "a test")]

mod machine;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use machine::{Machine, user};
use model_addr::{Mfn, NodeId};
use model_frame_table::{CacheKey, Chain, Owner, Use};
use model_sharing::{
    ACCOUNTS, Clock, Expect, Ground, LONGEST_CHAIN, Left, NotJoined, Size, claim, evict, join,
    leave, publish, users,
};

const CPUS: u16 = 4;
const FRAMES: u64 = 24;
const CONTENTS: u64 = 3;
const ROUNDS: u64 = if cfg!(miri) { 40 } else { 10_000 };

/// The block of which `content` is the contents.
fn key(content: u64) -> CacheKey {
    CacheKey {
        group: 7,
        // One is of no disk.
        disk: u8::from(content != 1),
        block: content,
    }
}

/// What a read of that content does: join the frame that has it already, or make one.
fn bring_in(machine: &Machine, user: Owner, content: u64, chain: Chain) -> Option<Mfn> {
    let (index, key) = (machine.index(), key(content));
    let buckets = Chain::ALL.map(|chain| match chain {
        Chain::Content => index.content_bucket(key.group, |_| content),
        Chain::Block => index.block_bucket(key),
    });
    let [bucket, other] = [chain, Chain::ALL[1 - chain as usize]].map(|at| buckets[at as usize]);
    let guard = machine.lock_stripe(bucket.stripe());
    let found = index.find(machine.map(), bucket, |frame, entry| match chain {
        Chain::Content => entry.cache_key().group == key.group && machine.load(frame) == content,
        Chain::Block => entry.cache_key() == key,
    });
    let expect = match chain {
        Chain::Content => Expect::Group(key.group),
        Chain::Block => Expect::Block(key),
    };
    // Others have time to do it wrong.
    if user.gfn.0.is_multiple_of(4) {
        thread::yield_now();
    }
    if let Some((frame, _)) = found {
        let joined = join(machine, frame, user, expect);
        assert!(matches!(joined, Ok(_) | Err(NotJoined::Full)), "{joined:?}");
        return joined.is_ok().then_some(frame);
    }
    let frame = machine.allocate(user, content)?;
    publish(machine, frame, user, key).unwrap();
    assert!(index.insert(machine.map(), bucket, frame, LONGEST_CHAIN));
    drop(guard);
    if key.disk != 0 {
        let _guard = machine.lock_stripe(other.stripe());
        index.insert(machine.map(), other, frame, LONGEST_CHAIN);
    }
    Some(frame)
}

fn cpu(machine: &Machine, vm: u16) {
    let mut random = u64::from(vm) + 1;
    let mut below = move |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % n
    };
    let mut clock = Clock::new(NodeId(0));
    let mut held: Vec<(Owner, Mfn, u64)> = Vec::new();
    let mut stale = Mfn(0);
    for round in 0..ROUNDS {
        if below(8) == 0
            && let Some(frame) = clock.next_cached(machine.map(), FRAMES)
        {
            evict(machine, frame);
        }
        // A candidate that was found without a lock may be anything by now.
        let me = user(vm, round);
        if below(8) == 0 && join(machine, stale, me, Expect::Block(key(2))).is_ok() {
            held.push((me, stale, 2));
        }
        if held.len() < 4 {
            let content = below(CONTENTS);
            let chain = Chain::ALL[usize::from(content != 1 && below(2) == 0)];
            if let Some(frame) = bring_in(machine, me, content, chain) {
                held.push((me, frame, content));
                stale = frame;
            }
            continue;
        }
        let (me, frame, content) = held.swap_remove(below(4) as usize);
        assert_eq!(machine.load(frame), content, "nobody writes a shared frame");
        if below(2) == 0 && claim(machine, frame, me) {
            machine.store(frame, u64::from(vm) << 32 | round);
            let state = machine.map().entry(frame).unwrap().state();
            assert_eq!((state.usage, state.references), (Use::Private, 1));
            assert_eq!(machine.load(frame), u64::from(vm) << 32 | round);
            machine.free(frame);
        } else {
            assert!(leave(machine, frame, me, below(2) == 0).is_some());
        }
    }
    for (me, frame, content) in held {
        assert_eq!(machine.load(frame), content);
        assert!(leave(machine, frame, me, true).is_some());
    }
}

#[test]
fn nobody_writes_what_others_use() {
    let machine = Machine::new(FRAMES, 0, 2);
    thread::scope(|scope| {
        for vm in 0..CPUS {
            let machine = &machine;
            scope.spawn(move || cpu(machine, vm));
        }
    });
    for size in [Size::One, Size::Line] {
        assert_eq!(machine.records(size), (0, 0));
    }
    for vm in 0..CPUS {
        assert_eq!(
            machine.accounts().get(vm),
            model_sharing::Account::default()
        );
    }
    let cached = machine.accounts().cached();
    assert_eq!(cached + machine.free_frames(), FRAMES);
    let mut clock = Clock::new(NodeId(0));
    for _ in 0..cached {
        let frame = clock.next_cached(machine.map(), 2 * FRAMES).unwrap();
        assert!(evict(&machine, frame));
    }
    assert_eq!(machine.free_frames(), FRAMES);
    assert_eq!(
        machine.pool.lock().unwrap().counts().blocks[3],
        2,
        "whole again"
    );
}

/// All CPUs join and leave one frame: the accounts are exact all the time.
#[test]
fn counts_are_exact_under_contention() {
    let machine = Machine::new(1, 0, 1);
    let first = user(9, 0);
    let frame = machine.allocate(first, 5).unwrap();
    publish(&machine, frame, first, CacheKey::of_content(0)).unwrap();
    thread::scope(|scope| {
        for vm in 0..CPUS {
            let machine = &machine;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let me = user(vm, round % 3);
                    let joined = join(machine, frame, me, Expect::Group(0)).unwrap();
                    assert!(!joined.revived && joined.users <= u32::from(CPUS) + 1);
                    assert!(!claim(machine, frame, me), "the first is still there");
                    let mut found = 0;
                    users(machine, frame, |user| found += u32::from(user == me));
                    assert_eq!(found, 1);
                    let left = leave(machine, frame, me, false);
                    assert!(matches!(left, Some(Left::Others(1..))));
                }
            });
        }
    });
    let account = machine.accounts().get(9);
    assert_eq!((account.users, account.units), (1, model_sharing::UNIT));
    assert!(claim(&machine, frame, first));
}

/// VMs whose users come and go are charged for those while others look: no more than for all their users, and VMs
/// without users for none.
#[test]
fn nobody_sees_a_charge_below_zero() {
    const VMS: u16 = 50;
    let machine = Machine::new(1, 0, 1);
    let first = user(0, 0);
    let frame = machine.allocate(first, 5).unwrap();
    publish(&machine, frame, first, CacheKey::of_content(0)).unwrap();
    for vm in 1..VMS {
        join(&machine, frame, user(vm, 0), Expect::Group(0)).unwrap();
    }
    let at_work = AtomicU32::new(CPUS.into());
    thread::scope(|scope| {
        for vm in 0..CPUS {
            let (machine, at_work) = (&machine, &at_work);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let me = user(vm, 1);
                    join(machine, frame, me, Expect::Group(0)).unwrap();
                    leave(machine, frame, me, false).unwrap();
                }
                at_work.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while at_work.load(Ordering::Relaxed) > 0 {
            for vm in 0..ACCOUNTS as u16 {
                let account = machine.accounts().get(vm);
                assert_eq!(account.charge(), 0, "VM {vm}: {account:?}");
            }
        }
    });
    for vm in 0..VMS {
        let account = machine.accounts().get(vm);
        assert_eq!(account.units, model_sharing::UNIT / u64::from(VMS));
    }
}

/// A user that comes takes a record, as there is one already; that one leaves before it is there.
#[test]
fn a_record_that_is_not_needed_after_all_goes_back() {
    const IMAGE: Mfn = Mfn(machine::IMAGE);
    let machine = Machine::new(1, 1, 1);
    join(&machine, IMAGE, user(0, 0), Expect::Image).unwrap();
    machine.meanwhile(Some(|machine| {
        assert_eq!(leave(machine, IMAGE, user(0, 0), true), Some(Left::Kept));
    }));
    join(&machine, IMAGE, user(1, 0), Expect::Image).unwrap();
    assert!(machine.meanwhile(None), "nobody left");
    leave(&machine, IMAGE, user(1, 0), true);
    assert_eq!(machine.records(Size::One), (0, 0));
}
