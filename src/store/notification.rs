//! Stored notifications, the same in every engine: the names of group members, the content of a notification, and how
//! long an engine keeps both.

use std::borrow::Cow;
use std::time::Duration;

use data_encoding::HEXLOWER;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::json::{from_json, to_json};
use super::member_names::name_of;
use super::receiver_list::lists;
use super::{
    DataLoss, DeadLetter, Delivery, EngineError, Group, GroupContext, MeantFor, OutboxEvent, Result,
    group_of_timer,
};
use crate::clock::Timestamp;
use crate::presence::{
    BrokerName, Cause, Closing, FiredTimer, Hearing, Incident, Interval, Kind, Labels, MemberTransition,
    OfflineRecord, RecordId, Transition,
};
use crate::routing::is_of_silences;

/// The number of members after which one step seals no further group.
pub(super) const MAX_SEALED: usize = 1000;

/// The most members of a reminder.
pub(super) const MAX_REMINDED: usize = 1000;

/// How long ended members are kept, so that a repetition of their transitions does not join again.
pub(super) const KEPT_AFTER_END: Duration = Duration::from_secs(86_400);

/// The id of a notification: a digest of its group and its members, so that the same members get the same id on every
/// engine, even if a sealed notification is lost and sealed again. `members` are the id letter and the name of each
/// member, in order and separated by line breaks.
pub fn notification_id(group: &str, members: &str) -> String {
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{group}\n{members}").as_bytes());
    format!("ntf_{}", HEXLOWER.encode(&digest.as_ref()[..12]))
}

/// The letter of a member in the id of its notification: `o` for a silence, `b` for a return or a blind interval.
pub(super) fn id_letter(is_offline: bool) -> char {
    if is_offline { 'o' } else { 'b' }
}

/// The id of the notification that has this event as its only member, in the group with this key.
pub fn notification_of(group: &str, event: &OutboxEvent) -> String {
    let member = GroupMember::new(event);
    let letter = id_letter(member.form == MemberTransition::Offline);
    notification_id(group, &format!("{letter}{}", member.id))
}

/// The notification of one silence in its short form, from which [`Notification`] is restored. A storm has many of
/// them, and a quarter of the bytes saves the engine's time.
///
/// The fields: the record's id, its deadline, detection and sealing (ms), its cause, the labels of the unit, the
/// labels of the group; the presumed begin of the silence, if that is later than the last heartbeat; and the receivers of
/// the group, if there are several.
#[derive(Serialize, Deserialize)]
pub(super) struct SingleSilence<'a>(
    Cow<'a, RecordId>,
    i64,
    i64,
    i64,
    Cause,
    Cow<'a, Labels>,
    Cow<'a, Labels>,
    // `Some(None)` is written as null: the receivers follow.
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<Option<i64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<Cow<'a, [String]>>,
);

