//! Notifications for receivers that keep an alert for each unit: acknowledgements, and the end of the alert of a unit
//! that an operator removed.
//!
//! Each is a delivery of its own behind the deliveries of its group. Queued again after a crash, it has the same id.
//!
//! # Removed units
//! Receivers are not notified of a unit that an operator removes, but an alert of its own, such as that of a pager or a
//! retained message, would stay open: it is closed before the record leaves its groups. A unit that flaps is closed
//! with its episode.
//!
//! # Removed units of an incident
//! They count neither as offline nor as back. A pager has one alert for all units of an incident, and closes it with
//! the last one that is offline and of which it was notified. If an operator takes care of all that are left, the alert
//! is acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use super::group_incidents::GroupIncidents;
use crate::clock::{Clock, Timestamp};
use crate::fleet::LastingIncident;
use crate::presence::{Closing, OfflineRecord};
use crate::store::{
    ACKNOWLEDGEMENT, Delivery, Document, Group, Membership, OutboxEntry, Result, StoredDeliveries,
};

/// The begin of the id of a notification that closes the alert of a removed unit.
const REMOVAL: &str = "rmv_";

/// The receivers that keep an alert for each unit until a message ends it.
#[derive(Default)]
pub(super) struct StatefulReceivers {
    pub all: HashSet<String>,
    /// The stateful receivers that get acknowledgements, and have one alert for an incident.
    pub pagers: HashSet<String>,
}

/// The alerts that receivers keep.
pub(super) struct StatefulAlerts {
    pub stateful: StatefulReceivers,
    pub incidents: Arc<GroupIncidents>,
    pub deliveries: StoredDeliveries,
    pub clock: Clock,
}

/// A record in one of its groups, and the receivers there that keep alerts and were notified of it.
struct UnitAlert<'a> {
    record: &'a OfflineRecord,
    group: Group,
    stateful: Vec<String>,
}

pub(super) fn acknowledged(entries: &[OutboxEntry]) -> Vec<OfflineRecord> {
    records(entries, |record| record.closed_by.is_none() && record.is_acknowledged())
}

/// The records among these entries that ended because their units were removed.
pub(super) fn removed(entries: &[OutboxEntry]) -> Vec<OfflineRecord> {
    records(entries, |record| record.closed_by == Some(Closing::Removed))
}

fn records(entries: &[OutboxEntry], is_one: impl Fn(&OfflineRecord) -> bool) -> Vec<OfflineRecord> {
    entries.iter().filter_map(|entry| entry.event.record()).filter(|record| is_one(record)).cloned().collect()
}

impl StatefulAlerts {
    /// Queues the acknowledgements of records for the pagers that were notified of them. Answers whether there are any.
    pub async fn acknowledge(&self, records: &[OfflineRecord]) -> Result<bool> {
        if self.stateful.pagers.is_empty() {
            return Ok(false);
        }
        let mut notices = Vec::new();
        for UnitAlert { record, group, stateful } in self.kept(records).await? {
            let Some(acknowledged) = &record.acknowledged else { continue };
            for receiver in stateful.iter().filter(|name| self.stateful.pagers.contains(*name)) {
                let notice = notice(ACKNOWLEDGEMENT, &record.id, &group, receiver, acknowledged.at);
                notices.push(Delivery { offline: vec![record.clone()], ..notice });
            }
        }
        self.queue(&notices).await
    }

    /// Closes the alerts of units that were removed, and leaves these out of the incidents of their groups. Answers
    /// whether deliveries were queued.
    pub async fn remove(&self, records: &[OfflineRecord]) -> Result<bool> {
        let mut by_group: BTreeMap<String, Vec<UnitAlert<'_>>> = BTreeMap::new();
        for kept in self.kept(records).await? {
            by_group.entry(kept.group.key.clone()).or_default().push(kept);
        }
        let groups: Vec<String> = by_group.keys().cloned().collect();
        let (mut notices, mut left) = (Vec::new(), Vec::new());
        for (kept, known) in by_group.values().zip(self.incidents.of(&groups).await?) {
            notices.extend(alone(kept, &known, &self.stateful.pagers));
            if let Some(lasting) = known.value.clone() {
                let (closing, after) = self.closing(kept, lasting).await?;
                notices.extend(closing);
                left.push((known, after));
            }
        }
        let has_queued = self.queue(&notices).await?;
        // Afterwards: the removal of a unit whose incident is forgotten closes an alert of its own.
        for (known, after) in left {
            // If a notification has changed the incident meanwhile, its text counts units that are removed.
            self.incidents.put(&known, after.as_ref()).await?;
        }
        Ok(has_queued)
    }

