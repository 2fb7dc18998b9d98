//! Keys that servers evict when they are full, and how that affects deadlines.
//!
//! An evicted expiry key takes the newest heartbeats of its unit with it: facts have only the heartbeat of the last
//! check. An eviction may come at any moment. So the moment up to which keys may have been evicted is part of
//! hearing: a unit without a key counts as heard up to then (`presence::check_deadline`), and receivers are notified
//! of its silence up to one timeout later than otherwise.
//!
//! Each server counts the keys that it evicts. Every deadline check reads that count after its units, in the same
//! request, so no check misses an eviction of the keys that it has read. Every renewal of a lease reads the count
//! too, and stores the moment for other instances and later ones. The policy of a server is not considered: it may
//! change at any time.
//!
//! # Why any change of the count is an eviction
//! The count begins at zero when a server starts. A smaller count than before may hide evictions, and so may a server
//! that had evicted keys and is no longer there.
//!
//! # Why the start refuses such servers
//! With `volatile-…` a server removes expiry keys, and detection is late as long as the server is full; with
//! `allkeys-…` it removes units, which are then not watched any more. An operator who wants that permits the policy
//! by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{InfoDict, Value, pipe};

use super::RedisEngine;
use super::conditional::{ConditionalWrite, Expect, HashFields};
use super::reading::milliseconds;
use super::topology::{RedisServer, Topology};
use crate::clock::Timestamp;
use crate::store::{EngineError, Result};

/// The field of `heard`: up to when keys may have been evicted (ms).
pub(super) const FIELD: &str = "evicted";

/// A server that answers later than this is read with the next renewal.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The policy under which a server evicts no key.
const NONE: &str = "noeviction";

/// The evictions that this instance knows of.
#[derive(Debug, Default)]
pub(super) struct Evictions(Mutex<KnownEvictions>);

#[derive(Debug, Default)]
struct KnownEvictions {
    /// The number of keys that each server has evicted, by its address.
    counts: BTreeMap<String, u64>,
    /// Up to when keys may have been evicted.
    until: Option<Timestamp>,
    /// The stored moment up to which keys may have been evicted.
    stored: Option<Timestamp>,
}

impl KnownEvictions {
    /// Notes the count of a server.
    fn read(&mut self, server: &str, count: u64, now: Timestamp) {
        let before = self.counts.get(server).copied();
        if before.unwrap_or(0) != count {
            self.until = self.until.max(Some(now));
        }
        if before != Some(count) {
            self.counts.insert(server.to_owned(), count);
        }
    }

    /// Forgets servers that are not primaries any more. If they have evicted keys, they may have evicted more up to
    /// now.
    fn keep(&mut self, servers: &[Arc<RedisServer>], now: Timestamp) {
        let is_there = |address: &str| servers.iter().any(|server| server.address() == address);
        if self.counts.iter().any(|(address, count)| *count > 0 && !is_there(address)) {
            self.until = self.until.max(Some(now));
        }
        self.counts.retain(|address, _| is_there(address));
    }
}

impl Evictions {
    /// Up to when keys may have been evicted, after `stored` was read.
    pub fn until(&self, stored: Option<&[u8]>) -> Option<Timestamp> {
        let stored = stored.and_then(milliseconds).map(Timestamp::from_millis);
        let mut known = self.0.lock();
        known.stored = stored;
        known.until = known.until.max(stored);
        known.until
    }
}

