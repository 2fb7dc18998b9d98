//! The record of attempts: the outcome of each attempt to deliver a notification.
//!
//! An attempt is written in the step that ends it, so that its record costs no round trip. All attempts of a
//! partition that end in one step share a cell, because a cell costs an engine more than its text. A table maps words
//! to cells: the notifications of a cell, their digests, and the offline records that they told of. So a search for a
//! notification or a record reads only its own cells. Cells leave after `records.keep_deliveries`; if they take
//! too much room, the oldest leave earlier: see `fleet/attempts.rs`.
//!
//! The record holds the ids of the offline records of a delivered notification, but no body: the body can be rebuilt
//! from the offline records, which are kept for longer. So a storm of a hundred thousand notifications leaves twenty
//! megabytes instead of a hundred.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use serde::{Deserialize, Serialize};

use super::json::to_json;
use super::{ChangeSet, Delivery, EngineError, GroupContext, Index, MeantFor, Result, Table, TableValue};
use crate::clock::Timestamp;
use crate::presence::{Guarantee, Interval, Labels, OfflineRecord, RecordId};

/// The most bytes of attempts that one partition keeps, with their index; the oldest leave first.
pub const MAX_ATTEMPT_BYTES: usize = 8 << 20;

/// The name in [`Table::Counts`] of the number of these bytes.
pub const ATTEMPT_BYTES: &str = "attempts";

/// The approximate size of a word with the name of its cell, in bytes.
const INDEXED: usize = 100;

/// A cell of about this many bytes gets no more attempts.
const CELL: usize = 16 << 10;

/// The longest answer or error of an attempt, in bytes.
const MAX_ANSWER: usize = 400;

/// The first words of the recorded answer of a notification that was delivered in a digest; the id of the digest and
/// the answer follow.
const IN_DIGEST: &str = "in digest ";

/// The most episodes of flapping that an attempt keeps.
const MAX_FLAPPING: usize = 1000;

/// The end of a lease: of an attempt, or without one.
#[derive(Clone, Debug)]
pub struct EndedLease {
    pub delivery: Arc<Delivery>,
    pub end: AttemptEnd,
    /// `None`: no attempt was made, or the attempt is not recorded.
    pub attempt: Option<AttemptMade>,
}

impl EndedLease {
    /// The approximate size of the recorded attempt with its words, in bytes.
    pub fn size(&self) -> usize {
        let Delivery { offline, online, .. } = &*self.delivery;
        500 + (60 + INDEXED) * (offline.len() + online.len())
    }
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
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
    /// This attempt, recorded for a notification in the digest.
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
    /// The content of a delivered notification; empty for other attempts, whose notification is still stored.
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
    /// The guarantee of its timer, if the notification is of one.
    #[serde(rename = "q", default, skip_serializing_if = "Guarantee::is_at_least_once")]
    pub guarantee: Guarantee,
}

impl Attempt {
    /// The id of the delivery.
    pub fn delivery(&self) -> String {
        Delivery::id_of(&self.notification, &self.receiver)
    }

    /// The digest with which the notification was delivered, if it was.
    pub fn digest(&self) -> Option<&str> {
        let (digest, _) = self.answer.strip_prefix(IN_DIGEST)?.split_once(": ")?;
        Some(digest)
    }

    /// The approximate size in bytes.
    fn size(&self) -> usize {
        200 + self.answer.len() + 60 * (self.offline.len() + self.online.len()) + 300 * self.flapping.len()
    }

