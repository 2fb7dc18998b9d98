//! Checks the engine, the finding of silences and the retention of records.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::file::{Engine, EngineType, Expiry, Records};
use super::problem::{Problems, suggest};
use super::{Count, Span, secrets, tls};
use crate::expiry;
use crate::store::redis::{Mode, RedisAddress, RedisAddressError, SCHEMES};
use crate::store::{embedded, redis};
use crate::trust::{self, Pem, TlsError};

/// The longest time between two reads of the deadline index.
const TICK: Duration = Duration::from_secs(1);
const SENTINEL_PASSWORD: &str = "engine.sentinel_password_file";

/// The engine that holds the state of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineConfig {
    Redis(Box<redis::RedisConfig>),
    /// The engine in a directory of this machine.
    Embedded(embedded::EmbeddedConfig),
}

impl EngineConfig {
    /// The configured number of partitions.
    pub fn partitions(&self) -> Option<u16> {
        match self {
            EngineConfig::Redis(config) => config.partitions,
            EngineConfig::Embedded(config) => config.partitions,
        }
    }

    /// The same engine with this number of partitions.
    pub fn with_partitions(&self, partitions: u16) -> EngineConfig {
        let mut engine = self.clone();
        let configured = match &mut engine {
            EngineConfig::Redis(config) => &mut config.partitions,
            EngineConfig::Embedded(config) => &mut config.partitions,
        };
        *configured = Some(partitions);
        engine
    }

    /// Whether the engine is a directory that the start creates.
    pub fn is_missing(&self) -> bool {
        match self {
            EngineConfig::Redis(_) => false,
            EngineConfig::Embedded(config) => !config.path.exists(),
        }
    }
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
    let partitions = count("engine.partitions", engine.partitions, (1, 1024), problems);
    match engine.engine {
        EngineType::Redis => EngineConfig::Redis(Box::new(on_redis(engine, partitions, base, problems))),
        EngineType::Embedded => EngineConfig::Embedded(embedded(engine, partitions, base, problems)),
    }
}

fn on_redis(
    engine: &Engine,
    partitions: Option<u16>,
    base: &Path,
    problems: &mut Problems,
) -> redis::RedisConfig {
    if engine.path != Engine::default().path {
        problems.error("engine.path", "belongs to the embedded engine; write type = \"embedded\"");
    }
    let address = address(engine, problems);
    prefix(&engine.prefix, problems);
    let (sentinel_username, sentinel_password) = sentinel_login(engine, address.as_ref(), base, problems);
    let longest = Span::from_secs(5);
    redis::RedisConfig {
        url: engine.url.clone(),
        password: secrets::read("engine.password_file", &engine.password_file, base, problems),
        tls: certificates(engine, address.as_ref(), base, problems),
        sentinel_username,
        sentinel_password,
        prefix: engine.prefix.clone(),
        partitions,
        wait_replicas: count("engine.wait_replicas", engine.wait_replicas, (0, 5), problems)
            .map(|replicas| replicas.min(5) as u8),
        wait_timeout: problems.span(
            "engine.wait_timeout",
            engine.wait_timeout,
            Span::from_millis(10),
            longest,
        ),
        allow_eviction: eviction(&engine.allow_eviction, problems),
    }
}

/// A policy as Redis spells it.
fn eviction(policy: &str, problems: &mut Problems) -> String {
    let is_known = ["volatile-", "allkeys-"].iter().any(|begin| policy.starts_with(begin));
    if !policy.is_empty() && !is_known {
        let text = format!("{policy:?} is no maxmemory-policy that evicts keys; write its name, or nothing");
        problems.error("engine.allow_eviction", text);
    }
    policy.to_owned()
}

fn embedded(
    engine: &Engine,
    partitions: Option<u16>,
    base: &Path,
    problems: &mut Problems,
) -> embedded::EmbeddedConfig {
    let default = Engine::default();
    let of_redis = [
        ("engine.url", engine.url != default.url),
        ("engine.password_file", engine.password_file != default.password_file),
        ("engine.ca_file", engine.ca_file != default.ca_file),
        ("engine.client_cert_file", engine.client_cert_file != default.client_cert_file),
        ("engine.client_key_file", engine.client_key_file != default.client_key_file),
        ("engine.sentinel_username", engine.sentinel_username != default.sentinel_username),
        ("engine.sentinel_password_file", engine.sentinel_password_file != default.sentinel_password_file),
        ("engine.prefix", engine.prefix != default.prefix),
        ("engine.wait_replicas", engine.wait_replicas != default.wait_replicas),
        ("engine.wait_timeout", engine.wait_timeout != default.wait_timeout),
        ("engine.allow_eviction", engine.allow_eviction != default.allow_eviction),
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
        let text =
            format!("other users of this machine may enter {shown}, where the fleet is; chmod 700 {shown}");
        problems.warn("engine.path", text);
    }
    embedded::EmbeddedConfig { path, partitions }
}

