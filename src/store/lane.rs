//! The lane of a group: its notifications that wait for one receiver, in order.

use serde::{Deserialize, Serialize};

use super::documents::{Document, TableValue};
use super::{Cell, ChangeSet, EngineError, Index, ReceiverName, Result, Table};
use crate::clock::Timestamp;

/// Stored as words: the number of attempts at the first notification, followed by `+` during an attempt, and the ids
/// of all notifications. A storm has a lane for each unit, and JSON would take half as much again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lane {
    pub attempts: u32,
    pub is_leased: bool,
    pub notifications: Vec<String>,
}

impl TableValue for Lane {
    type Name = String;
    const TABLE: Table = Table::Lanes(ReceiverName::ANY);

    fn encode_into(&self, stored: &mut Vec<u8>) -> Result<()> {
        stored.extend_from_slice(self.attempts.to_string().as_bytes());
        stored.extend_from_slice(if self.is_leased { b"+" } else { b"" });
        for notification in &self.notifications {
            stored.push(b' ');
            stored.extend_from_slice(notification.as_bytes());
        }
        Ok(())
    }

    fn decode(stored: &[u8]) -> Result<Lane> {
        let read = || {
            let mut words = str::from_utf8(stored).ok()?.split(' ');
            let (count, is_leased) = words
                .next()
                .map(|word| word.strip_suffix('+').map_or((word, false), |count| (count, true)))?;
            let notifications: Vec<String> = words.map(str::to_owned).collect();
            let is_complete = !notifications.is_empty() && notifications.iter().all(|id| !id.is_empty());
            is_complete.then_some(Lane { attempts: count.parse().ok()?, is_leased, notifications })
        };
        read().ok_or_else(|| EngineError::Damaged("it is no lane".to_owned()))
    }
}

impl Lane {
    pub fn cell(receiver: &str, partition: u16, group: &str) -> Cell {
        Cell { table: Table::Lanes(ReceiverName::of(receiver)), partition, name: group.to_owned() }
    }

    pub fn first(&self) -> &str {
        self.notifications.first().map_or("", String::as_str)
    }

    pub fn has(&self, notification: &str) -> bool {
        self.notifications.iter().any(|known| known == notification)
    }

    /// The lane without its first notification; `None`: it was the last.
    pub fn without_first(&self) -> Option<Lane> {
        let notifications = self.notifications.get(1..).unwrap_or_default().to_vec();
        (!notifications.is_empty()).then_some(Lane { notifications, ..Lane::default() })
    }
}

/// The number of receivers that have not got a notification yet; one if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Owed(pub u64);

impl TableValue for Owed {
    type Name = String;
    const TABLE: Table = Table::Owed;
}

/// A change-set that also stores how many receivers a new notification waits for.
pub(super) fn owe(set: ChangeSet, notification: &str, receivers: usize) -> ChangeSet {
    if receivers < 2 {
        return set;
    }
    set.put(Table::Owed, notification, Some(receivers.to_string().as_bytes()))
}

/// A change-set that also appends notifications to a lane. A new lane is due at `at`, or, if it is leased, its lease
/// ends then. An existing lane that is not in the queue is due at `at` as well.
pub(super) fn append(
    set: ChangeSet,
    lane: &Document<Lane>,
    receiver: &str,
    ids: &[&str],
    (at, is_leased): (Timestamp, bool),
) -> Result<ChangeSet> {
    let is_new = lane.value.is_none();
    let mut after = lane.value.clone().unwrap_or(Lane {
        attempts: u32::from(is_leased),
        is_leased,
        notifications: Vec::new(),
    });
    after.notifications.extend(ids.iter().map(|id| (*id).to_owned()));
    let set = lane.change_in(set, Some(&after))?;
    let queue = Index::Queue(ReceiverName::of(receiver));
    Ok(match is_new {
        true => set.enter(queue, &lane.name, Some(at.as_millis())),
        false => set.enter_new(queue, &lane.name, at.as_millis()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_reads_back_and_damaged_text_is_recognised() {
        for (text, attempts, is_leased, count) in [("0 a", 0, false, 1), ("12+ a b:7", 12, true, 2)] {
            let lane = Lane::decode(text.as_bytes()).unwrap();
            assert_eq!(
                (lane.attempts, lane.is_leased, lane.notifications.len()),
                (attempts, is_leased, count)
            );
            assert_eq!(lane.encode().unwrap(), text.as_bytes());
        }
        for text in ["", "0", "0 ", "+ a", "-1 a", "1++ a", "0  a", "a"] {
            assert!(Lane::decode(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
