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
pub(crate) struct Counts(u128);

impl Counts {
    const NONE: Self = Self(0);
    /// Users are of more VMs than there is room for.
    const UNKNOWN: Self = Self(u128::MAX);

    const fn of_words(low: u64, high: u64) -> Self {
        Self((high as u128) << 64 | low as u128)
    }

    /// Slot and number of each.
    fn each(self) -> impl Iterator<Item = (u16, u64)> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let one = rest as u16;
            rest >>= 16;
            (one != 0).then_some((one >> 8, u64::from(one & 0xff)))
        })
    }

    /// Where the number of `slot` is, or where it would be put.
    fn place(self, slot: u16) -> Option<u32> {
        let mut rest = self.0;
        for at in (0..u128::BITS).step_by(16) {
            let one = rest as u16;
            if one == 0 || one >> 8 == slot {
                return Some(at);
            }
            rest >>= 16;
        }
        None
    }

    /// One user more of the VM in `slot`; a VM without an account is not counted.
    fn add(self, slot: u16) -> Self {
        match self.place(slot) {
            _ if usize::from(slot) >= ACCOUNTS => self,
            None => Self::UNKNOWN,
            Some(at) => match self.0 >> at {
                0 => Self(self.0 | u128::from(slot << 8 | 1) << at),
                _ => Self(self.0 + (1 << at)),
            },
        }
    }

    /// One user less.
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

/// The line at the front, of a frame with more than [`SMALL`] users.
fn front(frame: &LockedFrame<'_>) -> Option<RecordId> {
    match Link::decode(frame.first_record()) {
        Link::Record(id) if id.size() == Size::Line => Some(id),
        _ => None,
    }
}

fn set_counts(ground: &impl Ground, line: RecordId, counts: Counts) {
    ground.write(line, 1, counts.0 as u64);
    ground.write(line, 2, (counts.0 >> 64) as u64);
}

/// Calls `each` with users of the frame, which has so many, as words, and where they stand, for as long as it says so.
#[inline]
fn walk(
    ground: &impl Ground,
    frame: &LockedFrame<'_>,
    users: u32,
    mut each: impl FnMut(u64, Place) -> bool,
) {
    let (mut link, mut from) = (frame.first_record(), None);
    if users > SMALL {
        match walk_lines(ground, link, users, &mut each) {
            Some((next, id)) => (link, from) = (next, Some((id, 0))),
            None => return,
        }
    }
    walk_small(ground, link, from, each);
}

/// [`walk`] from a link on that stands at `from` and leads to no line.
#[inline]
fn walk_small(
    ground: &impl Ground,
    mut link: u64,
    mut from: Place,
    mut each: impl FnMut(u64, Place) -> bool,
) {
    for _ in 0..SMALL {
        if let Some(user) = Link::user(link) {
            each(user, from);
            return;
        }
        let Link::Record(id) = Link::decode(link) else {
            return;
        };
        let [next, user] = ground.read(id);
        if !each(user, Some((id, 1))) {
            return;
        }
        (link, from) = (next, Some((id, 0)));
    }
}

/// [`walk`] through lines; what the last of them leads to, and that one, where `each` did not stop it.
#[inline(never)]
fn walk_lines(
    ground: &impl Ground,
    mut link: u64,
    users: u32,
    mut each: impl FnMut(u64, Place) -> bool,
) -> Option<(u64, RecordId)> {
    let mut count = in_front(users);
    for _ in 0..(users - SMALL).div_ceil(PER_LINE) - 1 {
        link = walk_line(ground, link, count, &mut each)?.0;
        count = PER_LINE as usize;
    }
    walk_line(ground, link, count, &mut each)
}

#[inline]
fn walk_line(
    ground: &impl Ground,
    link: u64,
    count: usize,
    mut each: impl FnMut(u64, Place) -> bool,
) -> Option<(u64, RecordId)> {
    let Link::Record(id) = Link::decode(link) else {
        return None;
    };
    let words: [u64; Size::Line.words()] = ground.read(id);
    let mut users = (HEAD..HEAD + count).rev();
    users
        .all(|n| each(words[n], Some((id, n))))
        .then_some((words[0], id))
}

/// Calls `each` with every user of the frame, the newest first where none has gone.
pub(crate) fn users(ground: &impl Ground, frame: &LockedFrame<'_>, mut each: impl FnMut(Owner)) {
    walk(ground, frame, frame.users(), |user, _| {
        each(Owner::decode(user));
        true
    });
}

/// Charges a user so many units more, in two's complement.
fn charge(ground: &impl Ground, user: u64, units: u64) {
    let slot = Owner::decode(user).vm.index;
    ground.accounts().change(slot, 0, units);
}

/// [`charge`] for each user of a frame that has no line.
#[inline]
fn charge_small(ground: &impl Ground, frame: &LockedFrame<'_>, units: u64) {
    walk_small(ground, frame.first_record(), None, |user, _| {
        charge(ground, user, units);
        true
    });
}

