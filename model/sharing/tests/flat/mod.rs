//! A machine whose frames are shared, next to a model of it that is plainly right: a list of users
//! for each frame.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "a test's; not every one needs all"
)]

use std::sync::atomic::Ordering;

use model_addr::Mfn;
use model_frame_table::{CacheKey, Chain, Owner, Use};
use model_sharing::{
    ACCOUNTS, Account, Bucket, Expect, Ground, Joined, LONGEST_CHAIN, Left, MAX_USERS, NotJoined,
    RELISTED, Size, UNIT, claim, enlist, evict, join, join_equal, leave, publish, users,
};

use crate::machine::{FIRST, IMAGE, Machine};

#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A private frame for the user becomes a shared one with this key.
    Publish(Owner, CacheKey),
    Join(Mfn, Owner, Expect),
    /// The user, of this group, gets what this number stands for: by a frame that holds it, or by a new one.
    Equal(Owner, u16, u64),
    Leave(Mfn, Owner, bool),
    Claim(Mfn, Owner),
    Evict(Mfn),
    Insert(Mfn, Chain),
    Remove(Mfn, Chain),
    /// So many more frames for records can be had.
    Memory(Option<u64>),
}

/// What should be known of a frame that is shared or kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page {
    pub frame: u64,
    pub key: (u16, u8, u64),
    /// In any order. Nobody: it is kept.
    pub users: Vec<(u16, u64)>,
    pub chains: [bool; 2],
}

impl Page {
    fn is_image(&self) -> bool {
        self.frame < FIRST
    }
}

pub struct World {
    pub machine: Machine,
    pub pages: Vec<Page>,
    frames: u64,
}

fn short(user: Owner) -> (u16, u64) {
    (user.vm.index, user.gfn.0)
}

impl World {
    pub fn new(frames: u64, images: u64, buckets: usize) -> Self {
        let page = |n| Page {
            frame: IMAGE + n,
            key: (0, 0, 0),
            users: Vec::new(),
            chains: [false; 2],
        };
        Self {
            machine: Machine::new(frames, images, buckets),
            pages: (0..images).map(page).collect(),
            frames,
        }
    }

    pub fn bucket(&self, frame: Mfn, chain: Chain) -> Bucket {
        let (index, key) = (self.machine.index(), self.key(frame));
        match chain {
            Chain::Content => index.content_bucket(key.group, |_| self.machine.load(frame)),
            Chain::Block => index.block_bucket(key),
        }
    }

    fn key(&self, frame: Mfn) -> CacheKey {
        let page = self.pages.iter().find(|page| page.frame == frame.0);
        page.map_or(CacheKey::default(), |page| CacheKey {
            group: page.key.0,
            disk: page.key.1,
            block: page.key.2,
        })
    }

    fn position(&self, frame: Mfn) -> Option<usize> {
        self.pages.iter().position(|page| page.frame == frame.0)
    }

    /// How many frames the flat model has in the bucket.
    fn length(&self, bucket: Bucket, chain: Chain) -> usize {
        let in_it = |page: &&Page| {
            page.chains[chain as usize] && self.bucket(Mfn(page.frame), chain) == bucket
        };
        self.pages.iter().filter(in_it).count()
    }

