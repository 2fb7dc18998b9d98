//! Every type of value, poisoned while silences and returns are being notified: in the outbox, in waiting groups,
//! sealed and queued, and leased. Units that do not need the value are notified exactly once; no unit is notified
//! twice.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollcall::presence::Unit;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::Engine;
use rollcall::store::{embedded, embedded::EmbeddedEngine, embedded::columns};
use rollcall::store::{redis::RedisConfig, redis::RedisEngine, redis::sorts};

use super::fleet::{Fleet, POISONED, hours, telemetry, unit};
use super::{on_disk, on_redis};

const HOUR: Duration = Duration::from_secs(3600);

/// How many units are at each stage; there are five.
const WAVE: usize = 10;

/// How far the events of some units are when a value is poisoned.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Notified as offline, and the return is in the outbox.
    Back,
    /// Leased and not delivered.
    InHand,
    /// Sealed, and in the queue.
    Queued,
    /// In a group that waits.
    Waiting,
    Outbox,
}

use Stage::*;

const STAGES: [Stage; 5] = [Back, InHand, Queued, Waiting, Outbox];

fn units(stage: Stage) -> Vec<Unit> {
    let first = STAGES.iter().position(|one| *one == stage).unwrap() * WAVE;
    (first..first + WAVE).map(unit).collect()
}

/// The tables and indexes of groups and deliveries, which are keys of one sort.
const OF_ALERTING: [&str; 12] = [
    "{pN}:cells:groups",
    "{pN}:cells:group_versions",
    "{pN}:cells:members",
    "{pN}:cells:groups_of",
    "{pN}:cells:notifications",
    "{pN}:cells:owed",
    "{pN}:cells:lanes:<>",
    "{pN}:index:groups_due",
    "{pN}:index:waiting",
    "{pN}:index:lasting",
    "{pN}:index:over",
    "{pN}:index:queue:<>",
];

/// The stages whose events may be lost with a key in Redis, or with a table, as `docs/broken-values.md` says. Only
/// events on their way there may be lost.
fn may_be_lost(name: &str) -> &'static [Stage] {
    match name {
        "{pN}:outbox" | "outbox" => &[Outbox, Back],
        "{pN}:cells:members" => &[Waiting, Back],
        "{pN}:index:groups_due" | "{pN}:index:waiting" => &[Waiting],
        "{pN}:cells:notifications" | "{pN}:index:queue:<>" | "{pN}:cells:lanes:<>" => &[Queued],
        "cells" => &[Queued, Waiting, Back],
        "entries" => &[Queued, Waiting],
        _ => &[],
    }
}

/// Brings some units to each stage, poisons a value, goes on until nothing is left to notify, and returns the errors.
async fn notified_once(
    engine: Arc<dyn Engine>,
    (telemetry, clock): (Arc<rollcall::telemetry::Telemetry>, rollcall::clock::Clock),
    name: &str,
    poison: impl FnOnce() -> Vec<String>,
) -> Vec<String> {
    let mut fleet = Fleet::on(engine, telemetry, clock);
    fleet.live().await;
    for (at, stages) in [(51, &STAGES[..]), (52, &STAGES[1..]), (53, &STAGES[2..]), (54, &STAGES[3..])] {
        for stage in stages {
            fleet.hear(&units(*stage), hours(at)).await;
        }
    }
    fleet.heard_until(hours(POISONED + 49)).await;
    fleet.pass(hours(POISONED + 49), false).await;
    fleet.heard_until(hours(POISONED + 52)).await;
    fleet.check(&units(InHand), hours(POISONED + 50)).await;
    fleet.join(Duration::ZERO, hours(POISONED + 50)).await;
    let leased = fleet.lease(hours(POISONED + 50)).await;
    fleet.check(&units(Queued), hours(POISONED + 51)).await;
    fleet.join(Duration::ZERO, hours(POISONED + 51)).await;
    let now = hours(POISONED + 52);
    fleet.check(&units(Waiting), now).await;
    fleet.join(HOUR, now).await;
    fleet.check(&units(Outbox), now).await;
    fleet.hear(&units(Back), now).await;
    assert_eq!((fleet.notified.len(), leased.len()), (WAVE, WAVE), "the stages are not as they should be");

    let spared = poison();
    fleet.arrived(&leased, now).await;
    for hour in 1..4 {
        let now = hours(POISONED + 52 + hour);
        fleet.heard_until(now).await;
        for round in 0..3 {
            fleet.pass(now, round == 0).await;
        }
    }
    let mut wrong = Vec::new();
    for stage in STAGES {
        let is_lost = |name: &String, lost: bool| lost || spared.contains(name);
        let lost = may_be_lost(name).contains(&stage);
        for unit in units(stage).iter().map(ToString::to_string) {
            // The silence of a unit that is back by now was notified before.
            let notified = fleet.notified.get(&unit).copied().unwrap_or(0);
            if notified != 1 && !(notified == 0 && is_lost(&unit, lost && stage != Back)) {
                wrong.push(format!("{unit} ({stage:?}) was notified {notified} times"));
            }
            let back = fleet.back.get(&unit).copied().unwrap_or(0);
            if back != usize::from(stage == Back) && !(back == 0 && is_lost(&unit, lost)) {
                wrong.push(format!("{unit} ({stage:?}) was notified as back {back} times"));
            }
        }
    }
    let more = wrong.len().saturating_sub(3);
    wrong.truncate(3);
    if more > 0 {
        wrong.push(format!("and {more} more, {:?}", fleet.failures.last()));
    }
    wrong
}

