//! Waiting for the counter.

use crate::{cpu, timer};

/// Returns when [`crate::timer::now`] has reached `at`.
pub fn wait_for_edge(at: u64) {
    while timer::now() < at {
        cpu::relax();
    }
}
