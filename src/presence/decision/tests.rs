mod evicted;
mod lost_facts;

use super::*;
use crate::clock::Skip;
use crate::presence::{Declared, IndexChange, Known, Labels, Ledger, Policy, State, TimeoutRule, Unit};

const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);
const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn unit() -> Unit {
    "detector:a".parse().unwrap()
}

fn rules() -> KindRules {
    KindRules::new("detector".parse().unwrap())
}

fn heard_until(moment: Timestamp) -> Hearing {
    Hearing { heard: Some(moment), settle: Duration::from_secs(300), ..Hearing::default() }
}

fn beat(at: Timestamp) -> Heartbeat {
    Heartbeat::of(unit(), at)
}

/// The unit after a change, with its key as the change left it.
fn after(before: &Snapshot, change: &Change) -> Snapshot {
    let alive = match change.key {
        KeyChange::Keep => before.alive,
        KeyChange::Delete => None,
        KeyChange::Set { last_seen, .. } => Some(last_seen),
    };
    Snapshot { alive, alive_at: None, facts: change.facts.clone(), ..before.clone() }
}

fn unknown() -> Snapshot {
    Snapshot { unit: unit(), alive: None, alive_at: None, facts: None, stored: None }
}

/// A unit that was first heard at the beginning.
fn present() -> Snapshot {
    let (heard, change) = hear(&unknown(), &beat(BEGIN), &rules(), &heard_until(BEGIN), BEGIN);
    assert_eq!(heard, HeartbeatResult::New);
    after(&unknown(), &change.unwrap())
}

/// The unit of [`present`] with an open record that was written an hour after its deadline.
fn offline() -> Snapshot {
    offline_at(BEGIN + 49 * HOUR)
}

/// The unit of [`present`] with an open record that was written at `now`.
fn offline_at(now: Timestamp) -> Snapshot {
    match check_deadline(&present(), &rules(), &heard_until(now), now) {
        Verdict::Offline(change) => after(&present(), &change),
        other => panic!("{other:?}"),
    }
}

fn check_at(change: &Change) -> Timestamp {
    let IndexChange::CheckAt(at) = change.index else { panic!("{change:?}") };
    at
}

#[test]
fn a_deadline_passes_one_millisecond_after_itself() {
    let deadline = BEGIN + 48 * HOUR;
    for (now, is_offline) in [(deadline - MS, false), (deadline, false), (deadline + MS, true)] {
        let verdict = check_deadline(&present(), &rules(), &heard_until(now), now);
        assert_eq!(matches!(verdict, Verdict::Offline(_)), is_offline, "{now}");
    }
}

#[test]
fn hearing_may_lag_behind_a_deadline_by_the_slack_and_not_more() {
    let deadline = BEGIN + 48 * HOUR;
    let slack = Duration::from_secs(10);
    for (heard, is_decided) in [(deadline - slack, true), (deadline - slack - MS, false)] {
        let verdict = check_deadline(&present(), &rules(), &heard_until(heard), deadline + HOUR);
        assert_eq!(matches!(verdict, Verdict::Offline(_)), is_decided, "{heard}");
        assert_eq!(verdict == Verdict::Undecided, !is_decided, "{heard}");
    }
    for (heard, is_decided) in [(deadline, true), (deadline - MS, false)] {
        let hearing = heard_until(heard).cut_off(&[None]);
        let verdict = check_deadline(&present(), &rules(), &hearing, deadline + HOUR);
        assert_eq!(verdict == Verdict::Undecided, !is_decided, "{heard}, and the connection is lost");
    }
    let never_heard = Hearing::default();
    assert_eq!(check_deadline(&present(), &rules(), &never_heard, deadline + HOUR), Verdict::Undecided);
}

