//! What every engine writes of notifications: how members of a group are named, what a notification
//! holds, and how long either is kept.

use std::collections::HashMap;
use std::time::Duration;

use data_encoding::HEXLOWER;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::json::{from_json, to_json};
use super::{DeadLetter, Delivery, EngineError, Group, Join, OutboxEvent, Result};
use crate::clock::Timestamp;
use crate::presence::{
    Cause, Closing, Form, Hearing, Interval, Kind, Labels, OfflineRecord, RecordId, Transition,
};

/// The most members of one notification.
pub(super) const MOST_MEMBERS: usize = 1000;

/// How long members that are over are kept against transitions that join again.
pub(super) const OVER: Duration = Duration::from_secs(86_400);

/// Whether each transition is the only one of its group among these.
pub(super) fn alone(joins: &[Join]) -> impl Iterator<Item = bool> {
    let mut of_group: HashMap<&str, usize> = HashMap::new();
    for join in joins {
        *of_group.entry(&join.group.key).or_default() += 1;
    }
    joins.iter().map(move |join| of_group[join.group.key.as_str()] == 1)
}

/// The id of a notification: a digest of the group and of what is told of whom, so that the same news has
/// the same id on every engine, even if what was sealed is lost and sealed again. `told` is for each member,
/// in their order, the letter of what it is told and its name, with line breaks between them.
pub(super) fn notification_id(group: &str, told: &str) -> String {
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{group}\n{told}").as_bytes());
    format!("ntf_{}", HEXLOWER.encode(&digest.as_ref()[..12]))
}

/// How a member counts in the id: by what it is told, that it is offline or anything else.
pub(super) fn letter_told(is_offline: bool) -> char {
    if is_offline { 'o' } else { 'b' }
}

/// The id of the notification by which this news is told alone in the group with that key.
pub fn notification_of(group: &str, news: &OutboxEvent) -> String {
    let member = Member::new(news);
    let letter = letter_told(member.form == Form::Offline);
    notification_id(group, &format!("{letter}{}", member.id))
}

/// The notification of one silence, in few words: the rest follows from these. There are many of them at a
/// time, and an engine that is handed a quarter of the bytes has time for others.
///
/// The record's id, deadline, detected and sealed (ms), why, the unit's labels, and those that its group shares;
/// and where it is presumed to begin, if that is later than its unit was seen.
#[derive(Serialize, Deserialize)]
pub(super) struct Lone(
    RecordId,
    i64,
    i64,
    i64,
    Cause,
    Labels,
    Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<i64>,
);

impl Lone {
    /// In few words.
    pub fn new(group: &Group, record: &OfflineRecord, sealed_at: Timestamp) -> Lone {
        let times = [record.deadline, record.detected_at, sealed_at].map(Timestamp::as_millis);
        let [deadline, detected_at, sealed_at] = times;
        let silent_from = record.silent_from.map(Timestamp::as_millis);
        let (labels, shared) = (record.labels.clone(), group.labels.clone());
        Lone(record.id.clone(), deadline, detected_at, sealed_at, record.cause, labels, shared, silent_from)
    }

    /// In full, but for the key of its group.
    fn notification(self) -> Notification {
        let Lone(id, deadline, detected_at, sealed_at, cause, labels, shared, silent_from) = self;
        let times = [deadline, detected_at, sealed_at].map(Timestamp::from_millis);
        let [deadline, detected_at, sealed_at] = times;
        let group = Group { key: String::new(), labels: shared };
        let record = OfflineRecord {
            kind: id.unit.kind.clone(),
            unit: id.unit.id.clone(),
            last_seen: id.last_seen,
            silent_from: silent_from.map(Timestamp::from_millis),
            id,
            labels,
            deadline,
            detected_at,
            back_at: None,
            cause,
            closed_by: None,
        };
        Notification {
            group,
            sealed_at,
            offline: vec![record],
            online: Vec::new(),
            blind: Vec::new(),
            told: Vec::new(),
        }
    }
}

/// What joining a group wants to know of one transition.
pub(super) struct Member {
    pub id: String,
    pub form: Form,
    pub detected_at: Timestamp,
}

impl Member {
    /// A silence is one member, known by its record and its deadline. A record that is opened a
    /// second time, after its unit was allowed more and then less again, is news: it has another
    /// deadline or, where that is the same, joining tells it by when it was detected. Why that is
    /// not simply part of the name: a silence that is detected again, because an engine lost the
    /// first time, keeps its place and the id of its notification.
    pub fn new(news: &OutboxEvent) -> Member {
        match news {
            OutboxEvent::Record(record) => {
                let form = match (record.transition(), record.closed_by) {
                    (_, Some(Closing::Removed)) => Form::Removed,
                    (Transition::Offline, _) => Form::Offline,
                    (Transition::Online, _) => Form::Online,
                };
                let id = format!("{} {}", record.deadline.as_millis(), record.id);
                Member { id, form, detected_at: record.detected_at }
            }
            OutboxEvent::Blind(interval) => {
                // By its beginning alone: the first event that says that it lasts, or is over, is the one that is told.
                let is_over = if interval.is_over() { " over" } else { "" };
                let id = format!("{}{is_over}", blindness(interval));
                Member { id, form: Form::Blind, detected_at: Timestamp::ZERO }
            }
        }
    }
}

