//! Caches, coherence, latencies and counts together.

use crate::{Cache, Clock, Geometry, PAGE_SHIFT, Topology, Window};

/// What a CPU does to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads data.
    Load,
    /// Writes data.
    Store,
    /// Reads instructions.
    Fetch,
}

/// What one CPU did; all are numbers of events, but for the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions executed.
    pub instructions: u64,
    /// Loads and stores, of one line each.
    pub accesses: u64,
    /// Misses of instruction fetches on memory of the own node.
    pub fetch_local: u64,
    /// Misses of instruction fetches on memory of other nodes.
    pub fetch_remote: u64,
    /// Misses of loads and stores on memory of the own node.
    pub data_local: u64,
    /// Misses of loads and stores on memory of other nodes.
    pub data_remote: u64,
    /// Stores to lines that were held, but by others too.
    pub upgrades: u64,
    /// Time spent waiting for memory, in nanoseconds.
    pub stall_ns: u64,
}

/// Who a CPU works for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// A program.
    User,
    /// The kernel of an operating system.
    Kernel,
    /// Whatever is beneath it, and what is done before anything is known.
    #[default]
    Hypervisor,
}

/// The whole machine. An instruction takes 1 ns (1 GHz, one each cycle), and a miss the latency from
/// the CPU's node to the line's home; caches answer at once.
#[derive(Debug)]
pub struct Machine<'w> {
    topology: Topology,
    line_shift: u32,
    caches: Vec<Cache>,
    /// Which CPUs hold each line of memory, a bit each.
    holders: Vec<u32>,
    counts: Vec<Counts>,
    /// Who each CPU works for, and its time by [`Level`].
    levels: Vec<(Level, [u64; 3])>,
    clock: Clock,
    window: Window<'w>,
}

impl<'w> Machine<'w> {
    /// A machine with empty caches, whose CPUs' turns should end after `slice_ns`.
    pub fn new(topology: Topology, geometry: Geometry, slice_ns: u64, window: Window<'w>) -> Self {
        let cpus = topology.cpus();
        Self {
            line_shift: geometry.line_shift(),
            caches: (0..cpus).map(|_| Cache::new(geometry)).collect(),
            holders: vec![0; (topology.bytes() >> geometry.line_shift()) as usize],
            counts: vec![Counts::default(); cpus],
            levels: vec![Default::default(); cpus],
            clock: Clock::new(cpus, slice_ns),
            topology,
            window,
        }
    }

    /// A CPU executes so many instructions. Gives whether its turn is over, so that the next CPU
    /// should run.
    #[inline]
    pub fn execute(&mut self, cpu: usize, instructions: u64) -> bool {
        self.clock.run(cpu);
        self.spend(cpu, instructions);
        self.counts[cpu].instructions += instructions;
        let over = self.clock.turn_is_over();
        if over {
            self.publish();
        }
        over
    }

    /// A CPU fetches instructions from `lines` lines, from that of an address on. What is no
    /// node's memory costs nothing.
    #[inline]
    pub fn fetch(&mut self, cpu: usize, address: u64, lines: u64) {
        for line in 0..lines {
            self.access_line(cpu, address + (line << self.line_shift), Access::Fetch);
        }
    }

    /// A CPU loads or stores `bytes` bytes; those beyond the end of the page are left out, because
    /// they may be elsewhere.
    #[inline]
    pub fn access(&mut self, cpu: usize, address: u64, bytes: u64, access: Access) {
        let last = (address + bytes.saturating_sub(1)).min(address | ((1 << PAGE_SHIFT) - 1));
        let first = address >> self.line_shift;
        for line in first..=last >> self.line_shift {
            self.counts[cpu].accesses += 1;
            self.access_line(cpu, line << self.line_shift, access);
        }
    }

    #[inline]
    fn access_line(&mut self, cpu: usize, address: u64, access: Access) {
        let Some(offset) = self.topology.offset(address) else {
            return;
        };
        let store = access == Access::Store;
        match self.caches[cpu].touch(address >> self.line_shift, store) {
            Some(was_dirty) if !store || was_dirty => {}
            Some(_) => self.first_store(cpu, address, offset),
            None => self.miss(cpu, address, offset, access),
        }
    }

