//! A fleet on a private Redis, the alerting loops, and a clock that is moved by hand.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rollcall::alerting::{self, AlertingConfig, Route};
use rollcall::fleet::{Attempts, Deliveries, FlapRules, HearingConfig, Rules};
use rollcall::fleet::{Mirror, Ownership, RemovedKinds, Roll, Silences, TimerRules, Timers};
use rollcall::presence::{Filters, Heartbeat, KindRules};
use rollcall::routing::Inhibition;
use rollcall::simulate::webhook_sink::{Options, Received, WebhookSink};
use rollcall::store::embedded::{self, EmbeddedEngine};
use rollcall::store::{Engine, Index, Pace, StoredDeliveries, StoredGroups, StoredTimers};
use rollcall::telemetry::Telemetry;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::support::metrics;
use crate::support::redis::Redis;

pub const WAIT: Duration = Duration::from_secs(10);
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A fleet of detectors and its alerting loops.
pub struct World {
    pub engine: Arc<dyn Engine>,
    pub silences: Arc<Silences>,
    pub timers: Arc<Timers>,
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    pub roll: Arc<Roll>,
    pub removed_kinds: Arc<RemovedKinds>,
    pub outbox_grew: Arc<Notify>,
    pub config: AlertingConfig,
    pub loops: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
    pub redis: Redis,
    _dir: TempDir,
}

/// The engine of a world.
#[derive(Clone, Copy, Debug)]
pub enum On {
    Redis,
    Directory,
}

impl World {
    /// Loops that group by `group_by` and notify these receivers.
    pub async fn new(group_by: &str, receivers: Vec<ReceiverConfig>) -> World {
        World::on(On::Redis, group_by, receivers).await
    }

    pub async fn on(on: On, group_by: &str, receivers: Vec<ReceiverConfig>) -> World {
        let redis = Redis::start();
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::by_hand(now());
        let telemetry = Arc::new(Telemetry::new(&clock));
        let labels = ["site".to_owned()];
        let engine: Arc<dyn Engine> = match on {
            On::Redis => redis.engine(&telemetry).await,
            On::Directory => {
                let config = embedded::EmbeddedConfig { path: dir.path().join("fleet"), partitions: None };
                Arc::new(EmbeddedEngine::open_with_labels(&config, &labels, telemetry.clone()).await.unwrap())
            }
        };
        let outbox_grew = Arc::new(Notify::new());
        let roll = roll_of("detector", &engine, &telemetry, &outbox_grew);
        roll.canary_returned(clock.now()).await.unwrap();
        let route = Route {
            receivers: receivers.iter().map(|receiver| receiver.name.clone()).collect(),
            group_by: vec![group_by.to_owned()],
            pace: Pace::new(WAIT, 5 * WAIT),
            ..Route::default()
        };
        let (filters, inhibition, breaker) = (Filters::default(), Inhibition::default(), None);
        let blind_after = 100_000 * HOUR;
        let flapping = FlapRules::new();
        let config = AlertingConfig {
            route,
            receivers,
            blind_after,
            filters,
            brokers: Vec::new(),
            inhibition,
            breaker,
            flapping,
            archive_after: BTreeMap::new(),
        };
        assert_eq!(alerting::check(&config), Vec::<String>::new());
        let ownership = Ownership::of_everything(engine.partitions());
        let silences = Arc::new(Silences::new(engine.clone()));
        let timers = Timers::new(engine.clone(), TimerRules::default(), Arc::default(), telemetry.clone());
        let timers = Arc::new(timers);
        let mut world = World {
            engine,
            silences,
            timers,
            ownership,
            clock,
            telemetry,
            roll,
            removed_kinds: Arc::new(RemovedKinds::new(HOUR)),
            outbox_grew,
            config,
            loops: None,
            redis,
            _dir: dir,
        };
        world.start();
        world
    }

