//! Notifications that concern no unit: of blindness, and of the mass-offline breaker.

use super::buffer::Buffers;
use crate::clock::Timestamp;
use crate::presence::Interval;
use crate::routing::{Destination, Destinations};
use crate::store::{Capacity, Group, Join, OutboxEvent, Result, StoredGroups};

#[derive(Clone)]
pub(super) struct FleetNotices {
    pub destination: Destination,
    pub groups: StoredGroups,
    pub buffers: Buffers,
}

impl FleetNotices {
    /// Lets an interval join its group for all receivers of the destination. Its beginning identifies it: several
    /// instances that notice it write the same.
    pub async fn join(&self, group: &Group, interval: Interval, now: Timestamp) -> Result<()> {
        self.join_for(&self.destination.receivers, group, interval, now).await
    }

    /// Lets an interval join its group for some of the receivers.
    pub async fn join_for(
        &self,
        receivers: &[String],
        group: &Group,
        interval: Interval,
        now: Timestamp,
    ) -> Result<()> {
        let join = Join { groups: vec![group.clone()], event: OutboxEvent::Blind(interval) };
        let destinations = Destinations::all(self.destination.pace, receivers);
        self.groups.join(&[join], &destinations, &Capacity::NONE, now).await?;
        self.buffers.notify();
        Ok(())
    }
}
