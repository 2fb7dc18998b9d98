//! Steps of the clock: a timer of a span waits for as long as it would without them, and a restart forgets none.

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{CONFIRMED, Clock, Timestamp};
use rollcall::presence::{NewTimer, TimerClass, TimerId};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::embedded::EmbeddedEngine;
use rollcall::store::redis::RedisEngine;
use rollcall::store::{
    Engine, Examine, Gap, HearingStore, StoredTimers, Subscription, TimerCapacity, TimerClasses, embedded,
    redis as on_redis,
};
use rollcall::telemetry::{EngineWarning, Telemetry};

/// How long an outage may be without a notification.
const GAP: Gap = Gap { blind: Duration::from_secs(3), tell_after: Duration::from_secs(60) };

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_redis_lost_is_a_problem_at_once_for_a_day_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let config = on_redis::RedisConfig { url: url.clone(), ..Default::default() };
    let is_shown = async |engine: &RedisEngine, now: Timestamp| {
        let warnings = engine.examine(now).await.unwrap();
        warnings.iter().any(|warning| warning.name == EngineWarning::LostItsData)
    };
    let engine = RedisEngine::connect(&config, telemetry()).await.unwrap();
    let now = renew(&engine).await;
    let canary = async |engine: &RedisEngine, at: Timestamp| {
        engine.advance(&Subscription::Plain, at, GAP).await.unwrap();
    };
    canary(&engine, now).await;
    assert!(!is_shown(&engine, now).await);
    let mut other = ::redis::Client::open(url).unwrap().get_connection().unwrap();
    cmd("FLUSHALL").exec(&mut other).unwrap();
    assert!(is_shown(&engine, now).await, "before a canary");
    canary(&engine, now + Duration::from_secs(1)).await;
    let asked = tokio::time::timeout(Duration::from_secs(20), engine.suspects_its_servers()).await;
    asked.expect("an examination is wanted at once");
    assert!(is_shown(&engine, now + 23 * HOUR).await);
    drop(engine);
    let engine = RedisEngine::connect(&config, telemetry()).await.unwrap();
    assert!(is_shown(&engine, now + 23 * HOUR).await, "after a restart");
    assert!(!is_shown(&engine, now + 25 * HOUR).await);
}

const HOUR: Duration = Duration::from_secs(3600);

fn telemetry() -> std::sync::Arc<Telemetry> {
    std::sync::Arc::new(Telemetry::new(&Clock::system()))
}

fn timer(name: &str, due: Timestamp, is_span: bool) -> NewTimer {
    let (id, timer_type) = (name.parse().unwrap(), "report".parse().unwrap());
    NewTimer { id, timer_type, due, is_span, data: "1".parse().unwrap() }
}

async fn renew(engine: &dyn Engine) -> Timestamp {
    engine.renew("alone", Duration::from_secs(8), None).await.unwrap().now
}

/// Registers two timers for the same moment, and answers it.
async fn register(engine: Arc<dyn Engine>) -> Timestamp {
    let due = renew(&*engine).await + HOUR / 2;
    let timers = [timer("span", due, true), timer("moment", due, false)];
    StoredTimers::new(engine).register(&timers, false).await.unwrap();
    due
}

