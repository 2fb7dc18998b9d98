//! What `rollcall check` finds out about Redis.
//!
//! It asks on a connection of its own and changes nothing; a setting that the service would put
//! right at its start is reported as it is, with what the service will do about it.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, IntoConnectionInfo, RedisError, RedisResult};

use super::{Finding, patiently};
use crate::clock::{Clock, Timestamp};
use crate::engine::redis::Config;

/// The oldest version whose commands are enough.
const OLDEST: (u32, u32) = (6, 2);
/// Clocks that are further apart than this are worth a word.
const FARTHEST: Duration = Duration::from_millis(500);

/// What the server says of itself.
#[derive(Default)]
struct Facts {
    /// The lines of INFO.
    info: HashMap<String, String>,
    /// The settings that matter; `None` if the server does not show them.
    settings: Option<HashMap<String, String>>,
    /// How far its clock is ahead of ours, in ms.
    ahead_ms: i64,
}

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    match patiently(ask(config)).await {
        Ok(facts) => judge(&facts),
        Err(why) => vec![Finding::fail("redis", format!("{config}: {why}"))],
    }
}

async fn ask(config: &Config) -> Result<Facts, String> {
    let told = |error: RedisError| explain(&error);
    let mut connection = connect(config).await.map_err(told)?;
    let text: String = redis::cmd("INFO").query_async(&mut connection).await.map_err(told)?;
    let info = text.lines().filter_map(|line| line.trim().split_once(':'));
    let info = info.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let ahead_ms = clock_offset(&mut connection).await.map_err(told)?;
    // Hosted servers and careful ACLs do not show their settings; that is no failure.
    let settings = redis::cmd("CONFIG")
        .arg("GET")
        .arg("*")
        .query_async::<HashMap<String, String>>(&mut connection)
        .await
        .ok();
    Ok(Facts { info, settings, ahead_ms })
}

async fn connect(config: &Config) -> RedisResult<MultiplexedConnection> {
    let mut address = config.url.as_str().into_connection_info()?;
    if let Some(password) = &config.password {
        let settings = address.redis_settings().clone().set_password(password);
        address = address.set_redis_settings(settings);
    }
    redis::Client::open(address)?.get_multiplexed_async_connection().await
}

/// The server's clock less ours, taken in the middle of the question.
async fn clock_offset(connection: &mut MultiplexedConnection) -> RedisResult<i64> {
    let clock = Clock::system();
    let before = clock.now();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(connection).await?;
    let ours = before + clock.now().since(before) / 2;
    Ok(Timestamp::from_millis(seconds * 1000 + micros / 1000).as_millis() - ours.as_millis())
}

/// What to do about a refusal.
const REFUSED: &str = "check the user in engine.url and engine.password_file";

fn explain(error: &RedisError) -> String {
    let todo = match error.code() {
        // Without a password: NOAUTH. With a wrong one the library has a word of its own.
        Some("NOAUTH" | "WRONGPASS") => REFUSED,
        _ if error.kind() == ErrorKind::AuthenticationFailed => REFUSED,
        Some("NOPERM") => "allow it to the user in engine.url",
        _ if error.is_io_error() => "check engine.url, and that the server runs",
        _ => "check engine.url",
    };
    format!("{error}; {todo}")
}

/// What follows from the facts.
fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![version(facts), clock(facts.ahead_ms)];
    let info = |key: &str| facts.info.get(key).map_or("", String::as_str);
    if info("cluster_enabled") == "1" {
        let text =
            "the server is part of a cluster, which is not supported yet; use one without cluster-enabled";
        findings.push(Finding::fail("redis cluster", text));
    }
    if info("role") == "slave" {
        findings.push(Finding::fail("redis role", "the server is a replica; name the primary in engine.url"));
    }
    let evicted = info("evicted_keys");
    if !matches!(evicted, "" | "0") {
        let text =
            format!("{evicted} keys were thrown away for want of memory: units are lost; give it more");
        findings.push(Finding::warn("redis memory", text));
    }
    match &facts.settings {
        Some(settings) => findings.extend(settled(settings)),
        None => findings.push(Finding::warn(
            "redis settings",
            "the server does not show them (CONFIG GET); see that notify-keyspace-events contains Ex, that \
             maxmemory-policy is noeviction and that appendonly is yes",
        )),
    }
    findings
}

