//! The rate limit of a receiver: when messages were sent to it lately, and the digest that is not yet delivered.
//!
//! All instances share both as one state, which changes only if no other change came in between. So the limit holds
//! over all instances, over restarts and hand-overs, and a digest keeps its id and its content until its receiver has
//! it: a crash between its attempt and the end of its notifications repeats the same digest.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::store::{
    Cells, Delivery, Document, Documents, EngineError, MAX_CHANGES, Result, Table, TableValue,
};

/// The most messages of a limit. The state stores the moment of each.
pub const MAX_MESSAGES: usize = 1000;
/// At most `messages` in any span of that length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// From 1 to [`MAX_MESSAGES`].
    pub messages: usize,
    pub per: Duration,
}

/// The state of one limit, shared by all instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitState {
    /// When messages were sent (ms), in order.
    sent: Vec<i64>,
    /// The digest that its receiver does not have yet, if any.
    pub open: Option<OpenDigest>,
}

/// A digest that is to be delivered. Its notifications are stored beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenDigest {
    /// The id of the notification.
    pub id: String,
    pub sealed_at: Timestamp,
    /// How often the digest was leased for an attempt.
    pub attempts: u32,
    /// When the digest may be attempted; while it is leased, the end of the lease.
    pub next: Timestamp,
}

impl OpenDigest {
    /// Whether its last lease is the one of this delivery.
    fn is_leased_as(&self, digest: &Delivery) -> bool {
        self.id == digest.notification() && self.attempts == digest.attempt
    }
}

impl LimitState {
    /// How many messages may be sent now, or when the next one may.
    pub fn room(&self, limit: &RateLimit, now: Timestamp) -> std::result::Result<usize, Timestamp> {
        let counted: Vec<i64> = self.counted(limit, now).collect();
        match limit.messages.checked_sub(counted.len()) {
            None | Some(0) => {
                Err(Timestamp::from_millis(counted[counted.len() - limit.messages]) + limit.per)
            }
            Some(room) => Ok(room),
        }
    }

    /// Takes room for up to `wanted` messages.
    pub fn take(
        &mut self,
        wanted: usize,
        limit: &RateLimit,
        now: Timestamp,
    ) -> std::result::Result<usize, Timestamp> {
        let taken = self.room(limit, now)?.min(wanted);
        self.sent = self.counted(limit, now).collect();
        self.sent.extend(std::iter::repeat_n(now.as_millis(), taken));
        self.sent.sort_unstable();
        Ok(taken)
    }

    /// The moments of the messages that count. A moment far ahead was written by a clock that was wrong.
    fn counted(&self, limit: &RateLimit, now: Timestamp) -> impl Iterator<Item = i64> {
        let per = limit.per.as_millis() as i64;
        let (after, until) = (now.as_millis().saturating_sub(per), now.as_millis().saturating_add(per));
        self.sent.iter().copied().filter(move |at| *at > after && *at < until)
    }
}

impl TableValue for LimitState {
    type Name = String;
    const TABLE: Table = Table::Limits;
}

/// The notifications of an open digest.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct DigestMembers(Vec<Delivery>);

impl TableValue for DigestMembers {
    type Name = String;
    const TABLE: Table = Table::Digests;
}

/// The limit of one receiver. The notifications of an open digest stay in memory while this instance delivers it.
pub struct ReceiverLimit {
    pub limit: RateLimit,
    receiver: String,
    documents: Documents,
    held: Mutex<Option<HeldDigest>>,
}

struct HeldDigest {
    /// The id of the notification.
    id: String,
    members: Arc<Vec<Delivery>>,
}

impl ReceiverLimit {
    pub fn new(limit: RateLimit, receiver: &str, cells: Arc<dyn Cells>) -> ReceiverLimit {
        let documents = Documents::new(cells);
        ReceiverLimit { limit, receiver: receiver.to_owned(), documents, held: Mutex::default() }
    }

    /// The state. A state that cannot be read counts as empty, and is written again.
    pub async fn read(&self) -> Result<LimitState> {
        Ok(self.stored().await?.value.unwrap_or_default())
    }

    /// The stored notifications of the open digest.
    pub async fn stored_members(&self) -> Result<Vec<Delivery>> {
        let stored = self.documents.one::<DigestMembers>(&self.receiver).await?;
        Ok(stored.value.unwrap_or_default().0)
    }

    /// The notifications of this digest, if this instance holds them.
    pub fn members(&self, id: &str) -> Option<Arc<Vec<Delivery>>> {
        let held = self.held.lock();
        held.as_ref().filter(|held| held.id == id).map(|held| held.members.clone())
    }

    /// Whether this is the digest that this instance holds, and not a single notification.
    pub fn is_digest(&self, delivery: &Delivery) -> bool {
        self.members(delivery.notification()).is_some()
    }

    /// Holds a digest, or none.
    pub fn hold(&self, digest: Option<(String, Vec<Delivery>)>) {
        let held = digest.map(|(id, members)| HeldDigest { id, members: Arc::new(members) });
        *self.held.lock() = held;
    }

