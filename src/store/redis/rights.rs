//! The rights of Rollcall's user in Redis: every command and every sort of key is tried. An error names the missing
//! rights and how to grant them.
//!
//! # Why the tries change nothing
//! The tries are part of a transaction that is never executed: the server checks the rights to a command when it
//! queues the command, and the connection is closed afterwards. `ACL DRYRUN` would need a right of its own, and Redis
//! 7.

use redis::{Cmd, Value, pipe};

use super::keys::Keys;
use super::topology::{RedisServer, Topology};
use crate::store::Result;

/// Every command that Rollcall sends or a script calls, in the form that is tried; `K` is a key that does not exist.
/// A test compares these with the commands that a server got.
pub const COMMANDS: &[&str] = &[
    "DEL K",
    "EVAL return 0",
    "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
    "EXISTS K",
    "GET K",
    "HDEL K x",
    "HGET K x",
    "HGETALL K",
    "HLEN K",
    "HMGET K x",
    "HMSET K x x",
    "HSCAN K 0",
    "HSET K x x",
    "HSETNX K x x",
    "INFO",
    "MGET K",
    "PSETEX K 1 x",
    "RENAME K K",
    "RENAMENX K K",
    "SADD K x",
    "SCAN 0",
    "SCRIPT LOAD return",
    "SET K 0",
    "SMEMBERS K",
    "TIME",
    "TYPE K",
    "XADD K * x x",
    "XDEL K 0-1",
    "XLEN K",
    "XRANGE K - +",
    "XREVRANGE K + -",
    "ZADD K 0 x",
    "ZCARD K",
    "ZCOUNT K 0 1",
    "ZLEXCOUNT K - +",
    "ZMSCORE K x",
    "ZRANGE K 0 -1",
    "ZRANGEBYLEX K - +",
    "ZRANGEBYSCORE K 0 1",
    "ZREM K x",
    "ZREMRANGEBYSCORE K 0 1",
    "ZREVRANGE K 0 1",
    "ZREVRANGEBYSCORE K 1 0",
];

/// The commands that are tried outside of a transaction, in this order; none of them changes anything.
pub const OF_A_CONNECTION: &[&str] = &["WATCH K", "UNWATCH", "MULTI", "EXEC"];

/// More commands that are tried outside of a transaction, for Sentinel and Cluster only.
pub const OF_SEVERAL_SERVERS: &[&str] = &["ASKING", "CLUSTER NODES", "CLUSTER SLOTS", "ROLE", "WAIT 0 1"];

/// The commands without which Rollcall works, with a warning: see `examine.rs`.
pub const OPTIONAL: &[&str] = &["CONFIG", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "UNLINK"];

/// The most missing rights that an error names.
const MAX_NAMED: usize = 12;

/// The missing rights and how to grant them; `None` if the user has all rights.
pub(super) async fn missing(topology: &Topology, keys: &Keys) -> Result<Option<String>> {
    let servers = topology.servers().await?;
    let mut all: Vec<(String, String)> = Vec::new();
    for server in &servers {
        let Some(text) = missing_at(topology, keys, server).await? else { continue };
        match all.iter_mut().find(|(known, _)| *known == text) {
            Some((_, at)) => *at += &format!(", {}", server.address()),
            None => all.push((text, server.address().to_owned())),
        }
    }
    // Several servers usually have the same users.
    let texts =
        all.into_iter().map(|(text, at)| if servers.len() == 1 { text } else { format!("{text} (at {at})") });
    Ok(texts.reduce(|all, text| format!("{all}; {text}")))
}

/// The missing rights at one server, and how to grant them. Keys of other servers are tried too: a server checks
/// rights before slots.
async fn missing_at(topology: &Topology, keys: &Keys, server: &RedisServer) -> Result<Option<String>> {
    let scratch = keys.in_partition(0, "probe");
    let command = |text: &&str| {
        let mut command = Cmd::new();
        for word in text.split(' ') {
            command.arg(if word == "K" { scratch.as_str() } else { word });
        }
        command
    };
    let (mut alone, mut tries) = (pipe(), pipe());
    let several = if topology.is_fixed() { &[] } else { OF_SEVERAL_SERVERS };
    let outside: Vec<&&str> = several.iter().chain(OF_A_CONNECTION).collect();
    for text in outside.iter().copied().chain(["MULTI"].iter()) {
        alone.add_command(command(text));
    }
    for text in COMMANDS {
        tries.add_command(command(text));
    }
    let patterns = keys.one_of_each();
    for key in &patterns {
        tries.cmd("SET").arg(key).arg(0).arg("GET");
    }
    let (first, then) = topology.try_out(server, &alone, &tries).await?;
    let name = |text: &&str| text.split(' ').next().unwrap_or_default().to_lowercase();
    let mut commands: Vec<String> = Vec::new();
    for (text, answer) in outside.into_iter().zip(&first).chain(COMMANDS.iter().zip(&then)) {
        if lacks(answer).is_some_and(|why| !why.contains("key")) && !commands.contains(&name(text)) {
            commands.push(name(text));
        }
    }
    let refused = patterns.iter().zip(then.iter().skip(COMMANDS.len()));
    let refused: Vec<&str> = refused
        .filter(|(_, answer)| lacks(answer).is_some_and(|why| why.contains("key")))
        .map(|(key, _)| key.as_str())
        .collect();
    let text = text(keys, &commands, &refused);
    Ok(text.map(|text| if then.is_empty() { format!("{text}, then see what else is missing") } else { text }))
}

fn text(keys: &Keys, commands: &[String], refused: &[&str]) -> Option<String> {
    if commands.is_empty() && refused.is_empty() {
        return None;
    }
    let mut lacks = Vec::new();
    let mut grants = Vec::new();
    if !commands.is_empty() {
        lacks.push(format!("the commands {}", few(commands.iter().map(|one| one.to_uppercase()))));
        grants.extend(commands.iter().map(|one| format!("+{one}")));
    }
    if !refused.is_empty() {
        lacks.push(format!("the keys {}", few(refused.iter().map(|one| (*one).to_owned()))));
        grants.push(format!("~{}", keys.pattern()));
    }
    Some(format!(
        "the user of rollcall in redis lacks {}; grant them: ACL SETUSER <user> {}",
        lacks.join(" and "),
        grants.join(" ")
    ))
}

fn few(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    let mut text = names.take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

/// The error of the server, if the user lacks a right.
fn lacks(answer: &Value) -> Option<String> {
    let Value::ServerError(error) = answer else { return None };
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    // The other errors of a script without keys are not about rights.
    text.contains("NOPERM").then_some(text)
}
