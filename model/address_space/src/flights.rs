//! Pages on their way to another frame while their guest runs.
//!
//! ```text
//!  begin (lock)                 copy (no lock)               commit (lock)
//!  nobody may write the page ─► old frame ─► new frame ─┬──► a node has the copy, or
//!  from here on, all may read   by whichever CPU        │    all see the new frame, the old one is free
//!                                                       └──► somebody wrote it meanwhile, or took it:
//!                                                            the new frame is free
//! ```
//!
//! A page on its way has [`Reasons::IN_FLIGHT`], one with copies [`Reasons::REPLICA`]: whoever writes it, or changes
//! what is behind it, gives its copies back first ([`Maps::collapse`]), and the flight with them.
//! So the copying may read a frame that is the guest's no more; what it read is never shown then.

use crate::maps::CHUNK;
use crate::replicas::GUARDED;
use crate::{Frames, GuestRam, Maps, Translation};
use model_addr::{Gfn, Mfn, NodeId};
use model_pmap::{Backing, Entry, Reasons, Survey};
use model_stage2::{FlushDebt, Size};

/// The most pages of a VM that are on their way at once.
pub const FLIGHTS_MAX: usize = 128;

/// What became of a page that was to move, or to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It is on its way: its contents may be copied now.
    Begun,
    /// The contents are in the new frame. Where it moved, the old one is free.
    Done,
    /// The frame is not behind that page, or not the guest's alone, or the node has a copy.
    Gone,
    /// Somebody wrote the page meanwhile, or took it.
    Lost,
    /// It is on its way to a disk, watched, moves already, or is in a block that is kept whole.
    Held,
}

/// A page that is to be in another frame.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    /// The page.
    pub gfn: Gfn,
    /// Where it is.
    pub old: Mfn,
    /// Where it is to be, which nobody sees yet: the caller's until [`Maps::commit`].
    pub new: Mfn,
    /// The node that it goes to.
    pub node: NodeId,
    /// The node gets a copy; else the page moves.
    pub copies: bool,
    /// How far it has come. It matters not before [`Maps::begin`].
    pub state: Moved,
}

/// What the maps know of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub(crate) gfn: Gfn,
    new: Mfn,
    moves: bool,
}

impl<T: Translation> Maps<T> {
    /// Begins: from now on nobody writes these pages unnoticed. Those that are [`Moved::Begun`] are to
    /// be copied; all are to be brought to their end by [`Self::commit`].
    pub fn begin<B: AsRef<[u8]>>(&mut self, ram: &GuestRam<B>, flights: &mut [Flight]) {
        let mut debt = FlushDebt::none();
        for flight in flights {
            flight.state = match self.take_off(ram, flight) {
                Ok(owed) => {
                    debt = debt.and(owed);
                    Moved::Begun
                }
                Err(why) => why,
            };
        }
        debt.pay(|what| self.tables.invalidate(what));
    }

