//! The commands of Redis that Rollcall sends: only commands that Redis 6.2 knows.

use std::collections::BTreeSet;
use std::path::Path;

use super::source::Source;

/// Commands that scripts may call: Redis 6.2 knows all of them. TIME is for `renew.lua` alone, because time is an
/// argument everywhere else. Mind the options too: an id `ms-*` for XADD and NX for PEXPIRE came with 7.0.
const COMMANDS: &str = "SET PSETEX GET MGET DEL UNLINK EXISTS PTTL PEXPIRE PEXPIREAT PERSIST INCR INCRBY \
    HSET HGET HMGET HGETALL HDEL HLEN HEXISTS HINCRBY HSETNX \
    ZADD ZREM ZRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE ZREVRANGE ZRANGEBYLEX ZREVRANGEBYLEX ZSCORE ZMSCORE \
    ZCARD ZCOUNT ZLEXCOUNT ZPOPMIN ZREMRANGEBYSCORE ZREMRANGEBYRANK \
    SADD SREM SMEMBERS SISMEMBER SMISMEMBER SCARD SRANDMEMBER \
    LPUSH RPUSH LPOP RPOP LRANGE LLEN LTRIM LREM LINDEX \
    XADD XDEL XLEN XRANGE XREVRANGE XTRIM PUBLISH";

/// The one script that reads a clock.
const TELLS_THE_TIME: &str = "src/store/redis/scripts/renew.lua";

/// Commands to the server itself, outside of scripts.
const QUESTIONS: &str =
    "TIME INFO CONFIG EVAL SCAN WATCH UNWATCH MULTI TYPE HSCAN ROLE WAIT ASKING CLUSTER SENTINEL";

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

/// The error of a script.
pub fn of_script(path: &Path, text: &str) -> Vec<String> {
    let allowed: BTreeSet<&str> = COMMANDS.split_whitespace().collect();
    let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
    let unsaid = ["KEYS", "ARGV", "Returns"].into_iter();
    let unsaid = unsaid.filter(|word| !head.iter().any(|line| line.contains(word)));
    let mut found: Vec<String> =
        unsaid.map(|word| format!("{}: its head does not say {word}", path.display())).collect();
    for call in calls(text) {
        let tells_the_time = call == "TIME" && path.ends_with(TELLS_THE_TIME);
        if !allowed.contains(call.as_str()) && !tells_the_time {
            found.push(format!("{}: {call:?} is not among the allowed commands", path.display()));
        }
    }
    found
}

/// The commands of a file of the engine that are newer than allowed.
pub fn of_pipelines(source: &Source) -> Vec<String> {
    let allowed: BTreeSet<&str> = COMMANDS.split_whitespace().chain(QUESTIONS.split_whitespace()).collect();
    let sent = source.code.split("cmd(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let unknown = sent.filter(|command| !allowed.contains(command));
    let unknown = unknown.map(|it| format!("{}: {it:?} is not among the allowed commands", source.path));
    let newer = NEWER.iter().filter(|method| source.code.contains(&format!(".{method}")));
    unknown.chain(newer.map(|it| format!("{}: {it} is newer than Redis 6.2", source.path))).collect()
}

/// The first argument of each call of Redis; if it is not a literal, a text that is no command.
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
