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
//! VMs and not of users. Once they are of more VMs than a line has counts of, until no line is left, the four lines
//! at the front hold the numbers of all VMs as binary digits, each a set of VMs, which are charged together; where
//! there are fewer lines, the list is gone through.

use model_frame_table::{LockedFrame, Owner};

use crate::{ACCOUNTS, Accounts, Ground, Link, MAX_USERS, RecordId, Size, account::share};

/// Users in a line, and the words before them.
const PER_LINE: u32 = 5;
const HEAD: usize = Size::Line.words() - PER_LINE as usize;
/// Users of a frame that takes no line: the first, and three in records of one.
const SMALL: u32 = 4;
/// Lines whose two words beside users and link hold [`Digits`], and the least users that fill so many.
const DIGIT_LINES: usize = 4;
const MANY: u32 = SMALL + PER_LINE * (DIGIT_LINES as u32 - 1) + 1;
const _: () = assert!(MAX_USERS < 1 << (2 * DIGIT_LINES - 1));

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
    const fn of_words(low: u64, high: u64) -> Self {
        Self((high as u128) << 64 | low as u128)
    }

    /// Whether the words were no counts, as there are more VMs than those have room for.
    const fn are_none(self) -> bool {
        self.0 as u64 == Digits::MARK
    }

    /// Where the number of `slot` is, or where it would be put.
    fn place(self, slot: u16) -> Option<u32> {
        let mut all = (0..u128::BITS).step_by(16);
        all.find(|at| {
            let one = (self.0 >> at) as u16;
            one == 0 || one >> 8 == slot
        })
    }

    /// One user more of the VM in `slot`, unless that would be one VM too many; a VM without an account is not counted.
    fn add(self, slot: u16) -> Option<Self> {
        if usize::from(slot) >= ACCOUNTS {
            return Some(self);
        }
        let at = self.place(slot)?;
        Some(match self.0 >> at {
            0 => Self(self.0 | u128::from(slot << 8 | 1) << at),
            _ => Self(self.0 + (1 << at)),
        })
    }

    /// One user less of a VM that has some.
    fn remove(self, slot: u16) -> Self {
        match self.place(slot) {
            Some(at) if (self.0 >> at) as u8 == 1 => {
                let below = (1 << at) - 1;
                Self(self.0 & below | self.0 >> 16 & !below)
            }
            Some(at) if self.0 >> at != 0 => Self(self.0 - (1 << at)),
            _ => self,
        }
    }
}

/// How many users each VM has, as binary digits: in each word but the first, the set of VMs whose number has that digit.
#[derive(Clone, Copy)]
struct Digits([u64; 2 * DIGIT_LINES]);

impl Digits {
    /// The first word: no VM has a count that looks like it.
    const MARK: u64 = u64::MAX;
    const NONE: Self = {
        let mut words = [0; 2 * DIGIT_LINES];
        words[0] = Self::MARK;
        Self(words)
    };

    /// The set of one VM; of none where it has no account.
    fn only(slot: u16) -> u64 {
        1_u64.checked_shl(slot.into()).unwrap_or(0)
    }

    /// One user more of the VM in `slot`.
    fn add(&mut self, slot: u16) {
        let mut carry = Self::only(slot);
        for digit in &mut self.0[1..] {
            if carry == 0 {
                return;
            }
            (*digit, carry) = (*digit ^ carry, *digit & carry);
        }
    }

    /// One user less of a VM that has some.
    fn remove(&mut self, slot: u16) {
        let mut borrow = Self::only(slot);
        for digit in &mut self.0[1..] {
            if borrow == 0 {
                return;
            }
            (*digit, borrow) = (*digit ^ borrow, !*digit & borrow);
        }
    }

