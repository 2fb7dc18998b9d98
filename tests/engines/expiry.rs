//! Which wake-up decides: a fleet with short and long timeouts, without ticks, with a clock that the
//! test moves.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio_util::sync::DropGuard;

use rollcall::clock::{Clock, Timestamp};
use rollcall::expiry;
use rollcall::store::Engine;
use rollcall::store::{embedded, embedded::EmbeddedEngine};
use rollcall::telemetry::Telemetry;

use crate::support::metrics;
use crate::support::parts::Parts;
use crate::support::redis::Redis;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(120);

/// An instance on one engine: units of the kinds `short` (3 s) and `long` (12 s).
struct World {
    parts: Parts,
    clock: Clock,
}

impl World {
    fn new(engine: Arc<dyn Engine>) -> World {
        let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
        let telemetry = Arc::new(Telemetry::new(&clock));
        let kinds = [("short", 3 * SECOND), ("long", 12 * SECOND)];
        World { parts: Parts::new(engine, telemetry, &clock, &kinds), clock }
    }

    async fn hear(&self, unit: &str) {
        self.parts.hear(&unit.parse().unwrap()).await;
    }

    async fn canary(&self) {
        self.parts.roll.canary_returned(self.clock.now()).await.unwrap();
    }

    /// Finds silences until the guard is dropped, without ticks.
    fn expire(&self) -> DropGuard {
        self.parts.expire(expiry::Config { tick: 1000 * MAX_WAIT, sweep: true, hints: false })
    }

    /// How many checks had this result.
    fn checks(&self, result: &str) -> usize {
        let checks = "rollcall_deadline_checks_total";
        metrics::sum(&self.parts.telemetry, checks, &[result, "sweep"]).expect("such a series") as usize
    }

    async fn awaits(&self, result: &str, count: usize) {
        let awaited = async {
            while self.checks(result) < count {
                tokio::time::sleep(MILLISECOND).await;
            }
        };
        let found = tokio::time::timeout(MAX_WAIT, awaited).await;
        assert!(found.is_ok(), "{result}: {} instead of {count}", self.checks(result));
    }

    async fn offline(&self) -> Vec<String> {
        let records = self.parts.engine.records(true, None, 10).await.unwrap();
        records.iter().map(|record| record.id.unit.to_string()).collect()
    }
}

/// A unit with a short timeout waits for proof. Another unit that is due meanwhile is recorded in time and causes no
/// check of the waiting unit; proof wakes the waiting unit.
async fn a_unit_that_waits_for_proof_delays_no_other(engine: Arc<dyn Engine>) {
    let world = World::new(engine);
    world.hear("long:a").await; // due after 12 s
    world.clock.advance(8900 * MILLISECOND);
    world.hear("short:a").await; // due after 11.9 s
    world.clock.advance(2100 * MILLISECOND);
    world.canary().await; // enough for the long one, and not for the short one
    world.clock.advance(901 * MILLISECOND);

    let _expiry = world.expire();
    world.awaits("undecided", 1).await;
    assert_eq!(world.offline().await, [""; 0]);
    world.clock.advance(100 * MILLISECOND);
    world.awaits("offline", 1).await;
    assert_eq!(world.offline().await, ["long:a"]);
    assert_eq!(world.checks("undecided"), 1, "nothing new was heard");

    world.clock.advance(SECOND);
    world.canary().await;
    world.awaits("offline", 2).await;
    assert_eq!(world.offline().await, ["short:a", "long:a"]);
}

#[tokio::test]
async fn a_unit_that_waits_for_proof_delays_no_other_on_redis() {
    let redis = Redis::start();
    let engine = redis.engine(&Arc::new(Telemetry::new(&Clock::system()))).await;
    a_unit_that_waits_for_proof_delays_no_other(engine).await;
}

#[tokio::test]
async fn a_unit_that_waits_for_proof_delays_no_other_on_the_embedded_engine() {
    let dir = TempDir::new().unwrap();
    let config = embedded::EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(4) };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = Arc::new(EmbeddedEngine::open(&config, telemetry).await.unwrap());
    a_unit_that_waits_for_proof_delays_no_other(engine).await;
}
