//! A host that leaves: another becomes the home of its pages, and homes take what it owns, while the VM runs.
//!
//! ```text
//!  leaver                        others                      heir, which is host 0
//!    │ Leave(BEGINS) ─────────────►│ ─────────────────────────►│ ask for none of its pages
//!    │ ◄──────────────────────Held─│───────────────────── Held │ what they had asked for is there
//!    │ Entries ─────────────────────────────────────────────►│ its part of the directory, piece by piece
//!    │ ◄──────────────────────────────────────────────── Taken │
//!    │ Leave(HANDED) ─────────────►│ ─────────────────────────►│ ask the heir
//!    │ Give(page) ────────────────►│ Get, as a prefetch        │
//!    │ ◄────────── Forward, Taken  │                           │
//!    │ Leave(EMPTY) ──────────────►│ ─────────────────────────►│ send it nothing any more
//!    │ ◄──────────────────────Held─│───────────────────── Held │ all that it sent has come
//! ```
//!
//! A leaver has no vCPUs and gets none. Urgent messages keep order, so when all hosts hold, none of its pages has a
//! transaction. While its directory is on its way, vCPUs that miss one of its pages wait.

use crate::tlb::transmit;
use crate::{
    Access, Actions, Broken, Host, Hosts, Kind, Message, NO_PAGE, Page, State, Tail, bit, members,
    number,
};
use abi::coherence::{Entry, OPERATIONS_MAX};
use core::ops::IndexMut;
use heapless::Vec;

/// Host that becomes the home of what others leave; it never leaves itself.
const HEIR: u8 = 0;
/// Pages that a leaver has asked their homes to take, at most.
pub(crate) const GIVEN_MAX: usize = 4;
/// Pages that a leaver looks at in a step, at most.
const PAGES_AT_ONCE: u32 = 128;

/// How far a leaver is, in [`Message::acks`].
mod stage {
    pub const BEGINS: u8 = 0;
    pub const HANDED: u8 = 1;
    pub const EMPTY: u8 = 2;
}

/// A leaver's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    Stays,
    /// It waits for what others had asked for.
    Begins,
    /// It hands over pages from here on.
    Hands(u32),
    /// It gives away what it owns from here on.
    Gives(u32),
    /// It owns nothing, and waits until all know that.
    Empty,
    Left,
}

/// What a host knows of those that leave, itself among them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leavers<const HOSTS: usize> {
    /// Home of what each host was home of at first.
    pub(crate) homes: [u8; HOSTS],
    /// Others that have begun to leave, and those of them that must hear when this host asks them for nothing.
    pub(crate) leave: Hosts,
    unheld: Hosts,
    /// Hosts that have not left.
    pub(crate) present: Hosts,
    /// Leavers that own nothing and must hear when what they sent has come: with the transactions that were open then.
    emptied: Hosts,
    waits: [u16; HOSTS],
    way: Way,
    /// Hosts that have not answered this leaver.
    missing: Hosts,
    /// Pages that this leaver has asked to be taken, and those that each leaver has asked this home to take.
    given: [u32; GIVEN_MAX],
    takes: [[u32; GIVEN_MAX]; HOSTS],
}

