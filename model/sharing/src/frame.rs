//! Users come and go.

use model_addr::Mfn;
use model_frame_table::{
    CacheKey, Chain, Event, FrameEntry, FrameState, LockedFrame, Origin, Owner, Refused, Use,
};

use crate::{Ground, LONGEST_CHAIN, Link, RELISTED, RecordId, UNIT, account::share};

/// The most users that a frame has: what one of them does costs all of them a little.
pub const MAX_USERS: u32 = 64;

/// What a frame must be for somebody to join it. It is asked again once the frame is locked, for a
/// frame that was found without a lock may be another's by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// An image's. Whether the user may read that image is for whoever keeps the disks.
    Image,
    /// Of this share group, and no image's. The caller has compared its contents and still holds
    /// the lock of the stripe where it found it.
    Group(u16),
    /// Of this share group and disk block, and no image's.
    Block(CacheKey),
}

impl Expect {
    fn check(self, frame: &LockedFrame<'_>) -> Result<(), NotJoined> {
        let is_image = frame.state().origin == Origin::Image;
        let key = frame.cache_key();
        let (fits, group) = match self {
            Self::Image => {
                return if is_image {
                    Ok(())
                } else {
                    Err(NotJoined::Gone)
                };
            }
            Self::Group(group) => (true, group),
            Self::Block(wanted) => {
                let is_same = (key.disk, key.block) == (wanted.disk, wanted.block);
                (is_same, wanted.group)
            }
        };
        if is_image || !fits {
            Err(NotJoined::Gone)
        } else if key.group != group {
            Err(NotJoined::OtherGroup)
        } else {
            Ok(())
        }
    }
}

/// What came of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// How many users the frame has now.
    pub users: u32,
    /// Whether it was kept for nobody before.
    pub revived: bool,
}

/// Why a frame was not joined, or not made a shared one. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotJoined {
    /// It is not what was expected, or no longer: another CPU was faster.
    #[error("the frame is another one by now")]
    Gone,
    /// It is of another share group.
    #[error("the frame is of another share group")]
    OtherGroup,
    /// It has [`MAX_USERS`] users.
    #[error("the frame has as many users as it may have")]
    Full,
    /// There is no memory for a record of one more user.
    #[error("no memory is left for the record of a user")]
    NoMemory,
}

/// What became of a frame that a user left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// So many others use it.
    Others(u32),
    /// Nobody uses it, and it is kept.
    Kept,
    /// Nobody uses it, and it went back to its pool.
    Freed,
}

/// Adds `user` to a shared frame, or to one that is kept: then it is its only user.
///
/// # Errors
/// Any [`NotJoined`].
pub fn join(
    ground: &impl Ground,
    frame: Mfn,
    user: Owner,
    expect: Expect,
) -> Result<Joined, NotJoined> {
    let entry = ground.map().entry(frame).ok_or(NotJoined::Gone)?;
    // The boot loader wrote it. Whoever finds that it has users need not: it was done before the first.
    if expect == Expect::Image && entry.state().usage == Use::CachedOnly {
        ground.clean(frame);
    }
    let mut record = None;
    let joined = loop {
        // Only where there are others: whoever is alone needs none.
        let state = entry.state();
        if record.is_none() && state.usage == Use::Shared {
            let taken = ground.take_record(state.node, user);
            record = Some(taken.ok_or(NotJoined::NoMemory)?);
        }
        match join_with(ground, entry, &mut record, user, expect) {
            Ok(None) => {}
            Ok(Some(joined)) => break Ok(joined),
            Err(refused) => break Err(refused),
        }
    };
    if let Some(record) = record {
        ground.give_record(record);
    }
    joined
}

