//! How many timers each token may register, change and cancel in a second.
//!
//! A token saves up unused timers, for ten seconds. A request goes ahead as long as something is left, and is taken
//! whole: timers beyond that are a debt, and the next request waits until it is paid. So a batch is never cut in two.
//! Each instance counts on its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Timestamp;

/// How much a token saves up, in seconds of its rate.
const SAVED: f64 = 10.0;

/// The allowance of each token, by its name.
#[derive(Default)]
pub(super) struct RateLimit {
    tokens: Mutex<HashMap<String, Allowance>>,
}

/// The timers that a token had left at a moment; negative: a debt.
struct Allowance {
    left: f64,
    at: Timestamp,
}

impl RateLimit {
    /// Whether a token may ask now. `rate`: timers in a second; 0: no limit.
    ///
    /// # Errors
    /// How long it has to wait.
    pub fn admit(&self, token: &str, rate: u32, now: Timestamp) -> Result<(), Duration> {
        if rate == 0 {
            return Ok(());
        }
        let left = self.left(token, rate, now, 0);
        if left > 0.0 { Ok(()) } else { Err(Duration::from_secs_f64((1.0 - left) / f64::from(rate))) }
    }

    /// Counts timers of a request that was admitted.
    pub fn count(&self, token: &str, rate: u32, now: Timestamp, timers: usize) {
        if rate > 0 {
            self.left(token, rate, now, timers);
        }
    }

    /// Takes that many, and answers how many are left; negative: a debt.
    fn left(&self, token: &str, rate: u32, now: Timestamp, timers: usize) -> f64 {
        let most = f64::from(rate) * SAVED;
        let mut tokens = self.tokens();
        // There are few tokens: those of the configuration, and the users of a proxy.
        tokens.retain(|name, one| name == token || one.after(rate, now) < most);
        let one = tokens.entry(token.to_owned()).or_insert(Allowance { left: most, at: now });
        *one = Allowance { left: one.after(rate, now) - timers as f64, at: now };
        one.left
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<String, Allowance>> {
        self.tokens.lock().expect("nothing panics under this lock")
    }
}

impl Allowance {
    fn after(&self, rate: u32, now: Timestamp) -> f64 {
        let rate = f64::from(rate);
        (self.left + now.since(self.at).as_secs_f64() * rate).min(rate * SAVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_764_000_000_000);

    fn after(seconds: u64) -> Timestamp {
        NOW + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_pays_its_debt_before_its_next_request_and_others_are_unaffected() {
        let limit = RateLimit::default();
        assert_eq!(limit.admit("a", 100, NOW), Ok(()));
        limit.count("a", 100, NOW, 999);
        assert_eq!(limit.admit("a", 100, NOW), Ok(()), "one is left of what it saved up");
        limit.count("a", 100, NOW, 501);
        assert_eq!(limit.admit("a", 100, NOW), Err(Duration::from_millis(5010)));
        assert_eq!(limit.admit("b", 100, NOW), Ok(()));
        assert!(limit.admit("a", 100, after(5)).is_err());
        assert_eq!(limit.admit("a", 100, after(6)), Ok(()));
        // A day later it has saved up no more than ten seconds of its rate.
        limit.count("a", 100, after(86_400), 1001);
        assert!(limit.admit("a", 100, after(86_400)).is_err());
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let limit = RateLimit::default();
        limit.count("a", 0, NOW, usize::MAX);
        assert_eq!(limit.admit("a", 0, NOW), Ok(()));
        assert!(limit.tokens().is_empty());
    }

    #[test]
    fn tokens_that_owe_nothing_are_forgotten() {
        let limit = RateLimit::default();
        for name in ["a", "b", "c"] {
            limit.count(name, 10, NOW, 50);
        }
        limit.count("d", 10, after(5), 1);
        assert_eq!(limit.tokens().len(), 1, "the others have all that they may save up");
    }
}
