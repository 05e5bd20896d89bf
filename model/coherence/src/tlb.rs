//! TLB invalidations to other hosts, and messages that wait for their answers.

use crate::{
    Actions, Broken, Form, Host, Hosts, Kind, Message, Operation, Page, Tail, age, bit, held_max,
    members, number, set_age,
};
use abi::coherence::OPERATIONS_MAX;
use alloc::vec::Vec;
use core::ops::IndexMut;
use zerocopy::FromBytes;

/// Invalidations that others have not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tlb {
    /// Operations that were not sent.
    batch: heapless::Vec<Operation, OPERATIONS_MAX>,
    /// Whether there are operations that were not sent; if the batch is empty, there were too many.
    is_due: bool,
    /// Hosts that have not answered what was sent.
    unanswered: Hosts,
    /// Messages that wait, with their receivers.
    held: Vec<(u8, Message)>,
    /// How many of them precede the operations that were not sent.
    covered: usize,
}

impl Tlb {
    /// Makes one with room for so many messages; `None` without memory.
    pub(crate) fn new(held_max: usize) -> Option<Self> {
        let mut held = Vec::new();
        held.try_reserve_exact(held_max).ok()?;
        Some(Self {
            batch: heapless::Vec::new(),
            is_due: false,
            unanswered: 0,
            held,
            covered: 0,
        })
    }
}

impl<P: IndexMut<usize, Output = Page>, const HOSTS: usize, const SLOTS: usize>
    Host<P, HOSTS, SLOTS>
{
    /// Returns whether messages wait for answers to an invalidation.
    pub const fn holds_messages(&self) -> bool {
        self.tlb.unanswered != 0
    }

    /// Returns whether all invalidations were sent and answered.
    pub(crate) const fn has_invalidated(&self) -> bool {
        !self.tlb.is_due && self.tlb.unanswered == 0
    }

    /// Notes an invalidation of a vCPU.
    pub(crate) fn tlbi(&mut self, vcpu: usize, operation: u64, actions: &mut impl Actions) {
        let tlb = &mut self.tlb;
        let is_whole = tlb.is_due && tlb.batch.is_empty();
        tlb.is_due = true;
        if !is_whole && tlb.batch.push(operation.into()).is_err() {
            tlb.batch.clear();
        }
        if self.settings.switches.lazy_tlbi {
            actions.resume(vcpu, false);
        } else {
            self.vcpus[vcpu].waits_for_tlb = true;
            self.flush(actions);
        }
    }

    /// Sends the operations that were not sent, unless answers to others are awaited.
    pub(crate) fn flush(&mut self, actions: &mut impl Actions) {
        let me = self.settings.host;
        let tlb = &mut self.tlb;
        if !tlb.is_due || tlb.unanswered != 0 {
            return;
        }
        let others = self.leavers.present & !bit(me);
        let message = Message::plain(Kind::Tlbi, me);
        for host in members(others) {
            transmit(host, message, Some(Tail::Operations(&tlb.batch)), actions);
        }
        tlb.batch.clear();
        (tlb.is_due, tlb.unanswered, tlb.covered) = (false, others, tlb.held.len());
        if others == 0 {
            self.release(actions);
        }
    }

    /// Takes the invalidations of another host.
    pub(crate) fn invalidate(
        &mut self,
        from: u8,
        tail: &[u8],
        actions: &mut impl Actions,
    ) -> Result<bool, Broken> {
        let operations = <[Operation]>::ref_from_bytes(tail);
        let operations = operations.map_err(|_| Broken::Malformed(from))?;
        actions.invalidate(operations);
        // Its sender waits for it: it never waits itself.
        let message = Message::plain(Kind::TlbiDone, self.settings.host);
        transmit(from, message, None, actions);
        Ok(true)
    }

    /// Takes an answer. The last one lets messages go.
    pub(crate) fn invalidated(&mut self, from: u8, actions: &mut impl Actions) -> bool {
        let tlb = &mut self.tlb;
        let is_awaited = tlb.unanswered & bit(from) != 0;
        tlb.unanswered &= !bit(from);
        if tlb.unanswered == 0 {
            self.release(actions);
        }
        is_awaited
    }

    /// Lets go what all hosts have answered.
    fn release(&mut self, actions: &mut impl Actions) {
        let tlb = &mut self.tlb;
        for (to, message) in tlb.held.drain(..tlb.covered) {
            transmit(to, message, None, actions);
        }
        tlb.covered = 0;
        if !tlb.is_due {
            for (n, vcpu) in self.vcpus.iter_mut().enumerate() {
                if core::mem::take(&mut vcpu.waits_for_tlb) {
                    actions.resume(n, false);
                }
            }
        }
        self.flush(actions);
    }

    /// Sends a message, behind the invalidations that precede it and their answers.
    pub(crate) fn send(
        &mut self,
        to: u8,
        message: Message,
        actions: &mut impl Actions,
    ) -> Result<(), Broken> {
        if to == self.settings.host {
            let capacity = self.local.capacity();
            return self.local.push(message).map_err(|_| Broken::Full(capacity));
        }
        if !self.tlb.is_due && self.tlb.unanswered == 0 {
            transmit(to, message, None, actions);
            return Ok(());
        }
        let tlb = &mut self.tlb;
        // Each older vCPU can make a transaction older: only the oldest counts.
        let makes_older = matches!(message.kind, Kind::Hurry | Kind::Yield);
        let of = |m: &Message| (m.kind, m.host, m.slot, m.page);
        let is_same = |it: &&mut (u8, Message)| it.0 == to && of(&it.1) == of(&message);
        if makes_older && let Some((_, held)) = tlb.held.iter_mut().find(is_same) {
            set_age(held, age(held).min(age(&message)));
            return Ok(());
        }
        let most = held_max(self.settings.hosts().into(), SLOTS);
        if tlb.held.len() >= most {
            return Err(Broken::Full(most));
        }
        tlb.held.push((to, message));
        tlb.covered += usize::from(!tlb.is_due);
        self.flush(actions);
        Ok(())
    }
}

/// Sends a message with what follows it: `None` stands for the page, where it has one.
pub(crate) fn transmit(
    to: u8,
    mut message: Message,
    tail: Option<Tail<'_>>,
    actions: &mut impl Actions,
) {
    let page = match (message.kind, message.form) {
        (Kind::Data, Form::Full) => Tail::Page(number(&message)),
        (Kind::Data, Form::Changes) => Tail::Changes(number(&message), message.since.get()),
        _ => Tail::None,
    };
    message.life = actions.life().into();
    actions.send(to, &message, tail.unwrap_or(page));
}
