//! How far Rollcall has heard. Decisions are made by what memory says; what stands on disk follows
//! with the heartbeats that it vouches for, and is what counts after a crash.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::EmbeddedEngine;
use super::beats::Flush;
use super::fault::Fault;
use super::memory::Memory;
use super::writer::Job;
use crate::clock::Timestamp;
use crate::engine::json::to_json;
use crate::engine::{EngineError, HearingStore, News, Result, USEFUL};
use crate::presence::{Hearing, Interval};

#[async_trait]
impl HearingStore for EmbeddedEngine {
    async fn hearing(&self) -> Result<Hearing> {
        let heard = self.memory.heard().clone();
        Ok(Hearing { heard: heard.at, ledger: heard.ledger, settle: Duration::ZERO })
    }

    async fn advance(&self, sent_at: Timestamp, gap: Duration, tell: Duration) -> Result<Option<Interval>> {
        // One after the other: an interval begins where the one before ended.
        let _turn = self.advancing.lock().await;
        let from = {
            let mut heard = self.memory.heard();
            match heard.at.filter(|before| sent_at.since(*before) > gap) {
                Some(before) => before,
                None => {
                    heard.advance(sent_at, None, Timestamp::ZERO);
                    return Ok(None);
                }
            }
        };
        let blind = Interval { from, to: sent_at };
        let news = if blind.length() > tell { Some(to_json(&News::Blind(blind))?) } else { None };
        let (answer, answered) = oneshot::channel();
        let flush = Flush::new(self.beats.clone(), self.telemetry.clone()).heard(sent_at);
        let job = Advance { memory: self.memory.clone(), flush, blind, news, answer };
        self.writer.finish("advance", Box::new(job), answered).await.map(Some)
    }
}

/// Writes a blind interval, and everything that was heard before its end.
struct Advance {
    memory: Arc<Memory>,
    flush: Flush,
    blind: Interval,
    news: Option<String>,
    answer: oneshot::Sender<Result<Interval>>,
}

impl Job for Advance {
    fn write(&mut self, database: &Connection) -> std::result::Result<(), Fault> {
        self.flush.write(database)?;
        let Interval { from, to } = self.blind;
        let useful_since = (to - USEFUL).as_millis();
        database.prepare_cached("DELETE FROM blind WHERE until <= ?")?.execute([useful_since])?;
        let insert = "INSERT INTO blind(start, until) VALUES(?, ?)";
        database.prepare_cached(insert)?.execute([from.as_millis(), to.as_millis()])?;
        if let Some(news) = &self.news {
            let insert = "INSERT INTO outbox(partition, news) VALUES(?, ?)";
            database.prepare_cached(insert)?.execute(params![self.memory.partitions(), news])?;
        }
        Ok(())
    }

    fn undo(&mut self) {
        self.flush.undo();
    }

    fn finish(self: Box<Self>) {
        let Advance { memory, flush, blind, answer, .. } = *self;
        flush.finished();
        memory.heard().advance(blind.to, Some(blind), blind.to - USEFUL);
        let _ = answer.send(Ok(blind));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        let _ = self.answer.send(Err(why));
    }
}
