//! A round spread evenly over its period.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The beginning and the period of a round. A round that is late goes on without a rest.
pub(super) struct Pace {
    began: Instant,
    period: Duration,
}

impl Pace {
    pub fn new(period: Duration) -> Pace {
        Pace { began: Instant::now(), period }
    }

    /// Waits until so much of the period has passed, from 0 to 1.
    pub async fn rest(&self, done: f64) {
        sleep_until(self.began + self.period.mul_f64(done.clamp(0.0, 1.0))).await;
    }
}
