//! What is known of one unit, and what a decision changes in it.
//!
//! The truth of the last heartbeat is the unit's expiry key; the facts hold what the key cannot:
//! the state, the last heartbeat as of the last look, what was declared and what was set. Every
//! decision reads a [`Snapshot`] of both and answers with a [`Change`], which the engine applies
//! only if the unit is still as it was read. So the rules live here, once, and no engine has any.

use std::time::Duration;

use super::{Cause, Closing, Interval, KindRules, Labels, OfflineRecord, Override, Policy, RecordId, Unit};
use crate::clock::Timestamp;

/// How a unit stands with the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Registered and not yet heard; its last seen time is that of the registration.
    NeverSeen,
    /// Heard, and not known to be offline.
    Present,
    /// Offline, with an open record.
    Offline(Silence),
    /// Removed by an operator at that moment; heartbeats are counted and change nothing.
    Retired(Timestamp),
}

/// The part of an open record that the rest of the facts does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Offline since.
    pub deadline: Timestamp,
    /// When the record was written.
    pub detected_at: Timestamp,
    /// Why.
    pub cause: Cause,
    /// The silence that was allowed then; another value now may close the record.
    pub allowed: Duration,
}

/// What is known of a unit beside its expiry key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// How it stands with the fleet.
    pub standing: Standing,
    /// The newest heartbeat as of the last look.
    pub last_seen: Timestamp,
    /// The latest moment at which one may have come after that and was not seen: the silence is presumed to begin
    /// there. `None`: there can be none.
    pub silent_from: Option<Timestamp>,
    /// When the expiry key was last seen standing. `None`: it was gone at the last look, so
    /// `last_seen` is final until a heartbeat is admitted.
    pub looked_at: Option<Timestamp>,
    /// The timeout that the unit declared.
    pub declared_timeout: Option<Duration>,
    /// What an operator set.
    pub set: Override,
    /// Labels from topics, payloads and operators.
    pub labels: Labels,
    /// A silence that the unit announced with its heartbeat at `from`; void after a newer one.
    pub sleep: Option<Interval>,
    /// A planned absence: a blind interval of this one unit.
    pub pause: Option<Interval>,
}

impl Facts {
    /// Facts of a unit that becomes known at `moment` and of which nothing else is known.
    pub fn new(standing: Standing, moment: Timestamp) -> Facts {
        Facts {
            standing,
            last_seen: moment,
            silent_from: None,
            looked_at: None,
            declared_timeout: None,
            set: Override::default(),
            labels: Labels::new(),
            sleep: None,
            pause: None,
        }
    }

    /// The same, heard at `at`.
    pub(super) fn heard(self, at: Timestamp) -> Facts {
        Facts { last_seen: at, silent_from: self.silent_from.filter(|from| *from > at), ..self }
    }

    /// When its silence began, as far as is known.
    pub fn silent_since(&self) -> Timestamp {
        self.silent_from.map_or(self.last_seen, |from| from.max(self.last_seen))
    }

    /// The silence that it is allowed.
    pub fn policy(&self, rules: &KindRules) -> Policy {
        rules.resolve(self.declared_timeout, self.set)
    }

    /// The longest time for which an expiry key that was just set surely stands: a heartbeat that
    /// says nothing sets it for the kind's time, one that declares a timeout for that.
    pub(super) fn key_stands(&self, rules: &KindRules) -> Duration {
        let declared = rules.resolve(self.declared_timeout, Override::default()).allowed();
        self.policy(rules).allowed().min(rules.policy.allowed()).min(declared)
    }

    /// The open record of the unit that these are facts of.
    pub fn open_record(&self, unit: &Unit) -> Option<OfflineRecord> {
        match &self.standing {
            Standing::Offline(silence) => Some(self.record(unit, silence)),
            _ => None,
        }
    }