    fn of(ended: &EndedLease) -> Option<Attempt> {
        let (delivery, made) = (&ended.delivery, ended.attempt.as_ref()?);
        let result = match ended.end {
            AttemptEnd::Delivered => AttemptResult::Delivered,
            AttemptEnd::RetryAt(_) => AttemptResult::Failed,
            AttemptEnd::DeadLetter(_) => AttemptResult::Dead,
        };
        let is_delivered = result == AttemptResult::Delivered;
        let ids = |records: &[OfflineRecord]| {
            let records = records.iter().filter(|one| is_delivered && one.is_silence());
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

/// Attempts of a partition that were written in one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptsEntry(pub Vec<Attempt>);

impl TableValue for AttemptsEntry {
    type Name = String;
    const TABLE: Table = Table::Attempts;
}

impl AttemptsEntry {
    /// The approximate size of the entry with its words, in bytes.
    pub fn size(&self) -> usize {
        let size = |one: &Attempt| one.size() + INDEXED * (1 + one.offline.len() + one.online.len());
        self.0.iter().map(size).sum()
    }

    fn words(&self, partition: u16) -> Vec<String> {
        let mut words = Vec::new();
        for one in &self.0 {
            let names = [Some(one.notification.as_str()), one.digest()].into_iter().flatten();
            words.extend(names.map(|id| word_of_notification(partition, id)));
            words.extend(one.offline.iter().chain(&one.online).map(|id| word_of_record(partition, id)));
        }
        words.sort_unstable();
        words.dedup();
        words
    }
}

/// The names of the cells of attempts that have a word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellsOfWord(pub Vec<String>);

impl TableValue for CellsOfWord {
    type Name = String;
    const TABLE: Table = Table::AttemptsOf;

    /// Separated by spaces, because an engine adds one to a text that it does not read.
    fn encode_into(&self, stored: &mut Vec<u8>) -> Result<()> {
        stored.extend_from_slice(self.0.join(" ").as_bytes());
        Ok(())
    }

    fn decode(stored: &[u8]) -> Result<CellsOfWord> {
        let names = str::from_utf8(stored).ok().map(|names| names.split(' '));
        let names = names.filter(|names| names.clone().all(|name| !name.is_empty()));
        let names = names.map(|names| CellsOfWord(names.map(str::to_owned).collect()));
        names.ok_or_else(|| EngineError::Damaged("it names no cells of attempts".to_owned()))
    }
}

/// The word of the attempts at a notification, or at the notifications in a digest, in [`Table::AttemptsOf`] of a
/// partition.
pub fn word_of_notification(partition: u16, id: &str) -> String {
    word(partition, "n", id)
}

/// The word of the attempts that told of a record.
pub fn word_of_record(partition: u16, id: &RecordId) -> String {
    word(partition, "r", &id.text())
}

/// A digest, because there are many words. Two words may share a digest, so readers check the attempts themselves.
fn word(partition: u16, kind: &str, name: &str) -> String {
    let mut text = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    text.update(kind.as_bytes());
    text.update(name.as_bytes());
    let mut word = format!("{partition}.");
    BASE64URL_NOPAD.encode_append(&text.finish().as_ref()[..9], &mut word);
    word
}

/// A change-set that also records cells of attempts, written at `at`; `None` removes them.
pub fn on_record(
    mut set: ChangeSet,
    cells: &[(String, AttemptsEntry)],
    at: Option<Timestamp>,
) -> Result<ChangeSet> {
    let (mut bytes, mut words, partition) = (0, Vec::new(), set.partition);
    for (name, entry) in cells {
        let text = to_json(entry)?;
        set = set.put(Table::Attempts, name, at.map(|_| text.as_bytes()));
        bytes += text.len();
        words.extend(entry.words(partition).into_iter().map(|word| (word, name)));
    }
    for (name, _) in cells {
        set = set.enter(Index::AttemptsWritten, name, at.map(Timestamp::as_millis));
    }
    let bytes = (bytes + INDEXED * words.len()) as i64;
    set = set.add(Table::Counts, ATTEMPT_BYTES, if at.is_some() { bytes } else { -bytes });
    for (word, name) in words {
        set = set.word(Table::AttemptsOf, &word, name, at.is_some());
    }
    Ok(set)
}

/// The change-set that records these attempts, all of one partition; `None`: no lease ended with an attempt.
pub(super) fn attempts_made<'a>(
    partition: u16,
    ended: impl Iterator<Item = &'a EndedLease>,
    now: Timestamp,
) -> Result<Option<ChangeSet>> {
    let (mut cells, mut size) = (Vec::<(String, AttemptsEntry)>::new(), CELL);
    for attempt in ended.filter_map(Attempt::of) {
        if size >= CELL {
            let unique = BASE64URL_NOPAD.encode(&rand::random::<[u8; 9]>());
            cells.push((format!("{partition}.{unique}"), AttemptsEntry::default()));
            size = 0;
        }
        size += attempt.size();
        cells.last_mut().expect("one was begun").1.0.push(attempt);
    }
    let set = || on_record(ChangeSet::of(partition), &cells, Some(now));
    if cells.is_empty() { Ok(None) } else { set().map(Some) }
}

/// Moments are stored as numbers.
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
