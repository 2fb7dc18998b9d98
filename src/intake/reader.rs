//! One message in, at most one heartbeat out.
//!
//! The reader runs where messages are received, so that no message in the queue is larger than a heartbeat, whatever
//! devices send. It never fails and never waits: an unusable message is counted by reason, and sometimes logged.

use std::sync::Arc;
use std::time::Duration;

use super::announcements::RecentSessions;
use super::canary::{Canary, Key};
use super::probe::Probes;
use super::read_budget::ReadBudget;
use super::timers::{self, TimerReader};
use super::topic::{self, Refusal, Topics};
use super::value_buffer::ValueBuffer;
use super::{Fields, PayloadIssues, canary, payload};
use crate::clock::Timestamp;
use crate::presence::{BrokerName, Declared, Heartbeat, Kind, Unit};
use crate::telemetry::{PayloadIssue, Rejection, Telemetry};

mod announced;
mod content;
mod sparkplug;

pub(super) use content::Content;

/// A message as it arrives.
#[derive(Default)]
pub(super) struct Incoming<'a> {
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    pub retain: bool,
    /// The earliest moment at which the message was sent; `None` if it is unknown.
    pub sent_after: Option<Timestamp>,
    /// The latest moment, if the message was in transit for long.
    pub sent_before: Option<Timestamp>,
    /// Whether the broker stood still a moment ago: see [`super::standstill`].
    pub stood_still: bool,
    /// The topic on which the sender wants an answer, and the correlation data.
    pub reply_to: Option<(&'a str, &'a [u8])>,
}

pub(super) struct Reader {
    pub topics: Arc<Topics>,
    pub probes: Arc<Probes>,
    /// The recent announcements of units.
    pub recent: Arc<RecentSessions>,
    pub fields: Fields,
    /// Takes the values of metrics, if any kind has metrics.
    pub values: Option<Arc<ValueBuffer>>,
    pub client_id: String,
    /// Signs the canaries of the fleet.
    pub key: Key,
    /// The broker that delivers the messages, and the kinds that are also heard at other brokers.
    pub broker: Option<(BrokerName, Vec<Kind>)>,
    pub max_payload: usize,
    /// The budget for larger payloads.
    pub budget: ReadBudget,
    /// Reads requests about timers, if they may come over MQTT.
    pub timers: Option<Arc<TimerReader>>,
    /// A message that declares a higher age is no heartbeat.
    pub max_age: Option<Duration>,
    pub telemetry: Arc<Telemetry>,
}

impl Reader {
    /// Reads a message that arrives at `arrived`.
    pub fn read(&self, message: &Incoming, arrived: Timestamp) -> Content {
        let Ok(topic) = std::str::from_utf8(message.topic) else {
            self.telemetry.message_rejected("", Rejection::BadTopic, "the topic is not UTF-8");
            return Content::Nothing;
        };
        // Some libraries write it before JSON, and before words.
        let message = &Incoming { payload: payload::without_mark(message.payload), ..*message };
        match self.decide(topic, message, arrived) {
            Ok(mut content) => {
                if let Some((broker, kinds)) = &self.broker {
                    content.came_by(broker, kinds);
                }
                content
            }
            Err((why, text)) => {
                self.telemetry.message_rejected(topic, why, &text);
                Content::Nothing
            }
        }
    }

    fn decide(&self, topic: &str, message: &Incoming, arrived: Timestamp) -> Result<Content, Refusal> {
        let broker = self.broker.as_ref().map(|(broker, _)| broker.as_str());
        if let Some(member) = canary::read_gone(topic, message.payload, broker) {
            return Ok(Content::MemberLost(member));
        }
        let is_feed = self.topics.feeds(topic).next().is_some();
        if message.retain && !is_feed {
            // The subscription excludes retained messages, but a bridge may pass one on.
            return Err((Rejection::Retained, "a retained message may be of any age".to_owned()));
        }
        if self.probes.answers_topic() == Some(topic) {
            return self.answer(message.payload, arrived);
        }
        if let Some(client_id) = topic.strip_prefix(canary::PREFIX) {
            return if client_id == self.client_id {
                self.canary(topic, message, arrived)
            } else {
                Ok(Content::Nothing)
            };
        }
        if topic::is_probe(topic) {
            return self.probe(topic, message, arrived);
        }
        if let (Some(timers), Some(id)) = (&self.timers, topic.strip_prefix(timers::PREFIX)) {
            return Ok(Content::Timer(Box::new(timers.read(id, message.payload, message.reply_to, arrived))));
        }
        if self.topics.is_own(topic) {
            return Ok(Content::Nothing);
        }
        let latest = message.sent_before.map_or(arrived, |latest| latest.min(arrived));
        if !is_feed {
            return self.of_unit(topic, message, (arrived, latest));
        }
        let mut all = self.feeds(topic, message, (arrived, latest));
        if !message.retain && self.topics.names_unit(topic) {
            match self.of_unit(topic, message, (arrived, latest)) {
                Ok(content) => all.push(content),
                // What it means to another kind stays.
                Err((why, text)) => self.telemetry.message_rejected(topic, why, &text),
            }
        }
        Ok(if all.len() > 1 { Content::Several(all) } else { all.pop().unwrap_or(Content::Nothing) })
    }

