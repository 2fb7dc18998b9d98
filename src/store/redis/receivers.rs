//! Receivers that are or were configured, and their backlogs.
//!
//! # Why there is a list of receivers
//! The name of a receiver is a part of the key of its queue, and Redis finds keys by a part of their names only by
//! scanning all of them, one for each unit. If the list is missing, one such scan makes it.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;
use redis::pipe;

use super::fields::Fields;
use super::finish::Ending;
use super::keys::Keys;
use super::lanes::in_lane;
use super::topology::Topology;
use super::{RedisEngine, absence};
use crate::clock::Timestamp;
use crate::store::notification::{Notification, discarded};
use crate::store::{Backlog, DeadLetter, Delivery, Discarded, EngineError, Result};

/// How many lanes, and how many dead letters, one step discards.
const LANES: usize = 50;
const LETTERS: isize = 500;

/// Enters receivers in the list, and marks the others as absent. The first list also gets the receivers that have a
/// backlog.
pub(super) async fn register_receivers(engine: &RedisEngine, names: &[String], now: Timestamp) -> Result<()> {
    let key = engine.keys.receivers();
    let mut entered = entered(&engine.topology, &engine.keys).await?;
    if entered.is_empty() {
        let scanned = match engine.receivers().await {
            // Without the right to SCAN the list holds only the receivers that are configured from now on.
            Err(EngineError::Refused(_)) => BTreeSet::new(),
            scanned => scanned?,
        };
        entered.extend(scanned.into_iter().map(|(_, name)| (name, String::new())));
    }
    let mut enter = pipe();
    for name in names {
        // An absent receiver stays absent until its lanes are up to date.
        enter.hset_nx(&key, name, now.as_millis()).ignore();
    }
    for (name, since) in entered.iter().filter(|(name, _)| !names.contains(name)) {
        if !absence::is_absent(since) {
            enter.hset(&key, name, absence::since(now)).ignore();
        }
    }
    engine.topology.send("receivers", &enter).await
}

/// The list: names, and since when each receiver is configured or absent.
async fn entered(topology: &Topology, keys: &Keys) -> Result<BTreeMap<String, String>> {
    let mut read = pipe();
    read.hgetall(keys.receivers());
    type Answer = BTreeMap<Vec<u8>, Vec<u8>>;
    let (entered,): (Answer,) = topology.send("receivers", &read).await?;
    let text = |bytes| String::from_utf8(bytes).ok();
    let named =
        entered.into_iter().filter_map(|(name, since)| Some((text(name)?, text(since).unwrap_or_default())));
    Ok(named.collect())
}

/// The backlog of each receiver in the list.
pub(super) async fn kept(topology: &Topology, keys: &Keys) -> Result<Vec<(String, Backlog)>> {
    let backlogs = entered(topology, keys).await?.into_keys().map(|name| async {
        let backlog = backlog(topology, keys, 0..keys.partitions(), &name).await?;
        Ok((name, backlog))
    });
    let mut kept: Vec<(String, Backlog)> = try_join_all(backlogs).await?;
    kept.retain(|(_, backlog)| *backlog != Backlog::default());
    Ok(kept)
}

/// The backlog of one receiver in these partitions.
pub(super) async fn backlog(
    topology: &Topology,
    keys: &Keys,
    partitions: impl Iterator<Item = u16>,
    receiver: &str,
) -> Result<Backlog> {
    let mut pipe = pipe();
    for partition in partitions {
        pipe.hlen(keys.of(partition, "lanes", receiver));
        pipe.zcard(keys.of(partition, "dead", receiver));
    }
    let counts: Vec<u64> = topology.send("backlog", &pipe).await?;
    let every_other = |from: usize| counts.iter().skip(from).step_by(2).sum();
    Ok(Backlog { waiting: every_other(0), dead: every_other(1) })
}

/// One step of discarding, in the first partition that has something to discard. Dead letters go first, so that one
/// step's worth of them exists at the most.
pub(super) async fn discard(engine: &RedisEngine, receiver: &str, now: Timestamp) -> Result<Discarded> {
    for partition in 0..engine.keys.partitions() {
        let removed = discard_letters(engine, partition, receiver).await?;
        let done = match removed {
            0 => discard_waiting(engine, partition, receiver, now).await?,
            removed => Discarded { ended: 0, removed },
        };
        if done != Discarded::default() {
            return Ok(done);
        }
    }
    Ok(Discarded::default())
}

