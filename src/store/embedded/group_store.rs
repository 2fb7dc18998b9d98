//! The outbox and groups of the embedded engine; each call goes to the module that has them.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::{EmbeddedEngine, groups, members, outbox, reminders, rescheduling};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::{
    Capacity, Destinations, GroupStore, Join, JoinResult, Membership, NotifiedSilence, OutboxEntry, Position,
    Result,
};

#[async_trait]
impl GroupStore for EmbeddedEngine {
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>> {
        outbox::oldest(self, outboxes, limit).await
    }

    async fn newest_entries(&self, outboxes: &[u16]) -> Result<Vec<Position>> {
        outbox::newest(self, outboxes).await
    }

    async fn oldest_up_to(&self, entries: &[Position]) -> Result<Vec<Position>> {
        outbox::oldest_up_to(self, entries).await
    }

    async fn join(
        &self,
        joins: &[Join],
        destinations: &Destinations,
        _: &Capacity,
        now: Timestamp,
    ) -> Result<JoinResult> {
        groups::join(self, joins, destinations, now).await
    }

    async fn remove_entries(&self, entries: &[Position], _groups: &BTreeSet<u16>) -> Result<()> {
        outbox::remove(self, entries).await
    }

    async fn seal(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize> {
        groups::seal(self, partitions, destinations, now).await
    }

    async fn first_seal(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        groups::first_seal(self, partitions).await
    }

    async fn groups_due(&self, groups: &[String]) -> Result<Vec<Option<Timestamp>>> {
        groups::due(self, groups).await
    }

    async fn remind(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize> {
        reminders::remind(self, partitions, destinations, now).await
    }

    async fn first_reminder(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        reminders::first(self, partitions).await
    }

    async fn reschedule(
        &self,
        partitions: &[u16],
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<()> {
        rescheduling::reschedule(self, partitions, destinations, now).await
    }

    async fn memberships(&self, records: &[&OfflineRecord]) -> Result<Vec<Vec<Membership>>> {
        members::memberships(self, records).await
    }

    async fn lasting(
        &self,
        group: &str,
        from: Timestamp,
        before: Option<Timestamp>,
    ) -> Result<Vec<RecordId>> {
        members::lasting(self, group, from, before).await
    }

    async fn add_receiver(
        &self,
        _partition: u16,
        receiver: &str,
        silences: &[NotifiedSilence],
    ) -> Result<()> {
        members::add_receiver(self, receiver, silences).await
    }
}
