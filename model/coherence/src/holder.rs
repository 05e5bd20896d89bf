//! Holder of a page, owner or sharer: gives it up, unless a vCPU has a lease on it.

use crate::prefetch::Misses;
use crate::{
    Access, Actions, Age, Broken, Form, Host, Kind, Message, PUSH, Page, Settings, State, age,
    number, set_age,
};
use core::ops::IndexMut;
use heapless::Vec;

/// The most pages of a lease: an instruction needs its own, two of data and the page tables of each.
const LEASED_MAX: usize = 16;

/// A vCPU of this host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Vcpu {
    /// When its instruction first faulted; `None` if it has not.
    pub(crate) age: Option<Age>,
    pub(crate) waits_for: Option<u32>,
    /// Whether it waits for answers to a TLB invalidation.
    pub(crate) waits_for_tlb: bool,
    /// Pages that its instruction was granted, and whether to write.
    pub(crate) lease: Vec<(u32, bool), LEASED_MAX>,
    until_ns: u64,
    pub(crate) misses: Misses,
}

/// Request of a home that waits for a lease to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Deferred {
    message: Message,
    /// When it does not wait any longer.
    pub(crate) until_ns: u64,
}

impl Deferred {
    /// Returns whether a message is of the same transaction.
    fn is_of(&self, message: &Message) -> bool {
        (self.message.host, self.message.slot) == (message.host, message.slot)
    }
}

impl Vcpu {
    pub(crate) const NEW: Self = Self {
        age: None,
        waits_for: None,
        waits_for_tlb: false,
        lease: Vec::new(),
        until_ns: 0,
        misses: Misses::NEW,
    };

    /// Adds a page to the lease, in place of the oldest if there are too many.
    pub(crate) fn keep(&mut self, page: u32, access: Access, until_ns: u64) {
        let writes = access != Access::Read;
        self.until_ns = until_ns;
        if let Some(kept) = self.lease.iter_mut().find(|kept| kept.0 == page) {
            kept.1 |= writes;
            return;
        }
        if self.lease.is_full() {
            self.lease.remove(0);
        }
        let _ = self.lease.push((page, writes));
    }

    pub(crate) fn retire(&mut self) {
        self.age = None;
        self.lease.clear();
    }

    /// Returns whether the lease keeps the page from a transaction of that age, which takes the right to write or all.
    fn keeps(&self, now_ns: u64, page: u32, takes_all: bool, than: Age) -> bool {
        let is_kept = |(kept, writes): &(u32, bool)| *kept == page && (*writes || takes_all);
        now_ns < self.until_ns
            && self.age.is_some_and(|age| age < than)
            && self.lease.iter().any(is_kept)
    }
}

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    /// Handles the home's request for a page that this host has: answers it, or defers it.
    pub(crate) fn asked(
        &mut self,
        now_ns: u64,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let is_owner = self.state(number(message)).is_owner();
        if message.slot == PUSH {
            return Ok(is_owner && self.answer(message, actions).map(|()| true)?);
        }
        let mut deferred = self.deferred.iter();
        let is_deferred = deferred.any(|it| it.is_of(message));
        if is_owner != (message.kind == Kind::Forward) || is_deferred {
            return Ok(false);
        }
        let Some(until_ns) = self.kept_until(now_ns, message) else {
            return self.answer(message, actions).map(|()| true);
        };
        self.deferred.push(Deferred {
            message: *message,
            until_ns,
        });
        for (n, vcpu) in self.vcpus.iter().enumerate() {
            if vcpu.keeps(now_ns, number(message), true, age(message)) {
                actions.kick(n);
            }
        }
        Ok(true)
    }

    /// Returns until when leases, or its hold, keep the page from this request.
    fn kept_until(&self, now_ns: u64, message: &Message) -> Option<u64> {
        let takes_all = message.kind == Kind::Invalidate || message.access != Access::Read;
        let keeps = |vcpu: &&Vcpu| vcpu.keeps(now_ns, number(message), takes_all, age(message));
        let vcpus = self.vcpus.iter().filter(keeps);
        let leased = vcpus.map(|vcpu| vcpu.until_ns).max();
        let Settings {
            hold_ns,
            lease_ns,
            switches,
            ..
        } = self.settings;
        let page = &self.pages[number(message) as usize];
        let loses = takes_all || page.state == State::Modified;
        let held = page.held_until([hold_ns, lease_ns / 4]);
        let held = (switches.hold && loses && now_ns < held).then_some(held);
        leased.max(held)
    }

    /// Answers what was deferred and waits for nothing any longer.
    pub(crate) fn reconsider(
        &mut self,
        now_ns: u64,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        let mut n = 0;
        while let Some(Deferred { message, .. }) = self.deferred.get(n).copied() {
            if let Some(until_ns) = self.kept_until(now_ns, &message) {
                self.deferred[n].until_ns = until_ns;
                n += 1;
            } else {
                self.deferred.remove(n);
                self.answer(&message, actions)?;
            }
        }
        Ok(())
    }

    /// Gives the page up, or the right to write it, and tells the requester.
    fn answer(&mut self, message: &Message, actions: &mut impl Actions) -> Result<(), Broken> {
        let n = number(message);
        let Page { state, version, .. } = *self.page(n);
        let is_first = version == 1 && self.settings.home(n) == self.settings.host;
        let mut is_untouched = state == State::Modified && is_first && actions.is_untouched(n);
        // What its home has touched may be there for all to read.
        let access = match message.access {
            Access::Any if state != State::Modified || is_first && !is_untouched => Access::Read,
            access => access,
        };
        let state = match (message.kind, access) {
            (Kind::Forward, Access::Read) => State::Owned,
            _ => State::Invalid,
        };
        let was = core::mem::replace(&mut self.page(n).state, state);
        if was.access() != state.access() {
            let is_written = actions.protect(n, state.access());
            let page = self.page(n);
            // It may have been touched just before.
            is_untouched &= !is_written;
            let is_new = u64::from(is_written && was == State::Modified);
            page.version = page.version.saturating_add(is_new);
        }
        let mut answer = Message {
            kind: Kind::Ack,
            ..*message
        };
        if message.kind == Kind::Forward {
            let switches = self.settings.switches;
            let version = self.version(n);
            let overwrites = message.access == Access::Zero;
            (answer.kind, answer.access) = (Kind::Data, access);
            answer.form = match () {
                () if version == message.version.get() || overwrites => Form::None,
                () if switches.zero && (is_untouched || actions.is_zero(n)) => Form::Zero,
                () if switches.changes && message.version.get() != 0 => Form::Changes,
                () => Form::Full,
            };
            if answer.form == Form::Changes {
                answer.since = message.version;
            }
            answer.version = version.into();
        }
        self.send(message.host, answer, actions)
    }

    /// Makes a deferred request older: a lease may keep the page from it no longer.
    pub(crate) fn make_older(
        &mut self,
        now_ns: u64,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let mut deferred = self.deferred.iter_mut();
        // What is not deferred was answered before this came.
        if let Some(deferred) = deferred.find(|it| it.is_of(message)) {
            if deferred.message.page == message.page {
                set_age(&mut deferred.message, age(message));
            }
            self.reconsider(now_ns, actions)?;
        }
        Ok(true)
    }
}
