//! Tells pagers that an operator takes care of a silence.
//!
//! The step that acknowledges a record writes it into the outbox once more. Its entry joins no group that it has not
//! joined before. `stateful_alerts.rs` creates a notification for each pager that was notified of the record, behind
//! the notifications of its group: the pagers of its routes, of its escalations, and fallbacks.
//!
//! # An acknowledgement before the page
//! A record that still waits in its group is not queued: the service would get the acknowledgement of an alert that
//! it does not have. Each attempt at a pager first reads the open records of its delivery; their acknowledgements
//! follow the pages in the same notification. The record is written before its entry, so one of the two ways finds
//! it.
//!
//! # Incidents
//! The page of an incident is acknowledged when an operator takes care of every one of its units that is offline and
//! was notified. One unit is not enough: it may be known to be broken, and then no operator would be called for the
//! others. For the same reason a unit that falls silent after that is a page of its own: an acknowledged page calls no
//! operator.

use std::collections::HashMap;
use std::sync::Arc;

use super::group_incidents::GroupIncidents;
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::{Delivery, Result};

/// Adds the acknowledgements of its records to a delivery to a pager; and the end of its incident, once the last
/// units are back of which this pager was notified.
pub(super) async fn with_acknowledgements(
    incidents: &GroupIncidents,
    delivery: Arc<Delivery>,
    now: Timestamp,
) -> Result<Arc<Delivery>> {
    if delivery.offline.is_empty() && delivery.situation.incident.is_none() {
        return Ok(delivery);
    }
    let mut delivery = Arc::unwrap_or_clone(delivery);
    let group = delivery.group.key.clone();
    if delivery.is_acknowledgement() {
        let known = incidents.of_group(&group).await?.value;
        delivery.situation.incident = known.map(|known| known.incident);
    } else {
        let ids = delivery.offline.iter().map(|record| record.id.clone()).collect();
        let stored = incidents.records(ids).await?.into_iter();
        let mut stored: HashMap<RecordId, OfflineRecord> =
            stored.map(|record| (record.id.clone(), record)).collect();
        for record in &mut delivery.offline {
            // Episodes of flapping and unusual silences are not acknowledged.
            let stored = stored.remove(&record.id);
            let stored = stored.filter(|stored| stored.is_acknowledged() && record.is_silence());
            record.acknowledged = stored.and_then(|stored| stored.acknowledged);
        }
    }
    let Some(incident) = delivery.situation.incident.clone().filter(|one| one.until.is_none()) else {
        return Ok(Arc::new(delivery));
    };
    let is_back = delivery.online.iter().any(|record| incident.has_notified(record))
        && !delivery.offline.iter().any(|record| incident.has_notified(record));
    if is_back && incidents.lasting(&group, &incident, &[], Some(&delivery.receiver)).await?.is_none() {
        let last = incident.last_return(&delivery.online);
        delivery.situation.incident = Some(incident.over(last));
        return Ok(Arc::new(delivery));
    }
    delivery.situation.is_acknowledged = incidents.is_acknowledged(&group, &incident).await?;
    if delivery.situation.is_acknowledged && incident.acknowledged_at.is_none() {
        note(incidents, &group, now).await?;
    }
    Ok(Arc::new(delivery))
}

/// Notes that an operator took care of the incident of a group. If a notification changes the incident meanwhile, the
/// next attempt or acknowledgement notes it.
async fn note(incidents: &GroupIncidents, group: &str, now: Timestamp) -> Result<()> {
    let known = incidents.of_group(group).await?;
    let Some(mut noted) = known.value.clone().filter(|known| known.incident.acknowledged_at.is_none()) else {
        return Ok(());
    };
    noted.incident.acknowledged_at = Some(now);
    incidents.put(&known, Some(&noted)).await.map(|_| ())
}
