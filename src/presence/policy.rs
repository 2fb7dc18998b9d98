//! How long a unit may be silent.
//!
//! An operator's override comes first, then the timeout that the unit declared in its payload (if its kind accepts
//! that), then the timeout of its kind.

use std::time::Duration;

use super::{Kind, UnitName};
use crate::clock::Timestamp;

/// The shortest timeout: 1 s.
pub const MIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest timeout: 400 days.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(400 * 86_400);
/// The timeout of a kind that names none: 48 h.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(48 * 3600);

/// Whether a timeout is within its bounds.
pub fn is_timeout(span: Duration) -> bool {
    (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&span)
}

/// The allowed silence of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// After this silence the unit is late.
    pub timeout: Duration,
    /// After this further wait the unit is offline.
    pub grace: Duration,
}

impl Policy {
    /// Timeout and grace together.
    pub fn allowed(&self) -> Duration {
        self.timeout + self.grace
    }

    /// The first check of a unit last seen at `seen`, if Rollcall hears all the time: the moment at which the unit is
    /// late or, without grace, its deadline.
    pub fn first_check(&self, seen: Timestamp) -> Timestamp {
        seen + self.timeout
    }

    /// How far the proof of hearing may lag behind a deadline without delaying the decision. Long timeouts stay exact
    /// to the millisecond; short timeouts do not rest on a proof that is half a second old.
    pub fn slack(&self) -> Duration {
        (self.timeout / 10).min(Duration::from_secs(10))
    }
}

/// An operator's settings for one unit; `None` leaves the choice to the unit and its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Override {
    pub timeout: Option<Duration>,
    pub grace: Option<Duration>,
}

/// The default of `max_units`: more than any fleet has, and no more than an engine can hold.
pub const DEFAULT_MAX_UNITS: u64 = 10_000_000;

/// The moment that counts as the time of a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The arrival of the message.
    #[default]
    Arrival,
    /// The `ts` of the payload, where it is plausible.
    Device,
}

/// Which units a kind admits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registry {
    /// Every unit that is heard.
    #[default]
    Open,
    /// Only units that were registered before.
    Closed,
}

/// The rules of one kind of units, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindRules {
    pub kind: Kind,
    /// The captures of a topic that make the id of a unit.
    pub name: UnitName,
    /// The allowed silence of a unit that declares none.
    pub policy: Policy,
    /// Whether a payload may declare a timeout.
    pub accept_timeout: bool,
    /// Whether a payload may declare a planned silence.
    pub accept_sleep: bool,
    /// The longest planned silence; a longer one counts as this long.
    pub max_sleep: Duration,
    /// The moment that counts as the time of a heartbeat.
    pub clock: TimeSource,
    pub registry: Registry,
    /// The allowed silence of a registered unit until its first heartbeat; `None`: the same as later.
    pub first_timeout: Option<Duration>,
    /// How long a removed unit stays out before a heartbeat makes it a new one.
    pub forget_after: Duration,
    /// The most units that heartbeats may admit.
    pub max_units: u64,
    /// How long a unit is offline until it is archived; `None`: units are never archived.
    pub archive_after: Option<Duration>,
}

/// Whether a unit whose open record has that deadline is archived `after` it.
pub fn is_archived(deadline: Timestamp, after: Duration, now: Timestamp) -> bool {
    deadline <= now - after
}

impl KindRules {
    /// Rules with every option at its default.
    pub fn new(kind: Kind) -> KindRules {
        KindRules {
            kind,
            name: UnitName::default(),
            policy: Policy { timeout: DEFAULT_TIMEOUT, grace: Duration::ZERO },
            accept_timeout: true,
            accept_sleep: true,
            max_sleep: MAX_TIMEOUT,
            clock: TimeSource::Arrival,
            registry: Registry::Open,
            first_timeout: None,
            forget_after: Duration::from_secs(30 * 86_400),
            max_units: DEFAULT_MAX_UNITS,
            archive_after: None,
        }
    }

    /// Units whose deadlines passed up to then, and that are still offline at `now`, are archived: lists and counts
    /// leave them out. A heartbeat brings a unit back by itself, because it is not offline then. `None`: no unit of the
    /// kind is archived.
    pub fn archives_before(&self, now: Timestamp) -> Option<Timestamp> {
        self.archive_after.map(|after| now - after)
    }

    /// Whether a unit is archived whose open record has that deadline.
    pub fn is_archived(&self, deadline: Timestamp, now: Timestamp) -> bool {
        self.archive_after.is_some_and(|after| is_archived(deadline, after, now))
    }

    /// The policy of a unit that was heard, declared `declared`, and for which an operator set `set`.
    pub fn resolve(&self, declared: Option<Duration>, set: Override) -> Policy {
        let declared = declared.filter(|_| self.accept_timeout);
        Policy {
            timeout: set.timeout.or(declared).unwrap_or(self.policy.timeout),
            grace: set.grace.unwrap_or(self.policy.grace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_override_beats_the_payload_and_the_payload_beats_the_kind() {
        let mut rules = KindRules::new("detector".parse().unwrap());
        let set = Override { timeout: Some(HOUR), grace: None };
        let cases = [
            (None, Override::default(), DEFAULT_TIMEOUT),
            (Some(2 * HOUR), Override::default(), 2 * HOUR),
            (Some(2 * HOUR), set, HOUR),
            (None, set, HOUR),
        ];
        for (declared, set, expected) in cases {
            assert_eq!(rules.resolve(declared, set).timeout, expected);
        }
        rules.accept_timeout = false;
        assert_eq!(rules.resolve(Some(HOUR), Override::default()).timeout, DEFAULT_TIMEOUT);
    }

    #[test]
    fn a_unit_is_archived_after_its_time_offline_if_its_kind_has_one() {
        let at = Timestamp::from_millis;
        let mut rules = KindRules::new("detector".parse().unwrap());
        assert!(!rules.is_archived(at(0), Timestamp::NEVER));
        rules.archive_after = Some(HOUR);
        let deadline = at(1_772_366_400_000);
        for (seconds, is_archived) in [(0, false), (3599, false), (3600, true), (7200, true)] {
            let now = deadline + Duration::from_secs(seconds);
            assert_eq!(rules.is_archived(deadline, now), is_archived, "{seconds}");
        }
    }

    #[test]
    fn slack_is_a_tenth_of_the_timeout_and_never_more_than_ten_seconds() {
        let policy = |timeout| Policy { timeout, grace: HOUR };
        assert_eq!(policy(Duration::from_secs(1)).slack(), Duration::from_millis(100));
        assert_eq!(policy(HOUR).slack(), Duration::from_secs(10));
    }
}
