//! The house stands as it was drawn: imports go down only, what may change has one home, scripts
//! say what they take and run on the oldest Redis that is promised.
//!
//! These are readings of the source, not of the behaviour. Each prints everything that it finds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every module of the crate and its floor.
const FLOORS: [(&str, u8); 17] = [
    ("presence", 0),
    ("clock", 0),
    ("address", 0),
    ("backoff", 0),
    ("trust", 0),
    ("store", 1),
    ("fleet", 1),
    ("telemetry", 1),
    ("broker", 2),
    ("intake", 2),
    ("expiry", 2),
    ("alerting", 2),
    ("http", 2),
    ("deadman", 2),
    ("simulate", 2),
    ("service", 3),
    ("config", 3),
];
/// Rooms of the top floor that nothing imports.
const TOP: [&str; 3] = ["main", "lib", "cli"];
/// The loops and servers of this floor never call one another: they meet in the engine.
const WORK: u8 = 2;

/// Crates that are used in few places so that they can be replaced, and those places.
const KEPT_INSIDE: [(&str, &[&str]); 5] = [
    ("rumqttc", &["src/intake/mqtt", "src/simulate/"]),
    ("mqtt5", &["src/broker/server.rs"]),
    ("rusqlite", &["src/store/embedded/"]),
    ("lettre", &["src/alerting/", "src/config/receivers.rs"]),
    ("axum", &["src/http/", "src/simulate/"]),
];
/// Engines meet in their traits, and share what lies above both.
const ENGINES: [&str; 2] = ["redis", "embedded"];
/// What the floor of meaning does without: it decides, and touches nothing.
const NOT_ON_THE_GROUND: [&str; 6] = ["tokio", "redis", "std::net", "std::fs", "std::process", "std::thread"];

/// One TLS provider is enough, and nothing of the system is linked; deny.toml says it too.
const NOT_BUILT_IN: [&str; 2] = ["aws-lc-sys", "openssl-sys"];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Files above this are worth splitting.
const LONG: usize = 450;

/// What scripts may call: commands that Redis 6.2 knows. TIME is for `renew.lua` alone, because time
/// is an argument everywhere else. Mind the options too: an id `ms-*` for XADD and NX for PEXPIRE came with 7.0.
const COMMANDS: &str = "SET PSETEX GET MGET DEL UNLINK EXISTS PTTL PEXPIRE PEXPIREAT PERSIST INCR INCRBY \
    HSET HGET HMGET HGETALL HDEL HLEN HEXISTS HINCRBY HSETNX \
    ZADD ZREM ZRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE ZREVRANGE ZRANGEBYLEX ZREVRANGEBYLEX ZSCORE ZMSCORE \
    ZCARD ZCOUNT ZPOPMIN ZREMRANGEBYSCORE ZREMRANGEBYRANK \
    SADD SREM SMEMBERS SISMEMBER SMISMEMBER SCARD SPOP \
    LPUSH RPUSH LPOP RPOP LRANGE LLEN LTRIM LREM LINDEX \
    XADD XDEL XLEN XRANGE XREVRANGE XTRIM PUBLISH";

/// The one script that reads a clock.
const TELLS_THE_TIME: &str = "src/store/redis/scripts/renew.lua";

/// What is asked of the server itself, outside of scripts.
const QUESTIONS: &str = "TIME INFO CONFIG EVAL SCAN WATCH UNWATCH MULTI TYPE HSCAN";

/// Methods of pipelines whose commands are newer than Redis 6.2; a name that begins like one counts.
const NEWER: [&str; 20] = [
    "blmpop",
    "bzmpop",
    "del_ex",
    "expire_time",
    "fcall",
    "function_",
    "hexpire",
    "hget_del",
    "hget_ex",
    "hpersist",
    "hpexpire",
    "hpttl",
    "hset_ex",
    "httl",
    "lcs",
    "lmpop",
    "mset_ex",
    "pexpire_time",
    "sintercard",
    "zmpop",
];

