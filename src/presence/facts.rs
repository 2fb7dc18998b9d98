//! The facts of one unit, and the change that a decision makes to them.
//!
//! The expiry key of a unit holds its last heartbeat. The facts hold the rest: the state, the last heartbeat as of the
//! last check, what the unit declared and what an operator set. Every decision reads a [`Snapshot`] of both and answers
//! with a [`Change`], which an engine applies only if the unit is still as it was read. So the rules stand here once,
//! and no engine repeats them.

use std::time::Duration;

use super::{
    Acknowledgement, BrokerName, Cause, Closing, Departure, Heartbeat, Interval, KindRules, Labels,
    OfflineRecord, Override, Policy, TimeSource, Unit,
};
use crate::clock::Timestamp;

/// The lifecycle of a unit in the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// Registered and not yet heard; its last seen time is that of the registration.
    NeverSeen,
    /// Heard, and not known to be offline.
    Present,
    /// Offline, with an open record.
    Offline(Silence),
    /// Removed by an operator at that moment; its heartbeats are counted and change nothing.
    Retired(Timestamp),
}

/// The rule that gives a unit its timeout; each rule goes before the rules after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutRule {
    /// `first_timeout` of its kind: the unit was never heard.
    FirstTimeout,
    /// An operator has set it.
    Operator,
    /// Its heartbeats declare it.
    Device,
    /// `timeout` of its kind.
    Kind,
}

/// The part of an open record that the other facts do not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Offline since.
    pub deadline: Timestamp,
    /// When the record was written.
    pub detected_at: Timestamp,
    pub cause: Cause,
    /// The silence that was allowed then; a different value now may close the record.
    pub allowed: Duration,
}

/// The facts of a unit beside its expiry key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub lifecycle: Lifecycle,
    /// The newest heartbeat as of the last check.
    pub last_seen: Timestamp,
    /// The broker that delivered it; `None`: that is not known, or its kind has one broker.
    pub broker: Option<BrokerName>,
    /// The latest moment at which an unseen heartbeat may have come after that: the silence is presumed to begin
    /// there. `None`: no heartbeat can have come unseen.
    pub silent_from: Option<Timestamp>,
    /// When a check last found the expiry key. `None`: the key was absent at the last check, so
    /// `last_seen` is final until a heartbeat is admitted.
    pub checked_at: Option<Timestamp>,
    /// The timeout that the unit declared.
    pub declared_timeout: Option<Duration>,
    pub set: Override,
    /// Labels from topics, payloads and operators.
    pub labels: Labels,
    /// A silence that the unit announced with its heartbeat at `from`; void after a newer heartbeat.
    pub sleep: Option<Interval>,
    /// A planned absence: a blind interval of this one unit.
    pub pause: Option<Interval>,
    /// The announcement that the unit is gone; void after a newer heartbeat.
    pub departure: Option<Departure>,
    /// The acknowledgement of the open record.
    pub acknowledged: Option<Acknowledgement>,
    /// A note of operators to each other; may be empty.
    pub note: String,
    /// Since when the unit is known, while that is less than [`REMEMBERED`] ago. `None`: it is known for longer, or it was
    /// removed before it was heard.
    pub known: Option<Known>,
}

/// How long facts say since when their unit is known: availability is never read for a longer time.
pub const REMEMBERED: Duration = Duration::from_secs(400 * 86_400);

/// Since when a unit is known, and how it became known. A registered unit that is heard is known since its first
/// heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// A whole second, rounded down.
    pub since: Timestamp,
    /// Whether an operator registered it; otherwise its first heartbeat admitted it.
    pub is_registered: bool,
}

impl Known {
    pub fn admitted(now: Timestamp) -> Known {
        Known { since: Timestamp::from_millis(now.as_millis().div_euclid(1000) * 1000), is_registered: false }
    }

    pub fn registered(now: Timestamp) -> Known {
        Known { is_registered: true, ..Known::admitted(now) }
    }
}

impl Facts {
    /// Facts of a unit that becomes known at `moment`, and nothing else.
    pub fn new(lifecycle: Lifecycle, moment: Timestamp) -> Facts {
        Facts {
            lifecycle,
            last_seen: moment,
            broker: None,
            silent_from: None,
            checked_at: None,
            declared_timeout: None,
            set: Override::default(),
            labels: Labels::new(),
            sleep: None,
            pause: None,
            departure: None,
            acknowledged: None,
            note: String::new(),
            known: None,
        }
    }

    /// Facts of a unit that its first heartbeat admits now. `now` and not the moment of the heartbeat, which a device
    /// may choose.
    pub(super) fn admitted(heard: Timestamp, now: Timestamp) -> Facts {
        Facts { known: Some(Known::admitted(now)), ..Facts::new(Lifecycle::Present, heard) }
    }

