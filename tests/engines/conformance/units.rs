//! Promises about units: heartbeats, silences, returns, blindness, removal.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::Mirror;
use rollcall::fleet::Rules;
use rollcall::presence::{
    self, Announced, Announcement, Cause, Change, Closing, Declared, Hearing, Heartbeat, Interval, Kind,
    KindRules, Labels, Lifecycle, OfflineRecord, Override, Registration, Snapshot, TimeSource, Transition,
    Unit, Verdict,
};
use rollcall::store::OutboxEvent;
use rollcall::telemetry::{CheckSource, Telemetry};

use super::ground::Ground;
use super::world::{HOUR, World, roll_that_reports, roll_with, rules};

const MS: Duration = Duration::from_millis(1);

pub async fn promise_02_each_silence_is_taken_by_exactly_one_caller<G: Ground>(world: World<G>) {
    let units = world.units(300);
    // Some units have a key, and some have none.
    let (heard, registered) = units.split_at(150);
    world.hear_all(heard, world.at(0)).await;
    world.register_all(registered, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    let mut rivals = Vec::new();
    for _ in 0..4 {
        rivals.push(world.another().await.1);
    }
    let checks = rivals.iter().map(|rival| rival.check_deadlines(&units, world.hours(49)));
    for checked in futures_util::future::join_all(checks).await {
        assert_eq!(checked.unwrap(), []);
    }
    let transitions = world.transitions().await;
    let ids: HashSet<String> = transitions.iter().map(|record| record.id.to_string()).collect();
    assert_eq!((transitions.len(), ids.len()), (300, 300));
    assert_eq!(world.open_records().await.len(), 300);
}

pub async fn promise_03_taking_writes_record_and_outbox_in_one_step<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(3)).await;
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    let record = world.open_records().await.remove(0);
    assert_eq!(record.id.to_string(), format!("detector:a:{}", world.at(3).as_millis()));
    assert_eq!(record.deadline, world.at(3) + 48 * HOUR);
    assert_eq!((record.detected_at, record.last_seen), (world.hours(49), world.at(3)));
    assert_eq!((record.cause, record.back_at, record.closed_by), (Cause::Silence, None, None));
    assert_eq!(world.engine.record(&record.id).await.unwrap().as_ref(), Some(&record));
    assert_eq!(world.transitions().await, [record]);
    assert_eq!(world.due(world.hours(1000)).await, []);
    assert_eq!(world.read(&unit).await.alive, None);
}

pub async fn promise_04_an_older_or_repeated_heartbeat_never_moves_a_deadline_back<G: Ground>(
    world: World<G>,
) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(1000)).await;
    for at in [1000, 400, 1000] {
        world.hear(&unit, world.at(at)).await;
        assert_eq!(world.read(&unit).await.alive, Some(world.at(1000)));
    }
    // The same holds within one batch, and on the slow path, with a declaration.
    let says = |at, sleep| Heartbeat {
        declared: Declared { sleep, labels: [("site".into(), "x".into())].into(), ..Declared::default() },
        ..world.beat(&unit, world.at(at))
    };
    let batch = [world.beat(&unit, world.at(3000)), world.beat(&unit, world.at(2000)), says(1500, None)];
    world.roll.hear(&batch, world.at(3000)).await.unwrap();
    assert_eq!(world.read(&unit).await.alive, Some(world.at(3000)));
    world.roll.hear(&[says(100, Some(HOUR))], world.at(3000)).await.unwrap();
    let seen = world.read(&unit).await;
    assert_eq!(seen.alive, Some(world.at(3000)));
    assert_eq!(seen.facts.unwrap().sleep, None, "an old announcement of sleep is void");
    // The heartbeat does not end a silence either.
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    for at in [3000, 2999] {
        world.roll.hear(&[world.beat(&unit, world.at(at))], world.hours(49)).await.unwrap();
    }
    assert_eq!(world.open_records().await.len(), 1);
}

pub async fn promise_05_a_return_closes_the_record_and_is_notified_once<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    let back = world.hours(50);
    let (_, other) = world.another().await;
    let beat = [world.beat(&unit, back)];
    let (one, two) = tokio::join!(world.roll.hear(&beat, back), other.hear(&beat, back));
    one.unwrap();
    two.unwrap();
    world.hear(&unit, back + MS).await;
    let transitions = world.transitions().await;
    assert_eq!(transitions.len(), 2, "{transitions:?}");
    assert_eq!(transitions[0].id, transitions[1].id);
    assert_eq!((transitions[1].closed_by, transitions[1].back_at), (Some(Closing::Return), Some(back)));
    assert_eq!(world.open_records().await, []);
    assert_eq!(world.engine.record(&transitions[0].id).await.unwrap().as_ref(), Some(&transitions[1]));
    // The next silence is a new one.
    world.heard_until(world.hours(100)).await;
    world.check(&unit, world.hours(100)).await;
    assert_ne!(world.open_records().await[0].id, transitions[0].id);
}

pub async fn promise_10_time_is_always_an_argument<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    // Centuries pass between the two moments, and back.
    let later = world.at(0) + 365 * 200 * 24 * HOUR;
    world.heard_until(later).await;
    world.check(&unit, world.hours(47)).await;
    assert_eq!(world.open_records().await, []);
    world.check(&unit, later).await;
    assert_eq!(world.open_records().await[0].detected_at, later);
    world.hear(&unit, later + MS).await;
    assert_eq!(world.read(&unit).await.alive, Some(later + MS));
}

pub async fn promise_11_blind_time_is_not_silence<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    // Blind from hour 10 to hour 20, by a late canary alone.
    world.heard_until(world.hours(10)).await;
    let blind = world.canary(world.hours(20), Duration::from_secs(3), HOUR).await.unwrap();
    assert_eq!((blind.from, blind.to), (world.hours(10), world.hours(20)));
    world.heard_until(world.hours(60)).await;
    world.check(&unit, world.hours(58)).await;
    assert_eq!(world.open_records().await, []);
    world.check(&unit, world.hours(58) + MS).await;
    assert_eq!(world.open_records().await[0].deadline, world.hours(58));
    // Another instance knows the blind time, too.
    let (_, other) = world.another().await;
    assert_eq!(other.hearing().ledger.intervals(), [blind]);
}