    fn take_off<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        flight: &Flight,
    ) -> Result<FlushDebt, Moved> {
        let Flight { gfn, old, .. } = *flight;
        let survey = self.pmap.survey(&self.tables, gfn);
        let Survey { entry, region } = survey.map_err(|_| Moved::Gone)?;
        let is_private = entry.backing == Backing::Private(old);
        let is_copied = || self.copy_on(flight.node, gfn).is_some();
        let (is_gone, may_have) = if flight.copies {
            let is_gone = entry.frame() != Some(old) || is_copied();
            (is_gone, GUARDED)
        } else {
            (!is_private, Reasons::empty())
        };
        if is_gone {
            return Err(Moved::Gone);
        }
        // Who must not tell a shared page by the time of a write must not tell a copied one either.
        let hides = flight.copies && ram.policy().hide;
        let moves = |flying: &Flying| flying.gfn == gfn && flying.moves;
        let is_block = region.block().is_some();
        if !may_have.union(self.pmap.standing()).contains(entry.reasons)
            || hides
            || is_block && ram.policy().keep_blocks
            || self.flights.is_full()
            || self.flights.iter().any(moves)
        {
            return Err(Moved::Held);
        }
        if is_block {
            self.split(gfn);
        }
        // Its entry is there: this needs no memory.
        if !self.set_reasons(gfn, Reasons::IN_FLIGHT, Reasons::empty()) {
            return Err(Moved::Held);
        }
        let flying = Flying {
            gfn,
            new: flight.new,
            moves: !flight.copies,
        };
        // It is not full.
        let _ = self.flights.push(flying);
        Ok(if entry.usable(true).is_some() {
            let reasons = entry.reasons.union(Reasons::IN_FLIGHT);
            self.narrow(gfn, Entry { reasons, ..entry })
        } else {
            FlushDebt::none()
        })
    }

    /// Ends what [`Self::begin`] began, and gives back the frames that are not needed any more.
    pub fn commit<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        flights: &mut [Flight],
        frames: &impl Frames,
    ) {
        let mut debt = FlushDebt::none();
        for flight in flights.iter_mut() {
            if flight.state != Moved::Begun {
                continue;
            }
            flight.state = match self.land(ram, flight) {
                Ok(owed) => {
                    debt = debt.and(owed);
                    Moved::Done
                }
                Err(why) => why,
            };
        }
        debt.pay(|what| self.tables.invalidate(what));
        // Neighbours go back together.
        let mut idle = heapless::Vec::<Mfn, CHUNK>::new();
        for flight in flights {
            let Some(frame) = self.show_landed(flight) else {
                continue;
            };
            if idle.is_full() {
                frames.free_each(&idle);
                idle.clear();
            }
            // It is not full.
            let _ = idle.push(frame);
        }
        frames.free_each(&idle);
    }

    fn land<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        flight: &Flight,
    ) -> Result<FlushDebt, Moved> {
        let mut flying = self.flights.iter();
        let at = flying.position(|flying| flying.new == flight.new);
        self.flights.swap_remove(at.ok_or(Moved::Lost)?);
        let landed = if flight.copies {
            self.land_copy(ram, flight)
        } else {
            self.land_moved(flight)
        };
        if flight.copies || landed.is_err() {
            self.guard(flight.gfn);
        }
        landed
    }

    fn land_moved(&mut self, flight: &Flight) -> Result<FlushDebt, Moved> {
        let entry = self.entry(flight.gfn);
        let moved = Entry {
            backing: Backing::Private(flight.new),
            reasons: entry.reasons.difference(Reasons::IN_FLIGHT),
            ..entry
        };
        let set = self.pmap.set_run(&mut self.tables, flight.gfn, 1, moved);
        set.map_err(|_| Moved::Held)?;
        Ok(self.unmap(flight.gfn.address(), 1))
    }

    fn land_copy<B>(&mut self, ram: &GuestRam<B>, flight: &Flight) -> Result<FlushDebt, Moved> {
        if self.copy_on(flight.node, flight.gfn).is_some() {
            return Err(Moved::Gone);
        }
        let at = self.root_for(flight.node, ram.range);
        let at = at.ok_or(Moved::Held)?;
        let root = &mut self.roots[at];
        let copied = Entry::private(flight.new);
        let set = { &mut root.copies }.set_run(&mut self.tables, flight.gfn, 1, copied);
        set.map_err(|_| Moved::Held)?;
        Ok({ &mut root.stage2 }.unmap(&mut self.tables, flight.gfn.address(), 1))
    }

    /// No TLB knows the old translation any more. Gives the frame that is idle now.
    fn show_landed(&mut self, flight: &Flight) -> Option<Mfn> {
        if flight.state != Moved::Done {
            return Some(flight.new);
        }
        if flight.copies {
            self.events.replicated += 1;
        } else {
            self.events.moved += 1;
        }
        if let Some(rights) = self.entry(flight.gfn).rights() {
            let (ipa, pa) = (flight.gfn.address(), flight.new.address());
            // Who uses it is there. What other roots lack, faults fill.
            let (stage2, tables) = self.walked_on(flight.node);
            let _ = stage2.map(tables, ipa, pa, Size::Page, rights);
        }
        (!flight.copies).then_some(flight.old)
    }
}
