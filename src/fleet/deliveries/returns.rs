//! The returns that follow a dead letter which is delivered again.
//!
//! A receiver is not notified of the return of a silence that it was not notified of. If the dead letter of that silence
//! is delivered later, the return has to follow it: else the receiver would take the unit for offline for ever, and a
//! pager would keep its page open.

use super::Deliveries;
use crate::clock::Timestamp;
use crate::presence::{Incident, OfflineRecord};
use crate::store::{Delivery, GroupContext, Result, notification_id};

/// A notification that is delivered again.
pub(super) struct Again {
    pub delivery: Delivery,
    /// Whether it was a dead letter.
    pub is_letter: bool,
}

impl Again {
    pub fn letter(delivery: Delivery) -> Again {
        Again { delivery, is_letter: true }
    }

    pub fn delivered(delivery: Delivery) -> Again {
        Again { delivery, is_letter: false }
    }
}

impl Deliveries {
    /// The returns of the silences of a dead letter that are over. `None`: there are none, or they are still to be
    /// notified. The same returns have the same id.
    pub(super) async fn returns_after(&self, letter: &Delivery, now: Timestamp) -> Result<Option<Delivery>> {
        let mut over = Vec::new();
        for silence in &letter.offline {
            let record = self.queries.record(&silence.id).await?;
            over.extend(
                record
                    .filter(|record| record.detected_at == silence.detected_at && record.closed_by.is_some()),
            );
        }
        let memberships = self.groups.memberships(&over.iter().collect::<Vec<_>>()).await?;
        let mut is_to_come = memberships
            .iter()
            .map(|memberships| memberships.iter().any(|one| one.group.key == letter.group.key));
        over.retain(|_| !is_to_come.next().unwrap_or(false));
        if over.is_empty() {
            return Ok(None);
        }
        let names: Vec<String> = over.iter().map(|record| record.id.to_string()).collect();
        let id = notification_id(&letter.id, &names.join("\n"));
        let situation = GroupContext {
            incident: letter
                .situation
                .incident
                .as_ref()
                .map(|incident| after(incident, &letter.offline, &over)),
            ..letter.situation.clone()
        };
        Ok(Some(Delivery {
            id: format!("{id}.{}", letter.receiver),
            sealed_at: now,
            offline: Vec::new(),
            online: over,
            reminder: false,
            situation,
            ..letter.clone()
        }))
    }
}

/// An incident after these of its silences are over.
fn after(incident: &Incident, silences: &[OfflineRecord], over: &[OfflineRecord]) -> Incident {
    let until = over.iter().filter_map(|record| record.back_at).max();
    Incident {
        still_offline: silences.len().saturating_sub(over.len()) as u64,
        until: until.filter(|_| over.len() == silences.len()),
        ..incident.clone()
    }
}
