//! Pagers are told that an operator takes care of a silence.
//!
//! The step that acknowledges a record writes it into the outbox once more. Its entry joins no group that it has not
//! joined before; `stateful_alerts.rs` makes it a notification of its own for each pager that was notified of the
//! record, behind the notifications of its group: the pagers of its routes, of its escalations, and fallbacks.
//!
//! # An acknowledgement before the page
//! A record that still waits in its group is not queued: the service would be asked to acknowledge an alert that it
//! does not have. Before each attempt at a pager its open records are read, and the acknowledgements among them follow
//! the pages in the same notification. The record is written before its entry, so one of both ways finds it.
//!
//! # Incidents
//! The page of an incident is acknowledged when an operator takes care of every one of its units that is offline and
//! was notified. One unit is not enough: it may be known to be broken, and then no operator would be called for the
//! others. For the same reason a unit that falls silent after that is a page of its own: an acknowledged page calls no
//! operator.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::clock::Timestamp;
use crate::presence::{Incident, OfflineRecord, RecordId};
use crate::store::{Delivery, Group, GroupStore, Queries, Result, incident_in};

/// How many records are read at once.
const AT_ONCE: usize = 16;

/// A delivery to a pager with the acknowledgements of its records by now.
pub(super) async fn with_acknowledgements(
    groups: &dyn GroupStore,
    queries: &dyn Queries,
    delivery: Arc<Delivery>,
    now: Timestamp,
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
            // Receivers are notified of a flapping unit as its episode, which is not acknowledged.
            let stored = stored.filter(|stored| stored.is_acknowledged() && !record.is_flapping());
            record.acknowledged = stored.and_then(|stored| stored.acknowledged);
        }
    }
    if let Some(incident) = delivery.situation.incident.as_ref().filter(|one| one.until.is_none()) {
        let is_new = incident.acknowledged_at.is_none();
        delivery.situation.is_acknowledged =
            is_acknowledged(groups, queries, &delivery.group.key, incident).await?;
        if delivery.situation.is_acknowledged && is_new {
            note(groups, &delivery.group, now).await?;
        }
    }
    Ok(Arc::new(delivery))
}

/// Notes that an operator took care of the incident of a group. If a notification changes the incident meanwhile, the
/// next attempt or acknowledgement notes it.
async fn note(groups: &dyn GroupStore, group: &Group, now: Timestamp) -> Result<()> {
    let Some(before) = groups.incident(&group.key).await? else { return Ok(()) };
    let Some(mut kept) = incident_in(&before).filter(|kept| kept.incident.acknowledged_at.is_none()) else {
        return Ok(());
    };
    kept.incident.acknowledged_at = Some(now);
    groups.replace_incident(group, &before, Some(&kept), now).await.map(|_| ())
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