/// The clock has skipped an hour since.
async fn a_span_lasts_as_long(engine: Arc<dyn Engine>, due: Timestamp) {
    let engine = StoredTimers::new(engine);
    let all: Vec<u16> = (0..engine.partitions()).collect();
    let found = async |until: Timestamp| {
        let found = engine.due_timers(&all, until, 10).await.unwrap();
        found.into_iter().map(|timer| timer.id.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(due).await, ["moment"]);
    assert_eq!(found(due + HOUR / 2).await, ["moment"]);
    let id: TimerId = "span".parse().unwrap();
    assert_eq!(engine.timers(std::slice::from_ref(&id)).await.unwrap()[0].as_ref().unwrap().due, due + HOUR);
    let class = TimerClass {
        timer_type: "report".parse().unwrap(),
        receivers: vec!["hook".to_owned()],
        guarantee: Default::default(),
        keep: HOUR,
        most: 9,
    };
    let classes = TimerClasses::from([(class.timer_type.clone(), class)]);
    let now = due + HOUR;
    let due_now = engine.due_timers(&all, now, 10).await.unwrap();
    let fired = engine.fire(&due_now, &classes, &TimerCapacity::NONE, now).await.unwrap();
    let mut ids: Vec<String> = fired.timers.iter().map(|timer| timer.firing()).collect();
    ids.sort();
    let ms = due.as_millis();
    assert_eq!(ids, [format!("moment:{ms}"), format!("span:{}", ms + 3_600_000)]);
    let stored = engine.timers(std::slice::from_ref(&id)).await.unwrap().remove(0).unwrap();
    assert_eq!(stored.fired_at(), Some(now));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_of_a_span_on_redis_waits_longer_by_what_the_clock_has_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let config = on_redis::RedisConfig { url: url.clone(), ..Default::default() };
    let engine = Arc::new(RedisEngine::connect(&config, telemetry()).await.unwrap());
    let due = register(engine.clone()).await;
    let mut other = ::redis::Client::open(url).unwrap().get_connection().unwrap();
    let key = "rollcall:{hearing}:clock";
    assert!(cmd("EXISTS").arg(key).query::<bool>(&mut other).unwrap());
    cmd("HSET").arg(key).arg("stepped").arg(3_600_000).exec(&mut other).unwrap();
    renew(&*engine).await;
    a_span_lasts_as_long(engine, due).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_of_a_span_in_a_directory_waits_longer_by_what_the_clock_has_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let config = embedded::EmbeddedConfig { path: dir.path().to_owned(), partitions: None };
    let due = register(Arc::new(EmbeddedEngine::open(&config, telemetry()).await.unwrap())).await;
    let database = rusqlite::Connection::open(dir.path().join("rollcall.db")).unwrap();
    database.execute("INSERT OR REPLACE INTO meta VALUES('stepped', 3600000)", []).unwrap();
    drop(database);
    let engine = Arc::new(EmbeddedEngine::open(&config, telemetry()).await.unwrap());
    a_span_lasts_as_long(engine, due).await;
}

/// An hour's step is stored as noticed at a moment; then the only instance starts again.
async fn a_restart_accepts_no_step(store: impl Fn(Timestamp), start: impl AsyncFn() -> Arc<dyn Engine>) {
    let renew = async || {
        let engine = start().await;
        let reply = engine.renew("alone", Duration::from_secs(8), None).await.unwrap();
        (
            reply.engine_clock.since(reply.now),
            reply.ahead,
            engine.stepped(),
            engine.hearing().await.unwrap().skipped,
        )
    };
    let clock = || Clock::system().now();
    store(clock() - HOUR);
    for _ in 0..2 {
        assert_eq!(renew().await, (HOUR, Some(HOUR), Duration::ZERO, None), "it has not lasted for a minute");
    }
    store(clock() - HOUR - CONFIRMED);
    let accepted = renew().await;
    let skipped = accepted.3.map(|skip| skip.to.since(skip.from));
    assert_eq!((accepted.0, accepted.1, accepted.2, skipped), (Duration::ZERO, None, HOUR, Some(HOUR)));
    assert_eq!(renew().await, accepted, "it is accepted once");
    store(clock() - HOUR / 2);
    assert_eq!(renew().await, accepted, "the clock was set back meanwhile");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_accepts_no_step_of_the_clock_on_redis() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let config = on_redis::RedisConfig { url: url.clone(), ..Default::default() };
    let client = ::redis::Client::open(url).unwrap();
    let store = |since: Timestamp| {
        let mut set = cmd("HSET");
        set.arg("rollcall:{hearing}:clock").arg("ahead").arg(3_600_000).arg("since").arg(since.as_millis());
        set.exec(&mut client.get_connection().unwrap()).unwrap();
    };
    let start =
        async || Arc::new(RedisEngine::connect(&config, telemetry()).await.unwrap()) as Arc<dyn Engine>;
    a_restart_accepts_no_step(store, start).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_accepts_no_step_of_the_clock_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let config = embedded::EmbeddedConfig { path: dir.path().to_owned(), partitions: None };
    let start =
        async || Arc::new(EmbeddedEngine::open(&config, telemetry()).await.unwrap()) as Arc<dyn Engine>;
    drop(start().await);
    let store = |since: Timestamp| {
        let database = rusqlite::Connection::open(dir.path().join("rollcall.db")).unwrap();
        let insert = "INSERT OR REPLACE INTO meta VALUES('ahead', 3600000), ('since', ?)";
        database.execute(insert, [since.as_millis()]).unwrap();
    };
    a_restart_accepts_no_step(store, start).await;
}
