//! How often hearing is proved, and how long a gap in the proof may be before it is blind time.
//!
//! For a timeout of 48 hours one canary a second is enough. A timeout of one second needs more: a unit is not
//! decided on before a canary proves that it was silent, so a shorter timeout needs faster canaries.
//!
//! # Why the gap is longer than three periods where timeouts are short
//! A late proof delays a decision by some milliseconds. Blind time moves the deadline of every unit, and the
//! ledger keeps it for years. A busy machine pauses for a tenth of a second now and then; only a gap that could hide
//! a good part of a silence is blind time.

use std::time::Duration;

/// The number of canaries within a timeout.
const CANARIES_A_TIMEOUT: u32 = 20;
const MIN_PERIOD: Duration = Duration::from_millis(50);
const MAX_PERIOD: Duration = Duration::from_secs(1);

/// The part of a timeout that a gap may last without being blind time.
const GAPS_A_TIMEOUT: u32 = 4;
const MIN_GAP: Duration = Duration::from_millis(500);
const MAX_GAP: Duration = Duration::from_secs(3);

/// How many canaries may be missing within a gap.
pub const MISSING_CANARIES: u32 = 3;

/// There may be many topics to probe, and a slack of ten seconds is enough for all of them.
const MAX_PROBE_PERIOD: Duration = Duration::from_secs(5);
/// How many probes of a topic filter may be missing before it counts as not heard.
const MISSING_PROBES: u32 = 3;

/// How often a canary goes out where `shortest` is the shortest timeout: a twentieth of it, from 50 ms to a second. The
/// slack of a timeout is twice as long, so that the proof is there when the deadline passes.
pub fn canary_period(shortest: Duration) -> Duration {
    (shortest / CANARIES_A_TIMEOUT).clamp(MIN_PERIOD, MAX_PERIOD)
}

/// Two canaries further apart than this enclose a blind interval: a quarter of the shortest timeout, from half a
/// second to three, and never less than three periods.
pub fn blind_gap(shortest: Duration) -> Duration {
    (shortest / GAPS_A_TIMEOUT).clamp(MIN_GAP, MAX_GAP)
}

/// How often a probe proves that a topic filter is heard, where `shortest` is the shortest timeout of its units. Half
/// of their slack, so that the proof is there when a deadline passes.
pub fn probe_period(shortest: Duration) -> Duration {
    (shortest / CANARIES_A_TIMEOUT).clamp(MIN_PERIOD, MAX_PROBE_PERIOD)
}

/// Two probes of a filter that are further apart than this enclose a blind interval of its kinds. `gap` is the gap of
/// canaries: probes go out with canaries, so no probe is missing while canaries are no gap apart. `period` is the time
/// between two probes.
pub fn probe_gap(period: Duration, gap: Duration) -> Duration {
    (gap + period).max(MISSING_PROBES * period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{MAX_TIMEOUT, MIN_TIMEOUT};

    #[test]
    fn canaries_are_as_fast_as_the_shortest_timeout_needs_and_gaps_are_shorter() {
        // Timeout, period, gap, in ms.
        let cases = [
            (1_000, 50, 500),
            (2_000, 100, 500),
            (3_000, 150, 750),
            (12_000, 600, 3_000),
            (20_000, 1_000, 3_000),
            (48 * 3_600_000, 1_000, 3_000),
        ];
        for (timeout, period, gap) in cases {
            let shortest = Duration::from_millis(timeout);
            assert_eq!(canary_period(shortest), Duration::from_millis(period), "{timeout}");
            assert_eq!(blind_gap(shortest), Duration::from_millis(gap), "{timeout}");
        }
        let mut timeout = MIN_TIMEOUT;
        while timeout < MAX_TIMEOUT {
            assert!(blind_gap(timeout) >= 3 * canary_period(timeout) && blind_gap(timeout) <= timeout / 2);
            timeout = timeout * 11 / 10;
        }
    }

    #[test]
    fn proof_of_a_filter_lags_by_no_more_than_the_slack_of_its_units_and_misses_some_probes() {
        // Timeout, period, gap, in ms, where canaries may be half a second apart.
        let cases =
            [(1_000, 50, 550), (4_000, 200, 700), (60_000, 3_000, 9_000), (172_800_000, 5_000, 15_000)];
        for (timeout, period, gap) in cases {
            let ms = Duration::from_millis;
            assert_eq!((probe_period(ms(timeout)), probe_gap(ms(period), ms(500))), (ms(period), ms(gap)));
        }
    }
}
