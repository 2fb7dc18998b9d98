//! The number of partitions and the form of the tags: fixed when a fleet is created, and found again by every
//! configuration that names neither.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::presence::Unit;
use rollcall::store::redis::{
    HashTags, RedisConfig, RedisEngine, RedisRepair, facts_key, partitions, survey,
};
use rollcall::store::repair::Repair;
use rollcall::store::{Engine, EngineError, Layout, embedded, embedded::EmbeddedEngine};
use rollcall::telemetry::Telemetry;

use crate::support::parts::Parts;
use crate::support::redis::Redis;

fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::system()))
}

async fn connect(config: &RedisConfig) -> Result<RedisEngine, EngineError> {
    RedisEngine::connect(config, telemetry()).await
}

async fn refusal(config: &RedisConfig) -> String {
    connect(config).await.err().expect("it is refused").to_string()
}

fn meta(redis: &Redis, field: &str) -> Option<String> {
    redis::cmd("HGET").arg("rollcall:meta").arg(field).query(&mut redis.client()).unwrap()
}

#[tokio::test]
async fn an_existing_fleet_keeps_its_number_of_partitions_without_a_word_in_the_configuration() {
    let redis = Redis::start();
    let silent = RedisConfig { url: redis.url(), ..RedisConfig::default() };
    assert_eq!(partitions(&silent, telemetry()).await.unwrap(), None);
    let saying = |partitions| RedisConfig { partitions: Some(partitions), ..silent.clone() };
    assert_eq!(connect(&saying(64)).await.unwrap().partitions(), 64);
    assert_eq!(connect(&silent).await.unwrap().partitions(), 64);
    assert_eq!(connect(&saying(64)).await.unwrap().partitions(), 64);
    let why = refusal(&saying(16)).await;
    assert!(
        why.contains("was created with 64 partitions, engine.partitions says 16; write 64 there"),
        "{why}"
    );
    let now = Clock::system().now();
    let why = survey(&saying(16), now, telemetry()).await.err().unwrap().to_string();
    assert!(why.contains("was created with 64 partitions"), "{why}");
    survey(&silent, now, telemetry()).await.unwrap();
    assert_eq!(partitions(&silent, telemetry()).await.unwrap(), Some(64));
    let new = RedisConfig { prefix: "new".into(), ..silent };
    assert_eq!(connect(&new).await.unwrap().partitions(), 16);
    assert_eq!(meta(&redis, "tags"), None, "one server has plain tags");
}

#[tokio::test]
async fn the_form_of_the_tags_is_read_before_any_other_key() {
    let redis = Redis::start();
    let fields = [("fleet", "0123456789abcdef"), ("layout", "10"), ("partitions", "48"), ("tags", "spread")];
    redis::cmd("HSET").arg("rollcall:meta").arg(&fields).exec(&mut redis.client()).unwrap();
    let config = RedisConfig { url: redis.url(), ..RedisConfig::default() };
    let engine: Arc<dyn Engine> = Arc::new(connect(&config).await.unwrap());
    assert_eq!(engine.partitions(), 48);
    let units: Vec<Unit> = (0..500).map(|n| format!("detector:unit-{n}").parse().unwrap()).collect();
    let kinds = [("detector", Duration::from_secs(3600))];
    let parts = Parts::new(engine, telemetry(), &Clock::system(), &kinds);
    parts.hear_all(&units).await.unwrap();
    for unit in &units {
        let key = facts_key("rollcall", 48, HashTags::Spread, unit);
        let is_there: bool =
            redis::cmd("HEXISTS").arg(&key).arg(unit.to_string()).query(&mut redis.client()).unwrap();
        assert!(is_there, "{unit} is not in {key}");
    }
    let plain: Vec<String> =
        redis::cmd("KEYS").arg("rollcall:{p*[0-9]}:*").query(&mut redis.client()).unwrap();
    assert!(plain.iter().all(|key| key.contains('.')), "{plain:?}");
    let quarantine = format!("rollcall:{{{}}}:unreadable", HashTags::Spread.tag(5, 48));
    redis::cmd("HSET").arg(quarantine).arg("rollcall:other").arg("x").exec(&mut redis.client()).unwrap();
    let repair = RedisRepair::open(&config, telemetry()).await.unwrap();
    assert_eq!(repair.quarantined().await.unwrap().len(), 1);

    redis::cmd("HSET").arg("rollcall:meta").arg("tags").arg("woven").exec(&mut redis.client()).unwrap();
    let why = refusal(&config).await;
    assert!(why.contains("hash tags of the form \"woven\", which this rollcall does not know"), "{why}");
}

