//! Units whose facts are lost.

use super::*;

#[test]
fn an_index_entry_of_an_unknown_unit_is_removed_with_its_key() {
    let Verdict::Gone(change) = check_deadline(&unknown(), &rules(), &heard_until(BEGIN), BEGIN) else {
        panic!()
    };
    assert_eq!((change.index, change.facts, change.record), (IndexChange::Take, None, None));
    assert_eq!(change.key, KeyChange::Delete);
}

/// After its facts were lost, its heartbeats only refreshed its key.
#[test]
fn a_unit_whose_facts_are_lost_is_known_again_by_its_expiry_key_and_its_next_silence_is_found() {
    let heard = BEGIN + HOUR;
    let lost = Snapshot { alive: Some(heard), ..unknown() };
    let now = BEGIN + 48 * HOUR;
    let hearing = heard_until(now + 2 * HOUR);
    let Verdict::Alive(change) = check_deadline(&lost, &rules(), &hearing, now) else { panic!() };
    let (known, change) = (after(&lost, &change), change);
    assert_eq!(
        known.facts.as_ref().map(|facts| (&facts.lifecycle, facts.last_seen)),
        Some((&Lifecycle::Present, heard))
    );
    assert!(matches!(change.key, KeyChange::Set { last_seen, .. } if last_seen == heard), "{change:?}");
    let gone = Snapshot { alive: None, ..known };
    let Verdict::Offline(change) = check_deadline(&gone, &rules(), &hearing, now + 2 * HOUR) else {
        panic!()
    };
    assert_eq!(change.record.map(|record| record.last_seen), Some(heard));
    // A closed registry does not admit it: its heartbeats are counted as heartbeats of an id that is not registered.
    let closed = KindRules { registry: Registry::Closed, ..rules() };
    let Verdict::Gone(change) = check_deadline(&lost, &closed, &hearing, now) else { panic!() };
    assert_eq!((change.key, change.facts), (KeyChange::Delete, None));
}
