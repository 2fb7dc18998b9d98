//! Whether most units that share a label fell silent together: judged before the first attempt of a notification.
//!
//! The engine keeps the judgement in the notification, so that every receiver and every attempt is told the same, and
//! what belongs to the group for its next notification. Only groups that units share have incidents, and only by labels that units
//! are counted by. If the engine fails, the notification is sent without.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::fleet::Census;
use crate::presence::{Incident, Members, judge_incident};
use crate::store::{AlertStore, Delivery, KeptIncident, Result, incident_in};

/// How often a judgement is repeated because another notification of the group was judged meanwhile.
const TRIES: usize = 3;

pub(super) struct Incidents {
    engine: Arc<dyn AlertStore>,
    census: Arc<Census>,
    labels: Vec<String>,
}

impl Incidents {
    pub fn new(engine: Arc<dyn AlertStore>, census: Arc<Census>) -> Incidents {
        Incidents { labels: census.labels(), engine, census }
    }

    /// The delivery with its incident, if it has one.
    pub async fn judged(&self, delivery: Arc<Delivery>, now: Timestamp) -> Arc<Delivery> {
        let situation = &delivery.situation;
        let is_judged = situation.is_judged || delivery.reminder || !delivery.blind.is_empty();
        let Some(lasting) = situation.lasting.filter(|_| !is_judged && !self.labels.is_empty()) else {
            return delivery;
        };
        match self.judge(&delivery, lasting, now).await {
            Ok(None) => delivery,
            Ok(incident) => {
                let mut delivery = Arc::unwrap_or_clone(delivery);
                delivery.situation.incident = incident;
                Arc::new(delivery)
            }
            Err(error) => {
                tracing::warn!(
                    delivery = delivery.id,
                    "the notification is sent without the incident that it may belong to: {error}"
                );
                delivery
            }
        }
    }

    async fn judge(&self, delivery: &Delivery, lasting: u64, now: Timestamp) -> Result<Option<Incident>> {
        let members = Members { offline: &delivery.offline, online: &delivery.online, lasting };
        for _ in 0..TRIES {
            let before = self.engine.incident(&delivery.group.key).await?;
            let units = |label: &str, value: &str| self.census.units_with(label, value);
            let judged =
                judge_incident(before.as_deref().and_then(incident_in), members, &self.labels, units);
            let (told, kept) = (judged.told.as_ref(), judged.kept.as_ref());
            match self.engine.keep_incident(delivery, told, before.as_deref(), kept, now).await? {
                KeptIncident::Kept => return Ok(judged.told),
                KeptIncident::Known(told) => return Ok(told),
                KeptIncident::Changed => {}
            }
        }
        Ok(None)
    }
}