    /// Opens a digest with these notifications, unless another one is open. Answers whether it did.
    pub async fn open(&self, id: String, members: Vec<Delivery>, now: Timestamp) -> Result<bool> {
        let open = OpenDigest { id: id.clone(), sealed_at: now, attempts: 0, next: now };
        let begin = |known: &mut LimitState| known.open.is_none().then(|| known.open = Some(open.clone()));
        let is_opened = self.change(Some(&members), begin).await?.is_some();
        if is_opened {
            self.hold(Some((id, members)));
        }
        Ok(is_opened)
    }

    /// Leases the open digest for its next attempt. Answers whether it is still as it was read.
    pub async fn lease(&self, open: &OpenDigest, until: Timestamp) -> Result<bool> {
        let lease = |known: &mut LimitState| {
            let current = known.open.as_mut().filter(|current| *current == open)?;
            (current.attempts, current.next) = (current.attempts + 1, until);
            Some(())
        };
        Ok(self.change(None, lease).await?.is_some())
    }

    /// Sets when a leased digest may be attempted again. Answers whether the caller still holds its lease.
    pub async fn set_next(&self, digest: &Delivery, next: Timestamp) -> Result<bool> {
        let later = |known: &mut LimitState| {
            known.open.as_mut().filter(|open| open.is_leased_as(digest))?.next = next;
            Some(())
        };
        Ok(self.change(None, later).await?.is_some())
    }

    /// Closes the open digest if it has this id; `None`: closes any digest.
    pub async fn close(&self, id: Option<&str>) -> Result<()> {
        let close =
            |known: &mut LimitState| known.open.take_if(|open| id.is_none_or(|id| open.id == id)).map(drop);
        self.change(None, close).await?;
        self.hold(None);
        Ok(())
    }

    /// Takes room for up to `wanted` messages of a delivery; the inner error is when there is room again. `None`: the
    /// delivery may not be attempted, because a digest is open, or another instance has leased this digest.
    pub async fn take(
        &self,
        delivery: &Delivery,
        wanted: usize,
        now: Timestamp,
    ) -> Result<Option<std::result::Result<usize, Timestamp>>> {
        let (limit, is_digest) = (self.limit, self.is_digest(delivery));
        let take = |known: &mut LimitState| {
            let may_be_attempted = match &known.open {
                None => !is_digest,
                Some(open) => is_digest && open.is_leased_as(delivery),
            };
            may_be_attempted.then(|| known.take(wanted, &limit, now))
        };
        self.change(None, take).await
    }

    async fn stored(&self) -> Result<Document<LimitState>> {
        self.documents.one(&self.receiver).await
    }

    /// Changes the state as `decide` says, and stores the notifications of a new digest. `None`: nothing is changed.
    async fn change<T>(
        &self,
        members: Option<&[Delivery]>,
        decide: impl Fn(&mut LimitState) -> Option<T>,
    ) -> Result<Option<T>> {
        for _ in 0..MAX_CHANGES {
            let stored = self.stored().await?;
            let before = stored.value.clone().unwrap_or_default();
            let mut state = before.clone();
            let Some(decided) = decide(&mut state) else { return Ok(None) };
            if state == before {
                return Ok(Some(decided));
            }
            let mut set = self.documents.change(&stored, Some(&state))?;
            if state.open.is_none() {
                set = self.documents.put::<DigestMembers>(set, &self.receiver, None)?;
            } else if let Some(members) = members {
                let members = DigestMembers(members.to_vec());
                set = self.documents.put(set, &self.receiver, Some(&members))?;
            }
            if self.documents.write(&[set]).await? == [true] {
                return Ok(Some(decided));
            }
        }
        Err(EngineError::contended(format_args!("the limit of {}", self.receiver)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit { messages: 3, per: Duration::from_secs(60) };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(1000 + seconds)
    }

    #[test]
    fn no_span_of_the_length_has_more_messages_than_the_limit() {
        let mut state = LimitState::default();
        assert_eq!(state.take(2, &LIMIT, at(0)), Ok(2));
        assert_eq!(state.take(5, &LIMIT, at(30)), Ok(1));
        assert_eq!(state.take(1, &LIMIT, at(59)), Err(at(60)));
        assert_eq!(state.room(&LIMIT, at(60)), Ok(2));
        assert_eq!(state.take(5, &LIMIT, at(60)), Ok(2));
        assert_eq!(state.room(&LIMIT, at(61)), Err(at(90)));
        assert_eq!(state.take(1, &LIMIT, at(90)), Ok(1));
        assert_eq!(state.sent.len(), 3, "older ones are forgotten");
        // A smaller limit, and a clock that was ahead.
        assert_eq!(state.room(&RateLimit { messages: 1, ..LIMIT }, at(91)), Err(at(150)));
        let ahead = LimitState { sent: vec![at(9000).as_millis()], open: None };
        assert_eq!(ahead.room(&LIMIT, at(0)), Ok(3));
    }
}
