//! Delivering again: dead letters, and notifications that were delivered.

use super::{
    Deliveries, DeliveriesChanged, DeliveriesError, DeliveriesResult, DeliveryFilter, MAX_STEP, WantedState,
    delivered_to, is_delivered, parse,
};
use crate::clock::Timestamp;
use crate::store::{Attempt, Audited, Delivery, EntryOrder, Result};

/// A notification that is delivered again.
pub(super) struct Again {
    pub delivery: Delivery,
    /// Whether it was a dead letter.
    is_letter: bool,
}

impl Again {
    fn letter(delivery: Delivery) -> Again {
        Again { delivery, is_letter: true }
    }

    fn delivered(delivery: Delivery) -> Again {
        Again { delivery, is_letter: false }
    }
}

impl Deliveries {
    /// Delivers a notification again, to one receiver or to each that it was given up for or delivered to. Answers how
    /// many deliveries were queued. `configured`: the receivers of the configuration; `by`: the operator, for the
    /// audit.
    pub async fn replay(
        &self,
        id: &str,
        configured: &[String],
        by: &str,
        now: Timestamp,
    ) -> DeliveriesResult<usize> {
        let (notification, of) = parse(id)?;
        let attempts = self.attempts_of(notification, of).await?;
        let mut names = self.receivers(&DeliveryFilter::default()).await?;
        names.extend(attempts.iter().map(|attempt| attempt.receiver.clone()));
        names.retain(|name| of.is_none_or(|of| of == name));
        let absent = names.iter().find(|name| !configured.contains(name)).cloned();
        names.retain(|name| configured.contains(name));
        let mut again = Vec::new();
        for name in &names {
            let delivered = delivered_to(name, &attempts, notification);
            if delivered.iter().any(|attempt| !attempt.guarantee.is_at_least_once()) {
                let why = format!(
                    "{notification} is of a timer that is delivered at most once; register a new timer"
                );
                return Err(DeliveriesError::Refused(why));
            }
            if let Some(letter) = self.records.letter(name, notification).await? {
                again.push(Again::letter(letter.delivery));
                continue;
            }
            for attempt in delivered {
                again.extend(self.made_again(attempt).await?.map(Again::delivered));
            }
        }
        again.sort_by_key(|one| one.delivery.sealed_at);
        match absent {
            Some(absent) if again.is_empty() => return Err(not_configured(&absent)),
            None if again.is_empty() => return Err(DeliveriesError::Unknown(id.to_owned())),
            _ => {}
        }
        let count = self.queue(&again, now).await?;
        self.note(Audited::DeliveriesReplayed, by, id, count, now).await?;
        Ok(count)
    }

    /// Delivers a bounded number of dead letters again or, if the filter says so, of delivered notifications.
    pub async fn replay_all(
        &self,
        filter: &DeliveryFilter,
        cursor: Option<&str>,
        configured: &[String],
        by: &str,
        now: Timestamp,
    ) -> DeliveriesResult<(DeliveriesChanged, Option<String>)> {
        if let Some(absent) = filter.receiver.as_ref().filter(|name| !configured.contains(name)) {
            return Err(not_configured(absent));
        }
        if filter.state.is_some_and(WantedState::waits) {
            let why = "what waits is delivered by itself; write the state dead or delivered";
            return Err(DeliveriesError::Refused(why.to_owned()));
        }
        let state = filter.state.unwrap_or(WantedState::Dead);
        // Notifications that are delivered from now on are not delivered again.
        let until = filter.until.unwrap_or(now);
        let filter = DeliveryFilter { state: Some(state), until: Some(until), ..filter.clone() };
        let (mut again, mut next) = (Vec::new(), None);
        if state == WantedState::Dead {
            let letters = self.letters_in(&filter, |receiver| configured.contains(receiver)).await?;
            again.extend(letters.into_iter().map(|letter| Again::letter(letter.delivery)));
        } else {
            let page = self.list_in(EntryOrder::OldestFirst, &filter, MAX_STEP, cursor, &[]).await?;
            for line in page.deliveries {
                let (notification, of) = parse(&line.id)?;
                let attempts = self.attempts_of(notification, of).await?;
                let delivered = attempts.iter().find(|one| is_delivered(one));
                let is_repeatable = |attempt: &&Attempt| {
                    attempt.guarantee.is_at_least_once() && configured.contains(&attempt.receiver)
                };
                if let Some(attempt) = delivered.filter(is_repeatable) {
                    again.extend(self.made_again(attempt).await?.map(Again::delivered));
                }
            }
            next = page.next;
        }
        // Queue in the order of sealing: the last delivery to a receiver shows the current state.
        again.sort_by_key(|one| one.delivery.sealed_at);
        let count = self.queue(&again, now).await?;
        let more = next.is_some() || state == WantedState::Dead && again.len() == MAX_STEP && count > 0;
        let subject = filter.receiver.as_deref().unwrap_or("all receivers");
        self.note(Audited::DeliveriesReplayed, by, subject, count, now).await?;
        Ok((DeliveriesChanged { count, more }, next))
    }

    /// Queues deliveries. Answers how many, without the returns behind them.
    async fn queue(&self, all: &[Again], now: Timestamp) -> Result<usize> {
        let mut count = 0;
        for Again { delivery, is_letter } in all {
            let again = Delivery { again_at: Some(now), ..delivery.clone() };
            count += usize::from(self.records.replay(&again, now).await?);
            // Returns that are notified from now on follow by themselves.
            if *is_letter {
                let returns = self.returns_after(delivery, now).await?;
                for following in returns.into_iter().chain(self.end_after(delivery, all, now).await?) {
                    self.records.replay(&following, now).await?;
                }
            }
        }
        Ok(count)
    }
}

fn not_configured(receiver: &str) -> DeliveriesError {
    let why = format!(
        "the receiver {receiver} is not configured: configure it again, or remove its dead letters (`rollcall deliveries \
         purge --receiver {receiver}`)"
    );
    DeliveriesError::Refused(why)
}