    /// The record that `silence` is, or would be.
    pub(super) fn record(&self, unit: &Unit, silence: &Silence) -> OfflineRecord {
        OfflineRecord {
            id: RecordId { unit: unit.clone(), last_seen: self.last_seen },
            kind: unit.kind.clone(),
            unit: unit.id.clone(),
            labels: self.labels.clone(),
            last_seen: self.last_seen,
            silent_from: self.silent_from.filter(|from| *from > self.last_seen),
            deadline: silence.deadline,
            detected_at: silence.detected_at,
            back_at: None,
            cause: silence.cause,
            closed_by: None,
        }
    }

    /// The record of `silence` as it is when closed.
    pub(super) fn closed(
        &self,
        unit: &Unit,
        silence: &Silence,
        back_at: Timestamp,
        why: Closing,
    ) -> OfflineRecord {
        OfflineRecord { back_at: Some(back_at), closed_by: Some(why), ..self.record(unit, silence) }
    }
}

/// A unit as the engine holds it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Who.
    pub unit: Unit,
    /// The value of the expiry key: the newest heartbeat. `None`: there is no key.
    pub alive: Option<Timestamp>,
    /// What is known beside it; `None` for a stranger.
    pub facts: Option<Facts>,
    /// The facts as stored, compared again when a change is applied.
    pub stored: Option<Box<str>>,
}

impl Snapshot {
    /// Whether it is a unit of the fleet, heard or not.
    pub fn is_known(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| !matches!(facts.standing, Standing::Retired(_)))
    }

    /// Something is stored of it that cannot be read. It is left out of every look; its next heartbeat
    /// admits it anew.
    pub fn is_unreadable(&self) -> bool {
        self.facts.is_none() && self.stored.is_some()
    }

    /// Its newest heartbeat; `None` if it was never heard.
    pub fn last_heard(&self) -> Option<Timestamp> {
        let facts = self.facts.as_ref()?;
        let was_heard = match &facts.standing {
            Standing::NeverSeen => false,
            Standing::Offline(silence) => silence.cause != Cause::NeverSeen,
            Standing::Present | Standing::Retired(_) => true,
        };
        was_heard.then(|| self.alive.map_or(facts.last_seen, |alive| alive.max(facts.last_seen)))
    }
}

/// What becomes of the expiry key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// Stays.
    Keep,
    /// Holds `last_seen` and expires after `ttl`.
    Set {
        /// The newest heartbeat.
        last_seen: Timestamp,
        /// Timeout and grace.
        ttl: Duration,
    },
    /// Goes.
    Delete,
}

/// What becomes of the unit's place in the deadline index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// Stays.
    Keep,
    /// The next time worth looking.
    LookAt(Timestamp),
    /// Taken out. Only the one whose removal removed it has won; for anybody else the whole
    /// change is void.
    Take,
}

/// The outcome of a decision about one unit, to be applied in one step or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What becomes of the expiry key.
    pub key: KeyChange,
    /// What becomes of the place in the index.
    pub index: IndexChange,
    /// The facts from now on; `None` forgets the unit.
    pub facts: Option<Facts>,
    /// A record that was opened or closed: stored under its id and put into the outbox.
    pub record: Option<OfflineRecord>,
}

/// The words for the state of a unit, as the API, metrics and pages use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Within its timeout.
    Online,
    /// Past its timeout, within its grace.
    Late,
    /// Has an open record.
    Offline,
    /// Registered, not yet heard.
    NeverSeen,
    /// Planned absence.
    Paused,
    /// Due, but Rollcall has not heard far enough to say.
    Unknown,
}

impl State {
    /// Every state, in the order in which pages show them.
    pub const ALL: [State; 6] =
        [State::Online, State::Late, State::Offline, State::NeverSeen, State::Paused, State::Unknown];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Online => "online",
            State::Late => "late",
            State::Offline => "offline",
            State::NeverSeen => "never_seen",
            State::Paused => "paused",
            State::Unknown => "unknown",
        }
    }
}
