//! The decisions about a unit: it was heard, its deadline is checked, it is registered, it is removed.
//!
//! Pure functions from a stored [`Snapshot`] to a [`Change`]. A change holds only for the snapshot from which it was
//! decided. So of two instances that decide at the same time one succeeds, and the other reads again.
//!
//! # Why a last seen time may be presumed
//! A check reads the newest heartbeat from the expiry key before the key can expire, because the next check
//! is never later than the expiry. If no check ran in time (the whole service was down for longer), the key
//! may have held a newer heartbeat than the facts and be gone. Then the silence is presumed to begin at the
//! latest moment at which a heartbeat could have been recorded: a late alert is better than a false one. The
//! presumed moment (`silent_from`) is kept apart from the last known heartbeat, which stands in the record and its id.

use std::time::Duration;

use super::brokers::is_same_message;
use super::{
    BrokerName, Cause, Change, Closing, Declared, Facts, Hearing, Heartbeat, IndexChange, Interval,
    KeyChange, KindRules, Known, Labels, Lifecycle, MAX_LABELS, Override, Registry, Silence, Snapshot,
};
use crate::clock::Timestamp;

mod announcements;
mod operators;
mod renaming;
mod times;

pub use announcements::{announce, announce_all};
pub use operators::{MAX_PAUSE, UnitSettings, acknowledge, configure, is_pause, pause};
pub use renaming::{Renaming, rename};
pub use times::{StateSince, deadline, state, state_since};
use times::{Times, held_departure, is_absent, next_check, times, times_since};

/// The effect of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatResult {
    /// The first heartbeat of a unit.
    New,
    /// A further heartbeat of a unit that is present.
    Refreshed,
    /// The end of a silence.
    Back,
    /// Older than the newest known one: changes nothing.
    Stale,
    /// From a unit that is not registered, in a kind with a closed registry.
    Unregistered,
    /// From a unit that was removed.
    Retired,
    /// The first heartbeat of an id, in a kind that has `max_units` units.
    TooMany,
}

