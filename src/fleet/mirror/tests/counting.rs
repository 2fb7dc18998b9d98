//! Counts and lists of units with labels.

use super::*;

#[test]
fn units_are_counted_by_state_and_by_the_window_they_were_seen_in() {
    let mut model = Model::new();
    let hearing = Hearing { heard: Some(at(10_000)), ..Hearing::default() };
    let now = at(10_000);
    for (number, ago) in [(1, 0), (2, 60), (3, 110), (4, 500), (5, 3600)] {
        model.hear(&heartbeat(unit(number), at(10_000 - ago)), &hearing, at(10_000 - ago));
        model.check(&unit(number), &hearing, now);
    }
    model.register(&unit(6), &Registration::default(), &hearing, now);
    let pause = Some(Interval { from: at(9_999), to: at(20_000) });
    let absent = Registration { pause, ..Registration::default() };
    model.register(&unit(1), &absent, &hearing, now);
    let summary = model.mirror.summary(&hearing, now);
    // online, late, offline, never seen, paused, unknown
    assert_eq!(summary.kinds, [("detector".parse().unwrap(), [1, 1, 2, 1, 1, 0])]);
    // 1m 5m 15m 1h 6h 24h 48h 7d
    assert_eq!(summary.seen_within, [2, 3, 4, 5, 5, 5, 5, 5]);
}