struct Source {
    path: String,
    /// Its code: without comments, and without the tests at its foot.
    code: String,
    lines: usize,
}

impl Source {
    /// The room of the house that it belongs to: the first level below `src`.
    fn room(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path);
        inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the directory is part of the repository") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    for path in files(&root().join("src"), "rs") {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let path = path.strip_prefix(root()).expect("it is below").to_string_lossy().into_owned();
        if path.ends_with("/tests.rs") || path.contains("/tests/") {
            continue;
        }
        sources.push(Source { path, code: code(&text), lines: text.lines().count() });
    }
    sources
}

fn code(text: &str) -> String {
    let before_tests = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = before_tests.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The rooms that code names after `crate::`, also in groups: `use crate::{a, b::{c, d}}`.
fn rooms_used(code: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => {
                rooms.insert(name(rest));
            }
            Some(group) => rooms.extend(first_names(group).iter().map(|part| name(part))),
        }
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

/// The parts of a group, up to its closing brace, without those of groups within.
fn first_names(group: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => parts.push(String::new()),
            c if depth == 0 => parts.last_mut().expect("one was made").push(c),
            _ => {}
        }
    }
    parts
}

fn floor(room: &str) -> Option<u8> {
    if TOP.contains(&room) {
        return Some(3);
    }
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

/// Why a room may not use another.
fn forbidden(from: &str, to: &str) -> Option<String> {
    let (Some(above), Some(below)) = (floor(from), floor(to)) else {
        // A name that is no room is an item of the crate's root; there are none but macros.
        return Some(format!("{from} uses {to}: give both a floor in tests/files/house.rs"));
    };
    if below > above {
        return Some(format!("{from} (floor {above}) uses {to} (floor {below}): imports go down only"));
    }
    let apart = above == WORK && below == WORK && from != to;
    apart.then(|| format!("{from} uses {to}: the rooms of floor {WORK} meet in the engine"))
}

fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn imports_go_down_only_and_the_loops_never_call_one_another() {
    let mut found = Vec::new();
    for source in sources() {
        for room in rooms_used(&source.code) {
            found.extend(forbidden(source.room(), &room).map(|why| format!("{}: {why}", source.path)));
        }
    }
    none(found);
}

#[test]
fn every_module_has_its_floor() {
    let homeless = |source: &Source| {
        floor(source.room())
            .is_none()
            .then(|| format!("{} has no floor in tests/files/house.rs", source.path))
    };
    none(sources().iter().filter_map(homeless).collect());
}

#[test]
fn what_may_be_replaced_one_day_is_kept_inside_few_files() {
    let mut found = Vec::new();
    for source in sources() {
        for (name, homes) in KEPT_INSIDE {
            let at_home = homes.iter().any(|home| source.path.starts_with(home));
            if source.code.contains(&format!("{name}::")) && !at_home {
                found.push(format!("{} uses {name}, which is kept inside {}", source.path, homes.join(", ")));
            }
        }
        if floor(source.room()) == Some(0) {
            let touched = NOT_ON_THE_GROUND.iter().filter(|name| source.code.contains(&format!("{name}::")));
            found.extend(touched.map(|name| format!("{} uses {name}: rules touch nothing", source.path)));
        }
    }
    none(found);
}

#[test]
fn no_engine_knows_another() {
    let mut found = Vec::new();
    for source in sources() {
        let home = ENGINES.iter().find(|name| source.path.starts_with(&format!("src/store/{name}")));
        for other in ENGINES.iter().filter(|name| home.is_some_and(|home| home != *name)) {
            if source.code.contains(&format!("store::{other}")) {
                found.push(format!("{} knows the engine {other}", source.path));
            }
        }
    }
    none(found);
}

#[test]
fn long_files_are_named() {
    for source in sources().iter().filter(|source| source.lines > LONG) {
        println!("{} has {} lines; is it the noun to which everything is added?", source.path, source.lines);
    }
}

#[test]
fn what_is_built_in_comes_from_the_registry_and_needs_no_foreign_tls() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("it is part of the repository");
    let value = |line: &str, key: &str| line.strip_prefix(key).map(|text| text.trim_matches('"').to_owned());
    let names = lock.lines().filter_map(|line| value(line, "name = "));
    let foreign = names.filter(|name| NOT_BUILT_IN.contains(&name.as_str()));
    let mut found: Vec<String> =
        foreign.map(|name| format!("{name} is in Cargo.lock: TLS is ring's")).collect();
    let sources = lock.lines().filter_map(|line| value(line, "source = "));
    found.extend(
        sources.filter(|source| source != REGISTRY).map(|source| format!("a crate comes from {source}")),
    );
    none(found);
}