#[test]
fn with_grace_a_unit_is_late_first() {
    let mut rules = rules();
    rules.policy.grace = HOUR;
    let hearing = heard_until(BEGIN + 100 * HOUR);
    let (_, change) = hear(&unknown(), &beat(BEGIN), &rules, &hearing, BEGIN);
    let change = change.unwrap();
    assert_eq!(check_at(&change), BEGIN + 48 * HOUR);
    let seen = after(&unknown(), &change);
    let cases = [
        (48 * HOUR, State::Online),
        (48 * HOUR + MS, State::Late),
        (49 * HOUR, State::Late),
        (49 * HOUR + MS, State::Unknown),
    ];
    for (after, expected) in cases {
        assert_eq!(state(&seen, &rules, &hearing, BEGIN + after), Some(expected), "{after:?}");
    }
    let Verdict::Alive(next) = check_deadline(&seen, &rules, &hearing, BEGIN + 48 * HOUR) else { panic!() };
    assert_eq!(check_at(&next), BEGIN + 49 * HOUR);
}

#[test]
fn a_check_reads_the_key_and_the_next_check_is_never_later_than_its_expiry() {
    let mut seen = present();
    seen.alive = Some(BEGIN + 40 * HOUR);
    let now = BEGIN + 48 * HOUR + MS;
    let Verdict::Alive(change) = check_deadline(&seen, &rules(), &heard_until(now), now) else { panic!() };
    assert_eq!(check_at(&change), BEGIN + 88 * HOUR);
    // A unit that may be silent for a year is checked every 48 hours as long as its key exists.
    let set = Override { timeout: Some(365 * 24 * HOUR), grace: None };
    let wanted = Registration { set, ..Registration::default() };
    let change = register(&seen, &wanted, &rules(), &heard_until(now), now);
    assert_eq!(check_at(&change), now + 48 * HOUR);
    let KeyChange::Set { ttl, .. } = change.key else { panic!() };
    assert_eq!(ttl, 365 * 24 * HOUR);
    // When the key is gone there is nothing more to read before the deadline.
    let gone = Snapshot { alive: None, ..after(&seen, &change) };
    let later = now + 48 * HOUR;
    let Verdict::Alive(change) = check_deadline(&gone, &rules(), &heard_until(later), later) else {
        panic!()
    };
    assert_eq!(check_at(&change), BEGIN + (40 + 365 * 24) * HOUR);
}

#[test]
fn a_check_that_is_a_little_late_presumes_nothing() {
    // Between the last check and this one a heartbeat could have come and its key could have expired. The deadline
    // has passed either way, and the record names the heartbeat that is known.
    let gone = Snapshot { alive: None, ..present() };
    let now = BEGIN + 48 * HOUR + Duration::from_secs(60);
    let Verdict::Offline(change) = check_deadline(&gone, &rules(), &heard_until(now), now) else { panic!() };
    assert_eq!(change.record.unwrap().last_seen, BEGIN);
}

#[test]
fn a_heartbeat_that_may_have_come_unseen_needs_hearing_after_it() {
    // The engine went away an hour after the deadline of the only heartbeat that is known, and is
    // back two days later: the ledger does not show it yet, and every key is gone.
    let gone = Snapshot { alive: None, ..present() };
    let heard = BEGIN + 49 * HOUR;
    let verdict = check_deadline(&gone, &rules(), &heard_until(heard), heard + 48 * HOUR);
    assert_eq!(verdict, Verdict::Undecided);
    // The check waits for two timeouts at most, so that hearing which is always a little late is enough.
    let heard = BEGIN + 96 * HOUR;
    let verdict = check_deadline(&gone, &rules(), &heard_until(heard), heard);
    assert!(matches!(verdict, Verdict::Offline(_)), "{verdict:?}");
}