/// The number of evicted keys in an answer to `INFO stats`; 0 if the answer does not have it.
fn count_in(answer: &Value) -> u64 {
    let text: String = redis::from_redis_value(answer.clone()).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

impl RedisEngine {
    /// Notes the answer to `INFO stats` of a server.
    pub(super) fn note_evictions(&self, server: &RedisServer, answer: &Value, now: Timestamp) {
        let before = self.evictions.0.lock().until;
        self.evictions.0.lock().read(server.address(), count_in(answer), now);
        if self.evictions.0.lock().until != before {
            // The examination shows evictions on `/readyz`.
            self.topology.request_examination();
        }
    }

    /// Reads how many keys every primary has evicted. `fleet`: the time of the fleet.
    pub(super) async fn follow_evictions(&self, fleet: impl Fn() -> Timestamp) {
        let Ok(servers) = self.topology.servers().await else { return };
        let mut question = pipe();
        question.cmd("INFO").arg("stats");
        let asked = servers.iter().map(|server| {
            let question = &question;
            async move {
                let answer = tokio::time::timeout(MAX_WAIT, server.send(question, 0, 1)).await.ok()?.ok()?;
                Some((server, answer.into_iter().next()?))
            }
        });
        let answers = join_all(asked).await;
        let now = fleet();
        for (server, answer) in answers.into_iter().flatten() {
            self.note_evictions(server, &answer, now);
        }
        self.evictions.0.lock().keep(&servers, now);
    }

    /// Stores up to when keys may have been evicted, if that is later than the stored moment.
    pub(super) async fn store_evictions(&self) -> Result<()> {
        let (until, stored) = {
            let known = self.evictions.0.lock();
            (known.until, known.stored)
        };
        let Some(until) = until.filter(|until| Some(*until) > stored) else { return Ok(()) };
        let text = until.as_millis().to_string();
        let decide = |read: &[&HashFields], _: bool, write: &mut ConditionalWrite<'_>| {
            let (key, heard) = (self.keys.heard(), read[0]);
            write.expect_some(heard, [(b"fleet".as_slice(), Expect::Same)].into_iter());
            match heard.get(FIELD.as_bytes()).and_then(|at| milliseconds(at)) {
                Some(_) => write.raise(&key, FIELD.as_bytes(), text.as_bytes()),
                None => write.set(&key, FIELD.as_bytes(), text.as_bytes()),
            }
        };
        self.write_if_unchanged("evictions", &[self.keys.heard()], &pipe(), decide).await.map(|((), ())| ())
    }

    /// The time of the fleet at `now`, or a little later; the server's clock before the first renewal.
    pub(super) fn fleet_time(&self, now: Instant, server: Timestamp) -> Timestamp {
        self.server_clock.lock().fleet_time(now).unwrap_or(server).max(server)
    }
}

/// Whether a server with this policy may evict keys without the permission of an operator.
pub(super) fn is_refused(policy: &str, permitted: &str) -> bool {
    !policy.is_empty() && policy != NONE && policy != permitted
}

/// The fault of a server with a policy that is refused, and the advice.
pub(super) fn fault(policy: &str) -> String {
    format!(
        "redis has maxmemory-policy {policy}: when its memory is full it removes keys, and units are watched late or not \
         at all; set maxmemory-policy noeviction, or permit it with engine.allow_eviction = \"{policy}\""
    )
}

/// Refuses servers that may evict keys, unless their policy is permitted.
pub(super) async fn refuse(topology: &Topology, permitted: &str) -> Result<()> {
    let mut question = pipe();
    question.cmd("INFO").arg("memory");
    for server in topology.servers().await? {
        let (info,): (InfoDict,) = topology.send_to("info", &server, &question).await?;
        let policy: String = info.get("maxmemory_policy").unwrap_or_default();
        if is_refused(&policy, permitted) {
            return Err(EngineError::Refused(format!("at {}: {}", server.address(), fault(&policy))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn another_count_is_an_eviction_up_to_now() {
        // (the counts of a server one after the other, up to when keys may have been evicted)
        let cases: [(&[u64], Option<i64>); 6] = [
            (&[0, 0, 0], None),
            (&[7], Some(0)), // it is not known when
            (&[0, 1, 1], Some(1)),
            (&[0, 1, 2], Some(2)),
            (&[3, 0, 0], Some(1)), // it has started again
            (&[0, 0, 5, 5], Some(2)),
        ];
        for (counts, until) in cases {
            let mut known = KnownEvictions::default();
            for (now, count) in (0..).zip(counts) {
                known.read("a:1", *count, at(now));
            }
            assert_eq!(known.until, until.map(at), "{counts:?}");
        }
    }

    #[test]
    fn the_later_of_the_stored_moment_and_the_known_one_counts() {
        let evictions = Evictions::default();
        assert_eq!(evictions.until(None), None);
        assert_eq!(evictions.until(Some(b"5")), Some(at(5)));
        evictions.0.lock().read("a:1", 1, at(3));
        assert_eq!(evictions.until(Some(b"5")), Some(at(5)));
        evictions.0.lock().read("a:1", 2, at(8));
        assert_eq!(evictions.until(Some(b"x")), Some(at(8)));
    }

    #[test]
    fn the_count_is_read_from_the_statistics() {
        let info = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(count_in(&info("# Stats\r\nexpired_keys:4\r\nevicted_keys:12\r\n")), 12);
        assert_eq!(count_in(&info("# Stats\r\n")), 0);
    }

    #[test]
    fn a_policy_is_permitted_by_its_name() {
        for (policy, permitted, expected) in [
            ("noeviction", "", false),
            ("", "", false),
            ("volatile-lru", "", true),
            ("volatile-lru", "volatile-ttl", true),
            ("volatile-lru", "volatile-lru", false),
            ("allkeys-random", "", true),
        ] {
            assert_eq!(is_refused(policy, permitted), expected, "{policy} {permitted}");
        }
    }
}
