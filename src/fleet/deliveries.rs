//! Deliveries as operators see and change them: waiting ones, dead letters, delivered ones, and how each attempt
//! went; delivering again, and removing dead letters.
//!
//! A list has three parts, one after the other: notifications that wait, dead letters, and delivered notifications of
//! the record of attempts. Each is read in bounded steps, and a page says where the next one begins.
//!
//! # What can be delivered again
//! A dead letter holds its notification. A delivered notification is built again from its offline records or its
//! timer, as it was sealed, as long as the engine has these and the record of attempts has the delivery. Both keep
//! their ids, so a receiver recognizes the repetition. A timer that is delivered at most once is never delivered
//! again. The returns of silences that are over follow the dead letter, see `returns.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Attempts, MassBreaker, Roll, Silences};
use crate::clock::Timestamp;
use crate::presence::{FiredTimer, Interval, Kind, OfflineRecord};
use crate::store::{
    Attempt, AttemptResult, AuditEntry, Audited, DeadLetter, Discarded, EngineError, EntryOrder, Queries,
    Result, StoredDeliveries, StoredGroups, StoredTimers, WaitingDelivery, is_digest,
};

mod ends;
mod line;
mod list;
mod made_again;
mod of_record;
mod replay;
mod returns;

pub use line::{DeliveryLine, DeliveryState, WantedState};
use line::{delivered_line, letter_line, waiting_line};
pub use of_record::{Notice, NoticeType, RecordNotices};

/// The most deliveries of a page.
pub const MAX_PAGE: usize = 1000;
/// The most deliveries that one call delivers again or removes.
const MAX_STEP: usize = 500;
/// The most steps of the engine of one call that discards deliveries; a step is up to 500 of them.
const DISCARD_STEPS: usize = 10;
/// The most pages of waiting notifications that a search for one notification reads.
const PAGES: usize = 1000;