    /// Charges each user so many units more, in two's complement.
    fn charge(&self, accounts: &Accounts, units: u64) {
        for (digit, set) in self.0[1..].iter().enumerate() {
            if *set != 0 {
                accounts.charge_set(*set, units << digit);
            }
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
    fn charge_vms(&self, counts: Counts, units: u64) {
        let mut rest = counts.0;
        while rest as u16 != 0 {
            let (slot, count) = (rest as u16 >> 8, u64::from(rest as u8));
            let units = units.wrapping_mul(count);
            self.ground.accounts().change(slot, 0, units);
            rest >>= 16;
        }
    }

    /// [`Self::charge`] where they are of many VMs; what the lines at the front hold of them, if there are enough.
    fn charge_many(&self, front: RecordId, users: u32, units: u64) -> Option<Digits> {
        if users < MANY {
            self.charge(users, units);
            return None;
        }
        let digits = self.digits(front);
        digits.charge(self.ground.accounts(), units);
        Some(digits)
    }

    fn digits(&self, front: RecordId) -> Digits {
        let (mut digits, mut line) = (Digits::NONE, front);
        for pair in digits.0.chunks_exact_mut(2) {
            let [next, low, high] = self.ground.read(line);
            (pair[0], pair[1]) = (low, high);
            match Link::decode(next) {
                Link::Record(next) => line = next,
                _ => break,
            }
        }
        digits
    }

    /// Notes of how many VMs the list's users are, beginning with a line at its front.
    fn set_counts(&self, line: RecordId, counts: Option<Counts>) {
        match counts {
            Some(counts) => {
                self.ground.write(line, 1, counts.0 as u64);
                self.ground.write(line, 2, (counts.0 >> 64) as u64);
            }
            None => self.set_digits(None),
        }
    }

    /// [`Self::set_counts`] where they are of many; they are counted where that is of use and was not done before.
    #[inline(never)]
    fn set_digits(&self, digits: Option<Digits>) {
        let Some(mut line) = self.front() else {
            return;
        };
        if self.frame.users() < MANY {
            return self.ground.write(line, 1, Digits::MARK);
        }
        let digits = digits.unwrap_or_else(|| {
            let mut digits = Digits::NONE;
            self.users(|user| digits.add(user.vm.index));
            digits
        });
        for pair in digits.0.chunks_exact(2) {
            self.ground.write(line, 1, pair[0]);
            self.ground.write(line, 2, pair[1]);
            let [next] = self.ground.read(line);
            match Link::decode(next) {
                Link::Record(next) => line = next,
                _ => break,
            }
        }
    }

    /// Puts a new user into the list, who is counted already, and takes the record that it [needs](needed).
    pub fn push(&mut self, spares: &mut [Option<RecordId>; 2], user: Owner) {
        let users = self.frame.users();
        self.frame.set_recent(true);
        if users == 1 {
            self.frame.set_first_record(Link::Last(user).encode());
        } else {
            self.push_beside(spares, user);
        }
        let accounts = self.ground.accounts();
        accounts.change(user.vm.index, 1, share(users));
    }

    /// [`Self::push`] where there are others, which are charged less from now on.
    fn push_beside(&mut self, [one, line]: &mut [Option<RecordId>; 2], user: Owner) {
        let users = self.frame.users();
        let change = share(users).wrapping_sub(share(users - 1));
        if users > SMALL {
            self.push_to_line(line, user, change);
        } else if let Some(id) = one.take() {
            self.charge(users - 1, change);
            self.ground.write(id, 1, user.encode());
            self.put_first(id);
        }
    }

    /// Puts a record before all that there are.
    fn put_first(&mut self, id: RecordId) {
        self.ground.write(id, 0, self.frame.first_record());
        self.frame.set_first_record(Link::Record(id).encode());
    }

    #[inline(never)]
    fn push_to_line(&mut self, spare: &mut Option<RecordId>, user: Owner, change: u64) {
        let (users, slot) = (self.frame.users(), user.vm.index);
        let line = self.front();
        let mut counts = Counts(0);
        if let Some(line) = line {
            let [_, low, high] = self.ground.read(line);
            counts = Counts::of_words(low, high);
            if counts.are_none() {
                return self.push_to_many(line, spare, user, change);
            }
        } else {
            self.walk(SMALL, |user, _| {
                // So few are not too many.
                counts = counts.add(Owner::decode(user).vm.index).unwrap_or(counts);
                true
            });
        }
        self.charge_vms(counts, change);
        let new = spare.take_if(|_| in_front(users) == 1);
        if let Some(line) = self.put_in_front(new.or(line), new.is_some(), user) {
            self.set_counts(line, counts.add(slot));
        }
    }

    /// [`Self::push_to_line`] where users are of many VMs.
    #[inline(never)]
    fn push_to_many(
        &mut self,
        line: RecordId,
        spare: &mut Option<RecordId>,
        user: Owner,
        change: u64,
    ) {
        let users = self.frame.users();
        let mut digits = self.charge_many(line, users - 1, change);
        let new = spare.take_if(|_| in_front(users) == 1);
        self.put_in_front(new.or(Some(line)), new.is_some(), user);
        if let Some(digits) = &mut digits {
            digits.add(user.vm.index);
        }
        self.set_digits(digits);
    }

    /// Puts the newest user into the line at the front, which may be new; that line.
    fn put_in_front(
        &mut self,
        line: Option<RecordId>,
        is_new: bool,
        user: Owner,
    ) -> Option<RecordId> {
        let line = line?;
        if is_new {
            self.put_first(line);
        }
        let place = in_front(self.frame.users());
        self.ground.write(line, HEAD - 1 + place, user.encode());
        Some(line)
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
        let counts = Counts::of_words(words[1], words[2]);
        // They begin in the line that may go.
        let digits = (counts.are_none() && others >= MANY).then(|| self.digits(id));
        if count == 1 {
            self.frame.set_first_record(words[0]);
        }
        if counts.are_none() {
            self.leave_many(digits, slot, change);
        } else {
            let counts = counts.remove(slot);
            if let Some(line) = self.front() {
                self.set_counts(line, Some(counts));
            }
            self.charge_vms(counts, change);
        }
        (count == 1).then_some(id)
    }

    /// What [`Self::pop_from_line`] counts and charges where users are of many VMs.
    #[inline(never)]
    fn leave_many(&self, digits: Option<Digits>, slot: u16, change: u64) {
        let digits = digits.map(|mut digits| {
            digits.remove(slot);
            digits.charge(self.ground.accounts(), change);
            digits
        });
        if digits.is_none() {
            self.charge(self.frame.users(), change);
        }
        self.set_digits(digits);
    }
}
