//! Timers as they are read: by id, as pages by moment, and those that are forgotten.

use std::collections::HashMap;

use redis::pipe;

use super::RedisEngine;
use super::keys::PageId;
use crate::clock::Timestamp;
use crate::presence::{Timer, TimerId};
use crate::store::timer_text::decode;
use crate::store::{EngineError, FindTimers, Result, TimerPage, TimerPlace};
use crate::telemetry::Stored;

/// How many timers one batch reads: a fifth of a millisecond, because the ends of attempts wait behind it.
const READ_STEP: usize = 100;
/// The most timers of a page: the stack of a script ends.
const MOST_OF_PAGE: usize = 1000;
/// How many timers one call forgets in each partition.
const FORGOTTEN: usize = 100;
/// After how long a timer that receivers have not got yet is looked at again.
const KEPT_LONGER_MS: i64 = 3_600_000;

/// Timers by their ids, whatever became of them.
pub(super) async fn read(engine: &RedisEngine, ids: &[TimerId]) -> Result<Vec<Option<Timer>>> {
    read_from(engine, ids, true).await
}

/// Timers that wait, by their ids.
pub(super) async fn read_waiting(engine: &RedisEngine, ids: &[TimerId]) -> Result<Vec<Option<Timer>>> {
    read_from(engine, ids, false).await
}

/// Timers that wait are on their pages, and past ones in the hash of their partition.
async fn read_from(engine: &RedisEngine, ids: &[TimerId], with_past: bool) -> Result<Vec<Option<Timer>>> {
    let mut timers = vec![None; ids.len()];
    let mut located: Vec<(PageId, usize)> =
        (0..ids.len()).map(|at| (engine.timer_page(&ids[at]), at)).collect();
    located.sort_unstable();
    let steps = located.chunks(READ_STEP).map(|located| {
        let step = async move {
            let by_page = located.chunk_by(|a, b| a.0 == b.0).map(|some| (engine.timer_key(some[0].0), some));
            let past = located.chunk_by(|a, b| a.0.0 == b.0.0).filter(|_| with_past);
            let past = past.map(|some| (engine.past_timers(some[0].0.0), some));
            let hashes: Vec<(String, &[(PageId, usize)])> = by_page.chain(past).collect();
            let mut read = pipe();
            for (hash, located) in &hashes {
                let get = read.cmd("HMGET").arg(hash);
                for (_, index) in *located {
                    get.arg(ids[*index].as_str());
                }
            }
            let values: Vec<Vec<Option<Vec<u8>>>> = engine.topology.send("timers", &read).await?;
            let mut read = Vec::new();
            for ((hash, located), values) in hashes.iter().zip(values) {
                for ((_, index), text) in located.iter().zip(values) {
                    let (id, Some(text)) = (&ids[*index], text) else { continue };
                    match std::str::from_utf8(&text).ok().and_then(|text| decode(id, text)) {
                        Some(timer) => read.push((*index, timer)),
                        None => engine.quarantine_timer(hash, id, &text).await?,
                    }
                }
            }
            Ok(read)
        };
        (engine.keys.slot(located[0].0.0), step)
    });
    for (index, timer) in engine.topology.few_at_once(steps.collect()).await?.into_iter().flatten() {
        timers[index] = Some(timer);
    }
    Ok(timers)
}

/// The ids of some members of a partition's index; those that are no ids are quarantined.
pub(super) async fn ids(
    engine: &RedisEngine,
    partition: u16,
    index: &str,
    members: Vec<Vec<u8>>,
) -> Result<Vec<TimerId>> {
    let (mut ids, mut unreadable) = (Vec::with_capacity(members.len()), Vec::new());
    for member in members {
        let id = std::str::from_utf8(&member).ok().and_then(|id| id.parse::<TimerId>().ok());
        match id.filter(|id| engine.timer_page(id).0 == partition) {
            Some(id) => ids.push(id),
            None => unreadable.push(member),
        }
    }
    let key = engine.keys.in_partition(partition, index);
    engine.quarantine_members(&key, &unreadable, Stored::Timer).await?;
    Ok(ids)
}

