//! What cannot be read is put aside, so that nothing waits for it: a key of a wrong type, a member of an
//! index that is no unit, an expiry key that holds no number.
//!
//! What was put aside is kept under `unreadable` of its partition, or of hearing, until an operator deletes it.
//! Everything else takes a key that was put aside as one that is not there. An expiry key is the exception: its
//! unit was heard, but when is not known; it counts as heard up to now, so that no living unit is called
//! offline, and one that is dead is found one timeout later at the most.
//!
//! # Why by going over all keys
//! Redis does not say which key had the wrong type, and a script has up to a hundred. This happens when another
//! program wrote, which is rare; the keys are gone over in small steps.

use redis::{Script, pipe};

use super::RedisEngine;
use super::keys::{KeyRule, Keys};
use super::topology::Topology;
use crate::presence::Unit;
use crate::store::{EngineError, Result};
use crate::telemetry::{Stored, Telemetry};

/// How many keys are gone over in one command.
const STEP: usize = 1000;

/// The most bytes of a value that are kept with its place.
const LONGEST: usize = 4096;

/// Puts keys of a wrong type aside: `KEYS[1]` what has it, `KEYS[2]` the new name, `KEYS[3]` the hash of all that was
/// put aside. `ARGV[1]` the type that it should have, `ARGV[2]` what an expiry key holds from now on, or "".
const QUARANTINE: &str = "
local is = redis.call('TYPE', KEYS[1]).ok
if is == ARGV[1] or is == 'none' then return 0 end
redis.call('DEL', KEYS[2])
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[3], KEYS[1], 'a ' .. is .. ', now ' .. KEYS[2])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) end
return 1";

/// Puts the value of an expiry key aside: `KEYS[1]` the key, `KEYS[2]` the hash of all that was put aside. `ARGV[1]` the
/// value that was read, `ARGV[2]` the new one.
const PRESUME: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], KEYS[1], ARGV[1])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('DEL', KEYS[1]) end
return 1";

/// Puts a field aside: `KEYS[1]` its hash, `KEYS[2]` the hash of all that was put aside. `ARGV[1]` field, `ARGV[2]` what was
/// read.
const QUARANTINE_FIELD: &str = "
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[2], KEYS[1] .. '\\n' .. ARGV[1], ARGV[2])
return redis.call('HDEL', KEYS[1], ARGV[1])";