impl SingleSilence<'_> {
    /// `None`: the notification has content that the short form cannot hold.
    fn of(notification: &Notification) -> Option<SingleSilence<'_>> {
        let Notification { group, sealed_at, offline, online, blind, lasting, before, meant_for, .. } =
            notification;
        let [record] = &offline[..] else { return None };
        let has_more = !online.is_empty() || !blind.is_empty() || lasting.is_some() || before.is_some();
        let has_more = has_more || notification.reminder || notification.escalation || meant_for.is_some();
        if has_more || notification.incident.is_some() || notification.again.is_some() {
            return None;
        }
        let OfflineRecord { id, kind, unit, labels, last_seen, silent_from, deadline, detected_at, .. } =
            record;
        let OfflineRecord { cause, back_at: None, closed_by: None, acknowledged: None, .. } = record else {
            return None;
        };
        if (kind, unit, last_seen) != (&id.unit.kind, &id.unit.id, &id.last_seen) {
            return None;
        }
        let [deadline, detected_at, sealed_at] = [deadline, detected_at, sealed_at].map(|at| at.as_millis());
        let receivers = notification.receivers.as_deref().map(Cow::Borrowed);
        let silent_from = silent_from.map(Timestamp::as_millis);
        let silent_from = silent_from.map(Some).or(receivers.as_ref().map(|_| None));
        let (id, labels, shared) = (Cow::Borrowed(id), Cow::Borrowed(labels), Cow::Borrowed(&group.labels));
        Some(SingleSilence(
            id,
            deadline,
            detected_at,
            sealed_at,
            *cause,
            labels,
            shared,
            silent_from,
            receivers,
        ))
    }

    /// The full form, without the key of its group.
    fn notification(self) -> Notification {
        let SingleSilence(
            id,
            deadline,
            detected_at,
            sealed_at,
            cause,
            labels,
            shared,
            silent_from,
            receivers,
        ) = self;
        let RecordId { unit, last_seen } = id.into_owned();
        let [deadline, detected_at] = [deadline, detected_at].map(Timestamp::from_millis);
        let record = OfflineRecord::open(unit, last_seen, deadline, detected_at);
        let silent_from = silent_from.flatten().map(Timestamp::from_millis);
        let record = OfflineRecord { silent_from, labels: labels.into_owned(), cause, ..record };
        let group = Group { key: String::new(), labels: shared.into_owned() };
        Notification {
            offline: vec![record],
            receivers: receivers.map(Cow::into_owned),
            ..Notification::empty(group, Timestamp::from_millis(sealed_at))
        }
    }
}

/// One transition as a member of a group.
pub(super) struct GroupMember {
    pub id: String,
    pub form: MemberTransition,
    /// Zero for a blind interval.
    pub deadline: Timestamp,
    pub detected_at: Timestamp,
}

impl GroupMember {
    /// The name of a silence is its record and its deadline. A record that is opened a second time, after its unit
    /// was allowed more and then less again, is another member: it has another deadline or, if the deadline is equal,
    /// joining adds the time of detection to the name. Other names lack that time, because a silence that is detected
    /// again after an engine lost its record keeps its name and the id of its notification.
    pub fn new(event: &OutboxEvent) -> GroupMember {
        match event {
            OutboxEvent::Record(record) => {
                let form = match (record.transition(), record.closed_by) {
                    (_, Some(Closing::Removed)) => MemberTransition::Removed,
                    (Transition::Offline, _) => MemberTransition::Offline,
                    (Transition::Online, _) => MemberTransition::Online,
                };
                let id = name_of(record);
                GroupMember { id, form, deadline: record.deadline, detected_at: record.detected_at }
            }
            OutboxEvent::Blind(interval) | OutboxEvent::DataLost(DataLoss { interval, .. }) => {
                // The name has only the begin: receivers are notified of the first event of an interval that lasts,
                // and of the first event of an interval that is over.
                let is_over = if interval.is_over() { OVER } else { "" };
                let id = format!("{}{is_over}", blindness(interval));
                GroupMember {
                    id,
                    form: MemberTransition::Blind,
                    deadline: Timestamp::ZERO,
                    detected_at: Timestamp::ZERO,
                }
            }
        }
    }
}

/// Reads stored bytes as an engine does, for tests with arbitrary bytes: the readable part of the delivery to a
/// receiver.
#[doc(hidden)]
pub fn delivery_of_any(group: &str, stored: &[u8], receiver: &str) -> Option<Delivery> {
    let id = Delivery::id_of(&notification_id(group, ""), receiver);
    Notification::read(group, stored).notification.map(|notification| notification.delivery(id, receiver, 1))
}

