//! The outbox: what happened and has joined no group yet, in one stream for each partition and one
//! for hearing.
//!
//! An entry holds what was written in one step, as a field and a value for each piece of news: a
//! hundred records in one entry cost the server a third of a hundred entries. A record that was opened
//! is the name of its unit and the facts, one that was closed is `record` and the record (JSON), an
//! interval is `blind` and its ends.
//!
//! An entry that cannot be read would hold up all others for good. It is set aside, with an error in the log:
//! another program wrote it, or a later version of Rollcall.

use std::ops::RangeInclusive;

use redis::pipe;

use super::RedisEngine;
use super::ledger::parse_interval;
use crate::presence::OfflineRecord;
use crate::store::json::from_json;
use crate::store::{EngineError, Entry, OutboxEvent, Position, Result, encoding};

/// As how many pieces of news an entry counts when entries are asked for. In a storm it holds a hundred, on a
/// quiet day one; but a storm may follow upon those of a quiet day.
const TOGETHER: RangeInclusive<usize> = 10..=100;

/// An entry as the server has it: its id, then fields and values in turn.
pub(super) type Stored = (String, Vec<Vec<u8>>);

/// The oldest news of these outboxes, whole entries.
///
/// How many entries that is shows when some of them were read. They are taken to be large at first, so that in
/// a storm a question for a thousand pieces of news is about that, and others are served half a millisecond later.
pub(super) async fn oldest(engine: &RedisEngine, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    let (mut entries, mut together) = (0, *TOGETHER.end());
    let mut left: Vec<(u16, String)> = outboxes.iter().map(|outbox| (*outbox, "-".to_owned())).collect();
    while !left.is_empty() && found.len() < limit {
        let each = (limit - found.len()).div_ceil(together * left.len());
        let mut pipe = pipe();
        for (outbox, from) in &left {
            pipe.xrange_count(engine.keys.outbox(*outbox), from, "+", each);
        }
        let replies: Vec<Vec<Stored>> = engine.topology.send("outbox", &pipe).await?;
        let asked = std::mem::take(&mut left);
        for ((outbox, _), reply) in asked.into_iter().zip(replies) {
            entries += reply.len();
            if let Some((last, _)) = reply.last().filter(|_| reply.len() == each) {
                left.push((outbox, format!("({last}")));
            }
            for (id, fields) in reply {
                let position = Position { outbox, id };
                match news(&fields) {
                    Ok(news) => {
                        found.extend(news.into_iter().map(|news| Entry { position: position.clone(), news }))
                    }
                    Err(why) => set_aside(engine, &position, &fields, &why).await?,
                }
            }
        }
        together = (found.len() / entries.max(1)).clamp(*TOGETHER.start(), *TOGETHER.end());
    }
    Ok(found)
}

/// Moves an entry out of the way, as it is.
async fn set_aside(
    engine: &RedisEngine,
    Position { outbox, id }: &Position,
    fields: &[Vec<u8>],
    why: &EngineError,
) -> Result<()> {
    let (from, to) = (engine.keys.outbox(*outbox), engine.keys.unreadable(*outbox));
    tracing::error!(
        "entry {id} of the outbox {from} cannot be read and is not told, it is kept in {to}: {why}"
    );
    let mut pipe = pipe();
    pipe.atomic().cmd("XADD").arg(to).arg("*").arg(fields).ignore();
    pipe.xdel(from, &[id]).ignore();
    engine.topology.send("set_aside", &pipe).await
}

/// What the fields of an entry say.
pub(super) fn news(fields: &[Vec<u8>]) -> Result<Vec<OutboxEvent>> {
    let news = fields.chunks(2).map(|pair| {
        let texts = pair.iter().map(|text| std::str::from_utf8(text).unwrap_or_default());
        match *texts.collect::<Vec<&str>>() {
            ["record", json] => from_json("a record in the outbox", json).map(OutboxEvent::Record),
            ["blind", interval] => parse_interval(interval).map(OutboxEvent::Blind),
            [unit, facts] => opened(unit, facts)
                .map(OutboxEvent::Record)
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
