//! Every order of steps on a machine of two frames, one of them an image's, and three users.
#![allow(clippy::unwrap_used, reason = "a test")]

mod flat;
mod machine;

use std::collections::BTreeSet;

use flat::{Step, World};
use machine::{FIRST, IMAGE, user};
use model_addr::Mfn;
use model_frame_table::{CacheKey, Chain};
use model_sharing::Expect;

const DEPTH: usize = 6;
const KEY: CacheKey = CacheKey {
    group: 1,
    disk: 2,
    block: 3,
};

fn steps() -> Vec<Step> {
    // Two users of one VM and one of another.
    let users = [user(0, 0), user(0, 1), user(1, 0)];
    let [image, frame] = [Mfn(IMAGE), Mfn(FIRST)];
    let mut steps = vec![Step::Evict(image), Step::Evict(frame)];
    for user in users {
        steps.push(Step::Publish(user, KEY));
        steps.push(Step::Join(image, user, Expect::Image));
        steps.push(Step::Join(frame, user, Expect::Block(KEY)));
        for at in [image, frame] {
            steps.push(Step::Claim(at, user));
            steps.push(Step::Leave(at, user, true));
        }
        steps.push(Step::Leave(frame, user, false));
    }
    for chain in Chain::ALL {
        for at in [image, frame] {
            steps.push(Step::Insert(at, chain));
            steps.push(Step::Remove(at, chain));
        }
    }
    steps
}

/// From each state that the steps lead to, each step once more; a state is reached again by the
/// steps that led to it first, and a step that is refused leaves everything as it was.
#[test]
fn every_order_of_steps() {
    let steps = steps();
    let run = |path: &[usize]| {
        let mut world = World::new(1, 1, 1);
        for step in path {
            world.step(steps[*step]);
        }
        world
    };
    let mut known = BTreeSet::from([run(&[]).pages]);
    let mut paths = vec![Vec::new()];
    let mut tried = 0;
    for _ in 0..DEPTH {
        let mut longer = Vec::new();
        for path in &paths {
            let mut world = run(path);
            for (next, step) in steps.iter().enumerate() {
                let before = world.pages.clone();
                world.step(*step);
                world.check();
                tried += 1;
                if world.pages == before {
                    continue;
                }
                if known.insert(world.pages.clone()) {
                    longer.push([path.as_slice(), &[next]].concat());
                    world.end();
                }
                world = run(path);
            }
        }
        paths = longer;
    }
    println!("{} states, {tried} steps", known.len());
    assert!(known.len() > 3000, "{}", known.len());
}
