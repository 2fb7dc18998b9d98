//! Detects that another client keeps taking Rollcall's session.
//!
//! A broker allows one connection for each client id, and ends the connection of the client that had the id before. One
//! takeover makes the time without a connection blind. A client that keeps taking the id may leave so little time
//! between two takeovers that all messages of a living unit fall into the gaps, so the whole time since the first
//! takeover is blind.
//!
//! # How takeovers differ from a bad network
//! A broker of MQTT 5 gives the reason. Mosquitto 2.0.11 does not: it only closes the connection. Three losses in a
//! row, the later ones within seconds of the acceptance, count as takeovers: no usable network does that, and a link
//! that is cut every minute must not hide dead units.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::telemetry::ConnectionLoss;

/// Takeovers further apart than this are unrelated.
const WINDOW: Duration = Duration::from_secs(60);

/// A connection that ended this soon after its acceptance may have been taken over.
const SOON: Duration = Duration::from_secs(10);

/// This many losses in a row are takeovers: the first number if the broker gives that reason, the second if it gives
/// none.
const SAID: u32 = 2;
const UNSAID: u32 = 3;

/// The takeovers of a session in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::intake) struct Takeovers(Option<Streak>);

#[derive(Clone, Copy, Debug)]
struct Streak {
    /// The moment up to which the session had heard before the first takeover.
    since: Timestamp,
    last: Timestamp,
    losses: u32,
    /// The broker gave a takeover as the reason of a loss.
    is_said: bool,
}

impl Takeovers {
    /// Notes the loss of a connection that the broker had accepted at `accepted`; the session had heard up to `heard`.
    /// Returns whether the loss is one of several takeovers.
    pub fn lost(
        &mut self,
        loss: ConnectionLoss,
        accepted: Option<Timestamp>,
        heard: Timestamp,
        now: Timestamp,
    ) -> bool {
        let Some(accepted) = accepted else { return false };
        let is_said = loss == ConnectionLoss::TakenOver;
        if !is_said && loss != ConnectionLoss::Broken {
            return false;
        }
        let follows =
            |streak: &Streak| now.since(streak.last) <= WINDOW && (is_said || now.since(accepted) <= SOON);
        let before = self.0.filter(follows);
        let streak = before.unwrap_or(Streak { since: heard, last: now, losses: 0, is_said });
        let streak =
            Streak { last: now, losses: streak.losses + 1, is_said: streak.is_said || is_said, ..streak };
        self.0 = Some(streak);
        streak.are_several()
    }

    /// Since when another client has been taking the session.
    pub fn since(&self) -> Option<Timestamp> {
        self.0.filter(Streak::are_several).map(|streak| streak.since)
    }

    /// Returns whether the broker gives takeovers as the reason.
    pub fn are_said(&self) -> bool {
        self.0.is_some_and(|streak| streak.is_said)
    }

    /// Forgets old takeovers. Returns whether there were several.
    pub fn settle(&mut self, now: Timestamp) -> bool {
        let over = self.0.take_if(|streak| now.since(streak.last) > WINDOW);
        over.is_some_and(|streak| streak.are_several())
    }
}

impl Streak {
    fn are_several(&self) -> bool {
        self.losses >= if self.is_said { SAID } else { UNSAID }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn a_session_that_is_taken_again_and_again_is_told_from_one_that_is_lost_now_and_then() {
        use ConnectionLoss::{Broken, Refused, Silent, TakenOver};
        // The kind of each loss, when its connection was accepted (`None`: never) and when it was lost (s); since when
        // other clients keep taking the session after the last one.
        type Case<'a> = (&'a str, &'a [(ConnectionLoss, Option<i64>, i64)], Option<i64>);
        let cases: [Case; 11] = [
            ("one", &[(TakenOver, Some(0), 100)], None),
            ("two, as the broker says", &[(TakenOver, Some(0), 100), (TakenOver, Some(101), 160)], Some(99)),
            ("two, far apart", &[(TakenOver, Some(0), 100), (TakenOver, Some(101), 161)], None),
            ("two without a word", &[(Broken, Some(0), 100), (Broken, Some(101), 103)], None),
            (
                "three without a word",
                &[(Broken, Some(0), 100), (Broken, Some(101), 103), (Broken, Some(104), 114)],
                Some(99),
            ),
            ("the broker says it once", &[(Broken, Some(0), 100), (TakenOver, Some(101), 130)], Some(99)),
            (
                "a link that is cut now and then",
                &[
                    (Broken, Some(0), 100),
                    (Broken, Some(101), 112),
                    (Broken, Some(113), 124),
                    (Broken, Some(125), 127),
                ],
                None,
            ),
            (
                "after such a cut",
                &[
                    (Broken, Some(0), 100),
                    (Broken, Some(101), 112),
                    (Broken, Some(113), 115),
                    (Broken, Some(116), 117),
                ],
                Some(111),
            ),
            (
                "a broker that is away in between",
                &[(Broken, Some(0), 100), (Broken, None, 101), (Broken, None, 102), (Broken, None, 103)],
                None,
            ),
            (
                "other reasons",
                &[(Refused, Some(0), 100), (Silent, Some(101), 102), (Refused, Some(103), 104)],
                None,
            ),
            (
                "four",
                &[
                    (TakenOver, Some(0), 100),
                    (TakenOver, Some(101), 150),
                    (TakenOver, Some(151), 200),
                    (TakenOver, Some(201), 250),
                ],
                Some(99),
            ),
        ];
        for (claim, losses, since) in cases {
            let mut takeovers = Takeovers::default();
            for (loss, accepted, now) in losses {
                takeovers.lost(*loss, accepted.map(at), at(now - 1), at(*now));
            }
            assert_eq!(takeovers.since(), since.map(at), "{claim}");
            let last = losses.last().map_or(0, |(_, _, now)| *now);
            assert!(!takeovers.settle(at(last + 60)), "{claim}");
            assert_eq!(takeovers.settle(at(last + 61)), since.is_some(), "{claim}");
            assert_eq!(takeovers.since(), None, "{claim}");
        }
    }
}
