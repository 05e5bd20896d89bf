//! Users come and go.

use model_addr::Mfn;
use model_frame_table::{
    CacheKey, Chain, Event, FrameEntry, FrameState, LockedFrame, Origin, Owner, Refused, Use,
};

use crate::{
    Ground, LONGEST_CHAIN, Link, RELISTED, RecordId, Size, UNIT,
    list::{List, needed},
};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotJoined {
    /// It is not what was expected, or no longer: another CPU was faster.
    Gone,
    /// It is of another share group.
    OtherGroup,
    /// It has [`MAX_USERS`] users.
    Full,
    /// There is no memory for a record of one more user.
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
    // The boot loader wrote it. Whoever finds that it has users need not: it was done before the first. Instruction
    // caches hold nothing of it but what it holds, as it never changes.
    if expect == Expect::Image && entry.state().usage == Use::CachedOnly {
        ground.clean(frame);
    }
    let state = entry.state();
    // Asked again when the frame is locked: others may have come and gone.
    let mut lacks = needed(state.references.into());
    let mut spares = [None; 2];
    let joined = loop {
        if let Some(size) = lacks {
            let spare = &mut spares[size as usize];
            *spare = ground.take_record(state.node, size);
            if spare.is_none() {
                break Err(NotJoined::NoMemory);
            }
        }
        match join_with(ground, entry, &mut spares, user, expect) {
            Ok(Err(size)) => lacks = Some(size),
            Ok(Ok(joined)) => break Ok(joined),
            Err(refused) => break Err(refused),
        }
    };
    if spares != [None; 2] {
        spares
            .iter()
            .flatten()
            .for_each(|spare| ground.give_record(*spare));
    }
    joined
}

/// [`join`] with records of each size, if there are; the size of one that is needed, and is not there.
fn join_with(
    ground: &impl Ground,
    entry: &FrameEntry,
    spares: &mut [Option<RecordId>; 2],
    user: Owner,
    expect: Expect,
) -> Result<Result<Joined, Size>, NotJoined> {
    let mut frame = entry.lock_shared().ok_or(NotJoined::Gone)?;
    expect.check(&frame)?;
    let before = frame.users();
    if before >= MAX_USERS {
        return Err(NotJoined::Full);
    }
    if let Some(size) = needed(before)
        && spares[size as usize].is_none()
    {
        return Ok(Err(size));
    }
    let revived = frame.state().usage == Use::CachedOnly;
    let counted = if revived {
        frame.step(Event::Revive).map(|_| ())
    } else {
        frame.add_reference()
    };
    counted.map_err(|_| NotJoined::Gone)?;
    if revived && frame.state().origin != Origin::Image {
        ground.accounts().change_cached(-1);
    }
    List::of(ground, &mut frame).push(spares, user);
    let users = frame.users();
    Ok(Ok(Joined { users, revived }))
}

/// Adds `user` to a frame of `group` that holds what `page` holds, if one is found that has room. `page` is EL2's
/// own, or changes only by its guest's fault. The caller holds no stripe's lock.
///
/// A full frame that is met leaves the chain, and is not compared; [`leave`] puts it back. So of equal frames the
/// first one met is joined, and what this costs does not grow with how many there are. Frames that differ in none
/// of the words that are looked at are compared one after the other, as long as some are `left` to compare: each
/// takes one.
pub fn join_equal(
    ground: &impl Ground,
    page: Mfn,
    user: Owner,
    group: u16,
    left: &mut u32,
) -> Option<Mfn> {
    let (map, index) = (ground.map(), ground.index());
    let bucket = index.content_bucket(group, |n| ground.word(page, n));
    let _guard = ground.lock_stripe(bucket.stripe());
    let found = index.find(map, bucket, |frame, entry| {
        if is_full(entry.state()) {
            index.remove(map, bucket, frame);
            return false;
        }
        if frame == page || *left == 0 {
            return false;
        }
        *left -= 1;
        ground.is_equal(frame, page) && join(ground, frame, user, Expect::Group(group)).is_ok()
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
    List::of(ground, &mut frame).push(&mut [None; 2], user);
    Ok(())
}

/// Lets others find a shared frame by what it holds, and by its block of a disk. Nobody writes it any more, and no
/// TLB lets anybody: what a guest left in memory, but not in caches, is what all see from now on.
pub fn enlist(ground: &impl Ground, frame: Mfn) {
    let Some(entry) = ground.map().entry(frame) else {
        return;
    };
    ground.clean(frame);
    ground.drop_instructions(frame);
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
    let record = List::of(ground, &mut locked).take_out(user).ok()?;
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
        .change(user.vm.index, u64::MAX, UNIT.wrapping_neg());
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
pub fn users(ground: &impl Ground, frame: Mfn, each: impl FnMut(Owner)) {
    let entry = ground.map().entry(frame);
    if let Some(mut frame) = entry.and_then(FrameEntry::lock_shared) {
        List::of(ground, &mut frame).users(each);
    }
}
