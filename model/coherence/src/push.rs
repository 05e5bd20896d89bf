//! Pages that are given to their former readers before those ask: the home reads on their behalf.

use crate::{
    Access, Actions, Broken, Form, Host, Kind, Message, NONE, PUSH, Page, State, bit, members,
    number,
};
use core::ops::IndexMut;

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    /// The writer of a page has done with it: its home gives it to those that read it before.
    pub(crate) fn quiet(&mut self, page: u32, actions: &mut impl Actions) -> Result<(), Broken> {
        let is_home = self.home(page) == self.settings.host;
        let is_owner = self.state(page) == State::Modified;
        let has_home = is_home || is_owner && !self.is_held(page);
        if !self.settings.switches.push || self.holds_messages() || !has_home {
            return Ok(());
        }
        let message = self.about(Kind::Push, page);
        if is_home {
            return self.push(&message, actions);
        }
        self.send(self.home(page), message, actions)
    }

    /// Begins a transaction for the next former reader, unless somebody asks for the page. Each reader is given one page at
    /// a time, so that the number of messages has a bound.
    pub(crate) fn push(
        &mut self,
        message: &Message,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        let home = u16::from(self.settings.host);
        let stay = self.leavers.present & !self.leavers.leave;
        let free = if self.leaves() {
            0
        } else {
            stay & !self.pushing
        };
        let page = self.page(number(message));
        let owner = page.owner;
        page.readers &= !(page.sharers | bit(owner));
        let mut readers = members(page.readers & free);
        let Some(host) = readers.next().filter(|_| page.current == NONE) else {
            return Ok(());
        };
        page.readers &= !bit(host);
        let message = Message {
            kind: Kind::Forward,
            access: Access::Read,
            host,
            slot: PUSH,
            vcpu: home.into(),
            version: 0.into(),
            ..*message
        };
        page.current = Self::id(&message);
        self.pushing |= bit(host);
        self.send(owner, message, actions)
    }

    /// Takes a page that this host did not ask for.
    pub(crate) fn pushed(
        &mut self,
        message: &Message,
        tail: &[u8],
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let n = number(message);
        let has_bytes = message.form == Form::Full;
        let bytes = if has_bytes {
            self.settings.page_bytes
        } else {
            0
        };
        let is_whole = has_bytes || message.form == Form::Zero;
        let (home, known) = (message.vcpu.get() as u8, self.home(n));
        if home != known && !self.may_inherit(home, known) {
            return Ok(false);
        }
        if self.state(n) != State::Invalid || !is_whole || tail.len() != bytes {
            return Ok(false);
        }
        actions.fill(n, has_bytes.then_some(tail));
        let page = self.page(n);
        (page.version, page.state) = (message.version.get(), State::Shared);
        actions.protect(n, Access::Read);
        let message = Message {
            kind: Kind::Done,
            ..*message
        };
        self.send(home, message, actions)?;
        Ok(true)
    }
}