#[test]
fn a_heartbeat_may_have_come_after_the_deadline_where_no_check_ran_and_little_was_recorded() {
    // The first check for four and a half days. Hearing of the last twelve hours is not recorded yet: the unit may
    // have been alive until half a day after its deadline, and since.
    let gone = Snapshot { alive: None, ..present() };
    let (heard, now) = (BEGIN + 96 * HOUR, BEGIN + 108 * HOUR);
    let Verdict::Alive(change) = check_deadline(&gone, &rules(), &heard_until(heard), now) else { panic!() };
    let facts = change.facts.clone().unwrap();
    assert_eq!((facts.last_seen, facts.silent_from), (BEGIN, Some(BEGIN + 60 * HOUR)));
    assert_eq!(facts.checked_at, None);
    assert_eq!(check_at(&change), now);
    // The moment is presumed once: however late the next check is, hearing up to there is enough.
    let again = after(&gone, &change);
    for (heard, is_decided) in [(now - HOUR, false), (now, true)] {
        let verdict = check_deadline(&again, &rules(), &heard_until(heard), now + 100 * HOUR);
        assert_eq!(matches!(verdict, Verdict::Offline(_)), is_decided, "{verdict:?}");
    }
    // When the whole time is recorded, there is nothing to presume.
    let verdict = check_deadline(&gone, &rules(), &heard_until(now), now);
    let Verdict::Offline(change) = verdict else { panic!("{verdict:?}") };
    assert_eq!(change.record.unwrap().last_seen, BEGIN);
}

#[test]
fn a_delayed_heartbeat_closes_only_a_record_that_was_open_when_it_was_sent_at_the_earliest() {
    let now = BEGIN + 49 * HOUR;
    // The record was opened an hour late, so a heartbeat of the first hour may have come and expired unseen.
    for (not_before, expected) in [
        (BEGIN, HeartbeatResult::Stale),
        (BEGIN + HOUR, HeartbeatResult::Stale),
        (BEGIN + HOUR + MS, HeartbeatResult::Back),
    ] {
        let late = Heartbeat { not_before: Some(not_before), ..beat(BEGIN + 2 * HOUR) };
        assert_eq!(hear(&offline(), &late, &rules(), &heard_until(now), now).0, expected);
    }
}

#[test]
fn the_last_heartbeat_of_a_unit_recorded_a_little_later_by_another_instance_is_the_same_one() {
    // At `now` the deadline of each of the heartbeats below has not passed yet.
    let (now, offline) = (BEGIN + 48 * HOUR, offline_at(BEGIN + 48 * HOUR + MS));
    let second = Duration::from_secs(1);
    for (at, expected) in [
        (BEGIN + MS, HeartbeatResult::Stale),
        (BEGIN + second, HeartbeatResult::Stale),
        (BEGIN + second + MS, HeartbeatResult::Back),
    ] {
        assert_eq!(hear(&offline, &beat(at), &rules(), &heard_until(now), now).0, expected, "{at}");
    }
}

#[test]
fn a_heartbeat_that_expired_unseen_closes_no_record_when_a_late_instance_records_it_again() {
    // One instance has heard and checked everything. The other instance still has a ledger in which all of this time is
    // blind.
    let (now, mut late) = (BEGIN + 60 * HOUR, heard_until(BEGIN));
    late.ledger = Ledger::new([Interval { from: BEGIN, to: Timestamp::NEVER }]);
    let offline = offline_at(BEGIN + 59 * HOUR);
    for (at, expected) in
        [(10, HeartbeatResult::Stale), (11, HeartbeatResult::Stale), (12, HeartbeatResult::Back)]
    {
        assert_eq!(hear(&offline, &beat(BEGIN + at * HOUR), &rules(), &late, now).0, expected, "{at} h");
    }
}