    /// Facts of a unit that an operator registers now.
    pub(super) fn registered(now: Timestamp) -> Facts {
        Facts { known: Some(Known::registered(now)), ..Facts::new(Lifecycle::NeverSeen, now) }
    }

    /// Facts of this unit once an operator removes it. They say since when it was known, and its labels: reports count a
    /// unit until it is removed, however short that was.
    pub(super) fn retired(&self, now: Timestamp) -> Facts {
        let known = self.known.filter(|_| self.was_heard());
        let labels = self.labels.clone();
        Facts { known, labels, ..Facts::new(Lifecycle::Retired(now), self.last_seen) }
    }

    /// These facts, without `known` if the unit is known for [`REMEMBERED`] or longer.
    pub(super) fn aged(self, now: Timestamp) -> Facts {
        Facts { known: self.known.filter(|known| now.since(known.since) < REMEMBERED), ..self }
    }

    /// Whether the unit was heard since it is known.
    pub fn was_heard(&self) -> bool {
        match &self.lifecycle {
            Lifecycle::NeverSeen => false,
            Lifecycle::Offline(silence) => silence.cause != Cause::NeverSeen,
            Lifecycle::Present | Lifecycle::Retired(_) => true,
        }
    }

    /// These facts of a unit that is there. A registered unit is known from its first heartbeat on: before that it was
    /// neither online nor offline.
    pub(super) fn present(self, now: Timestamp) -> Facts {
        let known = match self.was_heard() {
            true => self.known,
            // Facts without it are of a unit that was registered long ago.
            false => {
                let is_registered = self.known.is_none_or(|known| known.is_registered);
                Some(Known { is_registered, ..Known::admitted(now) })
            }
        };
        Facts { lifecycle: Lifecycle::Present, known, ..self }
    }

    /// These facts after a heartbeat at `at`, which `broker` delivered.
    pub(super) fn heard(self, at: Timestamp, broker: Option<BrokerName>) -> Facts {
        Facts { last_seen: at, broker, silent_from: self.silent_from.filter(|from| *from > at), ..self }
    }

    /// When the unit was announced as gone or asleep, if it was not heard since.
    fn announced_at(&self) -> Option<Timestamp> {
        let gone = self.departure.map(|departure| departure.at).filter(|at| *at >= self.last_seen);
        // A sleep that a heartbeat declares begins with that heartbeat.
        let asleep = self.sleep.map(|sleep| sleep.from).filter(|from| *from > self.last_seen);
        gone.max(asleep)
    }

    /// Whether heartbeats may follow an announcement and be behind it by the clock of their device. Such a unit has no
    /// expiry key: the fast path knows no announcements, so each heartbeat is decided from the facts.
    pub(super) fn may_be_behind(&self, rules: &KindRules) -> bool {
        rules.clock == TimeSource::Device && self.announced_at().is_some()
    }

    /// When a heartbeat counts: when it arrived, if the clock of its device is behind the announcement that it follows.
    pub(super) fn moment_of(&self, beat: &Heartbeat) -> Timestamp {
        let is_behind = self.announced_at().is_some_and(|at| (beat.at..beat.arrived).contains(&at));
        if is_behind { beat.arrived } else { beat.at }
    }

    /// When the silence began, as far as is known.
    pub fn silent_since(&self) -> Timestamp {
        self.silent_from.map_or(self.last_seen, |from| from.max(self.last_seen))
    }

    /// Up to when heartbeats belong to the silence of the open record at least: the last one, or the announcement
    /// that opened it.
    pub(super) fn last_of(&self, silence: &Silence) -> Timestamp {
        let announced = self.departure.filter(|_| silence.cause.is_announced());
        announced.map_or(self.silent_since(), |departure| departure.at.max(self.silent_since()))
    }

    /// The allowed silence.
    pub fn policy(&self, rules: &KindRules) -> Policy {
        let policy = rules.resolve(self.declared_timeout, self.set);
        Policy { timeout: self.first_timeout(rules).unwrap_or(policy.timeout), ..policy }
    }

    /// The rule that gives the timeout of [`Facts::policy`].
    pub fn timeout_rule(&self, rules: &KindRules) -> TimeoutRule {
        match (self.first_timeout(rules), self.set.timeout, self.declared_timeout) {
            (Some(_), ..) => TimeoutRule::FirstTimeout,
            (None, Some(_), _) => TimeoutRule::Operator,
            (None, None, Some(_)) if rules.accept_timeout => TimeoutRule::Device,
            (None, None, _) => TimeoutRule::Kind,
        }
    }