/// A sealed notification, the same for every receiver.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Notification {
    pub group: Group,
    pub sealed_at: Timestamp,
    pub offline: Vec<OfflineRecord>,
    pub online: Vec<OfflineRecord>,
    pub blind: Vec<Interval>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<FiredTimer>,
    /// For each record in `online`, then for each interval in `blind`, the receivers that were notified of its silence
    /// or, if it is over, of its begin, separated by commas; `None`: unknown. Empty if every receiver of the
    /// notification gets everything.
    #[serde(default, rename = "notified", skip_serializing_if = "Vec::is_empty")]
    pub notified: Vec<Option<String>>,
    /// The receivers of the group when it was sealed, if the notification has several receivers; `None`: it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receivers: Option<Vec<String>>,
    /// A reminder: receivers were notified of these silences before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reminder: bool,
    /// An escalation: further receivers are notified of silences that last, in a group that units share.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escalation: bool,
    /// The number of lasting silences of the group that receivers know of, those of this notification included;
    /// `None`: each unit has a group of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasting: Option<u64>,
    /// When the group was sealed before (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<i64>,
    /// The incident that receivers are notified of, and the incident that it replaces; `None` before the check for
    /// incidents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident: Option<Vec<Incident>>,
    /// The receiver that the notification was meant for, if it goes to a fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meant_for: Option<MeantFor>,
    /// The key of the group that the notification tells of, if it waits in a lane of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_group: Option<String>,
    /// When an operator had it delivered again (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<i64>,
}

impl Notification {
    /// A notification without members.
    pub fn empty(group: Group, sealed_at: Timestamp) -> Notification {
        Notification {
            group,
            sealed_at,
            offline: Vec::new(),
            online: Vec::new(),
            blind: Vec::new(),
            timers: Vec::new(),
            notified: Vec::new(),
            receivers: None,
            reminder: false,
            escalation: false,
            lasting: None,
            before: None,
            incident: None,
            meant_for: None,
            of_group: None,
            again: None,
        }
    }

    /// The delivery to one receiver, without the returns of silences that this receiver was not notified of. A
    /// receiver outside of the group gets only returns, the next silences of the same units, and the ends of blind
    /// intervals that it was notified of.
    pub fn delivery(mut self, id: String, receiver: &str, attempt: u32) -> Delivery {
        let all = (self.offline.len(), self.online.len());
        let is_of_group = self.receivers.as_ref().is_none_or(|all| all.iter().any(|name| name == receiver));
        let mut notified = self.notified.iter();
        self.online.retain(|_| {
            let notified = notified.next().and_then(|receivers| receivers.as_deref());
            notified.map_or(is_of_group, |receivers| lists(receivers, receiver))
        });
        self.blind.retain(|_| {
            let notified = notified.next().and_then(|receivers| receivers.as_deref());
            is_of_group || notified.is_some_and(|receivers| lists(receivers, receiver))
        });
        if !is_of_group {
            let is_back = |record: &OfflineRecord| {
                self.online.iter().any(|back| (&back.kind, &back.unit) == (&record.kind, &record.unit))
            };
            self.offline.retain(is_back);
        }
        let is_part = all != (self.offline.len(), self.online.len());
        let is_judged = self.incident.is_some();
        let mut incidents = self.incident.into_iter().flatten();
        let is_of_silences = is_of_silences(self.of_group.as_deref().unwrap_or(&self.group.key));
        Delivery {
            id,
            receiver: receiver.to_owned(),
            group: self.group,
            sealed_at: self.sealed_at,
            offline: self.offline,
            online: self.online,
            blind: self.blind,
            timers: self.timers,
            reminder: self.reminder,
            situation: GroupContext {
                // Elsewhere the lasting members are episodes of flapping and unusual silences, whose units may be
                // online or offline.
                lasting: self.lasting.filter(|_| is_of_silences),
                since: self.before.map(Timestamp::from_millis),
                is_escalation: self.escalation,
                is_part,
                is_judged,
                incident: incidents.next(),
                replaced: incidents.next(),
                is_acknowledged: false,
                merged: None,
            },
            meant_for: self.meant_for,
            of_group: self.of_group,
            again_at: self.again.map(Timestamp::from_millis),
            attempt,
            is_alone: false,
        }
    }
}