/// Goes over all keys of the fleet and puts those of a wrong type aside. Answers how many.
pub(super) async fn quarantine_wrong_types(
    topology: &Topology,
    keys: &Keys,
    telemetry: &Telemetry,
) -> Result<usize> {
    let heard = how_far(topology, keys).await.unwrap_or_default();
    let script = Script::new(QUARANTINE);
    let (mut cursor, mut count) = (0u64, 0);
    loop {
        let mut scan = pipe();
        scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(keys.pattern()).arg("COUNT").arg(STEP);
        let ((next, found),): ((u64, Vec<Vec<u8>>),) = topology.send("scan", &scan).await?;
        let known: Vec<(String, &'static KeyRule)> = found
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
        for ((key, sort), found) in known.iter().zip(types) {
            if found == sort.redis_type || found == "none" {
                continue;
            }
            let presumed = if sort.what == Stored::ExpiryKey { heard.as_str() } else { "" };
            let mut put = script.prepare_invoke();
            put.key(key).key(format!("{key}:unreadable")).key(keys.unreadable_of(key));
            put.arg(sort.redis_type).arg(presumed);
            count += topology.run::<usize>("put_aside", &put).await?;
            let why =
                format!("it is a {found} and no {}; it was renamed to {key}:unreadable", sort.redis_type);
            telemetry.unreadable(sort.what, key, &why);
        }
        cursor = next;
        if cursor == 0 {
            return Ok(count);
        }
    }
}

/// What is put aside at the moment: each is told again until it is deleted.
pub(super) async fn report_quarantined(
    topology: &Topology,
    keys: &Keys,
    telemetry: &Telemetry,
) -> Result<Vec<String>> {
    let places: Vec<String> = keys.all_unreadable();
    let mut look = pipe();
    for place in &places {
        look.cmd("HSCAN").arg(place).arg(0).arg("COUNT").arg(100);
    }
    let found: Vec<(String, Vec<Vec<u8>>)> = topology.send("aside", &look).await?;
    let mut told = Vec::new();
    for (place, (_, fields)) in places.iter().zip(found) {
        for key in fields.chunks(2).filter_map(|pair| pair.first()) {
            let key = String::from_utf8_lossy(key);
            let what =
                keys.sort(key.split('\n').next().unwrap_or_default()).map_or(Stored::Other, |sort| sort.what);
            let why = format!("what it held was put aside in {place}; look at it, then HDEL it there");
            telemetry.unreadable(what, &key, &why);
            told.push(format!("{key}: {why}"));
        }
    }
    Ok(told)
}

/// Up to when everything was heard (ms), empty if that is not known.
async fn how_far(topology: &Topology, keys: &Keys) -> Result<String> {
    let mut ask = pipe();
    ask.hget(keys.heard(), "at");
    let (heard,): (Option<String>,) = topology.send("hearing", &ask).await?;
    Ok(heard.filter(|ms| ms.parse::<i64>().is_ok()).unwrap_or_default())
}

impl RedisEngine {
    /// The expiry key of a unit holds no number: the unit counts as heard up to now.
    pub(super) async fn presume(&self, unit: &Unit, text: &[u8]) -> Result<()> {
        let heard = how_far(&self.topology, &self.keys).await?;
        let (key, script) = (self.keys.alive(unit), Script::new(PRESUME));
        let mut presume = script.prepare_invoke();
        presume.key(&key).key(self.keys.unreadable_of(&key)).arg(text).arg(&heard);
        self.topology.run::<u64>("put_aside", &presume).await?;
        let why =
            format!("{:?} is no number and was put aside; the unit counts as heard up to now", shown(text));
        self.telemetry.unreadable(Stored::ExpiryKey, &key, &why);
        Ok(())
    }

    /// The facts of a unit are no text: it is a stranger until it is heard again.
    pub(super) async fn quarantine_facts(&self, unit: &Unit, text: &[u8]) -> Result<()> {
        let (partition, page) = self.keys.page_id(unit);
        let (key, script) = (self.keys.facts_page(partition, page), Script::new(QUARANTINE_FIELD));
        let mut put = script.prepare_invoke();
        put.key(&key).key(self.keys.unreadable_of(&key)).arg(unit.to_string()).arg(text);
        self.topology.run::<u64>("put_aside", &put).await?;
        let why =
            format!("{:?} are no facts and were put aside; it is new when it is heard again", shown(text));
        self.telemetry.unreadable(Stored::Facts, &unit.to_string(), &why);
        Ok(())
    }

    /// A notification cannot be read, or not all of it. It is kept as it is; what of it `is_told` is delivered.
    pub(super) async fn put_notification_aside(
        &self,
        partition: u16,
        id: &str,
        text: &[u8],
        is_told: bool,
        why: &EngineError,
    ) -> Result<()> {
        let key = self.keys.in_partition(partition, "notifications");
        let place = format!("{key}\n{id}");
        let mut put = pipe();
        put.hset(self.keys.unreadable_of(&key), &place, text).ignore();
        self.topology.send::<()>("put_aside", &put).await?;
        let rest = if is_told { "what can be read of it is told" } else { "nothing of it can be told" };
        let why = format!("{why}; {rest}, and its group goes on; /api/v1/records lists what it spoke of");
        self.telemetry.unreadable(Stored::Delivery, &place, &why);
        Ok(())
    }

    /// Members of a sorted set that cannot be what it holds.
    pub(super) async fn quarantine_members(
        &self,
        key: &str,
        unreadable: &[Vec<u8>],
        what: Stored,
    ) -> Result<()> {
        if unreadable.is_empty() {
            return Ok(());
        }
        let mut put = pipe();
        put.atomic();
        for member in unreadable {
            let kept = &member[..member.len().min(LONGEST)];
            let place = [key.as_bytes(), b"\n", kept].concat();
            put.hset(self.keys.unreadable_of(key), place, "").ignore();
            put.zrem(key, member).ignore();
            let why = "it cannot be what is kept there, and was put aside";
            self.telemetry.unreadable(what, &format!("{key} {}", shown(kept)), why);
        }
        self.topology.send("put_aside", &put).await
    }

    /// The names among the members of a sorted set; what is no text is put aside.
    pub(super) async fn names(&self, key: &str, members: Vec<Vec<u8>>, what: Stored) -> Result<Vec<String>> {
        let (mut names, mut unreadable) = (Vec::with_capacity(members.len()), Vec::new());
        for member in members {
            match String::from_utf8(member) {
                Ok(name) => names.push(name),
                Err(no) => unreadable.push(no.into_bytes()),
            }
        }
        self.quarantine_members(key, &unreadable, what).await?;
        Ok(names)
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned()
}
