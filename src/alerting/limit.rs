//! The rate limit of a receiver: when messages were sent to it lately, and the digest that is not yet delivered.
//!
//! Both are a state that all instances share, and change only if nothing else has changed it meanwhile. So the limit
//! holds over all instances, over restarts and hand-overs, and a digest keeps its id and its content until its receiver
//! has it: a crash between its attempt and the end of its notifications repeats the same digest.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::store::{Cells, Delivery, Document, Documents, EngineError, Result, Table, TableValue};

/// The most messages of a limit. The moment of each is kept.
pub const MAX_MESSAGES: usize = 1000;
/// How often a change is tried while other instances change the same state.
const MAX_ATTEMPTS: usize = 20;

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
pub(super) struct LimitState {
    /// When messages were sent (ms), in order.
    sent: Vec<i64>,
    /// The digest that its receiver does not have yet.
    pub open: Option<OpenDigest>,
}

/// A digest that is to be delivered. Its notifications are stored beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenDigest {
    /// The id of the notification.
    pub id: String,
    pub sealed_at: Timestamp,
    /// How many attempts were begun.
    pub attempts: u32,
    /// When the digest may be attempted. While an attempt is under way: when that attempt is surely over.
    pub next: Timestamp,
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

/// The state of one receiver in the engine.
pub(super) struct ReceiverLimit {
    pub limit: RateLimit,
    receiver: String,
    documents: Documents,
}

impl ReceiverLimit {
    pub fn new(limit: RateLimit, receiver: &str, cells: Arc<dyn Cells>) -> ReceiverLimit {
        ReceiverLimit { limit, receiver: receiver.to_owned(), documents: Documents::new(cells) }
    }

    /// The state. A state that cannot be read counts as empty, and is written again.
    pub async fn read(&self) -> Result<LimitState> {
        Ok(self.stored().await?.value.unwrap_or_default())
    }

    /// The notifications of the open digest.
    pub async fn members(&self) -> Result<Vec<Delivery>> {
        let stored = self.documents.one::<DigestMembers>(&self.receiver).await?;
        Ok(stored.value.unwrap_or_default().0)
    }

    async fn stored(&self) -> Result<Document<LimitState>> {
        self.documents.one(&self.receiver).await
    }

    /// Changes the state as `decide` answers for the last one, with the notifications of a new digest. `None`: nothing
    /// is changed.
    pub async fn change<T>(
        &self,
        members: Option<&[Delivery]>,
        decide: impl Fn(&mut LimitState) -> Option<T>,
    ) -> Result<Option<T>> {
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.stored().await?;
            let mut state = stored.value.clone().unwrap_or_default();
            let Some(decided) = decide(&mut state) else { return Ok(None) };
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
        let why =
            format!("gave up on the limit of {} after {MAX_ATTEMPTS} concurrent changes", self.receiver);
        Err(EngineError::Unavailable(why))
    }

    /// Takes room for up to `wanted` messages, if no digest is open; the inner error is when there is room again.
    pub async fn take(
        &self,
        wanted: usize,
        now: Timestamp,
    ) -> Result<Option<std::result::Result<usize, Timestamp>>> {
        let limit = self.limit;
        let room = self.read().await?.room(&limit, now);
        if let Err(next) = room {
            return Ok(Some(Err(next)));
        }
        self.change(None, |state| state.open.is_none().then(|| state.take(wanted, &limit, now))).await
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
