//! Shared frames against a list of users for each: any steps, records that run out, buckets that
//! many share.
#![allow(clippy::unwrap_used, reason = "a test")]

mod flat;
mod machine;

use flat::{Step, World};
use machine::{FIRST, IMAGE, user};
use model_addr::Mfn;
use model_frame_table::{CacheKey, Chain, Owner};
use model_sharing::{Expect, Size};
use proptest::prelude::*;

const FRAMES: u64 = 12;
const IMAGES: u64 = 3;

fn any_user() -> impl Strategy<Value = Owner> {
    (0..3_u16, 0..3_u64).prop_map(|(vm, gfn)| user(vm, gfn))
}

fn any_key() -> impl Strategy<Value = CacheKey> {
    (0..2_u16, 0..2_u8, 0..3_u64).prop_map(|(group, disk, block)| CacheKey { group, disk, block })
}

fn any_frame() -> impl Strategy<Value = Mfn> {
    // A few more than there are.
    prop_oneof![
        3 => (0..FRAMES + 1).prop_map(|n| Mfn(FIRST + n)),
        1 => (0..IMAGES + 1).prop_map(|n| Mfn(IMAGE + n)),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let chain = prop::sample::select(Chain::ALL.to_vec());
    let expect = prop_oneof![
        2 => Just(Expect::Image),
        4 => (0..2_u16).prop_map(Expect::Group),
        1 => any_key().prop_map(Expect::Block),
    ];
    let memory = prop_oneof![2 => Just(None), 1 => (0..2_u64).prop_map(Some)];
    prop_oneof![
        8 => (any_user(), any_key()).prop_map(|(user, key)| Step::Publish(user, key)),
        24 => (any_frame(), any_user(), expect)
            .prop_map(|(frame, user, expect)| Step::Join(frame, user, expect)),
        8 => (any_user(), 0..2_u16, 0..3_u64)
            .prop_map(|(user, group, content)| Step::Equal(user, group, content)),
        20 => (any_frame(), any_user(), any::<bool>())
            .prop_map(|(frame, user, keep)| Step::Leave(frame, user, keep)),
        8 => (any_frame(), any_user()).prop_map(|(frame, user)| Step::Claim(frame, user)),
        2 => any_frame().prop_map(Step::Evict),
        8 => (any_frame(), chain.clone()).prop_map(|(frame, chain)| Step::Insert(frame, chain)),
        2 => (any_frame(), chain).prop_map(|(frame, chain)| Step::Remove(frame, chain)),
        1 => memory.prop_map(Step::Memory),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn users_accounts_and_index_are_as_in_the_list(
        steps in prop::collection::vec(any_step(), 1..200),
        buckets in 1..4_usize,
    ) {
        let mut world = World::new(FRAMES, IMAGES, buckets);
        for step in steps {
            world.step(step);
            world.check();
        }
        world.end();
    }
}

/// One frame with all the users it may have, in order and out of it; they take records of both sizes.
#[test]
fn a_full_frame_refuses_and_the_accounts_follow() {
    let mut world = World::new(8, 1, 1);
    let key = CacheKey::of_content(1);
    for page in 0..8 {
        world.step(Step::Publish(user(page, 0), key));
        let frame = Mfn(world.pages.last().unwrap().frame);
        world.step(Step::Insert(frame, Chain::Content));
        for n in 1..70_u64 {
            let vm = (n % 5) as u16;
            world.step(Step::Join(frame, user(vm, n / 5), Expect::Group(1)));
        }
        assert_eq!(world.pages.last().unwrap().users.len(), 64);
        world.check();
    }
    let records = [Size::One, Size::Line].map(|size| world.machine.records(size));
    assert_eq!(records, [(8 * 3, 1), (8 * 12, 2)]);
    let half = world.pages.len() / 2;
    for n in 0..64 {
        let page = &world.pages[half];
        let (vm, gfn) = page.users[(n * 7) % page.users.len()];
        let frame = Mfn(page.frame);
        world.step(Step::Leave(frame, user(vm, gfn), false));
        world.check();
    }
    world.end();
}

/// A page that many differ from only where nobody looks: so many are found, and no more.
#[test]
fn a_bucket_is_as_long_as_it_may_be() {
    let mut world = World::new(40, 0, 1);
    for n in 0..40 {
        world.step(Step::Publish(user(0, n), CacheKey::of_content(0)));
        let frame = Mfn(world.pages.last().unwrap().frame);
        world.step(Step::Insert(frame, Chain::Content));
    }
    world.check();
    let listed = world.pages.iter().filter(|page| page.chains[0]).count();
    assert_eq!(listed, model_sharing::LONGEST_CHAIN);
    world.end();
}
