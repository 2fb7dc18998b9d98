//! The decision about a unit that gets another id, because its kind names its units by other parts of their topics.
//!
//! The new id takes over the facts of the unit; then the old id is retired. Both are steps of their own: repeated
//! after a crash between them, the decision finds the new id and retires the old one.
//!
//! # Why the new id is known from now on
//! The records of the unit stay under the old id. A new id that was known before would count each moment of that time
//! twice in availability, and as online.
//!
//! # Why an offline unit keeps its id
//! Receivers were notified of the old id, by its record. A record under the new id would notify them once more, and
//! its return would name a unit that no receiver knows. So the unit is renamed when it was heard under its new id:
//! that closes its record.

use super::next_check;
use crate::clock::Timestamp;
use crate::presence::{
    Change, Closing, Facts, Hearing, IndexChange, KeyChange, KindRules, Known, Lifecycle, Override, Snapshot,
};

/// The steps that renaming a unit takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renaming {
    /// There is no unit with the old id.
    Done,
    /// The unit is offline, and was not heard under its new id.
    Waits,
    /// `new` is applied first.
    Changes { new: Option<Box<Change>>, old: Box<Change> },
}

/// Decides how the unit `old` gets the id of `new`.
pub fn rename(
    old: &Snapshot,
    new: &Snapshot,
    rules: &KindRules,
    hearing: &Hearing,
    now: Timestamp,
) -> Renaming {
    let hearing = hearing.of_unit(old, rules);
    let Some(facts) = old.facts.as_ref().filter(|_| old.is_known()) else { return Renaming::Done };
    let known = new.facts.as_ref().filter(|_| new.is_known());
    let (index, record) = match &facts.lifecycle {
        Lifecycle::Offline(silence) => {
            let heard = new.last_heard().filter(|heard| known.is_some() && *heard > facts.last_of(silence));
            let Some(heard) = heard else { return Renaming::Waits };
            (IndexChange::Keep, Some(facts.closed(&old.unit, silence, heard, Closing::Return)))
        }
        _ => (IndexChange::Take, None),
    };
    let retired = facts.retired(now);
    let old_change = Change { key: KeyChange::Delete, index, facts: Some(retired), record };
    let new_change = match known {
        Some(known) => taken_over(known, facts),
        None => {
            // Its operator vouches for it as for a registered unit: the breaker counts it at once.
            let facts = Facts { known: Some(Known::registered(now)), ..facts.clone() };
            let ttl = facts.policy(rules).allowed();
            let newest = old.alive.map(|alive| alive.max(facts.last_seen));
            let broker = old.heard_at(rules);
            // Without a key, a check decides as it would have under the old id.
            let (facts, key, check) = match newest {
                Some(last_seen) => {
                    let heard = facts.heard(last_seen, broker);
                    let check = next_check(&heard, rules, hearing, now);
                    (heard, KeyChange::Set { last_seen, ttl }, check)
                }
                None => (facts, KeyChange::Delete, now),
            };
            Some(Change { key, index: IndexChange::CheckAt(check), facts: Some(facts), record: None })
        }
    };
    Renaming::Changes { new: new_change.map(Box::new), old: Box::new(old_change) }
}

