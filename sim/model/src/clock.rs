//! Time: each CPU's own, and that of all in parallel.
//!
//! QEMU runs one CPU after the other. Each has come so far on the parallel clock, which shows where the
//! furthest is, plus the time in which no CPU had anything to do. A turn ends where the CPU is one slice
//! ahead of the slowest that is awake, so that one whose turn was short (QEMU ends a turn where TLBs are
//! invalidated) catches up. A CPU that slept goes on where the slowest is. Slices are *local* time, so that
//! a CPU that waits for remote memory gets fewer instructions done, as it would on the real machine.

/// The local clocks and the parallel one, in nanoseconds.
#[derive(Debug)]
pub struct Clock {
    slice_ns: u64,
    local_ns: Vec<u64>,
    /// How far each CPU has come on the parallel clock.
    at: Vec<u64>,
    awake: Vec<bool>,
    ran: Vec<bool>,
    running: Option<usize>,
    /// Where the running CPU's turn ends.
    limit: u64,
    /// Where the CPU is that ran last.
    here: u64,
    furthest: u64,
    idle_ns: u64,
}

impl Clock {
    /// Clocks of `cpus` CPUs whose turns should end after `slice_ns`.
    pub fn new(cpus: usize, slice_ns: u64) -> Self {
        Self {
            slice_ns,
            local_ns: vec![0; cpus],
            at: vec![0; cpus],
            awake: vec![false; cpus],
            ran: vec![false; cpus],
            running: None,
            limit: 0,
            here: 0,
            furthest: 0,
            idle_ns: 0,
        }
    }

    /// A CPU runs now.
    #[inline]
    pub fn run(&mut self, cpu: usize) {
        if self.running == Some(cpu) {
            return;
        }
        if self.ran[cpu] {
            // All had their turn; who had none slept.
            self.awake.copy_from_slice(&self.ran);
            self.ran.fill(false);
        }
        let awake = self.at.iter().zip(&self.awake);
        let slowest = awake.filter(|(_, awake)| **awake).map(|(at, _)| *at).min();
        let slowest = slowest.unwrap_or(self.here);
        if !self.awake[cpu] {
            self.at[cpu] = self.at[cpu].max(slowest);
            self.awake[cpu] = true;
        }
        self.ran[cpu] = true;
        self.running = Some(cpu);
        self.limit = slowest + self.slice_ns;
        self.here = self.at[cpu];
    }

    /// The CPU that runs spends time.
    #[inline]
    pub fn spend(&mut self, cpu: usize, ns: u64) {
        self.local_ns[cpu] += ns;
        self.at[cpu] += ns;
        self.here = self.at[cpu];
        self.furthest = self.furthest.max(self.here);
    }

    /// Whether the turn has lasted long enough; if so it is over, and whoever runs next begins one,
    /// even if it is the same CPU.
    #[inline]
    pub fn turn_is_over(&mut self) -> bool {
        let over = self.running.is_some() && self.here >= self.limit;
        if over {
            self.running = None;
        }
        over
    }

    /// The CPU waits for an interrupt, or would.
    #[inline]
    pub fn rest(&mut self, cpu: usize) {
        self.awake[cpu] = false;
        self.ran[cpu] = false;
        self.running = None;
    }

    /// How long no CPU had anything to do, since the beginning.
    #[inline]
    pub fn set_idle(&mut self, ns: u64) {
        if ns > self.idle_ns {
            self.idle_ns = ns;
            self.awake.fill(false);
            self.here = self.furthest;
            self.running = None;
        }
    }

    /// How long a CPU has computed and waited for memory.
    pub fn local_ns(&self, cpu: usize) -> u64 {
        self.local_ns[cpu]
    }

    /// The time on the parallel clock.
    pub fn now_ns(&self) -> u64 {
        self.furthest + self.idle_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_turn_was_short_catches_up() {
        let mut clock = Clock::new(2, 10);
        for (cpu, ns) in [(0, 10), (1, 2), (0, 1), (1, 9), (0, 9), (1, 9)] {
            clock.run(cpu);
            clock.spend(cpu, ns);
            clock.turn_is_over();
        }
        assert_eq!((clock.local_ns(0), clock.local_ns(1)), (20, 20));
        // CPU 1 began when CPU 0's first turn was over, which is all that is not parallel.
        assert_eq!(clock.now_ns(), 30);
        clock.set_idle(5);
        assert_eq!(clock.now_ns(), 35);
    }

    #[test]
    fn a_turn_ends_a_slice_ahead_of_the_slowest() {
        let mut clock = Clock::new(2, 10);
        clock.run(0);
        clock.spend(0, 9);
        clock.run(1);
        clock.spend(1, 2);
        clock.run(0);
        clock.spend(0, 9);
        assert!(!clock.turn_is_over(), "18 is not 9 + 2 + 10");
        clock.spend(0, 3);
        assert!(clock.turn_is_over());
        clock.rest(1);
        clock.run(0);
        clock.spend(0, 9);
        assert!(!clock.turn_is_over(), "nobody else is awake");
    }

    #[test]
    fn who_wakes_another_and_sleeps_is_not_beside_it() {
        let mut clock = Clock::new(2, 10);
        for _ in 0..5 {
            for cpu in 0..2 {
                clock.run(cpu);
                clock.spend(cpu, 1);
                clock.rest(cpu);
            }
        }
        assert_eq!(clock.now_ns(), 10);
    }
}
