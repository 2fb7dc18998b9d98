//! What each table holds, on both engines.

use std::time::Duration;

use futures_util::future::join_all;
use rollcall::clock::Timestamp;
use rollcall::fleet::{Operators, Silences, Subject, UnitChange};
use rollcall::history::{
    Database, DatabaseAccess, DatabaseAddress, fleet_digest, hand_over, past_fleet, prepare, prune, rewind,
    status, try_writing,
};
use rollcall::presence::{Heartbeat, Interval, Kind, Probed, UnitSettings};
use rollcall::store::{AttemptsEntry, AuditEntry, Audited, ChangeSet, Documents, on_record};

use crate::support::postgres::Postgres;
use crate::world::{CURSORS, DAY, EngineType, PARTITIONS, SECOND, World, units, until, until_so};

const TENTH: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn transitions_equal_the_records_of_an_engine_on_redis() {
    transitions_equal_the_records(EngineType::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transitions_equal_the_records_of_the_embedded_engine() {
    transitions_equal_the_records(EngineType::Embedded).await;
}

async fn transitions_equal_the_records(on: EngineType) {
    let mut world = World::new(on).await;
    let all = units(1300);
    world.hear(&all).await;
    world.silence(&all).await;
    // More records of one millisecond than a part has, written before history begins.
    world.write();
    world.until_alike().await;
    assert_eq!(world.count("open").await, 1300);
    // Some are back, one of them twice.
    world.pass(10 * SECOND).await;
    world.hear(&all[..700]).await;
    world.until_alike().await;
    world.silence(&all[..10]).await;
    world.pass(5 * SECOND).await;
    world.hear(&all[..5]).await;
    world.roll.retire(&all[900], world.clock.now()).await.unwrap();
    world.until_alike().await;
    assert_eq!(world.records().await.len(), 1310);
    // A later writer finds everything there, and goes on.
    world.pass(300 * SECOND).await;
    until(async || world.count(CURSORS).await == 3 * i64::from(PARTITIONS)).await;
    world.end_writers().await;
    let rows = world.count("transitions").await;
    world.write();
    world.hear(&all[1000..1100]).await;
    world.until_alike().await;
    assert_eq!(world.count("transitions").await, rows + 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_closed_long_before_its_moment_was_read_is_found() {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(3);
    world.hear(&all).await;
    world.silence(&all).await;
    world.write();
    world.until_alike().await;
    // Neither the opening is read again, nor the moment at which a device whose clock is behind is back.
    world.pass(300 * SECOND).await;
    let cursor = async || {
        let select = "SELECT min(at) FROM cursors WHERE source = 'closed'";
        let rows = world.postgres.rows(&world.access.schema, select).await;
        let at: Option<jiff::Timestamp> = rows.first().and_then(|row| row.get(0));
        at.map_or(Timestamp::ZERO, |at| Timestamp::from_millis(at.as_millisecond()))
    };
    until(async || {
        world.pass(3 * SECOND).await;
        cursor().await > world.clock.now() - 90 * SECOND
    })
    .await;
    let at = cursor().await - SECOND;
    let beat = Heartbeat::of(all[0].clone(), at);
    world.roll.hear(&[beat], world.clock.now()).await.unwrap();
    let back = world.records().await.into_iter().find(|one| one.back_at.is_some()).unwrap();
    assert_eq!(back.back_at, Some(at));
    world.pass(400 * SECOND).await;
    world.until_alike().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blind_time_is_the_ledger() {
    let mut world = World::new(EngineType::Embedded).await;
    world.write();
    world.pass(10 * SECOND).await;
    let mut expected = Vec::new();
    for length in [60, 90] {
        let from = world.clock.now();
        world.clock.advance(length * SECOND);
        world.roll.canary_returned(world.clock.now()).await.unwrap();
        expected.push((from.as_millis(), world.clock.now().as_millis()));
        world.pass(30 * SECOND).await;
    }
    let read = async || {
        let rows =
            world.postgres.rows(&world.access.schema, "SELECT kind, from_at, until_at FROM blind ORDER BY 2");
        let at = |row: &tokio_postgres::Row, at| row.get::<_, jiff::Timestamp>(at).as_millisecond();
        let row = |row: &tokio_postgres::Row| (row.get::<_, String>(0), at(row, 1), at(row, 2));
        rows.await.iter().map(row).collect::<Vec<_>>()
    };
    let fleet = |(from, to): &(i64, i64)| (String::new(), *from, *to);
    until(async || read().await == expected.iter().map(fleet).collect::<Vec<_>>()).await;
    let ledger: Vec<Interval> = world.roll.hearing().ledger.intervals().to_vec();
    assert_eq!(ledger.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn blind_time_stays_as_it_was_written_when_the_engine_joins_old_intervals() {
    let mut world = World::new(EngineType::Embedded).await;
    world.write();
    let kind: Kind = "detector".parse().unwrap();
    let blink = async |count: u32| {
        let begin = world.clock.now();
        for at in 0..2 * count {
            let (kind, filter, sent_at) = (kind.clone(), "a".to_owned(), begin + TENTH * at);
            let gap = if at % 2 == 0 { Duration::MAX } else { Duration::ZERO };
            world.engine.prove(&[Probed { kind, filter, sent_at, gap }]).await.unwrap();
        }
        world.clock.advance(TENTH * 2 * count);
        world.roll.canary_returned(world.clock.now()).await.unwrap();
        let known = format!("cursors WHERE source = 'blind' AND at >= '{}'", world.clock.now());
        until_so("blind time is written", async || world.count(&known).await == 1).await;
    };
    for count in [990, 100] {
        blink(count).await;
    }
    let kept = world.roll.hearing().filters.blind[&kind].len();
    assert_eq!((kept, world.count("blind WHERE kind = 'detector'").await), (1000, 1090));
    let exact = "blind WHERE kind = 'detector' AND until_at - from_at = interval '100 milliseconds'";
    assert_eq!(world.count(exact).await, 1090);
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_and_notifications_are_written_once() {
    let mut world = World::new(EngineType::Redis).await;
    world.write();
    let audit = |number: u64| AuditEntry {
        at: world.clock.now() + Duration::from_millis(number),
        author: "ana".to_owned(),
        change: Audited::Acknowledged,
        subject: format!("detector:unit-{number:04}:1700000000000"),
        text: "on my way".to_owned(),
    };
    let entries: Vec<AuditEntry> = (0..5).map(audit).collect();
    let documents = Documents::new(world.engine.clone());
    let append = |entry: &AuditEntry| documents.audit(ChangeSet::of(PARTITIONS), entry).unwrap();
    world.engine.write_cells(&entries.iter().map(append).collect::<Vec<_>>()).await.unwrap();
    for number in 0..3 {
        let attempt = |attempt: usize| {
            let result = if attempt == 2 { "delivered" } else { "failed" };
            let text = format!(
                r#"{{"i":"n{number}","r":"mail","g":"kind=detector","s":1700000000000,"t":17000000{attempt}0000,"d":7,
                    "n":{attempt},"e":"{result}","a":"250 ok","o":["detector:unit-0001:1700000000000"]}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let cell = (format!("{number}.cell"), AttemptsEntry((1..=2).map(attempt).collect()));
        let set = on_record(ChangeSet::of(number), &[cell], Some(world.clock.now())).unwrap();
        assert_eq!(world.engine.write_cells(&[set]).await.unwrap(), [true]);
    }
    world.pass(10 * SECOND).await;
    until(async || world.count("operations").await == 5 && world.count("notifications").await == 6).await;
    let select = "SELECT count(*) FROM notifications WHERE result = 'delivered' AND attempt = 2 AND receiver = 'mail' \
                  AND records = '{detector:unit-0001:1700000000000}' AND offline = 1 AND group_key = 'kind=detector'";
    assert_eq!(world.postgres.rows(&world.access.schema, select).await[0].get::<_, i64>(0), 3);
    let select =
        "SELECT count(*) FROM operations WHERE kind = 'detector' AND unit LIKE 'unit-%' AND author = 'ana'";
    assert_eq!(world.postgres.rows(&world.access.schema, select).await[0].get::<_, i64>(0), 5);
    // Read again, they are not written again.
    world.end_writers().await;
    world.write();
    world.pass(300 * SECOND).await;
    until(async || world.count(CURSORS).await == 3 * i64::from(PARTITIONS)).await;
    assert_eq!((world.count("operations").await, world.count("notifications").await), (5, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pause_is_written_however_short_and_whatever_came_after_it() {
    let mut world = World::new(EngineType::Embedded).await;
    let unit = units(1).remove(0);
    world.hear(std::slice::from_ref(&unit)).await;
    world.write();
    until(async || world.count("units").await == 1).await;
    let silences = Silences::new(world.engine.clone());
    let operators = Operators { roll: &world.roll, silences: &silences };
    let subject = Subject::Unit(unit.clone());
    let change = async |change: UnitChange| {
        let now = world.clock.now();
        assert!(operators.change(&subject, &change, ("ana", "works"), now).await.unwrap());
        now.as_millis()
    };
    // It is paused, back early, heard, and paused again by its settings: within minutes, the engine knows the last pause.
    let first = change(UnitChange::Pause(Some(world.clock.now() + 600 * SECOND))).await;
    world.pass(60 * SECOND).await;
    let ended = change(UnitChange::Pause(None)).await;
    world.pass(30 * SECOND).await;
    world.hear(std::slice::from_ref(&unit)).await;
    world.pass(30 * SECOND).await;
    let until_then = world.clock.now() + 120 * SECOND;
    let settings = UnitSettings { paused_until: Some(Some(until_then)), ..UnitSettings::default() };
    let second = change(UnitChange::Register(settings)).await;
    world.pass(3 * SECOND).await;
    let read = async || {
        let select = "SELECT from_at, until_at FROM pauses ORDER BY 1";
        let rows = world.postgres.rows(&world.access.schema, select).await;
        let at = |row: &tokio_postgres::Row, at| row.get::<_, jiff::Timestamp>(at).as_millisecond();
        rows.iter().map(|row| (at(row, 0), at(row, 1))).collect::<Vec<_>>()
    };
    let expected = [(first, ended), (second, until_then.as_millis())];
    until_so("both pauses are written", async || read().await == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_left_the_engine_before_it_was_written_is_a_named_loss() {
    for is_set_back in [false, true] {
        is_a_named_loss(is_set_back).await;
    }
}

/// `is_set_back`: an operator lets the engine be read again before an instance has named the loss.
async fn is_a_named_loss(is_set_back: bool) {
    let mut world = World::new(EngineType::Embedded).await;
    world.write();
    world.pass(300 * SECOND).await;
    until(async || world.count(CURSORS).await == 3 * i64::from(PARTITIONS)).await;
    world.end_writers().await;
    assert_eq!((world.count("losses").await, world.problem("history_incomplete")), (0, None));
    world.clock.advance(100 * DAY);
    if is_set_back {
        rewind(&mut Database::connect(&world.access).await.unwrap()).await.unwrap();
        assert_eq!(world.count(CURSORS).await, 0);
    }
    world.write();
    until(async || world.problem("history_incomplete").is_some()).await;
    let text = world.problem("history_incomplete").unwrap();
    assert!(text.contains("2023-11-14T22:") && text.contains("records.keep"), "{text}");
    let names = async || {
        let select = "SELECT DISTINCT table_name FROM losses ORDER BY 1";
        let rows = world.postgres.rows(&world.access.schema, select).await;
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    until(async || names().await == ["notifications", "transitions"]).await;
    world.hear(&units(1)).await;
    world.silence(&units(1)).await;
    world.until_alike().await;
    // It is named once.
    assert_eq!(world.count("cursors WHERE source LIKE 'before %'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_or_a_server_that_takes_no_writes_is_refused_and_a_trial_leaves_nothing() {
    let postgres = Postgres::start();
    let owner = postgres.access();
    let schema = &owner.schema;
    let tried = async |access: &DatabaseAccess| {
        let mut database = Database::connect(access).await.unwrap();
        try_writing(&mut database, access).await.map_err(|error| error.to_string())
    };
    // Also before there is a schema.
    tried(&owner).await.unwrap();
    let there = format!("SELECT to_regnamespace('{schema}') IS NULL");
    assert!(postgres.rows(schema, &there).await[0].get::<_, bool>(0));
    prepare(&mut Database::connect(&owner).await.unwrap(), &owner, None).await.unwrap();
    for _ in 0..2 {
        tried(&owner).await.unwrap();
    }
    let left = "SELECT (SELECT count(*) FROM cursors), to_regclass('trial') IS NULL";
    let left = postgres.rows(schema, left).await;
    assert_eq!((left[0].get::<_, i64>(0), left[0].get::<_, bool>(1)), (0, true));

    let client = postgres.client(schema).await;
    let url = postgres.url().replace("//rollcall@", "//reader:open@");
    let address = DatabaseAddress::parse(&url).unwrap();
    let reader = DatabaseAccess { address, password_file: None, ..owner.clone() };
    let grants = [
        "CREATE ROLE reader LOGIN PASSWORD 'open'".to_owned(),
        format!(
            "GRANT USAGE ON SCHEMA {schema} TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader"
        ),
        format!("GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO reader"),
        format!("GRANT CREATE ON SCHEMA {schema} TO reader"),
    ];
    for grant in grants {
        client.batch_execute(&grant).await.unwrap();
        let refused = tried(&reader).await.unwrap_err();
        assert!(refused.contains("must own the schema of history"), "{grant}: {refused}");
    }
    client.batch_execute("ALTER DATABASE postgres SET default_transaction_read_only = on").await.unwrap();
    let refused = tried(&owner).await.unwrap_err();
    assert!(refused.contains("needs a server that takes writes"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_find_no_history_at_the_same_moment_make_it_once() {
    let postgres = Postgres::start();
    for _ in 0..10 {
        let access = postgres.access();
        let connected = join_all((0..4).map(|_| Database::connect(&access))).await;
        let make =
            async |mut database: Database| prepare(&mut database, &access, Some(("one", PARTITIONS))).await;
        let made = connected.into_iter().map(|database| make(database.unwrap()));
        for one in join_all(made).await {
            one.unwrap();
        }
        let rows = postgres.rows(&access.schema, "SELECT count(*) FROM meta").await;
        assert_eq!(rows[0].get::<_, i64>(0), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_that_of_one_fleet_until_it_is_handed_over() {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(10);
    let mut database = Database::connect(&world.access).await.unwrap();
    // A fleet that was made by `history init` belongs to the first one that writes.
    prepare(&mut database, &world.access, None).await.unwrap();
    let another = fleet_digest("another");
    prepare(&mut database, &world.access, Some((&another, PARTITIONS))).await.unwrap();
    world.hear(&all).await;
    world.silence(&all).await;
    world.write();
    let is_refused =
        async || world.problem("history_down").is_some_and(|text| text.contains("another fleet"));
    until(is_refused).await;
    let text = world.problem("history_down").unwrap();
    assert!(text.contains("history.schema") && text.contains("rollcall history hand-over"), "{text}");
    assert_eq!((world.count("transitions").await, world.count("cursors").await), (0, 0));
    hand_over(&database).await.unwrap();
    world.until_alike().await;
    let refused = prepare(&mut database, &world.access, Some((&another, PARTITIONS))).await.unwrap_err();
    assert!(refused.to_string().contains("that of another fleet"), "{refused}");
    let kept = format!("SELECT count(*) FROM meta WHERE fleet LIKE '%{}%'", world.roll.key());
    assert_eq!(
        world.postgres.rows(&world.access.schema, &kept).await[0].get::<_, i64>(0),
        0,
        "the key is secret"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_moves_to_an_engine_with_fewer_partitions_goes_on_with_its_history() {
    goes_on_with_its_history(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_moves_to_an_engine_with_more_partitions_goes_on_with_its_history() {
    goes_on_with_its_history(7).await;
}

async fn goes_on_with_its_history(partitions: u16) {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(40);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.hear(&all).await;
    world.silence(&all[..20]).await;
    world.write();
    world.until_alike().await;
    let later = async |world: &World, span: Duration| {
        world.clock.advance(span);
        world.roll.canary_returned(world.clock.now()).await.unwrap();
    };
    let summed = async |world: &World, day: &str| {
        let select = format!("cursors WHERE source = 'daily' AND at >= '{day}'");
        until_so("a day is summed", async || world.count(&select).await == 1).await;
    };
    later(&world, 8000 * SECOND).await;
    summed(&world, "2023-11-15").await;
    world.end_writers().await;
    let client = world.postgres.client(&world.access.schema).await;
    client.batch_execute("UPDATE daily SET outages = 77").await.unwrap();
    let sums = world.count("daily").await;
    // Some silences end, and some units leave, before the other engine has them.
    world.hear(&all[..10]).await;
    for unit in &all[30..] {
        assert!(world.roll.retire(unit, world.clock.now()).await.unwrap());
    }
    world.move_to(partitions).await;
    world.write();
    until(async || world.problem("history_down").is_some_and(|text| text.contains("hand-over"))).await;
    hand_over(&Database::connect(&world.access).await.unwrap()).await.unwrap();
    let moved = world.clock.now();
    world.until_alike().await;
    later(&world, DAY).await;
    until_so("units are there or removed", async || {
        let removed = world.count(&format!("units WHERE removed_at = '{moved}'")).await;
        (removed, world.count("units WHERE removed_at IS NULL").await) == (10, 30)
    })
    .await;
    summed(&world, "2023-11-16").await;
    assert_eq!(world.count("daily WHERE outages = 77").await, sums, "no day is summed again");
    assert_eq!(world.count("losses").await, 0);
    // What was written of the other engine holds nothing up, and each partition has a cursor.
    assert_eq!(world.count(CURSORS).await, 3 * i64::from(partitions));
    let (kind, now) = ("detector".parse().unwrap(), world.clock.now());
    let database = Database::connect(&world.access).await.unwrap();
    until_so("the past is read up to now", async || {
        past_fleet(&database, &kind, (DAY, Some(now - 120 * SECOND)), now).await.unwrap().range.to > moved
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_may_have_the_name_of_a_reserved_word_and_its_rows_are_counted() {
    for schema in ["select", "user", "order"] {
        let mut world = World::new(EngineType::Embedded).await;
        world.access.schema = schema.to_owned();
        let all = units(30);
        world.write();
        world.hear(&all).await;
        world.silence(&all).await;
        world.hear(&all).await;
        world.until_alike().await;
        let database = Database::connect(&world.access).await.unwrap();
        assert_eq!(prune(&database, &Default::default(), world.clock.now()).await.unwrap(), [""; 0]);
        // Nothing has analysed the tables yet.
        let status = status(&database).await.unwrap();
        let of = |name: &str| status.tables.iter().find(|table| table.table == name).unwrap();
        assert_eq!((of("transitions").rows, of("transitions").is_estimated), (60, false));
        assert_eq!((of("open").rows, of("meta").rows), (0, 1));
        assert!(status.begins.is_some_and(|at| at < world.clock.now()));
    }
}