    /// Reads a message of the unit that the topic names.
    fn of_unit(
        &self,
        topic: &str,
        message: &Incoming,
        (arrived, latest): (Timestamp, Timestamp),
    ) -> Result<Content, Refusal> {
        self.probes.unit_heard(topic, latest);
        let mut issues = PayloadIssues::default();
        let origin = self.topics.origin(topic, &mut issues)?;
        let payload = self.readable(message.payload, self.max_payload, arrived, &mut issues);
        let presence = origin.presence.clone().filter(|presence| presence.format.sparkplug().is_some());
        if let Some(presence) = presence {
            return self.sparkplug(&presence, origin, topic, (payload, message), (arrived, latest), issues);
        }
        let buffer = self.values.as_deref();
        let metrics = buffer.and_then(|buffer| buffer.metrics_of(&origin.unit.kind));
        let (rules, fields) = (&origin.rules, &self.fields);
        let announced = self.announced_by(&origin, payload, message, (arrived, latest));
        if let Some(announced) = announced.transpose() {
            self.note_issues(&origin.unit, issues);
            return announced;
        }
        // Any other message proves life, also one that is not read.
        let payload = payload.unwrap_or_default();
        let parsed = payload::read(payload, fields, metrics, rules, latest, &mut issues);
        if let (Some(most), Some(sent)) = (self.max_age, parsed.sent)
            && arrived.since(sent) > most
        {
            return Err((Rejection::TooOld, format!("it was sent at {sent}")));
        }
        if let Some(buffer) = buffer {
            buffer.take(&origin.unit, parsed.at, parsed.values);
        }
        let declared = Declared { topic_labels: origin.labels, ..parsed.declared };
        self.note_issues(&origin.unit, issues);
        let (unit, place) = (origin.unit, origin.place);
        let [at, arrived] = [parsed.at, latest].map(|at| self.recent.after_announcement(at));
        let (not_before, broker) = (message.sent_after, None);
        Ok(Content::Heartbeat(Heartbeat { unit, at, arrived, not_before, place, broker, declared }))
    }

    fn note_issues(&self, unit: &Unit, issues: PayloadIssues) {
        for (issue, detail) in issues.take() {
            self.telemetry.payload_issue(unit, issue, &detail);
        }
    }

    /// Reads a probe. A member of a share reports its own probes only, and forwards those of other members.
    fn probe(&self, topic: &str, message: &Incoming, arrived: Timestamp) -> Result<Content, Refusal> {
        let Some((index, sent_at)) = self.probes.read(&self.key, topic, message.payload, arrived)? else {
            return Ok(Content::Nothing);
        };
        let is_of_another =
            |to: &str| canary::is_answers_topic(to) && self.probes.answers_topic() != Some(to);
        Ok(match message.reply_to {
            Some((to, _)) if self.probes.answers_topic().is_some() && is_of_another(to) => {
                Content::OfAnother(to.to_owned(), [topic.as_bytes(), b"\n", message.payload].concat())
            }
            _ => Content::Probes(index, self.probes.came(index, sent_at)),
        })
    }

    /// Reads the report of another member of the share that it received a probe of this one: the probe's topic and
    /// payload.
    fn answer(&self, payload: &[u8], arrived: Timestamp) -> Result<Content, Refusal> {
        let end = payload.iter().position(|byte| *byte == b'\n').unwrap_or_default();
        let topic = std::str::from_utf8(&payload[..end]).unwrap_or_default();
        let probe =
            self.probes.read(&self.key, topic, payload.get(end + 1..).unwrap_or_default(), arrived)?;
        let came = |(index, sent_at)| Content::Probes(index, self.probes.came(index, sent_at));
        Ok(probe.map_or(Content::Nothing, came))
    }

    /// The payload; `None` if it has more than `most` bytes or exceeds the budget. Such a message may say anything, so it
    /// is none without content.
    fn readable<'a>(
        &self,
        payload: &'a [u8],
        most: usize,
        arrived: Timestamp,
        issues: &mut PayloadIssues,
    ) -> Option<&'a [u8]> {
        let size = payload.len();
        let why = if size > most {
            "mqtt.max_payload allows fewer"
        } else if !self.budget.allows(size, arrived) {
            "larger payloads come faster than they are read"
        } else {
            return Some(payload);
        };
        issues.note(PayloadIssue::TooLarge, || format!("nothing of {size} bytes was read: {why}"));
        None
    }

    fn canary(&self, topic: &str, message: &Incoming, arrived: Timestamp) -> Result<Content, Refusal> {
        match Canary::read(&self.key, topic, message.payload) {
            // An earlier process sent the canary, with a clock that was ahead.
            Some(canary) if canary.sent_at() > arrived => Ok(Content::Nothing),
            Some(canary) => Ok(Content::Canary(canary)),
            None => Err((Rejection::ForgedCanary, canary::FORGED.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
