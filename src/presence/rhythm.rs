//! The rhythm of a unit: how long it usually waits between two heartbeats, learned from what it sends.
//!
//! A timeout of 48 hours says when a unit is offline. Its rhythm says much earlier that something is strange: a unit
//! that is heard every five minutes and has been silent for forty is unusual. A rhythm decides nothing and opens no
//! record.
//!
//! # How it is learned
//! The mean of the intervals and the mean distance from it, both of their logarithms, because the jitter of a minute
//! and the jitter of a day are alike in proportion. The newest sixteen intervals or so count. Beside them stands the
//! longest interval, which fades by half in ninety days, so that an odd night of last year does not hide the silence
//! of today.
//!
//! # What must not spoil it
//! - The first intervals teach and judge nothing: a unit that starts sends several messages at once, so a much longer
//!   interval begins again from nothing.
//! - A burst of queued messages: an interval counts for the part of the usual interval that it covers. Twenty messages
//!   within a second are nothing beside five minutes, and a device that is faster from now on is learned within some
//!   of its old intervals.
//! - A lost message, or an odd pause, pulls no further than a few usual distances.
//! - Time in which the unit could not be heard, or had not to be, teaches nothing: see [`Hearing::unbroken_since`] and
//!   `store/table/units.rs`.
//!
//! # Why not the φ of others
//! Failure detectors that compute φ from a mean and a variance of the last thousand intervals take kilobytes a unit,
//! and a normal distribution calls a single lost message impossible. Here a lost message is never unusual.

use std::time::Duration;

use super::{Hearing, Interval, Kind, Ledger};
use crate::clock::Timestamp;

/// Logarithms to the base 2 of milliseconds are stored in steps of 1/1800: 0.04 %, up to three years.
pub(super) const STEPS: f32 = 1800.0;

/// The number of intervals from which on a rhythm is known.
const FIRST: u8 = 8;

/// The weight of an interval in the mean, once as many as that have been learned.
const WEIGHT: f32 = 1.0 / 16.0;

/// While a rhythm is not known yet, an interval of more than this many doublings begins it again.
const BEGINS_AGAIN: f32 = 3.0 * STEPS;

/// How many mean distances an interval pulls at most, and how many steps at least that may be: half a doubling.
const PULLS: f32 = 3.0;
const LEAST_PULL: f32 = STEPS / 2.0;

/// A silence is unusual from this many mean distances on. If distances fall off as they do in a fleet, one of half a
/// million intervals is so long.
const DISTANCES: u32 = 12;

/// The least distance that counts, in steps: a unit of perfect rhythm is unusual when its second heartbeat is missing.
pub(super) const LEAST_SPREAD: u16 = 162;

/// How much longer than the longest interval an unusual silence is at least, in steps: a quarter.
const LONGER: u32 = 579;

/// The longest interval loses a step in this time.
const FADES_EVERY: i64 = 90 * 86_400_000 / 1800;

/// A kind counts as heard now if it was proved within this time: probes are a few seconds apart.
const PROVED_WITHIN: Duration = Duration::from_secs(20);

/// The intervals of a unit, in eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rhythm {
    /// The mean of the intervals, as a logarithm in steps.
    usual: u16,
    /// The mean distance from it, in steps.
    spread: u16,
    /// The longest interval, fading.
    longest: u16,
    /// How many intervals were learned, at most 255.
    intervals: u8,
}

const _: () = assert!(size_of::<Rhythm>() <= 8);

impl Rhythm {
    /// The bytes of a rhythm as it is stored.
    pub const BYTES: usize = 7;

    /// This rhythm after an interval between two heartbeats.
    #[must_use]
    pub fn learn(self, from: Timestamp, to: Timestamp) -> Rhythm {
        let length = to.since(from);
        if length.is_zero() {
            return self;
        }
        let interval = steps(length);
        let away = interval - f32::from(self.usual);
        if self.intervals == 0 || (!self.is_known() && away > BEGINS_AGAIN) {
            let usual = rounded(interval);
            return Rhythm { usual, spread: 0, longest: usual, intervals: 1 };
        }
        let share = if away < -STEPS { (away / STEPS + 1.0).exp2() } else { 1.0 };
        let spread = f32::from(self.spread);
        let most = if self.is_known() { (PULLS * spread).max(LEAST_PULL) } else { f32::INFINITY };
        let pull = away.clamp(-most, most);
        let weight = share * WEIGHT.max(1.0 / (f32::from(self.intervals) + 1.0));
        let faded = to.as_millis() / FADES_EVERY - from.as_millis() / FADES_EVERY;
        let faded = u16::try_from(faded).unwrap_or(u16::MAX);
        Rhythm {
            usual: dithered(f32::from(self.usual) + weight * pull, to),
            spread: dithered(spread + weight * (pull.abs() - spread), to),
            longest: self.longest.saturating_sub(faded).max(rounded(interval)),
            intervals: self.intervals.saturating_add(u8::from(share >= 0.5)),
        }
    }

