//! The returns that follow a dead letter that is delivered again.
//!
//! A receiver is not notified of the return of a silence that it was not notified of. If the dead letter of that
//! silence is delivered later, the return has to follow it: otherwise the receiver would take the unit for offline
//! for ever, and a pager would keep its page open. If the unit is offline again, the receiver is reminded of that.

use super::Deliveries;
use crate::clock::Timestamp;
use crate::presence::{Closing, Incident, OfflineRecord};
use crate::store::{Delivery, GroupContext, Membership, Result, notification_id};

impl Deliveries {
    /// The silences of units that are offline again after their returns, if the receiver of the letter was notified
    /// of them before. They follow the returns, so that the last message on such a unit does not say that it is back.
    async fn known_open(
        &self,
        letter: &Delivery,
        over: impl Iterator<Item = &OfflineRecord>,
    ) -> Result<Vec<OfflineRecord>> {
        let mut open = Vec::new();
        for record in over {
            let newest = self.queries.history(&record.id.unit, 1).await?.records.into_iter().next();
            open.extend(newest.filter(|newest| newest.closed_by.is_none()));
        }
        let memberships = self.groups.memberships(&open.iter().collect::<Vec<_>>()).await?;
        let is_known = |of_record: Vec<Membership>| {
            let in_group = of_record.into_iter().find(|one| one.group.key == letter.group.key);
            in_group.is_some_and(|one| one.is_known_to(&letter.receiver))
        };
        let mut is_known = memberships.into_iter().map(is_known);
        open.retain(|_| is_known.next().unwrap_or(false));
        // The notification of such a silence may be a dead letter, too.
        let known = Delivery { offline: open, online: Vec::new(), reminder: true, ..letter.clone() };
        let known = self.records.leave_out(&letter.receiver, vec![known]).await?;
        Ok(known.into_iter().flat_map(|one| one.offline).collect())
    }

    /// The end of an episode of flapping, if it is over.
    async fn ended(&self, episode: &OfflineRecord, now: Timestamp) -> Result<OfflineRecord> {
        let newest = self.queries.history(&episode.id.unit, 1).await?.records.into_iter().next();
        let (back_at, closing) = match newest {
            Some(open) if open.closed_by.is_none() => (open.deadline, Closing::StableOffline),
            newest => (newest.and_then(|newest| newest.back_at).unwrap_or(now), Closing::Stable),
        };
        Ok(OfflineRecord { back_at: Some(back_at), closed_by: Some(closing), ..episode.clone() })
    }

    /// The returns of the silences of a dead letter that are over, with the silences of their units that last.
    /// `None`: there are no returns, or they are still to be notified. Equal records give a delivery with the same
    /// id.
    pub(super) async fn returns_after(&self, letter: &Delivery, now: Timestamp) -> Result<Option<Delivery>> {
        let over = self.over(letter, now).await?;
        let offline = self.known_open(letter, over.iter().chain(&letter.online)).await?;
        if over.is_empty() && offline.is_empty() {
            return Ok(None);
        }
        let names: Vec<String> = over.iter().chain(&offline).map(|record| record.id.to_string()).collect();
        let id = notification_id(&letter.id, &names.join("\n"));
        let lasting = match letter.situation.lasting {
            Some(_) => {
                Some(self.groups.lasting(&letter.group.key, Timestamp::ZERO, None).await?.len() as u64)
            }
            None => None,
        };
        let incident = letter.situation.incident.as_ref();
        let incident = incident.map(|incident| after(incident, &letter.offline, &over));
        Ok(Some(Delivery {
            id: Delivery::id_of(&id, &letter.receiver),
            sealed_at: now,
            // A reminder, if it has only silences that its receiver knows.
            reminder: over.is_empty(),
            offline,
            online: over,
            situation: GroupContext { lasting, incident, ..letter.situation.clone() },
            ..letter.clone()
        }))
    }

    /// The silences of a dead letter that are over, and whose returns are not to be notified any more.
    async fn over(&self, letter: &Delivery, now: Timestamp) -> Result<Vec<OfflineRecord>> {
        let mut over = Vec::new();
        for silence in &letter.offline {
            if silence.is_unusual() {
                continue; // It is no stored record; its end joins its group when the unit is heard.
            }
            if silence.is_flapping() {
                over.push(self.ended(silence, now).await?);
                continue;
            }
            let is_it = |record: &OfflineRecord| record.detected_at == silence.detected_at;
            match self.queries.record(&silence.id).await? {
                Some(record) => over.extend(Some(record).filter(|one| is_it(one) && one.closed_by.is_some())),
                // The record was closed longer ago than records are kept.
                None => over.push(OfflineRecord {
                    back_at: Some(now),
                    closed_by: Some(Closing::Return),
                    ..silence.clone()
                }),
            }
        }
        let memberships = self.groups.memberships(&over.iter().collect::<Vec<_>>()).await?;
        let mut is_to_come = memberships
            .iter()
            .map(|memberships| memberships.iter().any(|one| one.group.key == letter.group.key));
        over.retain(|_| !is_to_come.next().unwrap_or(false));
        Ok(over)
    }
}

/// An incident after the silences `over` are over.
fn after(incident: &Incident, silences: &[OfflineRecord], over: &[OfflineRecord]) -> Incident {
    let until = over.iter().filter_map(|record| record.back_at).max();
    Incident {
        still_offline: silences.len().saturating_sub(over.len()) as u64,
        until: until.filter(|_| over.len() == silences.len()),
        ..incident.clone()
    }
}
