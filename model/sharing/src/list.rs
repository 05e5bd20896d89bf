//! The list of a shared frame's users, which the frame's lock protects, and what they are charged.
//!
//! ```text
//!  users 10 to 13         users 5 to 9           user 4        user 3        user 2
//!  next, counts, 4 ─────► next, counts, 5 ─────► next, 1 ────► next, 1 ────► next, 1
//!  ▲                                                                         │
//!  └── the frame's entry                                                     └► user 1, in the link itself
//! ```
//!
//! A user comes at the front. Where one goes, the user at the front takes its place: so how many users a frame
//! has tells what is in each record. Small frames take little memory, and many users are found in few lines.
//!
//! The line at the front holds how many users each VM has, so that a user that comes or goes changes the charges of
//! VMs and not of users. Once they are of more VMs than a line has counts of, the list is gone through until no line
//! is left.

use model_frame_table::{LockedFrame, Owner};

use crate::{ACCOUNTS, Ground, Link, RecordId, Size, account::share};

/// Users in a line, and the words before them.
const PER_LINE: u32 = 5;
const HEAD: usize = Size::Line.words() - PER_LINE as usize;
/// Users of a frame that takes no line: the first, and three in records of one.
const SMALL: u32 = 4;

/// The record that one more user than `users` needs.
pub(crate) const fn needed(users: u32) -> Option<Size> {
    match users.checked_sub(SMALL) {
        None if users == 0 => None,
        None => Some(Size::One),
        Some(in_lines) if in_lines.is_multiple_of(PER_LINE) => Some(Size::Line),
        Some(_) => None,
    }
}

/// How many of `users` stand in the line at the front.
const fn in_front(users: u32) -> usize {
    (users.saturating_sub(SMALL + 1) % PER_LINE + 1) as usize
}

/// Where a user stands: a word of a record, or, `None`, the frame's entry.
type Place = Option<(RecordId, usize)>;

/// How many users each VM has: 16 bits each, slot and number, those that there are first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts(u128);

impl Counts {
    /// Users are of more VMs than there is room for.
    const UNKNOWN: Self = Self(u128::MAX);

    const fn of_words(low: u64, high: u64) -> Self {
        Self((high as u128) << 64 | low as u128)
    }

    /// Where the number of `slot` is, or where it would be put.
    fn place(self, slot: u16) -> Option<u32> {
        let mut all = (0..u128::BITS).step_by(16);
        all.find(|at| {
            let one = (self.0 >> at) as u16;
            one == 0 || one >> 8 == slot
        })
    }

    /// One user more of the VM in `slot`; a VM without an account is not counted.
    fn add(self, slot: u16) -> Self {
        match self.place(slot) {
            _ if usize::from(slot) >= ACCOUNTS => self,
            None => Self::UNKNOWN,
            Some(at) if self.0 >> at == 0 => Self(self.0 | u128::from(slot << 8 | 1) << at),
            Some(at) => Self(self.0 + (1 << at)),
        }
    }

    /// One user less of a VM that has some.
    fn remove(self, slot: u16) -> Self {
        match self.place(slot) {
            Some(at) if (self.0 >> at) as u8 == 1 => {
                let below = (1 << at) - 1;
                Self(self.0 & below | self.0 >> 16 & !below)
            }
            Some(at) if self != Self::UNKNOWN && self.0 >> at != 0 => Self(self.0 - (1 << at)),
            _ => self,
        }
    }
}

/// A user is not in a list.
pub(crate) struct Absent;

/// The list of a locked frame's users.
pub(crate) struct List<'a, 'f, G> {
    ground: &'a G,
    frame: &'a mut LockedFrame<'f>,
}

impl<'a, 'f, G: Ground> List<'a, 'f, G> {
    pub const fn of(ground: &'a G, frame: &'a mut LockedFrame<'f>) -> Self {
        Self { ground, frame }
    }

    /// The line at the front, of a frame with more than [`SMALL`] users.
    fn front(&self) -> Option<RecordId> {
        match Link::decode(self.frame.first_record()) {
            Link::Record(id) if id.size() == Size::Line => Some(id),
            _ => None,
        }
    }

    fn set_counts(&self, line: RecordId, counts: Counts) {
        self.ground.write(line, 1, counts.0 as u64);
        self.ground.write(line, 2, (counts.0 >> 64) as u64);
    }

    /// Calls `each` with users of the list, which has so many, as words, and where they stand, for as long as it
    /// says so.
    #[inline]
    fn walk(&self, users: u32, mut each: impl FnMut(u64, Place) -> bool) {
        let (mut link, mut from) = (self.frame.first_record(), None);
        if users > SMALL {
            match self.walk_lines(users, &mut each) {
                Some((next, id)) => (link, from) = (next, Some((id, 0))),
                None => return,
            }
        }
        for _ in 0..SMALL {
            if let Some(user) = Link::user(link) {
                each(user, from);
                return;
            }
            let Link::Record(id) = Link::decode(link) else {
                return;
            };
            let [next, user] = self.ground.read(id);
            if !each(user, Some((id, 1))) {
                return;
            }
            (link, from) = (next, Some((id, 0)));
        }
    }

    /// [`Self::walk`] through lines; what the last of them leads to, and that one, where `each` did not stop it.
    #[inline(never)]
    fn walk_lines(
        &self,
        mut users: u32,
        mut each: impl FnMut(u64, Place) -> bool,
    ) -> Option<(u64, RecordId)> {
        let mut line = self.front()?;
        loop {
            let words: [u64; Size::Line.words()] = self.ground.read(line);
            let count = in_front(users);
            let mut places = (HEAD..HEAD + count).rev();
            if !places.all(|n| each(words[n], Some((line, n)))) {
                return None;
            }
            users = users.saturating_sub(count as u32);
            match Link::decode(words[0]) {
                Link::Record(next) if users > SMALL => line = next,
                _ => return Some((words[0], line)),
            }
        }
    }

