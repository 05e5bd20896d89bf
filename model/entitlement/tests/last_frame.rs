//! A machine that is promised to its last frame, with guests that do as they like: none has more than was
//! promised and could be taken, and whoever lacks a frame that it was promised gets it, though no guest
//! gives anything back.

use model_entitlement::{
    Claim, Debtor, Go, HELP, Holding, News, PATIENCE, REQUEST_FAULTS, SLACK, Standing, Terms,
    call_in, in_order, stand,
};
use model_sharing::UNIT;
use proptest::prelude::*;

const VMS: usize = 3;
/// What a fault fills, and what a request of a disk does.
const CHUNK: u64 = 16;
const REQUEST: u64 = 64;
/// Frames below which a machine has few.
const FEW: u64 = 64;
/// Frames that one go looks at.
const LOOKED_AT: u64 = 1024;
/// Goes after which somebody who owes is paused, and what was left of him has been taken.
const GOES: u32 = 2 * PATIENCE + 200;

#[derive(Clone, Debug)]
struct Guest {
    terms: Terms,
    has_driver: bool,
    private: u64,
    /// Blocks of its overlays.
    overlay: u64,
    swap_free: u64,
    debtor: Debtor,
    allowance: u32,
    emergency: u32,
}

/// Guests, and the frames of a partition by which of them use them: bit n is guest n.
#[derive(Clone, Debug)]
struct World {
    capacity: u64,
    guests: Vec<Guest>,
    blocks: [u64; 1 << VMS],
    short: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// A guest touches memory, so many chunks.
    Touch(usize, u32),
    /// It reads blocks of the partition that these others use, too, or that nobody has; so many requests.
    Read(usize, usize, u32),
    /// It writes to blocks that it uses with these others.
    Write(usize, usize, u32),
    /// It gives pages back.
    Free(usize, u64),
    /// It writes so many blocks to its overlays, or discards all where there are none.
    Store(usize, u64),
    /// EL2 looks at all; these guests touch all that they have meanwhile.
    Look(usize),
}

fn uses(mask: usize, n: usize) -> bool {
    mask & 1 << n != 0
}

impl World {
    fn used(&self) -> u64 {
        let own = |guest: &Guest| guest.private + guest.overlay;
        self.guests.iter().map(own).sum::<u64>() + self.blocks.iter().sum::<u64>()
    }

    fn holding(&self, n: usize) -> Holding {
        let guest = &self.guests[n];
        let of = (1..1 << VMS).filter(|mask| uses(*mask, n));
        let (mut shared, mut units) = (0, 0);
        for mask in of {
            shared += self.blocks[mask];
            units += self.blocks[mask] * (UNIT / u64::from(mask.count_ones()));
        }
        Holding {
            private: guest.private,
            shared,
            users: shared,
            units,
            overlay: guest.overlay,
            takeable: guest.swap_free.min(guest.private) + shared,
            ..Holding::default()
        }
    }

    /// Whether a guest may go on with so many faults, as EL2 asks it.
    fn may(&mut self, n: usize, faults: u32) -> bool {
        let guest = &mut self.guests[n];
        if guest.debtor.is_paused() {
            return false;
        }
        let left = if guest.allowance > 0 || !guest.has_driver {
            &mut guest.allowance
        } else {
            &mut guest.emergency
        };
        if *left == u32::MAX {
            return true;
        }
        let may = *left > 0;
        *left = left.saturating_sub(faults);
        may
    }

    /// Whether there are so many frames; who finds none waits.
    fn has(&mut self, frames: u64) -> bool {
        let has = self.used() + frames <= self.capacity;
        self.short |= !has;
        has
    }

    fn touch(&mut self, n: usize, chunk: u64) -> bool {
        let absent = self.guests[n].terms.max - self.holding(n).resident();
        let pages = chunk.min(absent);
        let done = pages > 0 && self.may(n, 1) && self.has(pages);
        self.guests[n].private += if done { pages } else { 0 };
        done
    }

    fn read(&mut self, n: usize, from: usize) -> bool {
        let from = from & !(1 << n);
        let absent = self.guests[n].terms.max - self.holding(n).resident();
        let pages = match from {
            0 => REQUEST.min(absent),
            _ => REQUEST.min(absent).min(self.blocks[from]),
        };
        let needs = if from == 0 { pages } else { 0 };
        let done = pages > 0 && self.may(n, REQUEST_FAULTS) && self.has(needs);
        if done {
            self.blocks[from] -= if from == 0 { 0 } else { pages };
            self.blocks[from | 1 << n] += pages;
        }
        done
    }