/// Of the name of a member that stands for a record: its id as [`Member::new`] makes it, and the record's. A
/// silence that was detected once more has the time of that at the end of its name.
pub(super) fn of_member(name: &str) -> Option<(&str, RecordId)> {
    let record = |id: &str| id.split_once(' ')?.1.parse().ok();
    let whole = record(name).map(|id| (name, id));
    whole.or_else(|| name.rsplit_once(' ').and_then(|(id, _)| Some((id, record(id)?))))
}

/// What is told of a transition (JSON).
pub(super) fn told(news: &OutboxEvent) -> Result<String> {
    match news {
        OutboxEvent::Record(record) => to_json(record),
        OutboxEvent::Blind(interval) => to_json(interval),
    }
}

/// Reads what stands in a queue for the group with that key as an engine does, for tests that try arbitrary
/// bytes: the delivery to a receiver of that name, as far as it can be read.
#[doc(hidden)]
pub fn delivery_of_any(group: &str, stored: &[u8], receiver: &str) -> Option<Delivery> {
    let id = format!("{}.{receiver}", notification_id(group, ""));
    Notification::read(group, stored).told.map(|told| told.delivery(id, receiver, 1))
}

/// A notification as it was sealed, for whichever receiver.
#[derive(Serialize, Deserialize)]
pub(super) struct Notification {
    pub group: Group,
    pub sealed_at: Timestamp,
    pub offline: Vec<OfflineRecord>,
    pub online: Vec<OfflineRecord>,
    pub blind: Vec<Interval>,
    /// For each of `online` the receivers that were told its silence, with commas between them; nothing if
    /// that is not known. Empty if all of them were told all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub told: Vec<Option<String>>,
}

impl Notification {
    /// The delivery of this to one receiver: without the returns of silences that it was not told.
    pub fn delivery(mut self, id: String, receiver: &str, attempt: u32) -> Delivery {
        let mut told = self.told.iter();
        self.online.retain(|_| {
            let told = told.next().and_then(|told| told.as_deref());
            told.is_none_or(|told| told.split(',').any(|name| name == receiver))
        });
        Delivery {
            id,
            receiver: receiver.to_owned(),
            group: self.group,
            sealed_at: self.sealed_at,
            offline: self.offline,
            online: self.online,
            blind: self.blind,
            attempt,
        }
    }
}

/// A notification in either of the forms in which it is stored: an object in full, or the list of a [`Lone`].
struct Stored(Notification);

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Stored, D::Error> {
        deserializer.deserialize_any(EitherForm)
    }
}

struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = Stored;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a notification")
    }

    fn visit_map<A: MapAccess<'de>>(self, full: A) -> std::result::Result<Stored, A::Error> {
        Notification::deserialize(MapAccessDeserializer::new(full)).map(Stored)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, lone: A) -> std::result::Result<Stored, A::Error> {
        Lone::deserialize(SeqAccessDeserializer::new(lone)).map(|lone| Stored(lone.notification()))
    }
}

/// What could be read of a stored notification.
pub(super) struct Readable {
    /// `None`: nothing of it.
    pub told: Option<Notification>,
    /// What is wrong with it, if anything.
    pub why: Option<EngineError>,
}

impl Readable {
    /// All of it, or why not.
    pub fn whole(self) -> Result<Notification> {
        match self.why {
            Some(why) => Err(why),
            None => self.told.ok_or_else(|| EngineError::Damaged("a notification says nothing".to_owned())),
        }
    }
}

impl Notification {
    /// What a notification to the group with that key says, as far as it can be read: one member that cannot be
    /// read does not keep the others from being told.
    pub fn read(group: &str, text: &[u8]) -> Readable {
        let text = String::from_utf8_lossy(text);
        match from_json("a notification", &text) {
            // It is ended where it lies, whatever it says.
            Ok(Stored(told)) => {
                let group = Group { key: group.to_owned(), ..told.group };
                Readable { told: Some(Notification { group, ..told }), why: None }
            }
            Err(why) => Readable { told: Notification::in_part(group, &text), why: Some(why) },
        }
    }

