//! Quarantine: unreadable values are moved away, so that no loop waits for them. A value is unreadable if it is a key
//! of a wrong type, a member of an index that is not a unit, or an expiry key that holds no number.
//!
//! A quarantined value stays under `unreadable` of its partition, or of hearing, until an operator deletes it. For
//! the rest of the engine its key is absent. An expiry key is the exception: its unit was heard, but the time is
//! unknown. The unit counts as heard up to `heard` of the fleet, or up to now while that is unreadable. So no living
//! unit becomes offline, and a dead unit becomes offline at most one timeout later.
//!
//! # Why all keys are scanned
//! Redis does not say which key has the wrong type, and a script has up to a hundred keys. Wrong types are rare: they
//! come from other programs. The scan takes small steps. A scan of the keys from before the start costs a server 6 µs
//! for each key, so it is spread over the examinations of the first minutes.

use redis::{Script, pipe};

use super::RedisEngine;
use super::key_scan::KeyScan;
use super::keys::{KeyRule, Keys};
use super::topology::{ScriptCall, Topology};
use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::Result;
use crate::telemetry::{Stored, Telemetry};

/// How many keys one command scans: the server takes half a millisecond, and as long for their types.
const STEP: usize = 250;

/// The most bytes of a member that are kept with the name of its key.
const MAX_VALUE: usize = 4096;

/// The most characters of a location that are shown.
const MAX_LOCATION: usize = 300;

/// Quarantines a key of a wrong type. `KEYS[1]` the key, `KEYS[2]` its new name, `KEYS[3]` the hash of quarantined
/// values. `ARGV[1]` the right type, `ARGV[2]` the new value of an expiry key, or "".
const QUARANTINE: &str = "
local is = redis.call('TYPE', KEYS[1]).ok
if is == ARGV[1] or is == 'none' then return 0 end
redis.call('DEL', KEYS[2])
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[3], KEYS[1], 'a ' .. is .. ', now ' .. KEYS[2])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) end
return 1";

/// Quarantines the value of an expiry key. `KEYS[1]` the key, `KEYS[2]` the hash of quarantined values. `ARGV[1]` the
/// value as read, `ARGV[2]` the new value, or "" to delete the key.
const QUARANTINE_EXPIRY_KEY: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], KEYS[1], ARGV[1])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('DEL', KEYS[1]) end
return 1";

/// Quarantines a field. `KEYS[1]` its hash, `KEYS[2]` the hash of quarantined values. `ARGV[1]` the field,
/// `ARGV[2]` its value as read.
const QUARANTINE_FIELD: &str = "
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[2], KEYS[1] .. '\\n' .. ARGV[1], ARGV[2])
return redis.call('HDEL', KEYS[1], ARGV[1])";

