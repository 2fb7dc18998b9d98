//! What history no longer has is unknown, and what it has stays: through pruning, rereading, outages that outlast the
//! engine, and units that leave and come back.

use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::fleet::{AvailabilityHistory, Operators, PastTime, Silences, Subject, UnitChange};
use rollcall::history::{
    Database, HistoryReader, HistoryRetention, backfill, fleet_digest, prepare, prune, report, rewind, status,
};
use rollcall::presence::{Closing, Interval, OfflineRecord, Registration, TimeSpent, Unit};
use rollcall::reports::{AvailabilityReport, AvailabilityScope, Days, GroupBy, ReportRow, midnight};

use crate::reports::fleet;
use crate::world::{DAY, EngineType, PARTITIONS, SECOND, World, units, until, until_so};

/// From November 2023 until April.
fn winter() -> Days {
    Days { from: "2023-11-01".parse().unwrap(), until: "2024-04-01".parse().unwrap() }
}

async fn made(database: &Database, group: &str) -> AvailabilityReport {
    report(database, winter(), &GroupBy::from(group.to_owned())).await.unwrap()
}

fn row(report: &AvailabilityReport, name: &str) -> ReportRow {
    report.rows.iter().find(|row| row.name == name).unwrap().clone()
}

/// All but the longest outage, in milliseconds.
fn parts(spent: &TimeSpent) -> [u128; 6] {
    let TimeSpent { online, offline, blind, paused, unknown, outages, .. } = spent;
    let [online, offline, blind, paused, unknown] =
        [online, offline, blind, paused, unknown].map(|part| part.as_millis());
    [online, offline, blind, paused, unknown, u128::from(*outages)]
}

/// Whether the rows of each group add up to the same whole.
async fn agree(database: &Database, groups: &[&str]) {
    for group in groups {
        let made = made(database, group).await;
        let sum: TimeSpent = made.rows.iter().map(|row| row.spent).sum();
        assert_eq!(parts(&sum), parts(&made.total.spent), "{group}: {made:?}");
    }
}

/// All sums of days, as text.
async fn sums(world: &World) -> Vec<String> {
    let rows = world.postgres.rows(&world.access.schema, "SELECT daily::text FROM daily ORDER BY 1").await;
    rows.iter().map(|row| row.get(0)).collect()
}

async fn summed_until(world: &World, day: &str) {
    let select = format!("cursors WHERE source = 'daily' AND at >= '{day}'");
    until_so("days are summed", async || world.count(&select).await == 1).await;
}

