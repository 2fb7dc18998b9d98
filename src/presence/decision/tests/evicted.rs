//! Expiry keys that the engine evicted.

use super::*;

/// A unit that was heard at the beginning and every hour; the last check found its key after 40 hours. Answers the unit
/// with its key and without it.
fn checked() -> [Snapshot; 2] {
    let checked = BEGIN + 40 * HOUR;
    let known = present().facts.unwrap();
    let facts = Facts { last_seen: checked - HOUR, checked_at: Some(checked), ..known };
    let seen = Snapshot { facts: Some(facts), ..present() };
    [seen.clone(), Snapshot { alive: None, ..seen }]
}

#[test]
fn a_unit_whose_key_may_have_been_evicted_counts_as_heard_up_to_then() {
    let [seen, gone] = checked();
    // (the snapshot, up to when keys may have been evicted, when it is checked, the deadline (h); `None`: it is
    // offline)
    let cases = [
        (&gone, None, 87, Some(87)),
        (&gone, None, 88, None),
        (&gone, Some(86), 88, Some(86 + 48)),
        (&gone, Some(86), 86 + 47, Some(86 + 48)),
        (&gone, Some(86), 86 + 49, None), // a living unit would have been heard since
        (&gone, Some(39), 88, None),      // the check after the eviction found its key
        (&gone, Some(99), 88, Some(88 + 48)), // no later than when the key was found absent
        (&seen, Some(86), 40, Some(39 + 48)), // its key is there
    ];
    for (seen, evicted, now, deadline) in cases {
        let at = |hours: u32| BEGIN + hours * HOUR;
        let now = at(now);
        let hearing = Hearing { evicted: evicted.map(at), ..heard_until(now) };
        match (check_deadline(seen, &rules(), &hearing, now), deadline) {
            (Verdict::Offline(_), None) => {}
            (Verdict::Alive(change), Some(hours)) => {
                let after = after(seen, &change);
                assert_eq!(deadline_of(&after, &hearing), at(hours), "{evicted:?} {now}");
            }
            (other, _) => panic!("{evicted:?} {now}: {other:?}"),
        }
    }
}

fn deadline_of(seen: &Snapshot, hearing: &Hearing) -> Timestamp {
    deadline(seen, &rules(), hearing).unwrap()
}
