//! Last seen times and open records that are lost or lie in the future, on both engines.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::presence::Unit;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::embedded::EmbeddedEngine;
use rollcall::store::{Engine, embedded, partition_of, redis as on_redis};
use rollcall::store::{redis::HashTags, redis::RedisEngine, redis::facts_key};
use rollcall::telemetry::Telemetry;
use rusqlite::Connection;

use super::fleet::{Fleet, POISONED, hours, telemetry, unit, units};

const PARTITIONS: u16 = 2;

/// The engine's server or directory, removed on drop.
enum Ground {
    Redis(Server, #[expect(dead_code, reason = "it goes with this")] tempfile::TempDir),
    Directory(tempfile::TempDir),
}

impl Ground {
    fn all() -> [Ground; 2] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
        [Ground::Redis(server, dir), Ground::Directory(tempfile::tempdir().unwrap())]
    }

    fn url(server: &Server) -> String {
        format!("redis://127.0.0.1:{}/0", server.port())
    }

    async fn open(&self, telemetry: &Arc<Telemetry>) -> Arc<dyn Engine> {
        match self {
            Ground::Redis(server, _) => {
                let config = on_redis::RedisConfig {
                    url: Ground::url(server),
                    partitions: Some(PARTITIONS),
                    ..Default::default()
                };
                Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap())
            }
            Ground::Directory(dir) => {
                let config =
                    embedded::EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(PARTITIONS) };
                Arc::new(EmbeddedEngine::open(&config, telemetry.clone()).await.unwrap())
            }
        }
    }

    /// Restarts the fleet after a change of its stored state, with no instance running meanwhile.
    async fn between(
        &self,
        fleet: Fleet,
        telemetry: &Arc<Telemetry>,
        clock: &Clock,
        poison: impl Fn(&Ground),
    ) -> Fleet {
        drop(fleet);
        poison(self);
        Fleet::on(self.open(telemetry).await, telemetry.clone(), clock.clone())
    }

    fn client(server: &Server) -> redis::Connection {
        redis::Client::open(Ground::url(server)).unwrap().get_connection().unwrap()
    }

    /// Sets the facts of a unit, or removes them.
    fn set_facts(&self, unit: &Unit, facts: Option<&str>) {
        match self {
            Ground::Redis(server, _) => {
                let (key, mut client) =
                    (facts_key("rollcall", PARTITIONS, HashTags::Plain, unit), Ground::client(server));
                match facts {
                    Some(text) => {
                        redis::cmd("HSET").arg(key).arg(unit.to_string()).arg(text).exec(&mut client)
                    }
                    None => redis::cmd("HDEL").arg(key).arg(unit.to_string()).exec(&mut client),
                }
                .unwrap();
            }
            Ground::Directory(dir) => {
                let database = Connection::open(dir.path().join("rollcall.db")).unwrap();
                let changed = match facts {
                    Some(text) => database
                        .execute("UPDATE units SET facts = ? WHERE name = ?", [text, &unit.to_string()]),
                    None => database.execute("DELETE FROM units WHERE name = ?", [unit.to_string()]),
                };
                assert_eq!(changed.unwrap(), 1);
            }
        }
    }

    fn set_key(&self, unit: &Unit, ms: i64) {
        match self {
            Ground::Redis(server, _) => {
                let key = format!("rollcall:{{p{}}}:alive:{unit}", partition_of(unit, PARTITIONS));
                redis::cmd("SET").arg(key).arg(ms).exec(&mut Ground::client(server)).unwrap();
            }
            Ground::Directory(dir) => {
                let database = Connection::open(dir.path().join("rollcall.db")).unwrap();
                // Heartbeats are newer than the last change.
                let update = "UPDATE units SET alive = ?, after = 1 << 40 WHERE name = ?";
                assert_eq!(database.execute(update, (ms, unit.to_string())).unwrap(), 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_record_of_an_unreadable_unit_is_closed_and_notified_with_its_return() {
    for ground in Ground::all() {
        for facts in [Some("garbage{"), None] {
            let (telemetry, clock) = telemetry();
            let ground = match &ground {
                Ground::Redis(server, _) => {
                    redis::cmd("FLUSHALL").exec(&mut Ground::client(server)).unwrap();
                    &ground
                }
                Ground::Directory(_) => &Ground::Directory(tempfile::tempdir().unwrap()),
            };
            let mut fleet = Fleet::on(ground.open(&telemetry).await, telemetry.clone(), clock.clone());
            fleet.live().await;
            fleet.heard_until(hours(POISONED + 49)).await;
            fleet.pass(hours(POISONED + 49), true).await;
            assert_eq!(fleet.notified.len(), units().len());
            let lost = unit(7);
            let before = fleet.records().await.into_iter().find(|record| record.id.unit == lost).unwrap();
            let notified = fleet.notified.clone();
            let mut fleet =
                ground.between(fleet, &telemetry, &clock, |ground| ground.set_facts(&lost, facts)).await;
            fleet.heard_until(hours(POISONED + 50)).await;
            // A readable unit returns with it.
            let back = [lost.clone(), unit(8)];
            fleet.hear(&back, hours(POISONED + 50)).await;
            fleet.pass(hours(POISONED + 50), true).await;
            for unit in &back {
                assert_eq!(fleet.back.get(&unit.to_string()), Some(&1), "{facts:?}: {:?}", fleet.back);
                assert_eq!(notified.get(&unit.to_string()), Some(&1));
            }
            let records = fleet.records().await;
            let of_it: Vec<_> = records.iter().filter(|record| record.id.unit == lost).collect();
            assert_eq!(of_it.len(), 1, "{of_it:?}");
            assert_eq!(
                (&of_it[0].id, of_it[0].back_at),
                (&before.id, Some(hours(POISONED + 50))),
                "{facts:?}"
            );
            let open = fleet.engine.records(true, None, 1000).await.unwrap();
            assert!(open.iter().all(|record| record.id.unit != lost), "its record is still open");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_said_to_have_been_heard_in_the_year_2100_counts_as_heard_now() {
    let year_2100 = 4_102_444_800_000;
    for ground in Ground::all() {
        let (telemetry, clock) = telemetry();
        let mut fleet = Fleet::on(ground.open(&telemetry).await, telemetry.clone(), clock.clone());
        fleet.live().await;
        let [by_key, by_facts] = [unit(5), unit(6)];
        let mut fleet = ground
            .between(fleet, &telemetry, &clock, |ground| {
                ground.set_key(&by_key, year_2100);
                ground.set_facts(&by_facts, Some(&format!("p{year_2100}")));
            })
            .await;
        fleet.heard_until(hours(POISONED) + Duration::from_millis(1)).await;
        for (round, not_notified) in [(49, vec![&by_key, &by_facts]), (98, vec![])] {
            fleet.heard_until(hours(POISONED + round)).await;
            fleet.pass(hours(POISONED + round), true).await;
            fleet.pass(hours(POISONED + round), false).await;
            for unit in units() {
                let times = usize::from(!not_notified.contains(&&unit));
                assert_eq!(
                    fleet.notified.get(&unit.to_string()).copied().unwrap_or(0),
                    times,
                    "{unit} at {round}"
                );
            }
            if round == 49 {
                assert!(!fleet.warnings().is_empty(), "it is not shown");
            }
        }
        fleet.hear(&units(), hours(POISONED + 99)).await;
        fleet.pass(hours(POISONED + 99), true).await;
        for unit in units() {
            assert_eq!(fleet.back.get(&unit.to_string()), Some(&1), "{unit} is not back");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_by_an_hour_leaves_nothing_that_cannot_be_read() {
    for ground in Ground::all() {
        let (telemetry, clock) = telemetry();
        let mut fleet = Fleet::on(ground.open(&telemetry).await, telemetry.clone(), clock.clone());
        fleet.live().await;
        // By the earlier clock this moment is an hour later.
        let ahead = hours(POISONED + 49);
        fleet.hear(&units(), ahead).await;
        fleet.heard_until(ahead).await;
        fleet.pass(hours(POISONED + 48), true).await;
        assert!(fleet.notified.is_empty(), "{:?}", fleet.notified);
        fleet.heard_until(hours(POISONED + 98)).await;
        fleet.pass(hours(POISONED + 98), true).await;
        fleet.pass(hours(POISONED + 98), false).await;
        assert_eq!(fleet.notified.len(), units().len());
        assert!(fleet.notified.values().all(|times| *times == 1), "{:?}", fleet.notified);
        assert!(fleet.warnings().is_empty(), "{:?}", fleet.warnings());
    }
}