pub async fn promise_11_a_presumed_last_seen_time_is_not_an_observed_one<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    // Blind from hour 40 to hour 100, no check for longer than that, and the key has expired.
    world.heard_until(world.hours(40)).await;
    world.canary(world.hours(100), Duration::from_secs(3), 1000 * HOUR).await.unwrap();
    world.heard_until(world.hours(200)).await;
    world.ground.lapse(&unit).await;
    world.check(&unit, world.hours(109)).await;
    assert_eq!(world.open_records().await, []);
    assert_eq!(world.read(&unit).await.last_heard(), Some(world.at(0)));
    world.check(&unit, world.hours(148)).await;
    assert_eq!(world.open_records().await, []);
    world.check(&unit, world.hours(148) + MS).await;
    let record = world.open_records().await.remove(0);
    assert_eq!((record.last_seen, record.silent_from), (world.at(0), Some(world.hours(40))));
    assert_eq!((record.id.last_seen, record.deadline), (world.at(0), world.hours(148)));
    assert_eq!(world.transitions().await, std::slice::from_ref(&record));
    assert_eq!(world.engine.record(&record.id).await.unwrap(), Some(record.clone()));
    // The return ends this record.
    world.hear(&unit, world.hours(150)).await;
    let closed = world.engine.record(&record.id).await.unwrap().unwrap();
    assert_eq!((closed.silent_from, closed.back_at), (record.silent_from, Some(world.hours(150))));
    assert_eq!(world.read(&unit).await.facts.unwrap().silent_from, None);
}

pub async fn promise_11_proof_that_is_always_a_little_late_is_enough<G: Ground>(world: World<G>) {
    // The link is slow: reads are old, and hearing is 15 s behind, which is more than the slack.
    let unit = world.unit("a");
    let (second, deadline) = (Duration::from_secs(1), world.hours(48));
    world.hear(&unit, world.at(0)).await;
    world.ground.lapse(&unit).await;
    let check = async |after: Duration| {
        world.heard_until(deadline + after - 15 * second).await;
        world.check(&unit, deadline + after).await;
        world.open_records().await
    };
    // A heartbeat may have come in the first minute, and its key is gone.
    assert_eq!(check(60 * second).await, []);
    // No heartbeat came since, for there was no key; so hearing up to then is enough.
    let records = check(66 * second).await;
    assert_eq!(records.len(), 1, "the proof of a past minute counts");
    assert_eq!((records[0].last_seen, records[0].deadline), (world.at(0), deadline));
}

pub async fn promise_11_a_unit_that_was_heard_between_two_checks_is_checked_anew<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    let (second, deadline) = (Duration::from_secs(1), world.hours(48));
    world.hear(&unit, world.at(0)).await;
    world.ground.lapse(&unit).await;
    world.heard_until(deadline + 45 * second).await;
    world.check(&unit, deadline + 60 * second).await;
    // The unit is heard, and its key expires: up to 10 s later it may have been heard once more.
    world.hear(&unit, deadline + 61 * second).await;
    world.ground.lapse(&unit).await;
    world.heard_until(world.hours(96) + 66 * second).await;
    world.check(&unit, world.hours(96) + 77 * second).await;
    assert_eq!(world.open_records().await, []);
}

pub async fn promise_11_no_unit_is_marked_offline_while_nothing_is_heard<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(48) - Duration::from_secs(11)).await;
    let undecided = world.roll.check_deadlines(std::slice::from_ref(&unit), world.hours(90)).await.unwrap();
    assert_eq!(undecided, std::slice::from_ref(&unit));
    assert_eq!(world.open_records().await, []);
    assert_eq!(world.due(world.hours(90)).await, std::slice::from_ref(&unit));
    world.heard_until(world.hours(48) - Duration::from_secs(10)).await;
    world.check(&unit, world.hours(48) + MS).await;
    assert_eq!(world.open_records().await.len(), 1);
}

pub async fn promise_12_a_removed_unit_is_never_reported<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    assert!(world.roll.retire(&unit, world.at(1)).await.unwrap());
    assert!(!world.roll.retire(&unit, world.at(2)).await.unwrap());
    world.heard_until(world.hours(200)).await;
    world.hear(&unit, world.at(5)).await;
    world.check(&unit, world.hours(49)).await;
    assert_eq!(world.due(world.hours(1000)).await, []);
    assert_eq!(world.transitions().await, []);
    assert_eq!(world.read(&unit).await.alive, None);
    // When it is registered again, it is a new unit.
    let again = world.hours(100);
    let probe = world.unit("rollcall-probe");
    assert!(!world.roll.register(&probe, &Registration::default(), again).await.unwrap(), "it is not a unit");
    assert!(world.roll.register(&unit, &Registration::default(), again).await.unwrap());
    world.hear(&unit, again + MS).await;
    assert_eq!(world.read(&unit).await.facts.unwrap().lifecycle, Lifecycle::Present);
}

pub async fn promise_13_a_changed_timeout_moves_the_deadline_at_once<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    let allow = |timeout| Registration {
        set: Override { timeout: Some(timeout), grace: None },
        ..Registration::default()
    };
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.roll.register(&unit, &allow(HOUR), world.at(10)).await.unwrap();
    assert_eq!(world.due(world.hours(1)).await, std::slice::from_ref(&unit));
    world.check(&unit, world.hours(1) + MS).await;
    assert_eq!(world.open_records().await[0].deadline, world.hours(1));
    // With a longer timeout it is no longer offline.
    world.roll.register(&unit, &allow(24 * HOUR), world.hours(2)).await.unwrap();
    assert_eq!(world.transitions().await[1].closed_by, Some(Closing::Policy));
    assert_eq!(world.due(world.hours(24)).await, std::slice::from_ref(&unit));
    // A check has the same effect for a unit whose kind has another timeout than when the unit was taken.
    world.check(&unit, world.hours(24) + MS).await;
    let last = world.transitions().await.pop().unwrap();
    assert_eq!((last.closed_by, last.deadline), (None, world.hours(24)));
}

pub async fn promise_14_a_deadline_at_exactly_now_is_not_yet_passed<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    let deadline = world.at(7) + 48 * HOUR;
    world.hear(&unit, world.at(7)).await;
    world.heard_until(world.hours(100)).await;
    for now in [deadline - MS, deadline] {
        world.check(&unit, now).await;
        assert_eq!(world.open_records().await, [], "{now}");
    }
    world.check(&unit, deadline + MS).await;
    assert_eq!(world.open_records().await[0].deadline, deadline);
}

