//! Every type of key in Redis: of a wrong type, unreadable and missing.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use redis::{Connection, cmd};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::Examine;
use rollcall::store::Layout;
use rollcall::store::{redis::RedisConfig, redis::RedisEngine, redis::sorts};

use super::fleet::{Fleet, POISONED, TIMERS, UNITS, hours, telemetry, units};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Poison {
    WrongType,
    Unreadable,
    Missing,
}

use Poison::*;

/// The units whose silence may be lost with a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spared {
    /// Every unit is notified.
    None,
    /// Units with data in the poisoned key may be lost.
    Owner,
}

/// Keys of Redis; the loss if a key has a wrong type or is missing, and the loss if a value is unreadable. The test
/// fails for a key of `keys.rs` that this table lacks.
const TABLE: &[(&str, Spared, Spared)] = &[
    ("{hearing}:heard", Spared::None, Spared::None),
    ("{hearing}:members", Spared::None, Spared::None),
    ("{hearing}:floors", Spared::None, Spared::None),
    ("{hearing}:plain", Spared::None, Spared::None),
    ("{hearing}:session:<>", Spared::None, Spared::None),
    ("{hearing}:blind", Spared::None, Spared::None),
    ("{hearing}:blind:<>", Spared::None, Spared::None),
    ("{hearing}:filters", Spared::None, Spared::None),
    ("{hearing}:outbox", Spared::None, Spared::None),
    ("{hearing}:roster", Spared::None, Spared::None),
    ("{hearing}:cells:<>", Spared::None, Spared::None),
    ("{hearing}:cells:receiver_list", Spared::None, Spared::None),
    ("{hearing}:cells:down", Spared::None, Spared::None),
    ("{hearing}:cells:addresses", Spared::None, Spared::None),
    ("{hearing}:index:<>", Spared::None, Spared::None),
    ("{hearing}:clock", Spared::None, Spared::None),
    // This key is written only in a cluster.
    ("{pN}:heard", Spared::None, Spared::None),
    ("{pN}:replicated", Spared::None, Spared::None),
    ("{pN}:alive:<>", Spared::None, Spared::None),
    ("{pN}:deadlines", Spared::None, Spared::None),
    ("{pN}:facts:<>", Spared::Owner, Spared::Owner),
    ("{pN}:data", Spared::None, Spared::None),
    ("{pN}:data:<>", Spared::None, Spared::None),
    ("{pN}:offline", Spared::None, Spared::None),
    ("{pN}:past", Spared::None, Spared::None),
    ("{pN}:closed", Spared::None, Spared::None),
    ("{pN}:archive", Spared::None, Spared::None),
    ("{pN}:outbox", Spared::None, Spared::None),
    ("{pN}:cells:<>", Spared::None, Spared::None),
    ("{pN}:cells:groups", Spared::None, Spared::None),
    ("{pN}:cells:group_versions", Spared::None, Spared::None),
    ("{pN}:cells:members", Spared::None, Spared::None),
    ("{pN}:cells:groups_of", Spared::None, Spared::None),
    ("{pN}:cells:timers:<>", Spared::None, Spared::None),
    ("{pN}:cells:past_timers", Spared::None, Spared::None),
    ("{pN}:cells:timer_counts", Spared::None, Spared::None),
    ("{pN}:cells:notifications", Spared::None, Spared::None),
    ("{pN}:cells:owed", Spared::None, Spared::None),
    ("{pN}:cells:lanes:<>", Spared::None, Spared::None),
    ("{pN}:cells:dead_letters:<>", Spared::None, Spared::None),
    ("{pN}:cells:unnotified:<>", Spared::None, Spared::None),
    ("{pN}:cells:fallback_done:<>", Spared::None, Spared::None),
    ("{pN}:index:<>", Spared::None, Spared::None),
    ("{pN}:index:noted", Spared::None, Spared::None),
    ("{pN}:index:groups_due", Spared::None, Spared::None),
    ("{pN}:index:waiting", Spared::None, Spared::None),
    ("{pN}:index:lasting", Spared::None, Spared::None),
    ("{pN}:index:reminders", Spared::None, Spared::None),
    ("{pN}:index:over", Spared::None, Spared::None),
    ("{pN}:index:queue:<>", Spared::None, Spared::None),
    ("{pN}:index:dead:<>", Spared::None, Spared::None),
    ("{pN}:index:timers", Spared::None, Spared::None),
    ("{pN}:index:timers_ended", Spared::None, Spared::None),
    ("{pN}:index:timers_kept", Spared::None, Spared::None),
    ("{pN}:index:only_attempts", Spared::None, Spared::None),
];

