//! Sleep: a silence that a unit declares beforehand.
//!
//! A unit says for how long it sleeps, and wakes by its own clock. So time that the clock of the fleet skipped
//! (`clock/steps.rs`) does not count for it, as it does not for the span of a timer: the sleep ends later by that much.
//!
//! A pause and an alert silence of an operator end at a moment that operators see, and go by the clock as it is set.

use super::{Hearing, Interval};
use crate::clock::Timestamp;

impl Hearing {
    /// The sleep that a unit declared, if it was not heard since; `newest`: its newest heartbeat.
    pub fn sleep(&self, declared: Option<Interval>, newest: Timestamp) -> Option<Interval> {
        let sleep = declared.filter(|sleep| newest <= sleep.from)?;
        let skip = self.skipped.filter(|skip| sleep.contains(skip.from));
        Some(Interval { to: skip.map_or(sleep.to, |skip| sleep.to + skip.to.since(skip.from)), ..sleep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Skip;

    #[test]
    fn a_sleep_lasts_as_long_as_the_unit_said_whatever_the_clock_skips() {
        let at = Timestamp::from_millis;
        // What the clock skipped, and when the sleep from 10 to 100 ends.
        let cases = [
            (None, 100),
            (Some((60, 3660)), 3700),
            (Some((10, 3610)), 3700),
            (Some((99, 100)), 101),
            (Some((5, 9)), 100),
            (Some((100, 3700)), 100),
        ];
        for (skipped, end) in cases {
            let skipped = skipped.map(|(from, to)| Skip { from: at(from), to: at(to) });
            let hearing = Hearing { skipped, ..Hearing::default() };
            let declared = Some(Interval { from: at(10), to: at(100) });
            let expected = Some(Interval { from: at(10), to: at(end) });
            assert_eq!(hearing.sleep(declared, at(10)), expected, "{skipped:?}");
            assert_eq!(hearing.sleep(declared, at(11)), None, "it was heard since");
            assert_eq!(hearing.sleep(None, at(10)), None);
        }
    }
}
