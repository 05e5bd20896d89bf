//! Requester of a page: from the fault of a vCPU to its next access.

use crate::{Access, Actions, Age, Broken, Form, Host, Kind, Message, Page, State, number};
use core::ops::IndexMut;

/// An open transaction of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Open {
    pub(crate) page: u32,
    access: Access,
    age: Age,
    /// Sharers that must tell, once that is known.
    acks: Option<u8>,
    /// Sharers that have told.
    came: u8,
}

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    /// Handles a fault: the vCPU waits for a transaction of the page, which is opened if there is none.
    pub(crate) fn fault(
        &mut self,
        now_ns: u64,
        vcpu: usize,
        page: u32,
        access: Access,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        let access = match access {
            Access::Zero if !self.settings.switches.zero => Access::Write,
            access => access,
        };
        let tie = u16::from(self.settings.host) << 8 | vcpu as u16;
        let age = *self.vcpus[vcpu].age.get_or_insert((now_ns, tie));
        if self.state(page) == State::Exclusive && access != Access::Read {
            self.write_first(page, actions);
        }
        let Page { state, slot, .. } = *self.page(page);
        if state.allows(access) {
            self.vcpus[vcpu].keep(page, access, now_ns.saturating_add(self.settings.lease_ns));
            actions.resume(vcpu, false);
            return Ok(());
        }
        // After an interrupt, a vCPU can fault elsewhere while its transaction is open.
        let waits_for = self.open[vcpu].map_or(page, |open| open.page);
        self.vcpus[vcpu].waits_for = Some(waits_for);
        if waits_for != page || slot == u8::MAX && self.is_held(page) {
            return Ok(());
        }
        let Some(open) = self.open.get_mut(usize::from(slot)) else {
            self.request(vcpu, page, access, age, actions)?;
            return self.prefetch(now_ns, vcpu, page, access, actions);
        };
        let Some(open) = open.as_mut().filter(|open| age < open.age) else {
            return Ok(());
        };
        open.age = age;
        let message = open.message(Kind::Hurry, self.settings.host, slot, 0);
        self.send(self.home(page), message, actions)
    }

    /// The only copy of a page, which came to be read, is about to be written.
    fn write_first(&mut self, page: u32, actions: &mut impl Actions) {
        if self.settings.switches.remembers() {
            actions.remember(page, self.version(page));
        }
        self.page(page).state = State::Modified;
        actions.protect(page, Access::Write);
    }

    pub(crate) fn request(
        &mut self,
        slot: usize,
        page: u32,
        access: Access,
        age: Age,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        let open = Open {
            page,
            access,
            age,
            acks: None,
            came: 0,
        };
        self.open[slot] = Some(open);
        self.page(page).slot = slot as u8;
        let keeps = self.settings.switches.versions;
        let version = if keeps { self.version(page) } else { 0 };
        let message = open.message(Kind::Get, self.settings.host, slot as u8, version);
        self.send(self.home(page), message, actions)
    }

    /// Returns the open transaction that an answer is for.
    fn answered(&mut self, message: &Message) -> Option<&mut Open> {
        let open = self.open[usize::from(message.slot)].as_mut();
        open.filter(|open| open.page == number(message))
    }

    /// Takes the page, or the right to write it.
    pub(crate) fn data(
        &mut self,
        now_ns: u64,
        message: &Message,
        tail: &[u8],
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let n = number(message);
        let Page { state, version, .. } = *self.page(n);
        let Some(open) = self.answered(message).filter(|open| open.acks.is_none()) else {
            return Ok(false);
        };
        open.acks = Some(message.acks);
        if message.access == Access::Any {
            if open.access != Access::Read {
                return Ok(false);
            }
            open.access = Access::Any;
        }
        let needs_bytes = open.access != Access::Zero;
        let is_ours = state.is_owner();
        let bytes = message.form == Form::Full;
        let is_sound = match (message.kind, message.form) {
            (Kind::Grant, _) => is_ours,
            (_, Form::None) => !is_ours && (!needs_bytes || version == message.version.get()),
            (_, Form::Changes) => !is_ours && version != 0 && version == message.since.get(),
            _ => !is_ours && tail.len() == if bytes { self.settings.page_bytes } else { 0 },
        };
        if !is_sound {
            return Ok(false);
        }
        if message.kind == Kind::Data {
            let is_changed = match message.form {
                Form::None => true,
                Form::Changes => actions.change(n, tail),
                Form::Zero | Form::Full => {
                    actions.fill(n, bytes.then_some(tail));
                    true
                }
            };
            if !is_changed {
                return Ok(false);
            }
            self.page(n).version = message.version.get();
        }
        self.complete(now_ns, message, actions)?;
        Ok(true)
    }

    /// Notes that a copy is gone.
    pub(crate) fn ack(
        &mut self,
        now_ns: u64,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let Some(open) = self.answered(message) else {
            return Ok(false);
        };
        open.came = open.came.saturating_add(1);
        if open.came >= self.settings.hosts() {
            return Ok(false);
        }
        self.complete(now_ns, message, actions)?;
        Ok(true)
    }

    /// Ends the transaction if the page and all acks have come.
    fn complete(
        &mut self,
        now_ns: u64,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        let (n, slot) = (number(message), usize::from(message.slot));
        let Some(open) = self.open[slot].filter(|open| open.acks == Some(open.came)) else {
            return Ok(());
        };
        self.open[slot] = None;
        self.ended(slot);
        let is_owner = self.state(n).is_owner();
        let holds = self.settings.switches.hold;
        let page = self.page(n);
        page.slot = u8::MAX;
        if holds {
            page.warm(now_ns);
        }
        page.state = match open.access {
            Access::Read if !is_owner => State::Shared,
            Access::Any => State::Exclusive,
            _ => State::Modified,
        };
        let (access, version) = (page.state.access(), page.version);
        if open.access == Access::Zero {
            page.version = page.version.saturating_add(1);
            actions.fill(n, None);
        } else if access == Access::Write && self.settings.switches.remembers() {
            actions.remember(n, version);
        }
        actions.protect(n, access);
        let until_ns = now_ns.saturating_add(self.settings.lease_ns);
        for vcpu in 0..usize::from(self.settings.vcpus) {
            if self.vcpus[vcpu].waits_for == Some(n) {
                self.vcpus[vcpu].waits_for = None;
                self.vcpus[vcpu].keep(n, access, until_ns);
                actions.resume(vcpu, open.access == Access::Zero && vcpu == slot);
            }
        }
        let message = open.message(Kind::Done, self.settings.host, slot as u8, 0);
        self.send(self.home(n), message, actions)
    }
}

