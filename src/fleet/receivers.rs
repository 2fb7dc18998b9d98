//! Receivers as operators see them: waiting deliveries, dead letters, and whether each takes notifications.
//!
//! Every instance notes how its attempts end, and regularly writes that into a state that all instances share. So any
//! instance, and a command, can say when a receiver took its last notification, also after a restart. No decision
//! depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::store::{Cells, Documents, MAX_CHANGES, Result, StoredDeliveries, Table, TableValue};

/// The longest reason of a failure that is kept, in bytes.
const MAX_REASON: usize = 400;
/// How the attempts at one receiver ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceiverHealth {
    pub last_success: Option<Timestamp>,
    pub last_failure: Option<Timestamp>,
    /// The reason of the last failure.
    pub why: String,
    /// The first failure after the last success.
    pub failing_since: Option<Timestamp>,
}

impl ReceiverHealth {
    fn succeeded(&mut self, at: Timestamp) {
        self.last_success = self.last_success.max(Some(at));
        self.failing_since = None;
    }

    fn failed(&mut self, at: Timestamp, why: &str) {
        self.last_failure = self.last_failure.max(Some(at));
        why[..why.floor_char_boundary(MAX_REASON)].clone_into(&mut self.why);
        self.failing_since.get_or_insert(at);
    }

    /// The health that two instances saw, together. A success of either ends the failures before it.
    fn and(self, other: ReceiverHealth) -> ReceiverHealth {
        let last_success = self.last_success.max(other.last_success);
        let since = [self.failing_since, other.failing_since].into_iter().flatten();
        let failing_since = since.filter(|since| Some(*since) > last_success).min();
        let newer = if self.last_failure > other.last_failure { self } else { other };
        ReceiverHealth { last_success, failing_since, ..newer }
    }
}

impl TableValue for ReceiverHealth {
    type Name = String;
    const TABLE: Table = Table::Receivers;
}

/// The outcomes that this instance saw and has not written yet.
pub struct ReceiverHealths {
    documents: Documents,
    seen: Mutex<BTreeMap<String, ReceiverHealth>>,
}

impl ReceiverHealths {
    pub fn new(cells: Arc<dyn Cells>) -> ReceiverHealths {
        ReceiverHealths { documents: Documents::new(cells), seen: Mutex::default() }
    }

    /// Notes how an attempt ended; `failure`: why it failed.
    pub fn note(&self, receiver: &str, failure: Option<&str>, at: Timestamp) {
        let mut seen = self.seen.lock();
        if !seen.contains_key(receiver) {
            seen.insert(receiver.to_owned(), ReceiverHealth::default());
        }
        let Some(health) = seen.get_mut(receiver) else { return };
        match failure {
            None => health.succeeded(at),
            Some(why) => health.failed(at, why),
        }
    }

    /// Writes the outcomes since the last write. Outcomes that were not written, after an error or because other
    /// instances wrote about the same receiver all the time, are part of the next write.
    pub async fn write(&self) -> Result<()> {
        let mut seen = std::mem::take(&mut *self.seen.lock());
        let mut written = Ok(());
        for _ in 0..MAX_CHANGES {
            if seen.is_empty() {
                return Ok(());
            }
            written = self.write_some(&mut seen).await;
            if written.is_err() {
                break;
            }
        }
        let mut newer = self.seen.lock();
        for (name, health) in seen {
            let later = newer.remove(&name).unwrap_or_default();
            newer.insert(name, health.and(later));
        }
        written
    }

    /// Shows what all instances know of these receivers, after a write. An outcome that this instance has seen since is
    /// newer than what is stored, and no outcome comes between.
    pub async fn show(&self, receivers: &[String], show: impl Fn(&str, &ReceiverHealth)) -> Result<()> {
        let stored = self.documents.read::<ReceiverHealth>(receivers).await?;
        let seen = self.seen.lock();
        for stored in stored.iter().filter(|stored| !seen.contains_key(&stored.name)) {
            show(&stored.name, stored.value.as_ref().unwrap_or(&ReceiverHealth::default()));
        }
        Ok(())
    }