/// A stored notification in either JSON form: an object in full, or the list of a [`SingleSilence`].
struct StoredForm(Notification);

impl<'de> Deserialize<'de> for StoredForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<StoredForm, D::Error> {
        deserializer.deserialize_any(EitherForm)
    }
}

struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = StoredForm;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a notification")
    }

    fn visit_map<A: MapAccess<'de>>(self, full: A) -> std::result::Result<StoredForm, A::Error> {
        Notification::deserialize(MapAccessDeserializer::new(full)).map(StoredForm)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, lone: A) -> std::result::Result<StoredForm, A::Error> {
        SingleSilence::deserialize(SeqAccessDeserializer::new(lone))
            .map(|lone| StoredForm(lone.notification()))
    }
}

/// The readable part of a stored notification.
pub(super) struct Readable {
    /// `None` if no member is readable.
    pub notification: Option<Notification>,
    /// Why a part is not readable.
    pub error: Option<EngineError>,
}

impl Readable {
    /// The whole notification, or why a part of it is not readable.
    pub fn whole(self) -> Result<Notification> {
        match self.error {
            Some(error) => Err(error),
            None => self
                .notification
                .ok_or_else(|| EngineError::Damaged("a notification has no content".to_owned())),
        }
    }
}

impl Notification {
    pub fn of_timer(timer: FiredTimer) -> Notification {
        let (id, of) = (timer.id.to_string(), timer.timer_type.to_string());
        let labels = Labels::from([("timer".to_owned(), id), ("type".to_owned(), of)]);
        let group = Group { key: group_of_timer(&timer.id), labels };
        let sealed_at = timer.fired_at;
        Notification { timers: vec![timer], ..Notification::empty(group, sealed_at) }
    }

    /// The stored form: the short form of a single silence if it holds everything.
    pub fn stored(&self) -> Result<Vec<u8>> {
        let json = SingleSilence::of(self).map_or_else(|| to_json(self), |short| to_json(&short))?;
        Ok(json.into_bytes())
    }

    /// Parses a whole notification in either form. The short form of a single silence has no group key, so the key is
    /// empty.
    pub fn parse(text: &str) -> Result<Notification> {
        from_json("a notification", text).map(|StoredForm(notification)| notification)
    }

    /// Reads the readable part of a stored notification of the group with this key: receivers are notified of the
    /// readable members.
    pub fn read(group: &str, text: &[u8]) -> Readable {
        let text = String::from_utf8_lossy(text);
        match Notification::parse(&text) {
            // Use the key of the lane, even if the text has another: the delivery ends in that lane.
            Ok(notification) => {
                let group = Group { key: group.to_owned(), ..notification.group };
                Readable { notification: Some(Notification { group, ..notification }), error: None }
            }
            Err(error) => Readable { notification: Notification::in_part(group, &text), error: Some(error) },
        }
    }

    /// The readable members of a notification; `None`: there is none, or the text is no JSON.
    fn in_part(group: &str, text: &str) -> Option<Notification> {
        let parts: NotificationParts<'_> = serde_json::from_str(text).ok()?;
        let labels = parts.group.and_then(one_of::<Group>).map(|group| group.labels);
        let sealed_at = parts.sealed_at.and_then(one_of).unwrap_or(Timestamp::ZERO);
        let group = Group { key: group.to_owned(), labels: labels.unwrap_or_default() };
        // The list of notified receivers does not match the readable returns any more, so every receiver is notified
        // of each.
        let notification = Notification {
            offline: each_of(parts.offline),
            online: each_of(parts.online),
            blind: each_of(parts.blind),
            timers: each_of(parts.timers),
            ..Notification::empty(group, sealed_at)
        };
        let Notification { offline, online, blind, timers, .. } = &notification;
        let is_empty = offline.is_empty() && online.is_empty() && blind.is_empty() && timers.is_empty();
        (!is_empty).then_some(notification)
    }
}

