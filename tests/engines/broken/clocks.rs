//! Stored clocks that are no time, or years ahead, on both engines: the fleet goes on by the clocks that are left.

use std::time::Duration;

use redis::cmd;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::store::{Engine, Gap, Roster, Subscription};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::fleet::telemetry;

const LEASE: Duration = Duration::from_secs(8);
const SECOND: Duration = Duration::from_secs(1);
const GAP: Gap = Gap { blind: SECOND, tell_after: SECOND };

/// Fields of `{hearing}:clock` and `{hearing}:heard`, and a value that another program writes there.
const ON_REDIS: &[(&str, &str, &str)] = &[
    ("clock", "fleet", "1e400"),
    ("clock", "fleet", "nan"),
    ("clock", "fleet", "-1e400"),
    ("clock", "fleet", "1e17"),
    ("clock", "fleet", "253402300700000"),
    ("clock", "fleet", "4102444800000"),
    ("clock", "server", "1e400"),
    ("clock", "server", "-1e400"),
    ("clock", "jump", "1e400"),
    ("clock", "ahead", "1e400"),
    ("clock", "since", "1e400"),
    ("clock", "stepped", "1e400"),
    ("clock", "skipped", "1e400"),
    ("heard", "at", "253402300700000"),
    ("heard", "at", "4102444800000"),
];

/// One renewal and one canary of an instance. Answers by how much the time of the fleet is ahead.
async fn go_on(engine: &dyn Engine) -> Result<Duration, String> {
    let heard = engine.hearing().await.map_err(|why| why.to_string())?.heard;
    let renewed = engine.renew("one", LEASE, heard).await.map_err(|why| why.to_string())?;
    engine.advance(&Subscription::Plain, renewed.now, GAP).await.map_err(|why| why.to_string())?;
    let heard = engine.hearing().await.map_err(|why| why.to_string())?.heard;
    if heard != Some(renewed.now) {
        return Err(format!("heard up to {heard:?} at {}", renewed.now));
    }
    Ok(renewed.now.since(renewed.engine_clock))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_in_redis_that_is_no_time_or_years_ahead_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut client = redis::Client::open(url.clone()).unwrap().get_connection().unwrap();
    let config = RedisConfig { url, partitions: Some(2), ..RedisConfig::default() };
    let mut wrong = Vec::new();
    for (key, field, value) in ON_REDIS {
        for starts_after in [false, true] {
            cmd("FLUSHALL").exec(&mut client).unwrap();
            let connect = async || RedisEngine::connect(&config, telemetry().0).await.unwrap();
            let mut engine = connect().await;
            go_on(&engine).await.unwrap();
            let key = format!("rollcall:{{hearing}}:{key}");
            cmd("HSET").arg(&key).arg(field).arg(value).exec(&mut client).unwrap();
            if starts_after {
                engine = connect().await;
            }
            match go_on(&engine).await {
                Ok(ahead) if ahead < 60 * SECOND => {}
                other => wrong.push(format!("{key} {field} {value}, {starts_after}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_clock_in_the_database_that_is_years_ahead_stops_nothing() {
    let heard =
        |at: &str| Value::from(format!(r#"{{"heard":"{at}","members":[],"floors":{{}},"sessions":{{}}}}"#));
    let cases: [(&str, Value); 5] = [
        ("hearing", heard("2100-01-01T00:00:00Z")),
        ("hearing", heard("9999-12-31T23:59:59Z")),
        ("stepped", i64::MAX.into()),
        ("ahead", i64::MAX.into()),
        ("since", i64::MAX.into()),
    ];
    for (name, value) in cases {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(2) };
        let open = async || EmbeddedEngine::open(&config, telemetry().0).await.unwrap();
        let engine = open().await;
        go_on(&engine).await.unwrap();
        drop(engine);
        let database = Connection::open(dir.path().join("rollcall.db")).unwrap();
        database.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (name, &value)).unwrap();
        drop(database);
        let engine = open().await;
        let ahead = go_on(&engine).await.unwrap_or_else(|why| panic!("{name} {value:?}: {why}"));
        assert!(ahead < 60 * SECOND, "{name} {value:?}: {ahead:?} ahead");
        assert_eq!(engine.stepped(), Duration::ZERO, "{name} {value:?}");
    }
}