#[test]
fn a_presumed_heartbeat_is_kept_and_does_not_move_again() {
    let gone = Snapshot { alive: None, ..present() };
    let blind = Interval { from: BEGIN + 40 * HOUR, to: BEGIN + 100 * HOUR };
    let mut hearing = heard_until(BEGIN + 500 * HOUR);
    hearing.ledger = Ledger::new([blind]);
    let Verdict::Alive(change) = check_deadline(&gone, &rules(), &hearing, BEGIN + 109 * HOUR) else {
        panic!()
    };
    let facts = change.facts.clone().unwrap();
    assert_eq!((facts.last_seen, facts.silent_from, facts.checked_at), (BEGIN, Some(blind.from), None));
    assert_eq!(check_at(&change), BEGIN + 148 * HOUR);
    let again = after(&gone, &change);
    assert_eq!(deadline(&again, &rules(), &hearing), Some(BEGIN + 148 * HOUR));
    assert_eq!(state(&again, &rules(), &hearing, BEGIN + 148 * HOUR), Some(State::Online));
    let now = BEGIN + 148 * HOUR + MS;
    assert_eq!(state(&again, &rules(), &hearing, now), Some(State::Unknown));
    let Verdict::Offline(change) = check_deadline(&again, &rules(), &hearing, now) else { panic!() };
    // The record and its id name the known heartbeat; the presumed moment is a field of its own.
    let record = change.record.clone().unwrap();
    assert_eq!((record.last_seen, record.silent_from), (BEGIN, Some(blind.from)));
    assert_eq!(record.id.to_string(), format!("detector:a:{}", BEGIN.as_millis()));
    assert_eq!(record.deadline, BEGIN + 148 * HOUR);
    // A late heartbeat from before the presumed moment is stale.
    let offline = after(&again, &change);
    let old = beat(blind.from);
    assert_eq!(hear(&offline, &old, &rules(), &hearing, BEGIN + 88 * HOUR), (HeartbeatResult::Stale, None));
    let (_, change) = hear(&offline, &beat(now), &rules(), &hearing, now);
    let change = change.unwrap();
    assert_eq!(change.facts.unwrap().silent_from, None);
    let closed = change.record.unwrap();
    assert_eq!((closed.id, closed.silent_from), (record.id, record.silent_from));
}

#[test]
fn a_presumed_moment_holds_until_a_newer_heartbeat() {
    let gone = Snapshot { alive: None, ..present() };
    let presumed = BEGIN + 40 * HOUR;
    let mut hearing = heard_until(BEGIN + 500 * HOUR);
    hearing.ledger = Ledger::new([Interval { from: presumed, to: BEGIN + 100 * HOUR }]);
    let now = BEGIN + 109 * HOUR;
    let Verdict::Alive(change) = check_deadline(&gone, &rules(), &hearing, now) else { panic!() };
    let again = after(&gone, &change);
    for (at, silent_from) in [(BEGIN + HOUR, Some(presumed)), (presumed, None), (now, None)] {
        let (heard, change) = hear(&again, &beat(at), &rules(), &hearing, now);
        let facts = change.unwrap().facts.unwrap();
        assert_eq!(
            (heard, facts.last_seen, facts.silent_from),
            (HeartbeatResult::Refreshed, at, silent_from)
        );
        let lifecycle = Snapshot { alive: Some(at), facts: Some(facts), ..again.clone() };
        let expected = (presumed + 108 * HOUR).max(at + 48 * HOUR);
        assert_eq!(deadline(&lifecycle, &rules(), &hearing), Some(expected), "{at}");
        let Verdict::Alive(change) = check_deadline(&lifecycle, &rules(), &hearing, now + HOUR) else {
            panic!()
        };
        let facts = change.facts.unwrap();
        assert_eq!((facts.last_seen, facts.silent_from), (at, silent_from));
    }
}

#[test]
fn a_presumed_moment_does_not_end_an_announced_sleep() {
    let sleeps = Declared { sleep: Some(200 * HOUR), ..Declared::default() };
    let announcing = Heartbeat { declared: sleeps, ..beat(BEGIN) };
    let (_, change) = hear(&unknown(), &announcing, &rules(), &heard_until(BEGIN), BEGIN);
    let gone = Snapshot { alive: None, ..after(&unknown(), &change.unwrap()) };
    let mut hearing = heard_until(BEGIN + 500 * HOUR);
    hearing.ledger = Ledger::new([Interval { from: BEGIN + 40 * HOUR, to: BEGIN + 100 * HOUR }]);
    let verdict = check_deadline(&gone, &rules(), &hearing, BEGIN + 150 * HOUR);
    assert!(matches!(verdict, Verdict::Alive(_)), "{verdict:?}");
}