    /// The end of the incident for the pagers that were notified of no unit that is left, and its acknowledgement for the
    /// others, if an operator takes care of all that are left; and the incident without these units, unless it is over
    /// with them.
    async fn closing(
        &self,
        kept: &[UnitAlert<'_>],
        mut lasting: LastingIncident,
    ) -> Result<(Vec<Delivery>, Option<LastingIncident>)> {
        let Some(UnitAlert { group, .. }) = kept.first() else { return Ok((Vec::new(), Some(lasting))) };
        let incident = lasting.incident.clone();
        let removed: Vec<OfflineRecord> = kept.iter().map(|kept| kept.record.clone()).collect();
        let covered: Vec<OfflineRecord> =
            removed.iter().filter(|record| incident.has_notified(record)).cloned().collect();
        let over = incident.clone().without(&removed).over(incident.last_return(&covered));
        let is_of_it = |kept: &&UnitAlert<'_>| incident.has_notified(kept.record);
        let pagers = kept.iter().filter(is_of_it).flat_map(|kept| &kept.stateful);
        let pagers: BTreeSet<&String> = pagers.filter(|name| self.stateful.pagers.contains(*name)).collect();
        let is_acknowledged = !pagers.is_empty()
            && incident.acknowledged_at.is_none()
            && self.incidents.is_acknowledged(&group.key, &incident).await?;
        let mut notices = Vec::new();
        for receiver in pagers {
            let left = self.incidents.lasting(&group.key, &incident, &removed, Some(receiver)).await?;
            let Some(at) = over.until else { continue };
            let notice =
                |begin: &str| notice(begin, &format!("incident {}", over.since), group, receiver, at);
            match left {
                None => {
                    let mut notice = notice(REMOVAL);
                    (notice.situation.incident, notice.situation.is_judged) = (Some(over.clone()), true);
                    notices.push(Delivery { online: covered.clone(), ..notice });
                }
                Some(left) if is_acknowledged => {
                    notices.push(Delivery { offline: vec![left], ..notice(ACKNOWLEDGEMENT) });
                }
                Some(_) => {}
            }
        }
        // The notification of the waiting returns reports the end.
        let is_waited_for = self.incidents.groups.groups_due(std::slice::from_ref(&group.key)).await?
            != [None]
            || self.incidents.lasting(&group.key, &incident, &removed, None).await?.is_some();
        lasting.incident = incident.without(&removed);
        Ok((notices, is_waited_for.then_some(lasting)))
    }

    /// The records in the groups in which receivers were notified of them.
    async fn kept<'a>(&self, records: &'a [OfflineRecord]) -> Result<Vec<UnitAlert<'a>>> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let memberships = self.incidents.groups.memberships(&records.iter().collect::<Vec<_>>()).await?;
        let kept = records.iter().zip(memberships).flat_map(|(record, memberships)| {
            memberships.into_iter().filter_map(move |Membership { group, receivers }| {
                let stateful =
                    receivers?.into_iter().filter(|name| self.stateful.all.contains(name)).collect();
                Some(UnitAlert { record, group, stateful })
            })
        });
        Ok(kept.collect())
    }

    /// Queues all notices with one call: the dispatcher does not wait for the engine once for each unit. Answers
    /// whether there are any.
    async fn queue(&self, notices: &[Delivery]) -> Result<bool> {
        if !notices.is_empty() {
            self.deliveries.replay_all(notices, self.clock.now()).await?;
        }
        Ok(!notices.is_empty())
    }
}

/// The ends of the alerts that receivers keep for each of these units.
fn alone(
    kept: &[UnitAlert<'_>],
    known: &Document<LastingIncident>,
    pagers: &HashSet<String>,
) -> Vec<Delivery> {
    let incident = known.value.as_ref().map(|known| &known.incident);
    let mut notices = Vec::new();
    for UnitAlert { record, group, stateful } in kept {
        let is_shared = incident.is_some_and(|incident| incident.has_notified(record));
        let Some(at) = record.back_at else { continue };
        for receiver in stateful.iter().filter(|name| !is_shared || !pagers.contains(*name)) {
            let notice = notice(REMOVAL, &record.id, group, receiver, at);
            notices.push(Delivery { online: vec![(*record).clone()], ..notice });
        }
    }
    notices
}

fn notice(
    begin: &str,
    of: &impl std::fmt::Display,
    group: &Group,
    receiver: &str,
    at: Timestamp,
) -> Delivery {
    let text = format!("{} {of} {}", group.key, at.as_millis());
    let id = HEXLOWER.encode(&digest(&SHA256, text.as_bytes()).as_ref()[..12]);
    Delivery { attempt: 0, ..Delivery::new(format!("{begin}{id}.{receiver}"), receiver, group.clone(), at) }
}
