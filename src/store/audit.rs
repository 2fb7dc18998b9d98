//! The audit: the last changes that operators made.
//!
//! An entry is a cell that is written in one step with the change that it tells of. The oldest entries leave first.

use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use super::documents::{Documents, TableValue};
use super::{ChangeSet, EntryOrder, Index, IndexRange, Result, Table};
use crate::clock::Timestamp;
use crate::presence::{Kind, RecordId};

/// The most entries of the audit; the oldest leave first.
pub const MAX_AUDITED: usize = 1000;

/// Numbers the entries of this process, so that entries of one moment stay in order.
static ENTRIES: AtomicU32 = AtomicU32::new(0);

/// The kind of an operator's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audited {
    SilenceAdded,
    SilenceChanged,
    SilenceExpired,
    Acknowledged,
    AcknowledgementUndone,
    Paused,
    PauseEnded,
    Registered,
    Removed,
    DeliveriesReplayed,
    DeliveriesPurged,
    DeliveriesDiscarded,
    BreakerReleased,
    InventoryImported,
    TimerRegistered,
    TimerCancelled,
    TimersRegistered,
    TimersCancelled,
}

impl Audited {
    pub fn as_str(self) -> &'static str {
        match self {
            Audited::SilenceAdded => "silence_added",
            Audited::SilenceChanged => "silence_changed",
            Audited::SilenceExpired => "silence_expired",
            Audited::Acknowledged => "acknowledged",
            Audited::AcknowledgementUndone => "acknowledgement_undone",
            Audited::Paused => "paused",
            Audited::PauseEnded => "pause_ended",
            Audited::Registered => "registered",
            Audited::Removed => "removed",
            Audited::DeliveriesReplayed => "deliveries_replayed",
            Audited::DeliveriesPurged => "deliveries_purged",
            Audited::DeliveriesDiscarded => "deliveries_discarded",
            Audited::BreakerReleased => "breaker_released",
            Audited::InventoryImported => "inventory_imported",
            Audited::TimerRegistered => "timer_registered",
            Audited::TimerCancelled => "timer_cancelled",
            Audited::TimersRegistered => "timers_registered",
            Audited::TimersCancelled => "timers_cancelled",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub at: Timestamp,
    pub author: String,
    pub change: Audited,
    /// The changed thing: an id, `<kind>/<unit>`, a name, or a number of timers.
    pub subject: String,
    /// The new state, such as matchers and times; a number; or a comment.
    pub text: String,
}

impl AuditEntry {
    /// The kind and the id of the unit that the change is about, if it is about one.
    pub fn unit(&self) -> Option<(String, String)> {
        if let Ok(RecordId { unit, .. }) = self.subject.parse() {
            return Some((unit.kind.to_string(), unit.id.to_string()));
        }
        let (kind, unit) = self.subject.split_once('/')?;
        kind.parse::<Kind>().is_ok().then(|| (kind.to_owned(), unit.to_owned()))
    }
}

impl TableValue for AuditEntry {
    type Name = String;
    const TABLE: Table = Table::Audit;
}

impl Documents {
    /// A change-set of the fleet that also adds an entry to the audit.
    pub fn audit(&self, set: ChangeSet, entry: &AuditEntry) -> Result<ChangeSet> {
        let (number, random) = (ENTRIES.fetch_add(1, Ordering::Relaxed), rand::random::<u32>());
        let name = format!("{number:08x}{random:08x}");
        let set = set.enter(Index::Audited, &name, Some(entry.at.as_millis()));
        self.put(set, &name, Some(entry))
    }

    /// The last entries of the audit, newest first.
    pub async fn audited(&self, limit: usize) -> Result<Vec<AuditEntry>> {
        let names = self.audit_entries(EntryOrder::NewestFirst, limit).await?;
        let entries = self.read::<AuditEntry>(&names).await?;
        Ok(entries.into_iter().filter_map(|entry| entry.value).collect())
    }

    /// Removes the oldest entries beyond [`MAX_AUDITED`].
    pub async fn bound_audit(&self) -> Result<()> {
        let over = self.size(Index::Audited, self.fleet()).await?.saturating_sub(MAX_AUDITED);
        if over == 0 {
            return Ok(());
        }
        let over = self.audit_entries(EntryOrder::OldestFirst, over).await?;
        let remove = |name: &String| {
            let set = ChangeSet::of(self.fleet()).put(Table::Audit, name, None);
            set.enter(Index::Audited, name, None)
        };
        self.write(&over.iter().map(remove).collect::<Vec<_>>()).await?;
        Ok(())
    }

    async fn audit_entries(&self, order: EntryOrder, limit: usize) -> Result<Vec<String>> {
        let range =
            IndexRange { index: Index::Audited, from: i64::MIN, after: "", until: i64::MAX, limit, order };
        let entries = self.range(&range, &[self.fleet()]).await?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_names_its_unit_if_it_is_about_one() {
        for (subject, unit) in [
            ("detector/pump-7", Some(("detector", "pump-7"))),
            ("detector:a:b:1732147200000", Some(("detector", "a:b"))),
            ("mail", None),
            ("17", None),
        ] {
            let entry = AuditEntry {
                at: Timestamp::ZERO,
                author: "ana".to_owned(),
                change: Audited::Paused,
                subject: subject.to_owned(),
                text: String::new(),
            };
            let unit = unit.map(|(kind, id)| (kind.to_owned(), id.to_owned()));
            assert_eq!(entry.unit(), unit, "{subject}");
        }
    }
}
