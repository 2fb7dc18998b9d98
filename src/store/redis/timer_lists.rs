//! Timers as they are read: by id, as pages by moment, and those that are forgotten.

use redis::pipe;

use super::RedisEngine;
use super::keys::PageId;
use super::steps::Steps;
use crate::clock::Timestamp;
use crate::presence::{Timer, TimerId};
use crate::store::timer_text::{decode, is_fired};
use crate::store::{EngineError, FindTimers, Result, TimerPage, TimerPosition};
use crate::telemetry::Stored;

/// How many timers one batch reads: a fifth of a millisecond, because the ends of attempts wait behind it.
const READ_STEP: usize = 100;
/// The most timers of a page: the stack of a script ends.
const MAX_OF_PAGE: usize = 1000;
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
    for (index, timer) in engine.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
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
    let members = members.into_iter().map(|member| (member, 0.0)).collect();
    Ok(ids_with_scores(engine, partition, index, members).await?.into_iter().map(|(id, _)| id).collect())
}

/// The same with their scores.
async fn ids_with_scores(
    engine: &RedisEngine,
    partition: u16,
    index: &str,
    members: Vec<(Vec<u8>, f64)>,
) -> Result<Vec<(TimerId, f64)>> {
    let (mut ids, mut unreadable) = (Vec::with_capacity(members.len()), Vec::new());
    for (member, score) in members {
        let id = std::str::from_utf8(&member).ok().and_then(|id| id.parse::<TimerId>().ok());
        match id.filter(|id| engine.timer_page(id).0 == partition) {
            Some(id) => ids.push((id, score)),
            None => unreadable.push(member),
        }
    }
    let key = engine.keys.in_partition(partition, index);
    engine.quarantine_members(&key, &unreadable, Stored::Timer).await?;
    Ok(ids)
}

/// Merges the indices of all partitions: each gives as many as the page has, in order.
pub(super) async fn find(engine: &RedisEngine, find: &FindTimers, limit: usize) -> Result<TimerPage> {
    let limit = limit.clamp(1, MAX_OF_PAGE);
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
                let found: Vec<(Vec<u8>, f64)> = engine.topology.run("find_timers", &script).await?;
                let ids = ids_with_scores(engine, partition, name, found).await?;
                let place = |(id, at)| TimerPosition { due: Timestamp::from_millis(at as i64), id };
                Ok(ids.into_iter().map(place).collect::<Vec<_>>())
            };
            (engine.keys.slot(partition), step)
        })
    });
    let found = engine.topology.run_limited(steps.collect()).await?;
    let mut places: Vec<TimerPosition> = found.into_iter().flatten().collect();
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
        read.zrangebyscore_limit_withscores(kept, "-inf", now.as_millis(), 0, FORGOTTEN as isize);
    }
    let over: Vec<Vec<(Vec<u8>, f64)>> = engine.topology.send("forget_timers", &read).await?;
    let mut forgotten = 0;
    for (&partition, members) in partitions.iter().zip(over) {
        let over = ids_with_scores(engine, partition, "timers_kept", members).await?;
        if !over.is_empty() {
            forgotten += forget_some(engine, partition, &over, now).await?;
        }
    }
    Ok(forgotten)
}

/// Forgets timers of a partition, which come with until when they are kept. One that changes meanwhile is for the next
/// call.
async fn forget_some(
    engine: &RedisEngine,
    partition: u16,
    over: &[(TimerId, f64)],
    now: Timestamp,
) -> Result<usize> {
    let [kept, ended] = ["timers_kept", "timers_ended"].map(|name| engine.keys.in_partition(partition, name));
    let past = engine.past_timers(partition);
    let mut read = pipe();
    read.cmd("HMGET").arg(&past).arg(over.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>());
    let (texts,): (Vec<Option<Vec<u8>>>,) = engine.topology.send("forget_timers", &read).await?;
    let later = (now.as_millis() + KEPT_LONGER_MS).to_string();
    let (mut steps, mut forgets) = (Steps::default(), Vec::new());
    for ((id, until), text) in over.iter().zip(&texts) {
        let (id, text) = (id.as_str().as_bytes(), text.as_deref());
        steps.begin().expect_score(&kept, id, *until).expect_field(&past, id, text);
        // One that receivers have not got yet is kept.
        if text.is_some_and(is_fired) {
            steps.write("ZADD", &kept, &[later.as_bytes(), id]);
            forgets.push(false);
        } else {
            steps.write("ZREM", &kept, &[id]).write("ZREM", &ended, &[id]).write("HDEL", &past, &[id]);
            forgets.push(text.is_some());
        }
    }
    let written = engine.write_steps("forget_timers", steps).await?;
    Ok(forgets.into_iter().zip(written).filter(|(forgets, is_written)| *forgets && *is_written).count())
}

/// A script answered what it never answers.
pub(super) fn unexpected(script: &str, answer: impl std::fmt::Debug) -> EngineError {
    EngineError::Damaged(format!("the script {script} answered {answer:?}"))
}