pub async fn a_check_of_many_units_judges_each_by_the_time_of_its_read<G: Ground>(world: World<G>) {
    // More units than one check reads at once.
    let units = world.units(2001);
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    let batches = batches(&world, &units).await;
    assert!(batches.len() > 1);
    let (begin, reads) = (world.hours(49), AtomicU32::new(0));
    let clock = || begin + MS * reads.fetch_add(1, Ordering::SeqCst);
    world.roll.check_suspects(&units, CheckSource::Sweep, clock).await.unwrap();
    let mut judged = BTreeMap::<Timestamp, BTreeSet<Unit>>::new();
    for record in world.engine.records(true, None, 2001).await.unwrap() {
        judged.entry(record.detected_at).or_default().insert(record.id.unit);
    }
    let judged: BTreeSet<_> = judged.into_values().collect();
    assert_eq!(judged, batches.into_iter().map(BTreeSet::from_iter).collect());
}

/// The batches into which the engine cuts these units.
async fn batches<G: Ground>(world: &World<G>, units: &[Unit]) -> Vec<Vec<Unit>> {
    let mut batches = Vec::new();
    for check in world.engine.check_deadlines(units) {
        batches.push(check.await.unwrap().units.into_iter().map(|seen| seen.unit).collect());
    }
    batches
}

/// A unit that changes between read and apply is left alone, and other units are not delayed.
pub async fn a_check_takes_only_units_that_have_not_changed<G: Ground>(world: World<G>) {
    let units = world.units(40);
    world.register_all(&units, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    let mut back = BTreeSet::new();
    for check in batches(&world, &units).await {
        // A check that is dropped leaves no trace.
        drop(world.begin_check(&check).await);
        let checked = world.begin_check(&check).await;
        assert_eq!(checked.hearing.heard, Some(world.hours(49)));
        let changes: Vec<_> = checked.units.into_iter().map(|seen| take(&world, seen)).collect();
        world.hear(&check[0], world.hours(49)).await;
        let applied = checked.guard.apply(&changes).await.unwrap();
        assert_eq!(applied, [vec![false], vec![true; check.len() - 1]].concat());
        back.insert(check[0].clone());
    }
    let transitions = world.transitions().await;
    let silent: BTreeSet<Unit> = units.into_iter().filter(|unit| !back.contains(unit)).collect();
    assert_eq!((transitions.len(), world.open_records().await.len()), (silent.len(), silent.len()));
    assert_eq!(transitions.into_iter().map(|record| record.id.unit).collect::<BTreeSet<_>>(), silent);
    assert_eq!(BTreeSet::from_iter(world.due(world.hours(1000)).await), back);
}

/// Units that were heard a moment ago and are announced as gone: one of several instances opens each record, in the step
/// that takes the unit out of the index.
pub async fn a_proof_opens_each_record_once_and_a_heartbeat_meanwhile_is_a_return<G: Ground>(
    world: World<G>,
) {
    let units = world.units(250);
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(world.hours(2)).await;
    let (at, now) = (world.hours(1), world.hours(2));
    let gone = |unit: &Unit| {
        let says = Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO };
        Announcement::of(unit.clone(), at, says)
    };
    let announcements: Vec<Announcement> = units.iter().map(gone).collect();
    // A unit that is heard between reading and writing is left alone.
    let heard = std::slice::from_ref(&units[0]);
    let checked = world.engine.check_present(heard).remove(0).await.unwrap();
    let all_rules = rules();
    let change = |seen: Snapshot| {
        let rules = all_rules.get(&seen.unit.kind).unwrap();
        let (_, change) = presence::announce(&seen, &announcements[0], rules, &checked.hearing, now);
        (seen, change.unwrap())
    };
    let changes: Vec<_> = checked.units.into_iter().map(change).collect();
    assert!(changes[0].1.record.is_some());
    world.hear(&units[0], world.hours(1) + MS).await;
    assert_eq!(checked.guard.apply(&changes).await.unwrap(), [false]);

    let mut rivals = Vec::new();
    for _ in 0..3 {
        rivals.push(world.another().await.1);
    }
    let all = rivals.iter().map(|rival| rival.announce(&announcements, || now));
    futures_util::future::try_join_all(all).await.unwrap();
    let transitions = world.transitions().await;
    let opened: BTreeSet<Unit> = transitions.iter().map(|record| record.id.unit.clone()).collect();
    assert_eq!(transitions.len(), units.len() - 1);
    assert_eq!(opened, units[1..].iter().cloned().collect());
    assert!(transitions.iter().all(|record| (record.cause, record.deadline) == (Cause::LastWill, at)));
    assert_eq!(world.read(&units[1]).await.alive, None);
    assert_eq!(world.due(world.hours(1000)).await, [units[0].clone()]);

    // A proof that cannot be decided yet is in the index, where the sweep finds it.
    let later = Announcement { at: world.hours(3), ..announcements[0].clone() };
    let after = world.hours(4);
    rivals[0].announce(&[later], || after).await.unwrap();
    assert_eq!(world.transitions().await.len(), units.len() - 1);
    assert_eq!(world.due(world.hours(3)).await, [units[0].clone()]);
    world.heard_until(world.hours(4)).await;
    world.check(&units[0], world.hours(4)).await;
    assert_eq!(world.transitions().await.len(), units.len());
}

pub async fn announcements_of_one_unit_count_in_their_order<G: Ground>(world: World<G>) {
    let (ends, sleeps) = (world.unit("ends"), world.unit("sleeps"));
    world.hear_all(&[ends.clone(), sleeps.clone()], world.at(0)).await;
    world.heard_until(world.hours(2)).await;
    let (at, now) = (world.hours(1), world.hours(2));
    let gone = |unit: &Unit| {
        let says = Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO };
        Announcement::of(unit.clone(), at, says)
    };
    let announcements = [
        gone(&ends),
        Announcement { follows_birth: true, ..gone(&ends) },
        Announcement::of(sleeps.clone(), at, Announced::Away(24 * HOUR)),
        gone(&sleeps),
    ];
    world.roll.announce(&announcements, || now).await.unwrap();
    let opened: Vec<Unit> = world.transitions().await.into_iter().map(|record| record.id.unit).collect();
    assert_eq!(opened, [ends]);
    assert_eq!(world.read(&sleeps).await.facts.unwrap().sleep.map(|sleep| sleep.from), Some(at));
}

