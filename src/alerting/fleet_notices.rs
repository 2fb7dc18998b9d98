//! Notifications that concern no unit: of blindness, and of the mass-offline breaker.

use super::buffer::Buffers;
use crate::clock::Timestamp;
use crate::presence::Interval;
use crate::routing::Destinations;
use crate::store::{Capacity, Group, Join, NotifiedSilence, OutboxEvent, Result, StoredGroups};

#[derive(Clone)]
pub(super) struct FleetNotices {
    pub destinations: Destinations,
    pub groups: StoredGroups,
    pub buffers: Buffers,
}

impl FleetNotices {
    /// Lets an interval join its group for all receivers of blindness. Its beginning identifies it: several instances
    /// that notice it write the same.
    pub async fn join(&self, group: &Group, interval: Interval, now: Timestamp) -> Result<()> {
        self.join_except(&[], group, interval, now).await
    }

    /// Lets an interval join its group. `notified`: receivers that were notified of it already, and are notified of its
    /// end like the others.
    pub async fn join_except(
        &self,
        notified: &[String],
        group: &Group,
        interval: Interval,
        now: Timestamp,
    ) -> Result<()> {
        let blind = self.destinations.blind();
        let mut receivers = blind.receivers.clone();
        receivers.retain(|name| !notified.contains(name));
        let event = OutboxEvent::Blind(interval);
        let known = [NotifiedSilence::of(&group.key, &event)];
        let join = Join { groups: vec![group.clone()], event };
        let all = self.destinations.receivers().to_vec();
        let destinations = Destinations::all(blind.pace, &receivers).with_receivers(all);
        self.groups.join(&[join], &destinations, &Capacity::NONE, now).await?;
        for receiver in notified {
            self.groups.add_receiver(receiver, &known).await?;
        }
        self.buffers.notify();
        Ok(())
    }
}