    fn write(&mut self, n: usize, mask: usize) -> bool {
        let mask = mask | 1 << n;
        let rest = mask & !(1 << n);
        let needs = u64::from(rest != 0);
        let done = self.blocks[mask] > 0 && self.may(n, 1) && self.has(needs);
        if done {
            self.blocks[mask] -= 1;
            self.blocks[rest] += needs;
            self.guests[n].private += 1;
        }
        done
    }

    fn free(&mut self, n: usize, pages: u64) {
        let guest = &mut self.guests[n];
        guest.private -= pages.min(guest.private);
    }

    /// A block is written to an overlay, which holds no more than it may.
    fn store(&mut self, n: usize) -> bool {
        let guest = &self.guests[n];
        let done = guest.overlay < guest.terms.overlays && self.may(n, 1) && self.has(1);
        self.guests[n].overlay += u64::from(done);
        done
    }

    /// Takes pages of a guest; those of `hot` ones were touched since. How many of blocks, and in all.
    fn take(&mut self, n: usize, most: u64, hot: usize) -> [u64; 2] {
        let guest = &self.guests[n];
        if uses(hot, n) && !guest.debtor.is_paused() {
            return [0; 2];
        }
        let (all, mappers) = (guest.terms.max, self.holding(n).shared);
        let mut left = most.min(LOOKED_AT);
        let mut discarded = 0;
        for mask in (1..1 << VMS).filter(|mask| uses(*mask, n)) {
            let taken = self.blocks[mask].min(left);
            self.blocks[mask] -= taken;
            left -= taken;
            discarded += taken;
        }
        let guest = &mut self.guests[n];
        if !guest.debtor.may_swap(all, mappers) {
            return [discarded; 2];
        }
        let swapped = guest.private.min(guest.swap_free).min(left);
        guest.private -= swapped;
        guest.swap_free -= swapped;
        [discarded, discarded + swapped]
    }

    /// As EL2 does it; whether somebody owes.
    fn look(&mut self, hot: usize) -> bool {
        let short = self.short;
        let of = |n: usize| {
            let holding = self.holding(n);
            let standing = stand(self.guests[n].terms, holding, short);
            (standing, (n, holding.takeable))
        };
        let mut standings: Vec<(Standing, (usize, u64))> = (0..self.guests.len()).map(of).collect();
        in_order(&mut standings);
        if short {
            let promised: u64 = self.guests.iter().map(|guest| promised(guest.terms)).sum();
            call_in(&mut standings, promised.saturating_sub(self.capacity));
        }
        let mut owes = false;
        for (standing, (n, takeable)) in standings {
            let [discarded, taken] = self.take(n, standing.owed, hot);
            let guest = &mut self.guests[n];
            let all = guest.terms.max;
            if standing.owed > 0 {
                guest.debtor.passed(LOOKED_AT, all, discarded, taken);
            }
            let go = Go {
                owed: standing.owed,
                slack: standing.slack,
                takeable,
                taken,
            };
            let news = guest.debtor.turn(go);
            assert!(news != Some(News::Pause) || standing.owed > 0);
            guest.allowance = guest.debtor.allowance(&standing);
            guest.emergency = guest.debtor.emergency(&standing);
            owes |= standing.owed > 0;
        }
        self.short = short && self.used() + FEW > self.capacity;
        owes
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Touch(n, times) => {
                let _ = (0..times).all(|_| self.touch(n, CHUNK));
            }
            Step::Read(n, from, times) => {
                let _ = (0..times).all(|_| self.read(n, from));
            }
            Step::Write(n, with, times) => {
                let _ = (0..times).all(|_| self.write(n, with));
            }
            Step::Free(n, pages) => self.free(n, pages),
            Step::Store(n, 0) => self.guests[n].overlay = 0,
            Step::Store(n, blocks) => {
                let _ = (0..blocks).all(|_| self.store(n));
            }
            Step::Look(hot) => {
                let (short, is_full) = (self.short, self.used() >= self.capacity);
                let owes = self.look(hot);
                // Else the VM that lacks a frame would have to end.
                assert!(owes || !short || !is_full, "nobody owes in {self:?}");
            }
        }
    }

    /// No guest has more than it was promised and could be taken.
    fn check(&self) {
        for (n, guest) in self.guests.iter().enumerate() {
            let holding = self.holding(n);
            let bound = guest.terms.base + guest.terms.beyond() + holding.takeable;
            let resident = holding.resident();
            assert!(resident <= bound, "{n} has {resident} in {self:?}");
        }
    }

    /// All but `n` take what they can get.
    fn crowd(&mut self, n: usize) {
        for round in 0..60 {
            for other in (0..VMS).filter(|other| *other != n) {
                if round % 3 == 0 {
                    while self.store(other) {}
                }
                if round % 2 == 0 {
                    while self.read(other, 0) {}
                } else {
                    while self.touch(other, CHUNK) {}
                }
            }
            self.look(!0);
            self.check();
        }
    }

    /// Goes until `n` has one page more, while nobody gives anything back and all others touch what
    /// they have.
    fn feed(&mut self, n: usize) -> Option<u32> {
        (0..GOES).find(|_| {
            if self.touch(n, 1) {
                return true;
            }
            self.look(!0);
            false
        })
    }
}

