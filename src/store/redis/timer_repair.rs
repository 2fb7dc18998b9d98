//! The index and the counts of timers that wait, made again from the timers.
//!
//! Both are written in the steps that write a timer, so they are wrong only after a fault: another program removed or
//! changed a key, or it was quarantined. How many timers the index has and how many are counted is compared every
//! minute; the pages of a partition are read only if the two differ.

use std::collections::BTreeMap;

use redis::pipe;

use super::RedisEngine;
use crate::presence::{TimerId, TimerLifecycle};
use crate::store::Result;
use crate::store::timer_text::decode;

/// How many pages are read at once.
const PAGES: usize = 16;

pub(super) async fn repair(engine: &RedisEngine, partitions: &[u16]) -> Result<()> {
    let mut read = pipe();
    for partition in partitions {
        read.zcard(engine.keys.in_partition(*partition, "timers"));
        read.hgetall(engine.keys.in_partition(*partition, "timer_counts"));
    }
    if partitions.is_empty() {
        return Ok(());
    }
    let answers: Vec<redis::Value> = engine.topology.send("mend_timers", &read).await?;
    for (partition, answer) in partitions.iter().zip(answers.chunks_exact(2)) {
        let in_index: i64 = redis::from_redis_value(answer[0].clone()).unwrap_or(0);
        let counts: Vec<(String, String)> = redis::from_redis_value(answer[1].clone()).unwrap_or_default();
        let counted: i64 = counts.iter().map(|(_, count)| count.parse::<i64>().unwrap_or(-1)).sum();
        if in_index != counted {
            mend_partition(engine, *partition, counts).await?;
        }
    }
    Ok(())
}

/// A timer that fires meanwhile may be back in the index: it leaves it when it is due.
async fn mend_partition(engine: &RedisEngine, partition: u16, counts: Vec<(String, String)>) -> Result<()> {
    let mut waiting: BTreeMap<String, u64> = counts.into_iter().map(|(of, _)| (of, 0)).collect();
    let pages: Vec<u32> = (0..engine.keys.pages()).collect();
    let index = engine.keys.in_partition(partition, "timers");
    for step in pages.chunks(PAGES) {
        let mut read = pipe();
        for page in step {
            read.hgetall(engine.timer_key((partition, *page)));
        }
        let pages: Vec<Vec<(Vec<u8>, Vec<u8>)>> = engine.topology.send("mend_timers", &read).await?;
        let mut add = pipe();
        for (id, text) in pages.into_iter().flatten() {
            let id = std::str::from_utf8(&id).ok().and_then(|id| id.parse::<TimerId>().ok());
            let text = std::str::from_utf8(&text).ok();
            let Some(timer) = id.zip(text).and_then(|(id, text)| decode(&id, text)) else { continue };
            if timer.lifecycle == TimerLifecycle::Waiting {
                *waiting.entry(timer.timer_type.to_string()).or_default() += 1;
                let (due, id) = (timer.due.as_millis(), timer.id.as_str());
                add.cmd("ZADD").arg(&index).arg("NX").arg(due).arg(id).ignore();
            }
        }
        if !add.is_empty() {
            engine.topology.send::<()>("mend_timers", &add).await?;
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let mut write = pipe();
    let counts: Vec<(&String, u64)> = waiting.iter().map(|(of, count)| (of, *count)).collect();
    write.hset_multiple(engine.keys.in_partition(partition, "timer_counts"), &counts).ignore();
    engine.topology.send::<()>("mend_timers", &write).await
}
