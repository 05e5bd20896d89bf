//! What a frame is used for, and the one table of what may become what.

use model_addr::NodeId;

/// What a frame is used for.
///
/// Free is zero, so that a table full of zeroes is a table of frames that no pool has yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Use {
    /// Nobody's: in a pool, or not yet given to one.
    #[default]
    Free = 0,
    /// The hypervisor's own memory.
    Hypervisor = 1,
    /// Set aside for a chunk of guest frames that was not touched yet, so that its region stays
    /// contiguous; said by the first frame of the chunk alone. Taken back under memory pressure.
    Reserved = 2,
    /// Memory of one guest frame.
    Private = 3,
    /// Memory of one or more guest frames, none of which may write it.
    Shared = 4,
    /// A node's copy of a shared or private frame.
    Replica = 5,
    /// No guest's, or none's any more, but kept for what it holds.
    CachedOnly = 6,
    /// A translation table or pmap node.
    Table = 7,
}

impl Use {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Free,
        Self::Hypervisor,
        Self::Reserved,
        Self::Private,
        Self::Shared,
        Self::Replica,
        Self::CachedOnly,
        Self::Table,
    ];

    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits & 7 {
            0 => Self::Free,
            1 => Self::Hypervisor,
            2 => Self::Reserved,
            3 => Self::Private,
            4 => Self::Shared,
            5 => Self::Replica,
            6 => Self::CachedOnly,
            _ => Self::Table,
        }
    }
}

/// Whose memory a frame was before it was the hypervisor's to give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The machine's own pool.
    #[default]
    Machine,
    /// Lent by OS-0, which wants it back.
    Lent,
    /// A disk image's, from the boot loader: it stays what it is, is never written and never free.
    Image,
}

impl Origin {
    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            1 => Self::Lent,
            2 => Self::Image,
            _ => Self::Machine,
        }
    }
}

/// What is in frames that their user has not written yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// Whatever was there before.
    #[default]
    Unknown,
    /// Zeroes, to those who read without caches too.
    Zeroes,
}

/// The index's chains that run through the frame table: each finds frames by something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// By what the frame holds.
    Content = 0,
    /// By the disk block that it holds.
    Block = 1,
}

impl Chain {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Content, Self::Block];

    /// Its bit in [`FrameState::chains`].
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The hypervisor takes it for itself.
    Grant,
    /// It becomes a table.
    Tabulate,
    /// It is set aside for a guest frame.
    Reserve,
    /// A guest frame gets it.
    Assign,
    /// It becomes a copy for another node.
    Replicate,
    /// It is a disk image's from now on.
    Keep,
    /// The guest frame that it was set aside for is touched.
    Take,
    /// Its guest may no longer write it, so that others can use it too.
    Share,
    /// Its last user writes it, and has it alone from now on.
    Claim,
    /// Its last user is gone; its contents are kept.
    Retire,
    /// A guest reads what it still holds.
    Revive,
    /// What it holds is not kept any longer; whoever takes this step frees it.
    Discard,
    /// It goes back to the pool.
    Release,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Grant,
        Self::Tabulate,
        Self::Reserve,
        Self::Assign,
        Self::Replicate,
        Self::Keep,
        Self::Take,
        Self::Share,
        Self::Claim,
        Self::Retire,
        Self::Revive,
        Self::Discard,
        Self::Release,
    ];

    /// How many users a frame has afterwards.
    pub(crate) const fn references(self) -> u16 {
        match self {
            Self::Reserve | Self::Keep | Self::Retire | Self::Release => 0,
            Self::Grant
            | Self::Tabulate
            | Self::Assign
            | Self::Replicate
            | Self::Take
            | Self::Share
            | Self::Claim
            | Self::Revive
            | Self::Discard => 1,
        }
    }
}

/// The transition table: what a frame in use `from` is after `event`, `None` where that must not
/// happen. The picture is in the crate's documentation.
pub const fn after(from: Use, event: Event) -> Option<Use> {
    Some(match (from, event) {
        (Use::Free, Event::Grant) | (Use::CachedOnly, Event::Discard) => Use::Hypervisor,
        (Use::Free, Event::Tabulate) => Use::Table,
        (Use::Free, Event::Reserve) => Use::Reserved,
        (Use::Free, Event::Replicate) => Use::Replica,
        (Use::Free, Event::Assign) | (Use::Reserved, Event::Take) | (Use::Shared, Event::Claim) => {
            Use::Private
        }
        (Use::Private, Event::Share) | (Use::CachedOnly, Event::Revive) => Use::Shared,
        (Use::Free | Use::Hypervisor, Event::Keep) | (Use::Shared, Event::Retire) => {
            Use::CachedOnly
        }
        (
            Use::Hypervisor | Use::Reserved | Use::Private | Use::Replica | Use::Table,
            Event::Release,
        ) => Use::Free,
        _ => return None,
    })
}

