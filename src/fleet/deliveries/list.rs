//! Pages of deliveries: waiting ones, receiver by receiver, each followed by its dead letters; then delivered ones.

use std::collections::{BTreeSet, HashMap, HashSet};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};

use super::line::{delivered_line, letter_line, waiting_line};
use super::{
    Deliveries, DeliveriesError, DeliveriesResult, DeliveryFilter, DeliveryLine, DeliveryPage, DeliveryState,
    WantedState,
};
use crate::clock::Timestamp;
use crate::store::{Attempt, Delivery, EntryOrder};

/// How many reads one page takes at the most; a page that matched little is short.
const READS: usize = 50;

/// The least number of steps whose attempts are read at once: a filter may match few of them.
const LEAST: usize = 64;

/// Where a page begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum ListPosition {
    /// A page of the engine, without its first `skip` deliveries.
    Waiting { receiver: String, after: Option<String>, skip: usize },
    /// The newest letters up to `until`, without the first `skip`.
    Dead { receiver: String, until: Timestamp, skip: usize },
    /// A page of attempts that begins `skip` attempts after `at`, in the order of the list.
    Delivered { at: Timestamp, skip: usize },
}

impl ListPosition {
    fn write(&self) -> String {
        HEXLOWER.encode(serde_json::to_string(self).unwrap_or_default().as_bytes())
    }

    fn read(text: &str) -> Option<ListPosition> {
        serde_json::from_slice(&HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?).ok()
    }
}

/// A page that is being filled.
struct Filling<'a> {
    deliveries: &'a Deliveries,
    filter: &'a DeliveryFilter,
    limit: usize,
    configured: &'a [String],
    /// The order of delivered notifications.
    order: EntryOrder,
    /// In the order of the list.
    receivers: BTreeSet<String>,
    page: DeliveryPage,
    /// The deliveries that failed and wait, by their ids: the keys of their groups, and their notifications.
    failed: HashMap<String, (String, String)>,
}

impl Deliveries {
    /// A page of deliveries. `configured`: the receivers of the configuration.
    pub async fn list(
        &self,
        filter: &DeliveryFilter,
        limit: usize,
        cursor: Option<&str>,
        configured: &[String],
    ) -> DeliveriesResult<DeliveryPage> {
        self.list_in(EntryOrder::NewestFirst, filter, limit, cursor, configured).await
    }

    /// A page of deliveries, with the delivered notifications in `order`.
    pub(super) async fn list_in(
        &self,
        order: EntryOrder,
        filter: &DeliveryFilter,
        limit: usize,
        cursor: Option<&str>,
        configured: &[String],
    ) -> DeliveriesResult<DeliveryPage> {
        let receivers = self.receivers(filter).await?;
        let page = DeliveryPage::default();
        let failed = HashMap::new();
        let mut filling =
            Filling { deliveries: self, filter, limit, configured, order, receivers, page, failed };
        let mut cursor = match cursor {
            Some(text) => Some(ListPosition::read(text).ok_or(DeliveriesError::Cursor)?),
            None => Some(filling.begin(None)),
        };
        for _ in 0..READS {
            if filling.room() == 0 {
                break;
            }
            cursor = match cursor {
                Some(at) => filling.read(at).await?,
                None => break,
            };
        }
        filling.page.next = cursor.map(|cursor| cursor.write());
        filling.add_failures().await?;
        Ok(filling.page)
    }
}