/// [`charge`] for each of `users`, all that the list has, of whom each VM has so many.
#[inline]
fn charge_all(
    ground: &impl Ground,
    frame: &LockedFrame<'_>,
    (users, counts): (u32, Counts),
    units: u64,
) {
    if counts == Counts::UNKNOWN {
        return walk(ground, frame, users, |user, _| {
            charge(ground, user, units);
            true
        });
    }
    for (slot, count) in counts.each() {
        let units = units.wrapping_mul(count);
        ground.accounts().change(slot, 0, units);
    }
}

/// Puts a new user into the list, which is counted already, and takes the record that it [needs](needed).
pub(crate) fn push(
    ground: &impl Ground,
    frame: &mut LockedFrame<'_>,
    spares: &mut [Option<RecordId>; 2],
    user: Owner,
) {
    let users = frame.users();
    let units = share(users);
    if users == 1 {
        frame.set_first_record(Link::Last(user).encode());
    } else {
        let change = units.wrapping_sub(share(users - 1));
        let [one, line] = spares;
        if users > SMALL {
            push_to_line(ground, frame, line, user, change);
        } else if let Some(id) = one.take() {
            charge_small(ground, frame, change);
            ground.write(id, 0, frame.first_record());
            ground.write(id, 1, user.encode());
            frame.set_first_record(Link::Record(id).encode());
        }
    }
    ground.accounts().change(user.vm.index, 1, units);
}

#[inline(never)]
fn push_to_line(
    ground: &impl Ground,
    frame: &mut LockedFrame<'_>,
    spare: &mut Option<RecordId>,
    user: Owner,
    change: u64,
) {
    let users = frame.users();
    let line = front(frame);
    let mut counts = Counts::NONE;
    if let Some(line) = line {
        let [_, low, high] = ground.read(line);
        counts = Counts::of_words(low, high);
    } else {
        walk(ground, frame, SMALL, |user, _| {
            counts = counts.add(Owner::decode(user).vm.index);
            true
        });
    }
    charge_all(ground, frame, (users - 1, counts), change);
    let place = in_front(users);
    let new = spare.take_if(|_| place == 1);
    if let Some(id) = new {
        ground.write(id, 0, frame.first_record());
        frame.set_first_record(Link::Record(id).encode());
    }
    if let Some(line) = new.or(line) {
        set_counts(ground, line, counts.add(user.vm.index));
        ground.write(line, HEAD - 1 + place, user.encode());
    }
}

/// Takes `user` out of the list, and off the frame's count; the record that is free now, if there is one.
/// `None` where it is not there, or is no shared frame's.
pub(crate) fn take_out(
    ground: &impl Ground,
    frame: &mut LockedFrame<'_>,
    user: Owner,
) -> Option<Option<RecordId>> {
    let users = frame.users();
    let (mut found, wanted) = (None, user.encode());
    walk(ground, frame, users, |word, place| {
        if word == wanted {
            found = Some(place);
        }
        word != wanted
    });
    let place = found?;
    let others = u32::from(frame.drop_reference().ok()?);
    let (slot, units) = (user.vm.index, share(users));
    let change = share(others).wrapping_sub(units);
    let gone = if users > SMALL {
        pop_from_line(ground, frame, (users, change), (place, slot))
    } else {
        let gone = pop(ground, frame, place);
        if others > 0 {
            charge_small(ground, frame, change);
        }
        gone
    };
    let accounts = ground.accounts();
    accounts.change(slot, u64::MAX, units.wrapping_neg());
    Some(gone)
}

/// Moves the user at the front to `place`, of whoever goes; the record that is empty then.
fn pop(ground: &impl Ground, frame: &mut LockedFrame<'_>, place: Place) -> Option<RecordId> {
    let Link::Record(id) = Link::decode(frame.first_record()) else {
        frame.set_first_record(Link::Nobody.encode());
        return None;
    };
    let [next, user] = ground.read(id);
    let first = if place == Some((id, 0)) {
        Link::last(user)
    } else {
        put(ground, place, user);
        next
    };
    frame.set_first_record(first);
    Some(id)
}

/// Makes a user stand where another stood.
fn put(ground: &impl Ground, place: Place, user: u64) {
    match place {
        Some((id, 0)) => ground.write(id, 0, Link::last(user)),
        Some((id, n)) => ground.write(id, n, user),
        None => {}
    }
}

/// [`pop`] where the front is a line, of so many users, and the change of what the others are charged; whoever goes
/// is of the VM in `slot`.
#[inline(never)]
fn pop_from_line(
    ground: &impl Ground,
    frame: &mut LockedFrame<'_>,
    (users, change): (u32, u64),
    (place, slot): (Place, u16),
) -> Option<RecordId> {
    let id = front(frame)?;
    let words: [u64; Size::Line.words()] = ground.read(id);
    let count = in_front(users);
    put(ground, place, words[HEAD - 1 + count]);
    let mut counts = Counts::of_words(words[1], words[2]);
    if counts != Counts::UNKNOWN {
        counts = counts.remove(slot);
    }
    let gone = count == 1;
    if gone {
        frame.set_first_record(words[0]);
    }
    if let Some(line) = front(frame) {
        set_counts(ground, line, counts);
    }
    charge_all(ground, frame, (users - 1, counts), change);
    gone.then_some(id)
}
