//! The record of attempts: the outcome of each attempt to deliver a notification.
//!
//! An attempt is written in the step that ends it, so that its record costs no round trip. Attempts that one step ends
//! are one text, a line (JSON) for each, because an entry costs an engine more than its text. Entries leave after
//! `records.keep_deliveries`, and the oldest leave earlier where they take too much room.
//!
//! The record holds the ids of the offline records of a delivered notification, and no body: the body is made again
//! from the offline records, which are kept for longer. So a storm of a hundred thousand notifications leaves twenty
//! megabytes, and not a hundred.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Delivery, GroupContext, MeantFor};
use crate::clock::Timestamp;
use crate::presence::{Guarantee, Interval, Labels, OfflineRecord, RecordId};

/// The most bytes of attempts that one partition keeps; the oldest leave first.
pub const MAX_ATTEMPT_BYTES: usize = 4 << 20;

/// A text with more bytes gets no more lines.
const TEXT: usize = 16 << 10;

/// The longest answer or error of an attempt, in bytes.
const MAX_ANSWER: usize = 400;

/// The begin of the answer on record of a notification that was delivered in a digest; then come its id and the answer.
const IN_DIGEST: &str = "in digest ";

/// The most episodes of flapping that an attempt keeps.
const MAX_FLAPPING: usize = 1000;

/// The end of a lease: of an attempt, or without one.
#[derive(Clone, Debug)]
pub struct Ended {
    pub delivery: Arc<Delivery>,
    pub end: End,
    /// `None`: no attempt was made, or it is not put on record.
    pub attempt: Option<AttemptMade>,
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Delivered,
    RetryAt(Timestamp),
    /// With the reason.
    DeadLetter(String),
}

/// An attempt as its receiver saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptMade {
    pub at: Timestamp,
    pub took: Duration,
    /// The beginning of the receiver's answer, or the error; without secrets.
    pub answer: String,
}

impl AttemptMade {
    /// The same attempt for a notification in the digest.
    pub fn in_digest(self, digest: &str) -> AttemptMade {
        AttemptMade { answer: format!("{IN_DIGEST}{digest}: {}", self.answer), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptResult {
    Delivered,
    /// Another attempt follows.
    Failed,
    /// The delivery was given up.
    Dead,
}

impl AttemptResult {
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptResult::Delivered => "delivered",
            AttemptResult::Failed => "failed",
            AttemptResult::Dead => "dead",
        }
    }
}

/// An attempt on record. The stored names are short, because there is a line for each notification of a storm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    #[serde(rename = "i")]
    pub notification: String,
    #[serde(rename = "r")]
    pub receiver: String,
    /// The key of the group, and the labels that its members share.
    #[serde(rename = "g")]
    pub group: String,
    #[serde(rename = "l", default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(rename = "s", with = "millis")]
    pub sealed_at: Timestamp,
    #[serde(rename = "t", with = "millis")]
    pub at: Timestamp,
    #[serde(rename = "d")]
    pub took_ms: u64,
    /// From 1.
    #[serde(rename = "n")]
    pub number: u32,
    #[serde(rename = "e")]
    pub result: AttemptResult,
    #[serde(rename = "a", default, skip_serializing_if = "String::is_empty")]
    pub answer: String,
    /// The content of a delivered notification; of other attempts, empty: the notification itself is kept elsewhere.
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    pub offline: Vec<RecordId>,
    #[serde(rename = "b", default, skip_serializing_if = "Vec::is_empty")]
    pub online: Vec<RecordId>,
    #[serde(rename = "z", default, skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<Interval>,
    /// The first episodes of flapping, which are no records: begun or ended.
    #[serde(rename = "f", default, skip_serializing_if = "Vec::is_empty")]
    pub flapping: Vec<OfflineRecord>,
    #[serde(rename = "m", default, skip_serializing_if = "std::ops::Not::not")]
    pub reminder: bool,
    #[serde(rename = "u", default, skip_serializing_if = "GroupContext::is_unknown")]
    pub situation: GroupContext,
    /// The receiver that it was meant for, if this one is its fallback.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub meant_for: Option<MeantFor>,
    /// That of its timer, if it is the notification of one.
    #[serde(rename = "q", default, skip_serializing_if = "Guarantee::is_at_least_once")]
    pub guarantee: Guarantee,
}