    /// Does it in both, and compares what comes of it.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Publish(user, key) => self.publish(user, key),
            Step::Join(frame, user, expect) => self.join(frame, user, expect),
            Step::Equal(user, group, content) => self.equal(user, group, content),
            Step::Leave(frame, user, keep) => self.leave(frame, user, keep),
            Step::Claim(frame, user) => self.claim(frame, user),
            Step::Evict(frame) => self.evict(frame),
            Step::Insert(frame, chain) => self.insert(frame, chain),
            Step::Remove(frame, chain) => self.remove(frame, chain),
            Step::Memory(left) => self.machine.slab.lock().unwrap().1.limit(left),
        }
    }

    fn publish(&mut self, user: Owner, key: CacheKey) {
        let machine = &self.machine;
        // Contents follow from the block alone: those of two disks or groups may be the same.
        let Some(frame) = machine.allocate(user, key.block) else {
            return;
        };
        let other = Owner {
            gfn: user.gfn.add(1),
            ..user
        };
        let wrong = publish(machine, frame, other, key);
        assert_eq!(wrong, Err(NotJoined::Gone));
        assert_eq!(publish(machine, frame, user, key), Ok(()));
        self.pages.push(Page {
            frame: frame.0,
            key: (key.group, key.disk, key.block),
            users: vec![short(user)],
            chains: [false; 2],
        });
    }

    /// Whether no record is left for one user more than so many: every frame of such records is full.
    fn no_record(&self, users: usize) -> bool {
        let size = if users < 4 { Size::One } else { Size::Line };
        let (records, frames) = self.machine.records(size);
        users > 0
            && (users < 4 || (users - 4).is_multiple_of(5))
            && records == frames * size.in_frame()
    }

    fn join(&mut self, frame: Mfn, user: Owner, expect: Expect) {
        let result = join(&self.machine, frame, user, expect);
        if result == Err(NotJoined::NoMemory) {
            let have = self.position(frame).map(|at| self.pages[at].users.len());
            assert!(self.no_record(have.unwrap()), "{have:?}");
            return;
        }
        let wanted = self.position(frame).map(|at| &mut self.pages[at]);
        let Some(page) = wanted else {
            assert_eq!(result, Err(NotJoined::Gone));
            return;
        };
        let (group, disk, block) = page.key;
        let fits = match expect {
            Expect::Image => page.is_image(),
            Expect::Group(_) => !page.is_image(),
            Expect::Block(key) => !page.is_image() && (key.disk, key.block) == (disk, block),
        };
        let wanted = match expect {
            _ if !fits => Err(NotJoined::Gone),
            Expect::Group(other) | Expect::Block(CacheKey { group: other, .. })
                if other != group =>
            {
                Err(NotJoined::OtherGroup)
            }
            _ if page.users.len() == MAX_USERS as usize => Err(NotJoined::Full),
            _ => {
                page.users.insert(0, short(user));
                Ok(Joined {
                    users: page.users.len() as u32,
                    revived: page.users.len() == 1,
                })
            }
        };
        assert_eq!(result, wanted);
    }

    fn equal(&mut self, user: Owner, group: u16, content: u64) {
        let machine = &self.machine;
        let Some(own) = machine.allocate(user, content) else {
            return;
        };
        let is_full = |page: &Page| page.users.len() == MAX_USERS as usize;
        let is_equal = |page: &Page| {
            !page.is_image()
                && page.key.0 == group
                && machine.load(Mfn(page.frame)) == content
                && !is_full(page)
        };
        let key = CacheKey::of_content(group);
        let bucket = machine.index().content_bucket(group, |_| content);
        let length = self.length(bucket, Chain::Content);
        let compares = machine.compares.load(Ordering::Relaxed);
        let found = join_equal(machine, own, user, group, &mut 32);
        let compares = machine.compares.load(Ordering::Relaxed) - compares;
        assert!(compares as usize <= length, "{compares} of {length}");
        // Those without room may leave the chain, and nobody else.
        let mut left = 0;
        for page in self.pages.iter_mut().filter(|page| page.chains[0]) {
            let chains = machine.map().entry(Mfn(page.frame)).unwrap().state().chains;
            if chains & Chain::Content.bit() == 0 {
                assert!(is_full(page), "{page:?} could be joined");
                page.chains[0] = false;
                left += 1;
            }
        }
        if let Some(frame) = found {
            let at = self.position(frame).unwrap();
            assert!(self.pages[at].chains[0] && is_equal(&self.pages[at]));
            self.pages[at].users.insert(0, short(user));
            machine.free(own);
            return;
        }
        let listed = self.pages.iter().filter(|page| page.chains[0]);
        let mut joinable =
            listed.filter(|page| is_equal(page) && !self.no_record(page.users.len()));
        assert_eq!(joinable.next(), None, "there is one");
        publish(machine, own, user, key).unwrap();
        enlist(machine, own);
        self.pages.push(Page {
            frame: own.0,
            key: (group, 0, 0),
            users: vec![short(user)],
            chains: [length - left < LONGEST_CHAIN, false],
        });
    }

    fn leave(&mut self, frame: Mfn, user: Owner, keep: bool) {
        let result = leave(&self.machine, frame, user, keep);
        let Some(at) = self.position(frame) else {
            assert_eq!(result, None);
            return;
        };
        let page = &mut self.pages[at];
        let Some(which) = page.users.iter().position(|other| *other == short(user)) else {
            assert_eq!(result, None);
            return;
        };
        // A full frame that leaves room is found again, if its chain has room.
        let was_full = page.users.len() == MAX_USERS as usize;
        page.users.remove(which);
        if was_full && !page.is_image() && !page.chains[0] {
            let length = self.length(self.bucket(frame, Chain::Content), Chain::Content);
            self.pages[at].chains[0] = length < RELISTED;
        }
        let page = &self.pages[at];
        let wanted = if !page.users.is_empty() {
            Left::Others(page.users.len() as u32)
        } else if page.is_image() || keep && page.key.1 != 0 {
            Left::Kept
        } else {
            self.pages.remove(at);
            Left::Freed
        };
        assert_eq!(result, Some(wanted));
    }

    fn claim(&mut self, frame: Mfn, user: Owner) {
        let result = claim(&self.machine, frame, user);
        let alone = |page: &Page| !page.is_image() && page.users == [short(user)];
        let at = self.position(frame).filter(|at| alone(&self.pages[*at]));
        assert_eq!(result, at.is_some());
        let Some(at) = at else { return };
        self.pages.remove(at);
        let entry = self.machine.map().entry(frame).unwrap();
        let state = entry.state();
        assert_eq!(
            (state.usage, state.references, state.chains),
            (Use::Private, 1, 0)
        );
        assert_eq!(entry.lock().unwrap().owner(), user);
        // It is the user's now: it is written, and freed as such.
        self.machine.store(frame, 0xffff);
        self.machine.free(frame);
    }

    fn evict(&mut self, frame: Mfn) {
        let result = evict(&self.machine, frame);
        let unused = |page: &Page| !page.is_image() && page.users.is_empty();
        let at = self.position(frame).filter(|at| unused(&self.pages[*at]));
        assert_eq!(result, at.is_some());
        at.map(|at| self.pages.remove(at));
    }

    fn insert(&mut self, frame: Mfn, chain: Chain) {
        let bucket = self.bucket(frame, chain);
        let index = self.machine.index();
        let result = index.insert(self.machine.map(), bucket, frame, LONGEST_CHAIN);
        let room = self.length(bucket, chain) < LONGEST_CHAIN;
        let known = self.position(frame);
        let at = known.filter(|at| room && !self.pages[*at].chains[chain as usize]);
        assert_eq!(result, at.is_some());
        if let Some(at) = at {
            self.pages[at].chains[chain as usize] = true;
        }
    }

    fn remove(&mut self, frame: Mfn, chain: Chain) {
        let bucket = self.bucket(frame, chain);
        let index = self.machine.index();
        let result = index.remove(self.machine.map(), bucket, frame);
        let known = self.position(frame);
        let at = known.filter(|at| self.pages[*at].chains[chain as usize]);
        assert_eq!(result, at.is_some());
        if let Some(at) = at {
            self.pages[at].chains[chain as usize] = false;
        }
    }

    /// Counts everything anew.
    pub fn check(&self) {
        let machine = &self.machine;
        let mut accounts = [Account::default(); ACCOUNTS];
        for page in &self.pages {
            let frame = Mfn(page.frame);
            let state = machine.map().entry(frame).unwrap().state();
            let usage = match page.users.len() {
                0 => Use::CachedOnly,
                _ => Use::Shared,
            };
            assert_eq!(state.usage, usage);
            assert_eq!(usize::from(state.references), page.users.len());
            let mut found = Vec::new();
            users(machine, frame, |user| found.push(short(user)));
            found.sort_unstable();
            let mut wanted = page.users.clone();
            wanted.sort_unstable();
            assert_eq!(found, wanted);
            for (vm, _) in &page.users {
                accounts[usize::from(*vm)].users += 1;
                accounts[usize::from(*vm)].units += UNIT / page.users.len() as u64;
            }
            for chain in Chain::ALL {
                let bucket = self.bucket(frame, chain);
                let (index, map) = (machine.index(), machine.map());
                let found = index.find(map, bucket, |at, _| at == frame).is_some();
                assert_eq!(found, page.chains[chain as usize]);
                assert_eq!(state.chains & chain.bit() != 0, found);
                let mut length = 0;
                index.find(map, bucket, |_, _| {
                    length += 1;
                    false
                });
                assert_eq!(length, self.length(bucket, chain));
            }
        }
        for (slot, account) in (0..).zip(accounts) {
            assert_eq!(machine.accounts().get(slot), account);
        }
        let taken = |page: &&Page| !page.is_image();
        let taken = self.pages.iter().filter(taken);
        let kept = taken.clone().filter(|page| page.users.is_empty()).count();
        assert_eq!(machine.accounts().cached(), kept as u64);
        assert_eq!(machine.free_frames() + taken.count() as u64, self.frames);
        // The first of a frame's users takes none, three take one each, and each five more a line.
        let count = |of: fn(usize) -> usize| {
            let records = self.pages.iter().map(|page| of(page.users.len()));
            records.sum::<usize>() as u64
        };
        let small = count(|users| users.saturating_sub(1).min(3));
        let lines = count(|users| users.saturating_sub(4).div_ceil(5));
        let records = [Size::One, Size::Line].map(|size| machine.records(size).0);
        assert_eq!(records, [small, lines]);
    }

    /// All users leave and all that is kept goes: everything is as it was.
    pub fn end(&mut self) {
        while let Some(page) = self.pages.iter().find(|page| !page.users.is_empty()) {
            let (vm, gfn) = page.users[page.users.len() / 2];
            self.leave(Mfn(page.frame), crate::machine::user(vm, gfn), true);
        }
        while let Some(page) = self.pages.iter().find(|page| !page.is_image()) {
            self.evict(Mfn(page.frame));
        }
        self.check();
        for size in [Size::One, Size::Line] {
            assert_eq!(self.machine.records(size), (0, 0));
        }
    }
}