/// Merges the indices of all partitions: each gives as many as the page has, in order.
pub(super) async fn find(engine: &RedisEngine, find: &FindTimers, limit: usize) -> Result<TimerPage> {
    let limit = limit.clamp(1, MOST_OF_PAGE);
    let begin = find.from.unwrap_or(Timestamp::ZERO).as_millis();
    let (from, after) = match &find.after {
        Some(place) if place.due.as_millis() >= begin => (place.due.as_millis(), place.id.as_str()),
        _ => (begin, ""),
    };
    let until = find.until.map_or(i64::MAX, |until| until.as_millis() - 1);
    let (waits, ended) = find.wants();
    let indices = [(waits, "timers"), (ended, "timers_ended")];
    let indices = indices.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, name)| name);
    let indices: Vec<&str> = indices.collect();
    let steps = (0..engine.keys.partitions()).flat_map(|partition| {
        indices.iter().map(move |name| {
            let step = async move {
                let mut script = engine.scripts.find_timers.prepare_invoke();
                script.key(engine.keys.in_partition(partition, name));
                script.arg(from).arg(after).arg(until).arg(limit);
                let found: Vec<Vec<u8>> = engine.topology.run("find_timers", &script).await?;
                let mut scores = HashMap::new();
                let mut members = Vec::new();
                for pair in found.chunks_exact(2) {
                    let at = std::str::from_utf8(&pair[1]).ok().and_then(|at| at.parse::<f64>().ok());
                    scores.insert(pair[0].clone(), Timestamp::from_millis(at.unwrap_or(0.0) as i64));
                    members.push(pair[0].clone());
                }
                let ids = ids(engine, partition, name, members).await?;
                let place = |id: TimerId| TimerPlace { due: scores[id.as_str().as_bytes()], id };
                Ok(ids.into_iter().map(place).collect::<Vec<_>>())
            };
            (engine.keys.slot(partition), step)
        })
    });
    let found = engine.topology.few_at_once(steps.collect()).await?;
    let mut places: Vec<TimerPlace> = found.into_iter().flatten().collect();
    places.sort_unstable();
    let next = places.get(limit - 1).cloned();
    places.truncate(limit);
    let ids: Vec<TimerId> = places.into_iter().map(|place| place.id).collect();
    let timers = read(engine, &ids).await?.into_iter().flatten();
    Ok(TimerPage { timers: timers.filter(|timer| find.matches(timer)).collect(), next })
}

pub(super) async fn forget(engine: &RedisEngine, partitions: &[u16], now: Timestamp) -> Result<usize> {
    let mut read = pipe();
    for partition in partitions {
        let kept = engine.keys.in_partition(*partition, "timers_kept");
        read.zrangebyscore_limit(kept, "-inf", now.as_millis(), 0, FORGOTTEN as isize);
    }
    let over: Vec<Vec<Vec<u8>>> = engine.topology.send("forget_timers", &read).await?;
    let mut forgotten = 0;
    for (&partition, members) in partitions.iter().zip(over) {
        let ids = ids(engine, partition, "timers_kept", members).await?;
        if ids.is_empty() {
            continue;
        }
        let mut script = engine.scripts.forget_timers.prepare_invoke();
        for name in ["timers_kept", "timers_ended", "past_timers"] {
            script.key(engine.keys.in_partition(partition, name));
        }
        script.arg(now.as_millis()).arg(now.as_millis() + KEPT_LONGER_MS);
        script.arg(ids.iter().map(TimerId::as_str).collect::<Vec<_>>());
        forgotten += engine.topology.run::<usize>("forget_timers", &script).await?;
    }
    Ok(forgotten)
}

/// A script answered what it never answers.
pub(super) fn unexpected(script: &str, answer: impl std::fmt::Debug) -> EngineError {
    EngineError::Damaged(format!("the script {script} answered {answer:?}"))
}