#[test]
fn a_unit_that_sleeps_while_the_clock_skips_an_hour_sleeps_as_long_as_it_said() {
    let minute = |minutes: u32| BEGIN + 60 * minutes * Duration::from_secs(1);
    let mut rules = rules();
    rules.policy = Policy { timeout: Duration::from_secs(60), grace: Duration::ZERO };
    let sleeps = Declared { sleep: Some(Duration::from_secs(600)), ..Declared::default() };
    let announcing = Heartbeat { declared: sleeps, ..beat(BEGIN) };
    let (_, change) = hear(&unknown(), &announcing, &rules, &heard_until(BEGIN), BEGIN);
    let asleep = after(&unknown(), &change.unwrap());
    // Of ten minutes, five pass before the clock skips an hour, and five after it.
    let skip = Skip { from: minute(5), to: minute(65) };
    let ledger = Ledger::new([Interval { from: skip.from, to: skip.to + Duration::from_secs(1) }]);
    for (minutes, expected) in
        [(66, State::Paused), (69, State::Paused), (71, State::Online), (75, State::Unknown)]
    {
        let now = minute(minutes);
        let hearing = Hearing { ledger: ledger.clone(), skipped: Some(skip), ..heard_until(now) };
        assert_eq!(state(&asleep, &rules, &hearing, now), Some(expected), "{minutes}");
        let is_offline = matches!(check_deadline(&asleep, &rules, &hearing, now), Verdict::Offline(_));
        assert_eq!(is_offline, expected == State::Unknown, "{minutes}");
    }
}

#[test]
fn a_heartbeat_that_is_itself_too_old_does_not_bring_a_unit_back() {
    let now = BEGIN + 60 * HOUR;
    let cases = [
        (BEGIN, HeartbeatResult::Stale),             // the last heartbeat again
        (BEGIN + 11 * HOUR, HeartbeatResult::Stale), // newer, but silent for 49 hours since
        (BEGIN + 12 * HOUR, HeartbeatResult::Back),  // its deadline is now
        (now, HeartbeatResult::Back),
    ];
    for (at, expected) in cases {
        let (heard, change) = hear(&offline(), &beat(at), &rules(), &heard_until(now), now);
        assert_eq!((heard, change.is_some()), (expected, expected == HeartbeatResult::Back), "{at}");
    }
}

#[test]
fn a_return_closes_the_record_that_was_opened() {
    let now = BEGIN + 60 * HOUR;
    let (_, change) = hear(&offline(), &beat(now), &rules(), &heard_until(now), now);
    let record = change.unwrap().record.unwrap();
    assert_eq!(record.id.to_string(), format!("detector:a:{}", BEGIN.as_millis()));
    assert_eq!((record.deadline, record.detected_at), (BEGIN + 48 * HOUR, BEGIN + 49 * HOUR));
    assert_eq!((record.back_at, record.closed_by), (Some(now), Some(Closing::Return)));
}

#[test]
fn a_closed_kind_admits_only_registered_units() {
    let rules = KindRules { registry: Registry::Closed, ..rules() };
    let hearing = heard_until(BEGIN);
    assert_eq!(
        hear(&unknown(), &beat(BEGIN), &rules, &hearing, BEGIN),
        (HeartbeatResult::Unregistered, None)
    );
    let change = register(&unknown(), &Registration::default(), &rules, &hearing, BEGIN);
    let known = after(&unknown(), &change);
    assert_eq!(state(&known, &rules, &hearing, BEGIN), Some(State::NeverSeen));
    assert_eq!(hear(&known, &beat(BEGIN), &rules, &hearing, BEGIN).0, HeartbeatResult::New);
}

#[test]
fn a_unit_that_was_never_heard_has_a_timeout_of_its_own() {
    let first = Duration::from_secs(600);
    let rules = KindRules { first_timeout: Some(first), ..rules() };
    let set = Registration { set: Override { timeout: Some(HOUR), grace: None }, ..Registration::default() };
    let hearing = heard_until(BEGIN + first + MS);
    let registered = after(&unknown(), &register(&unknown(), &set, &rules, &hearing, BEGIN));
    assert_eq!(deadline(&registered, &rules, &hearing), Some(BEGIN + first));
    let Verdict::Offline(change) = check_deadline(&registered, &rules, &hearing, BEGIN + first + MS) else {
        panic!("it is overdue");
    };
    let silent = after(&registered, &change);
    let rule = |seen: &Snapshot| seen.facts.as_ref().unwrap().timeout_rule(&rules);
    assert_eq!((rule(&registered), rule(&silent)), (TimeoutRule::FirstTimeout, TimeoutRule::FirstTimeout));
    let at = BEGIN + first + 2 * MS;
    let back = after(&silent, &hear(&silent, &beat(at), &rules, &heard_until(at), at).1.unwrap());
    assert_eq!(rule(&back), TimeoutRule::Operator);
    assert_eq!(deadline(&back, &rules, &heard_until(at)), Some(at + HOUR));
}

