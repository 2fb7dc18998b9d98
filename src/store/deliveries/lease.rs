//! Leases of deliveries: an instance takes due deliveries for a limited time.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::StoredDeliveries;
use crate::clock::Timestamp;
use crate::store::documents::Document;
use crate::store::lane::Lane;
use crate::store::notification::{Notification, Readable};
use crate::store::{
    AttemptEnd, Cell, ChangeSet, Delivery, EndedLease, EngineError, Index, IndexEntry, MAX_STEP,
    ReceiverName, Result, Table, Unreadable,
};

/// The number of notifications that are read at once if they may be large: ten with ten thousand members are thirty
/// megabytes.
const BODIES: usize = 10;
/// Notifications of at most this many bytes on average are all read at once.
const SMALL: usize = 4 << 10;
/// After this many bytes of notifications, the other groups stay due.
const MAX_BYTES: usize = 8 << 20;

/// A group whose first notification may be leased.
struct DueGroup {
    entry: IndexEntry,
    lane: Document<Lane>,
}

impl StoredDeliveries {
    /// Leases up to `limit` due deliveries of a receiver in these partitions to the caller until `until`: the first
    /// delivery of each group, so that deliveries of a group stay in order. A delivery that has no content left is
    /// ended instead, and counted as left out. The leases of an embedded engine end with the process.
    pub async fn lease(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Delivery>> {
        let queue = Index::Queue(ReceiverName::of(receiver));
        let limit = limit.min(MAX_STEP);
        let mut due = self.engine.due_entries(queue, partitions, now.as_millis(), limit).await?;
        // The caller has no slot for the rest: if leased, they would wait for the end of the lease.
        due.truncate(limit);
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let leased = self.lease_entries(receiver, due, until).await?;
        self.replicated(&leased).await;
        let left = self.left_out(receiver, leased).await?;
        let (empty, full): (Vec<Delivery>, Vec<Delivery>) =
            left.deliveries.into_iter().partition(Delivery::is_empty);
        if !empty.is_empty() {
            self.delivered(&empty, now).await?;
            self.engine.telemetry().notifications_left_out(receiver, empty.len() as u64);
        }
        // After the deliveries have ended: until then, a delivery that is leased again is left out again.
        self.forget_unnotified(receiver, &left.over).await?;
        Ok(full)
    }

    async fn lease_entries(
        &self,
        receiver: &str,
        entries: Vec<IndexEntry>,
        until: Timestamp,
    ) -> Result<Vec<Delivery>> {
        let queue = Index::Queue(ReceiverName::of(receiver));
        let cell = |IndexEntry { partition, name, .. }: &IndexEntry| Lane::cell(receiver, *partition, name);
        let lanes = self.documents.read_cells(entries.iter().map(cell).collect()).await?;
        let due: Vec<DueGroup> =
            entries.into_iter().zip(lanes).map(|(entry, lane)| DueGroup { entry, lane }).collect();
        let (mut sets, mut deliveries, mut bytes) = (Vec::new(), Vec::new(), 0);
        let (mut rest, mut count) = (due.as_slice(), BODIES);
        while !rest.is_empty() && bytes <= MAX_BYTES {
            let (step, others) = rest.split_at(count.min(rest.len()));
            let firsts: Vec<(&str, &str)> = step.iter().map(DueGroup::first).collect();
            for (due, body) in step.iter().zip(self.bodies(&firsts).await?) {
                if bytes > MAX_BYTES {
                    break;
                }
                bytes += body.as_ref().map_or(0, Vec::len);
                let delivery = self.first_delivery(receiver, due, body).await?;
                let is_taken = delivery.is_some() || due.lane.value.is_none();
                sets.push(due.change(queue, is_taken.then_some(until))?);
                deliveries.push(delivery);
            }
            // If these were small, read the others at once.
            count = if bytes / deliveries.len().max(1) < SMALL { MAX_STEP } else { BODIES };
            rest = others;
        }
        let written = self.documents.write(&sets).await?;
        let leased = deliveries.into_iter().zip(written).filter(|(_, is_written)| *is_written);
        Ok(leased.filter_map(|(delivery, _)| delivery).collect())
    }

    /// The first delivery of a lane; `None`: its notification is lost. A copy of an unreadable notification is
    /// quarantined; a delivery without members ends as left out.
    async fn first_delivery(
        &self,
        receiver: &str,
        due: &DueGroup,
        body: Option<Vec<u8>>,
    ) -> Result<Option<Delivery>> {
        let (Some(body), Some(lane)) = (body, &due.lane.value) else { return Ok(None) };
        let (group, id) = due.first();
        let Readable { error, notification } = Notification::read(group, &body);
        if let Some(why) = error {
            let rest = match &notification {
                Some(_) => "its readable members are delivered",
                None => "none of its members is readable",
            };
            let why = format!("{why}; {rest}, and its group goes on; /api/v1/records lists the records");
            let cell =
                Cell { table: Table::Notifications, partition: due.entry.partition, name: id.to_owned() };
            self.engine.quarantine_cell(&Unreadable::CellInPart(cell, body), &why).await?;
        }
        let delivery = Delivery::of(notification, group, &Delivery::id_of(id, receiver), receiver);
        Ok(Some(Delivery { attempt: lane.attempts.saturating_add(1), ..delivery }))
    }

    /// Extends leases of deliveries that have not ended, until `until`. Answers, in order, which leases the caller
    /// still holds: no other instance has taken the delivery since.
    pub async fn extend_leases(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>> {
        let extended = |delivery: &'_ Arc<Delivery>| EndedLease {
            delivery: delivery.clone(),
            end: AttemptEnd::RetryAt(until),
            attempt: None,
        };
        let extended: Vec<EndedLease> = deliveries.iter().map(extended).collect();
        self.set_next_attempts(&extended.iter().collect::<Vec<_>>(), true).await
    }

    /// Waits until replicas have these leases, if the engine is configured to, before any receiver is notified.
    pub(super) async fn replicated(&self, leased: &[Delivery]) {
        let partitions: BTreeSet<u16> = leased.iter().map(|one| self.partition(one)).collect();
        if !partitions.is_empty() {
            self.engine.replicated(partitions).await;
        }
    }
}

impl DueGroup {
    /// The group, and the id of its first notification.
    fn first(&self) -> (&str, &str) {
        (&self.entry.name, self.lane.value.as_ref().map_or("", Lane::first))
    }

    /// With `until`, leases the first notification. Without, the first notification is lost: removes it, and the next
    /// one is due. An entry without a lane leaves the queue.
    fn change(&self, queue: Index, until: Option<Timestamp>) -> Result<ChangeSet> {
        let IndexEntry { name, at, partition } = &self.entry;
        let set = ChangeSet::of(*partition).is_at(queue, name, Some(*at));
        let Some(lane) = &self.lane.value else {
            return Ok(self.lane.expect_in(set).enter(queue, name, None));
        };
        let after = match until {
            None => lane.without_first(),
            Some(_) => {
                let attempts = lane.attempts.saturating_add(1);
                Some(Lane { attempts, is_leased: true, ..lane.clone() })
            }
        };
        let at = until.map(Timestamp::as_millis).or_else(|| after.as_ref().map(|_| *at));
        Ok(self.lane.change_in(set, after.as_ref())?.enter(queue, name, at))
    }
}

/// The error of a lane that changes too often.
pub(super) fn lanes_contended(receiver: &str) -> EngineError {
    EngineError::contended(format_args!("the lanes of {receiver}"))
}
