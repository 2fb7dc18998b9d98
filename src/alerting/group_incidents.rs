//! The incidents of groups that last: one cell for each such group, and the silences that belong to it, as the engine
//! stores them.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::clock::Timestamp;
use crate::fleet::LastingIncident;
use crate::presence::{Incident, OfflineRecord, RecordId};
use crate::store::{Cells, Document, Documents, Queries, Result, StoredDeliveries, StoredGroups};

/// How many records are read at once.
const AT_ONCE: usize = 16;

/// The incidents of groups that last, and their silences.
pub struct GroupIncidents {
    pub groups: StoredGroups,
    pub deliveries: StoredDeliveries,
    pub queries: Arc<dyn Queries>,
    documents: Documents,
}

impl GroupIncidents {
    pub fn new(
        groups: StoredGroups,
        deliveries: StoredDeliveries,
        queries: Arc<dyn Queries>,
        cells: Arc<dyn Cells>,
    ) -> GroupIncidents {
        GroupIncidents { groups, deliveries, queries, documents: Documents::new(cells) }
    }

    /// The incidents of these groups, in order.
    pub async fn of(&self, groups: &[String]) -> Result<Vec<Document<LastingIncident>>> {
        self.documents.read(groups).await
    }

    pub async fn of_group(&self, group: &str) -> Result<Document<LastingIncident>> {
        self.documents.one(&group.to_owned()).await
    }

    /// Writes the incident of a group if it is still as it was read; `None` removes it. Answers whether it was.
    pub async fn put(
        &self,
        known: &Document<LastingIncident>,
        after: Option<&LastingIncident>,
    ) -> Result<bool> {
        let change = self.documents.change(known, after)?;
        Ok(self.documents.write(&[change]).await? == [true])
    }

    /// A lasting silence of the incident other than those of these records. With a receiver: a silence of which that
    /// receiver was notified as a part of the incident.
    pub async fn lasting(
        &self,
        group: &str,
        incident: &Incident,
        besides: &[OfflineRecord],
        receiver: Option<&str>,
    ) -> Result<Option<OfflineRecord>> {
        for ids in self.pages(group, (incident.since, None), besides).await? {
            let mut records = self.records(ids).await?;
            let Some(receiver) = receiver else {
                if let Some(found) = records.into_iter().find(|record| incident.covers(record)) {
                    return Ok(Some(found));
                }
                continue;
            };
            records.retain(|record| incident.has_notified(record));
            let memberships = self.groups.memberships(&records.iter().collect::<Vec<_>>()).await?;
            let mut known = records.into_iter().zip(memberships);
            let is_known = known.find(|(_, memberships)| {
                memberships.iter().any(|one| one.group.key == group && one.is_known_to(receiver))
            });
            if let Some((found, _)) = is_known {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Whether an operator takes care of every unit of an incident that is offline and was notified.
    pub async fn is_acknowledged(&self, group: &str, incident: &Incident) -> Result<bool> {
        let mut any = false;
        for ids in self.pages(group, (incident.since, None), &[]).await? {
            let open = self.records(ids).await?.into_iter().filter(|record| record.closed_by.is_none());
            for record in open.filter(|record| incident.has_notified(record)) {
                if !record.is_acknowledged() {
                    return Ok(false);
                }
                any = true;
            }
        }
        Ok(any)
    }

    /// The lasting silences of a group that were notified within this time, other than those of these records, in
    /// parts.
    pub async fn pages(
        &self,
        group: &str,
        (from, before): (Timestamp, Option<Timestamp>),
        besides: &[OfflineRecord],
    ) -> Result<Vec<Vec<RecordId>>> {
        let besides: HashSet<&RecordId> = besides.iter().map(|record| &record.id).collect();
        let mut ids = self.groups.lasting(group, from, before).await?;
        ids.retain(|id| !besides.contains(id));
        Ok(ids.chunks(AT_ONCE).map(<[RecordId]>::to_vec).collect())
    }

    pub async fn records(&self, ids: Vec<RecordId>) -> Result<Vec<OfflineRecord>> {
        let read = ids.into_iter().map(|id| async move { self.queries.record(&id).await });
        let read: Vec<Option<OfflineRecord>> = stream::iter(read).buffered(AT_ONCE).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }
}
