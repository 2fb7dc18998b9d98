//! Another program that writes into Redis: keys get a wrong type, become unreadable, or are deleted.
//!
//! Only key types are broken whose loss costs nothing, or only time, according to `docs/broken-values.md`, so that the
//! oracle stays as strict as usual. The world notes for the oracle which units' facts and expiry keys were broken.

use rand::Rng;
use rand::rngs::StdRng;
use redis::{Cmd, cmd};
use rollcall::clock::Timestamp;
use rollcall::presence::Unit;
use rollcall::store::partition_of;
use rollcall::store::{redis::HashTags, redis::facts_key, redis::sorts};

use super::redis::PARTITIONS;
use super::{World, now};

/// The key types that are broken.
pub const POISONED: [&str; 11] = [
    "{hearing}:heard",
    "{hearing}:members",
    "{hearing}:floors",
    "{hearing}:plain",
    "{hearing}:session:<>",
    "{hearing}:filters",
    "{hearing}:roster",
    "{hearing}:clock",
    ALIVE,
    FACTS,
    "{pN}:data",
];

/// The key types that are left out, and why.
pub const LEFT_OUT: [(&str, &str); 17] = [
    ("meta", "without it there is no fleet, and the service says so and is not ready"),
    ("{hearing}:blind", "silence that began before counts in full: a silence may be called one too early"),
    ("{hearing}:blind:<>", "the same"),
    ("{hearing}:cells:<>", "no world has alert silences, rules of inhibition, or the mass-offline breaker"),
    ("{hearing}:index:<>", "no world has changes of operators"),
    ("{hearing}:outbox", "blind intervals that were not notified are not notified"),
    ("{pN}:heard", "written in a cluster only"),
    ("{pN}:replicated", "the same"),
    ("{pN}:deadlines", "found by the walk within five minutes, for which no world waits"),
    ("{pN}:data:<>", "no unit of a world has values"),
    ("{pN}:offline", "open records are not listed, and the oracle goes by the list"),
    ("{pN}:past", "closed records are not listed"),
    ("{pN}:closed", "which are kept until they are deleted, for longer than any world lasts"),
    ("{pN}:archive", "closed records are gone"),
    ("{pN}:outbox", "its entries are not notified"),
    (
        "{pN}:cells:<>",
        "members and notifications that wait are lost, and no world has flap detection or timers",
    ),
    ("{pN}:index:<>", "groups that wait, or that have a delivery, are notified with their next event"),
];

pub const FACTS: &str = "{pN}:facts:<>";
pub const ALIVE: &str = "{pN}:alive:<>";

/// How a value is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    WrongType,
    Unreadable,
    Missing,
}

const HOWS: [How; 3] = [How::WrongType, How::Unreadable, How::Missing];

/// A broken value of a unit.
#[derive(Clone, Debug)]
pub struct Broken {
    pub unit: String,
    pub at: Timestamp,
    /// Whether the facts are broken; otherwise the expiry key.
    pub is_facts: bool,
}

/// Breaks a random value in a random way.
pub async fn break_some(world: &mut World, chance: &mut StdRng) {
    let sort = POISONED[chance.random_range(0..POISONED.len())];
    let how = HOWS[chance.random_range(0..HOWS.len())];
    // A missing expiry key means silence: a living unit is recorded until it is heard again.
    let how = if (sort, how) == (ALIVE, How::Missing) { How::WrongType } else { how };
    break_one(world, chance, sort, how).await;
}

/// Breaks a value of this type; does nothing if there is none and its name is unknown.
async fn break_one(world: &mut World, chance: &mut StdRng, sort: &str, how: How) {
    let pattern = format!("rollcall:{}", sort.replace("{pN}", "{p*}").replace("<>", "*"));
    let mut keys: Vec<String> = world.redis.ask(cmd("KEYS").arg(pattern)).await;
    keys.retain(|key| !key.ends_with(":unreadable"));
    keys.sort();
    if keys.is_empty() && !sort.contains("<>") {
        // The value is of a wrong type anyway.
        let partition = format!("{{p{}}}", chance.random_range(0..PARTITIONS));
        keys.push(format!("rollcall:{}", sort.replace("{pN}", &partition)));
    }
    if keys.is_empty() {
        return;
    }
    let key = keys.swap_remove(chance.random_range(0..keys.len()));
    let mut fields = fields(world, sort, &key).await;
    if how == How::Unreadable && fields.len() > 1 {
        fields = vec![fields.swap_remove(chance.random_range(0..fields.len()))];
    }
    break_key(world, sort, how, &key, fields).await;
}