/// One instance takes the announcements of a unit, and another one its heartbeats.
pub async fn a_heartbeat_after_an_announcement_counts_at_any_instance_where_clocks_are_behind<G: Ground>(
    world: World<G>,
) {
    let of_devices = || {
        let behind = |(kind, rules)| (kind, KindRules { clock: TimeSource::Device, ..rules });
        Rules::from_iter(rules().into_iter().map(behind))
    };
    let another = async || {
        let engine = world.ground.engine().await;
        let mirror = Mirror::of(&*engine, Arc::new(of_devices()), &[]);
        roll_with(engine, of_devices(), Arc::new(mirror))
    };
    let (announces, hears) = (another().await, another().await);
    let unit = world.unit("a");
    let second = Duration::from_secs(1);
    let late = |arrived: Timestamp| Heartbeat { arrived, ..world.beat(&unit, arrived - 15 * second) };
    for (begin, settle) in [(0, 10 * second), (10, Duration::ZERO)] {
        let at = world.hours(begin + 1);
        hears.hear(&[late(at - second)], at).await.unwrap();
        world.heard_until(at + second).await;
        let says = Announced::Gone { cause: Cause::LastWill, settle };
        announces.announce(&[Announcement::of(unit.clone(), at, says)], || at + second).await.unwrap();
        assert_eq!(world.read(&unit).await.alive, None);
        let back = at + 5 * second;
        hears.hear(&[late(back)], back).await.unwrap();
        assert_eq!(world.read(&unit).await.alive, Some(back), "{settle:?}");
        world.heard_until(at + 60 * second).await;
        announces.check_deadlines(std::slice::from_ref(&unit), at + 60 * second).await.unwrap();
        assert!(world.open_records().await.is_empty(), "{settle:?}");
    }
    assert_eq!(world.transitions().await.len(), 2, "the proof, and the return");
}

pub async fn of_two_changes_of_one_unit_by_one_check_one_is_applied<G: Ground>(world: World<G>) {
    let unit = [world.unit("a")];
    world.register_all(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    let mut checked = world.begin_check(&unit).await;
    let change = take(&world, checked.units.remove(0));
    assert_eq!(checked.guard.apply(&[change.clone(), change]).await.unwrap(), [true, false]);
    assert_eq!(world.transitions().await.len(), 1);
}

pub async fn a_record_that_is_opened_once_more_is_listed_once<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    let allow = |timeout| Registration {
        set: Override { timeout: Some(timeout), grace: None },
        ..Registration::default()
    };
    world.roll.register(&unit, &allow(HOUR), world.at(0)).await.unwrap();
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(2)).await;
    world.roll.register(&unit, &allow(3 * HOUR), world.hours(2)).await.unwrap();
    let closed = world.engine.records(false, None, 10).await.unwrap();
    assert_eq!((closed.len(), closed[0].closed_by), (1, Some(Closing::Policy)));
    world.check(&unit, world.hours(4)).await;
    let opened = world.engine.records(false, None, 10).await.unwrap();
    assert_eq!((opened.len(), &opened[0].id, opened[0].closed_by), (1, &closed[0].id, None));
    assert_eq!(world.engine.forget_records(&world.partitions(), world.hours(1000)).await.unwrap(), 0);
    assert_eq!(world.open_records().await, opened);
}

/// The change for an overdue unit when 49 hours were heard.
pub fn take<G: Ground>(world: &World<G>, seen: Snapshot) -> (Snapshot, Change) {
    let hearing = Hearing { heard: Some(world.hours(49)), ..Hearing::default() };
    let verdict = presence::check_deadline(&seen, &rules()[&seen.unit.kind], &hearing, world.hours(49));
    let Verdict::Offline(change) = verdict else { panic!("{verdict:?}") };
    (seen, change)
}

pub async fn promise_15_a_lost_reply_leaves_nothing_that_is_not_repaired<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    // The change of a take is sent again, because the first answer was lost.
    world.heard_until(world.hours(49)).await;
    let take = [take(&world, world.read(&unit).await)];
    assert_eq!(world.engine.apply(&take).await.unwrap(), [true]);
    assert_eq!(world.engine.apply(&take).await.unwrap(), [false]);
    assert_eq!(world.transitions().await.len(), 1);
    // A heartbeat and a canary are sent again, too.
    for _ in 0..2 {
        world.hear(&unit, world.hours(50)).await;
        world.heard_until(world.hours(50)).await;
    }
    assert_eq!(world.transitions().await.len(), 2);
    assert_eq!(world.roll.hearing().ledger.intervals(), []);
    // The settling of an entry is sent again, too.
    let positions: Vec<_> = world.outbox().await.into_iter().map(|entry| entry.position).collect();
    for _ in 0..2 {
        world.engine.remove_entries(&positions, &Default::default()).await.unwrap();
    }
    assert_eq!(world.outbox().await, []);
}

pub async fn promise_15_a_key_beside_an_open_record_is_a_return<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    world.ground.leave_key(&unit, world.hours(50).as_millis()).await;
    world.check(&unit, world.hours(51)).await;
    let last = world.transitions().await.pop().unwrap();
    assert_eq!((last.closed_by, last.back_at), (Some(Closing::Return), Some(world.hours(50))));
    assert_eq!(world.due(world.hours(98)).await, [unit]);
}

pub async fn a_decision_from_facts_that_changed_is_void<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    let before = world.read(&unit).await;
    let hearing = world.roll.hearing();
    let rules = &world.roll.rules()[&unit.kind];
    let wanted = |site: &str| Registration {
        labels: [("site".to_owned(), site.to_owned())].into(),
        ..Registration::default()
    };
    let decide = |site| presence::register(&before, &wanted(site), rules, &hearing, world.at(1));
    let (north, south) = ((before.clone(), decide("north")), (before.clone(), decide("south")));
    assert_eq!(world.engine.apply(&[north]).await.unwrap(), [true]);
    // The key is unchanged; only the facts show that another caller was faster.
    assert_eq!(world.read(&unit).await.alive, before.alive);
    assert_eq!(world.engine.apply(&[south]).await.unwrap(), [false]);
    assert_eq!(world.read(&unit).await.facts.unwrap().labels["site"], "north");
}