impl<const HOSTS: usize> Leavers<HOSTS> {
    pub(crate) fn none(hosts: u8) -> Self {
        Self {
            homes: core::array::from_fn(|host| host as u8),
            leave: 0,
            unheld: 0,
            present: ((1_u32 << hosts) - 1) as Hosts,
            emptied: 0,
            waits: [0; HOSTS],
            way: Way::Stays,
            missing: 0,
            given: [NO_PAGE; GIVEN_MAX],
            takes: [[NO_PAGE; GIVEN_MAX]; HOSTS],
        }
    }
}

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    /// Returns whether this host has left: nobody sends it anything any more, once all that it has sent has come.
    pub fn has_left(&self) -> bool {
        self.leavers.way == Way::Left
    }

    /// Returns whether this host leaves, or has left.
    pub fn leaves(&self) -> bool {
        self.leavers.way != Way::Stays
    }

    /// Returns the pages at which a leaver has not looked, in each of its two rounds.
    pub fn pages_left(&self) -> u64 {
        let pages = u64::from(self.settings.pages);
        match self.leavers.way {
            Way::Stays | Way::Begins => 2 * pages,
            Way::Hands(at) => 2 * pages - u64::from(at),
            Way::Gives(at) => pages - u64::from(at),
            Way::Empty | Way::Left => 0,
        }
    }

    /// Returns whether a host has not left.
    pub(crate) fn is_present(&self, host: u8) -> bool {
        self.leavers.present & bit(host) != 0
    }

    /// Returns whether `from` may be the home of what has been a leaver's, before that has told this host. One that owns nothing
    /// hears no more of other leavers.
    pub(crate) fn may_inherit(&self, from: u8, leaver: u8) -> bool {
        let is_empty = matches!(self.leavers.way, Way::Empty | Way::Left);
        from == HEIR && (is_empty || self.leavers.leave & bit(leaver) != 0)
    }

    /// Returns whether nobody may ask for a page, as its directory is on its way.
    pub(crate) fn is_held(&self, page: u32) -> bool {
        self.leavers.leave & bit(self.home(page)) != 0
    }

    /// Returns whether more is to be done at once.
    pub(crate) fn is_busy(&self) -> bool {
        match self.leavers.way {
            Way::Gives(at) if at < self.settings.pages => {
                let has_room = self.leavers.given.contains(&NO_PAGE);
                !self.is_held(at) && (has_room || !self.state(at).is_owner())
            }
            _ => false,
        }
    }

    /// Begins to leave. The heir cannot, and whoever leaves goes on.
    pub(crate) fn leave(&mut self, actions: &mut impl Actions) -> Result<(), Broken> {
        if self.settings.host == HEIR || self.leaves() {
            return Ok(());
        }
        self.leavers.takes = [[NO_PAGE; GIVEN_MAX]; HOSTS];
        self.leavers.way = Way::Begins;
        self.say(stage::BEGINS, actions)
    }

    /// Tells all others how far this leaver is.
    fn say(&mut self, stage: u8, actions: &mut impl Actions) -> Result<(), Broken> {
        let me = self.settings.host;
        let others = self.leavers.present & !bit(me);
        self.leavers.missing = if stage == stage::HANDED { 0 } else { others };
        let message = Message {
            acks: stage,
            ..Message::plain(Kind::Leave, me)
        };
        members(others).try_for_each(|host| self.send(host, message, actions))
    }

    /// Takes a leaver's word; `false` if it must not come.
    pub(crate) fn left(
        &mut self,
        from: u8,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let is_home = self.next_of(from, 0) < self.settings.pages;
        let leavers = &mut self.leavers;
        let has_begun = leavers.leave & bit(from) != 0;
        match message.acks {
            stage::BEGINS if !has_begun && from != HEIR => {
                leavers.leave |= bit(from);
                leavers.unheld |= bit(from);
            }
            // The heir has taken all before.
            stage::HANDED if has_begun && (self.settings.host != HEIR || !is_home) => {
                self.inherit(from, actions)?;
            }
            stage::EMPTY if has_begun && !is_home && leavers.present & bit(from) != 0 => {
                leavers.present &= !bit(from);
                leavers.emptied |= bit(from);
                let open = (0..SLOTS).filter(|slot| self.open[*slot].is_some());
                leavers.waits[usize::from(from)] = open.fold(0, |all, slot| all | 1 << slot);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The heir is home of what a leaver was: who waits for that asks again.
    fn inherit(&mut self, from: u8, actions: &mut impl Actions) -> Result<(), Broken> {
        for vcpu in 0..usize::from(self.settings.vcpus) {
            let waits_for = self.vcpus[vcpu].waits_for;
            if let Some(page) = waits_for.filter(|page| self.home(*page) == from)
                && self.page(page).slot == u8::MAX
            {
                self.vcpus[vcpu].waits_for = None;
                actions.resume(vcpu, false);
            }
        }
        let given = self.leavers.given.into_iter();
        let given = given.filter(|page| *page != NO_PAGE && self.home(*page) == from);
        let given: Vec<u32, GIVEN_MAX> = given.collect();
        let homes = self.leavers.homes.iter_mut();
        homes
            .filter(|home| **home == from)
            .for_each(|home| *home = HEIR);
        given
            .into_iter()
            .try_for_each(|page| self.give(page, actions))
    }

    /// Does what has become possible: at the end of each step.
    pub(crate) fn go_on(&mut self, actions: &mut impl Actions) -> Result<(), Broken> {
        if self.leavers.leave != 0 {
            self.hold(actions)?;
            if !self.leaves() {
                self.take(actions)?;
            }
        }
        match self.leavers.way {
            Way::Begins if self.leavers.missing == 0 && self.is_idle() => {
                let first = self.next_of(self.settings.host, 0);
                self.hand_from(first, actions)
            }
            Way::Gives(at) => self.give_from(at, actions),
            // What holds keep from others is answered before.
            Way::Empty if self.leavers.missing == 0 && self.deferred.is_empty() => {
                self.leavers.way = Way::Left;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_idle(&self) -> bool {
        self.pushing == 0 && self.has_invalidated() && self.open.iter().all(Option::is_none)
    }

    /// Tells leavers at which nothing of this host is open, and to which it pushes nothing; and those from which all has come.
    fn hold(&mut self, actions: &mut impl Actions) -> Result<(), Broken> {
        for host in members(self.leavers.unheld & !self.pushing) {
            let mut open = self.open.iter().flatten();
            if open.all(|open| self.home(open.page) != host) {
                self.leavers.unheld &= !bit(host);
                self.tell(host, stage::BEGINS, actions)?;
            }
        }
        for host in members(self.leavers.emptied) {
            if self.leavers.waits[usize::from(host)] == 0 {
                self.leavers.emptied &= !bit(host);
                self.tell(host, stage::EMPTY, actions)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, leaver: u8, stage: u8, actions: &mut impl Actions) -> Result<(), Broken> {
        let message = Message {
            acks: stage,
            ..Message::plain(Kind::Held, self.settings.host)
        };
        self.send(leaver, message, actions)
    }

    /// Notes that a transaction has ended.
    pub(crate) fn ended(&mut self, slot: usize) {
        if self.leavers.emptied != 0 {
            let waits = self.leavers.waits.iter_mut();
            waits.for_each(|open| *open &= !(1 << slot));
        }
    }

    /// Notes that a host has done what this leaver waits for.
    pub(crate) fn held(&mut self, from: u8, message: &Message) -> bool {
        let stage = match self.leavers.way {
            Way::Begins => stage::BEGINS,
            Way::Empty => stage::EMPTY,
            _ => return false,
        };
        let is_awaited = self.leavers.missing & bit(from) != 0 && message.acks == stage;
        self.leavers.missing &= !bit(from);
        is_awaited
    }

    fn is_of(&self, host: u8, page: u32) -> bool {
        page < self.settings.pages && self.home(page) == host
    }

    /// Returns the first page from `page` on whose home is `host`, or the number of pages.
    fn next_of(&self, host: u8, page: u32) -> u32 {
        let pages = self.settings.pages;
        let firsts = self.settings.first_pages;
        let at = |range: usize| firsts.get(range).map_or(pages, |first| pages.min(*first));
        let ranges = (0..HOSTS).filter(|range| self.leavers.homes[*range] == host);
        let mut nexts = ranges.map(|range| (page.max(at(range)), at(range + 1)));
        let next = nexts.find(|(next, end)| next < end);
        next.map_or(pages, |(next, _)| next)
    }

    /// Hands over pages from there on, or tells that all are handed over.
    fn hand_from(&mut self, page: u32, actions: &mut impl Actions) -> Result<(), Broken> {
        let me = self.settings.host;
        if page == self.settings.pages {
            self.inherit(me, actions)?;
            self.say(stage::HANDED, actions)?;
            return self.give_from(0, actions);
        }
        let (mut entries, mut end) = (Vec::<Entry, OPERATIONS_MAX>::new(), page);
        while !entries.is_full() && end - page < PAGES_AT_ONCE && self.is_of(me, end) {
            let entry = self.entry(end, actions);
            match entries.last_mut().filter(|last| last.is_like(&entry)) {
                Some(last) => last.pages += 1,
                None => _ = entries.push(entry),
            }
            end += 1;
        }
        self.leavers.way = Way::Hands(end);
        let message = self.about(Kind::Entries, page);
        transmit(HEIR, message, Some(Tail::Entries(&entries)), actions);
        Ok(())
    }

    /// Returns what this home knows of a page. The heir owns one that nothing has touched.
    fn entry(&mut self, n: u32, actions: &mut impl Actions) -> Entry {
        let me = self.settings.host;
        let page = *self.page(n);
        let is_first = page.version == 1 && self.settings.home(n) == me;
        let mut is_untouched = is_first && page.state == State::Modified && actions.is_untouched(n);
        if is_untouched {
            // It may have been touched just before.
            is_untouched = !actions.protect(n, Access::None);
            if is_untouched {
                self.page(n).state = State::Invalid;
            } else {
                self.page(n).version += 1;
                actions.protect(n, Access::Write);
            }
        }
        Entry {
            owner: page.owner,
            writer: page.writer,
            sharers: page.sharers.into(),
            readers: page.readers.into(),
            pages: 1,
            flags: (u8::from(page.migrates) * Entry::MIGRATES)
                | (u8::from(is_untouched) * Entry::UNTOUCHED),
        }
    }

    /// Takes over a piece of a leaver's directory; `false` if it is none.
    pub(crate) fn take_over(
        &mut self,
        from: u8,
        (message, tail): (&Message, &[u8]),
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let mut end = number(message);
        // Nothing of this host is open at it.
        let has_begun = self.leavers.leave & !self.leavers.unheld & bit(from) != 0;
        let Some(entries) = Entry::all(tail).filter(|_| self.settings.host == HEIR && has_begun)
        else {
            return Ok(false);
        };
        let most = number(message).saturating_add(PAGES_AT_ONCE);
        for entry in entries {
            for _ in 0..entry.pages {
                let is_meant = end < most && self.is_of(from, end);
                if !is_meant || !self.enter(end, *entry, actions) {
                    return Ok(false);
                }
                end += 1;
            }
        }
        if end == number(message) {
            return Ok(false);
        }
        if self.next_of(from, end) == self.settings.pages {
            self.inherit(from, actions)?;
        }
        self.taken_up(from, end - 1, actions)?;
        Ok(true)
    }

    /// Takes over what a leaver knows of a page; `false` if it does not fit what this heir has.
    fn enter(&mut self, n: u32, entry: Entry, actions: &mut impl Actions) -> bool {
        let hosts = self.settings.hosts();
        let is_untouched = entry.flags & Entry::UNTOUCHED != 0;
        let [sharers, readers] = [entry.sharers.get(), entry.readers.get()];
        let page = self.page(n);
        let is_sound = entry.owner < hosts
            && entry.writer < hosts
            && u32::from(sharers | readers) >> hosts == 0
            && sharers & bit(entry.owner) == 0
            && page.state.is_owner() == (entry.owner == HEIR)
            && (page.state == State::Shared) == (sharers & bit(HEIR) != 0)
            && !(is_untouched && (entry.owner == HEIR || sharers != 0 || page.version > 1));
        if !is_sound {
            return false;
        }
        (page.owner, page.writer) = (entry.owner, entry.writer);
        (page.sharers, page.readers) = (sharers, readers);
        page.migrates = entry.flags & Entry::MIGRATES != 0;
        if is_untouched {
            (page.owner, page.version, page.state) = (HEIR, 1, State::Modified);
            actions.protect(n, Access::Write);
        }
        true
    }

    /// Tells a leaver that what it handed over up to that page, or gave, is taken.
    fn taken_up(
        &mut self,
        leaver: u8,
        page: u32,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        self.send(leaver, self.about(Kind::Taken, page), actions)
    }

    /// Notes that a piece of the directory, or a page, is taken; `false` if none was to be.
    pub(crate) fn taken(
        &mut self,
        from: u8,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let n = number(message);
        match self.leavers.way {
            Way::Hands(end) if from == HEIR && n + 1 == end => {
                self.hand_from(self.next_of(self.settings.host, end), actions)?;
                Ok(true)
            }
            Way::Gives(_) if !self.state(n).is_owner() => {
                let mut given = self.leavers.given.iter_mut();
                let given = given.find(|given| **given == n);
                Ok(given.map(|given| *given = NO_PAGE).is_some())
            }
            _ => Ok(false),
        }
    }

    /// Gives away what this leaver owns from there on, and forgets copies. Their homes send no more: others are told to hold.
    fn give_from(&mut self, from: u32, actions: &mut impl Actions) -> Result<(), Broken> {
        let most = from.saturating_add(PAGES_AT_ONCE).min(self.settings.pages);
        let mut at = from;
        while at < most && !self.is_held(at) {
            let state = self.state(at);
            if state.is_owner() {
                let mut free = self.leavers.given.iter_mut().filter(|it| **it == NO_PAGE);
                let Some(free) = free.next() else { break };
                *free = at;
                self.give(at, actions)?;
            } else if state == State::Shared {
                self.page(at).state = State::Invalid;
                actions.protect(at, Access::None);
            }
            at += 1;
        }
        self.leavers.way = Way::Gives(at);
        if at == self.settings.pages && self.leavers.given == [NO_PAGE; GIVEN_MAX] {
            self.leavers.way = Way::Empty;
            self.say(stage::EMPTY, actions)?;
        }
        Ok(())
    }

    fn give(&mut self, page: u32, actions: &mut impl Actions) -> Result<(), Broken> {
        self.send(self.home(page), self.about(Kind::Give, page), actions)
    }

    /// A leaver wants this home to take a page; `false` if it wants too many. One that leaves as well leaves that to the heir.
    pub(crate) fn given(&mut self, from: u8, message: &Message) -> bool {
        if self.leavers.leave & bit(from) == 0 {
            return false;
        }
        let mut takes = self.leavers.takes[usize::from(from)].iter_mut();
        let free = takes.find(|it| **it == NO_PAGE);
        self.leavers.way != Way::Stays || free.map(|it| *it = number(message)).is_some()
    }

    /// Asks for pages that leavers give, in transactions that are left, and tells those that have come.
    fn take(&mut self, actions: &mut impl Actions) -> Result<(), Broken> {
        for host in members(self.leavers.leave & self.leavers.present) {
            for place in 0..GIVEN_MAX {
                let page = self.leavers.takes[usize::from(host)][place];
                if page == NO_PAGE {
                    continue;
                }
                if self.page(page).owner == host {
                    self.ask_early(page, Access::Write, actions)?;
                } else {
                    self.leavers.takes[usize::from(host)][place] = NO_PAGE;
                    self.taken_up(host, page, actions)?;
                }
            }
        }
        Ok(())
    }
}
