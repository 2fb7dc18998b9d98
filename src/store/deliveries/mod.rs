//! Deliveries: notifications on their way to receivers, from the queue to their end.
//!
//! A group has one lane for each receiver. Only the first notification of a lane is leased, so the notifications of a
//! group arrive in order. A notification is stored once for all its receivers, and leaves with the last delivery.
//!
//! Everything is a cell or an entry of an index, in the partition of the group. A caller reads a lane, decides, and
//! writes the change if the lane is unchanged; otherwise it reads and decides again.

use std::sync::Arc;

use super::lane::Lane;
use super::notification::Notification;
use super::{
    Cell, Delivery, Documents, GroupEngine, HearingStore, Index, ReceiverName, Result, StoredGroups, Table,
    partition_of_group,
};
use crate::clock::Timestamp;
use crate::telemetry::Backlog;

mod absence;
mod ends;
mod fallback;
mod judged;
mod lease;
mod letters;
mod replay;
mod waiting;

pub use letters::Discarded;

pub trait DeliveryEngine: GroupEngine + HearingStore {}

impl<T: GroupEngine + HearingStore> DeliveryEngine for T {}

/// The deliveries of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct StoredDeliveries {
    engine: Arc<dyn DeliveryEngine>,
    documents: Documents,
    groups: StoredGroups,
}

impl StoredDeliveries {
    pub fn new(engine: Arc<dyn DeliveryEngine>) -> StoredDeliveries {
        let (documents, groups) = (Documents::new(engine.clone()), StoredGroups::new(engine.clone()));
        StoredDeliveries { engine, documents, groups }
    }

    pub fn partitions(&self) -> u16 {
        self.engine.partitions()
    }

    /// When the next delivery of a receiver is due in these partitions.
    pub async fn first_lease(&self, partitions: &[u16], receiver: &str) -> Result<Option<Timestamp>> {
        self.documents.first(Index::Queue(ReceiverName::of(receiver)), partitions).await
    }

    /// How many groups of a receiver wait for a delivery in these partitions, and how many dead letters it has there.
    pub async fn backlog(&self, partitions: &[u16], receiver: &str) -> Result<Backlog> {
        let of = ReceiverName::of(receiver);
        let waiting = self.engine.sizes(Index::Queue(of), partitions);
        let dead = self.engine.sizes(Index::Dead(of), partitions);
        let (waiting, dead) = tokio::try_join!(waiting, dead)?;
        let sum = |sizes: Vec<i64>| sizes.into_iter().sum::<i64>() as u64;
        Ok(Backlog { waiting: sum(waiting), dead: sum(dead) })
    }

    fn partition(&self, delivery: &Delivery) -> u16 {
        partition_of_group(&delivery.group.key, self.partitions())
    }

    fn all_partitions(&self) -> Vec<u16> {
        (0..self.partitions()).collect()
    }

    /// The lane of a delivery.
    fn lane(&self, delivery: &Delivery) -> Cell {
        Lane::cell(&delivery.receiver, self.partition(delivery), &delivery.group.key)
    }

    /// The stored notifications of these groups and ids, in order.
    async fn bodies(&self, of: &[(&str, &str)]) -> Result<Vec<Option<Vec<u8>>>> {
        let cell = |(group, id): &(&str, &str)| {
            let partition = partition_of_group(group, self.partitions());
            Cell { table: Table::Notifications, partition, name: (*id).to_owned() }
        };
        self.engine.read_cells(&of.iter().map(cell).collect::<Vec<_>>()).await
    }
}

/// A waiting delivery, with the readable part of its notification.
fn waiting_delivery(receiver: &str, group: &str, id: &str, body: Option<Vec<u8>>) -> Delivery {
    let notification = body.and_then(|body| Notification::read(group, &body).notification);
    Delivery::of(notification, group, &Delivery::id_of(id, receiver), receiver)
}