pub async fn of_two_changes_of_one_unit_in_one_step_one_is_applied<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    let change = take(&world, world.read(&unit).await);
    assert_eq!(world.engine.apply(&[change.clone(), change]).await.unwrap(), [true, false]);
    assert_eq!(world.transitions().await.len(), 1);
}

pub async fn the_outbox_is_read_up_to_the_limit_however_it_was_written<G: Ground>(world: World<G>) {
    let units = world.units(300);
    for unit in &units {
        world.hear(unit, world.at(0)).await;
    }
    world.heard_until(world.hours(49)).await;
    // A hundred units are checked in one step, and the others one by one.
    world.roll.check_deadlines(&units[..100], world.hours(49)).await.unwrap();
    for unit in &units[100..] {
        world.check(unit, world.hours(49)).await;
    }
    assert_eq!(world.transitions().await.len(), 300);
    let mut transitions = HashSet::new();
    while transitions.len() < 300 {
        let before = transitions.len();
        let read = world.engine.outbox(&world.outboxes(), 80).await.unwrap();
        let (positions, events): (Vec<_>, Vec<_>) =
            read.into_iter().map(|entry| (entry.position, entry.event)).unzip();
        assert!(events.len() >= 80.min(300 - before), "{} of 80", events.len());
        let expected = before + events.len();
        transitions.extend(events.into_iter().map(|event| match event {
            OutboxEvent::Record(record) => record.unit,
            other => panic!("nothing was blind, but {other:?}"),
        }));
        assert_eq!(transitions.len(), expected, "nothing is read twice");
        world.engine.remove_entries(&positions, &Default::default()).await.unwrap();
    }
    assert_eq!(world.outbox().await, []);
}

pub async fn what_an_outbox_had_at_a_moment_is_known_until_it_has_left<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    let outboxes = world.outboxes();
    assert_eq!(world.engine.newest_entries(&outboxes).await.unwrap(), []);
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    world.hear(&unit, world.hours(50)).await;
    let [silence, back] = world.outbox().await.try_into().unwrap();
    let newest = world.engine.newest_entries(&outboxes).await.unwrap();
    assert_eq!(newest, std::slice::from_ref(&back.position));
    let oldest = async || world.engine.oldest_up_to(&newest).await.unwrap();
    assert_eq!(oldest().await, std::slice::from_ref(&silence.position));
    // An entry that comes later does not count.
    world.heard_until(world.hours(99)).await;
    world.check(&unit, world.hours(99)).await;
    for (left, next) in [(&silence, vec![back.position.clone()]), (&back, Vec::new())] {
        let left = std::slice::from_ref(&left.position);
        world.engine.remove_entries(left, &Default::default()).await.unwrap();
        assert_eq!(oldest().await, next);
    }
    assert_eq!(world.engine.newest_entries(&outboxes).await.unwrap().len(), 1);
}

pub async fn a_unit_that_was_never_seen_is_reported_from_its_registration<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.roll.register(&unit, &Registration::default(), world.at(9)).await.unwrap();
    assert_eq!(world.read(&unit).await.alive, None);
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    let record = world.open_records().await.remove(0);
    assert_eq!((record.cause, record.last_seen), (Cause::NeverSeen, world.at(9)));
    assert_eq!(record.deadline, world.at(9) + 48 * HOUR);
}

/// Everything was down for longer than the key lasts: the key may have held a newer heartbeat.
pub async fn a_key_that_expired_between_two_checks_is_no_proof_of_silence<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(47)).await;
    world.hear(&unit, world.hours(47)).await;
    world.ground.lapse(&unit).await;
    world.canary(world.hours(100), Duration::from_secs(3), HOUR).await;
    world.heard_until(world.hours(200)).await;
    // The last known heartbeat was at 0, and 48 hours were heard since then.
    world.check(&unit, world.hours(102)).await;
    assert_eq!(world.open_records().await, []);
    let due: Vec<Unit> = world.due(world.hours(148)).await;
    assert_eq!(due, std::slice::from_ref(&unit));
    world.check(&unit, world.hours(148) + MS).await;
    assert_eq!(world.open_records().await[0].deadline, world.hours(148));
}

pub async fn a_record_of_a_removed_kind_is_closed_and_notified_once<G: Ground>(world: World<G>) {
    let units = world.units(3);
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.roll.check_deadlines(&units[..2], world.hours(49)).await.unwrap();
    let (gone, back) = (world.hours(60), world.hours(100));
    world.roll.close_unwatched(&units, gone).await.unwrap();
    assert_eq!(world.transitions().await.len(), 2, "its kind is configured");
    // An instance that has another kind starts twice.
    let kind: Kind = "pump".parse().unwrap();
    let others = Rules::from_iter([(kind.clone(), KindRules::new(kind))]);
    let mirror = Arc::new(Mirror::new(Arc::new(others.clone()), world.engine.partitions()));
    let roll = roll_with(world.engine.clone(), others, mirror);
    for _ in 0..2 {
        roll.close_unwatched(&units, gone).await.unwrap();
    }
    let transitions = world.transitions().await;
    let closed: Vec<&OfflineRecord> =
        transitions.iter().filter(|record| record.closed_by.is_some()).collect();
    assert_eq!((transitions.len(), closed.len()), (4, 2));
    for record in closed {
        assert_eq!((record.closed_by, record.back_at), (Some(Closing::KindRemoved), Some(gone)));
        assert_eq!(world.engine.record(&record.id).await.unwrap().as_ref(), Some(record));
    }
    assert_eq!(world.open_records().await, []);
    // Units start anew when the kind is back: present once they are heard, and not offline before their time is up
    // again.
    world.heard_until(back).await;
    world.hear(&units[0], back).await;
    world.roll.check_deadlines(&units[..2], world.hours(101)).await.unwrap();
    assert_eq!(world.open_records().await, []);
    assert_eq!(world.read(&units[0]).await.facts.unwrap().lifecycle, Lifecycle::Present);
    world.heard_until(world.hours(109)).await;
    world.roll.check_deadlines(&units[..2], world.hours(109)).await.unwrap();
    let open = world.open_records().await;
    assert_eq!((open.len(), &open[0].id.unit, open[0].cause), (1, &units[1], Cause::NeverSeen));
}