    /// Those records and intervals of a notification that can be read. A quotation mark within a text is written
    /// with a backslash, so what begins a list or a record here stands in no label.
    fn in_part(group: &str, text: &str) -> Option<Notification> {
        let offline = text.find(OFFLINE)?;
        let online = offline + text[offline..].find(ONLINE)?;
        let blind = online + text[online..].find(BLIND)?;
        let first = |after: &str| text.find(after).map(|at| &text[at + after.len()..]);
        let labels = first(r#"{"group":"#).and_then(first_of::<Group>).map(|group| group.labels);
        let sealed_at = first(r#","sealed_at":"#).and_then(first_of::<Timestamp>);
        let told = Notification {
            group: Group { key: group.to_owned(), labels: labels.unwrap_or_default() },
            sealed_at: sealed_at.unwrap_or(Timestamp::ZERO),
            offline: each_of(&text[offline..online], r#"{"id":"#),
            online: each_of(&text[online..blind], r#"{"id":"#),
            blind: each_of(&text[blind..], r#"{"from":"#),
            // Which return is whose is not known any more: each is told.
            told: Vec::new(),
        };
        let is_empty = told.offline.is_empty() && told.online.is_empty() && told.blind.is_empty();
        (!is_empty).then_some(told)
    }
}

pub(super) const OFFLINE: &str = r#","offline":["#;
pub(super) const ONLINE: &str = r#"],"online":["#;
pub(super) const BLIND: &str = r#"],"blind":["#;

/// The value that a text begins with, whatever follows it.
fn first_of<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::Deserializer::from_str(text).into_iter().next()?.ok()
}

/// The values of a list that begin like that and can be read.
fn each_of<T: serde::de::DeserializeOwned>(list: &str, begin: &str) -> Vec<T> {
    list.match_indices(begin).filter_map(|(at, _)| first_of(&list[at..])).collect()
}

impl Delivery {
    /// What the first of a lane says, or nothing where it cannot be read: it can be ended all the same.
    pub(super) fn of(told: Option<Notification>, group: &str, id: &str, receiver: &str) -> Delivery {
        let told = told.unwrap_or_else(|| Notification {
            group: Group { key: group.to_owned(), labels: Labels::new() },
            sealed_at: Timestamp::ZERO,
            offline: Vec::new(),
            online: Vec::new(),
            blind: Vec::new(),
            told: Vec::new(),
        });
        told.delivery(id.to_owned(), receiver, 0)
    }
}

/// As which a delivery is ended that is discarded.
pub(super) fn discarded(delivery: Delivery, at: Timestamp) -> DeadLetter {
    DeadLetter { delivery, at, reason: "discarded".to_owned() }
}

/// By what blindness is known, the same while it lasts and when it is over.
pub(super) fn blindness(interval: &Interval) -> String {
    format!("blind {}", interval.from.as_millis())
}

impl Notification {
    /// Blindness that this tells as lasting, and that is over by now: of the fleet or, where its members share a
    /// kind, of that.
    pub(super) fn over<'a>(&'a self, hearing: &'a Hearing) -> impl Iterator<Item = &'a Interval> {
        let kind = self.group.labels.get("kind").and_then(|kind| kind.parse::<Kind>().ok());
        let is_over = move |interval: &&Interval| match &kind {
            None => hearing.heard > Some(interval.from),
            Some(kind) => {
                let known = hearing.filters.blind.get(kind).into_iter().flatten();
                known.into_iter().any(|known| known.contains(interval.from))
            }
        };
        self.blind.iter().filter(|interval| !interval.is_over()).filter(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> OfflineRecord {
        let id: RecordId = format!("detector:{name}:1732147200000").parse().unwrap();
        let at = id.last_seen;
        OfflineRecord {
            kind: id.unit.kind.clone(),
            unit: id.unit.id.clone(),
            labels: Labels::from([("site".to_owned(), r#"a",{"id":"b"#.to_owned())]),
            last_seen: at,
            silent_from: None,
            deadline: at,
            detected_at: at,
            back_at: None,
            cause: Cause::Silence,
            closed_by: None,
            id,
        }
    }

    #[test]
    fn a_member_that_cannot_be_read_keeps_no_other_from_being_told() {
        let group = Group { key: "g".into(), labels: Labels::from([("kind".into(), "detector".into())]) };
        let [a, b, c] = ["a", "b", "c"].map(|name| to_json(&record(name)).unwrap());
        let text = |group: &str, offline: &str| {
            format!(
                r#"{{"group":{group},"sealed_at":"2024-11-21T00:00:00Z","offline":[{offline}],"online":[{c}],"blind":[]}}"#
            )
        };
        let group_json = to_json(&group).unwrap();
        for garbage in ["garbage{", "", "{}", "[", "\"", "{\"id\":\"x", "\u{fffd}"] {
            for offline in
                [format!("{a},{garbage},{b}"), format!("{garbage},{a},{b}"), format!("{a},{b},{garbage}")]
            {
                let read = Notification::read("g", text(&group_json, &offline).as_bytes());
                assert!(read.why.is_some(), "{garbage:?} counts as read");
                let told = read.told.unwrap();
                assert_eq!(told.offline, [record("a"), record("b")], "{garbage:?}");
                assert_eq!((told.online, told.group), (vec![record("c")], group.clone()), "{garbage:?}");
            }
        }
        let read = Notification::read("g", text("garbage{", &format!("{a},{b}")).as_bytes());
        let told = read.told.unwrap();
        assert_eq!((told.group.key.as_str(), told.offline.len(), told.online.len()), ("g", 2, 1));
        let whole = Notification::read("g", text(&group_json, &a).as_bytes());
        assert!(whole.why.is_none() && whole.told.is_some());
        for garbage in ["garbage{", "", "[1", "{}", r#"{"group":{},"offline":[],"online":[],"blind":[]}"#] {
            let read = Notification::read("g", garbage.as_bytes());
            assert!(read.told.is_none() && read.why.is_some(), "{garbage:?}");
        }
    }
}