/// A page that comes again within this time bounces, in nanoseconds.
const BOUNCE_NS: u64 = 2_500_000;
/// A page that came so often within short times is held.
const HEAT_HELD: u8 = 4;

impl Page {
    /// Notes that the page came.
    fn warm(&mut self, now_ns: u64) {
        let is_soon = now_ns.saturating_sub(self.came_at_ns) < BOUNCE_NS;
        self.came_at_ns = now_ns;
        self.heat = if is_soon {
            self.heat.saturating_add(1)
        } else {
            self.heat / 2
        };
    }

    /// Returns until when the page is held, with the shortest and the longest time.
    pub(crate) fn held_until(&self, [least_ns, most_ns]: [u64; 2]) -> u64 {
        let Some(doublings) = self.heat.checked_sub(HEAT_HELD) else {
            return 0;
        };
        let hold_ns = least_ns.saturating_mul(1 << doublings.min(16));
        self.came_at_ns.saturating_add(hold_ns.min(most_ns))
    }
}

impl Open {
    fn message(&self, kind: Kind, host: u8, slot: u8, version: u64) -> Message {
        Message {
            kind,
            access: self.access,
            form: Form::None,
            host,
            slot,
            acks: 0,
            vcpu: self.age.1.into(),
            page: self.page.into(),
            life: 0.into(),
            version: version.into(),
            since: self.age.0.into(),
            count: 0.into(),
        }
    }
}