/// Which deliveries are wanted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryFilter {
    pub receiver: Option<String>,
    pub state: Option<WantedState>,
    /// Waiting deliveries by when they were sealed, others by when they ended.
    pub from: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl DeliveryFilter {
    fn takes(&self, one: &DeliveryLine) -> bool {
        self.state.is_none_or(|state| state.takes(one.state))
            && self.receiver.as_ref().is_none_or(|name| *name == one.receiver)
            && (self.from()..=self.until()).contains(&one.at)
    }

    fn wants(&self, is_part: impl Fn(WantedState) -> bool) -> bool {
        self.state.is_none_or(is_part)
    }

    fn from(&self) -> Timestamp {
        self.from.unwrap_or(Timestamp::ZERO)
    }

    fn until(&self) -> Timestamp {
        self.until.unwrap_or(Timestamp::from_millis(i64::MAX))
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct DeliveryPage {
    pub deliveries: Vec<DeliveryLine>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttemptLine {
    pub receiver: String,
    pub number: u32,
    pub at: Timestamp,
    pub took_ms: u64,
    pub result: AttemptResult,
    pub answer: String,
}

/// A notification with its attempts, records and timers.
#[derive(Clone, Debug, Serialize)]
pub struct DeliveryDetails {
    pub deliveries: Vec<DeliveryLine>,
    /// In the order in which they were made.
    pub attempts: Vec<AttemptLine>,
    pub offline: Vec<OfflineRecord>,
    pub online: Vec<OfflineRecord>,
    pub blind: Vec<Interval>,
    /// The timer, if it is the notification of one.
    pub timers: Vec<FiredTimer>,
}

/// How many deliveries a call changed, and whether there are more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeliveriesChanged {
    pub count: usize,
    pub more: bool,
}

/// Why nothing is listed or changed.
#[derive(Debug, thiserror::Error)]
pub enum DeliveriesError {
    #[error("there is no delivery {0}; its receiver may have got it longer ago than records.keep_deliveries")]
    Unknown(String),
    #[error("cursor is not one that a page before this gave as `next`")]
    Cursor,
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

type DeliveriesResult<T> = std::result::Result<T, DeliveriesError>;

/// Lists, replays and removes the deliveries of a fleet.
#[derive(Clone)]
pub struct Deliveries {
    pub records: StoredDeliveries,
    pub attempts: Attempts,
    /// For the records of delivered notifications.
    pub queries: Arc<dyn Queries>,
    /// For the returns that are still to be notified.
    pub groups: StoredGroups,
    /// For the ends of blindness.
    pub roll: Arc<Roll>,
    pub breaker: Arc<MassBreaker>,
    /// For the timers of delivered notifications.
    pub timers: StoredTimers,
    /// For the audit.
    pub silences: Arc<Silences>,
}

impl Deliveries {
    /// One notification: `id` with a receiver, or for all receivers.
    pub async fn show(&self, id: &str, configured: &[String]) -> DeliveriesResult<DeliveryDetails> {
        let (notification, of) = parse(id)?;
        let mut attempts = self.attempts_of(notification, of).await?;
        attempts.sort_by_key(|attempt| (attempt.at, attempt.number));
        let mut names = self.receivers(&DeliveryFilter::default()).await?;
        names.extend(attempts.iter().map(|attempt| attempt.receiver.clone()));
        names.retain(|name| of.is_none_or(|of| of == name));
        let (mut lines, mut content) = (Vec::new(), None);
        for name in &names {
            let delivered = delivered_to(name, &attempts, notification);
            if let Some(letter) = self.records.letter(name, notification).await? {
                lines.push(letter_line(&letter));
                content = Some(letter.delivery);
            } else if let Some(waiting) = self.waiting_one(name, notification).await? {
                lines.push(waiting_line(&waiting, !configured.contains(name)));
                content = Some(waiting.delivery);
            } else {
                lines.extend(delivered.iter().map(|attempt| delivered_line(attempt, attempt.at)));
                if let [only] = delivered[..] {
                    content = content.or(self.made_again(only).await?);
                }
            }
        }
        if lines.is_empty() && attempts.is_empty() {
            return Err(DeliveriesError::Unknown(id.to_owned()));
        }
        let (offline, online, blind, timers) =
            content.map(|one| (one.offline, one.online, one.blind, one.timers)).unwrap_or_default();
        let attempts = attempts.into_iter().map(|one| AttemptLine {
            receiver: one.receiver,
            number: one.number,
            at: one.at,
            took_ms: one.took_ms,
            result: one.result,
            answer: one.answer,
        });
        Ok(DeliveryDetails {
            deliveries: lines,
            attempts: attempts.collect(),
            offline,
            online,
            blind,
            timers,
        })
    }

    /// Removes a bounded number of dead letters.
    pub async fn purge(
        &self,
        filter: &DeliveryFilter,
        by: &str,
        now: Timestamp,
    ) -> DeliveriesResult<DeliveriesChanged> {
        if filter.state.is_some_and(|state| state != WantedState::Dead) {
            return Err(DeliveriesError::Refused("only dead letters are purged".to_owned()));
        }
        let letters = self.letters_in(filter, |_| true).await?;
        let count = self.records.purge(&letters).await?;
        let subject = filter.receiver.as_deref().unwrap_or("all receivers");
        self.note(Audited::DeliveriesPurged, by, subject, count, now).await?;
        Ok(DeliveriesChanged { count, more: count > 0 && letters.len() == MAX_STEP })
    }

    /// Discards a bounded number of a receiver's waiting notifications and dead letters.
    pub async fn discard(
        &self,
        receiver: &str,
        by: &str,
        now: Timestamp,
    ) -> DeliveriesResult<DeliveriesChanged> {
        if !is_receiver(receiver) {
            return Err(DeliveriesError::Refused(format!("{receiver:?} is not a name of a receiver")));
        }
        let (mut count, mut more) = (0, true);
        for _ in 0..DISCARD_STEPS {
            // A waiting notification becomes a dead letter first, which a later step removes.
            let step = self.records.discard(receiver, now).await?;
            count += step.removed;
            more = step != Discarded::default();
            if !more || count >= MAX_STEP {
                break;
            }
        }
        self.note(Audited::DeliveriesDiscarded, by, receiver, count, now).await?;
        Ok(DeliveriesChanged { count, more })
    }

    async fn note(
        &self,
        change: Audited,
        by: &str,
        subject: &str,
        count: usize,
        now: Timestamp,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let (author, subject) = (by.to_owned(), subject.to_owned());
        let text = format!("{count} deliveries");
        self.silences.note(&AuditEntry { at: now, author, change, subject, text }).await
    }

    async fn letters_in(
        &self,
        filter: &DeliveryFilter,
        is_wanted: impl Fn(&String) -> bool,
    ) -> Result<Vec<DeadLetter>> {
        let mut letters = Vec::new();
        for receiver in self.receivers(filter).await?.into_iter().filter(is_wanted) {
            let most = MAX_STEP - letters.len();
            if most > 0 {
                let (from, until) = (filter.from(), filter.until());
                let order = EntryOrder::OldestFirst;
                letters.extend(self.records.dead_letters_between(&receiver, from, until, most, order).await?);
            }
        }
        Ok(letters)
    }

    /// The receivers with a backlog that the filter takes.
    async fn receivers(&self, filter: &DeliveryFilter) -> Result<BTreeSet<String>> {
        let names = self.records.kept().await?.into_iter().map(|(name, _)| name);
        Ok(names.filter(|name| filter.receiver.as_ref().is_none_or(|wanted| wanted == name)).collect())
    }

    async fn attempts_of(&self, notification: &str, receiver: Option<&str>) -> Result<Vec<Attempt>> {
        let mut attempts = self.attempts.of_notification(notification).await?;
        attempts.retain(|one| receiver.is_none_or(|name| name == one.receiver));
        Ok(attempts)
    }

    async fn waiting_one(&self, receiver: &str, notification: &str) -> Result<Option<WaitingDelivery>> {
        let mut after = None;
        for _ in 0..PAGES {
            let page = self.records.waiting(receiver, after.as_deref()).await?;
            let mut waiting = page.waiting.into_iter();
            let found = waiting.find(|one| one.delivery.notification() == notification);
            if found.is_some() || page.next.is_none() {
                return Ok(found);
            }
            after = page.next;
        }
        Ok(None)
    }
}

/// The notification and the receiver of an id.
fn parse(id: &str) -> DeliveriesResult<(&str, Option<&str>)> {
    // The notification of a timer is named by the timer, which may have dots, and its moment behind a colon.
    let is_plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'/');
    let is_named_well = |text: &str| {
        !text.is_empty() && text.bytes().all(is_plain) && (!text.contains('.') || text.contains(':'))
    };
    let (notification, receiver) = match id.rsplit_once('.') {
        Some((notification, receiver)) if is_receiver(receiver) => (notification, Some(receiver)),
        _ => (id, None),
    };
    if !is_named_well(notification) {
        let why = format!("{id:?} is not an id of a delivery; write <notification>.<receiver>");
        return Err(DeliveriesError::Refused(why));
    }
    Ok((notification, receiver))
}

/// Receivers are named as kinds are.
fn is_receiver(name: &str) -> bool {
    name.parse::<Kind>().is_ok()
}

/// The attempts that delivered a notification, or the notifications in a digest, to a receiver.
fn delivered_to<'a>(receiver: &str, attempts: &'a [Attempt], notification: &str) -> Vec<&'a Attempt> {
    let delivered = attempts.iter().rev().filter(|one| is_delivered(one) && one.receiver == receiver);
    delivered.take(if is_digest(notification) { usize::MAX } else { 1 }).collect()
}

fn is_delivered(attempt: &Attempt) -> bool {
    attempt.result == AttemptResult::Delivered
}
