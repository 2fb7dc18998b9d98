//! The incident of a group, from the notification with which it begins to the one in which its last unit is back.
//!
//! A notification is judged before its first attempt, and the judgement is written into it: it is the same for every
//! attempt and every receiver. Only groups that units share have incidents, and only by labels that units are counted
//! by.
//!
//! # What is stored beside it
//! The engine stores which silences last. It does not store of which incident receivers were notified, and the number
//! of units that made it an incident changes. So a cell of the group holds that incident while it lasts. The cell is
//! written before the notification: an attempt that finds the cell of its own notification goes on with it.
//!
//! # Why no alert of a pager stays open
//! A pager closes the alert of an incident with the return of its last unit *of which this pager was notified*: after
//! an escalation or as a fallback it may know only a part of them. The silences that last say so; a count could not.
//! If the engine fails, a pager waits; another receiver is notified without the incident.

use std::sync::Arc;

use super::acknowledged::with_acknowledgements;
use super::group_incidents::GroupIncidents;
use crate::clock::Timestamp;
use crate::fleet::{Census, LastingIncident};
use crate::presence::{Incident, Judgement, LEAST, Members, earlier_from, judge_incident};
use crate::store::{Delivery, Document, EngineError, MAX_CHANGES, Result};

/// Judges the notifications of one receiver.
pub struct Incidents {
    pub lasting: Arc<GroupIncidents>,
    pub census: Arc<Census>,
    pub labels: Vec<String>,
    /// Whether the receiver gets acknowledgements, and has one alert for an incident.
    pub is_pager: bool,
}

impl Incidents {
    /// The delivery to attempt: with its incident, if it has one, and for a pager with the acknowledgements. `None`:
    /// a pager waits for the engine. The delivery is leased again when its lease ends.
    pub async fn attempted(&self, delivery: Arc<Delivery>, now: Timestamp) -> Option<Arc<Delivery>> {
        let id = delivery.id.clone();
        let judged = self.judged(&delivery).await;
        if !self.is_pager {
            let judged = judged.inspect_err(|error| {
                tracing::warn!(
                    delivery = id,
                    "the incident of a notification cannot be read; the notification is sent without it: {error}"
                );
            });
            return Some(with(delivery, judged.unwrap_or_default()));
        }
        let paged = async { with_acknowledgements(&self.lasting, with(delivery, judged?), now).await };
        let paged = paged.await.inspect_err(|error| {
            tracing::warn!(
                delivery = id,
                "incidents and acknowledgements cannot be read, the delivery waits: {error}"
            );
        });
        paged.ok()
    }

    /// The incidents that a delivery reports; `None`: the delivery stays as it is.
    async fn judged(&self, delivery: &Delivery) -> Result<Option<Judgement>> {
        let situation = &delivery.situation;
        let (is_again, is_judged) = (delivery.reminder || situation.is_escalation, situation.is_judged);
        if is_judged || self.labels.is_empty() || !delivery.blind.is_empty() {
            return Ok(None);
        }
        if is_again {
            return self.of_known(delivery).await.map(Some);
        }
        let Some(lasting) = situation.lasting else { return Ok(None) };
        let members = Members { offline: &delivery.offline, online: &delivery.online, lasting };
        for _ in 0..MAX_CHANGES {
            let known = self.lasting.of_group(&delivery.group.key).await?;
            if known.value.is_none() && (delivery.offline.is_empty() || lasting < LEAST) {
                // Unless it ended an incident: another receiver may have been faster.
                let told = self.lasting.deliveries.judged(delivery, None).await?;
                return Ok(told.map(of_list));
            }
            if let Some(judgement) = self.judge(delivery, members, known).await? {
                return Ok(Some(judgement));
            }
        }
        Err(EngineError::contended(format_args!("the incident of {}", delivery.group.key)))
    }