/// [`join`] with a record, if there is one; `None` where one is needed.
fn join_with(
    ground: &impl Ground,
    entry: &FrameEntry,
    record: &mut Option<RecordId>,
    user: Owner,
    expect: Expect,
) -> Result<Option<Joined>, NotJoined> {
    let mut frame = entry.lock_shared().ok_or(NotJoined::Gone)?;
    expect.check(&frame)?;
    let before = frame.users();
    if before >= MAX_USERS {
        return Err(NotJoined::Full);
    }
    let revived = frame.state().usage == Use::CachedOnly;
    if !revived && record.is_none() {
        return Ok(None);
    }
    let counted = if revived {
        frame.step(Event::Revive).map(|_| ())
    } else {
        frame.add_reference()
    };
    counted.map_err(|_| NotJoined::Gone)?;
    if revived && frame.state().origin != Origin::Image {
        ground.accounts().change_cached(-1);
    }
    let users = frame.users();
    if before > 0 {
        change_all(ground, &frame, before, users);
    }
    push(ground, &mut frame, record, user);
    Ok(Some(Joined { users, revived }))
}

/// Adds `user` to a frame of `group` that holds what `page` holds, if one is found that has room. `page` is EL2's
/// own, or changes only by its guest's fault. The caller holds no stripe's lock.
///
/// A full frame that is met leaves the chain, and is not compared; [`leave`] puts it back. So of equal frames the
/// first one met is joined, and what this costs does not grow with how many there are.
pub fn join_equal(ground: &impl Ground, page: Mfn, user: Owner, group: u16) -> Option<Mfn> {
    let (map, index) = (ground.map(), ground.index());
    let bucket = index.content_bucket(group, |n| ground.word(page, n));
    let _guard = ground.lock_stripe(bucket.stripe());
    let found = index.find(map, bucket, |frame, entry| {
        if is_full(entry.state()) {
            index.remove(map, bucket, frame);
            return false;
        }
        frame != page
            && ground.is_equal(frame, page)
            && join(ground, frame, user, Expect::Group(group)).is_ok()
    });
    found.map(|(frame, _)| frame)
}

/// Whether a frame takes no more users.
fn is_full(state: FrameState) -> bool {
    u32::from(state.references) >= MAX_USERS
}

/// Makes a private frame of `user` a shared one with it as the only user: nobody may write it any
/// more, and `key` says what is known of it.
///
/// # Errors
/// [`NotJoined::Gone`] where the frame is not the user's private one.
pub fn publish(
    ground: &impl Ground,
    frame: Mfn,
    user: Owner,
    key: CacheKey,
) -> Result<(), NotJoined> {
    let entry = ground.map().entry(frame).ok_or(NotJoined::Gone)?;
    let mut frame = entry.lock().ok_or(NotJoined::Gone)?;
    let is_users = frame.state().usage == Use::Private && frame.owner() == user;
    if !is_users || frame.step(Event::Share).is_err() {
        return Err(NotJoined::Gone);
    }
    frame.set_cache_key(key);
    frame.set_first_record(Link::Nobody.encode());
    push(ground, &mut frame, &mut None, user);
    Ok(())
}

/// Lets others find a shared frame by what it holds, and by its block of a disk. Nobody writes it any more, and no
/// TLB lets anybody: what a guest left in memory, but not in caches, is what all see from now on.
pub fn enlist(ground: &impl Ground, frame: Mfn) {
    let Some(entry) = ground.map().entry(frame) else {
        return;
    };
    ground.clean(frame);
    let (index, key) = (ground.index(), entry.cache_key());
    let content = index.content_bucket(key.group, |n| ground.word(frame, n));
    let block = (key.disk != 0).then(|| index.block_bucket(key));
    for bucket in block.into_iter().chain([content]) {
        let _guard = ground.lock_stripe(bucket.stripe());
        index.insert(ground.map(), bucket, frame, LONGEST_CHAIN);
    }
}