    /// Calls `each` with every user, the newest first where none has gone.
    pub fn users(&self, mut each: impl FnMut(Owner)) {
        self.walk(self.frame.users(), |user, _| {
            each(Owner::decode(user));
            true
        });
    }

    /// Charges each of `users`, all that the list has, so many units more, in two's complement.
    #[inline]
    fn charge(&self, users: u32, units: u64) {
        self.walk(users, |user, _| {
            let slot = Owner::decode(user).vm.index;
            self.ground.accounts().change(slot, 0, units);
            true
        });
    }

    /// [`Self::charge`] where each VM has so many.
    #[inline]
    fn charge_vms(&self, users: u32, counts: Counts, units: u64) {
        let mut rest = counts.0;
        if counts == Counts::UNKNOWN {
            self.charge(users, units);
            rest = 0;
        }
        while rest as u16 != 0 {
            let (slot, count) = (rest as u16 >> 8, u64::from(rest as u8));
            let units = units.wrapping_mul(count);
            self.ground.accounts().change(slot, 0, units);
            rest >>= 16;
        }
    }

    /// Puts a new user into the list, who is counted already, and takes the record that it [needs](needed).
    pub fn push(&mut self, spares: &mut [Option<RecordId>; 2], user: Owner) {
        let users = self.frame.users();
        let units = share(users);
        let change = units.wrapping_sub(share(users - 1));
        let [one, line] = spares;
        if users == 1 {
            self.frame.set_first_record(Link::Last(user).encode());
        } else if users > SMALL {
            self.push_to_line(line, user, change);
        } else if let Some(id) = one.take() {
            self.charge(users - 1, change);
            self.ground.write(id, 1, user.encode());
            self.put_first(id);
        }
        self.frame.set_recent(true);
        let accounts = self.ground.accounts();
        accounts.change(user.vm.index, 1, units);
    }

    /// Puts a record before all that there are.
    fn put_first(&mut self, id: RecordId) {
        self.ground.write(id, 0, self.frame.first_record());
        self.frame.set_first_record(Link::Record(id).encode());
    }

    #[inline(never)]
    fn push_to_line(&mut self, spare: &mut Option<RecordId>, user: Owner, change: u64) {
        let users = self.frame.users();
        let line = self.front();
        let mut counts = Counts(0);
        if let Some(line) = line {
            let [_, low, high] = self.ground.read(line);
            counts = Counts::of_words(low, high);
        } else {
            self.walk(SMALL, |user, _| {
                counts = counts.add(Owner::decode(user).vm.index);
                true
            });
        }
        self.charge_vms(users - 1, counts, change);
        let place = in_front(users);
        let new = spare.take_if(|_| place == 1);
        if let Some(id) = new {
            self.put_first(id);
        }
        if let Some(line) = new.or(line) {
            self.set_counts(line, counts.add(user.vm.index));
            self.ground.write(line, HEAD - 1 + place, user.encode());
        }
    }

    /// Takes `user` out of the list, and off the frame's count; the record that is free now, if there is one.
    ///
    /// # Errors
    /// The user is not there, or the frame is not shared.
    pub fn take_out(&mut self, user: Owner) -> Result<Option<RecordId>, Absent> {
        let users = self.frame.users();
        let (mut found, wanted) = (None, user.encode());
        self.walk(users, |word, place| {
            if word == wanted {
                found = Some(place);
            }
            word != wanted
        });
        let place = found.ok_or(Absent)?;
        let others = u32::from(self.frame.drop_reference().map_err(|_| Absent)?);
        let (slot, units) = (user.vm.index, share(users));
        let change = share(others).wrapping_sub(units);
        let gone = if users > SMALL {
            self.pop_from_line(place, slot, change)
        } else {
            let gone = self.pop(place);
            if others > 0 {
                self.charge(others, change);
            }
            gone
        };
        let accounts = self.ground.accounts();
        accounts.change(slot, u64::MAX, units.wrapping_neg());
        Ok(gone)
    }

    /// Moves the user at the front to `place`, of whoever goes; the record that is empty then.
    fn pop(&mut self, place: Place) -> Option<RecordId> {
        let Link::Record(id) = Link::decode(self.frame.first_record()) else {
            self.frame.set_first_record(Link::Nobody.encode());
            return None;
        };
        let [_, user] = self.ground.read(id);
        self.put(place, user);
        // The first user may stand in it now.
        let [next] = self.ground.read(id);
        self.frame.set_first_record(next);
        Some(id)
    }

    /// Makes a user stand where another stood.
    fn put(&self, place: Place, user: u64) {
        match place {
            Some((id, 0)) => self.ground.write(id, 0, Link::last(user)),
            Some((id, n)) => self.ground.write(id, n, user),
            None => {}
        }
    }

    /// [`Self::pop`] where the front is a line; whoever goes, and is counted no more, is of the VM in `slot`, and
    /// each of the others is charged so much more.
    #[inline(never)]
    fn pop_from_line(&mut self, place: Place, slot: u16, change: u64) -> Option<RecordId> {
        let others = self.frame.users();
        let id = self.front()?;
        let words: [u64; Size::Line.words()] = self.ground.read(id);
        let count = in_front(others + 1);
        self.put(place, words[HEAD - 1 + count]);
        let counts = Counts::of_words(words[1], words[2]).remove(slot);
        if count == 1 {
            self.frame.set_first_record(words[0]);
        }
        if let Some(line) = self.front() {
            self.set_counts(line, counts);
        }
        self.charge_vms(others, counts, change);
        (count == 1).then_some(id)
    }
}