pub async fn declarations_of_a_unit_are_kept_and_obeyed<G: Ground>(world: World<G>) {
    let unit = world.unit("a");
    let says = |declared| Heartbeat { declared, ..world.beat(&unit, world.at(0)) };
    let first = says(Declared {
        timeout: Some(HOUR),
        labels: [("site".into(), "north".into())].into(),
        ..Declared::default()
    });
    world.roll.hear(&[first], world.at(0)).await.unwrap();
    let more = says(Declared { labels: [("row".into(), "7".into())].into(), ..Declared::default() });
    world.roll.hear(&[more], world.at(0)).await.unwrap();
    world.heard_until(world.hours(30)).await;
    // The unit goes to sleep for ten hours, half an hour after the beginning.
    let tired = Heartbeat {
        declared: Declared { sleep: Some(10 * HOUR), ..Declared::default() },
        ..world.beat(&unit, world.at(0) + HOUR / 2)
    };
    world.roll.hear(&[tired], world.at(0) + HOUR / 2).await.unwrap();
    world.check(&unit, world.hours(11)).await;
    assert_eq!(world.open_records().await, []);
    world.check(&unit, world.hours(12)).await;
    let record = world.open_records().await.remove(0);
    assert_eq!(record.deadline, world.at(0) + HOUR / 2 + 11 * HOUR);
    assert_eq!(record.labels.len(), 2);
    // A plain heartbeat on the fast path ends the sleep of this unit.
    let awake = world.unit("b");
    let tired = Heartbeat {
        declared: Declared { timeout: Some(HOUR), sleep: Some(10 * HOUR), ..Declared::default() },
        ..world.beat(&awake, world.at(0))
    };
    world.roll.hear(&[tired], world.at(0)).await.unwrap();
    world.hear(&awake, world.at(1)).await;
    world.check(&awake, world.hours(2)).await;
    assert_eq!(world.open_records().await.len(), 2);
}

/// A heartbeat that asks for a timeout of so many hours; 0: for none.
fn asks<G: Ground>(world: &World<G>, unit: &Unit, hours: u32, at: Timestamp) -> Heartbeat {
    let timeout = (hours > 0).then(|| hours * HOUR);
    Heartbeat { declared: Declared { timeout, ..Declared::default() }, ..world.beat(unit, at) }
}

async fn declared_hours<G: Ground>(world: &World<G>, unit: &Unit) -> u64 {
    world.read(unit).await.facts.unwrap().declared_timeout.map_or(0, |timeout| timeout.as_secs() / 3600)
}

pub async fn the_last_declaration_of_a_unit_counts_also_within_one_batch<G: Ground>(world: World<G>) {
    // Batches of heartbeats, each with its moment and the hours that it asks for, and what counts at the end.
    for (n, (batches, expected)) in [
        (vec![vec![(1, 0)], vec![(2, 60), (3, 0)]], 60),
        (vec![vec![(1, 60)], vec![(2, 3), (3, 60)]], 60),
        (vec![vec![(1, 60)], vec![(2, 3), (2, 60)]], 60),
        (vec![vec![(1, 60)], vec![(2, 60), (2, 3)]], 3),
        (vec![vec![(1, 60)], vec![(3, 60), (2, 3)]], 60),
        // A later batch was faster; what is said again counts.
        (vec![vec![(1, 6)], vec![(3, 0)], vec![(2, 60)]], 60),
        (vec![vec![(1, 6)], vec![(3000, 0)], vec![(2, 60)], vec![(4000, 60)]], 60),
    ]
    .into_iter()
    .enumerate()
    {
        let unit = world.unit(&format!("{n}"));
        for batch in &batches {
            let batch: Vec<Heartbeat> =
                batch.iter().map(|(at, hours)| asks(&world, &unit, *hours, world.at(*at))).collect();
            world.roll.hear(&batch, world.at(5000)).await.unwrap();
        }
        assert_eq!(declared_hours(&world, &unit).await, expected, "{batches:?}");
    }
}

pub async fn the_last_declaration_of_a_unit_counts_whichever_instance_heard_it<G: Ground>(world: World<G>) {
    let (_, other) = world.another().await;
    let unit = world.unit("a");
    // The instance, and the hours that the heartbeat asks for.
    for (n, (is_other, hours)) in [
        (false, 60),
        (true, 60),
        (false, 3),
        (true, 60),
        (true, 0),
        (true, 60),
        (false, 60),
        (true, 3),
        (false, 0),
        (false, 60),
        (true, 60),
    ]
    .into_iter()
    .enumerate()
    {
        let roll = if is_other { &other } else { &world.roll };
        let at = world.at(n as u64 + 1);
        let expected = declared_hours_after(&world, &unit, hours).await;
        roll.hear(&[asks(&world, &unit, hours, at)], at).await.unwrap();
        assert_eq!(declared_hours(&world, &unit).await, expected, "heartbeat {n}");
        assert_eq!(world.read(&unit).await.alive, Some(at));
    }
}

/// The hours that count after a heartbeat that asks for `hours`.
async fn declared_hours_after<G: Ground>(world: &World<G>, unit: &Unit, hours: u32) -> u64 {
    match hours {
        0 => declared_hours(world, unit).await,
        hours => u64::from(hours),
    }
}

pub async fn records_are_listed_newest_first_page_by_page<G: Ground>(world: World<G>) {
    // The order of names is not the order of records.
    let names = ["x", "x:0", "x1", "x.", "X"].map(str::to_owned);
    let longer = (0..300).map(|n| format!("x-{n}"));
    let unit = |name: String| world.unit(&name);
    let units: Vec<Unit> =
        world.units(40).into_iter().chain(names.into_iter().chain(longer).map(unit)).collect();
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(world.hours(60)).await;
    // Most records are detected in the same millisecond, more of them than an engine reads at once.
    world.roll.check_deadlines(&units[25..], world.hours(49)).await.unwrap();
    for (n, unit) in units[..25].iter().enumerate() {
        world.check(unit, world.hours(50) + MS * n as u32).await;
    }
    // Some records of either part are closed.
    for unit in units[5..10].iter().chain(&units[41..44]) {
        world.hear(unit, world.hours(51)).await;
    }
    let all = world.engine.records(false, None, 1000).await.unwrap();
    assert_eq!(all.len(), 345);
    let open: Vec<OfflineRecord> = all.iter().filter(|record| record.back_at.is_none()).cloned().collect();
    assert_eq!(open.len(), 337);
    for (only_open, expected) in [(false, &all), (true, &open)] {
        for size in [2, 7, 40] {
            let mut paged = Vec::new();
            let mut before = None;
            loop {
                let page = world.engine.records(only_open, before, size).await.unwrap();
                let Some(last) = page.last() else { break };
                before = Some((last.detected_at, last.id.clone()));
                paged.extend(page);
            }
            assert_eq!(&paged, expected, "{size} at a time");
        }
    }
    assert!(all.is_sorted_by(|a, b| (a.detected_at, a.id.to_string()) > (b.detected_at, b.id.to_string())));
}

