//! What a VM that spans hosts tells the others.

use crate::cluster;
use crate::guest::{End, Guest};
use arch::timer;
use model_span::{Kind, Message, Session, State, end};
use zerocopy::IntoBytes;

impl Guest {
    /// Returns whether another host has that vCPU.
    #[inline]
    pub fn is_elsewhere(&self, vcpu: usize) -> bool {
        let span = self.span.as_ref();
        span.is_some_and(|span| span.is_elsewhere(vcpu))
    }

    /// Does something with the session; what that sends has the guest's count. A link that takes no message of a VM that
    /// runs ends it.
    pub fn with_session<R>(
        &self,
        act: impl FnOnce(&mut Session, &mut dyn FnMut(u8, Message)) -> R,
    ) -> Option<R> {
        let span = self.span.as_ref()?;
        let mut lost = None;
        let (result, runs) = {
            let mut session = span.session.lock();
            let mut send = |to: u8, mut message: Message| {
                message.count = timer::now().wrapping_sub(self.time_offset()).into();
                if !cluster::send(to, [message.as_bytes(), &[]]) {
                    lost = Some(to);
                }
            };
            let result = act(&mut session, &mut send);
            (result, session.state() == State::Running)
        };
        if let Some(host) = lost.filter(|_| runs) {
            self.end(format_args!("the link to host {host} takes no messages"));
        }
        Some(result)
    }
}

/// A VM has ended, be it that it spans hosts: all others hear of it.
pub fn ended(vm: &Guest, why: End) {
    let why = match why {
        End::PowerOff => end::POWER_OFF,
        End::Reset => end::RESET,
        End::Killed => end::KILLED,
        End::Failed(_) => end::FAILED,
    };
    tell(vm, Kind::End, why);
}

/// Tells all other hosts of a VM that it was ended, paused or resumed.
pub fn tell(vm: &Guest, kind: Kind, detail: u8) {
    vm.with_session(|session, send| session.tell(kind, detail, send));
}
