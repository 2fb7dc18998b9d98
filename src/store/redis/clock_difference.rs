//! How far the clocks of servers are apart, for an operator.
//!
//! With several servers, all clocks are compared with the clock of the server that keeps `{hearing}`, the clock of
//! the fleet; `clock_jump.rs` describes the harm of a different clock. Replicas are compared too, because they may be
//! promoted.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::store::Warning;
use crate::telemetry::EngineWarning;

/// A larger difference of clocks is a fault.
const FARTHEST: Duration = Duration::from_millis(500);

/// How far a server's clock is ahead of another clock, in milliseconds: the least and the most that is possible,
/// because the server read its clock at an unknown moment of the round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockOffset {
    pub least: i64,
    pub most: i64,
}

impl ClockOffset {
    /// `now`: when the request was sent, by the clock of this machine. `took`: until its answer with `TIME`.
    pub fn of(time: (i64, i64), now: Timestamp, took: Duration) -> ClockOffset {
        ClockOffset::between(server_time(time), now, now + took)
    }

    /// The offset from a clock that showed a time between `earliest` and `latest`.
    pub fn between(theirs: Timestamp, earliest: Timestamp, latest: Timestamp) -> ClockOffset {
        let from = |other: Timestamp| theirs.as_millis().saturating_sub(other.as_millis());
        ClockOffset { least: from(latest), most: from(earliest) }
    }

    /// The difference from another clock, if the round trips do not explain it: `3600000 ms ahead of`.
    fn differs(self, other: ClockOffset) -> Option<String> {
        let farthest = FARTHEST.as_millis() as i64;
        let (ahead, behind) = (self.least.saturating_sub(other.most), other.least.saturating_sub(self.most));
        match (ahead > farthest, behind > farthest) {
            (true, _) => Some(format!("{ahead} ms ahead of")),
            (_, true) => Some(format!("{behind} ms behind")),
            _ => None,
        }
    }

    /// The text of the warning, if this clock differs from the clock of this machine.
    pub fn off(self) -> Option<String> {
        let differs = self.differs(ClockOffset { least: 0, most: 0 })?;
        Some(format!(
            "the clock of redis is {differs} that of this machine; one of them is wrong: run a time service such as \
             chrony on both"
        ))
    }
}

/// The moment in the answer to `TIME`: seconds and microseconds.
pub(super) fn server_time((seconds, micros): (i64, i64)) -> Timestamp {
    Timestamp::from_millis(seconds.saturating_mul(1000).saturating_add(micros / 1000))
}

/// The warning about servers whose clocks differ from the clock `by`, which is given with the address of its server.
pub(super) fn servers_off(by: (&str, ClockOffset), servers: &[(&str, ClockOffset)]) -> Option<Warning> {
    let of = |(address, clock): &(&str, ClockOffset)| {
        Some(format!("that of {address} is {} it", clock.differs(by.1)?))
    };
    let off: Vec<String> = servers.iter().filter_map(of).collect();
    let text = || {
        format!(
            "clocks of redis servers differ from the clock of {}, which the fleet uses: {}; run a time service such as \
             chrony on every server: where a server with another clock takes over, keys expire too early, and \
             rollcall is blind \
             for as long",
            by.0,
            off.join(", ")
        )
    };
    (!off.is_empty()).then(|| Warning { name: EngineWarning::ServerClockOff, text: text() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(apart: i64, took: u64) -> ClockOffset {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let theirs = now.as_millis() + apart;
        ClockOffset::of((theirs / 1000, theirs % 1000 * 1000 + 999), now, Duration::from_millis(took))
    }

    #[test]
    fn clocks_differ_if_the_round_trip_does_not_explain_the_difference() {
        // (their time after ours, the round trip, the text)
        let cases = [
            (0, 0, None),
            (500, 0, None),
            (-500, 0, None),
            (501, 0, Some("501 ms ahead of")),
            (-501, 0, Some("501 ms behind")),
            (2500, 2000, None),
            (2501, 2000, Some("501 ms ahead of")),
            (-501, 2000, Some("501 ms behind")),
        ];
        for (apart, took, expected) in cases {
            let text = clock(apart, took).off();
            let as_expected = match (&text, expected) {
                (Some(text), Some(expected)) => text.contains(expected),
                (text, expected) => text.is_none() && expected.is_none(),
            };
            assert!(as_expected, "{apart} ms within {took} ms: {text:?}");
        }
    }

    #[test]
    fn servers_are_compared_with_the_one_by_which_the_fleet_goes_and_not_with_this_machine() {
        let by = ("a:1", clock(3_600_000, 2));
        let near = [("a:1", by.1), ("b:1", clock(3_600_400, 2))];
        assert_eq!(servers_off(by, &near), None);
        let text =
            servers_off(by, &[near[1], ("c:1", clock(0, 0)), ("d:1", clock(7_200_000, 0))]).unwrap().text;
        assert!(text.contains("the clock of a:1"), "{text}");
        assert!(
            text.contains("that of c:1 is 3599998 ms behind it, that of d:1 is 3600000 ms ahead of it"),
            "{text}"
        );
        assert!(!text.contains("b:1"), "{text}");
    }
}