/// Breaks the expiry key of a unit, or the page of its facts.
pub async fn break_of(world: &mut World, unit: &str, sort: &str, how: How) {
    let unit: Unit = format!("detector:{unit}").parse().unwrap();
    let key = match sort {
        FACTS => facts_key("rollcall", PARTITIONS, HashTags::Plain, &unit),
        _ => format!("rollcall:{{p{}}}:alive:{unit}", partition_of(&unit, PARTITIONS)),
    };
    let fields = fields(world, sort, &key).await;
    break_key(world, sort, how, &key, fields).await;
}

async fn fields(world: &World, sort: &str, key: &str) -> Vec<String> {
    match type_of(sort) {
        "hash" => world.redis.try_ask(cmd("HKEYS").arg(key)).await.unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn type_of(sort: &str) -> &'static str {
    sorts().into_iter().find(|(name, _)| name == sort).expect("it is a sort of key").1
}

async fn break_key(world: &mut World, sort: &str, how: How, key: &str, fields: Vec<String>) {
    let at = now();
    if let Err(why) = world.redis.try_ask::<redis::Value>(&command(key, type_of(sort), &fields, how)).await {
        // An earlier wrong type was not noticed yet.
        assert!(why.contains("WRONGTYPE"), "{key}: {why}");
        return;
    }
    println!("{key} is {how:?} at {} {}", at.as_millis(), fields.join(" "));
    let owners: Vec<&str> = match sort {
        FACTS => fields.iter().map(String::as_str).collect(),
        ALIVE => key.split_once("}:alive:").map(|(_, name)| name).into_iter().collect(),
        _ => Vec::new(),
    };
    let units = owners.iter().filter_map(|name| name.split_once(':'));
    let broken = units.map(|(_, unit)| Broken { unit: unit.to_owned(), at, is_facts: sort == FACTS });
    world.broken.extend(broken);
}

/// The commands that break the value, in one step.
fn command(key: &str, kind: &str, fields: &[String], how: How) -> Cmd {
    const GARBAGE: &str = "garbage{";
    let mut command = match (how, kind) {
        (How::Missing, _) => return cmd("DEL").arg(key).to_owned(),
        (How::WrongType, "string") => {
            const TYPE: &str = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'x')";
            return cmd("EVAL").arg(TYPE).arg(1).arg(key).to_owned();
        }
        (How::WrongType, _) => return cmd("SET").arg(key).arg("x").to_owned(),
        (How::Unreadable, "string") => return cmd("SET").arg(key).arg(GARBAGE).to_owned(),
        (How::Unreadable, "hash") => cmd("HSET").arg(key).to_owned(),
        (How::Unreadable, "zset") => return cmd("ZADD").arg(key).arg(0).arg(GARBAGE).to_owned(),
        (How::Unreadable, "set") => return cmd("SADD").arg(key).arg(GARBAGE).to_owned(),
        other => panic!("{other:?}"),
    };
    match fields {
        [] => command.arg(GARBAGE).arg(GARBAGE),
        fields => fields.iter().fold(&mut command, |command, field| command.arg(field).arg(GARBAGE)),
    };
    command
}

/// Waits until every instance is ready except for hearing: a broken value may make an instance, or a kind, blind for a
/// moment, and so may a busy machine.
pub async fn all_are_ready(world: &World) {
    for instance in &world.instances {
        let Some((_, text)) = instance.page("/readyz").await else { continue };
        let page: serde_json::Value = serde_json::from_str(&text).unwrap();
        let problems = page["problems"].as_array().into_iter().flatten();
        let hearing = ["not_hearing", "topic_not_heard"];
        let is_hearing = |one: &serde_json::Value| hearing.iter().any(|name| one["name"] == *name);
        let mut serious = problems.filter(|one| one["severity"] == "serious" && !is_hearing(one));
        assert_eq!(serious.next(), None, "{} is not ready for a value that is broken", instance.name);
    }
}
