//! Pagers are told that an operator takes care of a silence.
//!
//! The step that acknowledges a record writes it into the outbox once more. Its entry joins no group that it has not
//! joined before; here it becomes a notification of its own for each pager that was notified of the record, behind
//! those of its group: for those of its routes, those that it was escalated to, and fallbacks. Queued again after a
//! crash, it has the same id.
//!
//! # An acknowledgement before the page
//! A record that still waits in its group is not queued: the service would be asked to acknowledge an alert that it does
//! not have. Before each attempt at a pager its open records are read, and the acknowledgements among them follow the
//! pages in the same notification. The record is written before its entry, so one of both ways finds it.
//!
//! # Removed units
//! Receivers are not notified of a unit that an operator removes, but an alert of its own, such as that of a pager or a
//! retained message, would stay open: it is closed in the same way, before the record leaves its groups.
//!
//! # Incidents
//! The page of an incident is acknowledged when an operator takes care of every one of its units that is offline and was
//! notified. One unit is not enough: it may be known to be broken, and then no operator would be called for the others.

use std::collections::HashSet;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use futures_util::{StreamExt, TryStreamExt, stream};
use ring::digest::{SHA256, digest};

use crate::clock::Timestamp;
use crate::presence::{Closing, Incident, OfflineRecord, RecordId};
use crate::store::{
    ACKNOWLEDGEMENT, Delivery, DeliveryRecords, Entry, Group, GroupStore, Membership, OutboxEvent, Queries,
    Result, incident_in,
};

/// The begin of the id of a notification that closes the alert of a removed unit.
const REMOVAL: &str = "rmv_";
/// How many records are read at once.
const AT_ONCE: usize = 16;

/// The receivers that keep an alert for each unit until they are told of its end.
#[derive(Default)]
pub(super) struct Keepers {
    pub all: HashSet<String>,
    /// Those of them that are told of acknowledgements.
    pub pagers: HashSet<String>,
}

/// The acknowledged records among these entries.
pub(super) fn acknowledged(entries: &[Entry]) -> Vec<OfflineRecord> {
    let record = |entry: &Entry| match &entry.event {
        OutboxEvent::Record(record) if record.closed_by.is_none() && record.is_acknowledged() => {
            Some(record.clone())
        }
        _ => None,
    };
    entries.iter().filter_map(record).collect()
}

/// The records among these entries whose units were removed.
pub(super) fn removed(entries: &[Entry]) -> Vec<OfflineRecord> {
    let record = |entry: &Entry| match &entry.event {
        OutboxEvent::Record(record) if record.closed_by == Some(Closing::Removed) => Some(record.clone()),
        _ => None,
    };
    entries.iter().filter_map(record).collect()
}

/// Queues acknowledgements of records for pagers, and removals for all receivers that keep alerts, if these are
/// notified of the records, or will be by a sealed notification. Answers whether there are any. Safe to repeat.
pub(super) async fn queue(
    groups: &dyn GroupStore,
    deliveries: &dyn DeliveryRecords,
    keepers: &Keepers,
    records: &[OfflineRecord],
    now: Timestamp,
) -> Result<bool> {
    if records.is_empty() || keepers.all.is_empty() {
        return Ok(false);
    }
    let mut any = false;
    let memberships = groups.memberships(&records.iter().collect::<Vec<_>>()).await?;
    for (record, memberships) in records.iter().zip(memberships) {
        for Membership { group, receivers } in memberships {
            for receiver in receivers.into_iter().flatten().filter(|name| keepers.all.contains(name)) {
                let is_pager = keepers.pagers.contains(&receiver);
                let acknowledged = is_pager.then(|| acknowledgement(record, &group, &receiver)).flatten();
                let Some(delivery) = removal(record, &group, &receiver).or(acknowledged) else { continue };
                deliveries.replay(&delivery, now).await?;
                any = true;
            }
        }
    }
    Ok(any)
}

/// The delivery that tells a pager that an operator takes care of a record.
fn acknowledgement(record: &OfflineRecord, group: &Group, receiver: &str) -> Option<Delivery> {
    let at = record.acknowledged.as_ref()?.at;
    let offline = vec![record.clone()];
    Some(Delivery { offline, attempt: 0, ..notice(ACKNOWLEDGEMENT, record, group, receiver, at) })
}

/// The delivery that closes the alert of a unit that was removed.
fn removal(record: &OfflineRecord, group: &Group, receiver: &str) -> Option<Delivery> {
    let at = record.back_at?;
    Some(Delivery {
        online: vec![record.clone()],
        attempt: 0,
        ..notice(REMOVAL, record, group, receiver, at)
    })
}

fn notice(begin: &str, record: &OfflineRecord, group: &Group, receiver: &str, at: Timestamp) -> Delivery {
    let text = format!("{} {} {}", group.key, record.id, at.as_millis());
    let id = HEXLOWER.encode(&digest(&SHA256, text.as_bytes()).as_ref()[..12]);
    Delivery::new(format!("{begin}{id}.{receiver}"), receiver, group.clone(), at)
}

/// A delivery to a pager with the acknowledgements of its records by now.
pub(super) async fn with_acknowledgements(
    groups: &dyn GroupStore,
    queries: &dyn Queries,
    delivery: Arc<Delivery>,
) -> Result<Arc<Delivery>> {
    if delivery.offline.is_empty() && delivery.situation.incident.is_none() {
        return Ok(delivery);
    }
    let mut delivery = Arc::unwrap_or_clone(delivery);
    if delivery.is_acknowledgement() {
        let kept = groups.incident(&delivery.group.key).await?;
        let notified = kept.as_deref().and_then(incident_in).filter(|kept| kept.is_notified);
        delivery.situation.incident = notified.map(|kept| kept.incident);
    } else {
        let ids = delivery.offline.iter().map(|record| record.id.clone()).collect();
        let stored = records(queries, ids).await?;
        for (record, stored) in delivery.offline.iter_mut().zip(stored) {
            // A unit that flaps is told as its episode, which is not acknowledged.
            let stored = stored.filter(|stored| stored.is_acknowledged() && !record.is_flapping());
            record.acknowledged = stored.and_then(|stored| stored.acknowledged);
        }
    }
    if let Some(incident) = delivery.situation.incident.as_ref().filter(|one| one.until.is_none()) {
        delivery.situation.is_acknowledged =
            is_acknowledged(groups, queries, &delivery.group.key, incident).await?;
    }
    Ok(Arc::new(delivery))
}

/// Whether an operator takes care of every unit of the incident that is offline and was notified.
async fn is_acknowledged(
    groups: &dyn GroupStore,
    queries: &dyn Queries,
    group: &str,
    incident: &Incident,
) -> Result<bool> {
    let mut any = false;
    for ids in groups.lasting(group).await?.chunks(AT_ONCE) {
        let found = records(queries, ids.to_vec()).await?;
        let open = found.into_iter().flatten().filter(|record| record.closed_by.is_none());
        for record in open.filter(|record| incident.has_notified(record)) {
            if !record.is_acknowledged() {
                return Ok(false);
            }
            any = true;
        }
    }
    Ok(any)
}

/// Records in the order of their ids.
async fn records(queries: &dyn Queries, ids: Vec<RecordId>) -> Result<Vec<Option<OfflineRecord>>> {
    let read = ids.into_iter().map(|id| async move { queries.record(&id).await });
    stream::iter(read).buffered(AT_ONCE).try_collect().await
}
