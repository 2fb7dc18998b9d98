//! Whether most units that share a label fell silent together: judged before the first attempt of a notification.
//!
//! The engine keeps the judgement in the notification, so that every receiver and every attempt is told the same, and
//! the incident of the group for its next notification. Only groups that units share have incidents, and only by labels
//! that units are counted by. If the engine fails, the notification is sent without an incident.

use std::sync::Arc;

use super::acknowledged::with_acknowledgements;
use crate::clock::Timestamp;
use crate::fleet::Census;
use crate::presence::{GroupIncident, Incident, Members, judge_incident};
use crate::store::{Delivery, EngineError, GroupStore, KeptIncident, Queries, Result, incident_in};

/// How often a judgement is repeated because another notification of the group was judged meanwhile.
const MAX_ATTEMPTS: usize = 3;

pub(super) struct Incidents {
    engine: Arc<dyn GroupStore>,
    census: Arc<Census>,
    labels: Vec<String>,
    /// For acknowledged records, if the receiver is a pager.
    queries: Option<Arc<dyn Queries>>,
}

impl Incidents {
    pub fn new(engine: Arc<dyn GroupStore>, census: Arc<Census>) -> Incidents {
        Incidents { labels: census.labels(), engine, census, queries: None }
    }

    /// For a pager, which is told of acknowledgements.
    pub fn with_acknowledgements(self, queries: Arc<dyn Queries>) -> Incidents {
        Incidents { queries: Some(queries), ..self }
    }

    /// The delivery as it is attempted: with its incident, if it has one, and for a pager with the acknowledgements.
    /// `None`: the acknowledgements cannot be read. The delivery is leased again when its lease ends.
    pub async fn attempted(&self, delivery: Arc<Delivery>, now: Timestamp) -> Option<Arc<Delivery>> {
        let delivery = self.judged(delivery, now).await;
        let Some(queries) = &self.queries else { return Some(delivery) };
        let id = delivery.id.clone();
        match with_acknowledgements(&*self.engine, &**queries, delivery, now).await {
            Ok(delivery) => Some(delivery),
            Err(error) => {
                tracing::warn!(delivery = id, "acknowledgements cannot be read, the delivery waits: {error}");
                None
            }
        }
    }

    /// The delivery with its incident, if it has one.
    async fn judged(&self, delivery: Arc<Delivery>, now: Timestamp) -> Arc<Delivery> {
        let is_again = delivery.reminder || delivery.situation.is_escalation;
        if is_again && !self.labels.is_empty() {
            return match self.of_known(&delivery, now).await {
                Ok(incident) => with(delivery, incident),
                Err(error) => without(delivery, &error),
            };
        }
        let situation = &delivery.situation;
        let is_judged = situation.is_judged || is_again || !delivery.blind.is_empty();
        let Some(lasting) = situation.lasting.filter(|_| !is_judged && !self.labels.is_empty()) else {
            return delivery;
        };
        match self.judge(&delivery, lasting, now).await {
            Ok(incident) => with(delivery, incident),
            Err(error) => without(delivery, &error),
        }
    }

    /// The incident that receivers were notified of, if silences of a reminder or an escalation belong to it.
    async fn of_known(&self, delivery: &Delivery, now: Timestamp) -> Result<Option<Incident>> {
        if delivery.situation.is_judged {
            return Ok(delivery.situation.incident.clone());
        }
        let before = self.engine.incident(&delivery.group.key).await?;
        let kept = before.as_deref().and_then(incident_in).filter(|kept| kept.is_notified);
        let belongs = |kept: &GroupIncident| delivery.offline.iter().any(|one| kept.incident.covers(one));
        let Some(kept) = kept.filter(belongs) else { return Ok(None) };
        let notified = Some(&kept.incident);
        match self.engine.keep_incident(delivery, notified, before.as_deref(), Some(&kept), now).await? {
            KeptIncident::Known(notified) => Ok(notified),
            KeptIncident::Kept | KeptIncident::Changed => Ok(Some(kept.incident)),
        }
    }

    async fn judge(&self, delivery: &Delivery, lasting: u64, now: Timestamp) -> Result<Option<Incident>> {
        let members = Members { offline: &delivery.offline, online: &delivery.online, lasting };
        for _ in 0..MAX_ATTEMPTS {
            let before = self.engine.incident(&delivery.group.key).await?;
            let units = |label: &str, value: &str| self.census.units_with(label, value);
            let judged =
                judge_incident(before.as_deref().and_then(incident_in), members, &self.labels, units);
            let (notified, kept) = (judged.notified.as_ref(), judged.kept.as_ref());
            match self.engine.keep_incident(delivery, notified, before.as_deref(), kept, now).await? {
                KeptIncident::Kept => return Ok(judged.notified),
                KeptIncident::Known(notified) => return Ok(notified),
                KeptIncident::Changed => {}
            }
        }
        Ok(None)
    }
}

fn with(delivery: Arc<Delivery>, incident: Option<Incident>) -> Arc<Delivery> {
    if incident.is_none() {
        return delivery;
    }
    let mut delivery = Arc::unwrap_or_clone(delivery);
    delivery.situation.incident = incident;
    Arc::new(delivery)
}

fn without(delivery: Arc<Delivery>, error: &EngineError) -> Arc<Delivery> {
    let id = &delivery.id;
    tracing::warn!(
        delivery = id,
        "the incident of a notification cannot be read; the notification is sent without it: {error}"
    );
    delivery
}