pub async fn the_history_of_a_unit_is_its_records_newest_first<G: Ground>(world: World<G>) {
    // The names of the units begin alike.
    let (unit, longer) = (world.unit("x"), world.unit("x:1"));
    let both = [unit.clone(), longer.clone()];
    assert_eq!(world.engine.history(&unit, 10).await.unwrap().records, []);
    for round in 0..4 {
        world.hear_all(&both, world.hours(50 * round)).await;
        world.heard_until(world.hours(50 * round + 49)).await;
        world.roll.check_deadlines(&both, world.hours(50 * round + 49)).await.unwrap();
    }
    let of_all = world.engine.records(false, None, 100).await.unwrap();
    assert_eq!(of_all.len(), 8);
    for unit in &both {
        let expected: Vec<OfflineRecord> = of_all.iter().filter(|one| one.unit == unit.id).cloned().collect();
        assert!(expected[0].back_at.is_none() && expected[1..].iter().all(|one| one.back_at.is_some()));
        let history = world.engine.history(unit, 4).await.unwrap();
        assert_eq!((&history.records, history.is_complete), (&expected, true));
        let history = world.engine.history(unit, 3).await.unwrap();
        assert_eq!((&history.records[..], history.is_complete), (&expected[..3], false));
    }
}

pub async fn records_are_read_in_the_order_in_which_they_were_opened_and_closed<G: Ground>(world: World<G>) {
    let (units, end) = (world.units(300), world.hours(53));
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(world.hours(50)).await;
    // More at one moment than is asked for at once.
    world.roll.check_deadlines(&units[..200], world.hours(49)).await.unwrap();
    world.roll.check_deadlines(&units[200..], world.hours(50)).await.unwrap();
    world.hear_all(&units[..50], world.hours(51)).await;
    world.hear_all(&units[250..], world.hours(52)).await;
    let all = world.engine.records(false, None, 1000).await.unwrap();
    assert_eq!(all.len(), 300);
    for what in [Transition::Offline, Transition::Online] {
        let moment = |record: &OfflineRecord| match what {
            Transition::Offline => Some(record.detected_at),
            Transition::Online => record.back_at,
        };
        let ids = |records: &[OfflineRecord]| -> BTreeSet<String> {
            records.iter().filter(|one| moment(one).is_some()).map(|one| one.id.to_string()).collect()
        };
        for limit in [7, 1000] {
            let (mut found, mut from) = (Vec::new(), Timestamp::ZERO);
            while from < end {
                let time = Interval { from, to: end };
                let partitions = world.partitions();
                let (records, until) =
                    world.engine.changed_records(what, &partitions, time, limit).await.unwrap();
                let is_within = |at: Timestamp| from <= at && at < until;
                assert!(until > from && records.iter().all(|one| moment(one).is_some_and(is_within)));
                found.extend(records);
                from = until;
            }
            assert_eq!((found.len(), ids(&found)), (ids(&all).len(), ids(&all)), "{what:?} {limit}");
        }
    }
    let before = Interval { from: Timestamp::ZERO, to: world.hours(49) };
    let none =
        world.engine.changed_records(Transition::Offline, &world.partitions(), before, 7).await.unwrap();
    assert_eq!(none, (Vec::new(), before.to));
    let mut of_each = 0;
    for partition in world.partitions() {
        let time = Interval { from: Timestamp::ZERO, to: end };
        let (records, _) =
            world.engine.changed_records(Transition::Offline, &[partition], time, 1000).await.unwrap();
        of_each += records.len();
    }
    assert_eq!(of_each, 300);
}

pub async fn every_unit_is_on_exactly_one_page_and_steps_without_units_are_left_out<G: Ground>(
    world: World<G>,
) {
    let units = world.units(400);
    world.hear_all(&units, world.at(0)).await;
    let mut found: Vec<Snapshot> = Vec::new();
    for partition in 0..world.engine.partitions() {
        let occupied = world.engine.occupied(partition, 4).await.unwrap();
        for step in world.engine.steps(4) {
            let mut on_step = Vec::new();
            for page in step.clone() {
                on_step.extend(world.engine.walk(partition, page).await.unwrap());
            }
            assert_eq!(occupied.contains(&step), !on_step.is_empty(), "{step:?} of {partition}");
            found.extend(on_step);
        }
    }
    found.sort_by(|a, b| a.unit.cmp(&b.unit));
    assert_eq!(found, world.engine.read(&units).await.unwrap());
}

pub async fn old_closed_records_are_forgotten_and_open_ones_never<G: Ground>(world: World<G>) {
    let (open, closed) = (world.unit("open"), world.unit("closed"));
    world.hear_all(&[open.clone(), closed.clone()], world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.roll.check_deadlines(&[open.clone(), closed.clone()], world.hours(49)).await.unwrap();
    world.hear(&closed, world.hours(50)).await;
    assert_eq!(world.engine.forget_records(&world.partitions(), world.hours(50)).await.unwrap(), 0);
    assert_eq!(world.engine.forget_records(&world.partitions(), world.hours(50) + MS).await.unwrap(), 1);
    let left = world.engine.records(false, None, 10).await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].unit, open.id);
}

fn limited(most: u64) -> Rules {
    let mut rules = rules();
    rules.values_mut().for_each(|kind| kind.max_units = most);
    rules
}

