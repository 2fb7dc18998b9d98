//! Whether the clock of the server jumped forward.
//!
//! Expiry keys stand by the clock of their server. When an operator sets it forward, or a server with
//! another clock takes over, keys are gone whose time was not up, and with them the newest heartbeats
//! of their units. Facts know only those that were seen at the last check. So what a jump takes from
//! the keys it takes from what was heard as well: until a renewal has put back by as much how far
//! Rollcall has heard, nothing is vouched for, and what is heard next encloses a blind interval.
//!
//! A renewal tells the server's clock, and a clock that is never set says how much time has passed
//! since. An instance that has never renewed can tell nothing; one that does will have told the others.
//! Where the clock goes back, keys stand for longer, which harms no unit.

use std::time::{Duration, Instant};

use crate::clock::Timestamp;

/// A shorter jump does not matter: a key that is gone this early is gone when its unit is all but due.
const SHORTEST: Duration = Duration::from_millis(250);

/// What the server's clock should tell.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// What it told at the last renewal, which was asked for at that moment.
    renewed: Option<(Instant, Timestamp)>,
    /// What it would have told when a jump was noticed, without the jump.
    jumped: Option<Timestamp>,
}

impl ServerClock {
    /// It tells `server` in an answer that has come by `now`. Whether it jumped since the last renewal.
    pub fn read(&mut self, now: Instant, server: Timestamp) -> bool {
        if let Some((asked, told)) = self.renewed {
            // The answer may have been under way for long, and then it tells less than that.
            let latest = told + now.duration_since(asked);
            if server.since(latest) > SHORTEST {
                self.jumped.get_or_insert(latest);
            }
        }
        self.jumped.is_some()
    }

    /// What it would have told without a jump that no renewal has handled yet.
    pub fn jumped(&self) -> Option<Timestamp> {
        self.jumped
    }

    /// A renewal that was asked for at `asked` is done, and told `server`.
    pub fn renewed(&mut self, asked: Instant, server: Timestamp) {
        *self = ServerClock { renewed: Some((asked, server)), jumped: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_clock_jumped_if_it_tells_more_than_has_passed() {
        let begin = Instant::now();
        let after = |ms: u64| begin + Duration::from_millis(ms);
        // (when the answer had come, what it told, whether that is a jump)
        let cases = [
            (100, 10_100, false),
            (100, 10_350, false),
            (100, 10_351, true),
            (9_000, 10_100, false), // the answer was under way for long
            (2_000, 3_612_000, true),
            (2_000, 5_000, false), // it was set back
        ];
        for (come, told, jumped) in cases {
            let mut clock = ServerClock::default();
            assert!(!clock.read(begin, at(0)), "nothing is known yet");
            clock.renewed(begin, at(10_000));
            assert_eq!(clock.read(after(come), at(told)), jumped, "{told} after {come} ms");
        }
    }

    #[test]
    fn a_jump_is_one_until_a_renewal_has_handled_it() {
        let begin = Instant::now();
        let mut clock = ServerClock::default();
        clock.renewed(begin, at(10_000));
        assert!(clock.read(begin, at(70_000)));
        assert!(clock.read(begin, at(10_000)), "also if it was set right again");
        assert_eq!(clock.jumped(), Some(at(10_000)));
        clock.renewed(begin, at(70_000));
        assert_eq!(clock.jumped(), None);
        assert!(!clock.read(begin, at(70_001)));
    }
}