    /// The timeout of a unit that was never heard, if its kind has one for it.
    fn first_timeout(&self, rules: &KindRules) -> Option<Duration> {
        let never_heard = match &self.lifecycle {
            Lifecycle::NeverSeen => true,
            Lifecycle::Offline(silence) => silence.cause == Cause::NeverSeen,
            Lifecycle::Present | Lifecycle::Retired(_) => false,
        };
        rules.first_timeout.filter(|_| never_heard)
    }

    /// The time for which an expiry key that was just set certainly exists: a plain heartbeat sets it for the
    /// allowed silence of the kind, a heartbeat that declares a timeout for the declared one.
    pub(super) fn key_lifetime(&self, rules: &KindRules) -> Duration {
        let declared = rules.resolve(self.declared_timeout, Override::default()).allowed();
        let policy = rules.resolve(self.declared_timeout, self.set);
        policy.allowed().min(rules.policy.allowed()).min(declared)
    }

    /// The open record of `unit`, to which these facts belong.
    pub fn open_record(&self, unit: &Unit) -> Option<OfflineRecord> {
        match &self.lifecycle {
            Lifecycle::Offline(silence) => Some(self.record(unit, silence)),
            _ => None,
        }
    }

    /// The open record of `silence`.
    pub(super) fn record(&self, unit: &Unit, silence: &Silence) -> OfflineRecord {
        let Silence { deadline, detected_at, cause, .. } = *silence;
        OfflineRecord {
            labels: self.labels.clone(),
            silent_from: self.silent_from.filter(|from| *from > self.last_seen),
            cause,
            acknowledged: self.acknowledged.clone(),
            ..OfflineRecord::open(unit.clone(), self.last_seen, deadline, detected_at)
        }
    }

    /// The closed record of `silence`.
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

/// A unit as an engine holds it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub unit: Unit,
    /// The value of the expiry key: the newest heartbeat. `None`: there is no key.
    pub alive: Option<Timestamp>,
    /// The broker that delivered that heartbeat; `None`: that is not known, or its kind has one broker.
    pub alive_at: Option<BrokerName>,
    /// The facts; `None` for an unknown unit.
    pub facts: Option<Facts>,
    /// The facts as stored, compared again when a change is applied.
    pub stored: Option<Box<str>>,
}

impl Snapshot {
    /// Whether the unit belongs to the fleet, heard or not.
    pub fn is_known(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| !matches!(facts.lifecycle, Lifecycle::Retired(_)))
    }

    /// Whether its stored facts cannot be read. Checks leave such a unit out; its next heartbeat admits it
    /// again.
    pub fn is_unreadable(&self) -> bool {
        self.facts.is_none() && self.stored.is_some()
    }

    /// The newest heartbeat; `None` if the unit was never heard.
    pub fn last_heard(&self) -> Option<Timestamp> {
        let facts = self.facts.as_ref()?;
        facts.was_heard().then(|| self.alive.map_or(facts.last_seen, |alive| alive.max(facts.last_seen)))
    }
}

/// The change of the expiry key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    Keep,
    /// Holds `last_seen` and expires after `ttl`.
    Set {
        /// The newest heartbeat.
        last_seen: Timestamp,
        /// Timeout and grace.
        ttl: Duration,
    },
    Delete,
}

/// The change of the unit's entry in the deadline index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexChange {
    Keep,
    /// The next check is at that moment.
    CheckAt(Timestamp),
    /// The entry is removed. If another caller has removed it before, the whole change is void: one caller wins.
    Take,
}

/// The result of a decision about one unit, applied in one step or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: KeyChange,
    pub index: IndexChange,
    /// The facts from now on; `None` forgets the unit.
    pub facts: Option<Facts>,
    /// A record that opens or closes: it is stored under its id and put into the outbox.
    pub record: Option<OfflineRecord>,
}

impl Change {
    /// The broker that delivered the heartbeat of a key that this change sets.
    pub fn delivered_by(&self) -> Option<&BrokerName> {
        let KeyChange::Set { last_seen, .. } = self.key else { return None };
        self.facts.as_ref().filter(|facts| facts.last_seen == last_seen)?.broker.as_ref()
    }
}

/// The state of a unit in the API, in metrics and on pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
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
    /// In a planned absence.
    Paused,
    /// Due, but Rollcall has not heard far enough to decide.
    Unknown,
}

impl State {
    /// Every state, in the order of the pages.
    pub const ALL: [State; 6] =
        [State::Online, State::Late, State::Offline, State::NeverSeen, State::Paused, State::Unknown];

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
