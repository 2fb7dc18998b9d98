//! One value that cannot be read is one problem of one name, from the moment at which it is read until it is deleted.

use std::path::Path;
use std::sync::Arc;

use redis::cmd;
use rollcall::fleet::Silences;
use rollcall::fleet::receivers::ReceiverHealth;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine, EmbeddedRepair};
use rollcall::store::redis::{HashTags, RedisConfig, RedisEngine, RedisRepair, facts_key};
use rollcall::store::repair::Repair;
use rollcall::store::{ChangeSet, Documents, Engine, Index, StoredTimers, Table};
use rollcall::telemetry::Telemetry;

use super::fleet::{BEGIN, telemetry, unit};

const PARTITIONS: u16 = 2;

/// Values that another program writes on any engine, with the word of each for operators.
fn on_both() -> Vec<(&'static str, ChangeSet)> {
    let cell = |table: Table, name: &str| {
        ChangeSet::of(table.partition(name, PARTITIONS)).put(table, name, Some(b"garbage{"))
    };
    vec![
        ("alert_silence", cell(Table::Silences, "not-a-silence")),
        ("delivery", cell(Table::Receivers, "hook")),
        ("timer", cell(Table::Timers, "a")),
        ("timer", ChangeSet::of(0).enter(Index::Timers, "not/the id of a timer", Some(0))),
    ]
}

/// Reads the values as the loops do.
async fn read(engine: &Arc<dyn Engine>) {
    Silences::new(engine.clone()).current().await.unwrap();
    Documents::new(engine.clone()).of_fleet::<ReceiverHealth>().await.unwrap();
    let (timers, all) = (StoredTimers::new(engine.clone()), (0..PARTITIONS).collect::<Vec<u16>>());
    timers.timers(&["a".parse().unwrap()]).await.unwrap();
    timers.due_timers(&all, BEGIN, 100).await.unwrap();
    for table in [Table::Timers, Table::PastTimers] {
        for partition in &all {
            engine.all_cells(table, *partition).await.unwrap();
        }
    }
    engine.read(&[unit(0)]).await.unwrap();
}

/// Reads a value that cannot be read, then finds it in the quarantine, and deletes it there.
async fn is_one_problem(
    what: &str,
    engine: &Arc<dyn Engine>,
    telemetry: &Telemetry,
    repair: &dyn Repair,
) -> Result<(), String> {
    let mut shown = Vec::new();
    for _ in 0..2 {
        read(engine).await;
        let problems = telemetry.problems().into_iter().filter(|problem| problem.name == "unreadable_values");
        shown.push(problems.map(|problem| problem.text).collect::<Vec<String>>());
        engine.examine(BEGIN).await.unwrap();
    }
    let quarantined = repair.quarantined().await.unwrap();
    let is_one = matches!((&shown[0][..], &quarantined[..]), ([text], [one])
        if shown[0] == shown[1]
            && text.starts_with(&format!("1 stored values ({what}) cannot be read"))
            && one.what.as_str() == what
            && text.contains(&one.location));
    if !is_one {
        return Err(format!("{what}: {shown:?} {quarantined:?}"));
    }
    repair.discard(&quarantined[0]).await.unwrap();
    let left = repair.quarantined().await.unwrap();
    if left.is_empty() { Ok(()) } else { Err(format!("{what}: {left:?} is left")) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_in_redis_that_cannot_be_read_is_one_problem_until_it_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut client = redis::Client::open(url.clone()).unwrap().get_connection().unwrap();
    let config = RedisConfig { url, partitions: Some(PARTITIONS), ..RedisConfig::default() };
    let facts = facts_key("rollcall", PARTITIONS, HashTags::Plain, &unit(0));
    let fields = [
        ("alert_silence", "rollcall:{hearing}:cells:silences".to_owned(), b"\xff".to_vec()),
        ("timer", "rollcall:{p1}:cells:past_timers".to_owned(), b"a\nb\xff".to_vec()),
        ("timer", "rollcall:{p1}:cells:timers:7".to_owned(), b"\xff".to_vec()),
        ("facts", facts, unit(0).to_string().into_bytes()),
    ];
    let written = on_both().into_iter().map(|(what, set)| (what, Ok(set)));
    let fields = fields.into_iter().map(|(what, key, field)| (what, Err((key, field))));
    let mut wrong = Vec::new();
    for (what, broken) in written.chain(fields) {
        cmd("FLUSHALL").exec(&mut client).unwrap();
        let telemetry = telemetry().0;
        let engine = Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap());
        let engine: Arc<dyn Engine> = engine;
        match broken {
            Ok(set) => assert_eq!(engine.write_cells(&[set]).await.unwrap(), [true]),
            Err((key, field)) => {
                cmd("HSET").arg(key).arg(field).arg(&b"\xff\xfe"[..]).exec(&mut client).unwrap()
            }
        }
        let repair = RedisRepair::open(&config, telemetry.clone()).await.unwrap();
        wrong.extend(is_one_problem(what, &engine, &telemetry, &repair).await.err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_in_a_directory_that_cannot_be_read_is_one_problem_until_it_is_deleted() {
    let mut wrong = Vec::new();
    for (what, set) in on_both() {
        let dir = tempfile::tempdir().unwrap();
        let path: &Path = dir.path();
        let config = EmbeddedConfig { path: path.to_owned(), partitions: Some(PARTITIONS) };
        let telemetry = telemetry().0;
        let engine = Arc::new(EmbeddedEngine::open(&config, telemetry.clone()).await.unwrap());
        let engine: Arc<dyn Engine> = engine;
        assert_eq!(engine.write_cells(&[set]).await.unwrap(), [true]);
        let repair = EmbeddedRepair::new(path).unwrap().unwrap();
        wrong.extend(is_one_problem(what, &engine, &telemetry, &repair).await.err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
