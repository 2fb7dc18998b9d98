//! A fleet on an engine, with a clock by hand, whose history goes into a PostgreSQL of the test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Stopwatch, Timestamp};
use rollcall::fleet::{Beginning, HearingConfig, Mirror, Ownership, Roll, Rules};
use rollcall::history::{DatabaseAccess, HistoryConfig, HistoryRetention, HistoryWriter};
use rollcall::presence::{Heartbeat, Kind, KindRules, OfflineRecord, Policy, Unit};
use rollcall::store::Engine;
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine, EmbeddedImporter};
use rollcall::store::migration::migrate;
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::telemetry::Telemetry;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::postgres::Postgres;
use crate::support::redis::Redis;

pub const SECOND: Duration = Duration::from_secs(1);
pub const DAY: Duration = Duration::from_secs(86_400);
pub const TIMEOUT: Duration = Duration::from_secs(100);
pub const MAX_WAIT: Duration = Duration::from_secs(120);
pub const PARTITIONS: u16 = 4;
/// The cursors of the sources that are read in the order of time.
pub const CURSORS: &str = "cursors WHERE source IN ('opened', 'closed', 'notifications')";

#[derive(Clone, Copy)]
pub enum EngineType {
    Redis,
    Embedded,
}

pub struct World {
    pub postgres: Postgres,
    pub access: DatabaseAccess,
    pub engine: Arc<dyn Engine>,
    pub roll: Arc<Roll>,
    pub telemetry: Arc<Telemetry>,
    pub clock: Clock,
    /// The number of partitions of the engine.
    partitions: u16,
    embedded: Option<Arc<EmbeddedEngine>>,
    writers: Vec<(JoinHandle<anyhow::Result<()>>, CancellationToken)>,
    // The last fields, so that the engine has ended when its server and its directory go.
    _redis: Option<Redis>,
    _dir: tempfile::TempDir,
}

impl World {
    pub async fn new(on: EngineType) -> World {
        World::over(on, Postgres::start()).await
    }

