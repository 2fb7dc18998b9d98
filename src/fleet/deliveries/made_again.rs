//! Builds a delivered notification again from its offline records or its timer.

use super::Deliveries;
use crate::presence::{FiredTimer, OfflineRecord, RecordId};
use crate::store::{ACKNOWLEDGEMENT, Attempt, Delivery, Group, Result, timer_and_due};

impl Deliveries {
    /// The delivery of an attempt, from its timer, or from its offline records as they were when it was sealed; `None`
    /// if they are gone.
    pub(super) async fn made_again(&self, attempt: &Attempt) -> Result<Option<Delivery>> {
        let (mut offline, mut online) = (Vec::new(), Vec::new());
        for record in self.records(&attempt.offline).await? {
            // Only the notification of an acknowledgement has acknowledgements, and says nothing else.
            let acknowledged =
                record.acknowledged.clone().filter(|_| attempt.notification.starts_with(ACKNOWLEDGEMENT));
            offline.push(OfflineRecord { back_at: None, closed_by: None, acknowledged, ..record });
        }
        online.extend(self.records(&attempt.online).await?.into_iter().filter(|one| one.closed_by.is_some()));
        let flapping = attempt.flapping.iter().cloned();
        let (begun, ended): (Vec<_>, Vec<_>) = flapping.partition(|one| one.closed_by.is_none());
        offline.extend(begun);
        online.extend(ended);
        let blind = attempt.blind.clone();
        let timers: Vec<FiredTimer> = self.timer_of(attempt).await?.into_iter().collect();
        let is_empty = offline.is_empty() && online.is_empty() && blind.is_empty() && timers.is_empty();
        Ok((!is_empty).then(|| Delivery {
            id: attempt.delivery(),
            receiver: attempt.receiver.clone(),
            group: Group { key: attempt.group.clone(), labels: attempt.labels.clone() },
            sealed_at: attempt.sealed_at,
            offline,
            online,
            blind,
            timers,
            reminder: attempt.reminder,
            situation: attempt.situation.clone(),
            meant_for: attempt.meant_for.clone(),
            of_group: None,
            again_at: None,
            attempt: 0,
            is_alone: false,
        }))
    }

    /// The timer of an attempt; `None`: the attempt has no timer, or the timer was removed, or registered again
    /// since.
    async fn timer_of(&self, attempt: &Attempt) -> Result<Option<FiredTimer>> {
        let Some((id, due)) = timer_and_due(&attempt.group, &attempt.notification) else { return Ok(None) };
        let timer = self.timers.timers(&[id]).await?.into_iter().flatten().find(|timer| timer.due == due);
        Ok(timer.and_then(|timer| FiredTimer::of(timer, attempt.guarantee)))
    }

    async fn records(&self, ids: &[RecordId]) -> Result<Vec<OfflineRecord>> {
        let mut records = Vec::new();
        for id in ids {
            records.extend(self.queries.record(id).await?);
        }
        Ok(records)
    }
}
