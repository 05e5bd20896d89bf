//! The frame table against the maps of VMs: whether each frame that is somebody's is in the map of that
//! one, and whether all sums are those of the accounts. Exact while no VM runs.

use crate::machine::{self, Kind, stretch};
use crate::memory::{Metal, sharing};
use crate::vms;
use abi::control::RecountStatus;
use machine_locks::{Rank, SpinLock};
use model_addr::{Gfn, Mfn};
use model_frame_table::{FrameEntry, MemoryMap, Origin, Owner, Use};
use model_pmap::{Backing, Entry};
use model_sharing::{ACCOUNTS, Account, MAX_USERS, UNIT};

/// Frames of the frame table that one request looks at.
const BUDGET: u64 = 4096;

/// What frames say of one VM.
#[derive(Clone, Copy, Default)]
struct Sums {
    private: u64,
    account: Account,
}

struct Recount {
    status: RecountStatus,
    vms: [Sums; ACCOUNTS],
}

/// The recount that is under way.
static RECOUNT: SpinLock<Option<alloc::boxed::Box<Recount>>> = SpinLock::new(Rank::Vm, None);

/// Goes on with a recount from frame `from`, or begins with one at 0; what it has found.
pub fn go_on(from: u64) -> RecountStatus {
    let old = RECOUNT.lock().take().filter(|_| from != 0);
    let mut recount = old.unwrap_or_else(|| {
        alloc::boxed::Box::new(Recount {
            status: RecountStatus::default(),
            vms: [Sums::default(); ACCOUNTS],
        })
    });
    let map = &machine::get().map;
    let mut at = Mfn(from);
    let mut left = BUDGET;
    while let Some((frame, entry)) = next(map, at).filter(|_| left > 0) {
        recount.look(frame, entry);
        (at, left) = (frame.add(1), left - 1);
        // A frame may have 64 users, in whose maps it is looked for: 32,000 instructions.
        stretch::look(Kind::Control);
    }
    recount.status.next = next(map, at).map_or(0, |(frame, _)| frame.0);
    if recount.status.next == 0 {
        recount.compare();
    }
    let status = recount.status;
    *RECOUNT.lock() = Some(recount);
    status
}

/// The first frame of the machine from `from` on.
fn next<'a>(map: &'a MemoryMap<'_>, from: Mfn) -> Option<(Mfn, &'a FrameEntry)> {
    let firsts = map.ranges().iter().filter_map(|range| {
        let first = range.frames.start.max(from);
        (first < range.frames.start.add(range.frames.count)).then_some(first)
    });
    let frame = firsts.min()?;
    Some((frame, map.entry(frame)?))
}

/// What a VM's map has behind a guest frame; `None` where that is no RAM of it: a block of an overlay.
fn entry_of(user: Owner) -> Result<Option<Entry>, ()> {
    let vm = vms::instance(user.vm).ok_or(())?;
    let is_ram = vm.space.contains(Gfn(user.gfn.0).address());
    Ok(is_ram.then(|| vm.space.entry(user.gfn)))
}

impl Recount {
    fn look(&mut self, frame: Mfn, entry: &FrameEntry) {
        let state = entry.state();
        match state.usage {
            Use::Private => {
                let owner = entry.lock().map(|locked| locked.owner());
                let found = owner.map(|owner| (owner, entry_of(owner)));
                match found {
                    Some((_, Ok(None))) => self.status.overlay += 1,
                    Some((owner, Ok(Some(entry)))) if entry.backing == Backing::Private(frame) => {
                        self.status.private += 1;
                        if let Some(sums) = self.vms.get_mut(usize::from(owner.vm.index)) {
                            sums.private += 1;
                        }
                    }
                    _ => self.lose(frame),
                }
            }
            Use::Shared => self.look_at_shared(frame),
            Use::CachedOnly if state.origin != Origin::Image => self.status.cached += 1,
            _ => {}
        }
    }

    fn look_at_shared(&mut self, frame: Mfn) {
        let mut users = heapless::Vec::<Owner, { MAX_USERS as usize }>::new();
        model_sharing::users(&Metal, frame, |user| {
            let _ = users.push(user);
        });
        let units = UNIT.checked_div(users.len() as u64).unwrap_or(0);
        self.status.shared += 1;
        let mut is_known = !users.is_empty();
        for user in users {
            let entry = entry_of(user);
            is_known &= entry.is_ok_and(|entry| {
                entry.is_none_or(|entry| entry.backing == Backing::Shared(frame))
            });
            if let Some(sums) = self.vms.get_mut(usize::from(user.vm.index)) {
                sums.account.users += 1;
                sums.account.units += units;
            }
        }
        if !is_known {
            self.lose(frame);
        }
    }

    fn lose(&mut self, frame: Mfn) {
        if self.status.lost == 0 {
            self.status.first_lost = frame.0;
        }
        self.status.lost += 1;
    }

    /// Compares the sums with those of maps and accounts.
    fn compare(&mut self) {
        for vm in vms::all() {
            let Some(sums) = self.vms.get(usize::from(vm.slot)) else {
                continue;
            };
            let private = vm.instance().map_or(0, |vm| vm.space.counts().0.private);
            let account = sharing::accounts().get(vm.slot);
            if (sums.private, sums.account) != (private, account) {
                log::warn!(
                    "{}: frames say {} private, {:?}; its map {private}, its account {account:?}",
                    vm.name,
                    sums.private,
                    sums.account,
                );
                self.status.unequal += 1;
            }
        }
    }
}
