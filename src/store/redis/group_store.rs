//! The outbox and groups of an engine on Redis. Calls wait for replicas here; other modules do the rest.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::replication::Waited;
use super::{RedisEngine, groups, members, outbox, reminders, rescheduling};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::{
    Capacity, Destinations, EngineError, GroupStore, Join, JoinResult, Membership, NotifiedSilence,
    OutboxEntry, Position, Result,
};

#[async_trait]
impl GroupStore for RedisEngine {
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>> {
        let entries = outbox::oldest(self, outboxes, limit).await?;
        // The outbox after the last partition is that of hearing.
        let outboxes = entries.iter().map(|entry| entry.position.outbox);
        let partitions: BTreeSet<u16> = outboxes.filter(|outbox| *outbox < self.keys.partitions()).collect();
        self.wait_for_replicas(partitions).await;
        Ok(entries)
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
        capacity: &Capacity,
        now: Timestamp,
    ) -> Result<JoinResult> {
        let joined = groups::join(self, joins, destinations, capacity, now).await?;
        self.wait_for_replicas_of(&joined.deliveries).await;
        Ok(joined)
    }

    async fn remove_entries(&self, entries: &[Position], groups: &BTreeSet<u16>) -> Result<()> {
        // On a single server the outbox and the groups are lost together.
        if self.topology.has_parts() && self.wait_for_replicas(groups.clone()).await == Waited::PrimaryIsAway
        {
            let why = "a server died that has groups which events joined; they join again on the one that takes over";
            return Err(EngineError::Passing(why.to_owned()));
        }
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

    async fn add_receiver(&self, partition: u16, receiver: &str, silences: &[NotifiedSilence]) -> Result<()> {
        members::add_receiver(self, partition, receiver, silences).await
    }
}
