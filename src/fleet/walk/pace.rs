//! How much a round reads, and how it is spread over time.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::Walk;
use crate::clock::monotonic;

/// How many units of one server all instances together read in a second, a tenth of them whole: a fifth of a core of
/// that server. A round of a large fleet has more units than its period allows at this rate, and takes longer.
const UNITS_A_SECOND: f64 = 40_000.0;

/// The beginning and the period of a round. A round that is late goes on without a rest.
pub(super) struct WalkPace {
    began: Instant,
    period: Duration,
}

impl WalkPace {
    pub fn new(period: Duration) -> WalkPace {
        WalkPace { began: monotonic(), period }
    }

    pub fn is_over(&self) -> bool {
        monotonic().duration_since(self.began) >= self.period
    }

    /// Waits until the period is over, but not longer than `most`.
    pub async fn rest_at_most(&self, most: Duration) {
        sleep_until((self.began + self.period).min(monotonic() + most).into()).await;
    }

    /// Waits until the part `done` of the period, from 0 to 1, has passed, as long as `goes_on` returns true, which
    /// is checked each `every`.
    pub async fn rest(&self, done: f64, goes_on: impl Fn() -> bool, every: Duration) {
        let until = self.began + self.period.mul_f64(done.clamp(0.0, 1.0));
        while monotonic() < until && goes_on() {
            sleep_until(until.min(monotonic() + every).into()).await;
        }
    }
}

impl Walk {
    /// The period of a round that takes no less than `shortest`.
    pub(super) fn paced_period(&self, shortest: Duration) -> Duration {
        period(shortest, self.fleet_units(), self.engine.servers())
    }

    /// The units of the fleet, as if the partitions of other instances were as large as the partitions of this one.
    pub(super) fn fleet_units(&self) -> u64 {
        let own = self.own_partitions();
        let units: u64 = own.iter().map(|partition| self.mirror.units_in(*partition)).sum();
        units * u64::from(self.engine.partitions()) / (own.len() as u64).max(1)
    }
}

/// The period of a round over a fleet of `units` units on `servers` servers.
fn period(shortest: Duration, units: u64, servers: usize) -> Duration {
    shortest.max(Duration::from_secs_f64(units as f64 / (UNITS_A_SECOND * servers as f64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_over_a_large_fleet_takes_longer_the_fewer_servers_share_it() {
        let shortest = Duration::from_secs(30);
        let of = |units, servers| period(shortest, units, servers).as_secs();
        assert_eq!([of(0, 1), of(1_200_000, 1), of(3_000_000, 1)], [30, 30, 75]);
        assert_eq!([of(10_000_000, 3), of(100_000_000, 12)], [83, 208]);
    }
}