/// Why a change of a frame, or of a pool, was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The transition table has no such step.
    #[error("a frame in use {0:?} refuses {1:?}")]
    Step(Use, Event),
    /// Only a pool, or the map, takes this step.
    #[error("only a pool takes this step")]
    PoolOnly,
    /// It is in the index, where others find it.
    #[error("the frame is in the index")]
    Indexed,
    /// It is a disk image's, and stays so.
    #[error("the frame is a disk image's")]
    Image,
    /// It has this many users, which is the wrong number.
    #[error("the frame has {0} users")]
    References(u16),
    /// A count is at its end.
    #[error("a count of the frame is at its end")]
    Overflow,
    /// Another CPU has the frame locked.
    #[error("the frame is locked by another CPU")]
    Locked,
    /// The frames are not all of one range of the pool's node, or not aligned to their order.
    #[error("not whole frames of the pool's node")]
    NotHere,
    /// They were not allocated with this order.
    #[error("the frames were not allocated with this order")]
    Order,
}

const LOCK: u64 = 1;
const USE_SHIFT: u32 = 1;
const ORIGIN_SHIFT: u32 = 4;
const ORDER_SHIFT: u32 = 6;
const LISTED: u64 = 1 << 10;
const NODE_SHIFT: u32 = 11;
const REFERENCES_SHIFT: u32 = 32;
const CHAINS_SHIFT: u32 = 48;
const RECENT: u64 = 1 << 50;
const ZEROES: u64 = 1 << 51;

/// The first word of an entry, decoded: all that changes as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameState {
    /// What it is used for.
    pub usage: Use,
    /// Where it came from.
    pub origin: Origin,
    /// In the first frame of a block, or of a reserved chunk: log2 of its frames. [`Self::BODY`] in the others.
    /// Frames of guests are each a block of their own, however they were allocated.
    pub order: u8,
    /// Whether it is the first of a block in a pool's list.
    pub listed: bool,
    /// Its node.
    pub node: NodeId,
    /// Users.
    pub references: u16,
    /// The chains of the index that it is in: [`Chain::bit`]s.
    pub chains: u8,
    /// Whether it was in use since the clock that looks for frames to discard last passed.
    pub recent: bool,
    /// In the first frame of a reserved chunk: what is in all of it.
    pub contents: Contents,
}

impl FrameState {
    /// The order of a frame that is not the first of its block.
    pub const BODY: u8 = 15;

    /// The bits that stay with the frame when it is taken: origin and node.
    const KEPT: u64 = 3 << ORIGIN_SHIFT | 0x3f << NODE_SHIFT;
    const USE: u64 = 7 << USE_SHIFT;
    const TAKEN: u64 = match after(Use::Reserved, Event::Take) {
        Some(usage) => {
            (usage as u64) << USE_SHIFT | (Event::Take.references() as u64) << REFERENCES_SHIFT
        }
        None => 0,
    };

    /// The word of the frame in `word`, unlocked and [`Event::Take`]n, where it is reserved.
    pub(crate) const fn take(word: u64) -> Option<u64> {
        if word & Self::USE != (Use::Reserved as u64) << USE_SHIFT {
            return None;
        }
        Some(word & Self::KEPT | Self::TAKEN)
    }

    /// What the word of a reserved chunk's first frame says of its contents.
    pub(crate) const fn contents(word: u64) -> Contents {
        if word & ZEROES == 0 {
            Contents::Unknown
        } else {
            Contents::Zeroes
        }
    }

    pub(crate) const fn is_locked(word: u64) -> bool {
        word & LOCK != 0
    }

    pub(crate) const fn locked(word: u64) -> u64 {
        word | LOCK
    }

    pub(crate) const fn decode(word: u64) -> Self {
        Self {
            usage: Use::from_bits(word >> USE_SHIFT),
            origin: Origin::from_bits(word >> ORIGIN_SHIFT),
            order: (word >> ORDER_SHIFT & 0xf) as u8,
            listed: word & LISTED != 0,
            node: NodeId((word >> NODE_SHIFT & 0x3f) as u8),
            references: (word >> REFERENCES_SHIFT) as u16,
            chains: (word >> CHAINS_SHIFT & 3) as u8,
            recent: word & RECENT != 0,
            contents: Self::contents(word),
        }
    }

    /// The word, unlocked.
    pub(crate) const fn encode(self) -> u64 {
        let mut word = (self.usage as u64) << USE_SHIFT
            | (self.origin as u64) << ORIGIN_SHIFT
            | (self.order as u64 & 0xf) << ORDER_SHIFT
            | (self.node.0 as u64 & 0x3f) << NODE_SHIFT
            | (self.references as u64) << REFERENCES_SHIFT
            | (self.chains as u64 & 3) << CHAINS_SHIFT;
        if self.listed {
            word |= LISTED;
        }
        if self.recent {
            word |= RECENT;
        }
        if matches!(self.contents, Contents::Zeroes) {
            word |= ZEROES;
        }
        word
    }

    /// The state of the frame once it is free: where it is and whose it was stays.
    pub(crate) fn freed(self) -> Self {
        Self {
            origin: self.origin,
            node: self.node,
            ..Self::default()
        }
    }