/// Without this key no fleet is found: the service reads it at its start, and reports an error there.
const NOT_POISONED: &[&str] = &["meta"];

#[test]
fn every_type_of_key_has_a_row() {
    let rows = TABLE.iter().map(|row| sort_of(row.0).0);
    let rows: BTreeSet<String> = rows.chain(NOT_POISONED.iter().map(|name| (*name).to_owned())).collect();
    let names: BTreeSet<String> = sorts().into_iter().map(|(name, _)| name).collect();
    assert_eq!(rows, names, "the table of broken values and KEY_RULES in keys.rs differ");
    let keys = include_str!("../../../src/store/redis/keys.rs");
    let listed = keys.lines().filter_map(|line| line.strip_prefix("//! | `rollcall:")).map(|rest| {
        let name = rest.split('`').next().unwrap();
        match name.find(":<").or(name.find("<kind>")) {
            Some(at) => format!("{}:<>", name[..at].trim_end_matches(':')),
            None => name.to_owned(),
        }
    });
    let listed: BTreeSet<String> = listed.filter(|name| !name.ends_with(":unreadable")).collect();
    assert_eq!(listed, names, "the head of keys.rs and KEY_RULES differ");
    let page = include_str!("../../../docs/broken-values.md");
    for name in names {
        assert!(page.contains(&format!("| `{name}` |")), "docs/broken-values.md has no row of {name}");
    }
}

macro_rules! poisoned {
    ($($case:ident: $poison:expr)*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $case() {
            let dir = tempfile::tempdir().unwrap();
            let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
            let mut wrong = Vec::new();
            for row in TABLE {
                wrong.extend(neighbours_are_notified(&server, row, $poison).await.err().map(|why| format!("{} {:?}: \
                     {why}", row.0, $poison)));
            }
            assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
        }
    )* };
}

poisoned! {
    other_units_are_notified_when_a_key_is_of_a_wrong_type: WrongType
    other_units_are_notified_when_a_value_is_unreadable: Unreadable
    other_units_are_notified_when_a_key_is_missing: Missing
}