#[test]
fn a_large_fleet_is_counted_as_a_small_one() {
    let mirror = Mirror::new(rules(), 16).with_labels(&["site".to_owned()]);
    let marks: Vec<Mark> = (0..16).map(|partition| mirror.mark(partition)).collect();
    for number in 0..120_000 {
        let seen = at_site(number, Some(["north", "south", "east"][number % 3]), Lifecycle::Present);
        mirror.compare(marks[usize::from(partition_of(&seen.unit, 16))], &[seen]);
    }
    let silent = at_site(7, Some("west"), silent());
    mirror.compare(mirror.mark(partition_of(&silent.unit, 16)), &[silent]);
    let summary = mirror.summary(&Hearing::default(), at(120_000));
    let mut total = [0; State::ALL.len()];
    for counts in summary.labels.values() {
        total.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert_eq!(summary.kinds[0].1, total);
    assert_eq!((total.iter().sum::<u64>(), total[State::Offline as usize]), (120_000, 1));
    assert_eq!((summary.labels.len(), summary.silent_since[0]), (4, Some(at(7))));
    assert_eq!((summary.seen_within[0], summary.seen_within[7]), (60, 120_000));
}

#[test]
fn archived_units_are_left_out_of_counts_and_lists_until_they_are_heard() {
    let mut of_kind = rules().values().next().unwrap().clone();
    of_kind.archive_after = Some(seconds(1000));
    let mirror = Mirror::new(Arc::new(Rules::from_iter([(of_kind.kind.clone(), of_kind)])), 3)
        .with_labels(&["site".to_owned()]);
    let put = |seen: Snapshot| mirror.compare(mirror.mark(partition_of(&seen.unit, 3)), &[seen]);
    for number in 0..4 {
        let lifecycle = if number < 2 { silent() } else { Lifecycle::Present };
        put(at_site(number, Some("north"), lifecycle));
    }
    let hearing = Hearing::default();
    let shown = |archive: Archive, now: u64| {
        let filter = UnitFilter { archive, ..UnitFilter::default() };
        let query = ListQuery { filter, order: ListOrder::Unit, limit: 10, ..ListQuery::default() };
        mirror.list(&query, &hearing, at(now)).len()
    };
    // The deadline of the silent units was at 0.
    for (now, left, archived) in [(999, 4, 0), (1000, 2, 2)] {
        assert_eq!(shown(Archive::LeftOut(at(now)), now), left, "{now}");
        assert_eq!(shown(Archive::Only(at(now)), now), archived, "{now}");
        assert_eq!(shown(Archive::Included, now), 4, "{now}");
        let summary = mirror.summary(&hearing, at(now));
        let counted: u64 = summary.kinds[0].1.iter().sum();
        assert_eq!((counted, summary.archived[0]), (left as u64, archived as u64), "{now}");
        let of_site: u64 = summary.labels.values().flatten().sum();
        assert_eq!((of_site, summary.heard), (left as u64, left as u64), "{now}");
    }
    assert_eq!(mirror.summary(&hearing, at(1000)).silent_since, [None]);
    put(at_site(1, Some("north"), Lifecycle::Present));
    assert_eq!(shown(Archive::LeftOut(at(1000)), 1000), 3);
}

#[test]
fn time_before_a_unit_was_known_counts_for_nothing() {
    let mirror = Mirror::new(rules(), 3).with_labels(&["site".to_owned()]);
    let known = |number: usize, site: &str, since: Option<u64>| {
        let mut seen = at_site(number, Some(site), Lifecycle::Present);
        let facts = seen.facts.as_mut().unwrap();
        facts.known = since.map(|since| Known::admitted(at(since)));
        mirror.compare(mirror.mark(partition_of(&seen.unit, 3)), &[seen]);
    };
    for (number, site, since) in
        [(0, "north", None), (1, "north", Some(150)), (2, "south", Some(180)), (3, "south", Some(50))]
    {
        known(number, site, since);
    }
    let range = Interval { from: at(100), to: at(200) };
    let of = |site: Option<&str>| {
        let label = site.map(|site| ("site".to_owned(), site.to_owned()));
        let filter = UnitFilter { label, ..UnitFilter::default() };
        let (units, spent) = mirror.time_spent(filter, range, &UnitPasts::default(), &Hearing::default());
        assert_eq!(spent.total(), spent.online);
        (units, spent.online.as_secs())
    };
    assert_eq!((of(None), of(Some("north")), of(Some("south"))), ((4, 270), (2, 150), (2, 120)));
    // Another unit takes the slot of a removed unit, and not its time.
    let gone = Snapshot { alive: None, facts: None, ..at_site(2, None, Lifecycle::Present) };
    mirror.compare(mirror.mark(partition_of(&gone.unit, 3)), &[gone]);
    known(2, "south", None);
    known(4, "south", Some(900));
    assert_eq!((of(None), of(Some("south"))), ((4, 350), (2, 200)), "one was not there yet");
}

#[test]
fn time_is_spent_as_records_pauses_and_the_ledger_say() {
    let mirror = Mirror::new(rules(), 3);
    let range = Interval { from: at(100), to: at(200) };
    let pause = Some(Interval { from: at(150), to: at(170) });
    for (number, lifecycle, pause) in [
        (0, Lifecycle::Present, None),
        (1, Lifecycle::Present, None),
        (2, offline_since(190), None),
        (3, Lifecycle::Present, pause),
    ] {
        let mut seen = at_site(number, None, lifecycle);
        seen.facts.as_mut().unwrap().pause = pause;
        mirror.compare(mirror.mark(partition_of(&seen.unit, 3)), &[seen]);
    }
    // The second one was offline, for a while in which nothing was heard; so was one that is gone.
    let outage = vec![Interval { from: at(110), to: at(130) }];
    let outages = [(unit(1).to_string(), outage.clone()), (unit(9).to_string(), outage)].into();
    // The first one was paused twice, and has the other pause no more.
    let pauses = [(unit(0).to_string(), vec![Interval { from: at(180), to: at(190) }])].into();
    let past = UnitPasts { outages, pauses };
    let blind = [Interval { from: at(120), to: at(125) }];
    let hearing = Hearing { ledger: Ledger::new(blind), ..Hearing::default() };
    let (units, spent) = mirror.time_spent(UnitFilter::default(), range, &past, &hearing);
    let parts = [spent.online, spent.offline, spent.blind, spent.paused, spent.unknown, spent.longest];
    assert_eq!(
        (units, spent.outages, parts.map(|part| part.as_secs())),
        (4, 2, [85 + 80 + 85 + 75, 15 + 10, 20, 30, 0, 15])
    );
}

/// A unit of that site, as the engine holds it.
fn at_site(number: usize, site: Option<&str>, lifecycle: Lifecycle) -> Snapshot {
    let mut seen = present(unit(number), at(number as u64));
    let facts = seen.facts.as_mut().unwrap();
    facts.lifecycle = lifecycle;
    facts.labels = site.map(|site| ("site".to_owned(), site.to_owned())).into_iter().collect();
    seen
}

fn silent() -> Lifecycle {
    offline_since(0)
}

fn offline_since(second: u64) -> Lifecycle {
    let (cause, deadline) = (Cause::Silence, at(second));
    Lifecycle::Offline(Silence { deadline, detected_at: deadline, cause, allowed: SECOND })
}

/// A mirror of one kind whose units are counted by their site: 1, 3, 5 … are of the north, 2 and 4 of the
/// south, 6 has no site; 2 and 3 are offline.
fn with_sites() -> Mirror {
    let mirror = Mirror::new(rules(), 3).with_labels(&["site".to_owned()]);
    let all: Vec<Snapshot> = (1..10)
        .map(|number| {
            let site = if number % 2 == 1 { Some("north") } else { Some("south").filter(|_| number < 6) };
            at_site(number, site, if number == 2 || number == 3 { silent() } else { Lifecycle::Present })
        })
        .collect();
    for partition in 0..3 {
        let here = |seen: &&Snapshot| partition_of(&seen.unit, 3) == partition;
        walk(&mirror, partition, || all.iter().filter(here).cloned().collect());
    }
    mirror
}

#[test]
fn units_are_counted_by_label_and_units_of_a_partition_that_is_no_longer_kept_are_not() {
    let mirror = with_sites();
    let counted = |mirror: &Mirror| {
        let labels = mirror.summary(&Hearing::default(), at(10)).labels.into_iter();
        labels.map(|((_, value), counts)| (value, counts[0], counts[2])).collect::<Vec<_>>()
    };
    let site = |name: &str, online, offline| (name.to_owned(), online, offline);
    assert_eq!(counted(&mirror), [site("north", 4, 1), site("south", 1, 1)]);
    assert_eq!(mirror.summary(&Hearing::default(), at(10)).silent_since, [Some(at(2))]);
    // A unit moves, one is removed, and one in its place has no facts but its heartbeat.
    let mark = mirror.mark(partition_of(&unit(1), 3));
    mirror.compare(mark, &[at_site(1, Some("south"), Lifecycle::Present)]);
    let removed = presence::retire(&at_site(2, Some("south"), silent()), at(9)).unwrap();
    let _ = mirror.changed(&at_site(2, Some("south"), silent()), &removed);
    let next = (20..).map(unit).find(|unit| partition_of(unit, 3) == partition_of(&self::unit(2), 3));
    mirror.seen(&[RecordedHeartbeat::of(&next.unwrap(), at(9))]);
    assert_eq!(counted(&mirror), [site("north", 3, 1), site("south", 2, 0)]);
    assert_eq!(mirror.summary(&Hearing::default(), at(10)).silent_since, [Some(at(3))]);
    let kept: u64 = counted(&mirror).iter().map(|(_, online, offline)| online + offline).sum();
    let gone = partition_of(&unit(3), 3);
    mirror.keep(|partition| partition != gone);
    let rest: u64 = counted(&mirror).iter().map(|(_, online, offline)| online + offline).sum();
    assert!(rest < kept);
    mirror.keep(|_| true);
    walk(&mirror, gone, || vec![at_site(3, Some("east"), Lifecycle::Present)]);
    assert_eq!(counted(&mirror)[0], site("east", 1, 0), "the labels are known still");
}

#[test]
fn a_reader_gets_the_units_that_its_filter_selects() {
    let mirror = with_sites();
    let seen = |filter: UnitFilter| {
        let (mut cursor, mut chunk, mut all) = (Cursor::new(filter), Chunk::default(), Vec::new());
        while mirror.read_next(&mut cursor, &mut chunk, &Hearing::default(), at(10)) {
            all.extend(mirror.units(&chunk).map(|seen| seen.id[5..].parse::<u32>().unwrap()));
        }
        all.sort();
        all
    };
    let site = |site: &str| Some(("site".to_owned(), site.to_owned()));
    let all = UnitFilter::default;
    assert_eq!(seen(all()), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(seen(UnitFilter { offline: true, ..all() }), [2, 3]);
    assert_eq!(seen(UnitFilter { label: site("south"), ..all() }), [2, 4]);
    assert_eq!(seen(UnitFilter { label: site("south"), offline: true, ..all() }), [2]);
    assert_eq!(seen(UnitFilter { label: site("west"), ..all() }), [0; 0]);
    assert_eq!(seen(UnitFilter { kind: Some("detector".parse().unwrap()), ..all() }).len(), 9);
    assert_eq!(seen(UnitFilter { kind: Some("other".parse().unwrap()), ..all() }), [0; 0]);
    let shard = |number| UnitFilter { shard: Some(FleetShard { number, of: 2 }), ..all() };
    let (mut first, second) = (seen(shard(0)), seen(shard(1)));
    assert!(!first.is_empty() && !second.is_empty());
    first.extend(second);
    first.sort();
    assert_eq!(first, [1, 2, 3, 4, 5, 6, 7, 8, 9], "each unit is in one shard");

    let names = ["detector:unit 2", "detector:unit 4", "detector:unit 99", "other:unit 2", "detector"];
    for partition in 0..3 {
        let filter = UnitFilter { offline: true, ..all() };
        let found = mirror.match_names(partition, &filter, names.iter().copied());
        let expect = |number, found| {
            if partition_of(&unit(number), 3) == partition { found } else { NameMatch::Unknown }
        };
        let expected = [
            expect(2, NameMatch::Selected),
            expect(4, NameMatch::NotSelected),
            NameMatch::Unknown,
            NameMatch::Unknown,
            NameMatch::Unknown,
        ];
        assert_eq!(found, expected);
    }
}
