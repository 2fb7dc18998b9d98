//! The wait between attempts, in one place: it doubles with every failure up to a limit, and half
//! of it is left to chance, so that those who failed together do not come back together.

use std::time::Duration;

/// How long to wait after failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl Backoff {
    /// The wait after that many failures in a row, between half of the full wait (`jitter` 0) and
    /// all of it (`jitter` 1).
    pub fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.longest);
        full.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_the_longest_and_half_of_it_is_chance() {
        let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(30) };
        let cases = [(0, 1.0, 100), (1, 1.0, 100), (1, 0.0, 50), (2, 1.0, 200), (4, 0.5, 600)];
        for (failures, jitter, ms) in cases {
            assert_eq!(backoff.wait(failures, jitter), Duration::from_millis(ms), "{failures} {jitter}");
        }
        assert_eq!(backoff.wait(u32::MAX, 1.0), backoff.longest);
        assert_eq!(backoff.wait(9, 7.0), Duration::from_millis(25_600));
    }
}