#[test]
fn a_removed_unit_stays_out_until_it_is_forgotten() {
    let removed = after(&present(), &retire(&present(), BEGIN).unwrap());
    let forget_after = rules().forget_after;
    let hearing = heard_until(BEGIN);
    for (later, expected) in
        [(forget_after - MS, HeartbeatResult::Retired), (forget_after, HeartbeatResult::New)]
    {
        let now = BEGIN + later;
        assert_eq!(hear(&removed, &beat(now), &rules(), &hearing, now).0, expected, "{later:?}");
    }
    assert_eq!(state(&removed, &rules(), &hearing, BEGIN), None);
    let verdict = check_deadline(&removed, &rules(), &hearing, BEGIN + 100 * HOUR);
    assert!(matches!(verdict, Verdict::Gone(change) if change.facts == removed.facts));
}

#[test]
fn a_removed_unit_that_was_heard_keeps_since_when_it_was_known_and_its_labels() {
    let known = Some(Known::admitted(BEGIN));
    let never_seen = Snapshot { facts: Some(Facts::registered(BEGIN)), ..unknown() };
    let labels: Labels = [("site".to_owned(), "north".to_owned())].into();
    for (seen, kept) in [(present(), known), (offline(), known), (never_seen, None)] {
        let facts = Facts { known, labels: labels.clone(), ..seen.facts.clone().unwrap() };
        let change = retire(&Snapshot { facts: Some(facts), ..seen }, BEGIN + HOUR).unwrap();
        let gone = change.facts.unwrap();
        assert_eq!((gone.known, &gone.labels), (kept, &labels), "{:?}", gone.lifecycle);
    }
}

#[test]
fn a_unit_whose_kind_is_gone_is_not_watched_and_starts_anew_if_it_comes_back() {
    let (gone, later) = (BEGIN + 60 * HOUR, BEGIN + 100 * HOUR);
    assert_eq!(unwatch(&present(), later, gone), None);
    let change = unwatch(&offline(), later, gone).unwrap();
    let record = change.record.clone().unwrap();
    assert_eq!((record.back_at, record.closed_by), (Some(gone), Some(Closing::KindRemoved)));
    let restarted = after(&offline(), &change);
    assert_eq!(unwatch(&restarted, later, later), None, "once");
    // The kind was not heard meanwhile, so the unit has its whole timeout from the moment at which the kind is back.
    let ledger = Ledger::new([Interval { from: BEGIN + 50 * HOUR, to: later }]);
    let hearing = |heard| Hearing { ledger: ledger.clone(), settle: Duration::ZERO, ..heard_until(heard) };
    assert_eq!(state(&restarted, &rules(), &hearing(later), later), Some(State::NeverSeen));
    assert_eq!(hear(&restarted, &beat(later), &rules(), &hearing(later), later).0, HeartbeatResult::New);
    let due = later + 48 * HOUR;
    assert!(matches!(check_deadline(&restarted, &rules(), &hearing(due), due), Verdict::Alive(_)));
    let Verdict::Offline(change) = check_deadline(&restarted, &rules(), &hearing(due + MS), due + MS) else {
        panic!()
    };
    let again = change.record.unwrap();
    assert_eq!((again.cause, again.deadline), (Cause::NeverSeen, due));
    assert_ne!(again.id, record.id);
}

