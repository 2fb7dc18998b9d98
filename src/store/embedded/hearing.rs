//! How far Rollcall has heard, and the ledger of blind intervals: a change is on disk before the answer wherever
//! a caller relies on it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::EmbeddedEngine;
use crate::clock::{Clock, Timestamp};
use crate::presence::{Gap, Hearing, Probed, ShareMember, Subscription};
use crate::store::{Advance, HearingStore, Result};

#[async_trait]
impl HearingStore for EmbeddedEngine {
    async fn hearing(&self) -> Result<Hearing> {
        let heard = self.memory.heard();
        Ok(Hearing {
            heard: heard.state.heard,
            ledger: heard.ledger.clone(),
            filters: Arc::new(heard.filters.clone()),
            ..Hearing::default()
        })
    }

    /// An ordinary canary stays in memory until the next heartbeats are written. The very first is written
    /// at once: without it a crash would not know from when on it lost something. So is a blind interval;
    /// if that fails it stands in memory, and is written when the disk allows. A directory that was removed is told
    /// as a blind interval, however short, as a server is that lost its data.
    async fn advance(&self, subscription: &Subscription, sent_at: Timestamp, gap: Gap) -> Result<Advance> {
        if self.database_file.was_removed() {
            self.memory.heard().is_removed = true;
        }
        let (is_first, advance) = {
            let mut heard = self.memory.heard();
            (heard.state.heard.is_none(), heard.advance(subscription, sent_at, gap, Clock::machine()))
        };
        if is_first || matches!(advance, Advance::Heard(Some(_))) {
            self.writer.flush("advance").await?;
        }
        Ok(advance)
    }

    /// In memory as a canary is, unless a kind was blind, or was never heard before.
    async fn prove(&self, probed: &[Probed]) -> Result<()> {
        if self.memory.heard().prove(probed) {
            self.writer.flush("prove").await?;
        }
        Ok(())
    }

    async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>> {
        Ok(self.memory.heard().heard_by(client_id, Clock::machine()))
    }

    async fn attend(&self, member: &ShareMember, now: Timestamp, release: Duration) -> Result<()> {
        self.memory.heard().state.attend(member, now, release);
        self.writer.flush("attend").await
    }

    fn key(&self) -> &str {
        &self.fleet
    }

    async fn leave(&self, member: &ShareMember) -> Result<()> {
        self.memory.heard().state.depart(member, None);
        self.writer.flush("leave").await
    }

    async fn gone(&self, member: &ShareMember, at: Timestamp) -> Result<bool> {
        let was_member = self.memory.heard().state.depart(member, Some(at));
        self.writer.flush("depart").await?;
        Ok(was_member)
    }
}
