//! What a VM that spans hosts tells the others.

use crate::cluster;
use crate::cluster::calls::AHEAD_MAX_NS;
use crate::guest::{End, Guest};
use crate::machine::{self, due};
use crate::vcpu::{Vcpu, attention};
use arch::timer;
use core::sync::atomic::Ordering;
use model_span::{GROUP1_TOO, Kind, Message, Session, end};
use model_vgic::VcpuSet;

impl Guest {
    /// Returns whether another host has that vCPU.
    #[inline]
    pub fn is_elsewhere(&self, vcpu: usize) -> bool {
        let span = self.span.as_ref();
        span.is_some_and(|span| span.is_elsewhere(vcpu))
    }

    /// Returns whether a vCPU is to leave this host.
    pub fn is_left(&self) -> bool {
        let span = self.span.as_ref();
        span.is_some_and(|span| span.is_left.load(Ordering::Relaxed))
    }

    /// Returns whether it is that vCPU.
    pub fn is_left_by(&self, vcpu: u16) -> bool {
        let leaves = |session: &mut Session| session.leaves().map(|it| it.0);
        self.is_left() && self.with_session(|session, _| leaves(session)) == Some(Some(vcpu as u8))
    }

    /// An SGI, with [`GROUP1_TOO`], comes to vCPUs of this host, a bit each.
    pub fn receive_sgi(&self, sgi: u8, targets: u64) {
        let (intid, group1_too) = (sgi & 0xf, sgi & GROUP1_TOO != 0);
        let targets = self.vcpus.iter().filter(|it| targets >> it.index & 1 != 0);
        for vcpu in targets {
            let mut redistributor = vcpu.redistributor.lock();
            let is_called = redistributor.receive_sgi(intid.into(), group1_too);
            drop(redistributor);
            if is_called {
                vcpu.call(attention::DELIVER);
            }
        }
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
            message.count = self.time().into();
            has_room &= cluster::say(to, zerocopy::transmute!(message));
        };
        let result = act(&mut session, &mut send);
        span.life.store(session.life(), Ordering::Relaxed);
        let is_left = session.leaves().is_some();
        span.is_left.store(is_left, Ordering::Relaxed);
        drop(session);
        if !has_room {
            self.end(format_args!("its hosts take no messages"));
        }
        Some(result)
    }

    /// What the guest's counter shows.
    pub fn time(&self) -> u64 {
        timer::now().wrapping_sub(self.time_offset())
    }

    /// The guest's counter shows `count` now, and goes on from there.
    pub fn set_count(&self, count: u64) {
        let offset = timer::now().wrapping_sub(count);
        self.time_offset.store(offset, Ordering::Relaxed);
        self.call_vcpus(VcpuSet::first(self.vcpus.len()), attention::CLOCK);
    }

    /// Returns the number of the life that it is in on all its hosts.
    pub fn life(&self) -> u32 {
        let span = self.span.as_ref();
        span.map_or(0, |span| span.life.load(Ordering::Relaxed))
    }

    /// Sets the counter forward to `count`, which another host has read; whether all vCPUs here show that. `None` where it is
    /// further ahead than clocks drift.
    ///
    /// Before the VM has started here, no vCPU reads anything, and its start sets the counter. Messages that come before must
    /// not wait: that start leaves its sender behind the answer to an invalidation of TLB entries.
    pub fn reaches(&self, count: u64) -> Option<bool> {
        let ahead = count.saturating_sub(self.time());
        if self
            .span
            .as_ref()
            .is_none_or(|span| span.ids.get().is_none())
        {
            return Some(true);
        }
        if ahead > 0 {
            self.set_count(count);
        }
        (ahead <= machine::counts(AHEAD_MAX_NS)).then(|| self.shows_count())
    }

    /// Whether all vCPUs here show the counter as it was set last; somebody looks again where one does not yet.
    pub fn shows_count(&self) -> bool {
        let is_behind = |vcpu: &Vcpu| {
            let asked = vcpu.attention.load(Ordering::SeqCst);
            asked & attention::CLOCK != 0 && vcpu.running_on().is_some()
        };
        let shows = !self.vcpus.iter().any(is_behind);
        if !shows {
            due::request();
        }
        shows
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