/// Units send three heartbeats within their timeout, and a session is repeatedly taken over, each time for a tenth of
/// their period: heartbeats of that time are lost.
#[test]
fn a_living_unit_is_not_offline_however_often_a_session_is_taken_over() {
    let (timeout, every, length) = (12_000, 4000, 400);
    let span = |ms: i64| Duration::from_millis(ms as u64);
    let stays_online = |phase: i64, takeovers: &[i64]| {
        let interval = |from: i64| Interval { from: BEGIN + span(from), to: BEGIN + span(from + length) };
        let intervals: Vec<Interval> = takeovers.iter().map(|from| interval(*from)).collect();
        let ledger = Ledger::new(intervals.iter().copied()).with_taken(intervals.iter().map(|one| one.to));
        let beats = (0..30).map(|number| BEGIN + span(phase + number * every));
        let heard: Vec<Timestamp> =
            beats.filter(|beat| !intervals.iter().any(|one| one.contains(*beat))).collect();
        heard.windows(2).all(|pair| ledger.deadline(pair[0], span(timeout), span(timeout)) >= pair[1])
    };
    for pause in [500, 1700, 3900, 4100, 5700, 12_300] {
        let takeovers: Vec<i64> = (0..10).map(|number| 20_000 + number * pause).collect();
        for phase in (0..every).step_by(50) {
            assert!(stays_online(phase, &takeovers), "every {pause} ms, a unit that sends at {phase} ms");
        }
    }
    // A client that takes the session over at each heartbeat of one unit: the owed hearing is bounded, or a client that
    // takes a session over now and then would prevent the detection of every dead unit.
    let aimed = |count: i64| (1..=count).map(|number| number * every - 100).collect::<Vec<i64>>();
    assert!(stays_online(0, &aimed(5)));
    assert!(!stays_online(0, &aimed(6)));
}

#[test]
fn a_pause_is_a_blind_interval_of_one_unit() {
    let now = BEGIN + HOUR;
    let pause = Interval { from: now, to: now + 100 * HOUR };
    let wanted = Registration { pause: Some(pause), ..Registration::default() };
    let hearing = heard_until(BEGIN + 1000 * HOUR);
    let paused = after(&present(), &register(&present(), &wanted, &rules(), &hearing, now));
    let expected = [
        (now, Some(State::Paused)),
        (pause.to, Some(State::Online)),
        (BEGIN + 148 * HOUR + MS, Some(State::Unknown)),
    ];
    for (moment, state_then) in expected {
        assert_eq!(state(&paused, &rules(), &hearing, moment), state_then, "{moment}");
    }
    assert_eq!(deadline(&paused, &rules(), &hearing), Some(BEGIN + 148 * HOUR));
}

#[test]
fn a_shorter_timeout_does_not_close_a_record_and_a_longer_one_does() {
    let now = BEGIN + 50 * HOUR;
    let hearing = heard_until(now);
    for (hours, closes) in [(1, false), (48, false), (49, false), (50, true), (51, true)] {
        let mut rules = rules();
        rules.policy.timeout = hours * HOUR;
        let verdict = check_deadline(&offline(), &rules, &hearing, now);
        assert_eq!(matches!(verdict, Verdict::Back(_)), closes, "{hours} h");
    }
}

#[test]
fn a_registered_unit_is_known_from_its_first_heartbeat_on() {
    let (first, later) = (BEGIN + HOUR, BEGIN + 3 * HOUR);
    let nothing = Snapshot { unit: unit(), alive: None, alive_at: None, facts: None, stored: None };
    let hearing = heard_until(later);
    let registered = register(&nothing, &Registration::default(), &rules(), &hearing, BEGIN);
    let registered = after(&nothing, &registered);
    let offline =
        Silence { deadline: BEGIN + HOUR, detected_at: BEGIN + HOUR, cause: Cause::NeverSeen, allowed: HOUR };
    let facts = registered.facts.clone().unwrap();
    let offline = Snapshot {
        facts: Some(Facts { lifecycle: Lifecycle::Offline(offline), ..facts.clone() }),
        ..registered.clone()
    };
    let long_ago = Snapshot { facts: Some(Facts { known: None, ..facts }), ..registered.clone() };
    for (name, seen) in [("in time", &registered), ("late", &offline), ("long ago", &long_ago)] {
        let (_, change) = hear(seen, &beat(first), &rules(), &hearing, first);
        let heard = after(seen, &change.unwrap());
        assert_eq!(heard.facts.as_ref().unwrap().known, Some(Known::registered(first)), "{name}");
        let (_, change) = hear(&heard, &beat(later), &rules(), &hearing, later);
        let again = change.map_or(heard.clone(), |change| after(&heard, &change));
        assert_eq!(again.facts.unwrap().known, Some(Known::registered(first)), "{name}");
    }
}

