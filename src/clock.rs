//! Time: timestamps, and the one place that reads the machine's clock.
//!
//! A [`Timestamp`] is a count of milliseconds since 1970 in UTC, the form in which every time is stored, compared and
//! sent. A [`Clock`] is built once by the service and handed to the loops; everything below them takes `now` as an
//! argument. All instances of a fleet have one time: see `clock/fleet.rs`.
//!
//! # Why
//! A decision that reads a clock of its own cannot be repeated. With time as an argument a test advances 48 hours in
//! one step, and two instances with the same facts decide alike.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod fleet;
mod monotonic;
mod span;
mod steps;

use fleet::FleetClock;
pub use monotonic::{Stopwatch, monotonic};
pub use span::{parse_moment, parse_span, shown_span};
pub use steps::{CONFIRMED, HeldStep, Skip, Steps};

/// Milliseconds since 1970-01-01T00:00:00Z.
///
/// Written as RFC 3339 in UTC with milliseconds for operators and other programs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest timestamp.
    pub const ZERO: Timestamp = Timestamp(0);
    /// A time that never comes: 9999-12-30, because RFC 3339 ends with the year 9999.
    pub const NEVER: Timestamp = Timestamp(253_402_128_000_000);

    /// Milliseconds since 1970, limited to `ZERO..=NEVER`.
    pub const fn from_millis(ms: i64) -> Timestamp {
        if ms < 0 {
            Timestamp::ZERO
        } else if ms > Timestamp::NEVER.0 {
            Timestamp::NEVER
        } else {
            Timestamp(ms)
        }
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Seconds since 1970, for Prometheus.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// The time from `earlier` to this timestamp; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;
    fn add(self, span: Duration) -> Timestamp {
        let ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.0.saturating_add(ms))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;
    fn sub(self, span: Duration) -> Timestamp {
        let ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.0.saturating_sub(ms))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::MAX);
        write!(f, "{moment:.3}")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Write the text in one piece: a JSON serializer searches each piece for characters to escape.
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        deserializer.deserialize_str(Moment)
    }
}

/// Reads a moment from a text.
struct Moment;

impl Visitor<'_> for Moment {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a moment as in RFC 3339, such as 2026-11-23T08:00:00Z")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
        // The library's error mentions digits and offsets, and repeats its input.
        let wrong = |_| E::custom("a moment is written as in RFC 3339, such as 2026-11-23T08:00:00Z");
        let moment: jiff::Timestamp = text.parse().map_err(wrong)?;
        Ok(Timestamp::from_millis(moment.as_millisecond()))
    }
}

/// The time for the loops. Copies have the same time. It never goes back.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    Fleet(Arc<FleetClock>),
    Hand(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that starts with the time of the machine. [`Clock::follow`] makes it the clock of the
    /// fleet; later changes of the machine's clock do not affect it.
    pub fn system() -> Clock {
        Clock(ClockSource::Fleet(Arc::new(FleetClock::new(read_system_clock()))))
    }

    /// A clock that stays at `start` until [`Clock::advance`] moves it.
    pub fn by_hand(start: Timestamp) -> Clock {
        Clock(ClockSource::Hand(Arc::new(AtomicI64::new(start.as_millis()))))
    }

    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::Fleet(clock) => Timestamp::from_millis(clock.now()),
            ClockSource::Hand(ms) => Timestamp::from_millis(ms.load(Ordering::SeqCst)),
        }
    }

    /// The machine's own clock, for an engine that has no other clock.
    pub fn machine() -> Timestamp {
        Timestamp::from_millis(read_system_clock())
    }

    /// Follows the engine's clock, which answered `theirs` within the last `took`. Does
    /// nothing to a clock that is moved by hand.
    pub fn follow(&self, theirs: Timestamp, took: Duration) {
        if let ClockSource::Fleet(clock) = &self.0 {
            clock.follow(theirs.as_millis(), took);
        }
    }

    /// The difference between the machine's own clock and this clock, and whether the machine's clock is ahead. No
    /// decision depends on it; it explains the times of log lines.
    pub fn machine_clock_offset(&self) -> (Duration, bool) {
        let (now, machine) = (self.now(), Clock::machine());
        (machine.since(now).max(now.since(machine)), machine > now)
    }

    /// Moves a clock of [`Clock::by_hand`].
    pub fn advance(&self, span: Duration) {
        if let ClockSource::Hand(ms) = &self.0 {
            ms.fetch_add(span.as_millis() as i64, Ordering::SeqCst);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn read_system_clock() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_written_and_read_as_rfc_3339_with_milliseconds() {
        let moment = Timestamp::from_millis(1_732_147_200_042);
        assert_eq!(moment.to_string(), "2024-11-21T00:00:00.042Z");
        let json = serde_json::to_string(&moment).unwrap();
        assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), moment);
    }

    #[test]
    fn arithmetic_never_leaves_the_calendar() {
        assert_eq!(Timestamp::NEVER + Duration::MAX, Timestamp::NEVER);
        assert_eq!(Timestamp::ZERO - Duration::from_secs(1), Timestamp::ZERO);
        assert_eq!(Timestamp::ZERO.since(Timestamp::NEVER), Duration::ZERO);
        assert!(Timestamp::NEVER.to_string().starts_with("9999-12-30"));
    }
}