    /// The incident that receivers were notified of, if silences of a reminder or an escalation belong to it.
    async fn of_known(&self, delivery: &Delivery) -> Result<Judgement> {
        let known = self.lasting.of_group(&delivery.group.key).await?.value;
        let told = known.map(|known| known.incident);
        let told = told.filter(|told| delivery.offline.iter().any(|record| told.covers(record)));
        let Some(told) = told else { return Ok(Judgement::default()) };
        let list = vec![told];
        Ok(of_list(self.lasting.deliveries.judged(delivery, Some(&list)).await?.unwrap_or(list)))
    }

    /// Judges a notification. `None`: the incident of its group was changed meanwhile.
    async fn judge(
        &self,
        delivery: &Delivery,
        members: Members<'_>,
        mut known: Document<LastingIncident>,
    ) -> Result<Option<Judgement>> {
        let (deliveries, id) = (&self.lasting.deliveries, delivery.notification());
        if let Some(told) = deliveries.judged(delivery, None).await? {
            return Ok(Some(of_list(told)));
        }
        // An attempt that was cut off may have left an incident that is over.
        let before = known.value.clone().filter(|one| one.notification == id || one.incident.until.is_none());
        let (judgement, is_new) = match &before {
            Some(known) if known.notification == id || known.begun == delivery.sealed_at => {
                (known.judgement(), false)
            }
            // The notification was sealed before the incident began.
            Some(known) if known.begun > delivery.sealed_at => (Judgement::default(), false),
            _ => (self.decide(delivery, members, before.as_ref()).await?, true),
        };
        // A receiver that gets only a part does not judge for the others.
        if delivery.situation.is_part {
            return Ok(Some(judgement));
        }
        let mut is_written = false;
        if let Some(incident) = judgement.told.clone().filter(|_| is_new) {
            let begun = before.as_ref().filter(|_| judgement.replaced.is_none()).map(|before| before.begun);
            let after = LastingIncident {
                incident,
                replaced: judgement.replaced.clone(),
                notification: id.to_owned(),
                begun: begun.unwrap_or(delivery.sealed_at),
            };
            if !self.lasting.put(&known, Some(&after)).await? {
                return Ok(None);
            }
            (known, is_written) = (known.written(after)?, true);
        }
        let list: Vec<Incident> = judgement.told.into_iter().chain(judgement.replaced).collect();
        let told = deliveries.judged(delivery, Some(&list)).await?.unwrap_or_else(|| list.clone());
        if told != list && is_written {
            // Another attempt was faster and has decided otherwise, by other counts.
            self.lasting.put(&known, before.as_ref()).await?;
        } else if told.first().is_some_and(|told| told.until.is_some()) {
            self.lasting.put(&known, None).await?;
        }
        Ok(Some(of_list(told)))
    }

    async fn decide(
        &self,
        delivery: &Delivery,
        members: Members<'_>,
        before: Option<&LastingIncident>,
    ) -> Result<Judgement> {
        let (group, besides) = (&delivery.group.key, &delivery.offline);
        let units = |label: &str, value: &str| self.census.units_with(label, value);
        let before = before.map(|before| &before.incident);
        let mut earlier = Vec::new();
        if let Some(before) = before.filter(|before| before.is_concerned(members)) {
            earlier.extend(self.lasting.lasting(group, before, besides, None).await?);
        } else if before.is_none()
            && let Some(from) = earlier_from(members, &self.labels, units)
        {
            let notified = (from, Some(delivery.sealed_at));
            for ids in self.lasting.pages(group, notified, besides).await? {
                earlier.extend(self.lasting.records(ids).await?);
            }
        }
        Ok(judge_incident(before, members, &earlier, &self.labels, units))
    }
}

/// The incidents of a notification, as they are stored in it.
fn of_list(told: Vec<Incident>) -> Judgement {
    let mut told = told.into_iter();
    Judgement { told: told.next(), replaced: told.next() }
}

fn with(delivery: Arc<Delivery>, judged: Option<Judgement>) -> Arc<Delivery> {
    let Some(Judgement { told, replaced }) = judged.filter(|judged| judged.told.is_some()) else {
        return delivery;
    };
    let mut delivery = Arc::unwrap_or_clone(delivery);
    (delivery.situation.incident, delivery.situation.replaced) = (told, replaced);
    Arc::new(delivery)
}