    /// The configuration has this kind from the next start on, and no other.
    pub fn configure(&mut self, kind: &str) {
        self.roll = roll_of(kind, &self.engine, &self.telemetry, &self.outbox_grew);
    }

    pub fn start(&mut self) {
        let stop = CancellationToken::new();
        let (engine, clock, telemetry) = (self.engine.clone(), self.clock.clone(), self.telemetry.clone());
        let (config, own, outbox_grew) =
            (self.config.clone(), self.ownership.clone(), self.outbox_grew.clone());
        self.silences = Arc::new(Silences::new(engine.clone()));
        let stores = alerting::Stores {
            outbox: engine.clone(),
            groups: StoredGroups::new(engine.clone()),
            hearing: engine.clone(),
            queries: engine.clone(),
            cells: engine.clone(),
            units: engine.clone(),
            deliveries: StoredDeliveries::new(engine.clone()),
            timers: self.timers.clone(),
            history: None,
            silences: self.silences.clone(),
            roll: self.roll.clone(),
            roster: engine.clone(),
            removed_kinds: self.removed_kinds.clone(),
        };
        let run = alerting::run(config, stores, own, clock, telemetry, outbox_grew, stop.clone());
        self.loops = Some((stop, tokio::spawn(run)));
    }

    /// Deliveries as operators see and change them.
    pub fn deliveries(&self) -> Deliveries {
        let engine = self.engine.clone();
        Deliveries {
            records: StoredDeliveries::new(engine.clone()),
            attempts: Attempts::new(engine.clone()),
            queries: engine.clone(),
            groups: StoredGroups::new(engine.clone()),
            roll: self.roll.clone(),
            breaker: Arc::new(self.breaker()),
            timers: StoredTimers::new(engine),
            silences: self.silences.clone(),
        }
    }

    /// Every partition.
    pub fn partitions(&self) -> Vec<u16> {
        (0..self.engine.partitions()).collect()
    }

    /// Every outbox.
    pub fn outboxes(&self) -> Vec<u16> {
        (0..=self.engine.partitions()).collect()
    }

    pub async fn stop(&mut self) {
        let (stop, loops) = self.loops.take().unwrap();
        stop.cancel();
        tokio::time::timeout(MAX_WAIT, loops).await.expect("the loops end").unwrap().unwrap();
    }

    /// Ends the loops as a power cut would.
    pub async fn crash(&mut self) {
        let (_, loops) = self.loops.take().unwrap();
        loops.abort();
        assert!(loops.await.unwrap_err().is_cancelled());
    }