    /// The state after `event`, where the table, the counts and the index allow it.
    pub(crate) fn step(self, event: Event) -> Result<Self, Refused> {
        let usage = after(self.usage, event).ok_or(Refused::Step(self.usage, event))?;
        // What others find, and what is an image's, stays as it is: nobody may write it.
        if matches!(event, Event::Claim | Event::Discard) {
            if self.origin == Origin::Image {
                return Err(Refused::Image);
            }
            if self.chains != 0 {
                return Err(Refused::Indexed);
            }
        }
        let wanted = match (self.usage, event) {
            (Use::Shared, Event::Claim) => 1,
            (Use::Shared, _) => 0,
            _ => self.references,
        };
        if self.references != wanted {
            return Err(Refused::References(self.references));
        }
        Ok(Self {
            usage,
            references: event.references(),
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_states_survive_the_word() {
        for usage in Use::ALL {
            let state = FrameState {
                usage,
                origin: Origin::Lent,
                order: FrameState::BODY,
                listed: true,
                node: NodeId(63),
                references: u16::MAX,
                chains: 3,
                recent: true,
                contents: Contents::Zeroes,
            };
            assert_eq!(FrameState::decode(state.encode()), state);
            assert!(!FrameState::is_locked(state.encode()));
            let plain = FrameState {
                usage,
                origin: Origin::Image,
                ..FrameState::default()
            };
            assert_eq!(
                FrameState::decode(FrameState::locked(plain.encode())),
                plain
            );
        }
        assert_eq!(FrameState::decode(0), FrameState::default());
    }

    /// The picture, written once more as a list: anything else is refused.
    #[test]
    fn the_table_is_the_picture() {
        use Event as E;
        use Use as U;
        let picture = [
            (U::Free, E::Grant, U::Hypervisor),
            (U::Free, E::Tabulate, U::Table),
            (U::Free, E::Replicate, U::Replica),
            (U::Free, E::Reserve, U::Reserved),
            (U::Free, E::Assign, U::Private),
            (U::Free, E::Keep, U::CachedOnly),
            (U::Hypervisor, E::Keep, U::CachedOnly),
            (U::Reserved, E::Take, U::Private),
            (U::Private, E::Share, U::Shared),
            (U::Shared, E::Claim, U::Private),
            (U::Shared, E::Retire, U::CachedOnly),
            (U::CachedOnly, E::Revive, U::Shared),
            (U::CachedOnly, E::Discard, U::Hypervisor),
            (U::Hypervisor, E::Release, U::Free),
            (U::Table, E::Release, U::Free),
            (U::Replica, E::Release, U::Free),
            (U::Reserved, E::Release, U::Free),
            (U::Private, E::Release, U::Free),
        ];
        for from in Use::ALL {
            for event in Event::ALL {
                let drawn = picture.iter().find(|(f, e, _)| (*f, *e) == (from, event));
                assert_eq!(
                    after(from, event),
                    drawn.map(|(.., to)| *to),
                    "{from:?} {event:?}"
                );
            }
        }
    }

    /// Nobody writes what others may find, nor an image's frame, whatever the order of the steps.
    #[test]
    fn a_frame_leaves_the_index_before_it_is_anything_else() {
        for usage in Use::ALL {
            for event in Event::ALL {
                let step = |origin, chains| {
                    let state = FrameState {
                        usage,
                        origin,
                        chains,
                        references: 1,
                        ..FrameState::default()
                    };
                    state.step(event)
                };
                let Ok(free_of_both) = step(Origin::Machine, 0) else {
                    continue;
                };
                let is_kept = |usage| [Use::Shared, Use::CachedOnly].contains(&usage);
                let leaves = is_kept(usage) && !is_kept(free_of_both.usage);
                for chain in Chain::ALL {
                    let refused = step(Origin::Machine, chain.bit()) == Err(Refused::Indexed);
                    assert_eq!(refused, leaves, "{usage:?} {event:?}");
                }
                let refused = step(Origin::Image, 0) == Err(Refused::Image);
                assert_eq!(refused, leaves, "{usage:?} {event:?}");
            }
        }
    }

    #[test]
    fn taking_a_word_is_a_step_of_the_table() {
        for usage in Use::ALL {
            let from = FrameState {
                usage,
                origin: Origin::Lent,
                node: NodeId(5),
                ..FrameState::default()
            };
            let table = from.step(Event::Take).map(FrameState::encode);
            assert_eq!(FrameState::take(from.encode()), table.ok());
        }
    }

    /// Every use, event and small count: no step to free with a user of a shared frame.
    #[test]
    fn counts_guard_the_steps() {
        for usage in Use::ALL {
            for event in Event::ALL {
                for references in 0..=2 {
                    let from = FrameState {
                        usage,
                        references,
                        ..FrameState::default()
                    };
                    let Ok(to) = from.step(event) else { continue };
                    assert_eq!(Some(to.usage), after(usage, event));
                    if usage == Use::Shared {
                        assert_eq!(references, u16::from(event == Event::Claim));
                    }
                }
            }
        }
    }
}
