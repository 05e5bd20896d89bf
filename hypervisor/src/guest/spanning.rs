//! What a VM that spans hosts tells the others.

use crate::cluster;
use crate::guest::{End, Guest};
use arch::timer;
use core::sync::atomic::Ordering;
use model_span::{Kind, Message, Session, end};

impl Guest {
    /// Returns whether another host has that vCPU.
    #[inline]
    pub fn is_elsewhere(&self, vcpu: usize) -> bool {
        let span = self.span.as_ref();
        span.is_some_and(|span| span.is_elsewhere(vcpu))
    }

    /// Does something with the session; what that sends has the guest's count. A VM whose messages find no room ends.
    pub fn with_session<R>(
        &self,
        act: impl FnOnce(&mut Session, &mut dyn FnMut(u8, Message)) -> R,
    ) -> Option<R> {
        let span = self.span.as_ref()?;
        let mut has_room = true;
        let mut session = span.session.lock();
        let mut send = |to: u8, mut message: Message| {
            message.count = timer::now().wrapping_sub(self.time_offset()).into();
            has_room &= cluster::say(to, zerocopy::transmute!(message));
        };
        let result = act(&mut session, &mut send);
        span.life.store(session.life(), Ordering::Relaxed);
        drop(session);
        if !has_room {
            self.end(format_args!("its hosts take no messages"));
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
