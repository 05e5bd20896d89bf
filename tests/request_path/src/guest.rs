//! A guest's memory, as its own stores and its devices reach it.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard};

use machine_contract::{GuestMemory, GuestMemoryError};
use machine_fake::{FakeFrames, FakeTranslation};
use model_addr::{FRAME_SIZE, Gfn, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{Access, Filled, Frames, Gets, GuestRam, Maps, Policy};
use model_frame_table::{Origin, Owner, Purpose};
use model_pmap::{Backing, Entry, Why};

const NODE: NodeId = NodeId(0);

/// The first life of the VM in this slot.
pub fn vm(index: u16) -> VmId {
    VmId {
        index,
        generation: 1,
    }
}

/// A VM with RAM that is filled as it is touched.
pub struct Guest<'a> {
    ram: GuestRam<Vec<u8>>,
    maps: Mutex<Maps<FakeTranslation>>,
    frames: &'a FakeFrames,
    /// What was evicted and is nowhere else.
    swap: RefCell<Vec<Vec<u8>>>,
    /// What happens on another CPU between the steps of a device.
    between: RefCell<Option<Between<'a>>>,
    /// A page that it has marked as never to be shared.
    never_shared: Cell<Option<Gfn>>,
}

type Between<'a> = Box<dyn Fn(&Guest<'a>) + 'a>;

impl<'a> Guest<'a> {
    /// A VM with this RAM, all of it untouched.
    pub fn new(frames: &'a FakeFrames, vm: VmId, range: IpaRange, policy: Policy) -> Self {
        let maps = Maps::new(FakeTranslation::new(), range).unwrap();
        Self {
            ram: GuestRam::new(vm, range, [None, None, None], policy),
            maps: Mutex::new(maps),
            frames,
            swap: RefCell::default(),
            between: RefCell::default(),
            never_shared: Cell::default(),
        }
    }

    /// Marks a page as never to be shared.
    pub fn never_share(&self, gfn: Gfn) {
        self.never_shared.set(Some(gfn));
    }

    /// Marks a page so where its memory is looked after only, as another CPU does while a device is at work.
    pub fn keep_secret(&self, gfn: Gfn) -> bool {
        self.lock().set_never_share(gfn, true)
    }

    pub(crate) fn never_shares(&self, gfn: Gfn) -> bool {
        self.never_shared.get() == Some(gfn)
    }

