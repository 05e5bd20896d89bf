//! Rates, kept by virtual scheduling (GCRA, ITU-T I.371): one number each, and no timer.

/// So much in a second, and so much at once after a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Units in a second, from 1.
    pub per_second: u64,
    /// Units that may come at once.
    pub burst: u64,
}

/// How far a limit is used up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limiter {
    /// When all that was taken would have come at the rate.
    paid_at: u64,
}

impl Limiter {
    /// Takes `amount` units at `now`; `false`, and nothing is taken, where that is too much.
    pub fn take(&mut self, limit: Limit, amount: u64, now: u64, frequency: u64) -> bool {
        let per_second = limit.per_second.max(1);
        let time = |units: u64| {
            let counts = u128::from(units) * u128::from(frequency) / u128::from(per_second);
            u64::try_from(counts).unwrap_or(u64::MAX)
        };
        let after = self.paid_at.max(now).saturating_add(time(amount));
        // One piece larger than the burst passes alone.
        let most = time(limit.burst.max(amount));
        if after - now > most {
            return false;
        }
        self.paid_at = after;
        true
    }
}