async fn on_redis_with(poison: on_redis::Poison) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut client = redis::Client::open(url.clone()).unwrap().get_connection().unwrap();
    let mut wrong = Vec::new();
    let names = sorts().into_iter().map(|(name, _)| name).filter(|name| name != "meta");
    for name in names.chain(OF_ALERTING.map(str::to_owned)) {
        redis::cmd("FLUSHALL").exec(&mut client).unwrap();
        let (telemetry, clock) = telemetry();
        let config = RedisConfig { url: url.clone(), partitions: Some(2), ..RedisConfig::default() };
        let engine = Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap());
        let poison = || {
            let owners = on_redis::poison_one(&mut client, &name, poison).map(|(_, owners)| owners);
            // Only facts belong to a single unit.
            owners.filter(|_| name == "{pN}:facts:<>").unwrap_or_default()
        };
        let found = notified_once(engine, (telemetry, clock), &name, poison).await;
        wrong.extend(found.into_iter().map(|why| format!("{name}: {why}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_wrong_type_stops_no_other_notification() {
    on_redis_with(on_redis::Poison::WrongType).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_key_stops_no_other_notification() {
    on_redis_with(on_redis::Poison::Unreadable).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_key_stops_no_other_notification() {
    on_redis_with(on_redis::Poison::Missing).await;
}

async fn on_disk_with(poison: on_disk::Poison) {
    let mut wrong = Vec::new();
    for (table, names) in columns() {
        let only_rows = poison == on_disk::Poison::Missing;
        for column in names.into_iter().take(if only_rows { 1 } else { usize::MAX }) {
            let dir = tempfile::tempdir().unwrap();
            let (telemetry, clock) = telemetry();
            let config = embedded::EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(2) };
            let engine = Arc::new(EmbeddedEngine::open(&config, telemetry.clone()).await.unwrap());
            let path: &Path = dir.path();
            let poison = || on_disk::poison_one(path, table, column, poison).0;
            let found = notified_once(engine, (telemetry, clock), table, poison).await;
            wrong.extend(found.into_iter().map(|why| format!("{table}.{column}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_of_a_wrong_type_stops_no_other_notification() {
    on_disk_with(on_disk::Poison::WrongType).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_column_stops_no_other_notification() {
    on_disk_with(on_disk::Poison::Unreadable).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rows_stop_no_other_notification() {
    on_disk_with(on_disk::Poison::Missing).await;
}

/// Checks that every name in the table of losses exists.
#[test]
fn everything_that_may_be_lost_is_a_key_or_a_table() {
    let names: BTreeSet<String> = sorts().into_iter().map(|(name, _)| name).collect();
    let tables: BTreeSet<&str> = columns().into_iter().map(|(table, _)| table).collect();
    assert!(names.contains("{pN}:outbox") && !may_be_lost("{pN}:outbox").is_empty());
    for name in ["outbox", "cells", "entries"] {
        assert!(tables.contains(name) && !may_be_lost(name).is_empty(), "{name}");
    }
}
