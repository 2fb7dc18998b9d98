//! Notifications for receivers that keep an alert for each unit: acknowledgements, and the end of the alert of a unit
//! that an operator removed.
//!
//! Each is a delivery of its own behind those of its group. Queued again after a crash, it has the same id.
//!
//! # Removed units
//! Receivers are not notified of a unit that an operator removes, but an alert of its own, such as that of a pager or a
//! retained message, would stay open: it is closed before the record leaves its groups. A unit that flaps is closed
//! with its episode.
//!
//! # Removed units of an incident
//! They count neither as offline nor as back. With the last unit that is offline the incident is over, and pagers,
//! which have one alert for all of its units, close it. If the engine fails in the middle of a batch, its units may be
//! subtracted twice.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use futures_util::{StreamExt, TryStreamExt, stream};
use ring::digest::{SHA256, digest};

use crate::clock::{Clock, Timestamp};
use crate::presence::{Closing, Incident, OfflineRecord};
use crate::store::{
    ACKNOWLEDGEMENT, Delivery, DeliveryRecords, Entry, Group, GroupStore, Membership, Result, incident_in,
    incident_text,
};

/// The begin of the id of a notification that closes the alert of a removed unit.
const REMOVAL: &str = "rmv_";
/// How often an incident is changed again because a notification of its group changed it meanwhile.
const MAX_ATTEMPTS: usize = 3;
/// From the incidents of how many groups units are subtracted at once.
const AT_ONCE: usize = 32;

/// The receivers that keep an alert for each unit until they are told of its end.
#[derive(Default)]
pub(super) struct StatefulReceivers {
    pub all: HashSet<String>,
    /// The stateful receivers that are told of acknowledgements, and have one alert for an incident.
    pub pagers: HashSet<String>,
}

/// The alerts that receivers keep.
pub(super) struct StatefulAlerts {
    pub stateful: StatefulReceivers,
    pub groups: Arc<dyn GroupStore>,
    pub deliveries: Arc<dyn DeliveryRecords>,
    pub clock: Clock,
}

/// A record in one of its groups, and the receivers there that keep alerts and were notified of it.
struct UnitAlert<'a> {
    record: &'a OfflineRecord,
    group: Group,
    stateful: Vec<String>,
}

/// The acknowledged records among these entries.
pub(super) fn acknowledged(entries: &[Entry]) -> Vec<OfflineRecord> {
    records(entries, |record| record.closed_by.is_none() && record.is_acknowledged())
}

/// The records among these entries whose units were removed.
pub(super) fn removed(entries: &[Entry]) -> Vec<OfflineRecord> {
    records(entries, |record| record.closed_by == Some(Closing::Removed))
}

fn records(entries: &[Entry], is_one: impl Fn(&OfflineRecord) -> bool) -> Vec<OfflineRecord> {
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

    /// Closes the alerts of units that were removed, and subtracts these from the incidents of their groups. Answers
    /// whether deliveries were queued.
    pub async fn remove(&self, records: &[OfflineRecord]) -> Result<bool> {
        let mut by_group: BTreeMap<String, Vec<UnitAlert<'_>>> = BTreeMap::new();
        for kept in self.kept(records).await? {
            by_group.entry(kept.group.key.clone()).or_default().push(kept);
        }
        let mut subtracted = Vec::with_capacity(by_group.len());
        for kept in by_group.values() {
            subtracted.push(self.subtract(kept));
        }
        let incidents: Vec<Option<Incident>> =
            stream::iter(subtracted).buffered(AT_ONCE).try_collect().await?;
        let mut notices = Vec::new();
        for (kept, incident) in by_group.values().zip(incidents) {
            for UnitAlert { record, group, stateful } in kept {
                let is_shared = incident.as_ref().is_some_and(|one| one.has_notified(record));
                let Some(at) = record.back_at else { continue };
                for receiver in
                    stateful.iter().filter(|name| !is_shared || !self.stateful.pagers.contains(*name))
                {
                    let notice = notice(REMOVAL, &record.id, group, receiver, at);
                    notices.push(Delivery { online: vec![(*record).clone()], ..notice });
                }
            }
        }
        self.queue(&notices).await
    }

    /// Subtracts removed units from the incident of their group, and closes it at pagers if it is over. Answers the
    /// incident that receivers were notified of.
    async fn subtract(&self, kept: &[UnitAlert<'_>]) -> Result<Option<Incident>> {
        let Some(UnitAlert { group, .. }) = kept.first() else { return Ok(None) };
        for _ in 0..MAX_ATTEMPTS {
            let Some(before) = self.groups.incident(&group.key).await? else { return Ok(None) };
            let Some(incident) = incident_in(&before) else { return Ok(None) };
            let after = match incident.incident.until {
                // Not all pagers have the end yet: the same removals once more.
                Some(_) => incident.clone(),
                None => incident.clone().without(&kept.iter().map(|kept| kept.record).collect::<Vec<_>>()),
            };
            let now = self.clock.now();
            if after != incident && !self.groups.replace_incident(group, &before, Some(&after), now).await? {
                continue;
            }
            if after.incident.until.is_some() {
                if after.is_notified {
                    self.close(&after.incident, kept).await?;
                }
                self.groups.replace_incident(group, &incident_text(&after)?, None, now).await?;
            }
            return Ok(Some(after.incident).filter(|_| after.is_notified));
        }
        Ok(None)
    }

    /// Closes an incident that is over because its last units were removed.
    async fn close(&self, over: &Incident, kept: &[UnitAlert<'_>]) -> Result<()> {
        let is_of_it = |kept: &&UnitAlert<'_>| over.has_notified(kept.record);
        let pagers = kept.iter().filter(is_of_it).flat_map(|kept| &kept.stateful);
        let pagers: BTreeSet<&String> = pagers.filter(|name| self.stateful.pagers.contains(*name)).collect();
        let Some((group, at)) = kept.first().map(|kept| &kept.group).zip(over.until) else { return Ok(()) };
        let closing = pagers.into_iter().map(|receiver| {
            let online = kept.iter().filter(is_of_it).map(|kept| kept.record.clone()).collect();
            let mut notice = notice(REMOVAL, &format!("incident {}", over.since), group, receiver, at);
            (notice.situation.incident, notice.situation.is_judged) = (Some(over.clone()), true);
            Delivery { online, ..notice }
        });
        self.queue(&closing.collect::<Vec<_>>()).await.map(|_| ())
    }

    /// The groups of records in which receivers were notified of them.
    async fn kept<'a>(&self, records: &'a [OfflineRecord]) -> Result<Vec<UnitAlert<'a>>> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let memberships = self.groups.memberships(&records.iter().collect::<Vec<_>>()).await?;
        let kept = records.iter().zip(memberships).flat_map(|(record, memberships)| {
            memberships.into_iter().filter_map(move |Membership { group, receivers }| {
                let stateful =
                    receivers?.into_iter().filter(|name| self.stateful.all.contains(name)).collect();
                Some(UnitAlert { record, group, stateful })
            })
        });
        Ok(kept.collect())
    }

    /// Queues them together: the dispatcher waits for no answer of the engine once for each unit. Answers whether there
    /// are any.
    async fn queue(&self, notices: &[Delivery]) -> Result<bool> {
        if !notices.is_empty() {
            self.deliveries.replay_all(notices, self.clock.now()).await?;
        }
        Ok(!notices.is_empty())
    }
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
