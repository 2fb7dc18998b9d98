//! Checks the engine, the finding of silences and the retention of records.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use ::redis::IntoConnectionInfo;

use super::file::{Engine, EngineType, Expiry, Records};
use super::problem::{Problems, suggest};
use super::{Span, secrets};
use crate::expiry;
use crate::store::{embedded, redis};

/// The longest time between two reads of the deadline index.
const TICK: Duration = Duration::from_secs(1);
const SCHEMES: [&str; 5] = ["redis", "rediss", "redis+unix", "redis-sentinel", "redis-cluster"];

/// The engine that holds the state of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineConfig {
    Redis(redis::Config),
    /// In a directory of this machine.
    Embedded(embedded::Config),
}

/// The address or the path, without a password.
impl fmt::Display for EngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineConfig::Redis(config) => config.fmt(f),
            EngineConfig::Embedded(config) => config.fmt(f),
        }
    }
}

pub(super) fn engine(engine: &Engine, base: &Path, problems: &mut Problems) -> EngineConfig {
    let partitions = problems.number("engine.partitions", engine.partitions, 1, 1024);
    let default = Engine::default();
    match engine.engine {
        EngineType::Redis => {
            if engine.path != default.path {
                problems.error("engine.path", "belongs to the embedded engine; write type = \"embedded\"");
            }
            address(engine, problems);
            prefix(&engine.prefix, problems);
            EngineConfig::Redis(redis::Config {
                url: engine.url.clone(),
                password: secrets::read("engine.password_file", &engine.password_file, base, problems),
                prefix: engine.prefix.clone(),
                partitions,
            })
        }
        EngineType::Embedded => {
            let of_redis = [
                ("engine.url", engine.url != default.url),
                ("engine.password_file", engine.password_file != default.password_file),
                ("engine.prefix", engine.prefix != default.prefix),
            ];
            for (option, _) in of_redis.into_iter().filter(|(_, is_set)| *is_set) {
                problems.error(option, "belongs to the engine on Redis; the embedded engine has a path");
            }
            if engine.path.is_empty() {
                problems.error("engine.path", "is empty; name a directory on a disk of this machine");
            }
            let path = base.join(&engine.path);
            if is_open_to_others(&path) {
                let shown = path.display();
                let text = format!(
                    "other users of this machine may enter {shown}, where the fleet is; chmod 700 {shown}"
                );
                problems.warn("engine.path", text);
            }
            EngineConfig::Embedded(embedded::Config { path, partitions })
        }
    }
}

/// Whether other users may enter the directory. A directory that Rollcall makes later is not open.
fn is_open_to_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.permissions().mode() & 0o077 != 0)
}

fn address(engine: &Engine, problems: &mut Problems) {
    const OPTION: &str = "engine.url";
    let Some((scheme, _)) = engine.url.split_once("://") else {
        return problems.error(OPTION, "is not an address; write redis://host:6379/0");
    };
    match scheme {
        "redis-sentinel" | "redis-cluster" => {
            return problems
                .error(OPTION, format!("{scheme}:// is not supported yet; use redis:// or rediss://"));
        }
        "redis" | "rediss" | "redis+unix" | "unix" => {}
        other => {
            let meant = suggest(other, SCHEMES.into_iter()).unwrap_or("redis");
            return problems.error(OPTION, format!("{other}:// is unknown; did you mean {meant}://?"));
        }
    }
    match engine.url.as_str().into_connection_info() {
        Err(error) => problems.error(OPTION, format!("is not an address of a Redis server: {error}")),
        Ok(info) if info.redis_settings().password().is_some() && !engine.password_file.is_empty() => {
            problems.error(OPTION, "holds a password, and there is engine.password_file; keep the file");
        }
        Ok(_) => {}
    }
}

fn prefix(prefix: &str, problems: &mut Problems) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if prefix.is_empty() || prefix.len() > 64 || !prefix.chars().all(plain) {
        problems.error("engine.prefix", "a prefix is 1 to 64 of the characters A-Z, a-z, 0-9, _, -, . and :");
    }
}

pub(super) fn expiry(expiry: &Expiry, engine: &EngineConfig, problems: &mut Problems) -> expiry::Config {
    if !expiry.sweep && matches!(engine, EngineConfig::Embedded(_)) {
        problems
            .error("expiry.sweep", "is the only way to find silences with the embedded engine; leave it on");
    } else if !expiry.sweep && !expiry.hints {
        problems.error("expiry", "without sweep and without hints no silence is ever found; leave one on");
    } else if !expiry.sweep {
        problems.warn("expiry.sweep", "is off: if Redis loses a notification, the silence is not found");
    }
    expiry::Config { tick: TICK, sweep: expiry.sweep, hints: expiry.hints }
}

pub(super) fn records(records: &Records, problems: &mut Problems) -> (Duration, Duration) {
    let keep = problems.span("records.keep", records.keep, Span::from_days(1), Span::from_days(3650));
    let at = "records.close_unwatched";
    let close = problems.span(at, records.close_unwatched, Span::from_secs(10), Span::from_days(30));
    (keep, close)
}
