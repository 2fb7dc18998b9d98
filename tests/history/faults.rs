//! Faults of the database: nothing is lost, nothing is there twice, and nothing waits for it.

use std::time::Duration;

use rollcall::history::{
    Database, DatabaseAccess, DatabaseAddress, backfill, past_fleet, prepare, prune, report, rewind, status,
};
use rollcall::presence::Registration;
use rollcall::reports::{Days, GroupBy};
use rollcall::trust::TlsFiles;

use crate::lived::{Lived, SCHEMA};
use crate::support::certificates::Authority;
use crate::support::distance::Distance;
use crate::support::postgres::{PASSWORD, Postgres};
use crate::world::{DAY, EngineType, PARTITIONS, SECOND, World, units, until, until_so};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_killed_in_a_storm_has_every_record_once_when_it_is_back() {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(3000);
    world.write();
    world.hear(&all).await;
    until(async || world.count("meta").await == 1).await;
    world.silence(&all[..1500]).await;
    until(async || world.count("transitions").await > 0).await;
    world.postgres.kill();
    // An hour passes, in which all else goes on.
    world.silence(&all[1500..]).await;
    world.pass(3600 * SECOND).await;
    world.hear(&all[1000..2500]).await;
    until(async || world.problem("history_down").is_some()).await;
    assert_eq!(world.records().await.len(), 3000);
    world.postgres.restart();
    world.until_alike().await;
    until(async || world.problem("history_down").is_none()).await;
    assert_eq!((world.count("transitions").await, world.count("losses").await), (4500, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_takes_too_long_is_tried_again_and_holds_up_nothing() {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(300);
    world.write_with(|config| config.access.statement_timeout = SECOND);
    world.hear(&all).await;
    until(async || world.count("meta").await == 1).await;
    // Another program holds the table.
    let client = world.postgres.client(&world.access.schema).await;
    client.batch_execute("BEGIN; LOCK TABLE transitions IN ACCESS EXCLUSIVE MODE").await.unwrap();
    world.silence(&all).await;
    until(async || world.problem("history_down").is_some_and(|text| text.contains("too slow"))).await;
    assert_eq!(world.records().await.len(), 300, "records are written meanwhile");
    client.batch_execute("ROLLBACK").await.unwrap();
    world.until_alike().await;
    // Each statement takes half a second.
    client
        .batch_execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END'; \
             CREATE TRIGGER slow AFTER INSERT ON transitions FOR EACH STATEMENT EXECUTE FUNCTION slow()",
        )
        .await
        .unwrap();
    world.hear(&all[..100]).await;
    world.until_alike().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_said_and_the_right_one_in_its_file_needs_no_restart() {
    let mut world = World::new(EngineType::Embedded).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    world.access.password_file = Some(file.clone());
    world.write();
    let says = async |part: &str| world.problem("history_down").is_some_and(|text| text.contains(part));
    until_so("the password is wrong", async || says("password authentication failed").await).await;
    let text = world.problem("history_down").unwrap();
    assert!(text.contains("history.password_file") && !text.contains("wrong"), "{text}");
    std::fs::remove_file(&file).unwrap();
    until_so("there is no file", async || says("No such file").await).await;
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    until_so("it writes", async || world.problem("history_down").is_none()).await;
    world.hear(&units(1)).await;
    world.silence(&units(1)).await;
    world.until_alike().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_refused_with_a_sentence_and_nothing_is_written() {
    let mut world = World::new(EngineType::Embedded).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    let client = world.postgres.client(&world.access.schema).await;
    client.batch_execute("UPDATE meta SET version = 1").await.unwrap();
    let old = prepare(&mut database, &world.access, None).await.unwrap_err().to_string();
    assert!(old.contains("has version 1, and this program writes version 2"), "{old}");
    client.batch_execute("UPDATE meta SET version = 2").await.unwrap();
    client.batch_execute("INSERT INTO meta (version) VALUES (3)").await.unwrap();
    world.hear(&units(1)).await;
    world.silence(&units(1)).await;
    world.write();
    until(async || world.problem("history_down").is_some_and(|text| text.contains("has version 3"))).await;
    assert_eq!(world.count("transitions").await, 0);
    client.batch_execute("DELETE FROM meta WHERE version = 3").await.unwrap();
    world.until_alike().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_that_believe_to_own_everything_write_each_row_once() {
    let mut world = World::new(EngineType::Redis).await;
    let all = units(1000);
    world.write();
    world.write();
    world.hear(&all).await;
    world.silence(&all).await;
    world.hear(&all[..500]).await;
    world.until_alike().await;
    world.pass(300 * SECOND).await;
    world.silence(&all[..500]).await;
    world.until_alike().await;
    assert_eq!((world.count("transitions").await, world.problem("history_down")), (2000, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_database_refuses_is_a_named_loss_and_everything_else_is_written() {
    let mut world = World::new(EngineType::Embedded).await;
    let all = units(100);
    // To JSON this label looks like an escape that PostgreSQL does not take.
    let labels = [("site".to_owned(), r"a\u0000b".to_owned())].into();
    let labelled = Registration { labels, ..Registration::default() };
    world.roll.register(&all[0], &labelled, world.clock.now()).await.unwrap();
    world.hear(&all).await;
    world.write();
    until(async || world.count("units").await == 100).await;
    let client = world.postgres.client(&world.access.schema).await;
    client
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN RAISE EXCEPTION USING ERRCODE = ''54000'', MESSAGE = ''too large''; END'; \
             CREATE TRIGGER refuse BEFORE INSERT ON transitions FOR EACH ROW WHEN (NEW.unit = 'unit-0042') \
             EXECUTE FUNCTION refuse()",
        )
        .await
        .unwrap();
    world.silence(&all).await;
    until(async || world.count("transitions").await == 99).await;
    let id = world.records().await.into_iter().find(|one| one.unit == all[42].id).unwrap().id;
    let lost =
        format!("losses WHERE table_name = 'transitions' AND why LIKE '%record {id}:%too large (54000)'");
    until(async || world.count(&lost).await == 1).await;
    let text = world.problem("history_incomplete").unwrap();
    assert!(text.contains(&id.text()) && text.contains("rollcall history backfill"), "{text}");
    let site = r"transitions WHERE labels ->> 'site' = 'a\u0000b'";
    assert_eq!((world.count(site).await, world.count("losses").await), (1, 1));
    // The cursor passes the row; it is read once more, and is no further loss.
    let detected = world.clock.now();
    let passed = format!("cursors WHERE source = 'opened' AND at > '{detected}'");
    world.pass(300 * SECOND).await;
    until(async || world.count(&passed).await == i64::from(PARTITIONS)).await;
    assert_eq!((world.count("losses").await, world.problem("history_down")), (1, None));
    client.batch_execute("DROP TRIGGER refuse ON transitions").await.unwrap();
    rewind(&mut Database::connect(&world.access).await.unwrap()).await.unwrap();
    until(async || world.count("transitions").await == 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_file_are_filled_in_and_old_months_are_dropped() {
    let world = World::new(EngineType::Embedded).await;
    let all = units(200);
    for month in 0..3 {
        world.hear(&all).await;
        world.silence(&all).await;
        world.hear(&all[month * 50..]).await;
        world.clock.advance(30 * DAY);
    }
    let records = world.records().await;
    let open = records.iter().filter(|one| one.back_at.is_none()).count();
    let lines: Vec<String> = records.iter().map(|one| serde_json::to_string(one).unwrap()).collect();
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    let done = backfill(&mut database, lines.join("\n").as_bytes(), 70).await.unwrap();
    assert_eq!((done.records, done.open), (records.len() as u64, open as u64));
    assert_eq!(done.rows, 2 * (records.len() - open) as u64);
    let again = backfill(&mut database, lines.join("\n").as_bytes(), 70).await.unwrap();
    assert_eq!(again.rows, 0);
    let wrong = backfill(&mut database, &b"\n{\"id\":7}"[..], 70).await.unwrap_err();
    assert!(wrong.to_string().starts_with("line 2 is no record"), "{wrong}");

    let keep = rollcall::history::HistoryRetention { transitions: Some(31 * DAY), ..Default::default() };
    let before = world.count("transitions").await;
    let dropped = prune(&database, &keep, world.clock.now()).await.unwrap();
    assert!(dropped.contains(&"transitions_2023_11".to_owned()), "{dropped:?}");
    assert!(world.count("transitions").await < before);
    let rest = "SELECT count(*) FROM transitions WHERE at < '2023-12-01'";
    assert_eq!(world.postgres.rows(&world.access.schema, rest).await[0].get::<_, i64>(0), 0);
    assert_eq!(prune(&database, &keep, world.clock.now()).await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_cut_themselves_are_written_and_pruned_as_they_are() {
    let mut world = World::new(EngineType::Embedded).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    // To this program they look like those that TimescaleDB cuts.
    let client = world.postgres.client(&world.access.schema).await;
    for table in ["transitions", "notifications", "daily"] {
        let whole = format!(
            "CREATE TABLE whole (LIKE {table} INCLUDING ALL); DROP TABLE {table} CASCADE; ALTER TABLE whole RENAME TO {table}"
        );
        client.batch_execute(&whole).await.unwrap();
    }
    let schema = include_str!("../../src/history/schema.sql");
    let (_, view) = schema.split_once("CREATE VIEW").unwrap();
    let (view, _) = view.split_once(';').unwrap();
    client.batch_execute(&format!("CREATE VIEW {view}")).await.unwrap();
    let all = units(100);
    world.write();
    world.hear(&all).await;
    world.silence(&all).await;
    world.hear(&all).await;
    world.until_alike().await;
    let parts = "SELECT count(*) FROM pg_class WHERE relispartition AND relnamespace = current_schema()::regnamespace";
    assert_eq!(world.postgres.rows(&world.access.schema, parts).await[0].get::<_, i64>(0), 0);
    let keep = rollcall::history::HistoryRetention { transitions: Some(DAY), ..Default::default() };
    assert_eq!(prune(&database, &keep, world.clock.now()).await.unwrap(), Vec::<String>::new());
    assert_eq!(
        prune(&database, &keep, world.clock.now() + 2 * DAY).await.unwrap(),
        ["200 rows of transitions"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_a_second_for_each_statement_holds_up_neither_detection_nor_notifications() {
    const DEVICES: usize = 300;
    let postgres = Postgres::start();
    let far = Distance::to(postgres.port(), SECOND).await;
    let mut lived = Lived::start(
        &postgres,
        far.port(),
        "[route]\nreceivers = [\"hook\"]\ngroup_wait = \"0s\"\n[breaker]\nenabled = false\n",
    )
    .await;
    let rows = async || {
        let found =
            postgres.rows(SCHEMA, "SELECT count(*) FROM transitions WHERE transition = 'offline'").await;
        found.first().map_or(0, |row| row.get::<_, i64>(0))
    };
    lived.devices(|config| config.units = DEVICES).await;
    let made = "SELECT count(*) FROM pg_tables WHERE tablename = 'cursors'";
    until(async || postgres.rows("public", made).await[0].get::<_, i64>(0) == 1).await;
    lived.fall_silent().await;
    let records = lived.records(DEVICES).await;
    let all_told = async || {
        let told =
            lived.told().into_iter().map(|(_, body)| body["data"]["offline"].as_array().unwrap().len());
        told.sum::<usize>() >= DEVICES
    };
    until_so("each silence is told of", all_told).await;
    let written = rows().await;
    let late = records.iter().map(|record| record.detected_at.since(record.deadline)).max().unwrap();
    assert!(late < 2 * SECOND, "the last one was detected after {late:?}");
    let (last, begun) = (lived.told().last().unwrap().0, records.iter().map(|record| record.deadline).min());
    let told = last.since(begun.unwrap());
    assert!(told < 6 * SECOND, "the last message came {told:?} after the first deadline");
    assert!(written < DEVICES as i64, "the database was not behind");
    until(async || rows().await == DEVICES as i64).await;
    assert!(!lived.text("/readyz").await.1.contains("history_down"), "it is slow, and not away");
    lived.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_statements_to_a_slow_database_each_have_the_time_of_one() {
    let world = World::new(EngineType::Embedded).await;
    let mut database = Database::connect(&world.access).await.unwrap();
    prepare(&mut database, &world.access, None).await.unwrap();
    let rows = "CREATE TABLE daily_all PARTITION OF daily DEFAULT; \
        INSERT INTO units VALUES ('detector', 'a', '{}', '2023-11-01', NULL, 0); \
        INSERT INTO daily VALUES ('2023-11-01', 'fleet', '', 1, 86400, 0, 0, 0, 0, 0, 0); \
        INSERT INTO cursors VALUES ('daily', 4, '2023-11-02')";
    database.client().batch_execute(rows).await.unwrap();
    // A statement takes two round trips, and the limit of one is twelve seconds.
    let far = async |round_trip: Duration| {
        let way = Distance::to(world.postgres.port(), round_trip).await;
        let (near, far) = (format!(":{}/", world.postgres.port()), format!(":{}/", way.port()));
        let address = DatabaseAddress::parse(&world.postgres.url().replace(&near, &far)).unwrap();
        let access = DatabaseAccess { address, statement_timeout: 2 * SECOND, ..world.access.clone() };
        (Database::connect(&access).await.unwrap(), way)
    };
    let (kind, now) = ("detector".parse().unwrap(), world.clock.now());
    let days = Days { from: "2023-11-01".parse().unwrap(), until: "2023-11-02".parse().unwrap() };
    let of_status = async {
        let (database, _way) = far(SECOND * 4 / 10).await;
        status(&database).await
    };
    let of_past = async {
        let (database, _way) = far(SECOND * 8 / 10).await;
        past_fleet(&database, &kind, (DAY, None), now).await
    };
    let of_units = async {
        let (database, _way) = far(SECOND * 12 / 10).await;
        report(&database, days, &GroupBy::Unit).await
    };
    let (tables, past, made) = tokio::join!(of_status, of_past, of_units);
    assert!(tables.unwrap().tables.len() > 10);
    assert_eq!((past.unwrap().silences.len(), made.unwrap().rows.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_nothing_and_history_goes_on_when_there_is_room() {
    let mut world = World::over(EngineType::Embedded, Postgres::with_room((1 << 20) + 4096)).await;
    let all = units(4000);
    world.write();
    world.hear(&all).await;
    until(async || world.count("meta").await == 1).await;
    world.silence(&all).await;
    world.hear(&all).await;
    world.pass(SECOND).await;
    until(async || world.problem("history_down").is_some_and(|text| text.contains("disk"))).await;
    let text = world.problem("history_down").unwrap();
    assert!(text.contains("make room on its disk"), "{text}");
    assert!(world.count("transitions").await < 8000);
    // Everything else goes on.
    assert_eq!(world.records().await.iter().filter(|one| one.back_at.is_some()).count(), 4000);
    world.postgres.make_room();
    world.until_alike().await;
    until(async || world.problem("history_down").is_none()).await;
    assert_eq!((world.count("transitions").await, world.count("losses").await), (8000, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_proves_the_server_by_its_authority_and_its_name() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, stranger) = (Authority::new(dir.path()), Authority::new(other.path()));
    let encrypted = Postgres::with_tls(&authority);
    let plain = Postgres::start();
    let access = |postgres: &Postgres, mode: &str, authority: &Authority| {
        let url = format!("{}?sslmode={mode}", postgres.url());
        let address = DatabaseAddress::parse(&url).unwrap();
        let tls = TlsFiles { ca: Some(authority.file("ca.pem").into()), ..TlsFiles::default() };
        DatabaseAccess { address, tls, ..postgres.access() }
    };
    for (access, wrong) in [
        (access(&encrypted, "require", &authority), None),
        (access(&encrypted, "disable", &authority), None),
        (access(&encrypted, "require", &stranger), Some("invalid peer certificate")),
        (access(&plain, "require", &authority), Some("does not support TLS")),
    ] {
        let opened = Database::connect(&access).await;
        let is_encrypted = match opened {
            Ok(database) => {
                let select = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
                Ok(database.client().query_one(select, &[]).await.unwrap().get::<_, bool>(0))
            }
            Err(error) => Err(error.to_string()),
        };
        match wrong {
            None => assert_eq!(is_encrypted, Ok(access.address.is_encrypted()), "{access:?}"),
            Some(wrong) => {
                let text = is_encrypted.unwrap_err();
                assert!(text.contains(wrong) && text.contains("cannot be reached"), "{text}");
            }
        }
    }
    // The name of the address is not that of the certificate.
    let named = encrypted.url().replace("127.0.0.1", "localhost");
    let address = DatabaseAddress::parse(&format!("{named}?sslmode=require")).unwrap();
    let access_by_name = DatabaseAccess { address, ..access(&encrypted, "require", &authority) };
    let text = Database::connect(&access_by_name).await.err().unwrap().to_string();
    assert!(text.contains("certificate"), "{text}");
    // History is written over it.
    let mut world = World::over(EngineType::Embedded, encrypted).await;
    world.access = DatabaseAccess {
        schema: world.access.schema.clone(),
        ..access(&world.postgres, "require", &authority)
    };
    world.write();
    world.hear(&units(1)).await;
    world.silence(&units(1)).await;
    world.until_alike().await;
}
