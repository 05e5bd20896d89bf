//! Home of a page: one transaction at a time, the others wait, the oldest first.

use crate::{
    Access, Actions, Age, Broken, Host, Hosts, Kind, Message, NONE, PUSH, Page, age, bit, members,
    number, set_age,
};
use core::ops::IndexMut;

/// A transaction that is under way or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    message: Message,
    /// The next that waits for the same page.
    next: u16,
}

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    pub(crate) fn id(message: &Message) -> u16 {
        if message.slot == PUSH {
            return (HOSTS * SLOTS) as u16 + u16::from(message.host);
        }
        u16::from(message.host) * SLOTS as u16 + u16::from(message.slot)
    }

    fn request_of(&mut self, id: u16) -> Option<&mut Request> {
        let id = usize::from(id);
        self.requests.get_mut(id / SLOTS)?[id % SLOTS].as_mut()
    }

    /// Takes a request: starts it, or lets it wait.
    pub(crate) fn get(
        &mut self,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let request = &mut self.requests[usize::from(message.host)][usize::from(message.slot)];
        if request.is_some() {
            return Ok(false);
        }
        *request = Some(Request {
            message: *message,
            next: NONE,
        });
        let id = Self::id(message);
        let page = self.page(number(message));
        if page.current == NONE {
            page.current = id;
            self.start(message, actions)?;
        } else {
            self.wait(id, message);
            self.urge(number(message), age(message), actions)?;
        }
        Ok(true)
    }

    /// Puts a request among those that wait, behind all older ones.
    fn wait(&mut self, id: u16, message: &Message) {
        let n = number(message);
        let (mut before, mut next) = (NONE, self.page(n).queue);
        while let Some(request) = self
            .request_of(next)
            .filter(|r| age(&r.message) < age(message))
        {
            (before, next) = (next, request.next);
        }
        self.link(n, before, id);
        self.link(n, id, next);
    }

    /// Makes `next` follow `before`, or be the first.
    fn link(&mut self, page: u32, before: u16, next: u16) {
        match self.request_of(before) {
            Some(request) => request.next = next,
            None => self.page(page).queue = next,
        }
    }

    /// Takes a request out of those that wait.
    fn unlink(&mut self, page: u32, id: u16) {
        let (mut before, mut at) = (NONE, self.page(page).queue);
        while let Some(next) = self.request_of(at).map(|request| request.next) {
            if at == id {
                return self.link(page, before, next);
            }
            (before, at) = (at, next);
        }
    }

    /// Asks the owner and the sharers for what the current transaction needs.
    fn start(&mut self, message: &Message, actions: &mut impl Actions) -> Result<(), Broken> {
        let present = self.leavers.present;
        let page = self.page(number(message));
        page.sharers &= present;
        let Page {
            owner,
            sharers,
            migrates,
            ..
        } = *page;
        let mut message = *message;
        let reads = Self::only_reads(&message, owner);
        if reads && migrates && sharers == 0 && self.settings.switches.migratory {
            message.access = Access::Any;
            if let Some(request) = self.request_of(Self::id(&message)) {
                request.message.access = Access::Any;
            }
        }
        let gone = if reads {
            0
        } else {
            sharers & !bit(message.host)
        };
        for sharer in members(gone) {
            let kind = Kind::Invalidate;
            self.send(sharer, Message { kind, ..message }, actions)?;
        }
        let kind = if owner == message.host {
            Kind::Grant
        } else {
            Kind::Forward
        };
        let acks = gone.count_ones() as u8;
        let message = Message {
            kind,
            acks,
            ..message
        };
        self.send(owner, message, actions)
    }

    /// Whether the requester will be a sharer; an owner is granted to write, whatever it asked for.
    fn only_reads(message: &Message, owner: u8) -> bool {
        message.access == Access::Read && owner != message.host
    }

    /// Ends the current transaction of a page and starts the next.
    pub(crate) fn done(
        &mut self,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let (n, id) = (number(message), Self::id(message));
        if self.page(n).current != id {
            return Ok(false);
        }
        // A transaction that this home began has no request.
        let request = self.requests[usize::from(message.host)].get_mut(usize::from(message.slot));
        let request = request.and_then(Option::take);
        let read = Message {
            access: Access::Read,
            ..*message
        };
        if message.slot == PUSH {
            self.pushing &= !bit(message.host);
            // It asked for the page with the version that it had before.
            let requests = self.requests[usize::from(message.host)].iter_mut();
            let waiting = requests.flatten().filter(|r| number(&r.message) == n);
            waiting.for_each(|request| request.message.version = 0.into());
        }
        let mut asked = request.map_or(read, |request| request.message);
        if asked.access != Access::Any && message.access == Access::Any {
            return Ok(false);
        }
        let pushes = self.settings.switches.push;
        let page = self.page(n);
        page.learn(asked.access, message);
        if asked.access == Access::Any {
            asked.access = message.access;
        }
        if Self::only_reads(&asked, page.owner) {
            page.sharers |= bit(message.host);
        } else {
            let is_its_again = page.owner == message.host;
            page.readers = page.sharers & !bit(message.host);
            (page.owner, page.sharers) = (message.host, 0);
            // A page that others write next is not one to be read.
            if pushes && is_its_again && page.readers != 0 {
                actions.written(n);
            }
        }
        page.current = page.queue;
        let next = page.queue;
        if let Some(Request { message, next }) = self.request_of(next).copied() {
            self.page(n).queue = next;
            self.start(&message, actions)?;
        } else if message.slot == PUSH {
            self.push(message, actions)?;
        }
        Ok(true)
    }

    /// Makes a transaction older, as an older vCPU waits for it.
    pub(crate) fn hurry(
        &mut self,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let (n, id) = (number(message), Self::id(message));
        let is_current = self.page(n).current == id;
        let known = self.request_of(id);
        let Some(request) = known.filter(|r| r.message.page == message.page) else {
            return Ok(false);
        };
        if !is_current {
            set_age(&mut request.message, age(message));
            let message = request.message;
            self.unlink(n, id);
            self.wait(id, &message);
        }
        self.urge(n, age(message), actions)?;
        Ok(true)
    }

    /// Tells those that the current transaction waits for of its age, if it becomes older.
    fn urge(&mut self, page: u32, older: Age, actions: &mut impl Actions) -> Result<(), Broken> {
        let Page {
            current,
            owner,
            sharers,
            ..
        } = *self.page(page);
        let Some(request) = self.request_of(current) else {
            return Ok(());
        };
        if older >= age(&request.message) {
            return Ok(());
        }
        set_age(&mut request.message, older);
        let kind = Kind::Yield;
        let message = Message {
            kind,
            ..request.message
        };
        let holders: Hosts = (bit(owner) | sharers) & self.leavers.present & !bit(message.host);
        members(holders).try_for_each(|holder| self.send(holder, message, actions))
    }
}

impl Page {
    /// Notes whether the page migrates, from a transaction that ends and what was asked of the owner for it (Stenström,
    /// Brorsson and Sandberg, An Adaptive Cache Coherence Protocol Optimized for Migratory Sharing, 1993).
    fn learn(&mut self, asked: Access, done: &Message) {
        match (asked, done.access) {
            // The owner gave the only copy, as it had written it; the requester has not yet.
            (Access::Any, Access::Any) => self.writer = self.owner,
            (Access::Any, _) => self.migrates = false,
            (Access::Read | Access::None, _) => {}
            (Access::Write | Access::Zero, _) => {
                let has_read = self.sharers == bit(done.host);
                let is_others = self.owner != done.host;
                self.migrates = is_others
                    && (has_read && self.writer != done.host || self.sharers == 0 && self.migrates);
                self.writer = done.host;
            }
        }
    }
}