/// Without tables, which this machine has not.
fn promised(terms: Terms) -> u64 {
    terms.base + terms.beyond() + terms.overlays
}

fn guest(claim: Claim) -> impl Strategy<Value = Guest> {
    let more = prop_oneof![Just(0), 1..3000_u64];
    let swap = prop_oneof![Just(0), 1..2000_u64];
    let overlays = prop_oneof![Just(0), 1..1500_u64];
    (100..2000_u64, more, swap, overlays, any::<bool>()).prop_map(
        move |(base, more, swap_free, overlays, has_driver)| {
            let terms = Terms {
                base,
                max: base + more,
                overlays,
                claim,
            };
            Guest {
                terms,
                has_driver,
                private: 0,
                overlay: 0,
                swap_free,
                debtor: Debtor::default(),
                allowance: 1,
                emergency: 0,
            }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (n, mask) = (0..VMS, 0..1_usize << VMS);
    let step = prop_oneof![
        4 => (n.clone(), 1..200_u32).prop_map(|(n, times)| Step::Touch(n, times)),
        2 => (n.clone(), mask.clone(), 1..20_u32)
            .prop_map(|(n, from, times)| Step::Read(n, from, times)),
        2 => (n.clone(), mask.clone(), 1..500_u32)
            .prop_map(|(n, with, times)| Step::Write(n, with, times)),
        1 => (n.clone(), 1..1000_u64).prop_map(|(n, pages)| Step::Free(n, pages)),
        1 => (n, 0..800_u64).prop_map(|(n, blocks)| Step::Store(n, blocks)),
        6 => mask.prop_map(Step::Look),
    ];
    prop::collection::vec(step, 0..150)
}

fn world(claims: [Claim; 2]) -> impl Strategy<Value = World> {
    let claim = prop::sample::select(claims.to_vec());
    let guests = prop::collection::vec(claim.prop_flat_map(guest), VMS);
    guests.prop_map(|guests| World {
        capacity: guests.iter().map(|guest| promised(guest.terms)).sum(),
        guests,
        blocks: [0; 1 << VMS],
        short: false,
    })
}

proptest! {
    #[test]
    fn who_lacks_what_it_was_promised_gets_it(
        mut world in world([Claim::None, Claim::Grow]),
        steps in steps(),
    ) {
        for step in &steps {
            world.step(step);
            world.check();
        }
        for n in 0..VMS {
            let terms = world.guests[n].terms;
            if world.holding(n).resident() < terms.base {
                let mut world = world.clone();
                world.crowd(n);
                prop_assert!(world.feed(n).is_some(), "{n} waits for ever in {world:?}");
            }
        }
    }

    /// A machine that is promised twice over what some save: as long as that can be taken, whoever lacks
    /// a frame finds somebody who owes.
    #[test]
    fn what_others_were_started_with_is_called_in(
        mut world in world([Claim::Start, Claim::Start]),
        steps in steps(),
    ) {
        world.capacity -= world.capacity / 4;
        for step in &steps {
            world.step(step);
            world.check();
        }
    }
}

#[test]
fn the_least_of_such_machines() {
    // Two that may have a little beyond their bases, and a third that wants its own: what they had by that
    // was the third's.
    let of = |base, max| Guest {
        terms: Terms {
            base,
            max,
            overlays: 0,
            claim: Claim::None,
        },
        has_driver: false,
        private: 0,
        overlay: 0,
        swap_free: 0,
        debtor: Debtor::default(),
        allowance: 1,
        emergency: 0,
    };
    let guests = vec![of(1000, 4000), of(1000, 4000), of(1000, 1000)];
    let mut world = World {
        capacity: 3000 + 2 * (SLACK + HELP),
        guests,
        blocks: [0; 1 << VMS],
        short: false,
    };
    for _ in 0..1000 {
        for n in [0, 1] {
            world.touch(n, CHUNK);
        }
        world.look(!0);
    }
    for n in [0, 1] {
        let more = world.holding(n).resident() - 1000;
        assert!((SLACK..SLACK + CHUNK).contains(&more), "{more} more");
    }
    for page in 0..1000 {
        assert!(world.feed(2).is_some(), "page {page}");
    }
}
