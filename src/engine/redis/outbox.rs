//! The outbox: what happened and has joined no group yet, in one stream for each partition and one
//! for hearing.
//!
//! An entry holds what was written in one step, as a field and a value for each piece of news: a
//! hundred records in one entry cost the server a third of a hundred entries. A record that was opened
//! is the name of its unit and the facts, one that was closed is `record` and the record (JSON), an
//! interval is `blind` and its ends.
//!
//! An entry that cannot be read would hold up all others for good. It is set aside, loudly: somebody
//! else wrote it, or a version of Rollcall that knew more.

use redis::pipe;

use super::RedisEngine;
use super::hearing::parse_interval;
use super::topology::few_at_once;
use crate::engine::json::from_json;
use crate::engine::{EngineError, Entry, News, Position, Result, encoding};
use crate::presence::OfflineRecord;

/// About how many pieces of news an entry holds: one on a quiet day, a hundred in a storm.
const TOGETHER: usize = 10;
/// Outboxes that are asked for in one batch: in a storm that is a millisecond and a half of the server's time,
/// and others are served between two.
const STEP: usize = 3;

/// An entry as the server has it: its id, then fields and values in turn.
pub(super) type Stored = (String, Vec<Vec<u8>>);

/// The oldest news of these outboxes, whole entries.
pub(super) async fn oldest(engine: &RedisEngine, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>> {
    let each = limit.div_ceil(TOGETHER * outboxes.len().max(1)).max(1);
    let steps = outboxes.chunks(STEP).map(|outboxes| async move {
        let mut pipe = pipe();
        for outbox in outboxes {
            pipe.xrange_count(engine.keys.outbox(*outbox), "-", "+", each);
        }
        engine.topology.send::<Vec<Vec<Stored>>>("outbox", &pipe).await
    });
    let replies = few_at_once(steps.collect()).await?;
    let mut entries = Vec::new();
    for (&outbox, reply) in outboxes.iter().zip(replies.into_iter().flatten()) {
        for (id, fields) in reply {
            let position = Position { outbox, id };
            match news(&fields) {
                Ok(news) => {
                    entries.extend(news.into_iter().map(|news| Entry { position: position.clone(), news }))
                }
                Err(why) => set_aside(engine, &position, &fields, &why).await?,
            }
        }
    }
    Ok(entries)
}

/// Moves an entry out of the way, as it is.
async fn set_aside(
    engine: &RedisEngine,
    Position { outbox, id }: &Position,
    fields: &[Vec<u8>],
    why: &EngineError,
) -> Result<()> {
    let (from, to) = (engine.keys.outbox(*outbox), engine.keys.unreadable(*outbox));
    tracing::error!("nobody can be told what is in entry {id} of {from}, it is kept in {to}: {why}");
    let mut pipe = pipe();
    pipe.atomic().cmd("XADD").arg(to).arg("*").arg(fields).ignore();
    pipe.xdel(from, &[id]).ignore();
    engine.topology.send("set_aside", &pipe).await
}

/// What the fields of an entry say.
pub(super) fn news(fields: &[Vec<u8>]) -> Result<Vec<News>> {
    let news = fields.chunks(2).map(|pair| {
        let texts = pair.iter().map(|text| std::str::from_utf8(text).unwrap_or_default());
        match *texts.collect::<Vec<&str>>() {
            ["record", json] => from_json("a record in the outbox", json).map(News::Record),
            ["blind", interval] => parse_interval(interval).map(News::Blind),
            [unit, facts] => opened(unit, facts)
                .map(News::Record)
                .ok_or_else(|| EngineError::Damaged("it says nothing known".to_owned())),
            _ => Err(EngineError::Damaged("a field has no value".to_owned())),
        }
    });
    news.collect()
}

fn opened(unit: &str, facts: &str) -> Option<OfflineRecord> {
    encoding::decode(facts)?.open_record(&unit.parse().ok()?)
}

/// Removes entries that were dealt with.
pub(super) async fn settle(engine: &RedisEngine, entries: &[Position]) -> Result<()> {
    let mut pipe = pipe();
    for outbox in 0..engine.keys.outboxes() {
        let of_it = entries.iter().filter(|entry| entry.outbox == outbox);
        let mut ids: Vec<&str> = of_it.map(|entry| entry.id.as_str()).collect();
        ids.dedup();
        if !ids.is_empty() {
            pipe.xdel(engine.keys.outbox(outbox), &ids).ignore();
        }
    }
    if pipe.is_empty() { Ok(()) } else { engine.topology.send("settle", &pipe).await }
}
