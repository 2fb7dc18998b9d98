//! How far Rollcall has heard, and the ledger of blind intervals.

use std::time::Duration;

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::engine::{EngineError, HearingStore, Result, USEFUL};
use crate::presence::{Hearing, Interval, Ledger};

#[async_trait]
impl HearingStore for RedisEngine {
    async fn hearing(&self) -> Result<Hearing> {
        let mut known = self.ledger.lock().await;
        let mut short = pipe();
        short.hmget(self.keys.heard(), &["at", "ledger"]);
        let ((heard, version),): ((Option<i64>, Option<i64>),) =
            self.topology.send("hearing", &short).await?;
        if version.unwrap_or(0) != known.0 {
            *known = self.read_ledger().await?;
        } else {
            known.1.heard = heard.map(Timestamp::from_millis);
        }
        Ok(known.1.clone())
    }

    async fn advance(&self, sent_at: Timestamp, gap: Duration, tell: Duration) -> Result<Option<Interval>> {
        let known = self.ledger.lock().await.1.heard;
        let mut script = self.scripts.advance.prepare_invoke();
        script.key(self.keys.heard()).key(self.keys.blind());
        script.key(self.keys.outbox(self.keys.partitions()));
        script.arg(sent_at.as_millis()).arg(gap.as_millis() as u64).arg(tell.as_millis() as u64);
        script.arg((sent_at - USEFUL).as_millis());
        script.arg(known.map(|heard| heard.as_millis().to_string()).unwrap_or_default());
        let answer: Vec<String> = self.topology.run("advance", &script).await?;
        match answer.as_slice() {
            [from, to] => parse_interval(&format!("{from} {to}")).map(Some),
            _ => Ok(None),
        }
    }
}

impl RedisEngine {
    /// The ledger and how far was heard, as of one moment, with the ledger's version.
    async fn read_ledger(&self) -> Result<(i64, Hearing)> {
        let mut pipe = pipe();
        pipe.atomic().hmget(self.keys.heard(), &["at", "ledger"]).zrange(self.keys.blind(), 0, -1);
        type Answer = ((Option<i64>, Option<i64>), Vec<String>);
        let ((heard, version), intervals): Answer = self.topology.send("ledger", &pipe).await?;
        let intervals: Vec<Interval> =
            intervals.iter().map(|text| parse_interval(text)).collect::<Result<_>>()?;
        let hearing = Hearing {
            heard: heard.map(Timestamp::from_millis),
            ledger: Ledger::new(intervals),
            settle: Duration::ZERO,
        };
        Ok((version.unwrap_or(0), hearing))
    }
}

/// `<from> <to>` in ms.
pub(super) fn parse_interval(text: &str) -> Result<Interval> {
    let parse = |ms: &str| ms.parse().ok().map(Timestamp::from_millis);
    text.split_once(' ')
        .and_then(|(from, to)| Some(Interval { from: parse(from)?, to: parse(to)? }))
        .ok_or_else(|| EngineError::Damaged(format!("the ledger holds {text:?}, which is no blind interval")))
}