    /// With history in this database.
    pub async fn over(on: EngineType, postgres: Postgres) -> World {
        let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
        let telemetry = Arc::new(Telemetry::new(&clock));
        let dir = tempfile::tempdir().unwrap();
        let (mut redis, mut embedded) = (None, None);
        let engine: Arc<dyn Engine> = match on {
            EngineType::Redis => {
                let server = redis.insert(Redis::start());
                let config =
                    RedisConfig { url: server.url(), partitions: Some(PARTITIONS), ..RedisConfig::default() };
                Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap())
            }
            EngineType::Embedded => {
                let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(PARTITIONS) };
                let engine = EmbeddedEngine::open(&config, telemetry.clone()).await.unwrap();
                embedded.insert(Arc::new(engine)).clone()
            }
        };
        let roll = roll_of(&engine, &telemetry);
        let access = postgres.access();
        let (partitions, writers) = (PARTITIONS, Vec::new());
        Beginning::new(engine.clone()).since(clock.now()).await.unwrap();
        World {
            postgres,
            access,
            engine,
            roll,
            telemetry,
            clock,
            partitions,
            embedded,
            writers,
            _redis: redis,
            _dir: dir,
        }
    }

    /// Moves the fleet from an embedded engine to another one with so many partitions. No writer may run.
    pub async fn move_to(&mut self, partitions: u16) {
        let path = self._dir.path().join(format!("moved-{partitions}"));
        let config = EmbeddedConfig { path, partitions: Some(partitions) };
        let from = self.embedded.take().unwrap();
        migrate(&*from, &EmbeddedImporter::prepare(&config).await.unwrap(), |_| {}).await.unwrap();
        let engine = Arc::new(EmbeddedEngine::open(&config, self.telemetry.clone()).await.unwrap());
        (self.engine, self.partitions) = (engine.clone(), partitions);
        self.roll = roll_of(&self.engine, &self.telemetry);
        self.embedded = Some(engine);
    }

    /// Starts the instance again: its rules are those of the file again.
    pub fn restart(&mut self) {
        self.roll = roll_of(&self.engine, &self.telemetry);
    }

    /// Starts a writer, of all partitions.
    pub fn write(&mut self) {
        self.write_with(|_| {});
    }

    pub fn write_with(&mut self, change: impl FnOnce(&mut HistoryConfig)) {
        let mut config = HistoryConfig {
            access: self.access.clone(),
            batch: 500,
            keep: HistoryRetention::default(),
            keep_records: 90 * DAY,
            keep_deliveries: 7 * DAY,
        };
        change(&mut config);
        let stop = CancellationToken::new();
        let writer = HistoryWriter {
            config,
            queries: self.engine.clone(),
            cells: self.engine.clone(),
            roll: self.roll.clone(),
            ownership: Ownership::of_everything(self.partitions),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        };
        self.writers.push((tokio::spawn(writer.run(stop.clone())), stop));
    }

    pub async fn end_writers(&mut self) {
        for (running, stop) in self.writers.drain(..) {
            stop.cancel();
            running.await.unwrap().unwrap();
        }
    }

    /// Advances the clock, with everything heard.
    pub async fn pass(&self, span: Duration) {
        let end = self.clock.now() + span;
        while self.clock.now() < end {
            self.clock.advance(end.since(self.clock.now()).min(3 * SECOND));
            self.roll.canary_returned(self.clock.now()).await.unwrap();
        }
    }

    pub async fn hear(&self, units: &[Unit]) {
        let now = self.clock.now();
        let beat = |unit: &Unit| Heartbeat::of(unit.clone(), now);
        let beats: Vec<Heartbeat> = units.iter().map(beat).collect();
        self.roll.hear(&beats, now).await.unwrap();
    }

    /// Lets these units fall silent: each has an open record then.
    pub async fn silence(&self, units: &[Unit]) {
        self.pass(TIMEOUT + SECOND).await;
        for some in units.chunks(200) {
            self.roll.check_deadlines(some, self.clock.now()).await.unwrap();
        }
        // What happens now is read when now is over.
        self.pass(SECOND).await;
    }

    /// All records of the engine.
    pub async fn records(&self) -> Vec<OfflineRecord> {
        self.engine.records(false, None, 1_000_000).await.unwrap()
    }

    /// Waits until history has each record as the engine has it, once, and nothing else.
    pub async fn until_alike(&self) {
        self.pass(SECOND).await;
        let expected: BTreeMap<String, String> =
            self.records().await.iter().map(|one| (one.id.text(), line(one))).collect();
        let found = async || self.outages().await == expected;
        let started = Stopwatch::start();
        while !found().await {
            if started.elapsed() > MAX_WAIT {
                let outages = self.outages().await;
                let differs = expected.iter().find(|(id, line)| outages.get(*id) != Some(line));
                let other = differs.and_then(|(id, _)| outages.get(id));
                panic!("{} of {}: {differs:?} is {other:?}", outages.len(), expected.len());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let open = expected.values().filter(|line| line.ends_with("back None None")).count();
        until(async || self.count("open").await == open as i64).await;
    }

    async fn outages(&self) -> BTreeMap<String, String> {
        let select = "SELECT record, kind || ' ' || unit || ' ' || labels::text || ' ' || cause, last_seen, \
                      offline_since, detected_at, back_at, closed_by FROM outages";
        let rows = self.postgres.rows(&self.access.schema, select).await;
        let count = rows.len();
        let at = |row: &tokio_postgres::Row, column| row.get::<_, jiff::Timestamp>(column).as_millisecond();
        let line = |row: &tokio_postgres::Row| {
            let back = row.get::<_, Option<jiff::Timestamp>>(5).map(|at| at.as_millisecond());
            let by = row.get::<_, Option<String>>(6);
            let (seen, since, detected) = (at(row, 2), at(row, 3), at(row, 4));
            format!(
                "{} seen {seen} since {since} detected {detected} back {back:?} {by:?}",
                row.get::<_, String>(1)
            )
        };
        let all: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), line(row))).collect();
        assert_eq!(all.len(), count, "no record is there twice");
        all
    }

    /// How many rows a table has; 0 while there is none.
    pub async fn count(&self, table: &str) -> i64 {
        let rows = self.postgres.rows(&self.access.schema, &format!("SELECT count(*) FROM {table}")).await;
        rows.first().map_or(0, |row| row.get(0))
    }

    /// The text of a problem of that name.
    pub fn problem(&self, name: &str) -> Option<String> {
        self.telemetry.problems().into_iter().find(|one| one.name == name).map(|one| one.text)
    }
}

/// The roll of an instance whose kind has [`TIMEOUT`].
fn roll_of(engine: &Arc<dyn Engine>, telemetry: &Arc<Telemetry>) -> Arc<Roll> {
    let kind: Kind = "detector".parse().unwrap();
    let policy = Policy { timeout: TIMEOUT, grace: Duration::ZERO };
    let rules = Arc::new(Rules::from_iter([(kind.clone(), KindRules { policy, ..KindRules::new(kind) })]));
    let mirror = Arc::new(Mirror::of(&**engine, rules.clone(), &[]));
    let hearing =
        HearingConfig { gap: 3 * SECOND, follows: false, settle: Duration::ZERO, tell_after: 300 * SECOND };
    let outbox_grew = Arc::new(Notify::new());
    Arc::new(Roll::new(engine.clone(), rules, mirror, telemetry.clone(), hearing, outbox_grew))
}

fn line(record: &OfflineRecord) -> String {
    let labels = serde_json::to_string(&record.labels).unwrap();
    format!(
        "{} {} {labels} {} seen {} since {} detected {} back {:?} {:?}",
        record.kind,
        record.unit,
        record.cause.as_str(),
        record.last_seen.as_millis(),
        record.deadline.as_millis(),
        record.detected_at.as_millis(),
        record.back_at.map(Timestamp::as_millis),
        record.closed_by.map(|why| why.as_str().to_owned()),
    )
}

pub fn units(count: usize) -> Vec<Unit> {
    (0..count).map(|number| format!("detector:unit-{number:04}").parse().unwrap()).collect()
}

/// Waits until it is so.
pub async fn until(is_so: impl AsyncFn() -> bool) {
    until_so("it", is_so).await;
}

/// Waits until what it names is so.
pub async fn until_so(what: &str, is_so: impl AsyncFn() -> bool) {
    let started = Stopwatch::start();
    while !is_so().await {
        assert!(started.elapsed() < MAX_WAIT, "not so: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
