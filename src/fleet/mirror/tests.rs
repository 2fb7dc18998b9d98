use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::fleet::Rules;
use crate::presence::{
    self, Cause, Declared, Departure, Facts, Hearing, Heartbeat, IndexChange, Interval, KindRules, Known,
    Labels, Ledger, Override, Policy, Registration, Silence, State, Verdict,
};

mod counting;
mod listing;
mod model;
mod plain_sort;

use model::Model;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(seconds)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn rules() -> Arc<Rules> {
    let kind: Kind = "detector".parse().unwrap();
    let policy = Policy { timeout: 100 * SECOND, grace: 20 * SECOND };
    Arc::new(Rules::from_iter([(kind.clone(), KindRules { policy, ..KindRules::new(kind) })]))
}

fn unit(number: usize) -> Unit {
    format!("detector:unit {number}").parse().unwrap()
}

fn stranger(unit: Unit) -> Snapshot {
    Snapshot { unit, alive: None, alive_at: None, facts: None, stored: None }
}

fn heartbeat(unit: Unit, at: Timestamp) -> Heartbeat {
    Heartbeat::of(unit, at)
}

fn listed(mirror: &Mirror, hearing: &Hearing, now: Timestamp) -> Vec<(String, State, Option<Timestamp>)> {
    let (mut cursor, mut chunk, mut all) = (Cursor::default(), Chunk::default(), Vec::new());
    while mirror.read_next(&mut cursor, &mut chunk, hearing, now) {
        all.extend(mirror.units(&chunk).map(|seen| (seen.id.to_owned(), seen.state, seen.last_seen)));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn ids(mirror: &Mirror) -> Vec<String> {
    listed(mirror, &Hearing::default(), at(0)).into_iter().map(|(id, ..)| id).collect()
}

fn walk(mirror: &Mirror, partition: u16, read: impl FnOnce() -> Vec<Snapshot>) {
    let mark = mirror.mark(partition);
    mirror.compare(mark, &read());
    mirror.finish(mark, at(0));
}

fn present(unit: Unit, last_seen: Timestamp) -> Snapshot {
    let facts = Some(Facts::new(Lifecycle::Present, last_seen));
    Snapshot { alive: Some(last_seen), alive_at: None, facts, ..stranger(unit) }
}

#[test]
fn a_silence_that_is_newer_than_the_copy_is_not_known_while_other_instances_hear() {
    let mirror = Mirror::new(rules(), 3);
    let mine = partition_of(&unit(1), 3);
    let hearing = Hearing { heard: Some(at(1000)), ..Hearing::default() };
    let compared = |seen: Snapshot, moment: Timestamp| {
        let mark = mirror.mark(mine);
        mirror.compare(mark, &[seen]);
        mirror.finish(mark, moment);
    };
    let state = || listed(&mirror, &hearing, at(1000))[0].1;
    compared(present(unit(1), at(0)), at(50));
    assert_eq!(state(), State::Unknown, "it is alone: no other instance can have heard the unit");
    mirror.has_others(true);
    // Up to when the partition was compared, and the state that is known then.
    for (compared, expected) in
        [(50, State::Online), (110, State::Late), (990, State::Unknown), (50, State::Online)]
    {
        mirror.refreshed(mine, at(compared));
        assert_eq!(state(), expected, "{compared}");
    }
    let settle = 30 * SECOND;
    let departure = Departure { at: at(700), settle, cause: Cause::LastWill, over_http: false };
    let facts = Facts { departure: Some(departure), ..Facts::new(Lifecycle::Present, at(650)) };
    compared(Snapshot { facts: Some(facts), ..present(unit(1), at(650)) }, at(660));
    assert_eq!(state(), State::Late, "an announcement is in the row");
    let pause = Some(Interval { from: at(900), to: at(1100) });
    let facts = Facts { pause, ..Facts::new(Lifecycle::Present, at(0)) };
    compared(Snapshot { facts: Some(facts), ..present(unit(1), at(0)) }, at(60));
    assert_eq!(state(), State::Paused, "as is a pause");
    mirror.has_others(false);
    compared(present(unit(1), at(0)), at(60));
    assert_eq!(state(), State::Unknown);
}

#[test]
fn a_partition_is_the_crc_16_of_kind_and_id() {
    // The checksums are those of Python's `binascii.crc_hqx`.
    let cases = [("a:1", 24695), ("detector:unit 7", 60116), ("x:ü", 57474)];
    for (text, crc) in cases {
        let unit: Unit = text.parse().unwrap();
        assert_eq!(partition_of(&unit, u16::MAX), crc);
        assert_eq!(partition_of(&unit, 16), crc % 16);
    }
}

#[test]
fn states_are_numbered_in_the_order_in_which_they_are_shown() {
    for (number, state) in State::ALL.into_iter().enumerate() {
        assert_eq!(state as usize, number);
    }
}

#[test]
fn a_row_takes_32_bytes() {
    assert_eq!(size_of::<crate::store::table::UnitRow>(), 32);
}

#[test]
fn a_heartbeat_that_was_on_its_way_does_not_bring_a_removed_unit_back() {
    let mut model = Model::new();
    model.hear(&heartbeat(unit(1), at(0)), &Hearing::default(), at(0));
    model.retire(&unit(1), at(1));
    model.mirror.seen(&[RecordedHeartbeat::of(&unit(1), at(1))]);
    assert!(ids(&model.mirror).is_empty());
}

#[test]
fn a_page_that_was_read_before_a_removal_does_not_bring_the_unit_back() {
    let mut model = Model::new();
    model.hear(&heartbeat(unit(1), at(0)), &Hearing::default(), at(0));
    let partition = partition_of(&unit(1), 3);
    let mark = model.mirror.mark(partition);
    let page = model.page(partition);
    model.retire(&unit(1), at(1));
    model.mirror.compare(mark, &page);
    assert!(ids(&model.mirror).is_empty());
}

#[test]
fn a_page_that_was_read_before_a_change_does_not_undo_it() {
    let mut model = Model::new();
    let hearing = Hearing { heard: Some(at(500)), ..Hearing::default() };
    model.hear(&heartbeat(unit(1), at(0)), &hearing, at(0));
    let partition = partition_of(&unit(1), 3);
    let mark = model.mirror.mark(partition);
    let page = model.page(partition);
    model.check(&unit(1), &hearing, at(500));
    model.mirror.compare(mark, &page);
    assert_eq!(listed(&model.mirror, &hearing, at(500))[0].1, State::Offline);
}

#[test]
fn a_page_brings_changes_of_other_instances() {
    let mirror = Mirror::new(rules(), 3);
    let mine = partition_of(&unit(1), 3);
    mirror.seen(&[RecordedHeartbeat::of(&unit(1), at(9))]);
    let mark = mirror.mark(mine);
    mirror.compare(mark, &[present(unit(1), at(5))]);
    assert_eq!(listed(&mirror, &Hearing::default(), at(10)), [("unit 1".into(), State::Online, Some(at(9)))]);
    let mut gone = present(unit(1), at(9));
    gone.facts = Some(Facts::new(Lifecycle::Retired(at(20)), at(9)));
    let mark = mirror.mark(mine);
    mirror.compare(mark, &[gone]);
    assert!(ids(&mirror).is_empty());
}

#[test]
fn a_unit_that_the_engine_has_lost_leaves_with_the_next_round() {
    let mirror = Mirror::new(rules(), 1);
    for number in 0..5 {
        mirror.seen(&[RecordedHeartbeat::of(&unit(number), at(0))]);
    }
    walk(&mirror, 0, || vec![present(unit(3), at(0))]);
    assert_eq!(ids(&mirror), ["unit 3"]);
}

#[test]
fn it_is_filled_when_each_partition_that_is_kept_was_compared() {
    let mirror = Mirror::new(rules(), 3);
    let mut filled = Box::pin(mirror.filled());
    for partition in 0..2 {
        walk(&mirror, partition, Vec::new);
        assert!((&mut filled).now_or_never().is_none(), "{partition}");
    }
    // Another instance owns the last one from now on.
    mirror.keep(|partition| partition < 2);
    assert!((&mut filled).now_or_never().is_some());
    assert!(mirror.filled().now_or_never().is_some());
}

#[test]
fn a_unit_that_appears_during_a_round_stays() {
    let mirror = Mirror::new(rules(), 1);
    walk(&mirror, 0, || {
        mirror.seen(&[RecordedHeartbeat::of(&unit(1), at(0))]);
        Vec::new()
    });
    assert_eq!(ids(&mirror), ["unit 1"]);
}

#[test]
fn facts_that_are_read_during_a_round_correct_what_a_heartbeat_alone_assumed() {
    let mirror = Mirror::new(rules(), 1);
    let mut short = present(unit(1), at(0));
    short.facts.as_mut().unwrap().set = Override { timeout: Some(SECOND), grace: Some(Duration::ZERO) };
    walk(&mirror, 0, || {
        mirror.seen(&[RecordedHeartbeat::of(&unit(1), at(0))]);
        vec![short]
    });
    assert_eq!(listed(&mirror, &Hearing::default(), at(10))[0].1, State::Unknown);
}

#[test]
fn an_offline_change_that_comes_after_the_return_that_followed_it_does_not_hide_the_unit() {
    let mut model = Model::new();
    let hearing = Hearing { heard: Some(at(500)), ..Hearing::default() };
    model.hear(&heartbeat(unit(1), at(0)), &hearing, at(0));
    let seen = model.read(&unit(1));
    let Verdict::Offline(take) = presence::check_deadline(&seen, model.rules(), &hearing, at(500)) else {
        panic!()
    };
    model.apply(&seen, &take);
    model.hear(&heartbeat(unit(1), at(501)), &hearing, at(501));
    let _ = model.mirror.changed(&seen, &take);
    assert_eq!(listed(&model.mirror, &hearing, at(501))[0].1, State::Online);
}

#[test]
fn a_change_that_seems_older_than_its_row_is_refused_and_settled_by_a_comparison_with_the_engine() {
    let mut model = Model::with_partitions(1);
    let hearing = Hearing { heard: Some(at(500)), ..Hearing::default() };
    model.hear(&heartbeat(unit(1), at(0)), &hearing, at(0));
    let seen = model.read(&unit(1));
    // Another instance's copy of the heartbeat came here, and the engine has lost it with the key.
    model.mirror.seen(&[RecordedHeartbeat::of(&unit(1), at(3))]);
    let Verdict::Offline(take) = presence::check_deadline(&seen, model.rules(), &hearing, at(500)) else {
        panic!()
    };
    assert!(!model.mirror.changed(&seen, &take), "it may be older");
    let mark = model.mirror.mark(0);
    let offline = Snapshot { alive: None, alive_at: None, facts: take.facts.clone(), ..seen };
    model.mirror.compare(mark, &[offline]);
    assert_eq!(listed(&model.mirror, &hearing, at(501))[0].1, State::Offline);
}

#[test]
fn a_change_that_comes_after_the_removal_that_followed_it_does_not_bring_the_unit_back() {
    let mut model = Model::new();
    let hearing = Hearing::default();
    model.hear(&heartbeat(unit(1), at(0)), &hearing, at(0));
    let seen = model.read(&unit(1));
    let Verdict::Alive(change) = presence::check_deadline(&seen, model.rules(), &hearing, at(5)) else {
        panic!()
    };
    model.apply(&seen, &change);
    model.retire(&unit(1), at(6));
    let _ = model.mirror.changed(&seen, &change);
    assert!(ids(&model.mirror).is_empty());
}

#[test]
fn a_removed_unit_that_is_registered_again_is_there_at_once() {
    let mut model = Model::new();
    let hearing = Hearing::default();
    model.hear(&heartbeat(unit(1), at(0)), &hearing, at(0));
    model.retire(&unit(1), at(6));
    model.register(&unit(1), &Registration::default(), &hearing, at(7));
    assert_eq!(listed(&model.mirror, &hearing, at(8)), [("unit 1".into(), State::NeverSeen, None)]);
}

#[test]
fn removals_are_forgotten_after_two_rounds_and_their_memory_is_used_again() {
    let mirror = Mirror::new(rules(), 1);
    let long = |number: usize| -> Unit { format!("detector:{number:0128}").parse().unwrap() };
    let gone = Change { key: KeyChange::Delete, index: IndexChange::Take, facts: None, record: None };
    for number in 0..10_000 {
        mirror.seen(&[RecordedHeartbeat::of(&long(number), at(0))]);
        if number % 100 != 0 {
            let _ = mirror.changed(&present(long(number), at(0)), &gone);
        }
    }
    let left: Vec<Unit> = (0..10_000).step_by(100).map(long).collect();
    assert_eq!(ids(&mirror), left.iter().map(|unit| unit.id.to_string()).collect::<Vec<_>>());
    assert!(mirror.bytes() < 250_000, "{} bytes", mirror.bytes());
    for _ in 0..2 {
        walk(&mirror, 0, || left.iter().map(|unit| present(unit.clone(), at(0))).collect());
    }
    mirror.seen(&[RecordedHeartbeat::of(&long(1), at(1))]);
    assert_eq!(ids(&mirror).len(), 101, "the removal is long ago");
}

#[test]
fn a_partition_that_is_not_kept_has_no_rows_and_ignores_updates_until_it_is_kept_again() {
    let mirror = Mirror::new(rules(), 2);
    let is_first = |unit: &Unit| partition_of(unit, 2) == 0;
    let (first, second): (Vec<Unit>, Vec<Unit>) = (0..20).map(unit).partition(is_first);
    (0..20).for_each(|number| mirror.seen(&[RecordedHeartbeat::of(&unit(number), at(0))]));
    let mark = mirror.mark(1);
    mirror.keep(|partition| partition == 0);
    assert_eq!(ids(&mirror).len(), first.len());
    mirror.seen(&[RecordedHeartbeat::of(&second[0], at(1))]);
    let _ = mirror.changed(
        &stranger(second[0].clone()),
        &Change {
            key: KeyChange::Keep,
            index: IndexChange::Keep,
            facts: present(second[0].clone(), at(1)).facts,
            record: None,
        },
    );
    walk(&mirror, 1, || vec![present(second[0].clone(), at(1))]);
    assert_eq!(ids(&mirror).len(), first.len());
    walk(&mirror, 0, || first.iter().map(|unit| present(unit.clone(), at(0))).collect());
    assert!(mirror.is_filled() && mirror.was_ever_filled(), "only kept partitions need to be filled");
    mirror.keep(|_| true);
    assert!(!mirror.is_filled() && mirror.keeps(1));
    // The mark is older than the reset of the partition.
    mirror.compare(mark, &[present(second[0].clone(), at(0))]);
    mirror.finish(mark, at(0));
    assert_eq!(ids(&mirror).len(), first.len());
    assert!(!mirror.is_filled());
    mirror.seen(&[RecordedHeartbeat::of(&second[0], at(2))]);
    assert_eq!(ids(&mirror).len(), first.len() + 1);
}

/// A batch of all rows of the only partition.
fn key_batch(mirror: &Mirror) -> KeyBatch {
    let mut batch = KeyBatch::default();
    assert!(mirror.next_batch(0, &mut batch, 100));
    batch
}

#[test]
fn expiry_keys_bring_heartbeats_and_name_units_that_should_have_none_or_one() {
    let mirror = Mirror::new(rules(), 1);
    let mut silent = present(unit(1), at(0));
    silent.facts.as_mut().unwrap().lifecycle = Lifecycle::Offline(Silence {
        deadline: at(100),
        detected_at: at(100),
        cause: Cause::Silence,
        allowed: 100 * SECOND,
    });
    walk(&mirror, 0, || vec![present(unit(0), at(5)), silent, present(unit(2), at(5))]);
    let batch = key_batch(&mirror);
    assert_eq!(batch.names().collect::<Vec<_>>(), ["detector:unit 0", "detector:unit 1", "detector:unit 2"]);
    assert_eq!(batch.done(), 1.0);
    let mismatch = mirror.apply_keys(0, &batch, &[Some(at(9)), Some(at(9)), None]);
    assert_eq!((mismatch.unexpected, mismatch.missing), (vec![unit(1)], vec![unit(2)]));
    let seen: Vec<_> = listed(&mirror, &Hearing::default(), at(10)).into_iter().map(|row| row.2).collect();
    assert_eq!(seen, [Some(at(9)), Some(at(0)), Some(at(5))]);
    assert_eq!(mirror.apply_keys(0, &batch, &[Some(at(3)), None, Some(at(3))]), KeyMismatch::default());
    assert_eq!(listed(&mirror, &Hearing::default(), at(10))[0].2, Some(at(9)), "the newest wins");
}

#[test]
fn an_expiry_key_is_not_applied_to_another_unit_that_has_the_row_by_now() {
    let mut model = Model::with_partitions(1);
    model.hear(&heartbeat(unit(1), at(0)), &Hearing::default(), at(0));
    let batch = key_batch(&model.mirror);
    model.retire(&unit(1), at(1));
    model.hear(&heartbeat(unit(2), at(1)), &Hearing::default(), at(1));
    assert_eq!(model.mirror.apply_keys(0, &batch, &[Some(at(7))]), KeyMismatch::default());
    assert_eq!(
        listed(&model.mirror, &Hearing::default(), at(10)),
        [("unit 2".into(), State::Online, Some(at(1)))]
    );
}

#[test]
fn the_mirror_is_filled_when_the_last_partition_was_compared_and_as_old_as_the_oldest() {
    let mirror = Mirror::new(rules(), 2);
    let first = mirror.mark(0);
    mirror.finish(first, at(5));
    assert!(!mirror.is_filled() && mirror.age(at(10)).is_none());
    let second = mirror.mark(1);
    mirror.finish(second, at(7));
    assert_eq!(mirror.age(at(10)), Some(5 * SECOND));
}

#[test]
fn units_of_kinds_without_rules_are_not_kept() {
    let mirror = Mirror::new(rules(), 2);
    mirror.seen(&[RecordedHeartbeat::of(&"other:1".parse().unwrap(), at(0))]);
    assert!(ids(&mirror).is_empty());
}

/// An event of one of a few units.
#[derive(Clone, Debug)]
enum Event {
    Heartbeat { late: u64, declares: Option<u64>, sleeps: Option<u64> },
    Check,
    Register { timeout: Option<u64>, pause: Option<(u64, u64)> },
    Retire,
    ReadPage,
    ComparePage,
}

fn events() -> impl Strategy<Value = Vec<(usize, u64, Event)>> {
    let event = prop_oneof![
        6 => (0u64..60, prop::option::weighted(0.2, 1u64..300), prop::option::weighted(0.1, 1u64..300))
            .prop_map(|(late, declares, sleeps)| Event::Heartbeat { late, declares, sleeps }),
        4 => Just(Event::Check),
        1 => (prop::option::of(1u64..300), prop::option::of((0u64..100, 1u64..300)))
            .prop_map(|(timeout, pause)| Event::Register { timeout, pause }),
        1 => Just(Event::Retire),
        2 => Just(Event::ReadPage),
        2 => Just(Event::ComparePage),
    ];
    prop::collection::vec((0usize..6, 0u64..90, event), 1..80)
}

proptest! {
    #[test]
    fn the_mirror_shows_every_unit_as_presence_evaluates_it(
        events in events(), blind in 0u64..2_000, length in 1u64..200,
    ) {
        let mut model = Model::new();
        let mut now = at(100);
        let mut pages: Vec<(Mark, Timestamp, Vec<Snapshot>)> = Vec::new();
        for (number, passes, event) in events {
            now = now + seconds(passes);
            let ledger = Ledger::new([Interval { from: at(blind), to: at(blind + length) }]);
            let hearing = Hearing { heard: Some(now), ledger, settle: 30 * SECOND, ..Hearing::default() };
            let one = unit(number);
            match event {
                Event::Heartbeat { late, declares, sleeps } => {
                    let declared = Declared {
                        timeout: declares.map(Duration::from_secs),
                        sleep: sleeps.map(Duration::from_secs),
                        ..Declared::default()
                    };
                    model.hear(&Heartbeat { declared, ..Heartbeat::of(one, now - seconds(late)) }, &hearing, now);
                }
                Event::Check => model.check(&one, &hearing, now),
                Event::Register { timeout, pause } => {
                    let wanted = Registration {
                        set: Override { timeout: timeout.map(Duration::from_secs), grace: None },
                        labels: Labels::new(),
                        pause: pause.map(|(wait, length)| {
                            let from = now + seconds(wait);
                            Interval { from, to: from + seconds(length) }
                        }),
                        note: None,
                    };
                    model.register(&one, &wanted, &hearing, now);
                }
                Event::Retire => model.retire(&one, now),
                Event::ReadPage => {
                    let partition = number as u16 % 3;
                    let mark = model.mirror.mark(partition);
                    pages.push((mark, now, model.page(partition)));
                }
                Event::ComparePage if !pages.is_empty() => {
                    let (mark, began, page) = pages.remove(0);
                    model.mirror.compare(mark, &page);
                    model.mirror.finish(mark, began);
                }
                Event::ComparePage => {}
            }
            prop_assert_eq!(listed(&model.mirror, &hearing, now), model.truth(&hearing, now));
        }
    }
}