    /// Whether enough intervals were learned to say anything.
    pub fn is_known(&self) -> bool {
        self.intervals >= FIRST
    }

    /// How many intervals were learned, and how many it takes.
    pub fn progress(&self) -> (u8, u8) {
        (self.intervals, FIRST)
    }

    /// How long the unit usually waits between two heartbeats.
    pub fn usual(&self) -> Duration {
        span(self.usual.into())
    }

    /// How far an interval is from that, on average.
    pub fn spread(&self) -> Duration {
        span(u32::from(self.usual) + u32::from(self.spread)).saturating_sub(self.usual())
    }

    /// The longest interval that it remembers.
    pub fn longest(&self) -> Duration {
        span(self.longest.into())
    }

    /// The steps of the three, for counting.
    pub(super) fn in_steps(&self) -> [u16; 3] {
        [self.usual, self.spread, self.longest]
    }

    /// The longest silence that is not unusual; `None`: the rhythm is not known.
    pub fn allows(&self) -> Option<Duration> {
        self.is_known().then(|| span(self.limit()))
    }

    /// Whether a silence may be unusual. Costs little, and answers most units of a fleet without a logarithm.
    pub fn may_be_unusual(&self, silence: Duration) -> bool {
        let ms = silence.as_millis() as u64;
        let at_most = (u64::BITS - ms.leading_zeros()) * STEPS as u32;
        self.is_known() && at_most > self.limit()
    }

    /// When a silence that began at `since` becomes unusual. Blind time and absences do not count, and after blind time
    /// the unit is owed some hearing, as for its deadline.
    pub fn unusual_from(
        &self,
        since: Timestamp,
        absences: [Option<Interval>; 2],
        hearing: &Hearing,
    ) -> Option<Timestamp> {
        let allowed = self.allows()?;
        let ledger: &Ledger = &hearing.ledger;
        let ledger = ledger.with(absences[0]);
        let ledger = ledger.with(absences[1]);
        Some(ledger.deadline(since, allowed, allowed.min(hearing.settle)))
    }

    fn limit(&self) -> u32 {
        let usual = u32::from(self.usual) + DISTANCES * u32::from(self.spread.max(LEAST_SPREAD));
        usual.max(u32::from(self.longest) + LONGER)
    }

    /// The rhythm as it is stored.
    pub fn to_bytes(self) -> [u8; Rhythm::BYTES] {
        let [a, b] = self.usual.to_le_bytes();
        let [c, d] = self.spread.to_le_bytes();
        let [e, f] = self.longest.to_le_bytes();
        [a, b, c, d, e, f, self.intervals]
    }

    /// The reverse of [`Rhythm::to_bytes`]; any bytes are a rhythm.
    pub fn from_bytes([a, b, c, d, e, f, intervals]: [u8; Rhythm::BYTES]) -> Rhythm {
        Rhythm {
            usual: u16::from_le_bytes([a, b]),
            spread: u16::from_le_bytes([c, d]),
            longest: u16::from_le_bytes([e, f]),
            intervals,
        }
    }
}

impl Hearing {
    /// Since when the kind is heard without a break; an interval that began before says nothing of a unit. `gap`: two
    /// canaries further apart enclose a blind interval. `None`: it is not proved that the kind is heard now.
    pub fn unbroken_since(&self, kind: &Kind, gap: Duration, now: Timestamp) -> Option<Timestamp> {
        let of_kind = self.of(kind);
        if now.since(self.heard?) > gap || now.since(of_kind.heard?) > PROVED_WITHIN.max(gap) {
            return None;
        }
        let last = |ledger: &Ledger| ledger.intervals().last().map(|blind| blind.to);
        let of_brokers = of_kind.brokers.values().filter_map(|at| last(&at.ledger));
        let since = of_brokers.chain(last(&of_kind.ledger)).max().unwrap_or(Timestamp::ZERO);
        Some(since).filter(|since| *since <= now)
    }
}

/// The logarithm of a span, in steps.
pub(super) fn steps(span: Duration) -> f32 {
    (span.as_millis().max(1) as f32).log2() * STEPS
}

/// The span of a logarithm in steps.
pub(super) fn span(steps: u32) -> Duration {
    Duration::from_millis((f64::from(steps) / f64::from(STEPS)).exp2().round().min(1e15) as u64)
}

fn rounded(steps: f32) -> u16 {
    steps.round() as u16 // Saturates.
}

/// A number of steps, rounded up as often as its fraction says: many small pulls together move a mean, of which each by
/// itself would be rounded away. The moment of the heartbeat is the die.
fn dithered(steps: f32, at: Timestamp) -> u16 {
    let die = (at.as_millis() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (steps + die as f32 / (1u64 << 24) as f32) as u16 // Saturates.
}

#[cfg(test)]
mod tests;
