//! The wait after a failure: exponential, up to a limit, with jitter.
//!
//! Pure, so that one backoff serves every loop: the caller passes the
//! number of failures and a random number, and does the waiting.
//!
//! # Why half of it is random
//! Many clients wait for a server that is away. If all wait for the same time, all connect
//! at once when it is back. Half of each wait is fixed, so that no client retries at once, and half is random, so
//! that the clients spread.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure, before jitter.
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// The wait after `failures` failures in a row, at least one. `jitter` is drawn from `0.0..1.0`; the wait lies
    /// between half of its full length and all of it.
    pub fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1);
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let full = self.first.saturating_mul(factor).min(self.longest);
        let half = full / 2;
        let rest = full - half;
        half + rest.mul_f64(jitter.clamp(0.0, 1.0)).min(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(5), longest: Duration::from_secs(900) };

    #[test]
    fn a_wait_doubles_up_to_the_longest() {
        let cases =
            [(0, 5), (1, 5), (2, 10), (3, 20), (8, 640), (9, 900), (32, 900), (33, 900), (u32::MAX, 900)];
        for (failures, seconds) in cases {
            assert_eq!(BACKOFF.wait(failures, 1.0), Duration::from_secs(seconds), "{failures} failures");
        }
    }

    proptest! {
        #[test]
        fn a_wait_is_never_shorter_than_half_and_never_overflows(
            first in 0u64..=u64::MAX, longest in 0u64..=u64::MAX, failures: u32, jitter in 0.0f64..1.0,
        ) {
            let (first, longest) = (Duration::from_secs(first), Duration::from_secs(longest));
            let wait = Backoff { first, longest }.wait(failures, jitter);
            prop_assert!(wait <= longest);
            prop_assert!(wait >= first.min(longest) / 2);
        }
    }
}
