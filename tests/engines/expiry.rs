//! Which wake-up decides: a fleet with short and long timeouts, without ticks, with a clock that the
//! test moves.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use rollcall::clock::{Clock, Timestamp};
use rollcall::expiry::{self, Expiry};
use rollcall::fleet::{HearingConfig, Rules};
use rollcall::fleet::{Mirror, Ownership, Roll};
use rollcall::presence::{Declared, Heartbeat, Kind, KindRules, Policy, Unit};
use rollcall::store::Engine;
use rollcall::store::{embedded, embedded::EmbeddedEngine};
use rollcall::telemetry::Telemetry;

use crate::support::redis::Redis;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// An instance on one engine: units of the kinds `short` (3 s) and `long` (12 s).
struct World {
    engine: Arc<dyn Engine>,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
}

impl World {
    async fn new(engine: Arc<dyn Engine>) -> World {
        let kind = |name: &str, timeout| {
            let kind: Kind = name.parse().unwrap();
            let policy = Policy { timeout, grace: Duration::ZERO };
            (kind.clone(), KindRules { policy, ..KindRules::new(kind) })
        };
        let rules = Arc::new(Rules::from([kind("short", 3 * SECOND), kind("long", 12 * SECOND)]));
        let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
        let telemetry = Arc::new(Telemetry::new(&clock));
        let mirror = Arc::new(Mirror::new(rules.clone(), engine.partitions()));
        let config =
            HearingConfig { gap: 1000 * SECOND, follows: false, settle: Duration::ZERO, tell: 1000 * SECOND };
        let outbox_grew = Arc::new(Notify::new());
        let roll = Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), config, outbox_grew);
        World { engine, roll: Arc::new(roll), mirror, telemetry, clock }
    }

    async fn hear(&self, unit: &str) {
        let unit: Unit = unit.parse().unwrap();
        let now = self.clock.now();
        let beat = Heartbeat { unit, at: now, not_before: None, declared: Declared::default() };
        self.roll.hear(&[beat], now).await.unwrap();
    }

    async fn canary(&self) {
        self.roll.canary_returned(self.clock.now()).await.unwrap();
    }

    /// Finds silences until the guard is dropped, without ticks.
    fn expire(&self) -> DropGuard {
        let expiry = Expiry {
            config: expiry::Config { tick: 1000 * PATIENCE, sweep: true, hints: false },
            engine: self.engine.clone(),
            roll: self.roll.clone(),
            ownership: Ownership::of_everything(self.engine.partitions()),
            mirror: self.mirror.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        };
        let stop = CancellationToken::new();
        tokio::spawn(expiry.run(stop.clone()));
        stop.drop_guard()
    }

    /// How many checks had that result.
    fn checks(&self, result: &str) -> usize {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.telemetry.gather()).unwrap();
        let series = format!("rollcall_deadline_checks_total{{result=\"{result}\",source=\"sweep\"}}");
        let line = text.lines().find_map(|line| line.strip_prefix(&series)).expect("such a series");
        line.trim().parse().unwrap()
    }

    async fn awaits(&self, result: &str, count: usize) {
        let awaited = async {
            while self.checks(result) < count {
                tokio::time::sleep(MILLISECOND).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, awaited).await;
        assert!(found.is_ok(), "{result}: {} instead of {count}", self.checks(result));
    }

    async fn offline(&self) -> Vec<String> {
        let records = self.engine.records(true, None, 10).await.unwrap();
        records.iter().map(|record| record.whose().to_string()).collect()
    }
}

/// A unit of a short timeout waits for proof. Another one that is due meanwhile is recorded in time, the waiting one
/// is not checked for it, and proof wakes it.
async fn a_unit_that_waits_for_proof_delays_no_other(engine: Arc<dyn Engine>) {
    let world = World::new(engine).await;
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
    let config = embedded::Config { path: dir.path().to_owned(), partitions: 4 };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = Arc::new(EmbeddedEngine::open(&config, telemetry).await.unwrap());
    a_unit_that_waits_for_proof_delays_no_other(engine).await;
}
