//! Deliveries for operators in an engine on Redis; each call goes to the module that has them.

use async_trait::async_trait;

use super::{RedisEngine, absence, kept, receivers, replay};
use crate::clock::Timestamp;
use crate::store::{
    Backlog, DeadLetter, Delivery, DeliveryRecords, Discarded, ListOrder, Result, WaitingPage,
};

#[async_trait]
impl DeliveryRecords for RedisEngine {
    async fn register_receivers(&self, names: &[String], now: Timestamp) -> Result<()> {
        receivers::register_receivers(self, names, now).await
    }

    async fn kept(&self) -> Result<Vec<(String, Backlog)>> {
        receivers::kept(&self.topology, &self.keys).await
    }

    async fn waiting(&self, receiver: &str, after: Option<&str>) -> Result<WaitingPage> {
        kept::waiting(self, receiver, after).await
    }

    async fn have_waiting(&self, receiver: &str, groups: &[String]) -> Result<Vec<bool>> {
        kept::have_waiting(self, receiver, groups).await
    }

    async fn replay_all(&self, deliveries: &[Delivery], now: Timestamp) -> Result<Vec<bool>> {
        replay::replay_all(self, deliveries, now).await
    }

    async fn leave_out(&self, receiver: &str, deliveries: Vec<Delivery>) -> Result<Vec<Delivery>> {
        Ok(absence::leave_out(self, receiver, deliveries).await?.deliveries)
    }

    async fn dead_letters_between(
        &self,
        receiver: &str,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
        order: ListOrder,
    ) -> Result<Vec<DeadLetter>> {
        kept::dead_letters_between(self, receiver, (from, until), limit, order).await
    }

    async fn letter(&self, receiver: &str, notification: &str) -> Result<Option<DeadLetter>> {
        kept::letter(self, receiver, notification).await
    }

    async fn purge(&self, letters: &[DeadLetter]) -> Result<usize> {
        kept::purge(self, letters).await
    }

    async fn discard(&self, receiver: &str, now: Timestamp) -> Result<Discarded> {
        receivers::discard(self, receiver, now).await
    }
}
