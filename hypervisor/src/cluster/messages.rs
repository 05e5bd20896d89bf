//! Messages about a VM that spans hosts which wait, and the states of vCPUs behind them, one in each direction.

use abi::span::Kind;
use abi::state::Vcpu;
use alloc::vec::Vec;
use model_span::{HOSTS_MAX, OWN_MAX};
use zerocopy::{FromBytes, IntoBytes};

/// A message of [`abi::span`].
pub type Call = [u8; size_of::<abi::span::Message>()];
/// Messages of one host that may wait: a question of each of its vCPUs, an answer to each here, and some about the VM's life and
/// vCPUs that move.
const OF_A_HOST: usize = 2 * OWN_MAX + 8;
const CALLS_MAX: usize = OF_A_HOST * (HOSTS_MAX - 1);

/// Messages that wait, oldest first, with a host each.
pub struct Calls(Vec<(u8, Call)>);

impl Calls {
    /// Takes what all that may wait need; `None` without memory.
    pub fn new() -> Option<Self> {
        let mut calls = Vec::new();
        calls.try_reserve_exact(CALLS_MAX).ok()?;
        Some(Self(calls))
    }

    /// Adds one; `false` where that host has as many as may wait, or all have.
    pub fn push(&mut self, host: u8, call: Call) -> bool {
        let has_room = self.has_room(host);
        if has_room {
            self.0.push((host, call));
        }
        has_room
    }

    fn has_room(&self, host: u8) -> bool {
        let of_host = self.0.iter().filter(|it| it.0 == host).count();
        of_host < OF_A_HOST && self.0.len() < CALLS_MAX
    }

    /// Returns one; 0 is the oldest.
    pub fn get(&self, number: usize) -> Option<(u8, Call)> {
        self.0.get(number).copied()
    }

    /// Takes that one out, if it is there.
    pub fn remove(&mut self, number: usize) -> Option<Call> {
        (number < self.0.len()).then(|| self.0.remove(number).1)
    }
}

/// States of vCPUs on their way.
pub struct States {
    /// Of the last one that has left.
    pub leaves: Vcpu,
    comes: Vcpu,
    has_come: bool,
}

/// Returns whether the state of a vCPU follows a message.
pub fn is_state(call: &Call) -> bool {
    call[0] == Kind::State as u8
}

impl States {
    pub const NONE: Self = Self {
        leaves: Vcpu::ZERO,
        comes: Vcpu::ZERO,
        has_come: false,
    };

    /// Returns what follows a message that leaves.
    pub fn behind(&self, call: &Call) -> &[u8] {
        if is_state(call) {
            self.leaves.as_bytes()
        } else {
            &[]
        }
    }

    /// Keeps a message that has come, and the state behind it; `false` where there is no room.
    pub fn keep(&mut self, calls: &mut Calls, from: u8, message: &[u8]) -> bool {
        let call = message.split_first_chunk();
        let Some((call, behind)) =
            call.filter(|(call, behind)| is_state(call) != behind.is_empty())
        else {
            // One of another length would never find room.
            return true;
        };
        if is_state(call) {
            let Ok(state) = Vcpu::read_from_bytes(behind) else {
                return true;
            };
            if self.has_come || !calls.has_room(from) {
                return false;
            }
            (self.comes, self.has_come) = (state, true);
        }
        calls.push(from, *call)
    }

    /// Returns the state that has come.
    pub fn come(&self) -> Option<Vcpu> {
        self.has_come.then_some(self.comes)
    }

    /// Forgets what follows a message that was acted upon.
    pub fn forget(&mut self, call: &Call) {
        self.has_come &= !is_state(call);
    }
}
