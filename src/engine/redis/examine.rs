//! What is wrong with the server though it answers, and what to do: each problem has a name.

use std::time::Duration;

use redis::{InfoDict, pipe};
use tokio::time::Instant;

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::engine::{EngineError, Result, Warning};
use crate::telemetry::Ailment;

/// The oldest server that knows every command that is used.
const OLDEST: (u32, u32) = (6, 2);

/// Clocks further apart than this are worth a word.
const FARTHEST: Duration = Duration::from_millis(500);

pub(super) async fn examine(engine: &RedisEngine, now: Timestamp) -> Result<Vec<Warning>> {
    let mut pipe = pipe();
    pipe.cmd("TIME").cmd("INFO").hget(engine.keys.meta(), "fleet");
    let asked = Instant::now();
    let (time, info, fleet): ((i64, i64), InfoDict, Option<String>) =
        engine.topology.send("info", &pipe).await?;
    let took = asked.elapsed();
    check_version(&info)?;
    let mut warnings = Vec::new();
    let mut warn = |name, text: String| warnings.push(Warning { name, text });
    if fleet.as_ref() != Some(&engine.fleet) {
        super::found_fleet(&engine.topology, &engine.keys).await?;
        warn(
            Ailment::LostItsData,
            "the fleet in redis is not the one that was there at the start; units are known again when they \
             are heard, those that stay silent are not: compare with your registry, then restart rollcall"
                .into(),
        );
    }
    if info.get::<u64>("evicted_keys").unwrap_or(0) > 0 {
        warn(
            Ailment::KeysEvicted,
            "redis has evicted keys and may have dropped units; raise its maxmemory and set maxmemory-policy \
             noeviction"
                .into(),
        );
    }
    if info.get::<String>("maxmemory_policy").is_some_and(|policy| policy != "noeviction") {
        warn(
            Ailment::EvictionPossible,
            "redis may evict keys when it is full; set maxmemory-policy noeviction".into(),
        );
    }
    let saves = setting(engine, "save").await;
    let has_aof = info.get::<u8>("aof_enabled") == Some(1);
    if !has_aof && saves.as_deref().is_ok_and(str::is_empty) {
        warn(
            Ailment::PersistenceOff,
            "redis forgets the fleet when it restarts; set appendonly yes (or save points)".into(),
        );
    }
    if let Some(text) = check_clock(time, now, took) {
        warn(Ailment::ClockOff, text);
    }
    if let Some(text) = check_notifications(engine).await {
        warn(Ailment::NotificationsOff, text);
    }
    Ok(warnings)
}

fn check_version(info: &InfoDict) -> Result<()> {
    let version: String = info.get("redis_version").unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < OLDEST {
        let (major, minor) = OLDEST;
        return Err(EngineError::Refused(format!(
            "redis is version {version}, but {major}.{minor} or newer is needed; upgrade it"
        )));
    }
    Ok(())
}

/// Says by how much the server's clock is off, if it is. Its time was read at some moment of the
/// `took` after `now`, so only what lies outside of that is a difference of clocks.
fn check_clock((seconds, micros): (i64, i64), now: Timestamp, took: Duration) -> Option<String> {
    let theirs = Timestamp::from_millis(seconds.saturating_mul(1000).saturating_add(micros / 1000));
    let (ahead, behind) = (theirs.since(now + took), now.since(theirs));
    let (apart, direction) = if behind.is_zero() { (ahead, "ahead of") } else { (behind, "behind") };
    (apart > FARTHEST).then(|| {
        format!(
            "the clock of redis is {} ms {direction} that of this machine; one of them tells wrong times: run a \
             time service such as chrony on both",
            apart.as_millis()
        )
    })
}

/// Makes sure that expiry is notified, and says so where that cannot be had.
async fn check_notifications(engine: &RedisEngine) -> Option<String> {
    let flags = match setting(engine, "notify-keyspace-events").await {
        Ok(flags) => flags,
        Err(why) => {
            return Some(format!(
                "redis does not let its settings be read ({why}); permit CONFIG GET, or see to it that \
                 notify-keyspace-events contains Ex. Detection works by the deadline index meanwhile"
            ));
        }
    };
    if notifies(&flags) {
        return None;
    }
    let mut pipe = pipe();
    pipe.cmd("CONFIG").arg("SET").arg("notify-keyspace-events").arg(format!("{flags}Ex")).ignore();
    match engine.topology.send::<()>("config_set", &pipe).await {
        Ok(()) => None,
        Err(why) => Some(format!(
            "redis does not notify expiry and does not let that be changed ({why}); set \
             notify-keyspace-events to Ex. Detection works by the deadline index meanwhile"
        )),
    }
}

/// Whether these flags of `notify-keyspace-events` include expiry as key events.
fn notifies(flags: &str) -> bool {
    flags.contains('E') && (flags.contains('x') || flags.contains('A'))
}

async fn setting(engine: &RedisEngine, name: &str) -> std::result::Result<String, EngineError> {
    let mut pipe = pipe();
    pipe.cmd("CONFIG").arg("GET").arg(name);
    let (pairs,): (std::collections::HashMap<String, String>,) =
        engine.topology.send("config_get", &pipe).await?;
    Ok(pairs.get(name).cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_apart_if_the_journey_does_not_explain_the_difference() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        // (their time after ours, how long the question took, what is said)
        let cases = [
            (0, 0, None),
            (500, 0, None),
            (-500, 0, None),
            (501, 0, Some("501 ms ahead of")),
            (-501, 0, Some("501 ms behind")),
            (2500, 2000, None),
            (2501, 2000, Some("501 ms ahead of")),
            (-501, 2000, Some("501 ms behind")),
        ];
        for (apart, took, expected) in cases {
            let theirs = now.as_millis() + apart;
            let time = (theirs / 1000, theirs % 1000 * 1000 + 999);
            let said = check_clock(time, now, Duration::from_millis(took));
            let as_expected = match (&said, expected) {
                (Some(said), Some(expected)) => said.contains(expected),
                (said, expected) => said.is_none() && expected.is_none(),
            };
            assert!(as_expected, "{apart} ms within {took} ms: {said:?}");
        }
    }

    #[test]
    fn expiry_is_notified_if_key_events_and_expired_or_all_are_on() {
        for (flags, expected) in [
            ("", false),
            ("Ex", true),
            ("xE", true),
            ("AE", true),
            ("Kx", false),
            ("E", false),
            ("AKE", true),
        ] {
            assert_eq!(notifies(flags), expected, "{flags}");
        }
    }
}
