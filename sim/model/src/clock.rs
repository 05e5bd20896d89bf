//! Time: each CPU's own, and that of all in parallel.
//!
//! QEMU runs one CPU after the other. Were they running side by side, a round in which each had its
//! turn would take as long as the longest turn. So the parallel clock is the sum, over rounds, of
//! the longest turn, plus the time in which no CPU had anything to do. Turns are bounded in *local*
//! time, so that a CPU that waits for remote memory gets fewer instructions done in a round, as it
//! would on the real machine.

/// The local clocks and the parallel one, in nanoseconds.
#[derive(Debug)]
pub struct Clock {
    slice_ns: u64,
    local_ns: Vec<u64>,
    round_ns: Vec<u64>,
    ran: Vec<bool>,
    running: Option<usize>,
    turn_ns: u64,
    longest_ns: u64,
    closed_ns: u64,
    idle_ns: u64,
}

impl Clock {
    /// Clocks of `cpus` CPUs whose turns should end after `slice_ns`.
    pub fn new(cpus: usize, slice_ns: u64) -> Self {
        Self {
            slice_ns,
            local_ns: vec![0; cpus],
            round_ns: vec![0; cpus],
            ran: vec![false; cpus],
            running: None,
            turn_ns: 0,
            longest_ns: 0,
            closed_ns: 0,
            idle_ns: 0,
        }
    }

    /// A CPU runs now. If it had its turn in this round, a new round begins.
    #[inline]
    pub fn run(&mut self, cpu: usize) {
        if self.running == Some(cpu) {
            return;
        }
        if self.ran[cpu] {
            self.closed_ns += self.longest_ns;
            self.longest_ns = 0;
            self.ran.fill(false);
            self.round_ns.fill(0);
        }
        self.ran[cpu] = true;
        self.running = Some(cpu);
        self.turn_ns = 0;
    }

    /// The CPU that runs spends time.
    #[inline]
    pub fn spend(&mut self, cpu: usize, ns: u64) {
        self.local_ns[cpu] += ns;
        self.round_ns[cpu] += ns;
        self.turn_ns += ns;
        self.longest_ns = self.longest_ns.max(self.round_ns[cpu]);
    }

    /// Whether the turn has lasted long enough; if so it is over, and whoever runs next begins one,
    /// even if it is the same CPU.
    #[inline]
    pub fn turn_is_over(&mut self) -> bool {
        let over = self.turn_ns >= self.slice_ns;
        if over {
            self.running = None;
            self.turn_ns = 0;
        }
        over
    }

    /// How long no CPU had anything to do, since the beginning.
    #[inline]
    pub fn set_idle(&mut self, ns: u64) {
        self.idle_ns = ns;
    }

    /// How long a CPU has computed and waited for memory.
    pub fn local_ns(&self, cpu: usize) -> u64 {
        self.local_ns[cpu]
    }

    /// The time on the parallel clock.
    pub fn now_ns(&self) -> u64 {
        self.closed_ns + self.longest_ns + self.idle_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_as_long_as_its_longest_turn() {
        let mut clock = Clock::new(2, 10);
        for (cpu, ns) in [(0, 10), (1, 7), (0, 3), (1, 10)] {
            clock.run(cpu);
            clock.spend(cpu, ns);
        }
        assert_eq!(clock.now_ns(), 20);
        assert_eq!((clock.local_ns(0), clock.local_ns(1)), (13, 17));
        clock.set_idle(5);
        assert_eq!(clock.now_ns(), 25);
    }

    #[test]
    fn a_cpu_alone_has_turns_too() {
        let mut clock = Clock::new(2, 10);
        for _ in 0..3 {
            clock.run(0);
            clock.spend(0, 10);
            assert!(clock.turn_is_over());
            // What the CPU still waits for belongs to the turn that ends.
            clock.spend(0, 1);
            assert!(!clock.turn_is_over());
        }
        clock.run(1);
        clock.spend(1, 40);
        assert_eq!(clock.now_ns(), 11 + 11 + 40);
    }
}