#[tokio::test]
async fn a_fleet_of_another_layout_is_refused_with_what_to_do_and_nothing_of_it_is_changed() {
    let redis = Redis::start();
    let config = RedisConfig { url: redis.url(), ..RedisConfig::default() };
    connect(&config).await.unwrap();
    assert_eq!(meta(&redis, "layout").as_deref(), Some("10"));
    for (layout, says, advice) in [
        (None, "is stored in an older layout", "rollcall export"),
        (Some(3), "is stored in layout 3,", "another engine.prefix"),
        (Some(99), "is stored in layout 99, which is a newer version's", "start the newer version again"),
    ] {
        let change = match layout {
            None => redis::cmd("HDEL").arg("rollcall:meta").arg("layout").to_owned(),
            Some(number) => redis::cmd("HSET").arg("rollcall:meta").arg("layout").arg(number).to_owned(),
        };
        change.exec(&mut redis.client()).unwrap();
        let before = meta(&redis, "layout");
        for why in [refusal(&config).await, survey_refusal(&config).await] {
            assert!(why.contains(says) && why.contains("this version reads layout 10"), "{why}");
            assert!(why.contains(advice), "{why}");
        }
        assert_eq!(meta(&redis, "layout"), before);
    }
    // Its properties are gone, and their copy is of another layout.
    redis::cmd("DEL").arg("rollcall:meta").exec(&mut redis.client()).unwrap();
    redis::cmd("HSET")
        .arg("rollcall:{hearing}:heard")
        .arg("layout")
        .arg(3)
        .exec(&mut redis.client())
        .unwrap();
    let why = refusal(&config).await;
    assert!(why.contains("is stored in layout 3,"), "{why}");

    let dir = tempfile::tempdir().unwrap();
    let config = embedded::EmbeddedConfig { path: dir.path().join("fleet"), partitions: None };
    drop(EmbeddedEngine::open(&config, telemetry()).await.unwrap());
    for (layout, says, advice) in [
        (3, "is stored in layout 3,", "another engine.path"),
        (99, "is stored in layout 99,", "start the newer version again"),
    ] {
        let database = rusqlite::Connection::open(dir.path().join("fleet/rollcall.db")).unwrap();
        database.pragma_update(None, "user_version", layout).unwrap();
        drop(database);
        let why = EmbeddedEngine::open(&config, telemetry()).await.err().unwrap().to_string();
        assert!(why.contains(says) && why.contains(advice), "{why}");
    }
}

#[tokio::test]
async fn a_property_that_is_no_number_is_refused_with_where_it_is_and_what_to_do() {
    let redis = Redis::start();
    let config = RedisConfig { url: redis.url(), ..RedisConfig::default() };
    connect(&config).await.unwrap();
    let set = |key: &str, field: &str, value: &str| {
        redis::cmd("HSET").arg(key).arg(field).arg(value).exec(&mut redis.client()).unwrap();
    };
    let says = |why: &str, key: &str, field: &str, value: &str| {
        let what = format!("the {field} of the fleet at ");
        let wrong = format!(
            "cannot be read: the field {field} of {key} is {value:?}, and no number; restore a backup"
        );
        assert!(why.contains(&what) && why.contains(&wrong), "{why}");
    };
    for (field, value, right) in [
        ("layout", "abc", "10"),
        ("layout", "9.1", "10"),
        ("partitions", "many", "16"),
        ("partitions", "-1", "16"),
    ] {
        set("rollcall:meta", field, value);
        for why in [refusal(&config).await, survey_refusal(&config).await] {
            says(&why, "rollcall:meta", field, value);
        }
        assert_eq!(meta(&redis, field).as_deref(), Some(value));
        set("rollcall:meta", field, right);
    }
    connect(&config).await.unwrap();
    set("rollcall:meta", "partitions", "many");
    says(
        &partitions(&config, telemetry()).await.unwrap_err().to_string(),
        "rollcall:meta",
        "partitions",
        "many",
    );
    // The properties are gone, and a number of their copy is none.
    redis::cmd("DEL").arg("rollcall:meta").exec(&mut redis.client()).unwrap();
    set("rollcall:{hearing}:heard", "fleet", "0123456789abcdef");
    set("rollcall:{hearing}:heard", "partitions", "many");
    set("rollcall:{hearing}:heard", "layout", "10");
    says(&refusal(&config).await, "rollcall:{hearing}:heard", "partitions", "many");
}

async fn survey_refusal(config: &RedisConfig) -> String {
    survey(config, Clock::system().now(), telemetry()).await.err().unwrap().to_string()
}

#[tokio::test]
async fn a_directory_keeps_its_number_of_partitions_too() {
    let dir = tempfile::tempdir().unwrap();
    let open = async |partitions| {
        let config = embedded::EmbeddedConfig { path: dir.path().join("fleet"), partitions };
        EmbeddedEngine::open(&config, telemetry()).await.map(|engine| engine.partitions())
    };
    assert_eq!(open(Some(64)).await.unwrap(), 64);
    assert_eq!(open(None).await.unwrap(), 64);
    let why = open(Some(16)).await.unwrap_err().to_string();
    assert!(why.contains("was created with 64 partitions, engine.partitions says 16"), "{why}");
}
