//! Unusual silences of which receivers are notified, as they are stored: once for each silence, until the unit is heard
//! again, removed or no longer watched.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::presence::{OfflineRecord, Unit};
use crate::store::{Cells, ChangeSet, Document, Documents, Result, Table, TableValue};

/// How far the notice of an unusual silence has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeStage {
    /// The notice is decided, and may not have joined its groups yet.
    Begins,
    Lasts,
    /// The notice is over, and its end may not have joined its groups yet.
    Ends,
}

/// The notice of an unusual silence. Its record has the cause [`Unusual`](crate::presence::Cause::Unusual), and is no
/// offline record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnusualNotice {
    pub record: OfflineRecord,
    pub stage: NoticeStage,
}

impl TableValue for UnusualNotice {
    type Name = Unit;
    const TABLE: Table = Table::Unusual;
}

/// The stored notices. Cheap to clone.
#[derive(Clone)]
pub struct UnusualNotices {
    documents: Documents,
}

impl UnusualNotices {
    pub fn new(cells: Arc<dyn Cells>) -> UnusualNotices {
        UnusualNotices { documents: Documents::new(cells) }
    }

    /// All notices of units in some partitions.
    pub async fn all(&self, partitions: &[u16]) -> Result<BTreeMap<Unit, UnusualNotice>> {
        self.documents.all(partitions).await
    }

    /// Writes notices, each if it is still `before`; a notice without `after` is removed. Answers for each, in order,
    /// whether it was written.
    pub async fn change(
        &self,
        changes: &[(Unit, Option<UnusualNotice>, Option<UnusualNotice>)],
    ) -> Result<Vec<bool>> {
        let set = |(unit, before, after): &(Unit, Option<UnusualNotice>, Option<UnusualNotice>)| {
            let known = Document::expected(unit.clone(), before.clone())?;
            self.documents.change(&known, after.as_ref())
        };
        let sets: Vec<ChangeSet> = changes.iter().map(set).collect::<Result<_>>()?;
        if sets.is_empty() { Ok(Vec::new()) } else { self.documents.write(&sets).await }
    }
}