/// Ends the first notification of some lanes. It becomes a dead letter, so that the returns of its silences are left
/// out, as for every dead letter.
async fn discard_waiting(
    engine: &RedisEngine,
    partition: u16,
    receiver: &str,
    now: Timestamp,
) -> Result<Discarded> {
    let lanes = some_lanes(engine, partition, receiver).await?;
    if lanes.is_empty() {
        return Ok(Discarded::default());
    }
    let letters: Vec<DeadLetter> = lanes.iter().map(|lane| discarded(lane.clone(), now)).collect();
    let endings: Vec<Ending> = letters
        .iter()
        .map(|letter| Ending { delivery: &letter.delivery, letter: Some(letter.clone()), was_marked: false })
        .collect();
    let endings: Vec<&Ending> = endings.iter().collect();
    let ended = engine.finish_step(partition, receiver, &endings, now, None).await?;
    if ended > 0 {
        return Ok(Discarded { ended, removed: 0 });
    }
    // A field that holds no lane cannot be ended, so it is removed.
    let mut remove = pipe();
    let groups: Vec<&str> = lanes.iter().map(|lane| lane.group.key.as_str()).collect();
    remove.hdel(engine.keys.of(partition, "lanes", receiver), &groups);
    remove.zrem(engine.keys.of(partition, "queue", receiver), &groups).ignore();
    let (removed,): (usize,) = engine.topology.send("discard", &remove).await?;
    Ok(Discarded { ended: 0, removed })
}

/// The first notification of up to about [`LANES`] lanes; an unreadable one has no content.
async fn some_lanes(engine: &RedisEngine, partition: u16, receiver: &str) -> Result<Vec<Delivery>> {
    let key = engine.keys.of(partition, "lanes", receiver);
    let mut all = Fields::of(&engine.topology, "discard", key, LANES);
    let mut lanes: Vec<(String, String)> = Vec::new();
    while lanes.is_empty()
        && let Some(page) = all.next().await?
    {
        let text = |bytes| String::from_utf8(bytes).ok();
        lanes.extend(page.into_iter().filter_map(|(group, lane)| Some((text(group)?, text(lane)?))));
    }
    let mut firsts = Vec::new();
    let mut bodies = pipe();
    // HSCAN answers a small hash whole, whatever the limit.
    for (group, lane) in lanes.into_iter().take(LANES) {
        let (mut ids, own) = in_lane(&lane);
        let id = ids.next().unwrap_or_default().to_owned();
        bodies.hget(engine.keys.in_partition(partition, "notifications"), &id);
        firsts.push((group, id, own.map(str::to_owned)));
    }
    if firsts.is_empty() {
        return Ok(Vec::new());
    }
    let bodies: Vec<Option<Vec<u8>>> = engine.topology.send("discard", &bodies).await?;
    let deliveries = firsts.into_iter().zip(bodies).map(|((group, id, own), body)| {
        let text = own.map(String::into_bytes).or(body);
        let notification = text.and_then(|text| Notification::read(&group, &text).notification);
        Delivery::of(notification, &group, &format!("{id}.{receiver}"), receiver)
    });
    Ok(deliveries.collect())
}

async fn discard_letters(engine: &RedisEngine, partition: u16, receiver: &str) -> Result<usize> {
    let (dead, letters) =
        (engine.keys.of(partition, "dead", receiver), engine.keys.of(partition, "dead_letters", receiver));
    let mut read = pipe();
    read.zrange(&dead, 0, LETTERS - 1);
    let (ids,): (Vec<String>,) = engine.topology.send("discard", &read).await?;
    if ids.is_empty() {
        return Ok(0);
    }
    let mut remove = pipe();
    remove.atomic().hdel(&letters, &ids).ignore().zrem(&dead, &ids);
    let (removed,): (usize,) = engine.topology.send("discard", &remove).await?;
    Ok(removed)
}