fn version(facts: &Facts) -> Finding {
    let text = facts.info.get("redis_version").cloned().unwrap_or_default();
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST {
        let text = format!("version {text} is too old; Rollcall needs {}.{} or newer", OLDEST.0, OLDEST.1);
        return Finding::fail("redis", text);
    }
    match facts.info.get("valkey_version") {
        Some(valkey) => Finding::ok("redis", format!("answers, Valkey {valkey}")),
        None => Finding::ok("redis", format!("answers, version {text}")),
    }
}

fn clock(ahead_ms: i64) -> Finding {
    let apart = Duration::from_millis(ahead_ms.unsigned_abs());
    if apart <= FARTHEST {
        return Finding::ok("redis clock", format!("{} ms from this machine's", apart.as_millis()));
    }
    let word = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let text = format!("{:.1} s {word} this machine's; let both follow NTP", apart.as_secs_f64());
    Finding::warn("redis clock", text)
}

fn settled(settings: &HashMap<String, String>) -> Vec<Finding> {
    let of = |key: &str| settings.get(key).map_or("", String::as_str);
    let events = of("notify-keyspace-events");
    // A is every class of events, the expired ones among them.
    let expiry = events.contains('E') && events.contains(['x', 'A']);
    let policy = of("maxmemory-policy");
    let persistent = of("appendonly") == "yes" || !of("save").is_empty();
    vec![
        match expiry {
            true => Finding::ok("redis events", format!("notify-keyspace-events is {events:?}")),
            false => Finding::warn(
                "redis events",
                format!(
                    "notify-keyspace-events is {events:?} and lacks Ex; Rollcall sets it at its start if it may, \
                     and works without the hints if not"
                ),
            ),
        },
        match policy {
            "noeviction" => Finding::ok("redis eviction", "maxmemory-policy is noeviction"),
            policy => Finding::warn(
                "redis eviction",
                format!("maxmemory-policy is {policy}: full memory would cost units; set it to noeviction"),
            ),
        },
        match persistent {
            true => Finding::ok("redis persistence", "is on"),
            false => Finding::warn(
                "redis persistence",
                "is off: a restart of the server forgets the fleet and all that was to be told; set appendonly yes",
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::Outcome;

    fn facts(info: &[(&str, &str)], settings: &[(&str, &str)], ahead_ms: i64) -> Facts {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string()));
            pairs.collect::<HashMap<_, _>>()
        };
        Facts { info: map(info), settings: Some(map(settings)), ahead_ms }
    }

    const GOOD: [(&str, &str); 3] =
        [("notify-keyspace-events", "xE"), ("maxmemory-policy", "noeviction"), ("appendonly", "yes")];

    fn wrong(facts: &Facts) -> Vec<(Outcome, String)> {
        let findings = judge(facts).into_iter().filter(|finding| finding.outcome != Outcome::Ok);
        findings.map(|finding| (finding.outcome, finding.name)).collect()
    }

    #[test]
    fn each_problem_of_a_server_is_named() {
        use Outcome::{Fail, Warn};
        let new = ("redis_version", "7.0.15");
        let none: &[(&str, &str)] = &[];
        let cases = [
            (facts(&[new], &GOOD, 0), vec![]),
            (facts(&[("redis_version", "6.2.0")], &GOOD, -500), vec![]),
            (facts(&[("redis_version", "6.0.16")], &GOOD, 0), vec![(Fail, "redis")]),
            (facts(none, &GOOD, 0), vec![(Fail, "redis")]),
            (facts(&[new], &GOOD, 501), vec![(Warn, "redis clock")]),
            (facts(&[new, ("role", "slave")], &GOOD, 0), vec![(Fail, "redis role")]),
            (facts(&[new, ("cluster_enabled", "1")], &GOOD, 0), vec![(Fail, "redis cluster")]),
            (facts(&[new, ("evicted_keys", "3")], &GOOD, 0), vec![(Warn, "redis memory")]),
            (
                facts(&[new], &[("notify-keyspace-events", "Kx"), ("maxmemory-policy", "allkeys-lru")], 0),
                vec![(Warn, "redis events"), (Warn, "redis eviction"), (Warn, "redis persistence")],
            ),
            (Facts { settings: None, ..facts(&[new], none, 0) }, vec![(Warn, "redis settings")]),
        ];
        for (facts, expected) in cases {
            let expected: Vec<_> =
                expected.into_iter().map(|(outcome, name)| (outcome, name.to_owned())).collect();
            assert_eq!(wrong(&facts), expected);
        }
    }
}