pub async fn a_kind_admits_no_more_ids_than_it_may_have<G: Ground>(world: World<G>) {
    let mirror = Arc::new(Mirror::new(Arc::new(limited(10)), world.engine.partitions()));
    let roll = roll_with(world.engine.clone(), limited(10), mirror);
    let hear = async |units: &[Unit], at| {
        let beats: Vec<_> = units.iter().map(|unit| world.beat(unit, at)).collect();
        roll.hear(&beats, at).await.unwrap();
    };
    let known = async |units: &[Unit]| {
        world.engine.read(units).await.unwrap().iter().filter(|seen| seen.is_known()).count()
    };
    // More units than one step holds, all at once.
    let all = world.units(1200);
    hear(&all, world.at(0)).await;
    assert_eq!(known(&all).await, 10);
    hear(&all, world.at(1000)).await;
    assert_eq!(known(&all).await, 10);
    let mut here = Vec::new();
    for unit in &all {
        let seen = world.read(unit).await;
        if seen.is_known() {
            assert_eq!(seen.last_heard(), Some(world.at(1000)), "known units go on");
            here.push(unit.clone());
        }
    }
    // A removed unit makes room, and a registration by an operator needs none.
    assert!(roll.retire(&here[0], world.at(2000)).await.unwrap());
    let new = world.unit("new");
    hear(&[new.clone(), world.unit("newer")], world.at(3000)).await;
    assert_eq!(known(&[new, world.unit("newer")]).await, 1);
    let wanted = world.unit("wanted");
    assert!(roll.register(&wanted, &Registration::default(), world.at(4000)).await.unwrap());
    assert_eq!(known(&[wanted]).await, 1);
}

pub async fn instances_that_share_a_fleet_know_how_many_units_there_are<G: Ground>(world: World<G>) {
    let instance = |part: u16| {
        let mirror = Mirror::new(Arc::new(limited(100)), world.engine.partitions());
        let mirror = Arc::new(mirror.with_labels(&["site".to_owned()]));
        mirror.keep(|partition| partition % 2 == part);
        (roll_with(world.engine.clone(), limited(100), mirror.clone()), mirror)
    };
    let [(one, ones), (other, others)] = [instance(0), instance(1)];
    let all = world.units(1000);
    let beats = |units: &[Unit]| {
        let labels = Labels::from([("site".to_owned(), "north".to_owned())]);
        let declared = Declared { labels, ..Declared::default() };
        let beat = |unit| Heartbeat { declared: declared.clone(), ..world.beat(unit, world.at(0)) };
        units.iter().map(beat).collect::<Vec<_>>()
    };
    let known = async || world.engine.read(&all).await.unwrap().iter().filter(|seen| seen.is_known()).count();
    // An instance counts the units that it admits itself to partitions of the other one.
    one.hear(&beats(&all[..60]), world.at(0)).await.unwrap();
    other.hear(&beats(&all[..60]), world.at(0)).await.unwrap();
    one.hear(&beats(&all[60..80]), world.at(0)).await.unwrap();
    assert_eq!(known().await, 80);
    // The walk shows each instance the units that the other one admitted to its partitions; then they exchange counts.
    for mirror in [ones, others] {
        for partition in world.partitions() {
            let mark = mirror.mark(partition);
            for page in 0..world.engine.pages() {
                mirror.compare(mark, &world.engine.walk(partition, page).await.unwrap());
            }
            mirror.finish(mark, world.at(0));
        }
    }
    for _ in 0..3 {
        one.census().exchange(&*world.engine, "one", vec!["other".to_owned()]).await.unwrap();
        other.census().exchange(&*world.engine, "other", vec!["one".to_owned()]).await.unwrap();
    }
    for instance in [&one, &other] {
        let of = |label: &str, value: &str| instance.census().units_with(label, value);
        assert_eq!([of("site", "north"), of("site", "south"), of("room", "1")], [Some(80), Some(0), None]);
    }
    other.hear(&beats(&all), world.at(0)).await.unwrap();
    assert_eq!(known().await, 100);
}

pub async fn instances_that_share_a_fleet_know_its_shortest_timeout<G: Ground>(world: World<G>) {
    let instance = || {
        let mirror = Arc::new(Mirror::new(Arc::new(limited(100)), world.engine.partitions()));
        roll_with(world.engine.clone(), limited(100), mirror)
    };
    let (one, other) = (instance(), instance());
    let rules = limited(100).into_values().next().unwrap();
    let exchange = async || {
        one.census().exchange(&*world.engine, "one", vec!["other".to_owned()]).await.unwrap();
        other.census().exchange(&*world.engine, "other", vec!["one".to_owned()]).await.unwrap();
    };
    let mut beat = world.beat(&world.unit("fast"), world.at(0));
    beat.declared.timeout = Some(Duration::from_secs(2));
    one.hear(&[beat], world.at(0)).await.unwrap();
    assert_eq!(other.pace().shortest_of(&rules), rules.policy.timeout);
    exchange().await;
    assert_eq!(other.pace().shortest_of(&rules), Duration::from_secs(2));
    // The instance that met the unit announces its timeout for as long as it holds a lease.
    exchange().await;
    assert_eq!(other.pace().met_of(&rules.kind), None);
    other.census().exchange(&*world.engine, "other", Vec::new()).await.unwrap();
    assert_eq!(other.pace().shortest_of(&rules), rules.policy.timeout);
}

pub async fn instances_that_share_a_fleet_know_whether_their_configurations_differ<G: Ground>(
    world: World<G>,
) {
    let instance = || {
        let mirror = Arc::new(Mirror::new(Arc::new(limited(100)), world.engine.partitions()));
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(world.at(0))));
        (roll_that_reports(world.engine.clone(), limited(100), mirror, telemetry.clone()), telemetry)
    };
    let [(one, its), (other, others)] = [instance(), instance()];
    let warned = || {
        let of = |telemetry: &Telemetry| {
            telemetry.problems().iter().filter(|problem| problem.name == "configurations_differ").count()
        };
        [of(&its), of(&others)]
    };
    let exchange = async |times: u32| {
        for _ in 0..times {
            one.census().exchange(&*world.engine, "one", vec!["other".to_owned()]).await.unwrap();
            other.census().exchange(&*world.engine, "other", vec!["one".to_owned()]).await.unwrap();
        }
    };
    one.census().configured(1);
    exchange(9).await;
    assert_eq!(warned(), [0, 1], "the digest of one is unknown to itself only");
    other.census().configured(1);
    exchange(1).await;
    assert_eq!(warned(), [0, 0]);
    // A fleet is reloaded one instance after the other.
    one.census().configured(2);
    exchange(2).await;
    assert_eq!(warned(), [0, 0]);
    exchange(9).await;
    assert_eq!(warned(), [1, 1]);
    other.census().exchange(&*world.engine, "other", Vec::new()).await.unwrap();
    assert_eq!(warned(), [1, 0], "it is alone");
}
