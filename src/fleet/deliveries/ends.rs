//! The end that follows a dead letter of blindness or of the mass-offline breaker, if the letter is delivered again
//! after that is over: otherwise a pager would keep its page open.

use super::Deliveries;
use super::replay::Again;
use crate::clock::Timestamp;
use crate::presence::{Interval, Kind, Labels, Ledger, Release, ReleaseReason};
use crate::routing::MASS_OFFLINE;
use crate::store::{Delivery, Result, notification_id};

impl Deliveries {
    /// The end to deliver after `letter`. `None`: the letter says when it ended, the blindness or the trip still
    /// lasts, or its end is in `all`.
    pub(super) async fn end_after(
        &self,
        letter: &Delivery,
        all: &[Again],
        now: Timestamp,
    ) -> Result<Option<Delivery>> {
        let Some(begun) = letter.blind.iter().find(|interval| !interval.is_over()) else { return Ok(None) };
        let is_its_end = |other: &Delivery| {
            let is_of_it = other.receiver == letter.receiver && other.group_key() == letter.group_key();
            is_of_it && other.blind.iter().any(|interval| interval.is_over() && interval.from == begun.from)
        };
        if all.iter().any(|again| is_its_end(&again.delivery)) {
            return Ok(None);
        }
        let mut group = letter.group.clone();
        let to = match letter.group_key() {
            MASS_OFFLINE => self.released_at(begun.from, &mut group.labels).await?,
            _ => self.heard_again_at(begun.from, &group.labels).await?,
        };
        let id = notification_id(&letter.id, "end");
        Ok(to.map(|to| Delivery {
            id: Delivery::id_of(&id, &letter.receiver),
            sealed_at: now,
            group,
            blind: vec![Interval { from: begun.from, to }],
            ..letter.clone()
        }))
    }

    /// When the trip of this moment was released. Adds the release to the labels.
    async fn released_at(&self, tripped_at: Timestamp, labels: &mut Labels) -> Result<Option<Timestamp>> {
        let release = match self.breaker.last().await? {
            Some(trip) if trip.at == tripped_at => trip.released,
            // Only the last trip is stored; a later trip begins after the release of this one.
            Some(later) => Some(Release { at: later.at, why: ReleaseReason::Time, offline: 0 }),
            None => None,
        };
        let Some(release) = release else { return Ok(None) };
        for notice in labels.values_mut() {
            if let Ok(serde_json::Value::Object(mut fields)) = serde_json::from_str(notice) {
                fields.insert("released".to_owned(), serde_json::json!(release));
                *notice = serde_json::Value::Object(fields).to_string();
            }
        }
        Ok(Some(release.at))
    }

    /// When the fleet, or the kind of the group, was heard again after this moment.
    async fn heard_again_at(&self, from: Timestamp, labels: &Labels) -> Result<Option<Timestamp>> {
        let hearing = self.roll.refresh_hearing().await?;
        let end_in = |ledger: &Ledger| {
            ledger.intervals().iter().find(|interval| interval.contains(from)).map(|interval| interval.to)
        };
        let kind = labels.get("kind").and_then(|kind| kind.parse::<Kind>().ok());
        let hearing = kind.as_ref().map_or(&*hearing, |kind| hearing.of(kind));
        // The ledger has no interval if the broker had kept the messages of that time.
        let heard = hearing.heard.filter(|heard| *heard > from);
        Ok(heard.map(|heard| end_in(&hearing.ledger).unwrap_or(heard)))
    }
}
