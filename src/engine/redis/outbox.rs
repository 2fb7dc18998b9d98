//! The outbox: what happened and has joined no group yet, in one stream for each partition and one
//! for hearing.
//!
//! An entry that cannot be read would hold up all others for good. It is set aside, loudly: somebody
//! else wrote it, or a version of Rollcall that knew more.

use redis::streams::{StreamId, StreamRangeReply};
use redis::{from_redis_value_ref, pipe};

use super::RedisEngine;
use super::hearing::parse_interval;
use crate::engine::json::from_json;
use crate::engine::{EngineError, Entry, News, Position, Result};

/// The oldest entries of these outboxes.
pub(super) async fn oldest(engine: &RedisEngine, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>> {
    let each = limit.div_ceil(outboxes.len().max(1)).max(1);
    let mut pipe = pipe();
    for outbox in outboxes {
        pipe.xrange_count(engine.keys.outbox(*outbox), "-", "+", each);
    }
    let replies: Vec<StreamRangeReply> = engine.topology.send("outbox", &pipe).await?;
    let mut entries = Vec::new();
    for (&outbox, reply) in outboxes.iter().zip(replies) {
        for stream_id in reply.ids {
            match news(&stream_id) {
                Ok(news) => entries.push(Entry { position: Position { outbox, id: stream_id.id }, news }),
                Err(why) => set_aside(engine, outbox, &stream_id, &why).await?,
            }
        }
    }
    Ok(entries)
}

/// Moves an entry out of the way, as it is.
async fn set_aside(engine: &RedisEngine, outbox: u16, entry: &StreamId, why: &EngineError) -> Result<()> {
    let (from, to) = (engine.keys.outbox(outbox), engine.keys.unreadable(outbox));
    tracing::error!("nobody can be told what is in {from}, it is kept in {to}: {why}");
    let mut pipe = pipe();
    pipe.atomic().cmd("XADD").arg(to).arg("*");
    for (name, value) in &entry.map {
        pipe.arg(name).arg(from_redis_value_ref::<Vec<u8>>(value).unwrap_or_default());
    }
    pipe.ignore().xdel(from, &[&entry.id]).ignore();
    engine.topology.send("set_aside", &pipe).await
}

pub(super) fn news(entry: &StreamId) -> Result<News> {
    let field = |name: &str| entry.map.get(name).and_then(|value| from_redis_value_ref::<String>(value).ok());
    if let Some(json) = field("record") {
        return from_json("a record in the outbox", &json).map(News::Record);
    }
    match field("blind") {
        Some(interval) => parse_interval(&interval).map(News::Blind),
        None => Err(EngineError::Damaged(format!("entry {} of the outbox says nothing known", entry.id))),
    }
}

/// Removes entries that were dealt with.
pub(super) async fn settle(engine: &RedisEngine, entries: &[Position]) -> Result<()> {
    let mut pipe = pipe();
    for outbox in 0..engine.keys.outboxes() {
        let ids: Vec<&str> = entries.iter().filter(|e| e.outbox == outbox).map(|e| e.id.as_str()).collect();
        if !ids.is_empty() {
            pipe.xdel(engine.keys.outbox(outbox), &ids).ignore();
        }
    }
    if pipe.is_empty() { Ok(()) } else { engine.topology.send("settle", &pipe).await }
}