    /// Lets something happen between the steps of a device, as on another CPU.
    pub fn between(&self, happens: impl Fn(&Guest<'a>) + 'a) {
        *self.between.borrow_mut() = Some(Box::new(happens));
    }

    pub(crate) fn others_act(&self) {
        // What happens may itself go through here.
        let happens = self.between.borrow_mut().take();
        if let Some(happens) = happens {
            happens(self);
            *self.between.borrow_mut() = Some(happens);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Maps<FakeTranslation>> {
        self.maps.try_lock().unwrap()
    }

    /// The frame that the hardware finds for the guest, after faults if there must be some.
    fn seen(&self, ipa: Ipa, access: Access) -> Result<Mfn, Filled> {
        for _ in 0..6 {
            let seen = self.lock().tables_mut().mmu.translate(ipa);
            if let Ok(translation) = seen
                && (translation.leaf.write || !access.writes())
            {
                self.frames.check_shown(translation.pa.frame());
                return Ok(translation.pa.frame());
            }
            let lock = || self.lock();
            match self.ram.fill(ipa, NODE, access, self.frames, &lock) {
                Filled::Done => {}
                Filled::Away(token) => self.bring(ipa.frame(), token)?,
                refused => return Err(refused),
            }
        }
        Err(Filled::Refused)
    }

    /// Takes the frame of a page that others use, or writes a page of its own to the swap first;
    /// whether it went. Tokens: an image's frame, or a place in the swap.
    pub fn evict(&self, gfn: Gfn) -> bool {
        let mut maps = self.lock();
        let entry = maps.entry(gfn);
        let Some(frame) = entry.frame() else {
            return false;
        };
        let token = if let Backing::Private(_) = entry.backing {
            for _ in 0..2 {
                maps.age(gfn, |at, _| at == gfn, &mut heapless::Vec::new());
            }
            let mut swap = self.swap.borrow_mut();
            let copy = |frame| swap.push(self.frames.contents(frame).unwrap());
            assert!(maps.begin_out(gfn, copy), "nobody touched it");
            (swap.len() as u64 - 1) << 1 | 1
        } else {
            let state = self.frames.map().entry(frame).unwrap().state();
            if state.origin != Origin::Image {
                return false;
            }
            frame.0 << 1
        };
        assert!(maps.discard(&self.ram, gfn, frame, token, self.frames));
        true
    }

    /// Brings a page back that was evicted.
    fn bring(&self, gfn: Gfn, token: u64) -> Result<(), Filled> {
        let user = self.user(gfn);
        let image = Mfn(token >> 1);
        let entry = if token & 1 == 0 && self.frames.join(image, user).is_ok() {
            Entry::shared(image)
        } else {
            let new = self.frames.allocate(NODE, 0, Purpose::Private(user));
            let new = new.ok_or(Filled::NoMemory)?;
            self.frames.zero(new, 1);
            let bytes = match token & 1 {
                0 => self.frames.contents(image).unwrap(),
                _ => self.swap.borrow()[(token >> 1) as usize].clone(),
            };
            self.frames.store(new, 0, &bytes);
            self.frames.drop_code(new, 1);
            Entry {
                why: Why::Evicted,
                ..Entry::private(new)
            }
        };
        assert!(self.lock().restore(gfn, token, entry));
        Ok(())
    }

    /// The guest's own store; `false` where a fault found no memory, and the VM would end.
    pub fn put(&self, ipa: Ipa, bytes: &[u8]) -> bool {
        pieces(ipa, bytes.len()).all(|(at, part)| match self.seen(at, Access::Write) {
            Ok(frame) => {
                self.frames.store(frame, at.offset(), &bytes[part]);
                true
            }
            Err(_) => false,
        })
    }

    /// The guest's own load.
    pub fn get(&self, ipa: Ipa, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, part) in pieces(ipa, len) {
            let frame = self.seen(at, Access::Read).unwrap();
            self.frames.load(frame, at.offset(), &mut bytes[part]);
        }
        bytes
    }

    /// Takes away what is behind these guest frames, for the balloon.
    pub fn release(&self, gfn: Gfn, count: u64) {
        self.lock().release(&self.ram, gfn, count, self.frames);
    }

    /// Gives all memory back; how many tables are left then.
    pub fn end(self) -> usize {
        let mut maps = self.maps.into_inner().unwrap();
        maps.tables_mut().mmu.switch_off();
        let mut dismantling = maps.dismantle(self.ram.vm);
        while !dismantling.step(self.frames, 100) {}
        dismantling.tables().tables_in_use()
    }

    pub(crate) fn policy(&self) -> Policy {
        self.ram.policy()
    }

    pub(crate) fn user(&self, gfn: Gfn) -> Owner {
        let vm = self.ram.vm;
        Owner { vm, gfn }
    }

    pub(crate) fn exchange_now(&self, pages: &[(Gfn, Gets)]) -> u64 {
        self.lock().exchange(&self.ram, None, pages, self.frames)
    }

    pub(crate) fn with_frame<R>(
        &self,
        ipa: Ipa,
        access: Access,
        with: impl FnOnce(Mfn) -> R,
    ) -> Result<R, GuestMemoryError> {
        let (at, lock) = ((ipa, access), || self.lock());
        let mut with = Some(with);
        let mut once = || {
            let with = |frame| with.take().map(|with| with(frame)).unwrap();
            self.ram.with_frame(at, NODE, self.frames, &lock, with)
        };
        let done = match once() {
            Err(Filled::Away(token)) => self.bring(ipa.frame(), token).and_then(|()| once()),
            done => done,
        };
        done.map_err(|filled| match filled {
            Filled::NoMemory => GuestMemoryError::NoFrame(ipa),
            Filled::Done | Filled::Refused | Filled::Away(_) | Filled::Held(_) => {
                GuestMemoryError::NotMemory(ipa)
            }
        })
    }
}

/// The pieces of a run that lie in one frame each: where, and which bytes of it.
pub(crate) fn pieces(ipa: Ipa, len: usize) -> impl Iterator<Item = (Ipa, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = Ipa(ipa.0 + done as u64);
        let piece = (len - done).min((FRAME_SIZE - at.offset()) as usize);
        done += piece;
        (piece > 0).then(|| (at, done - piece..done))
    })
}

impl GuestMemory for Guest<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        for (at, part) in pieces(ipa, into.len()) {
            self.with_frame(at, Access::Read, |frame| {
                self.frames.load(frame, at.offset(), &mut into[part]);
            })?;
        }
        Ok(())
    }

    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        for (at, part) in pieces(ipa, from.len()) {
            let access = match part.len() as u64 {
                FRAME_SIZE => Access::Overwrite,
                _ => Access::Write,
            };
            self.with_frame(at, access, |frame| {
                self.frames.store(frame, at.offset(), &from[part]);
            })?;
        }
        Ok(())
    }

    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.ram.range.contains_run(ipa, len)
    }
}