async fn neighbours_are_notified(
    server: &Server,
    row: &(&str, Spared, Spared),
    poison: Poison,
) -> Result<(), String> {
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut client = redis::Client::open(url.clone()).unwrap().get_connection().unwrap();
    cmd("FLUSHALL").exec(&mut client).unwrap();
    let config = RedisConfig { url, partitions: Some(2), ..RedisConfig::default() };
    let (telemetry, clock) = telemetry();
    let engine = Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap());
    let mut fleet = Fleet::on(engine.clone(), telemetry, clock);
    fleet.live().await;
    let poisoned = poison_one(&mut client, row.0, poison);
    let spared = if poison == Unreadable { row.2 } else { row.1 };
    let spared: Vec<String> = match (spared, &poisoned) {
        (Spared::Owner, Some((_, fields))) => fields.clone(),
        _ => Vec::new(),
    };
    fleet.heard_until(hours(POISONED + 49)).await;
    for number in 0..3 {
        fleet.pass(hours(POISONED + 49), number == 0).await;
    }
    // A unit that was presumed heard up to now is found a timeout later.
    fleet.heard_until(hours(POISONED + 98)).await;
    for _ in 0..2 {
        fleet.pass(hours(POISONED + 98), false).await;
    }
    let mut wrong = Vec::new();
    for unit in units() {
        let name = unit.to_string();
        let notified = fleet.notified.get(&name).copied().unwrap_or(0);
        if notified != 1 && !(spared.contains(&name) && notified == 0) {
            wrong.push(format!("{name} was notified {notified} times"));
        }
    }
    if wrong.len() > 3 {
        let more = wrong.len() - 3;
        wrong.truncate(3);
        wrong.push(format!("and {more} more"));
    }
    // Timers on a broken page, and timers with a broken value, may be lost.
    let may_lose = matches!(
        row.0,
        "{pN}:cells:timers:<>" | "{pN}:cells:notifications" | "{pN}:index:queue:<>" | "{pN}:cells:lanes:<>"
    );
    let fired = fleet.fired.len();
    if fleet.fired.values().any(|times| *times > 1) || fired < TIMERS && !may_lose {
        wrong.push(format!("of the timers were delivered: {:?}", fleet.fired));
    }
    let open = engine_records(&fleet).await;
    if open + spared.len() < UNITS {
        wrong.push(format!("{open} records are open"));
    }
    if let Err(why) = engine.examine(hours(POISONED + 98)).await {
        wrong.push(format!("the examination fails: {why}"));
    }
    let is_shown = !fleet.warnings().is_empty();
    if poison == WrongType && poisoned.is_some() && !is_shown {
        wrong.push("it is not shown".to_owned());
    }
    // A unit that sends a heartbeat is known again.
    for (at, unit) in units().iter().enumerate().take(UNITS) {
        let at = hours(POISONED + 99) + std::time::Duration::from_millis(at as u64);
        if let Err(why) = fleet.try_hear(std::slice::from_ref(unit), at).await {
            wrong.push(format!("{unit} cannot be heard: {why}"));
        }
    }
    fleet.pass(hours(POISONED + 100), true).await;
    let seen = engine.walk_all().await;
    if seen != UNITS {
        wrong.push(format!("{seen} units are known after all"));
    }
    if !wrong.is_empty() {
        wrong.push(format!("{:?}", fleet.failures.last()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

async fn engine_records(fleet: &Fleet) -> usize {
    let records = fleet.records().await;
    let open: BTreeSet<String> = records
        .iter()
        .filter(|record| record.back_at.is_none())
        .map(|record| record.unit.to_string())
        .collect();
    open.len()
}

trait WalkAll {
    async fn walk_all(&self) -> usize;
}

impl WalkAll for Arc<RedisEngine> {
    async fn walk_all(&self) -> usize {
        use rollcall::store::Queries;
        let mut known = 0;
        for partition in 0..self.partitions() {
            for seen in join_all((0..self.pages()).map(|page| self.walk(partition, page))).await {
                known += seen.unwrap().iter().filter(|seen| seen.facts.is_some()).count();
            }
        }
        known
    }
}

/// The sort of the keys of a row, and their type: the row may be that of one table or index.
fn sort_of(row: &str) -> (String, &'static str) {
    let of = |(name, _): &(String, &str)| {
        name == row || name.strip_suffix("<>").is_some_and(|begin| row.starts_with(begin))
    };
    sorts().into_iter().find(of).unwrap()
}

/// Poisons a key of this type and returns its name, with the units that have data there.
pub fn poison_one(client: &mut Connection, name: &str, poison: Poison) -> Option<(String, Vec<String>)> {
    let pattern = format!("rollcall:{}", name.replace("{pN}", "{p[01]}").replace("<>", "*"));
    let kind = sort_of(name).1;
    let mut keys: Vec<String> = cmd("KEYS").arg(&pattern).query(client).unwrap();
    keys.sort();
    keys.retain(|key| key.matches(':').count() >= name.matches(':').count());
    let is_there = !keys.is_empty();
    let key = keys
        .into_iter()
        .next()
        .unwrap_or_else(|| format!("rollcall:{}", name.replace("{pN}", "{p0}").replace("<>", "hook")));
    let owners: Vec<String> =
        if kind == "hash" && is_there { cmd("HKEYS").arg(&key).query(client).unwrap() } else { Vec::new() };
    match poison {
        Missing => cmd("DEL").arg(&key).exec(client).unwrap(),
        WrongType => {
            cmd("DEL").arg(&key).exec(client).unwrap();
            match kind {
                "string" => cmd("RPUSH").arg(&key).arg("x").exec(client).unwrap(),
                _ => cmd("SET").arg(&key).arg("x").exec(client).unwrap(),
            }
        }
        Unreadable => {
            let garbage: &[&[u8]] = &[b"garbage{", b"\xff\xfe\x00", b"", b"-1", b"99999999999999999999"];
            match kind {
                "string" => cmd("SET").arg(&key).arg(b"garbage{").exec(client).unwrap(),
                "hash" => {
                    for (field, text) in owners.iter().zip(garbage.iter().cycle()) {
                        cmd("HSET").arg(&key).arg(field).arg(*text).exec(client).unwrap();
                    }
                    cmd("HSET").arg(&key).arg(&b"\xff"[..]).arg("garbage{").exec(client).unwrap();
                }
                "zset" => {
                    for text in garbage {
                        cmd("ZADD").arg(&key).arg(0).arg(*text).exec(client).unwrap();
                    }
                    cmd("ZADD").arg(&key).arg("-inf").arg("detector:foreign").exec(client).unwrap();
                }
                "set" => cmd("SADD").arg(&key).arg(garbage).exec(client).unwrap(),
                "stream" => {
                    for text in garbage {
                        cmd("XADD").arg(&key).arg("*").arg(*text).arg("x").exec(client).unwrap();
                    }
                    cmd("XADD").arg(&key).arg("*").arg("record").arg(&b"\xff"[..]).exec(client).unwrap();
                }
                other => panic!("{other}"),
            }
        }
    }
    is_there.then_some((key, owners))
}