/// The fields of a notification that are read one by one, because another one cannot be read.
#[derive(Deserialize)]
struct NotificationParts<'a> {
    #[serde(borrow)]
    group: Option<&'a RawValue>,
    #[serde(borrow)]
    sealed_at: Option<&'a RawValue>,
    #[serde(borrow)]
    offline: Option<&'a RawValue>,
    #[serde(borrow)]
    online: Option<&'a RawValue>,
    #[serde(borrow)]
    blind: Option<&'a RawValue>,
    #[serde(borrow)]
    timers: Option<&'a RawValue>,
}

fn one_of<T: serde::de::DeserializeOwned>(value: &RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

/// The readable values of a list.
fn each_of<T: serde::de::DeserializeOwned>(list: Option<&RawValue>) -> Vec<T> {
    let list: Vec<&RawValue> =
        list.and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default();
    list.into_iter().filter_map(one_of).collect()
}

/// The incidents of a stored notification of the group with this key; and its JSON with `incidents`, if it had none
/// before. A notification that is readable only in part stays unchanged.
pub(super) fn with_incidents(
    group: &str,
    stored: &[u8],
    incidents: Option<&[Incident]>,
) -> Result<(Option<Vec<Incident>>, Option<String>)> {
    let incidents = incidents.map(<[Incident]>::to_vec);
    let Ok(mut notification) = Notification::read(group, stored).whole() else {
        return Ok((incidents, None));
    };
    if notification.incident.is_some() || incidents.is_none() {
        return Ok((notification.incident, None));
    }
    notification.incident.clone_from(&incidents);
    Ok((incidents, Some(to_json(&notification)?)))
}

impl Delivery {
    /// The first delivery of a lane. An unreadable notification has no content, but its delivery can be ended.
    pub(super) fn of(notification: Option<Notification>, group: &str, id: &str, receiver: &str) -> Delivery {
        let group = Group { key: group.to_owned(), labels: Labels::new() };
        let notification = notification.unwrap_or_else(|| Notification::empty(group, Timestamp::ZERO));
        notification.delivery(id.to_owned(), receiver, 0)
    }
}

pub(super) fn discarded(delivery: Delivery, at: Timestamp) -> DeadLetter {
    DeadLetter { delivery, at, reason: "discarded".to_owned() }
}

/// The name of a blind interval, the same while it lasts and when it is over.
pub(super) fn blindness(interval: &Interval) -> String {
    format!("{BLINDNESS}{}", interval.from.as_millis())
}

/// The name of the blind interval whose end is the member with this name; `None`: it is no such end.
pub(super) fn begin_of_blindness(member: &str) -> Option<&str> {
    member.strip_suffix(OVER).filter(|begin| is_blindness(begin))
}

/// Whether the member with this name is a blind interval.
pub(super) fn is_blindness(member: &str) -> bool {
    member.starts_with(BLINDNESS)
}

/// The begin of the names of blind intervals.
const BLINDNESS: &str = "blind ";

/// The end of the names of blind intervals that are over.
const OVER: &str = " over";

impl Notification {
    /// The blind intervals that lasted at the sealing of this notification and are over: those of the fleet or, where
    /// the members share a kind, of that kind, at the broker that they share.
    pub(super) fn over<'a>(&'a self, hearing: &'a Hearing) -> impl Iterator<Item = &'a Interval> {
        let kind = self.group.labels.get("kind").and_then(|kind| kind.parse::<Kind>().ok());
        let broker = self.group.labels.get("broker").and_then(|name| name.parse::<BrokerName>().ok());
        let is_over = move |interval: &&Interval| match &kind {
            None => hearing.heard > Some(interval.from),
            Some(kind) => {
                let mut known = hearing.filters.blind_of(kind, broker.as_ref());
                known.any(|known| known.contains(interval.from))
            }
        };
        self.blind.iter().filter(|interval| !interval.is_over()).filter(is_over)
    }
}

#[cfg(test)]
mod tests;