/// Decides what a heartbeat changes.
pub fn hear(
    seen: &Snapshot,
    beat: &Heartbeat,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> (HeartbeatResult, Option<Change>) {
    let at_broker = |broker: Option<&BrokerName>| hearing.at(&rules.kind, broker);
    let hearing = at_broker(beat.broker.as_ref());
    let known = match &seen.facts {
        Some(Facts { lifecycle: Lifecycle::Retired(at), .. }) if now.since(*at) < rules.forget_after => {
            return (HeartbeatResult::Retired, None);
        }
        Some(Facts { lifecycle: Lifecycle::Retired(_), .. }) | None => None,
        Some(facts) => Some(facts),
    };
    let Some(facts) = known else {
        // A unit whose stored facts cannot be read is known.
        if rules.registry == Registry::Closed && !seen.is_unreadable() {
            return (HeartbeatResult::Unregistered, None);
        }
        let facts = Facts { broker: beat.broker.clone(), ..Facts::admitted(beat.at, now) };
        let facts = declare(facts, beat);
        return (HeartbeatResult::New, Some(present(facts, rules, hearing, now)));
    };
    // Where the clock of the device is behind an announcement, the arrival is the time of the heartbeat.
    let at = facts.moment_of(beat);
    let by_arrival = (at != beat.at).then(|| Heartbeat { at, ..beat.clone() });
    let beat = by_arrival.as_ref().unwrap_or(beat);
    match &facts.lifecycle {
        Lifecycle::Offline(silence) => come_back(seen, facts, silence, beat, rules, hearing, now),
        Lifecycle::NeverSeen => {
            let facts = facts.clone().heard(beat.at, beat.broker.clone()).present(now);
            (HeartbeatResult::New, Some(present(declare(facts, beat), rules, hearing, now)))
        }
        _ => {
            let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
            let is_older = beat.at < newest;
            // The key has a heartbeat that is as new, and the facts have what this one declares.
            let is_same = beat.at == newest && beat.broker == seen.heard_at(rules);
            let is_in_key = seen.alive == Some(newest) && (is_older || is_same);
            let says_nothing = is_older && beat.declared.is_empty();
            if is_in_key && (says_nothing || is_declared(facts, beat)) {
                let heard = if is_older { HeartbeatResult::Stale } else { HeartbeatResult::Refreshed };
                return (heard, None);
            }
            let facts = match is_older {
                false => declare(facts.clone().heard(beat.at, beat.broker.clone()), beat),
                true if is_overtaken(facts, beat, newest) => {
                    let facts = declare(facts.clone().heard(newest, seen.heard_at(rules)), beat);
                    Facts { sleep: None, ..facts }
                }
                true => facts.clone().heard(newest, seen.heard_at(rules)),
            };
            let hearing = at_broker(facts.broker.as_ref());
            (HeartbeatResult::Refreshed, Some(present(facts, rules, hearing, now)))
        }
    }
}

/// A heartbeat of a unit with an open record. A heartbeat that is older than the allowed silence does not
/// close the record: it was under way for too long to prove that the unit is alive now.
fn come_back(
    seen: &Snapshot,
    facts: &Facts,
    silence: &Silence,
    beat: &Heartbeat,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> (HeartbeatResult, Option<Change>) {
    let back = Facts {
        last_seen: beat.at,
        broker: beat.broker.clone(),
        silent_from: None,
        ..facts.clone().present(now)
    };
    let back = declare(back, beat);
    let sent = beat.not_before.map_or(beat.at, |earliest| earliest.min(beat.at));
    if sent <= known_until(facts, silence, rules)
        || times(&back, beat.at, beat.at, &back.policy(rules), hearing).deadline < now
    {
        return (HeartbeatResult::Stale, None);
    }
    let record = facts.closed(&seen.unit, silence, beat.at, Closing::Return);
    (HeartbeatResult::Back, Some(Change { record: Some(record), ..present(back, rules, hearing, now) }))
}

/// Heartbeats that were sent up to this moment belong to the silence of the open record. A late instance may write such
/// a heartbeat after the record was opened; the heartbeat must not close the record.
///
/// Such a heartbeat is the last known one, or it came unseen: the check that opened the record found no expiry key,
/// so no heartbeat had been recorded for the lifetime of a key. After an announcement that opened the record, any
/// heartbeat is one of a new session.
fn known_until(facts: &Facts, silence: &Silence, rules: &KindRules) -> Timestamp {
    let last = facts.last_of(silence);
    if silence.cause.is_announced() {
        return last;
    }
    let last = last + same_heartbeat(silence);
    last.max(silence.detected_at - facts.key_lifetime(rules))
}

/// How much later than the last heartbeat of an offline unit another one may be and still count as the same message.
/// Several instances receive one message some milliseconds apart. An instance that writes it late must not close the
/// record that another instance has opened. A unit that is alive sends another heartbeat.
fn same_heartbeat(silence: &Silence) -> Duration {
    (silence.allowed / 10).min(Duration::from_secs(1))
}

/// How much newer a heartbeat may be that was recorded before one that declares something.
const OVERTAKING: Duration = Duration::from_secs(1);

/// Whether the declaration of a heartbeat counts although `newest` was recorded before it: nothing was decided of the
/// unit since, so a heartbeat that declares nothing new has overtaken it, on the fast path or at another instance.
fn is_overtaken(facts: &Facts, beat: &Heartbeat, newest: Timestamp) -> bool {
    facts.last_seen < beat.at && newest.since(beat.at) <= OVERTAKING
}

/// Whether these facts have everything that the heartbeat declares, or have no room for it: it changes nothing of them.
pub fn is_declared(facts: &Facts, beat: &Heartbeat) -> bool {
    declare(facts.clone(), beat) == *facts
}

/// The facts with what the heartbeat declares. No label that the unit has makes room for another one.
fn declare(mut facts: Facts, beat: &Heartbeat) -> Facts {
    let Declared { timeout, labels, topic_labels, sleep } = &beat.declared;
    facts.declared_timeout = timeout.or(facts.declared_timeout);
    facts.labels.extend(topic_labels.clone());
    for (name, value) in labels {
        let has_room = facts.labels.len() < MAX_LABELS || facts.labels.contains_key(name);
        if has_room && !topic_labels.contains_key(name) {
            facts.labels.insert(name.clone(), value.clone());
        }
    }
    let declared = sleep.map(|span| Interval { from: beat.at, to: beat.at + span });
    // A sleep that was announced after this heartbeat stays.
    facts.sleep = declared.or(facts.sleep.filter(|sleep| sleep.from > beat.at));
    facts
}

/// The change that makes a unit with these facts present.
fn present(facts: Facts, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Change {
    let mut facts = facts.aged(now);
    let policy = facts.policy(rules);
    facts.acknowledged = None;
    facts.departure = facts.departure.filter(|departure| departure.at >= facts.last_seen);
    let key = match facts.may_be_behind(rules) {
        true => KeyChange::Delete,
        false => KeyChange::Set { last_seen: facts.last_seen, ttl: policy.allowed() },
    };
    facts.checked_at = (key != KeyChange::Delete).then_some(now);
    let next_check = next_check(&facts, rules, hearing, now);
    Change { key, index: IndexChange::CheckAt(next_check), facts: Some(facts), record: None }
}

/// The result of a deadline check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The unit has time left: the next check is set.
    Alive(Change),
    /// The deadline has passed: a record is opened.
    Offline(Change),
    /// The record is closed: a heartbeat was recorded beside it, or the unit is allowed a longer silence now.
    Back(Change),
    /// The unit is due, but Rollcall has not heard far enough to decide.
    Undecided,
    /// The unit does not belong in the deadline index and is removed from it, if it is there.
    Gone(Change),
}

/// Checks the deadline of a unit.
pub fn check_deadline(seen: &Snapshot, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Verdict {
    recheck_deadline(seen, now, rules, hearing, now)
}

/// Checks the deadline of a unit whose expiry key, if it is absent, is known to be absent since `gone`.
pub fn recheck_deadline(
    seen: &Snapshot,
    gone: Timestamp,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Verdict {
    let of_unit = hearing.of_unit(seen, rules);
    let Some(facts) = &seen.facts else { return check_unknown(seen, rules, of_unit, now) };
    match &facts.lifecycle {
        Lifecycle::Retired(_) => out_of_index(KeyChange::Delete, Some(facts)),
        Lifecycle::Offline(silence) => check_offline(seen, facts, silence, rules, of_unit, now),
        Lifecycle::NeverSeen | Lifecycle::Present => check_watched(seen, facts, gone, rules, hearing, now),
    }
}

/// A unit whose facts were lost. Heartbeats since then refreshed its key and did not admit it: the newest of them does
/// now. A closed registry would not admit it either; then its key is deleted, so that its heartbeats are counted.
fn check_unknown(seen: &Snapshot, rules: &KindRules, hearing: &Hearing, now: Timestamp) -> Verdict {
    match seen.alive.filter(|_| rules.registry == Registry::Open) {
        Some(heard) => {
            let facts = Facts { broker: seen.alive_at.clone(), ..Facts::admitted(heard, now) };
            Verdict::Alive(present(facts, rules, hearing, now))
        }
        None => out_of_index(KeyChange::Delete, None),
    }
}

fn out_of_index(key: KeyChange, facts: Option<&Facts>) -> Verdict {
    Verdict::Gone(Change { key, index: IndexChange::Take, facts: facts.cloned(), record: None })
}

fn check_watched(
    seen: &Snapshot,
    facts: &Facts,
    gone: Timestamp,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Verdict {
    let (of_fleet, of_kind) = (hearing, hearing.of(&rules.kind));
    let presumed = presumed(seen, facts, rules, of_kind, gone);
    let hearing = match presumed {
        Some(at) if !is_same_message(facts.last_seen, at, rules) => hearing.anywhere(Some(facts), rules),
        _ => hearing.of_unit(seen, rules),
    };
    let mut facts = as_seen(seen, facts.clone().aged(now), presumed, rules, hearing, now);
    let policy = facts.policy(rules);
    let Times { deadline, decides: announced, .. } =
        times_since(&facts, facts.silent_since(), &policy, hearing);
    let is_certain = announced.is_some_and(|departure| departure.is_certain());
    // A unit that says itself that it is gone has no time left in that millisecond either.
    if deadline > now || deadline == now && !is_certain {
        let index = IndexChange::CheckAt(next_check(&facts, rules, hearing, now));
        return Verdict::Alive(Change { key: KeyChange::Keep, index, facts: Some(facts), record: None });
    }
    // The ledger may not show yet why no check ran in time. So hearing must also cover the silence after a
    // heartbeat that may have come unseen. Such a heartbeat is not later than the deadline, or a check since
    // then would have found its key.
    // The moment of an announcement is near, and probes of the kind are seconds apart: canaries prove the rest.
    let is_near = |deadline| announced.is_none_or(|departure| of_fleet.covers(deadline, departure.slack()));
    let is_heard = |deadline| hearing.covers(deadline, policy.slack()) && is_near(deadline);
    let covers = |until| is_certain && until == deadline || is_heard(until);
    let after = |unseen: Timestamp| times_since(&facts, unseen, &policy, hearing).deadline;
    let proof = presumed.map_or(deadline, |at| after(at.min(deadline)).max(deadline));
    if !covers(proof) {
        return Verdict::Undecided;
    }
    // If no check ran since then, such a heartbeat may be later than the deadline: an overloaded service records late
    // and checks late. The presumed moment is fixed once and does not move again, so the wait for hearing ends.
    if let Some(at) = presumed.filter(|at| *at > deadline && !covers(after(*at))) {
        facts.silent_from = Some(at);
        let index = IndexChange::CheckAt(next_check(&facts, rules, hearing, now));
        return Verdict::Alive(Change { key: KeyChange::Keep, index, facts: Some(facts), record: None });
    }
    let cause = match (&facts.lifecycle, announced) {
        (Lifecycle::NeverSeen, _) => Cause::NeverSeen,
        (_, Some(departure)) => departure.cause,
        (_, None) => Cause::Silence,
    };
    let silence = Silence { deadline, detected_at: now, cause, allowed: policy.allowed() };
    let record = facts.record(&seen.unit, &silence);
    facts.lifecycle = Lifecycle::Offline(silence);
    facts.checked_at = None;
    Verdict::Offline(Change {
        key: KeyChange::Delete,
        index: IndexChange::Take,
        facts: Some(facts),
        record: Some(record),
    })
}

/// The facts after a check: the newest heartbeat is the value of the key or, without a key, the last heartbeat of the
/// facts. A newer heartbeat may have come and expired unseen.
fn as_seen(
    seen: &Snapshot,
    facts: Facts,
    presumed: Option<Timestamp>,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Facts {
    if let Some(alive) = seen.alive {
        let newest = alive.max(facts.last_seen);
        return Facts { checked_at: Some(now), ..facts.heard(newest, seen.heard_at(rules)) };
    }
    // Where the deadline has passed either way, nothing is presumed of the silence.
    let policy = facts.policy(rules);
    let matters = |at: &Timestamp| times_since(&facts, *at, &policy, hearing).deadline > now;
    let silent_from = presumed.filter(matters).or(facts.silent_from);
    Facts { checked_at: None, silent_from, ..facts }
}

/// The latest moment at which an unseen heartbeat may have come: its key has expired since, or was evicted. `None` if
/// no heartbeat can have come unseen.
fn presumed(
    seen: &Snapshot,
    facts: &Facts,
    rules: &KindRules,
    hearing: &Hearing,
    gone: Timestamp,
) -> Option<Timestamp> {
    let checked_at = facts.checked_at.filter(|_| seen.alive.is_none())?;
    let expired = gone - facts.key_lifetime(rules);
    let newest_unseen = hearing.evicted.map_or(expired, |at| at.max(expired)).min(gone);
    let is_possible = newest_unseen > checked_at;
    is_possible.then(|| hearing.latest(newest_unseen).max(facts.silent_since()))
}

fn check_offline(
    seen: &Snapshot,
    facts: &Facts,
    silence: &Silence,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Verdict {
    if let Some(heard) = seen.alive.filter(|heard| *heard > facts.last_of(silence)) {
        let record = facts.closed(&seen.unit, silence, heard, Closing::Return);
        let broker = seen.heard_at(rules);
        let back = facts.clone().heard(heard, broker).present(now);
        return Verdict::Back(Change { record: Some(record), ..present(back, rules, hearing, now) });
    }
    match reprieve(seen, facts.clone(), silence, rules, hearing, now) {
        Some(change) => Verdict::Back(change),
        None => out_of_index(KeyChange::Keep, Some(facts)),
    }
}

/// Closes a record whose unit is allowed a longer silence now, which has not passed yet.
fn reprieve(
    seen: &Snapshot,
    mut facts: Facts,
    silence: &Silence,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Option<Change> {
    let policy = facts.policy(rules);
    let deadline = times_since(&facts, facts.silent_since(), &policy, hearing).deadline;
    if policy.allowed() == silence.allowed || deadline < now {
        return None;
    }
    let record = facts.closed(&seen.unit, silence, now, Closing::Policy);
    let key = match silence.cause {
        Cause::NeverSeen => KeyChange::Keep,
        _ => {
            let ttl = deadline.since(now).max(Duration::from_millis(1));
            KeyChange::Set { last_seen: facts.last_seen, ttl }
        }
    };
    facts.lifecycle = match silence.cause {
        Cause::NeverSeen => Lifecycle::NeverSeen,
        _ => Lifecycle::Present,
    };
    facts.acknowledged = None;
    facts.checked_at = matches!(key, KeyChange::Set { .. }).then_some(now);
    let index = IndexChange::CheckAt(next_check(&facts, rules, hearing, now));
    Some(Change { key, index, facts: Some(facts), record: Some(record) })
}

/// The settings with which an operator registers a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// The allowed silence, where it differs from what the unit declares and from its kind.
    pub set: Override,
    /// Labels; labels of the unit that are not named stay.
    pub labels: Labels,
    /// A planned absence.
    pub pause: Option<Interval>,
    /// The note of operators; `None`: the note of the unit stays.
    pub note: Option<String>,
}

/// Registers a unit or changes its settings.
pub fn register(
    seen: &Snapshot,
    wanted: &Registration,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Change {
    let hearing = hearing.of_unit(seen, rules);
    let mut facts = match &seen.facts {
        None | Some(Facts { lifecycle: Lifecycle::Retired(_), .. }) => Facts::registered(now),
        Some(facts) => facts.clone(),
    };
    facts.set = wanted.set;
    facts.pause = wanted.pause;
    facts.labels.extend(wanted.labels.clone());
    if let Some(note) = &wanted.note {
        facts.note.clone_from(note);
    }
    if let Lifecycle::Offline(silence) = facts.lifecycle {
        return reprieve(seen, facts.clone(), &silence, rules, hearing, now).unwrap_or(Change {
            key: KeyChange::Keep,
            index: IndexChange::Keep,
            facts: Some(facts),
            record: None,
        });
    }
    let presumed = presumed(seen, &facts, rules, hearing, now);
    let facts = as_seen(seen, facts, presumed, rules, hearing, now);
    let index = IndexChange::CheckAt(next_check(&facts, rules, hearing, now));
    let ttl = facts.policy(rules).allowed();
    let key = match seen.alive {
        Some(last_seen) => KeyChange::Set { last_seen, ttl },
        None => KeyChange::Keep,
    };
    Change { key, index, facts: Some(facts), record: None }
}

/// Removes a unit from the fleet; `None` if the unit is not in the fleet.
pub fn retire(seen: &Snapshot, now: Timestamp) -> Option<Change> {
    let facts = seen.facts.as_ref()?;
    let (index, record) = match &facts.lifecycle {
        Lifecycle::Retired(_) => return None,
        Lifecycle::Offline(silence) => {
            (IndexChange::Keep, Some(facts.closed(&seen.unit, silence, now, Closing::Removed)))
        }
        Lifecycle::NeverSeen | Lifecycle::Present => (IndexChange::Take, None),
    };
    Some(Change { key: KeyChange::Delete, index, facts: Some(facts.retired(now)), record })
}

/// Closes the open record of a unit whose kind is no longer configured; `None` if the unit has no open record. The unit
/// starts again: if its kind comes back, the unit is like a unit that was registered now and not heard yet.
pub fn unwatch(seen: &Snapshot, next_check: Timestamp, now: Timestamp) -> Option<Change> {
    let facts = seen.facts.as_ref()?;
    let Lifecycle::Offline(silence) = &facts.lifecycle else { return None };
    let record = facts.closed(&seen.unit, silence, now, Closing::KindRemoved);
    let restarted = Facts {
        lifecycle: Lifecycle::NeverSeen,
        last_seen: now,
        broker: None,
        silent_from: None,
        checked_at: None,
        sleep: None,
        departure: None,
        acknowledged: None,
        known: Some(Known::registered(now)),
        ..facts.clone()
    };
    let index = IndexChange::CheckAt(next_check);
    Some(Change { key: KeyChange::Delete, index, facts: Some(restarted), record: Some(record) })
}

#[cfg(test)]
mod tests;
