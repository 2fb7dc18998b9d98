//! Records that receivers know of and the engine has lost.

use super::*;

/// The record of [`offline`], as receivers know it.
fn known() -> OfflineRecord {
    let seen = offline();
    seen.facts.unwrap().open_record(&seen.unit).unwrap()
}

#[test]
fn a_lost_record_is_written_again_with_the_same_facts() {
    let change = restore(&present(), &known(), &rules()).unwrap();
    assert_eq!((change.key, change.index), (KeyChange::Delete, IndexChange::Take));
    assert_eq!(change.record, Some(known()));
    assert_eq!(after(&present(), &change), offline());
    // The replica lacks the last heartbeats, too.
    let older = Snapshot {
        facts: Some(Facts { last_seen: BEGIN - HOUR, ..present().facts.unwrap() }),
        alive: None,
        ..present()
    };
    assert_eq!(restore(&older, &known(), &rules()).unwrap().record, Some(known()));
}

#[test]
fn a_lost_record_of_a_unit_that_was_heard_since_is_written_closed() {
    let now = BEGIN + 50 * HOUR;
    for (at, is_back) in [(BEGIN, false), (BEGIN + Duration::from_millis(999), false), (now, true)] {
        let heard = Snapshot { alive: Some(at), ..present() };
        let change = restore(&heard, &known(), &rules()).unwrap();
        let record = change.record.unwrap();
        assert_eq!(record.closed_by, is_back.then_some(Closing::Return), "{at}");
        assert_eq!((record.id, record.back_at), (known().id, is_back.then_some(now)));
        assert_eq!(change.facts == present().facts, is_back);
    }
}

#[test]
fn a_unit_that_is_unknown_removed_or_offline_by_another_record_gets_no_lost_one() {
    let gone = after(&present(), &retire(&present(), BEGIN + HOUR).unwrap());
    for seen in [unknown(), gone, offline()] {
        assert_eq!(restore(&seen, &known(), &rules()), None, "{seen:?}");
    }
}