/// Takes `user` from a shared frame; once, where it is there several times. `None` where it is not
/// a user. The frame that nobody uses any more is kept where it is an image's, or where `keep` says
/// so and it holds a disk's block; any other is freed, so the caller holds no stripe's lock.
///
/// It needs neither the user's pmap nor its VM: it may be called long after the mapping was gone.
pub fn leave(ground: &impl Ground, frame: Mfn, user: Owner, keep: bool) -> Option<Left> {
    let entry = ground.map().entry(frame)?;
    let state = entry.state();
    let is_image = state.origin == Origin::Image;
    // One that left its chain as it was full (`join_equal`) goes back, and nobody looks until there is room in it.
    // As the user is one of its users, it stays what it is. One that is full a moment later may be missed.
    let stripe = (is_full(state) && !is_image).then(|| {
        let (index, group) = (ground.index(), entry.cache_key().group);
        let bucket = index.content_bucket(group, |n| ground.word(frame, n));
        let stripe = ground.lock_stripe(bucket.stripe());
        index.insert(ground.map(), bucket, frame, RELISTED);
        stripe
    });
    let mut locked = entry.lock_shared()?;
    let record = take_out(ground, &mut locked, user).ok()?;
    let left = match locked.users() {
        0 if is_image || keep && locked.cache_key().disk != 0 => Left::Kept,
        0 => Left::Freed,
        others => Left::Others(others),
    };
    if locked.users() == 0 && locked.step(Event::Retire).is_ok() && !is_image {
        ground.accounts().change_cached(1);
    }
    drop((locked, stripe));
    if let Some(record) = record {
        ground.give_record(record);
    }
    // Where somebody found it before it left the index, it is used again.
    if left == Left::Freed && !evict(ground, frame) {
        return Some(Left::Kept);
    }
    Some(left)
}

/// Makes a shared frame the private memory of `user`, its only user, who may then write it. `false`
/// where it has other users or is an image's; the user needs a copy then. The frame leaves the
/// index first, so the caller holds no stripe's lock.
pub fn claim(ground: &impl Ground, frame: Mfn, user: Owner) -> bool {
    let Some(entry) = ground.map().entry(frame) else {
        return false;
    };
    let claimed = claim_unindexed(ground, entry, user);
    if claimed != Err(Refused::Indexed) {
        return claimed.is_ok();
    }
    unindex(ground, frame, |state| {
        state.usage == Use::Shared && state.references == 1
    });
    claim_unindexed(ground, entry, user).is_ok()
}

fn claim_unindexed(ground: &impl Ground, entry: &FrameEntry, user: Owner) -> Result<(), Refused> {
    let mut frame = entry.lock_shared().ok_or(Refused::PoolOnly)?;
    if Link::decode(frame.first_record()) != Link::Last(user) {
        return Err(Refused::References(frame.state().references));
    }
    frame.step(Event::Claim)?;
    frame.set_owner(user);
    ground
        .accounts()
        .change(user.vm, u64::MAX, UNIT.wrapping_neg());
    Ok(())
}

/// Frees a kept frame that nobody uses, no image's: takes it out of the index, then gives it to
/// its pool. `false` where it is none, or is used again. The caller holds no stripe's lock.
pub fn evict(ground: &impl Ground, frame: Mfn) -> bool {
    let Some(entry) = ground.map().entry(frame) else {
        return false;
    };
    let may_go =
        |state: FrameState| state.usage == Use::CachedOnly && state.origin != Origin::Image;
    if !may_go(entry.state()) {
        return false;
    }
    unindex(ground, frame, may_go);
    // Whoever takes this step frees it; nobody else can any more.
    let locked = entry.lock_shared();
    if locked.is_none_or(|mut frame| frame.step(Event::Discard).is_err()) {
        return false;
    }
    ground.accounts().change_cached(-1);
    ground.free(frame);
    true
}

/// Takes a frame out of the index, while `still` says so of its state.
fn unindex(ground: &impl Ground, frame: Mfn, still: impl Fn(FrameState) -> bool) {
    let Some(entry) = ground.map().entry(frame) else {
        return;
    };
    let (map, index, key) = (ground.map(), ground.index(), entry.cache_key());
    for chain in Chain::ALL {
        if entry.state().chains & chain.bit() == 0 {
            continue;
        }
        let bucket = match chain {
            Chain::Content => index.content_bucket(key.group, |n| ground.word(frame, n)),
            Chain::Block => index.block_bucket(key),
        };
        let _guard = ground.lock_stripe(bucket.stripe());
        // Whoever finds it there holds the stripe's lock until it has joined.
        if still(entry.state()) {
            index.remove(map, bucket, frame);
        }
    }
}