/// A stored value as operators see it, from its first report until it is deleted from the quarantine: its sort, and its
/// key with the part that cannot be read, if it is only a part.
pub(super) fn located(keys: &Keys, key: &str, part: Option<&[u8]>) -> (Stored, String) {
    let part = part.map(|part| format!(" {}", String::from_utf8_lossy(part))).unwrap_or_default();
    let plain = |c: char| match c {
        '\n' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    (keys.what(key), key.chars().chain(part.chars()).take(MAX_LOCATION).map(plain).collect())
}

/// The key of a quarantined value and, if only a part of the key is quarantined, that part.
pub(super) fn parts(field: &[u8]) -> (String, Option<&[u8]>) {
    match field.iter().position(|byte| *byte == b'\n') {
        Some(at) => (String::from_utf8_lossy(&field[..at]).into_owned(), Some(&field[at + 1..])),
        None => (String::from_utf8_lossy(field).into_owned(), None),
    }
}

/// A scan of all keys of the fleet for those of a wrong type.
pub(super) fn scan(keys: &Keys) -> KeyScan {
    KeyScan::of("scan", keys.pattern(), STEP)
}

/// Scans this many steps further, and quarantines the keys of a wrong type. Answers whether the scan is over.
pub(super) async fn quarantine_wrong_types(
    topology: &Topology,
    keys: &Keys,
    telemetry: &Telemetry,
    (scan, steps): (&mut KeyScan, usize),
    now: Timestamp,
) -> Result<bool> {
    // The state of hearing may itself be broken, and must not make a living unit offline.
    let heard = heard_up_to(topology, keys).await.ok().filter(|heard| !heard.is_empty());
    let heard = heard.unwrap_or_else(|| now.as_millis().to_string());
    let script = Script::new(QUARANTINE);
    for _ in 0..steps {
        let Some(page) = scan.next(topology).await? else { return Ok(true) };
        let known: Vec<(String, &'static KeyRule)> = page
            .into_iter()
            .filter_map(|key| String::from_utf8(key).ok())
            .filter_map(|key| Some((keys.sort(&key)?, key)))
            .map(|(sort, key)| (key, sort))
            .collect();
        let mut types = pipe();
        for (key, _) in &known {
            types.cmd("TYPE").arg(key);
        }
        let types: Vec<String> = topology.send("type", &types).await?;
        for ((key, sort), redis_type) in known.iter().zip(types) {
            if redis_type == sort.redis_type || redis_type == "none" {
                continue;
            }
            let presumed = if sort.what == Stored::ExpiryKey { heard.as_str() } else { "" };
            let mut put = ScriptCall::of(&script);
            put.key(key).key(format!("{key}:unreadable")).key(keys.unreadable_of(key));
            put.arg(sort.redis_type).arg(presumed);
            topology.run::<usize>("quarantine", put).await?;
            let why = format!(
                "it is a {redis_type} and no {}; it was renamed to {key}:unreadable",
                sort.redis_type
            );
            let (what, location) = located(keys, key, None);
            telemetry.unreadable(what, &location, &why);
        }
    }
    Ok(false)
}

/// Reports every quarantined value, until an operator deletes it. Answers the reports.
pub(super) async fn report_quarantined(
    topology: &Topology,
    keys: &Keys,
    telemetry: &Telemetry,
) -> Result<Vec<String>> {
    let hashes: Vec<String> = keys.all_unreadable();
    let mut read = pipe();
    for hash in &hashes {
        read.cmd("HSCAN").arg(hash).arg(0).arg("COUNT").arg(100);
    }
    let pages: Vec<(String, Vec<Vec<u8>>)> = topology.send("quarantined", &read).await?;
    let mut reports = Vec::new();
    for (hash, (_, fields)) in hashes.iter().zip(pages) {
        for field in fields.chunks(2).filter_map(|pair| pair.first()) {
            let (key, part) = parts(field);
            let (what, location) = located(keys, &key, part);
            let why = format!("its value was quarantined in {hash}; look at it, then HDEL it there");
            telemetry.unreadable(what, &location, &why);
            reports.push(format!("{location}: {why}"));
        }
    }
    Ok(reports)
}

/// Up to when Rollcall has heard (ms); empty if unknown.
async fn heard_up_to(topology: &Topology, keys: &Keys) -> Result<String> {
    let mut ask = pipe();
    ask.hget(keys.heard(), "at");
    let (heard,): (Option<String>,) = topology.send("hearing", &ask).await?;
    Ok(heard.filter(|ms| ms.parse::<i64>().is_ok()).unwrap_or_default())
}

impl RedisEngine {
    /// Quarantines an expiry key that holds no number: the unit counts as heard up to `heard` of the fleet.
    pub(super) async fn quarantine_expiry_key(&self, unit: &Unit, text: &[u8]) -> Result<()> {
        let heard = heard_up_to(&self.topology, &self.keys).await?;
        let (key, script) = (self.keys.alive(unit), Script::new(QUARANTINE_EXPIRY_KEY));
        let mut put = ScriptCall::of(&script);
        put.key(&key).key(self.keys.unreadable_of(&key)).arg(text).arg(&heard);
        self.topology.run::<u64>("quarantine", put).await?;
        let why = format!(
            "{:?} is not a number and was quarantined; the unit counts as heard up to now",
            shown(text)
        );
        self.report_unreadable(&key, None, &why);
        Ok(())
    }

    /// Quarantines a field of a hash, if its value is unchanged, and reports it.
    pub(super) async fn quarantine_field(
        &self,
        key: &str,
        field: &[u8],
        value: &[u8],
        why: &str,
    ) -> Result<()> {
        let script = Script::new(QUARANTINE_FIELD);
        let mut put = ScriptCall::of(&script);
        put.key(key).key(self.keys.unreadable_of(key)).arg(field).arg(value);
        self.topology.run::<u64>("quarantine", put).await?;
        self.report_unreadable(key, Some(field), why);
        Ok(())
    }

    pub(super) fn report_unreadable(&self, key: &str, part: Option<&[u8]>, why: &str) {
        let (what, location) = located(&self.keys, key, part);
        self.telemetry.unreadable(what, &location, why);
    }

    /// Quarantines facts that are no text: the unit is unknown until its next heartbeat.
    pub(super) async fn quarantine_facts(&self, unit: &Unit, text: &[u8]) -> Result<()> {
        let (partition, page) = self.keys.page_id(unit);
        let why =
            format!("{:?} are no facts and were quarantined; it is new when it is heard again", shown(text));
        let (key, name) = (self.keys.facts_page(partition, page), unit.to_string());
        self.quarantine_field(&key, name.as_bytes(), text, &why).await
    }

    /// Quarantines invalid members of a sorted set.
    pub(super) async fn quarantine_members(&self, key: &str, unreadable: &[Vec<u8>]) -> Result<()> {
        if unreadable.is_empty() {
            return Ok(());
        }
        let mut put = pipe();
        put.atomic();
        for member in unreadable {
            let kept = &member[..member.len().min(MAX_VALUE)];
            let location = [key.as_bytes(), b"\n", kept].concat();
            put.hset(self.keys.unreadable_of(key), location, "").ignore();
            put.zrem(key, member).ignore();
            self.report_unreadable(key, Some(kept), "it is not a valid member, and was quarantined");
        }
        self.topology.send("quarantine", &put).await
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned()
}