/// A number within bounds; `None` if the number follows from other options.
fn count(path: &str, count: Count, (least, most): (u16, u16), problems: &mut Problems) -> Option<u16> {
    match count {
        Count::Auto => None,
        Count::Exactly(number) => Some(problems.number(path, number, least, most)),
    }
}

/// Returns whether other users may enter the directory. A directory that Rollcall creates later is not open.
fn is_open_to_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.permissions().mode() & 0o077 != 0)
}

/// The address, if it is valid.
fn address(engine: &Engine, problems: &mut Problems) -> Option<RedisAddress> {
    const OPTION: &str = "engine.url";
    let address = match RedisAddress::parse(&engine.url) {
        Ok(address) => address,
        Err(RedisAddressError::Scheme(other)) => {
            let meant = suggest(&other, SCHEMES.into_iter()).unwrap_or("redis");
            problems.error(OPTION, format!("{other}:// is unknown; did you mean {meant}://?"));
            return None;
        }
        Err(error) => {
            problems.error(OPTION, error.to_string());
            return None;
        }
    };
    if address.password.is_some() && !engine.password_file.is_empty() {
        problems.error(OPTION, "holds a password, and there is engine.password_file; keep the file");
    }
    // Without a password there is no login, and Rollcall would connect as the default user.
    if address.user.is_some() && address.password.is_none() && engine.password_file.is_empty() {
        problems.error("engine.password_file", "is missing; the user in engine.url needs its password");
    }
    Some(address)
}

/// User and password at the sentinels. With an address without sentinels they are errors.
fn sentinel_login(
    engine: &Engine,
    address: Option<&RedisAddress>,
    base: &Path,
    problems: &mut Problems,
) -> (Option<String>, Option<String>) {
    let (username, file) = (&engine.sentinel_username, &engine.sentinel_password_file);
    let named = [("engine.sentinel_username", username), (SENTINEL_PASSWORD, file)];
    if address.is_some_and(|address| !matches!(address.mode, Mode::Sentinel { .. })) {
        for (option, _) in named.into_iter().filter(|(_, text)| !text.is_empty()) {
            let text = "is for sentinels; write redis-sentinel:// or rediss-sentinel:// in engine.url";
            problems.error(option, text);
        }
        return (None, None);
    }
    if !username.is_empty() && file.is_empty() {
        problems.error(SENTINEL_PASSWORD, "is missing; engine.sentinel_username needs its password");
    }
    let username = (!username.is_empty()).then(|| username.clone());
    (username, secrets::read(SENTINEL_PASSWORD, file, base, problems))
}

/// The certificates for TLS. With an address without TLS they are errors.
fn certificates(
    engine: &Engine,
    address: Option<&RedisAddress>,
    base: &Path,
    problems: &mut Problems,
) -> Pem {
    let unused = address.filter(|address| !address.has_tls).map(|address| {
        let scheme = engine.url.split("://").next().unwrap_or_default();
        match address.socket {
            Some(_) => format!("has no effect with {scheme}://, a socket of this machine; remove it"),
            None => {
                let secure = scheme.replacen("redis", "rediss", 1);
                format!("has no effect with {scheme}://; write {secure}:// in engine.url")
            }
        }
    });
    let named = [&engine.ca_file, &engine.client_cert_file, &engine.client_key_file].map(String::as_str);
    let files = tls::files("engine", named, unused, base, problems);
    match trust::client("engine", &files, crate::small_file::read_file) {
        Ok((_, pem)) => pem,
        Err(TlsError { option, text }) => {
            problems.error(option, text);
            Pem::default()
        }
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

pub(super) fn records(records: &Records, problems: &mut Problems) -> (Duration, Duration, Duration) {
    let before = problems.errors.len();
    let keep = problems.span("records.keep", records.keep, Span::from_days(1), Span::from_days(3650));
    let at = "records.keep_deliveries";
    let deliveries = problems.span(at, records.keep_deliveries, Span::from_hours(1), Span::from_days(365));
    if deliveries > keep && problems.errors.len() == before {
        problems.error(at, "is longer than records.keep; a notification is delivered again from its records");
    }
    let at = "records.close_unwatched";
    let close = problems.span(at, records.close_unwatched, Span::from_secs(10), Span::from_days(30));
    (keep, deliveries, close)
}