impl Attempt {
    /// The id of the delivery.
    pub fn delivery(&self) -> String {
        format!("{}.{}", self.notification, self.receiver)
    }

    /// The digest with which the notification was delivered, if it was.
    pub fn digest(&self) -> Option<&str> {
        let (digest, _) = self.answer.strip_prefix(IN_DIGEST)?.split_once(": ")?;
        Some(digest)
    }

    fn of(ended: &Ended) -> Option<Attempt> {
        let (delivery, made) = (&ended.delivery, ended.attempt.as_ref()?);
        let result = match ended.end {
            End::Delivered => AttemptResult::Delivered,
            End::RetryAt(_) => AttemptResult::Failed,
            End::DeadLetter(_) => AttemptResult::Dead,
        };
        let is_delivered = result == AttemptResult::Delivered;
        let ids = |records: &[OfflineRecord]| {
            let records = records.iter().filter(|one| is_delivered && !one.is_flapping());
            records.map(|record| record.id.clone()).collect()
        };
        let flapping = delivery.offline.iter().chain(&delivery.online);
        let flapping = flapping.filter(|one| is_delivered && one.is_flapping()).take(MAX_FLAPPING);
        let end = made.answer.floor_char_boundary(MAX_ANSWER);
        Some(Attempt {
            notification: delivery.notification().to_owned(),
            receiver: delivery.receiver.clone(),
            group: delivery.group.key.clone(),
            labels: delivery.group.labels.clone(),
            sealed_at: delivery.sealed_at,
            at: made.at,
            took_ms: made.took.as_millis() as u64,
            number: delivery.attempt,
            result,
            answer: made.answer[..end].to_owned(),
            offline: ids(&delivery.offline),
            online: ids(&delivery.online),
            blind: if is_delivered { delivery.blind.clone() } else { Vec::new() },
            flapping: flapping.cloned().collect(),
            reminder: delivery.reminder,
            situation: if is_delivered { delivery.situation.clone() } else { GroupContext::default() },
            meant_for: delivery.meant_for.clone(),
            guarantee: delivery.timers.first().map(|timer| timer.guarantee).unwrap_or_default(),
        })
    }
}

/// Attempts that were written in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAttempts {
    /// When they were written.
    pub at: Timestamp,
    /// A line (JSON) for each.
    pub text: String,
}

impl StoredAttempts {
    /// The attempts; a line that cannot be read is left out.
    pub fn read(&self) -> impl Iterator<Item = Attempt> {
        self.text.lines().filter_map(|line| serde_json::from_str(line).ok())
    }
}

/// The order of a list, by when its entries were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    NewestFirst,
    OldestFirst,
}

/// Which entries of the record are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindAttempts {
    /// Those with this text in them.
    pub with: String,
    /// Written from this moment on.
    pub from: Timestamp,
    /// Written up to this moment.
    pub until: Timestamp,
    pub limit: usize,
    pub order: ListOrder,
}

/// The texts of the attempts among these.
pub(super) fn texts<'a>(ended: impl Iterator<Item = &'a Ended>) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for attempt in ended.filter_map(Attempt::of) {
        let Ok(line) = serde_json::to_string(&attempt) else { continue };
        match texts.last_mut().filter(|text| text.len() < TEXT) {
            Some(text) => {
                text.push('\n');
                text.push_str(&line);
            }
            None => texts.push(line),
        }
    }
    texts
}

/// Stored moments are numbers.
mod millis {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::clock::Timestamp;

    pub fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        at.as_millis().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        i64::deserialize(deserializer).map(Timestamp::from_millis)
    }
}
