//! The outbox: transitions that have not joined their groups yet.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Layout, Result};
use crate::presence::{Interval, OfflineRecord};

/// An event that alerting may notify operators of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxEvent {
    /// A record was opened or closed.
    Record(OfflineRecord),
    /// Rollcall was blind for long. The interval may still last.
    Blind(Interval),
    /// The engine lost the fleet, or a part of it.
    DataLost(DataLoss),
}

/// [`OutboxEvent::Record`] with the JSON of its record, which an engine stores beside it.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EncodedEvent<'a> {
    Record(&'a RawValue),
}

impl OutboxEvent {
    pub fn record(&self) -> Option<&OfflineRecord> {
        match self {
            OutboxEvent::Record(record) => Some(record),
            OutboxEvent::Blind(_) | OutboxEvent::DataLost(_) => None,
        }
    }

    pub(super) fn into_record(self) -> Option<OfflineRecord> {
        match self {
            OutboxEvent::Record(record) => Some(record),
            OutboxEvent::Blind(_) | OutboxEvent::DataLost(_) => None,
        }
    }

    pub(super) fn interval(&self) -> Option<Interval> {
        match self {
            OutboxEvent::Record(_) => None,
            OutboxEvent::Blind(interval) | OutboxEvent::DataLost(DataLoss { interval, .. }) => {
                Some(*interval)
            }
        }
    }
}

/// A loss of data, as an instance noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLoss {
    /// From the last moment that was heard before the loss up to the moment at which it was noticed.
    pub interval: Interval,
    /// The number of partitions that were lost, if others are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u16>,
}

/// An event in the outbox.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxEntry {
    /// Passed to [`OutboxStore::remove_entries`] after the event has joined its group. Events that were written in one
    /// step may share a position.
    pub position: Position,
    pub event: OutboxEvent,
}

/// The position of an entry in the outboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The outbox that holds the entry, as the engine numbers outboxes.
    pub outbox: u16,
    /// The id of the entry in its outbox.
    pub id: String,
}

/// The outboxes.
#[async_trait]
pub trait OutboxStore: Layout {
    /// The oldest events of these outboxes: about `limit`, and all other events of the same positions. They stay
    /// until [`OutboxStore::remove_entries`] removes them. Each partition has an outbox; the outbox of hearing has
    /// the number after the last partition.
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<OutboxEntry>>;

    /// The newest entry of each of these outboxes; none for an empty outbox.
    async fn newest_entries(&self, outboxes: &[u16]) -> Result<Vec<Position>>;

    /// For each of these entries, the oldest entry of its outbox that is not newer; none if all of them have left it.
    async fn oldest_up_to(&self, entries: &[Position]) -> Result<Vec<Position>>;

    /// Removes entries from the outboxes, after all events of their positions have joined groups in these partitions.
    /// An engine of several servers may remove them later; until then it returns them again only if a group may have
    /// lost them.
    async fn remove_entries(&self, entries: &[Position], groups: &BTreeSet<u16>) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::store::json::to_json;

    #[test]
    fn an_event_with_an_encoded_record_is_the_event_of_that_record() {
        let at = Timestamp::from_millis(1_732_147_200_000);
        let record = OfflineRecord::open("detector:a\"b".parse().unwrap(), at, at, at);
        let json = serde_json::value::to_raw_value(&record).unwrap();
        let event = to_json(&EncodedEvent::Record(&json)).unwrap();
        assert_eq!(event, to_json(&OutboxEvent::Record(record)).unwrap());
    }
}
