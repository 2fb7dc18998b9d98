//! Changes by operators: the open record of a unit is acknowledged, or the unit is paused or gets settings.

use std::time::Duration;

use super::{Registration, register};
use crate::clock::Timestamp;
use crate::presence::{
    Acknowledgement, Change, Facts, Hearing, IndexChange, Interval, KeyChange, KindRules, Labels, Lifecycle,
    MAX_LABELS_IN_ALL, MAX_TIMEOUT, Override, RecordId, Snapshot,
};

/// The longest pause, from the moment of the operator's request.
pub const MAX_PAUSE: Duration = MAX_TIMEOUT;

/// Whether a unit may be paused until `until`.
pub fn is_pause(until: Timestamp, now: Timestamp) -> bool {
    now < until && until.since(now) <= MAX_PAUSE
}

/// Acknowledges the open record of a unit; `acknowledged` = `None` takes the acknowledgement back. Answers `None` if
/// the unit has no open record, if its open record is not `id`, or if there is no acknowledgement to take back.
pub fn acknowledge(
    seen: &Snapshot,
    id: Option<&RecordId>,
    acknowledged: Option<Acknowledgement>,
) -> Option<Change> {
    let facts = seen.facts.as_ref()?;
    let open = facts.open_record(&seen.unit)?;
    if id.is_some_and(|id| *id != open.id) {
        return None;
    }
    if acknowledged.is_none() && facts.acknowledged.is_none() {
        return None;
    }
    let facts = Facts { acknowledged, ..facts.clone() };
    // Alerting learns of the acknowledgement from the outbox, where records are written.
    let record = facts.open_record(&seen.unit).filter(|record| record.is_acknowledged());
    Some(Change { key: KeyChange::Keep, index: IndexChange::Keep, facts: Some(facts), record })
}

/// Pauses a unit from now until `until`; `until` = `None` ends its pause. The deadline of the unit moves at once; an
/// open record stays open. Answers `None` if the unit is unknown or removed, or has no pause that could end.
///
/// An earlier pause of the same silence stays a part of the pause: during that pause the unit could not be heard.
pub fn pause(
    seen: &Snapshot,
    until: Option<Timestamp>,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Option<Change> {
    let facts = seen.facts.as_ref()?;
    if matches!(facts.lifecycle, Lifecycle::Retired(_)) {
        return None;
    }
    let pause = Some(paused(seen, facts, until, now)?);
    let wanted = Registration { set: facts.set, pause, ..Registration::default() };
    Some(register(seen, &wanted, rules, hearing, now))
}

/// The pause of a unit that operators pause until `until`, or whose pause they end (`until` = `None`). Answers `None`
/// if there is no pause to end.
fn paused(seen: &Snapshot, facts: &Facts, until: Option<Timestamp>, now: Timestamp) -> Option<Interval> {
    let newest = facts.last_seen.max(seen.alive.unwrap_or(Timestamp::ZERO));
    let earlier = facts.pause.filter(|pause| pause.to >= newest && pause.from <= now);
    match (until, earlier) {
        (Some(until), earlier) => {
            Some(Interval { from: earlier.map_or(now, |earlier| earlier.from), to: until.max(now) })
        }
        (None, Some(earlier)) if earlier.to > now => Some(Interval { to: now, ..earlier }),
        (None, _) => None,
    }
}

/// The settings that operators give a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitSettings {
    pub set: Override,
    /// Labels; labels of the unit that are not named stay.
    pub labels: Labels,
    /// Until when the unit is paused; `Some(None)` ends its pause, `None` leaves its pause as it is.
    pub paused_until: Option<Option<Timestamp>>,
    /// The note of operators; `None`: the note of the unit stays.
    pub note: Option<String>,
}

impl UnitSettings {
    /// Whether a unit has room for these labels.
    pub fn fit(&self, seen: &Snapshot) -> bool {
        let known = seen.facts.as_ref().filter(|_| seen.is_known());
        let others = known
            .map_or(0, |facts| facts.labels.keys().filter(|name| !self.labels.contains_key(*name)).count());
        self.labels.is_empty() || others + self.labels.len() <= MAX_LABELS_IN_ALL
    }