impl Filling<'_> {
    fn room(&self) -> usize {
        self.limit.saturating_sub(self.page.deliveries.len())
    }

    /// The begin of the receiver after this one, or of the record of attempts.
    fn begin(&self, after: Option<&String>) -> ListPosition {
        match self.receivers.iter().find(|name| after.is_none_or(|after| *name > after)) {
            Some(receiver) => ListPosition::Waiting { receiver: receiver.clone(), after: None, skip: 0 },
            None => {
                let at = match self.order {
                    EntryOrder::NewestFirst => self.filter.until(),
                    EntryOrder::OldestFirst => self.filter.from(),
                };
                ListPosition::Delivered { at, skip: 0 }
            }
        }
    }

    /// Reads one step of the list. Answers where to go on.
    async fn read(&mut self, at: ListPosition) -> DeliveriesResult<Option<ListPosition>> {
        match at {
            ListPosition::Waiting { receiver, after, skip } => {
                self.waiting(receiver, after, skip).await.map(Some)
            }
            ListPosition::Dead { receiver, until, skip } => self.dead(receiver, until, skip).await.map(Some),
            ListPosition::Delivered { at, skip } => self.delivered(at, skip).await,
        }
    }

    async fn waiting(
        &mut self,
        receiver: String,
        after: Option<String>,
        skip: usize,
    ) -> DeliveriesResult<ListPosition> {
        let until = self.filter.until();
        if !self.filter.wants(WantedState::waits) {
            return Ok(ListPosition::Dead { receiver, until, skip: 0 });
        }
        let all = self.deliveries.records.waiting(&receiver, after.as_deref()).await?;
        let is_orphan = !self.configured.contains(&receiver);
        for (behind, one) in all.waiting.iter().enumerate().skip(skip) {
            if self.room() == 0 {
                return Ok(ListPosition::Waiting { receiver, after, skip: behind });
            }
            let line = waiting_line(one, is_orphan);
            if line.state == DeliveryState::Failed {
                let Delivery { group, .. } = &one.delivery;
                self.failed
                    .insert(line.id.clone(), (group.key.clone(), one.delivery.notification().to_owned()));
            }
            self.add(line);
        }
        Ok(match all.next {
            Some(next) => ListPosition::Waiting { receiver, after: Some(next), skip: 0 },
            None => ListPosition::Dead { receiver, until, skip: 0 },
        })
    }

    async fn dead(
        &mut self,
        receiver: String,
        until: Timestamp,
        skip: usize,
    ) -> DeliveriesResult<ListPosition> {
        let following = self.begin(Some(&receiver));
        if !self.filter.wants(|state| state == WantedState::Dead) {
            return Ok(following);
        }
        let shown = skip + self.room();
        let (records, from) = (&self.deliveries.records, self.filter.from());
        let letters =
            records.dead_letters_between(&receiver, from, until, shown + 1, EntryOrder::NewestFirst).await?;
        letters.iter().take(shown).skip(skip).for_each(|letter| self.add(letter_line(letter)));
        // The next page begins with the other letters of the last moment.
        Ok(match letters.get(shown - 1).filter(|_| letters.len() > shown).map(|letter| letter.at) {
            Some(until) => {
                let skip = letters.iter().take(shown).filter(|letter| letter.at == until).count();
                ListPosition::Dead { receiver, until, skip }
            }
            None => following,
        })
    }

    async fn delivered(&mut self, begin: Timestamp, skip: usize) -> DeliveriesResult<Option<ListPosition>> {
        if !self.filter.wants(|state| state == WantedState::Delivered) {
            return Ok(None);
        }
        let most = (self.room() + skip + 1).max(LEAST);
        let (from, until) = match self.order {
            EntryOrder::NewestFirst => (self.filter.from(), begin),
            EntryOrder::OldestFirst => (begin, self.filter.until()),
        };
        let entries = self.deliveries.attempts.between(from, until, most, self.order).await?;
        let mut known: HashSet<String> = HashSet::new();
        // `behind`: how many attempts of the moment `at` were passed; the next page skips them.
        let (mut at, mut behind) = (begin, 0);
        for entry in &entries {
            let mut attempts: Vec<Option<&Attempt>> = entry.attempts.iter().map(Some).collect();
            // An entry that cannot be read counts, so that every page goes on.
            attempts.resize_with(attempts.len().max(1), || None);
            for attempt in attempts {
                if entry.at != at {
                    (at, behind) = (entry.at, 0);
                }
                if self.room() == 0 {
                    return Ok(Some(ListPosition::Delivered { at, skip: behind }));
                }
                behind += 1;
                let is_new = entry.at != begin || behind > skip;
                let line = attempt.filter(|_| is_new).map(|attempt| delivered_line(attempt, entry.at));
                if let Some(line) = line.filter(|one| one.state == DeliveryState::Delivered)
                    && known.insert(line.id.clone())
                {
                    self.add(line);
                }
            }
        }
        Ok((entries.len() == most).then_some(ListPosition::Delivered { at, skip: behind }))
    }

    /// Adds to each failed delivery that waits why its last attempt failed.
    async fn add_failures(&mut self) -> DeliveriesResult<()> {
        let is_failed = |line: &&mut DeliveryLine| line.state == DeliveryState::Failed;
        let failed = self.page.deliveries.iter().filter_map(|line| self.failed.remove(&line.id));
        let mut attempts = self.deliveries.attempts.of_notifications(&failed.collect::<Vec<_>>()).await?;
        attempts.sort_by_key(|one| (one.at, one.number));
        let mut answers: HashMap<String, String> =
            attempts.into_iter().map(|one| (one.delivery(), one.answer)).collect();
        for line in self.page.deliveries.iter_mut().filter(is_failed) {
            line.answer = answers.remove(&line.id).unwrap_or_default();
        }
        Ok(())
    }

    fn add(&mut self, line: DeliveryLine) {
        self.page.deliveries.extend(Some(line).filter(|line| self.filter.takes(line)));
    }
}