    /// Moves the clock and wakes the loops before their tick.
    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
        self.outbox_grew.notify_one();
    }

    /// Lets time pass, half a wait at a time, until what is due is sealed or held, and the hook has what is sealed. A
    /// delivery that is under way when the clock moves beyond its lease would be sent again.
    pub async fn pass(&self, span: Duration) {
        let end = self.clock.now() + span;
        while self.clock.now() < end {
            self.advance((WAIT / 2).min(end.since(self.clock.now())));
            let settled = async || {
                let all = self.partitions();
                let due = [
                    self.groups().first_seal(&all).await.unwrap(),
                    self.engine
                        .entries(Index::FlapChecks, &all, i64::MAX, 1)
                        .await
                        .unwrap()
                        .pop()
                        .map(|first| Timestamp::from_millis(first.at)),
                ];
                due.into_iter().flatten().all(|due| due > self.clock.now())
            };
            until("what is due is sealed, or held", settled).await;
            self.delivered("hook").await;
        }
    }

    pub async fn hear(&self, ids: &[&str]) {
        let at = self.clock.now();
        let beat = |id: &&str| Heartbeat::of(unit(id), at);
        self.roll.hear(&ids.iter().map(beat).collect::<Vec<_>>(), at).await.unwrap();
    }

    /// Hears these units and then lets them fall silent beyond their deadlines.
    pub async fn lose(&self, ids: &[&str]) {
        self.hear(ids).await;
        self.advance(TIMEOUT + Duration::from_secs(1));
        self.roll.canary_returned(self.clock.now()).await.unwrap();
        let units: Vec<Unit> = ids.iter().map(|id| unit(id)).collect();
        assert!(self.roll.check_deadlines(&units, self.clock.now()).await.unwrap().is_empty());
    }

    /// Waits until the outbox is empty.
    pub async fn joined(&self) {
        until("the outbox is empty", async || {
            self.engine.outbox(&self.outboxes(), 1).await.is_ok_and(|outbox| outbox.is_empty())
        })
        .await;
    }

    /// Lets these units fall silent, and their groups become due.
    pub async fn notify_loss(&self, ids: &[&str]) {
        self.lose(ids).await;
        self.joined().await;
        self.advance(WAIT);
    }

    pub fn groups(&self) -> StoredGroups {
        StoredGroups::new(self.engine.clone())
    }

    /// Waits until nothing is due to be sealed.
    pub async fn sealed(&self) {
        let is_sealed = async || {
            let due = self.groups().first_seal(&self.partitions()).await.unwrap();
            due.is_none_or(|due| due > self.clock.now())
        };
        until("what is due is sealed", is_sealed).await;
    }

    /// Waits until the end of every delivery is on record. A notification that a receiver has and that is not on
    /// record would be sent again after a crash.
    pub async fn delivered(&self, receiver: &str) {
        let none_waits = async || {
            StoredDeliveries::new(self.engine.clone())
                .backlog(&self.partitions(), receiver)
                .await
                .is_ok_and(|backlog| backlog.waiting == 0)
        };
        until("every delivery is on record", none_waits).await;
    }

    pub async fn dead(&self, receiver: &str, count: u64) {
        let dead = async || {
            StoredDeliveries::new(self.engine.clone())
                .backlog(&self.partitions(), receiver)
                .await
                .unwrap()
                .dead
                == count
        };
        until("there are dead letters", dead).await;
    }

    /// How often this command was sent to the engine.
    pub fn commands(&self, name: &str) -> u64 {
        let commands = "rollcall_engine_command_duration_seconds";
        metrics::sum(&self.telemetry, commands, &[name]).unwrap_or_default() as u64
    }

    /// The value of a series, by its name and the values of its labels.
    pub fn metric(&self, name: &str, values: &[&str]) -> f64 {
        metrics::sum(&self.telemetry, name, values).expect("such a series")
    }
}

/// The roll of an instance that is configured with one kind.
fn roll_of(
    kind: &str,
    engine: &Arc<dyn Engine>,
    telemetry: &Arc<Telemetry>,
    grew: &Arc<Notify>,
) -> Arc<Roll> {
    let mut rules = KindRules::new(kind.parse().unwrap());
    rules.policy.timeout = TIMEOUT;
    let hearing = HearingConfig { gap: 100 * HOUR, follows: false, settle: WAIT, tell_after: HOUR };
    let rules = Arc::new(Rules::from_iter([(rules.kind.clone(), rules)]));
    let mirror = Arc::new(Mirror::of(&**engine, rules.clone(), &["site".to_owned()]));
    Arc::new(Roll::new(engine.clone(), rules, mirror, telemetry.clone(), hearing, grew.clone()))
}

pub fn unit(id: &str) -> Unit {
    format!("detector:{id}").parse().unwrap()
}

/// Waits for a fact, and fails the test if it never holds.
pub async fn until<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, wait).await.unwrap_or_else(|_| panic!("it did not come true that {what}"));
}

pub async fn hook() -> WebhookSink {
    WebhookSink::start(Options::default()).await.unwrap()
}

pub fn named(name: &str, config: ReceiverConfig) -> ReceiverConfig {
    ReceiverConfig { name: name.to_owned(), ..config }
}

/// The ids of the units that a notification lists as `offline` or `online`.
pub fn listed(received: &Received, which: &str) -> Vec<String> {
    let json = received.json();
    let mut ids: Vec<String> = json["data"][which]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["unit"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}