/// Calls `each` with every user of a shared frame, at most [`MAX_USERS`]. The frame is locked
/// meanwhile.
pub fn users(ground: &impl Ground, frame: Mfn, mut each: impl FnMut(Owner)) {
    let entry = ground.map().entry(frame);
    if let Some(frame) = entry.and_then(FrameEntry::lock_shared) {
        walk(ground, &frame, |user, _| {
            each(user);
            true
        });
    }
}

/// Calls `each` with users of the frame, and whether all from there on are known to be of one VM, for as long as
/// it says so.
fn walk(ground: &impl Ground, frame: &LockedFrame<'_>, mut each: impl FnMut(Owner, bool) -> bool) {
    let mut link = Link::decode(frame.first_record());
    for _ in 0..MAX_USERS {
        let (user, alike, next) = match link {
            Link::Nobody => break,
            Link::Last(user) => (user, true, Link::Nobody),
            Link::Record(id, alike) => {
                let record = ground.record(id);
                (record.user, alike, record.next)
            }
        };
        if !each(user, alike) {
            break;
        }
        link = next;
    }
}

/// Tells the accounts of all in the frame's list that it has `after` users instead of `before`; the list has
/// the smaller number of them. Those at its end that are of one VM are told of at once.
fn change_all(ground: &impl Ground, frame: &LockedFrame<'_>, before: u32, after: u32) {
    let mut left = u64::from(before.min(after));
    let units = share(after).wrapping_sub(share(before));
    walk(ground, frame, |user, alike| {
        let count = if alike { left } else { 1 };
        ground
            .accounts()
            .change(user.vm, 0, units.wrapping_mul(count));
        left = left.saturating_sub(count);
        left > 0
    });
}

/// Puts a new user into the frame's list; takes the record where others are there.
fn push(
    ground: &impl Ground,
    frame: &mut LockedFrame<'_>,
    record: &mut Option<RecordId>,
    user: Owner,
) {
    let link = match (Link::decode(frame.first_record()), record.take()) {
        (Link::Nobody, unused) => {
            *record = unused;
            Link::Last(user)
        }
        (_, None) => return,
        (first, Some(record)) => {
            let mut alike = false;
            walk(ground, frame, |first, all| {
                alike = all && first.vm == user.vm;
                false
            });
            ground.set_next(record, first);
            Link::Record(record, alike)
        }
    };
    frame.set_first_record(link.encode());
    frame.set_recent(true);
    ground.accounts().change(user.vm, 1, share(frame.users()));
}

/// Takes `user` out of the frame's list, and off its count; the record that is free now, if
/// it had one.
///
/// # Errors
/// [`Refused::References`] where it is not there.
fn take_out(
    ground: &impl Ground,
    frame: &mut LockedFrame<'_>,
    user: Owner,
) -> Result<Option<RecordId>, Refused> {
    let absent = Err(Refused::References(frame.state().references));
    // The records before, the nearer one first.
    let mut before: [Option<RecordId>; 2] = [None; 2];
    let mut link = Link::decode(frame.first_record());
    // What leads to whoever is left, and from where; and the record that goes.
    let (from, left, gone) = 'found: {
        for _ in 0..MAX_USERS {
            match link {
                Link::Nobody => return absent,
                Link::Last(last) if last != user => return absent,
                Link::Last(_) => match before {
                    [None, _] => break 'found (None, Link::Nobody, None),
                    // The one before is the last from now on.
                    [Some(id), further] => {
                        break 'found (further, Link::Last(ground.record(id).user), Some(id));
                    }
                },
                Link::Record(id, _) => {
                    let record = ground.record(id);
                    if record.user == user {
                        break 'found (before[0], record.next, Some(id));
                    }
                    before = [Some(id), before[0]];
                    link = record.next;
                }
            }
        }
        return absent;
    };
    let count = frame.users();
    let others = frame.drop_reference()?;
    match from {
        Some(before) => ground.set_next(before, left),
        None => frame.set_first_record(left.encode()),
    }
    ground
        .accounts()
        .change(user.vm, u64::MAX, share(count).wrapping_neg());
    change_all(ground, frame, count, others.into());
    Ok(gone)
}