    /// Writes outcomes, and removes the written ones from `seen`.
    async fn write_some(&self, seen: &mut BTreeMap<String, ReceiverHealth>) -> Result<()> {
        let names: Vec<String> = seen.keys().cloned().collect();
        let stored = self.documents.read::<ReceiverHealth>(&names).await?;
        let sets = stored.iter().map(|stored| {
            let health = stored.value.clone().unwrap_or_default().and(seen[&stored.name].clone());
            self.documents.change(stored, Some(&health))
        });
        let written = self.documents.write(&sets.collect::<Result<Vec<_>>>()?).await?;
        for (name, _) in names.iter().zip(written).filter(|(_, is_written)| *is_written) {
            seen.remove(name);
        }
        Ok(())
    }
}

/// A receiver in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReceiverLine {
    pub name: String,
    /// Such as `webhook`; `null` for a receiver that is not configured.
    pub r#type: Option<&'static str>,
    /// How many groups wait for a delivery.
    pub waiting: u64,
    pub dead_letters: u64,
    #[serde(flatten)]
    pub health: ReceiverHealth,
}

/// Lists the receivers of a fleet.
#[derive(Clone)]
pub struct Receivers {
    pub records: StoredDeliveries,
    pub documents: Documents,
}

impl Receivers {
    /// The receivers that are configured, with their types, and others that have notifications, by name.
    pub async fn list(&self, configured: &BTreeMap<String, &'static str>) -> Result<Vec<ReceiverLine>> {
        let kept: BTreeMap<_, _> = self.records.kept().await?.into_iter().collect();
        let mut healths = self.documents.of_fleet::<ReceiverHealth>().await?;
        let names: BTreeSet<&String> = configured.keys().chain(kept.keys()).collect();
        let lines = names.into_iter().map(|name| {
            let backlog = kept.get(name).copied().unwrap_or_default();
            ReceiverLine {
                name: name.clone(),
                r#type: configured.get(name).copied(),
                waiting: backlog.waiting,
                dead_letters: backlog.dead,
                health: healths.remove(name).unwrap_or_default(),
            }
        });
        Ok(lines.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Option<Timestamp> {
        Some(Timestamp::from_millis(1000 * second))
    }

    fn health(success: Option<i64>, failure: Option<i64>, since: Option<i64>) -> ReceiverHealth {
        ReceiverHealth {
            last_success: success.and_then(at),
            last_failure: failure.and_then(at),
            why: failure.map(|second| format!("at {second}")).unwrap_or_default(),
            failing_since: since.and_then(at),
        }
    }

    #[test]
    fn a_receiver_fails_from_the_first_failure_after_its_last_success() {
        let mut seen = ReceiverHealth::default();
        for (second, fails) in [(1, true), (2, true), (3, false), (4, true), (5, true)] {
            let at = Timestamp::from_millis(1000 * second);
            if fails { seen.failed(at, &format!("at {second}")) } else { seen.succeeded(at) }
        }
        assert_eq!(seen, health(Some(3), Some(5), Some(4)));
        seen.succeeded(Timestamp::from_millis(6000));
        assert_eq!(seen, health(Some(6), Some(5), None));
    }

    #[test]
    fn what_instances_saw_is_put_together() {
        // (one, other, together)
        let cases = [
            (health(None, None, None), health(None, Some(7), Some(7)), health(None, Some(7), Some(7))),
            (
                health(Some(3), Some(5), Some(4)),
                health(None, Some(9), Some(8)),
                health(Some(3), Some(9), Some(4)),
            ),
            // The success of one instance ends a failure that began before, and not a failure that began after.
            (health(Some(6), None, None), health(None, Some(5), Some(4)), health(Some(6), Some(5), None)),
            (
                health(Some(6), None, None),
                health(Some(2), Some(8), Some(7)),
                health(Some(6), Some(8), Some(7)),
            ),
        ];
        for (one, other, together) in cases {
            assert_eq!(one.clone().and(other.clone()), together);
            assert_eq!(other.and(one), together);
        }
    }

    #[test]
    fn the_reason_is_cut_between_two_characters() {
        let mut seen = ReceiverHealth::default();
        seen.failed(Timestamp::ZERO, &"ü".repeat(MAX_REASON));
        assert_eq!(seen.why.len(), MAX_REASON);
        seen.failed(Timestamp::ZERO, &format!("a{}", "ü".repeat(MAX_REASON)));
        assert_eq!(seen.why.len(), MAX_REASON - 1);
    }
}