    /// A store to a line that is held, but was not stored to.
    fn first_store(&mut self, cpu: usize, address: u64, offset: u64) {
        self.window.written((offset >> PAGE_SHIFT) as usize);
        if self.take_from_others(cpu, address, offset) {
            self.counts[cpu].upgrades += 1;
            self.wait(cpu, offset);
        }
    }

    fn miss(&mut self, cpu: usize, address: u64, offset: u64, access: Access) {
        let line = address >> self.line_shift;
        let at = (offset >> self.line_shift) as usize;
        if access == Access::Store {
            self.window.written((offset >> PAGE_SHIFT) as usize);
            self.take_from_others(cpu, address, offset);
        } else if self.holders[at].is_power_of_two() {
            // The only holder may have stored to it.
            self.caches[self.holders[at].trailing_zeros() as usize].clean(line);
        }
        if let Some(victim) = self.caches[cpu].insert(line, access == Access::Store) {
            let victim = (victim << self.line_shift) - self.topology.base();
            self.holders[(victim >> self.line_shift) as usize] &= !(1 << cpu);
        }
        self.holders[at] |= 1 << cpu;
        let local = self.topology.home(offset) == self.topology.node_of_cpu(cpu);
        let counts = &mut self.counts[cpu];
        *match (access, local) {
            (Access::Fetch, true) => &mut counts.fetch_local,
            (Access::Fetch, false) => &mut counts.fetch_remote,
            (_, true) => &mut counts.data_local,
            (_, false) => &mut counts.data_remote,
        } += 1;
        self.wait(cpu, offset);
    }

    /// Takes a line from all other CPUs; gives whether any held it.
    fn take_from_others(&mut self, cpu: usize, address: u64, offset: u64) -> bool {
        let holders = &mut self.holders[(offset >> self.line_shift) as usize];
        let mut others = *holders & !(1 << cpu);
        *holders &= 1 << cpu;
        let any = others != 0;
        while others != 0 {
            self.caches[others.trailing_zeros() as usize].invalidate(address >> self.line_shift);
            others &= others - 1;
        }
        any
    }

    /// The CPU waits for the home of a line; the page's counters say so.
    fn wait(&mut self, cpu: usize, offset: u64) {
        let node = self.topology.node_of_cpu(cpu);
        let home = self.topology.home(offset);
        let ns = self.topology.latency_ns(node, home);
        self.window
            .miss((offset >> PAGE_SHIFT) as usize, node, home);
        self.counts[cpu].stall_ns += ns;
        self.spend(cpu, ns);
    }

    #[inline]
    fn spend(&mut self, cpu: usize, ns: u64) {
        self.clock.spend(cpu, ns);
        let (level, spent) = &mut self.levels[cpu];
        spent[*level as usize] += ns;
    }

    /// Who a CPU works for from now on.
    #[inline]
    pub fn set_level(&mut self, cpu: usize, level: Level) {
        self.levels[cpu].0 = level;
    }

    /// How long a CPU worked and waited for memory for each [`Level`], in nanoseconds.
    pub fn level_ns(&self, cpu: usize) -> [u64; 3] {
        self.levels[cpu].1
    }

    /// Shows the clocks in the window.
    pub fn publish(&self) {
        let cpus = 0..self.topology.cpus();
        let local = cpus.map(|cpu| self.clock.local_ns(cpu));
        self.window.publish(self.clock.now_ns(), local);
    }

    /// How long no CPU had anything to do, since the beginning.
    #[inline]
    pub fn set_idle(&mut self, ns: u64) {
        self.clock.set_idle(ns);
    }

    /// A CPU waits for an interrupt.
    #[inline]
    pub fn rest(&mut self, cpu: usize) {
        self.clock.rest(cpu);
    }

    /// Where CPUs and memory are.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How far an address is shifted to give its line.
    pub fn line_shift(&self) -> u32 {
        self.line_shift
    }

    /// What each CPU has done since the beginning.
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// The clocks.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}
