//! What every engine writes of notifications: how members of a group are named, what a notification
//! holds, and how long either is kept.

use std::collections::HashMap;
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde::{Deserialize, Serialize};

use super::json::to_json;
use super::{DeadLetter, Delivery, Group, Join, News, Result};
use crate::clock::Timestamp;
use crate::presence::{Cause, Closing, Interval, Labels, OfflineRecord, RecordId, Transition};

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
    let hex: String = digest.as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("ntf_{hex}")
}

/// The id of the notification by which this news is told alone in the group with that key.
pub fn notification_of(group: &str, news: &News) -> String {
    let member = Member::new(news);
    let letter = if member.form == "offline" { 'o' } else { 'b' };
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

    /// In full, for the group with that key.
    pub fn notification(self, key: &str) -> Notification {
        let Lone(id, deadline, detected_at, sealed_at, cause, labels, shared, silent_from) = self;
        let times = [deadline, detected_at, sealed_at].map(Timestamp::from_millis);
        let [deadline, detected_at, sealed_at] = times;
        let group = Group { key: key.to_owned(), labels: shared };
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
    /// `offline`, `online`, `removed` (back, and nobody is told) or `blind`.
    pub form: &'static str,
    pub detected_at: Timestamp,
}

impl Member {
    /// A silence is one member, known by its record and its deadline. A record that is opened a
    /// second time, after its unit was allowed more and then less again, is news: it has another
    /// deadline or, where that is the same, joining tells it by when it was detected. Why that is
    /// not simply part of the name: a silence that is detected again, because an engine lost the
    /// first time, keeps its place and the id of its notification.
    pub fn new(news: &News) -> Member {
        match news {
            News::Record(record) => {
                let form = match (record.transition(), record.closed_by) {
                    (_, Some(Closing::Removed)) => "removed",
                    (Transition::Offline, _) => "offline",
                    (Transition::Online, _) => "online",
                };
                let id = format!("{} {}", record.deadline.as_millis(), record.id);
                Member { id, form, detected_at: record.detected_at }
            }
            News::Blind(interval) => {
                // By its beginning alone: whoever notices first that it lasts, or is over, is the one that is told.
                let is_over = if interval.is_over() { " over" } else { "" };
                let id = format!("{}{is_over}", blindness(interval));
                Member { id, form: "blind", detected_at: Timestamp::ZERO }
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
pub(super) fn told(news: &News) -> Result<String> {
    match news {
        News::Record(record) => to_json(record),
        News::Blind(interval) => to_json(interval),
    }
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
    /// nobody knows. Empty if all of them were told all.
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

/// Why a receiver was not told a silence, or blindness that lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untold {
    /// It died as a dead letter.
    Dead,
    /// It was over when the receiver came back, which was not configured for a while.
    Past,
}

impl Untold {
    /// What stands in the place of a dead letter for what was over.
    pub const PAST: &str = "-";

    /// As it is stored: the id of a dead letter, or [`Untold::PAST`].
    pub fn of(stored: &str) -> Untold {
        if stored == Untold::PAST { Untold::Past } else { Untold::Dead }
    }
}

impl Delivery {
    /// What is left of it for a receiver that was not told these.
    pub(super) fn without(mut self, untold: &HashMap<String, Untold>) -> Delivery {
        let is_past = |name: String| untold.get(&name) == Some(&Untold::Past);
        self.offline.retain(|record| !is_past(silence(record)));
        self.blind.retain(|interval| !is_past(blindness(interval)));
        self.online.retain(|record| !untold.contains_key(&silence(record)));
        self
    }

    /// Whether there is nothing to tell.
    pub(super) fn is_empty(&self) -> bool {
        self.offline.is_empty() && self.online.is_empty() && self.blind.is_empty()
    }
}

/// By what blindness is known, the same while it lasts and when it is over.
pub(super) fn blindness(interval: &Interval) -> String {
    format!("blind {}", interval.from.as_millis())
}

/// One opening of a record, the same when it is closed. A record may be opened twice.
pub(super) fn silence(record: &OfflineRecord) -> String {
    format!("{} {}", record.detected_at.as_millis(), record.id)
}
