//! What holds after every step: pages have what was put there last, and nothing is counted wrong.

use super::moving::copies;
use super::{
    BTreeMap, Backing, Entry, FrameRange, Frames, Gfn, Ground, IMAGE, IMAGE_PAGES, Mfn, NODES,
    Owner, RAM, Reasons, UNIT, Use, VMS, Vm, World, free_blocks, image_page,
};

impl World {
    /// What is true at any moment, whoever stands where.
    pub fn check(&self) {
        let mut users = self.users();
        for vm in &self.vms {
            let present = self.check_pages(vm, &mut users);
            self.check_held(vm);
            for (gfn, frame, write) in vm.tables.seen() {
                let entry = present.get(&gfn).copied().unwrap_or_default();
                assert!(entry.usable(write).is_some(), "{gfn}: {entry:?}");
                let is_copy = copies(&vm.lock(), gfn).contains(&Some(frame));
                assert!(is_copy || entry.frame() == Some(frame), "{gfn} is stale");
                self.machine.frames.check_shown(frame);
            }
        }
        let is_dying = |(_, user): &(Mfn, Owner)| self.vms.iter().all(|vm| vm.ram.vm != user.vm);
        assert!(
            users.iter().all(is_dying),
            "users without a page: {users:?}"
        );
    }

    fn check_pages(&self, vm: &Vm, users: &mut Vec<(Mfn, Owner)>) -> BTreeMap<Gfn, Entry> {
        let mut present = BTreeMap::new();
        let mut counted = 0;
        let maps = vm.lock();
        assert_eq!(
            maps.visit(RAM, 1 << 20, |gfn, entry| present.extend([(gfn, entry)])),
            None
        );
        for (&gfn, entry) in &present {
            let frame = entry.frame().unwrap();
            assert_eq!(
                self.machine.frames.contents(frame).as_ref(),
                Some(&*vm.expected(gfn)),
                "{gfn}"
            );
            let user = Owner { vm: vm.ram.vm, gfn };
            assert_eq!(entry.never_share, vm.secrets.contains(&gfn), "{gfn}");
            for copy in copies(&maps, gfn).into_iter().flatten() {
                let contents = self.machine.frames.contents(copy);
                assert_eq!(contents.as_ref(), Some(&*vm.expected(gfn)), "{gfn}'s copy");
                assert!(entry.reasons.contains(Reasons::REPLICA), "{gfn}: {entry:?}");
                counted += 1;
            }
            if let Backing::Shared(_) = entry.backing {
                assert!(!entry.never_share, "{gfn} is shared");
                let at = users.iter().position(|known| *known == (frame, user));
                assert!(at.is_some(), "{gfn}: {frame} does not know its user");
                users.swap_remove(at.unwrap());
            } else {
                let locked = Frames::map(&self.machine)
                    .entry(frame)
                    .unwrap()
                    .lock()
                    .unwrap();
                assert_eq!(
                    (locked.state().usage, locked.owner()),
                    (Use::Private, user),
                    "{gfn}"
                );
            }
        }
        let emptied = vm
            .changed
            .iter()
            .filter(|(gfn, _)| !present.contains_key(gfn));
        for (gfn, page) in emptied {
            assert!(page.iter().all(|byte| *byte == 0), "{gfn} is lost");
        }
        assert_eq!(maps.counts().present(), present.len() as u64);
        assert_eq!(maps.copies(), counted, "copies of pages that are gone");
        present
    }

    /// All users of all frames; the accounts say the same of them.
    fn users(&self) -> Vec<(Mfn, Owner)> {
        let (mut all, mut accounts) = (Vec::new(), [(0, 0); VMS]);
        let image = FrameRange {
            start: IMAGE,
            count: IMAGE_PAGES,
        };
        for range in NODES.into_iter().chain([image]) {
            for frame in (0..range.count).map(|n| range.start.add(n)) {
                let before = all.len();
                model_sharing::users(&self.machine.frames, frame, |user| all.push((frame, user)));
                let count = (all.len() - before) as u64;
                for (_, user) in &all[before..] {
                    let account = &mut accounts[usize::from(user.vm.index)];
                    *account = (account.0 + 1, account.1 + UNIT / count);
                }
            }
        }
        for (slot, expected) in (0..).zip(accounts) {
            let account = self.machine.frames.accounts().get(slot);
            assert_eq!((account.users, account.units), expected, "account {slot}");
        }
        all
    }

    /// Every VM ends: nothing is left behind, and the image is as it was.
    pub fn finish(mut self) {
        self.fail_frames(None);
        self.fail_records(None);
        for vm in 0..VMS {
            self.settle(vm, None);
        }
        self.check();
        for vm in 0..VMS {
            while !self.dying.is_empty() {
                self.reap(100);
            }
            self.kill(vm);
        }
        while !self.dying.is_empty() {
            self.reap(1000);
        }
        let frames = &self.machine.frames;
        for (n, page) in (0..IMAGE_PAGES).map(|n| (n, image_page(n))) {
            let state = Frames::map(frames).entry(IMAGE.add(n)).unwrap().state();
            assert_eq!((state.usage, state.references), (Use::CachedOnly, 0));
            assert_eq!(frames.contents(IMAGE.add(n)), Some(page));
        }
        assert_eq!((frames.record_frames(), frames.accounts().cached()), (0, 0));
        assert_eq!(free_blocks(frames), self.fresh, "all is back, and joined");
    }
}