/// Labels from their names, each with its name as the value.
fn named(names: &[&str]) -> Labels {
    names.iter().map(|name| ((*name).to_owned(), (*name).to_owned())).collect()
}

fn both<'a>(one: &[&'a str], other: &[&'a str]) -> Vec<&'a str> {
    [one, other].concat()
}

#[test]
fn no_label_makes_room_for_another_one_and_those_of_topics_are_always_taken() {
    let sixteen: Vec<String> = (0..16).map(|n| format!("a{n:02}")).collect();
    let sixteen: Vec<&str> = sixteen.iter().map(String::as_str).collect();
    // The labels of the unit, of the payload and of the topic, and those after the heartbeat.
    for (has, payload, topic, expected) in [
        (vec![], sixteen.clone(), vec!["site"], both(&["site"], &sixteen[..15])),
        (
            vec!["parent", "team"],
            sixteen.clone(),
            vec!["site"],
            both(&["parent", "site", "team"], &sixteen[..13]),
        ),
        (sixteen.clone(), vec!["b", "a03"], vec!["site"], both(&["site"], &sixteen[..16])),
        (vec!["site"], vec!["site", "row"], vec!["site"], vec!["row", "site"]),
    ] {
        let mut seen = present();
        seen.facts.as_mut().unwrap().labels = named(&has);
        let mut declared =
            Declared { labels: named(&payload), topic_labels: named(&topic), ..Declared::default() };
        if let Some(site) = declared.labels.get_mut("site") {
            "elsewhere".clone_into(site);
        }
        let one = Heartbeat { declared, ..beat(BEGIN + HOUR) };
        let change = hear(&seen, &one, &rules(), &heard_until(BEGIN), BEGIN + HOUR).1.unwrap();
        let facts = change.facts.as_ref().unwrap();
        assert_eq!(facts.labels, named(&expected), "{has:?} {payload:?}");
        assert!(is_declared(facts, &one), "what is left out is not new the next time");
        let again = hear(&after(&seen, &change), &one, &rules(), &heard_until(BEGIN), BEGIN + HOUR);
        assert_eq!(again, (HeartbeatResult::Refreshed, None));
    }
}

#[test]
fn a_declaration_counts_that_a_heartbeat_without_one_has_overtaken() {
    // When it was sent, the newest heartbeat, when the unit was last decided upon, and whether it counts.
    let second = 1000 * MS;
    for (sent, newest, decided, counts) in [
        (HOUR, HOUR + MS, Duration::ZERO, true),
        (HOUR, HOUR + second, Duration::ZERO, true),
        (HOUR, HOUR + second + MS, Duration::ZERO, false),
        (HOUR, HOUR + MS, HOUR, false),
        (HOUR, HOUR + MS, HOUR + MS, false),
    ] {
        let mut seen = present();
        seen.alive = Some(BEGIN + newest);
        seen.facts.as_mut().unwrap().last_seen = BEGIN + decided;
        let declared = Declared { timeout: Some(2 * HOUR), sleep: Some(HOUR), ..Declared::default() };
        let one = Heartbeat { declared, ..beat(BEGIN + sent) };
        let (heard, change) = hear(&seen, &one, &rules(), &heard_until(BEGIN), BEGIN + newest);
        let facts = change.unwrap().facts.unwrap();
        assert_eq!((heard, facts.last_seen), (HeartbeatResult::Refreshed, BEGIN + newest));
        assert_eq!((facts.declared_timeout.is_some(), facts.sleep), (counts, None), "{newest:?} {decided:?}");
    }
}