#[test]
fn scripts_say_what_they_take_and_call_nothing_newer_than_redis_6_2() {
    let allowed: BTreeSet<&str> = COMMANDS.split_whitespace().collect();
    let mut found = Vec::new();
    for path in files(&root().join("src"), "lua") {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
        for word in ["KEYS", "ARGV", "Returns"] {
            if !head.iter().any(|line| line.contains(word)) {
                found.push(format!("{}: its head does not say {word}", path.display()));
            }
        }
        for call in calls(&text) {
            let tells_the_time = call == "TIME" && path.ends_with(TELLS_THE_TIME);
            if !allowed.contains(call.as_str()) && !tells_the_time {
                found.push(format!("{}: {call:?} is not among the allowed commands", path.display()));
            }
        }
    }
    none(found);
}

#[test]
fn pipelines_send_nothing_newer_than_redis_6_2() {
    let allowed: BTreeSet<&str> = COMMANDS.split_whitespace().chain(QUESTIONS.split_whitespace()).collect();
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src/store/redis/")) {
        for command in source.code.split("cmd(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            if !allowed.contains(command) {
                found.push(format!("{}: {command:?} is not among the allowed commands", source.path));
            }
        }
        let newer = NEWER.iter().filter(|method| source.code.contains(&format!(".{method}")));
        found.extend(newer.map(|method| format!("{}: {method} is newer than Redis 6.2", source.path)));
    }
    none(found);
}

/// The first argument of each call of Redis; text that is no command where it is not a literal.
fn calls(script: &str) -> Vec<String> {
    let code: Vec<&str> = script.lines().map(|line| line.split("--").next().unwrap_or(line)).collect();
    let code = code.join("\n");
    let names = code.split("redis.call").chain(code.split("redis.pcall").skip(1)).skip(1);
    names
        .map(|rest| {
            let argument = rest.trim_start_matches(['(', ' ', '\n']);
            match argument.chars().next() {
                Some(quote @ ('\'' | '"')) => {
                    argument[1..].split(quote).next().unwrap_or_default().to_owned()
                }
                _ => argument.lines().next().unwrap_or_default().to_owned(),
            }
        })
        .collect()
}

#[test]
fn the_readings_find_what_they_look_for() {
    let code = "use crate::{clock, presence::{Unit, Kind}};\nlet x = crate::store::redis::Config;";
    assert_eq!(rooms_used(code).into_iter().collect::<Vec<_>>(), ["clock", "presence", "store"]);
    assert!(forbidden("presence", "store").is_some_and(|why| why.contains("go down only")));
    assert!(forbidden("intake", "alerting").is_some_and(|why| why.contains("meet in the engine")));
    assert!(forbidden("http", "config").is_some() && forbidden("http", "attic").is_some());
    assert!(forbidden("cli", "simulate").is_none() && forbidden("http", "http").is_none());
    let script =
        "redis.call('GET', KEYS[1]) -- redis.call('TIME')\nredis.pcall(\"LMPOP\", 1)\nredis.call(name)";
    assert_eq!(calls(script), ["GET", "name)", "LMPOP"], "a name that is computed is no command");
}