/// Gives a new id that was heard already the settings that an operator made for the old id.
fn taken_over(known: &Facts, before: &Facts) -> Option<Change> {
    let set = if known.set == Override::default() { before.set } else { known.set };
    let note = if known.note.is_empty() { before.note.clone() } else { known.note.clone() };
    let pause = known.pause.or(before.pause);
    let facts = Facts { set, note, pause, ..known.clone() };
    let change = Change { key: KeyChange::Keep, index: IndexChange::Keep, facts: Some(facts), record: None };
    (change.facts.as_ref() != Some(known)).then_some(change)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::presence::{Cause, Declared, Heartbeat, Silence, State, Verdict, check_deadline, hear, state};

    const MINUTE: Duration = Duration::from_secs(60);
    const START: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    fn at(minutes: u32) -> Timestamp {
        START + minutes * MINUTE
    }

    fn rules() -> KindRules {
        let policy = crate::presence::Policy { timeout: 60 * MINUTE, grace: Duration::ZERO };
        KindRules { policy, ..KindRules::new("pump".parse().unwrap()) }
    }

    fn hearing() -> Hearing {
        Hearing { heard: Some(at(1000)), ..Hearing::default() }
    }

    fn snapshot(id: &str, facts: Option<Facts>, alive: Option<Timestamp>) -> Snapshot {
        Snapshot { unit: format!("pump:{id}").parse().unwrap(), alive, alive_at: None, facts, stored: None }
    }

    fn heard_at(id: &str, moment: Timestamp) -> Snapshot {
        let seen = snapshot(id, None, None);
        let declared = Declared { labels: [("site".into(), "north".into())].into(), ..Declared::default() };
        let beat = Heartbeat { declared, ..Heartbeat::of(seen.unit.clone(), moment) };
        let (_, change) = hear(&seen, &beat, &rules(), &hearing(), moment);
        after(&seen, &change.unwrap())
    }

    fn after(seen: &Snapshot, change: &Change) -> Snapshot {
        let alive = match change.key {
            KeyChange::Keep => seen.alive,
            KeyChange::Set { last_seen, .. } => Some(last_seen),
            KeyChange::Delete => None,
        };
        Snapshot { alive, alive_at: None, facts: change.facts.clone(), ..seen.clone() }
    }

    fn changes(old: &Snapshot, new: &Snapshot, now: Timestamp) -> (Option<Change>, Change) {
        match rename(old, new, &rules(), &hearing(), now) {
            Renaming::Changes { new, old } => (new.map(|new| *new), *old),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_unit_is_silent_under_its_new_id_since_it_was_heard_under_the_old_one() {
        let mut old = heard_at("1", at(0));
        old.alive = Some(at(10));
        let new = snapshot("north.1", None, None);
        let (taken, retired) = changes(&old, &new, at(30));
        let (renamed, gone) = (after(&new, &taken.unwrap()), after(&old, &retired));
        assert_eq!(state(&gone, &rules(), &hearing(), at(30)), None);
        assert_eq!(
            (renamed.last_heard(), &renamed.facts.as_ref().unwrap().labels["site"][..]),
            (Some(at(10)), "north")
        );
        let is_offline =
            |now| matches!(check_deadline(&renamed, &rules(), &hearing(), now), Verdict::Offline(_));
        assert!(!is_offline(at(70)) && is_offline(at(70) + Duration::from_millis(1)));
        // Once more, as after a crash between the steps, and after all of it.
        let (again, retired) = changes(&old, &renamed, at(31));
        assert_eq!((again, retired.record), (None, None));
        assert_eq!(rename(&gone, &renamed, &rules(), &hearing(), at(31)), Renaming::Done);
    }

    #[test]
    fn each_id_of_a_unit_is_known_for_its_own_time() {
        let mut old = heard_at("1", at(0));
        old.alive = Some(at(20));
        let known = |change: &Change| change.facts.as_ref().unwrap().known;
        for (name, new, since) in [
            ("an id that was not heard", snapshot("north.1", None, None), Known::registered(at(30))),
            ("an id that was heard", heard_at("north.1", at(20)), Known::admitted(at(20))),
        ] {
            let (taken, retired) = changes(&old, &new, at(30));
            let new = taken.map_or(new.clone(), |change| after(&new, &change));
            assert_eq!(new.facts.unwrap().known, Some(since), "{name}");
            assert_eq!(known(&retired), Some(Known::admitted(at(0))), "{name}");
            assert_eq!(retired.facts.unwrap().labels["site"], "north", "{name}");
        }
    }

    #[test]
    fn a_unit_without_a_key_is_decided_as_it_would_have_been() {
        let mut old = heard_at("1", at(0));
        old.alive = None;
        let new = snapshot("north.1", None, None);
        let (taken, _) = changes(&old, &new, at(90));
        let renamed = after(&new, &taken.unwrap());
        let decided = |seen: &Snapshot| match check_deadline(seen, &rules(), &hearing(), at(90)) {
            Verdict::Alive(change) | Verdict::Offline(change) => {
                (change.index, change.facts.map(|facts| Facts { known: None, ..facts }))
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(decided(&renamed), decided(&old));
    }

    #[test]
    fn what_an_operator_set_goes_along_also_to_an_id_that_was_heard() {
        let mut old = heard_at("1", at(0));
        let facts = old.facts.as_mut().unwrap();
        facts.set.timeout = Some(5 * MINUTE);
        facts.note = "by the gate".to_owned();
        let new = heard_at("north.1", at(20));
        let (taken, _) = changes(&old, &new, at(30));
        let renamed = after(&new, &taken.unwrap());
        let facts = renamed.facts.as_ref().unwrap();
        assert_eq!((facts.set.timeout, facts.note.as_str()), (Some(5 * MINUTE), "by the gate"));
        assert_eq!(renamed.last_heard(), Some(at(20)));
        assert_eq!(changes(&old, &renamed, at(31)).0, None);
    }

    #[test]
    fn an_offline_unit_waits_until_it_is_heard_under_its_new_id() {
        let mut old = heard_at("1", at(0));
        let silence =
            Silence { deadline: at(60), detected_at: at(60), cause: Cause::Silence, allowed: 60 * MINUTE };
        old.facts.as_mut().unwrap().lifecycle = Lifecycle::Offline(silence);
        old.alive = None;
        assert_eq!(state(&old, &rules(), &hearing(), at(90)), Some(State::Offline));
        let unheard = snapshot("north.1", None, None);
        assert_eq!(rename(&old, &unheard, &rules(), &hearing(), at(90)), Renaming::Waits);
        let (new, retired) = changes(&old, &heard_at("north.1", at(80)), at(90));
        let record = retired.record.unwrap();
        assert_eq!((record.back_at, record.closed_by), (Some(at(80)), Some(Closing::Return)));
        assert_eq!(new, None, "it is as it was heard");
    }
}