    /// Whether a unit has these settings, so that nothing is to be done.
    pub fn are_of(&self, seen: &Snapshot, now: Timestamp) -> bool {
        let Some(facts) = seen.facts.as_ref().filter(|_| seen.is_known()) else { return false };
        let until = facts.pause.map(|pause| pause.to).filter(|until| *until > now);
        self.set == facts.set
            && self.labels.iter().all(|(name, value)| facts.labels.get(name) == Some(value))
            && self.paused_until.is_none_or(|wanted| wanted == until)
            && self.note.as_ref().is_none_or(|note| *note == facts.note)
    }
}

/// Registers a unit with the settings that operators give it, or changes its settings.
pub fn configure(
    seen: &Snapshot,
    wanted: &UnitSettings,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Change {
    let facts = seen.facts.as_ref().filter(|_| seen.is_known());
    let stays = facts.and_then(|facts| facts.pause);
    let pause = match (wanted.paused_until, facts) {
        (None, _) => stays,
        (Some(until), Some(facts)) => paused(seen, facts, until, now).or(stays),
        (Some(until), None) => until.map(|to| Interval { from: now, to: to.max(now) }),
    };
    let UnitSettings { set, labels, note, .. } = wanted.clone();
    register(seen, &Registration { set, labels, pause, note }, rules, hearing, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Cause, Heartbeat, HeartbeatResult, Kind};
    use crate::presence::{Ledger, Silence, Unit, Verdict, check_deadline, deadline, hear};

    const HOUR: Duration = Duration::from_secs(3600);
    const NOON: Timestamp = Timestamp::from_millis(1_732_190_400_000);

    fn rules() -> KindRules {
        let kind: Kind = "detector".parse().unwrap();
        KindRules::new(kind)
    }

    fn hearing(heard: Timestamp) -> Hearing {
        Hearing { heard: Some(heard), ledger: Ledger::default(), ..Hearing::default() }
    }

    fn unit() -> Unit {
        "detector:a".parse().unwrap()
    }

    fn seen(facts: Facts) -> Snapshot {
        let alive = (facts.lifecycle == Lifecycle::Present).then_some(facts.last_seen);
        Snapshot { unit: unit(), alive, alive_at: None, facts: Some(facts), stored: None }
    }

    /// The unit after a change.
    fn after(change: Change) -> Snapshot {
        seen(change.facts.unwrap())
    }

    fn offline() -> Snapshot {
        let (deadline, allowed) = (NOON, 48 * HOUR);
        let silence = Silence { deadline, detected_at: deadline, cause: Cause::Silence, allowed };
        seen(Facts::new(Lifecycle::Offline(silence), NOON - 48 * HOUR))
    }

    fn ana() -> Acknowledgement {
        Acknowledgement { at: NOON, author: "ana".to_owned(), comment: "on my way".to_owned() }
    }

    #[test]
    fn an_acknowledgement_belongs_to_one_record_and_ends_with_it() {
        let id = offline().facts.unwrap().open_record(&unit()).unwrap().id;
        let other = RecordId { last_seen: NOON, ..id.clone() };
        assert_eq!(acknowledge(&offline(), Some(&other), Some(ana())), None);
        assert_eq!(acknowledge(&seen(Facts::new(Lifecycle::Present, NOON)), None, Some(ana())), None);
        let acknowledged = after(acknowledge(&offline(), Some(&id), Some(ana())).unwrap());
        let record = acknowledged.facts.as_ref().unwrap().open_record(&unit()).unwrap();
        assert!(record.is_acknowledged());
        let written = |seen: &Snapshot, by| acknowledge(seen, None, by).unwrap().record;
        assert_eq!(written(&offline(), Some(ana())).as_ref(), Some(&record), "receivers are told");
        assert_eq!(written(&acknowledged, None), None);
        let undone = after(acknowledge(&acknowledged, None, None).unwrap());
        assert_eq!(undone.facts, offline().facts);
        assert_eq!(acknowledge(&undone, None, None), None, "there is nothing to take back");

        let at = NOON + HOUR;
        let beat = Heartbeat::of(unit(), at);
        let (heard, change) = hear(&acknowledged, &beat, &rules(), &hearing(at), at);
        let change = change.unwrap();
        assert_eq!((heard, change.facts.unwrap().acknowledged), (HeartbeatResult::Back, None));
        let closed = change.record.unwrap();
        assert_eq!(closed.acknowledged, Some(ana()), "the closed record says it");
        assert!(!closed.is_acknowledged());
    }

    #[test]
    fn a_pause_moves_the_deadline_at_once_and_its_end_leaves_what_has_passed() {
        let (rules, heard) = (rules(), hearing(NOON));
        let present = seen(Facts::new(Lifecycle::Present, NOON - HOUR));
        let deadline_of = |seen: &Snapshot| deadline(seen, &rules, &heard).unwrap();
        let before = deadline_of(&present);
        let paused = after(pause(&present, Some(NOON + 100 * HOUR), &rules, &heard, NOON).unwrap());
        assert!(deadline_of(&paused) >= NOON + 100 * HOUR + 47 * HOUR, "{}", deadline_of(&paused));
        let later = NOON + 60 * HOUR;
        let verdict = check_deadline(&paused, &rules, &hearing(later), later);
        assert!(matches!(verdict, Verdict::Alive(_)), "{verdict:?}");
        // Ten hours have passed.
        let ended = after(pause(&paused, None, &rules, &heard, NOON + 10 * HOUR).unwrap());
        let moved = deadline_of(&ended).since(before);
        assert!(moved >= 10 * HOUR && moved < 11 * HOUR, "{moved:?}");
        assert_eq!(pause(&ended, None, &rules, &heard, NOON + 11 * HOUR), None, "it has ended");
        // A second pause in the same silence keeps the first one.
        let again = after(pause(&ended, Some(NOON + 20 * HOUR), &rules, &heard, NOON + 11 * HOUR).unwrap());
        assert_eq!(again.facts.unwrap().pause, Some(Interval { from: NOON, to: NOON + 20 * HOUR }));
    }

    #[test]
    fn a_pause_ends_at_a_moment_to_come_within_the_longest_timeout() {
        for (until, expected) in [
            (NOON, false),
            (NOON - HOUR, false),
            (NOON + HOUR, true),
            (NOON + MAX_PAUSE, true),
            (NOON + MAX_PAUSE + HOUR, false),
            (Timestamp::NEVER, false),
        ] {
            assert_eq!(is_pause(until, NOON), expected, "{until}");
        }
    }

    #[test]
    fn a_pause_changes_nothing_else_of_a_unit_and_opens_or_closes_no_record() {
        let (rules, heard) = (rules(), hearing(NOON));
        let change = pause(&offline(), Some(NOON + HOUR), &rules, &heard, NOON).unwrap();
        assert_eq!((change.record, change.index), (None, IndexChange::Keep));
        let facts = change.facts.unwrap();
        assert_eq!(Facts { pause: None, ..facts }, offline().facts.unwrap());
        let unknown = Snapshot { unit: unit(), alive: None, alive_at: None, facts: None, stored: None };
        assert_eq!(pause(&unknown, Some(NOON + HOUR), &rules, &heard, NOON), None);
        let retired = seen(Facts::new(Lifecycle::Retired(NOON), NOON));
        assert_eq!(pause(&retired, Some(NOON + HOUR), &rules, &heard, NOON), None);
    }

    #[test]
    fn a_unit_has_room_for_labels_of_operators_beside_its_own() {
        let labels = |from: usize, to: usize| -> Labels {
            (from..to).map(|n| (format!("a{n}"), "x".to_owned())).collect()
        };
        for (own, set, fits) in [
            (labels(0, 16), labels(16, 32), true),
            (labels(0, 17), labels(17, 33), false),
            (labels(0, 17), labels(16, 32), true),
            (labels(0, 33), labels(0, 0), true),
        ] {
            let unit = seen(Facts { labels: own.clone(), ..Facts::new(Lifecycle::Present, NOON) });
            let wanted = UnitSettings { labels: set, ..UnitSettings::default() };
            assert_eq!(wanted.fit(&unit), fits, "{}", own.len());
        }
    }
}