/// A record of a unit at a site, as a line of a file.
fn closed((unit, site): (&Unit, &str), from: Timestamp, back: Timestamp) -> String {
    let open = OfflineRecord::open(unit.clone(), from - Duration::from_millis(1), from, from);
    let labels = [("site".to_owned(), site.to_owned())].into();
    let record = OfflineRecord { labels, back_at: Some(back), closed_by: Some(Closing::Return), ..open };
    serde_json::to_string(&record).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_open_outlives_a_prune_and_time_of_which_rows_are_dropped_is_unknown() {
    let world = World::new(EngineType::Embedded).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    // Of two units, one is offline from the third day on.
    let opening =
        "'detector:a:1', 'detector', 'a', '{}', 'silence', '2023-11-02', '2023-11-03', '2023-11-03'";
    let rows = format!(
        "INSERT INTO units VALUES ('detector', 'a', '{{}}', '2023-11-01', NULL, 0), \
         ('detector', 'b', '{{}}', '2023-11-01', NULL, 0); \
         CREATE TABLE transitions_2023_11 PARTITION OF transitions FOR VALUES FROM ('2023-11-01') TO ('2023-12-01'); \
         CREATE TABLE daily_all PARTITION OF daily DEFAULT; \
         INSERT INTO transitions SELECT '2023-11-03', 'offline', {opening}, NULL; \
         INSERT INTO open SELECT {opening}, 0; \
         INSERT INTO daily SELECT '2023-11-01'::date + d, 'fleet', '', 2, 86400 * (2 - o), 86400 * o, 0, 0, 0, o, o \
         FROM generate_series(0, 90) d, LATERAL (SELECT (d > 1)::int o) x; \
         INSERT INTO cursors VALUES ('daily', 4, '2024-01-31')"
    );
    world.postgres.client(&world.access.schema).await.batch_execute(&rows).await.unwrap();
    let spent = |report: &AvailabilityReport, name: &str| {
        let spent = row(report, name).spent;
        [spent.online, spent.offline, spent.unknown].map(|part| part.as_secs() / 86_400)
    };
    let before = made(&database, "unit").await;
    assert_eq!((spent(&before, "detector/a"), spent(&before, "detector/b")), ([2, 89, 0], [91, 0, 0]));
    assert_eq!(before.units_since, None);

    let keep = HistoryRetention { transitions: Some(31 * DAY), ..Default::default() };
    let now = midnight("2024-01-31".parse().unwrap());
    assert_eq!(prune(&database, &keep, now).await.unwrap(), ["transitions_2023_11"]);
    let after = made(&database, "unit").await;
    assert_eq!((spent(&after, "detector/a"), spent(&after, "detector/b")), ([0, 61, 30], [61, 0, 30]));
    let since = "rows of units are kept since 2023-12-01T00:00:00.000Z";
    assert!(after.notes().iter().any(|note| note.starts_with(since)), "{:?}", after.notes());
    // The sums of groups stay, and so does the record.
    let fleet = made(&database, "fleet").await;
    assert_eq!((parts(&fleet.total.spent), fleet.units_since), (parts(&before.total.spent), None));
    // They are complete without the rows from which they were made, unless some were lost.
    let spent = async |of: AvailabilityScope| availability(&world, &of, "2023-11-01", "2024-01-31").await;
    let found = spent(AvailabilityScope::Fleet).await;
    assert_eq!((parts(&found.spent), found.is_complete), (parts(&before.total.spent), true));
    assert!(!spent(AvailabilityScope::Unit("detector:b".parse().unwrap())).await.is_complete);
    let loss =
        "INSERT INTO losses VALUES ('transitions', '2023-11-09', '2023-11-10', '2024-01-30', 'a test')";
    world.postgres.client(&world.access.schema).await.batch_execute(loss).await.unwrap();
    assert!(!spent(AvailabilityScope::Fleet).await.is_complete);
    assert_eq!(world.count("outages WHERE back_at IS NULL AND offline_since = '2023-11-03'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_left_before_all_that_is_kept_of_its_time_is_dropped() {
    let world = World::new(EngineType::Embedded).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    let rows = "INSERT INTO units SELECT 'detector', unit, '{}', '2023-01-01', removed_at::timestamptz, 0 \
        FROM (VALUES ('september', '2023-09-30 23:59'), ('october', '2023-10-01 00:01'), ('here', NULL)) x(unit, removed_at)";
    world.postgres.client(&world.access.schema).await.batch_execute(rows).await.unwrap();
    let now = midnight("2024-01-31".parse().unwrap());
    let (month, season) = (Some(31 * DAY), Some(110 * DAY));
    for (transitions, daily, dropped) in [
        (month, None, vec![]),
        (None, month, vec![]),
        (season, month, vec!["1 rows of units"]),
        (month, season, vec![]),
        (month, month, vec!["1 rows of units"]),
    ] {
        let keep = HistoryRetention { transitions, daily, ..Default::default() };
        assert_eq!(prune(&database, &keep, now).await.unwrap(), dropped, "{keep:?}");
    }
    assert_eq!((world.count("units").await, world.count("units WHERE unit = 'here'").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn days_that_are_summed_stay_as_they_are_when_history_is_read_again() {
    let mut world = World::new(EngineType::Embedded).await;
    fleet(&world).await;
    world.write();
    summed_until(&world, "2023-11-15").await;
    world.end_writers().await;
    let before = sums(&world).await;
    // Neither the engine nor history has the outage any more.
    let all: Vec<u16> = (0..PARTITIONS).collect();
    assert_eq!(world.engine.forget_records(&all, world.clock.now()).await.unwrap(), 1);
    world.postgres.client(&world.access.schema).await.batch_execute("DELETE FROM transitions").await.unwrap();
    let mut database = Database::connect(&world.access).await.unwrap();
    rewind(&mut database).await.unwrap();
    world.clock.advance(DAY);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.write();
    summed_until(&world, "2023-11-16").await;
    let after = sums(&world).await;
    let first: Vec<&String> = after.iter().filter(|row| row.starts_with("(2023-11-14,")).collect();
    assert_eq!(first, before.iter().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_ended_unseen_ends_when_it_was_last_known_to_be_open_and_the_time_since_then_is_lost() {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(2);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.hear(&all).await;
    world.silence(&all[..1]).await;
    world.write();
    world.until_alike().await;
    world.pass(400 * SECOND).await;
    let record = world.records().await.remove(0);
    let detected = record.detected_at;
    let cursors = format!("cursors WHERE source IN ('opened', 'closed', 'open') AND at > '{detected}'");
    until_so("all of it is written", async || world.count(&cursors).await == 3 * i64::from(PARTITIONS)).await;
    world.end_writers().await;
    let ended = world.clock.now();
    world.pass(60 * SECOND).await;
    world.hear(&all[..1]).await;
    // The database is away for longer than the engine keeps the record.
    world.clock.advance(100 * DAY);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    let partitions: Vec<u16> = (0..PARTITIONS).collect();
    let kept = world.clock.now() - 90 * DAY;
    assert_eq!(world.engine.forget_records(&partitions, kept).await.unwrap(), 1);
    world.write();
    until(async || world.count("transitions WHERE closed_by = 'unknown'").await == 1).await;
    let select = "SELECT at, (SELECT count(*) FROM losses WHERE table_name = 'transitions' AND from_at <= t.at \
                  AND until_at > t.at + interval '9 days') FROM transitions t WHERE closed_by = 'unknown'";
    let rows = world.postgres.rows(&world.access.schema, select).await;
    let end = Timestamp::from_millis(rows[0].get::<_, jiff::Timestamp>(0).as_millisecond());
    assert!(record.detected_at <= end && end <= ended, "{end} is not until {ended}");
    assert_eq!((world.count("open").await, rows[0].get::<_, i64>(1) > 0), (0, true));
    // No outage is invented, in no group of a report.
    let day = rollcall::reports::day_of(kept).tomorrow().unwrap().to_string();
    summed_until(&world, &day).await;
    let database = Database::connect(&world.access).await.unwrap();
    let made = made(&database, "unit").await;
    let spent = row(&made, "detector/unit-0000").spent;
    let lost = made.losses[0];
    assert!(made.losses.len() == 1 && lost.from <= end && lost.to == kept, "{:?}", made.losses);
    assert_eq!((spent.offline, spent.outages), (lost.from.since(record.deadline), 1));
    assert_eq!(spent.unknown, lost.length());
    assert_eq!(parts(&row(&made, "detector/unit-0001").spent)[1], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_left_and_came_back_keeps_its_past_and_the_time_between_counts_for_nothing() {
    let mut world = World::new(EngineType::Embedded).await;
    let (all, begin) = (units(4), world.clock.now());
    world.roll.canary_returned(begin).await.unwrap();
    world.hear(&all[..3]).await;
    // It is registered, and never heard.
    world.roll.register(&all[3], &Registration::default(), begin).await.unwrap();
    world.write();
    until(async || world.count("units").await == 3).await;
    world.pass(600 * SECOND).await;
    let silences = Silences::new(world.engine.clone());
    let operators = Operators { roll: &world.roll, silences: &silences };
    let removed = world.clock.now();
    for unit in &all[1..3] {
        let subject = Subject::Unit(unit.clone());
        assert!(operators.change(&subject, &UnitChange::Remove, ("ana", "sold"), removed).await.unwrap());
    }
    world.pass(300 * SECOND).await;
    world.roll.register(&all[2], &Registration::default(), world.clock.now()).await.unwrap();
    world.pass(100 * SECOND).await;
    world.hear(&all[2..3]).await;
    let back = world.clock.now();
    world.clock.advance(8000 * SECOND);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    summed_until(&world, "2023-11-15").await;
    let lives = async |unit: &Unit| {
        let select =
            format!("SELECT known_since, removed_at FROM units WHERE unit = '{}' ORDER BY 1", unit.id);
        let rows = world.postgres.rows(&world.access.schema, &select).await;
        let at = |at: jiff::Timestamp| Timestamp::from_millis(at.as_millisecond());
        rows.iter().map(|row| (at(row.get(0)), row.get::<_, Option<_>>(1).map(at))).collect::<Vec<_>>()
    };
    assert_eq!(lives(&all[0]).await, [(begin, None)]);
    assert_eq!(lives(&all[1]).await, [(begin, Some(removed))], "at the moment of the removal");
    assert_eq!(lives(&all[2]).await, [(begin, Some(removed)), (back, None)]);
    assert_eq!(lives(&all[3]).await, []);
    let database = Database::connect(&world.access).await.unwrap();
    let made = made(&database, "unit").await;
    let total = |place: usize| row(&made, &format!("detector/{}", all[place].id)).spent.total();
    let midnight = midnight("2023-11-15".parse().unwrap());
    let lived = removed.since(begin);
    let expected = [midnight.since(begin), lived, lived + midnight.since(back)];
    assert_eq!([total(0), total(1), total(2)], expected);
    assert_eq!((made.rows.len(), made.total.units), (3, 3));
    agree(&database, &["fleet", "kind", "unit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_was_in_the_fleet_for_minutes_is_in_history() {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(3);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.hear(&all[..1]).await;
    world.write();
    until(async || world.count("units").await == 1).await;
    world.pass(60 * SECOND).await;
    // Another one is registered and never heard.
    world.roll.register(&all[2], &Registration::default(), world.clock.now()).await.unwrap();
    let labels = [("site".to_owned(), "north".to_owned())].into();
    let labelled = Registration { labels, ..Registration::default() };
    world.roll.register(&all[1], &labelled, world.clock.now()).await.unwrap();
    world.hear(&all[1..2]).await;
    let known = world.clock.now();
    world.silence(&all[1..2]).await;
    world.pass(600 * SECOND).await;
    let removed = world.clock.now();
    for unit in &all[1..] {
        assert!(world.roll.retire(unit, removed).await.unwrap());
    }
    world.clock.advance(8000 * SECOND);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    summed_until(&world, "2023-11-15").await;
    let stored = format!(
        "units WHERE unit = 'unit-0001' AND known_since = '{known}' AND removed_at = '{removed}' \
         AND labels ->> 'site' = 'north'"
    );
    assert_eq!((world.count(&stored).await, world.count("units").await), (1, 2));
    let database = Database::connect(&world.access).await.unwrap();
    let made = made(&database, "unit").await;
    let spent = row(&made, "detector/unit-0001").spent;
    assert_eq!((spent.total(), spent.outages), (removed.since(known), 1));
    agree(&database, &["fleet", "kind", "unit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_file_correct_the_days_that_are_summed_and_all_groups_agree() {
    let mut world = World::new(EngineType::Embedded).await;
    let (all, begin) = fleet(&world).await;
    world.write();
    summed_until(&world, "2023-11-15").await;
    let mut database = Database::connect(&world.access).await.unwrap();
    let groups = ["fleet", "kind", "site", "unit"];
    agree(&database, &groups).await;
    let before = made(&database, "site").await;
    let missing = |place: usize, from: u32, to: u32| {
        let site = if place == 2 { "south" } else { "north" };
        closed((&all[place], site), begin + from * SECOND, begin + to * SECOND)
    };
    // The third unit was online all day; the second one was paused for half of this outage.
    let file = [missing(2, 100, 300), missing(1, 100, 300)].join("\n");
    for rows in [4, 0] {
        let done = backfill(&mut database, file.as_bytes(), 70).await.unwrap();
        assert_eq!((done.rows, done.open), (rows, 0));
        let after = made(&database, "site").await;
        let grown = |name: &str| {
            let (before, after) = (row(&before, name).spent, row(&after, name).spent);
            let online = (before.online - after.online).as_secs();
            (online, (after.offline - before.offline).as_secs(), after.outages - before.outages)
        };
        assert_eq!((grown("south"), grown("north")), ((200, 200, 1), (100, 100, 1)));
        assert_eq!(row(&after, "south").spent.longest.as_secs(), 200);
        agree(&database, &groups).await;
    }
    // Days of which rows are dropped stay as they were summed.
    let client = world.postgres.client(&world.access.schema).await;
    client.batch_execute("UPDATE kept SET since = '2023-11-15'").await.unwrap();
    let before = sums(&world).await;
    let done = backfill(&mut database, missing(2, 400, 500).as_bytes(), 70).await.unwrap();
    assert_eq!((done.rows, sums(&world).await), (2, before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_comes_while_its_day_is_summed_is_in_the_sums() {
    let mut world = World::new(EngineType::Embedded).await;
    let (all, begin) = fleet(&world).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    // Sums wait after they have read what they sum.
    let client = world.postgres.client(&world.access.schema).await;
    client
        .batch_execute(
            "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END'; \
             CREATE TRIGGER waits BEFORE INSERT ON daily FOR EACH STATEMENT EXECUTE FUNCTION waits(); \
             SELECT pg_advisory_lock(7)",
        )
        .await
        .unwrap();
    world.write();
    let waiting = async || world.count("pg_locks WHERE locktype = 'advisory' AND NOT granted").await;
    until_so("a sum waits", async || waiting().await == 1).await;
    let line = closed((&all[2], "south"), begin + 100 * SECOND, begin + 300 * SECOND);
    let writing = tokio::spawn(async move {
        let written = backfill(&mut database, line.as_bytes(), 70).await.unwrap();
        (database, written.rows)
    });
    let is_so = async || writing.is_finished() || waiting().await == 2;
    until_so("the record is written, or waits", is_so).await;
    client.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    let (database, rows) = writing.await.unwrap();
    summed_until(&world, "2023-11-15").await;
    let south = row(&made(&database, "site").await, "south").spent;
    assert_eq!((rows, south.offline, south.outages), (2, 200 * SECOND, 1));
    agree(&database, &["fleet", "kind", "site", "unit"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_lets_history_begin_earlier_in_any_order_where_it_reaches_history_and_never_before_a_prune() {
    let mut world = World::new(EngineType::Embedded).await;
    let now = world.clock.now();
    let ago = |days: u32| now - DAY * days;
    // Each record was open for five days.
    let file = |closings: &[u32]| {
        let line = |days: &u32| closed((&units(1)[0], "north"), ago(days + 5), ago(*days));
        closings.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    for (closings, begins) in [([200, 1], 200), ([200, 95], 90)] {
        for serves_first in [true, false] {
            world.access = world.postgres.access();
            let mut database = Database::connect(&world.access).await.unwrap();
            prepare(&mut database, &world.access, None).await.unwrap();
            for serves in [serves_first, !serves_first] {
                if serves {
                    world.write();
                    until_so("it writes", async || world.count("cursors").await > 0).await;
                    world.end_writers().await;
                } else {
                    assert_eq!(
                        backfill(&mut database, file(&closings).as_bytes(), 70).await.unwrap().rows,
                        4
                    );
                }
            }
            assert_eq!(since(&world).await, ago(begins), "{closings:?}, serves first: {serves_first}");
            let keep = HistoryRetention { transitions: Some(31 * DAY), ..Default::default() };
            prune(&database, &keep, now).await.unwrap();
            backfill(&mut database, file(&[300, 2]).as_bytes(), 70).await.unwrap();
            assert_eq!(since(&world).await, midnight("2023-10-01".parse().unwrap()), "it was pruned");
        }
    }
}

/// How units spent the time from one midnight to another.
async fn availability(world: &World, of: &AvailabilityScope, from: &str, to: &str) -> PastTime {
    let reader = HistoryReader::new(world.access.clone(), fleet_digest(world.roll.key()));
    let [from, to] = [from, to].map(|day| midnight(day.parse().unwrap()));
    reader.time_spent(of, Interval { from, to }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_lets_history_begin_earlier_has_its_days_summed_and_the_time_before_it_is_unknown() {
    let mut world = World::new(EngineType::Embedded).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    // It is in the fleet until history begins to be written.
    let rows = "INSERT INTO units VALUES ('detector', 'old', '{}', '2023-10-20', NULL, 0)";
    world.postgres.client(&world.access.schema).await.batch_execute(rows).await.unwrap();
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.hear(&units(1)).await;
    world.write_with(|config| config.keep_records = 3 * DAY);
    until_so("history begins", async || world.count("kept").await == 1).await;
    world.clock.advance(8000 * SECOND);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    summed_until(&world, "2023-11-15").await;
    assert_eq!(world.count("daily WHERE scope = 'fleet'").await, 4);
    let fleet = AvailabilityScope::Fleet;
    let before = availability(&world, &fleet, "2023-11-06", "2023-11-15").await;
    let unknown = since(&world).await.since(midnight("2023-11-06".parse().unwrap()));
    assert_eq!((before.spent.unknown, before.is_complete), (unknown, false));

    let old: Unit = "detector:old".parse().unwrap();
    let hours = |hours: u32| midnight("2023-11-05".parse().unwrap()) + SECOND * 3600 * hours;
    // The last one reaches history; history begins with the end of the first one, two days later.
    let silences = [(0, 48), (72, 108), (168, 169)];
    let file = silences.map(|(from, to)| closed((&old, "north"), hours(from), hours(to))).join("\n");
    assert_eq!(backfill(&mut database, file.as_bytes(), 70).await.unwrap().rows, 6);
    let days = "daily WHERE scope = 'fleet' AND day BETWEEN '2023-11-07' AND '2023-11-14'";
    until_so("days before are summed", async || world.count(days).await == 8).await;
    let spent = made(&database, "fleet").await.total.spent;
    assert_eq!((spent.offline, spent.outages, spent.unknown), (37 * 3600 * SECOND, 2, Duration::ZERO));
    agree(&database, &["fleet", "kind", "unit"]).await;
    let since = availability(&world, &fleet, "2023-11-07", "2023-11-15").await;
    assert_eq!((parts(&since.spent), since.is_complete), (parts(&spent), true));
    let before = availability(&world, &fleet, "2023-11-06", "2023-11-15").await;
    assert_eq!((before.spent.unknown, before.is_complete), (DAY, false));
    // No day is summed twice, nor one before.
    assert_eq!(world.count("daily WHERE scope = 'fleet'").await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_measured_from_its_begin_and_a_day_without_sums_of_a_label_is_worked_out() {
    let world = World::new(EngineType::Embedded).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    // Offline for 60 hours: for 12 of them paused, for 6 blind, for 3 lost. The second day has too many sites.
    let rows = "INSERT INTO units VALUES ('detector', 'a', '{\"site\": \"north\"}', '2023-11-01', NULL, 0); \
        CREATE TABLE transitions_all PARTITION OF transitions DEFAULT; CREATE TABLE daily_all PARTITION OF daily DEFAULT; \
        INSERT INTO transitions VALUES ('2023-11-04 12:00', 'online', 'detector:a:1', 'detector', 'a', '{}', 'silence', \
        '2023-11-01', '2023-11-02', '2023-11-02', 'return'); \
        INSERT INTO pauses VALUES ('detector', 'a', '2023-11-02 06:00', '2023-11-02 18:00'); \
        INSERT INTO blind VALUES ('', '2023-11-03 00:00', '2023-11-03 06:00'); \
        INSERT INTO losses VALUES ('transitions', '2023-11-03 12:00', '2023-11-03 15:00', '2023-11-05', 'a test'); \
        INSERT INTO daily SELECT '2023-11-01'::date + d, s, n, 1, 86400, 0, 0, 0, 0, 0, 0 FROM generate_series(0, 3) d, \
        (VALUES ('fleet', ''), ('label:site', 'north')) x(s, n) WHERE s = 'fleet' OR d <> 1; \
        INSERT INTO cursors VALUES ('daily', 4, '2023-11-05')";
    world.postgres.client(&world.access.schema).await.batch_execute(rows).await.unwrap();
    for (day, next, hours) in [("2023-11-03", "2023-11-04", 27), ("2023-11-04", "2023-11-05", 39)] {
        let days = Days { from: day.parse().unwrap(), until: next.parse().unwrap() };
        let made = report(&database, days, &GroupBy::Unit).await.unwrap();
        assert_eq!(row(&made, "detector/a").spent.longest, hours * 3600 * SECOND, "{day}");
    }
    let label = AvailabilityScope::Label { name: "site".to_owned(), value: "north".to_owned() };
    let found = availability(&world, &label, "2023-11-01", "2023-11-05").await;
    assert_eq!((found.spent.total(), found.spent.outages), (4 * DAY, 1), "{found:?}");
}

/// Since when all transitions are kept.
async fn since(world: &World) -> Timestamp {
    let select = "SELECT since FROM kept WHERE table_name = 'transitions'";
    let rows = world.postgres.rows(&world.access.schema, select).await;
    Timestamp::from_millis(rows[0].get::<_, jiff::Timestamp>(0).as_millisecond())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_whose_end_is_blind_is_summed_when_it_is_known_how_long_that_lasted() {
    let mut world = World::new(EngineType::Embedded).await;
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.hear(&units(1)).await;
    world.pass(60 * SECOND).await;
    let heard = world.clock.now();
    // Until after midnight.
    world.clock.advance(8000 * SECOND);
    world.write();
    let passes = async |sources: [&str; 2], moment: Timestamp| {
        let cursors = format!("cursors WHERE source = ANY ('{{{}}}') AND at > '{moment}'", sources.join(","));
        until_so("other cursors pass", async || world.count(&cursors).await == 2 * i64::from(PARTITIONS))
            .await;
    };
    let midnight = midnight("2023-11-15".parse().unwrap());
    passes(["units", "open"], midnight).await;
    passes(["opened", "closed"], midnight).await;
    // After one pass more the day would have been summed.
    let before = world.clock.now();
    world.clock.advance(130 * SECOND);
    passes(["opened", "closed"], before).await;
    assert_eq!(world.count("daily").await, 0);
    let database = Database::connect(&world.access).await.unwrap();
    let known = status(&database).await.unwrap().cursors.into_iter().find(|one| one.source == "blind");
    assert_eq!(known.map(|one| one.at), Some(heard), "what it waits for is said");
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    summed_until(&world, "2023-11-15").await;
    let spent = made(&database, "fleet").await.total.spent;
    assert_eq!((spent.online, spent.blind), (60 * SECOND, midnight.since(heard)));
}
