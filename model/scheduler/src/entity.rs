//! What is scheduled: one vCPU's share, state and accounts.

use model_addr::{CpuId, NodeId};

use crate::{CAP_PERIOD, MAX_ENTITIES};

/// The weight of an entity of which nothing is said.
pub const DEFAULT_WEIGHT: u16 = 256;

/// Nobody is put on a CPU for less than this, in nanoseconds.
const LEAST_RUN: u64 = 100_000;

/// An entity's place in the storage of every queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId(pub u16);

/// A set of nodes, one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSet(pub u64);

impl NodeSet {
    /// All nodes.
    pub const ALL: Self = Self(u64::MAX);

    /// Whether `node` is in it.
    pub const fn contains(self, node: NodeId) -> bool {
        node.0 < 64 && self.0 >> node.0 & 1 != 0
    }
}

/// What an entity is entitled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Its share against the others', 1 to 10,000.
    pub weight: u16,
    /// The most it may have, in percent of one CPU; 0 or at least 100 means no cap.
    pub cap: u8,
    /// Where it may run.
    pub nodes: NodeSet,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            weight: DEFAULT_WEIGHT,
            cap: 0,
            nodes: NodeSet::ALL,
        }
    }
}

impl Parameters {
    /// Run time for each cap period; `None` without a cap.
    fn budget(self) -> Option<u64> {
        matches!(self.cap, 1..100).then(|| CAP_PERIOD / 100 * u64::from(self.cap))
    }
}

/// What became of an entity's time. The sum of runs and waits is the time it wanted to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Nanoseconds it ran.
    pub ran: u64,
    /// Nanoseconds it could have run but waited for a CPU or for its cap: stolen time.
    pub waited: u64,
    /// How often it was put on a CPU.
    pub picked: u64,
    /// How often it moved to another node.
    pub moved: u64,
}

/// Why an entity is not added or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The id is beyond the queue's storage, or in use.
    #[error("entity {id} cannot be used", id = .0.0)]
    Id(EntityId),
    /// There is no such weight.
    #[error("weight is {0}; it must be between 1 and 10000")]
    Weight(u16),
    /// It may not run on this node.
    #[error("it may not run on {0}")]
    Node(NodeId),
}

/// Where an entity is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Not in this queue.
    #[default]
    Absent,
    /// It has nothing to do.
    Blocked,
    /// It waits for a CPU.
    Waiting,
    /// It waits for its cap's next period.
    Throttled,
    /// It is on a CPU. If it was woken there, it does not block.
    Running {
        /// Whether it was woken while it ran.
        woken: bool,
    },
}

/// One vCPU as the scheduler sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entity {
    pub(crate) parameters: Parameters,
    /// The one CPU that it may run on, where there is one.
    pub(crate) pin: Option<CpuId>,
    pub(crate) state: State,
    /// Virtual nanoseconds: how much it had, at [`DEFAULT_WEIGHT`].
    pub(crate) vruntime: u64,
    pub(crate) last_cpu: Option<CpuId>,
    /// Since when it waits.
    pub(crate) waiting_since: u64,
    /// Since when it is in this queue.
    pub(crate) arrived: u64,
    /// What is left of its cap's budget; negative where it ran over.
    pub(crate) tokens: i64,
    /// When it is filled again.
    pub(crate) refill_at: u64,
    pub(crate) counters: Counters,
}

impl Entity {
    /// What it is entitled to.
    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// What became of its time.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether it wants to run: it runs or waits.
    pub const fn is_runnable(&self) -> bool {
        !matches!(self.state, State::Absent | State::Blocked)
    }

    /// Whether it may run on `cpu` of its node.
    pub(crate) fn may_run_on(&self, cpu: CpuId) -> bool {
        self.pin.is_none_or(|pin| pin == cpu)
    }

    /// Virtual time for `ns` of run time.
    pub(crate) fn virtual_time(&self, ns: u64) -> u64 {
        let weight = u64::from(self.parameters.weight.max(1));
        ns.saturating_mul(u64::from(DEFAULT_WEIGHT)) / weight
    }

    /// Books `ns` of run time.
    pub(crate) fn charge(&mut self, ns: u64, now: u64) {
        self.counters.ran = self.counters.ran.saturating_add(ns);
        self.vruntime = self.vruntime.saturating_add(self.virtual_time(ns));
        // What was run before a period ended is booked to the period that ends.
        self.tokens = self.tokens.saturating_sub_unsigned(ns);
        self.refill(now);
    }

    /// Fills the budget for every period that began. What is left over is not kept; what was
    /// overdrawn is.
    pub(crate) fn refill(&mut self, now: u64) {
        let Some(budget) = self.parameters.budget() else {
            return;
        };
        if now >= self.refill_at {
            let periods = (now - self.refill_at) / CAP_PERIOD + 1;
            let refill = i64::try_from(budget.saturating_mul(periods)).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(refill).min(budget as i64);
            self.refill_at = self
                .refill_at
                .saturating_add(periods.saturating_mul(CAP_PERIOD));
        }
    }

    /// How long its cap lets it run; 0 where it has to wait. The last bit of a budget counts as
    /// [`LEAST_RUN`]: what is overdrawn is paid back.
    pub(crate) fn allowance(&self) -> u64 {
        match self.parameters.budget() {
            None => u64::MAX,
            Some(_) if self.tokens <= 0 => 0,
            Some(_) => self.tokens.unsigned_abs().max(LEAST_RUN),
        }
    }

    /// Gives it new parameters, with a budget that starts now.
    pub(crate) fn entitle(&mut self, parameters: Parameters, now: u64) -> Result<(), Refused> {
        if !matches!(parameters.weight, 1..=10_000) {
            return Err(Refused::Weight(parameters.weight));
        }
        self.parameters = parameters;
        self.tokens = 0;
        self.refill_at = now;
        self.refill(now);
        Ok(())
    }
}

impl EntityId {
    /// Its index into storage of `len` entities, if it has one.
    pub(crate) fn index(self, len: usize) -> Option<usize> {
        let index = usize::from(self.0);
        (index < len.min(MAX_ENTITIES)).then_some(index)
    }
}
