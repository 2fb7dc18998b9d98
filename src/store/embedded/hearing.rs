//! How far Rollcall has heard, and the ledger of blind intervals. A change on which a caller relies is on disk before
//! the answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::EmbeddedEngine;
use crate::clock::Timestamp;
use crate::presence::{Gap, Hearing, Probed, ShareMember, Subscription};
use crate::store::{Advance, HearingStore, Result};

#[async_trait]
impl HearingStore for EmbeddedEngine {
    async fn hearing(&self) -> Result<Hearing> {
        let heard = self.memory.hearing();
        Ok(Hearing {
            heard: heard.state.heard,
            ledger: heard.ledger.clone(),
            filters: Arc::new(heard.filters.clone()),
            skipped: self.leases.steps().skipped,
            ..Hearing::default()
        })
    }

    /// An ordinary canary stays in memory until the next heartbeats are written. The very first canary is written at
    /// once: without it the start of the time that a crash loses would be unknown. A blind interval is written at
    /// once too; if that fails, it stays in memory and is written when the disk allows it. A removed directory is a
    /// loss of data, of which operators are notified, and a blind interval, however short.
    async fn advance(&self, subscription: &Subscription, sent_at: Timestamp, gap: Gap) -> Result<Advance> {
        if self.database_file.was_removed() {
            self.memory.hearing().is_removed = true;
        }
        let (is_first, (advance, is_kind_blind)) = {
            let mut heard = self.memory.hearing();
            (heard.state.heard.is_none(), heard.advance(subscription, sent_at, gap, self.leases.now()))
        };
        if is_first || is_kind_blind || matches!(advance, Advance::Heard(Some(_))) {
            self.writer.flush("advance").await?;
        }
        Ok(advance)
    }

    /// A proof stays in memory, as a canary does, unless a kind was blind.
    async fn prove(&self, probed: &[Probed]) -> Result<()> {
        if self.memory.hearing().prove(probed) {
            self.writer.flush("prove").await?;
        }
        Ok(())
    }

    async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>> {
        Ok(self.memory.hearing().heard_by(client_id, self.leases.now()))
    }

    async fn attend(&self, member: &ShareMember, now: Timestamp, release: Duration) -> Result<()> {
        self.memory.hearing().state.attend(member, now, release);
        self.writer.flush("attend").await
    }

    fn key(&self) -> &str {
        &self.fleet
    }

    async fn depart(&self, member: &ShareMember, dropped: Option<Timestamp>) -> Result<bool> {
        let was_member = self.memory.hearing().state.depart(member, dropped);
        self.writer.flush("depart").await?;
        Ok(was_member)
    }
}
