//! Reads messages of Sparkplug nodes: see [`crate::intake::announcements::sparkplug`].

use super::announced::announced_at;
use super::{Content, Incoming, Reader};
use crate::clock::Timestamp;
use crate::intake::PayloadIssues;
use crate::intake::announcements::sparkplug::payload::{Payload, definitions, values};
use crate::intake::announcements::sparkplug::{MessageType, command_topic, message_type, node_id};
use crate::intake::announcements::{PresenceRules, SessionEnd};
use crate::intake::kind_metrics::KindMetrics;
use crate::intake::topic::{Origin, Refusal};
use crate::presence::{Announcement, Cause, Declared, Heartbeat, Labels, Unit};
use crate::telemetry::{PayloadIssue, Rejection};

const DOT: &str = "a group or a node has a dot in its name, so that two devices could get one id";
const NO_NUMBER: &str = "the death has no number (bdSeq), and the births of its node have one";

impl Reader {
    /// Reads a message of a node, or of a device through its node: births and data are heartbeats of both.
    ///
    /// In one piece: each step needs what the steps before it found.
    pub(super) fn sparkplug(
        &self,
        presence: &PresenceRules,
        origin: Origin,
        topic: &str,
        (payload, message): (Option<&[u8]>, &Incoming),
        (arrived, latest): (Timestamp, Timestamp),
        mut issues: PayloadIssues,
    ) -> Result<Content, Refusal> {
        let Some((of, is_device)) = message_type(topic) else { return Ok(Content::Nothing) };
        let Origin { unit, labels, .. } = origin;
        let id = node_id(unit.id.as_str(), is_device);
        let id = id.ok_or_else(|| (Rejection::BadUnit, DOT.to_owned()))?;
        let of_device =
            is_device.then(|| Unit::new(unit.kind.clone(), id.parse().expect("the begin of an id")));
        let node = of_device.as_ref().unwrap_or(&unit);
        let metrics = self.values.as_deref().and_then(|buffer| buffer.metrics_of(&unit.kind));
        let metrics = metrics.filter(|metrics| !metrics.metrics.is_empty());
        if of == MessageType::Death && payload.is_none_or(<[u8]>::is_empty) {
            // A retained death was deleted, or it is not read.
            self.note_issues(&unit, issues);
            return Ok(Content::Nothing);
        }
        let payload = payload.unwrap_or_default();
        // Most data says that its node lives, and nothing else that counts here.
        let read = match of {
            MessageType::Data if !is_device && metrics.is_none() => Payload::without_metrics(payload),
            _ => Payload::read(payload),
        };
        if read.is_none() && of == MessageType::Death {
            return Err((Rejection::UnknownState, "the payload is none of Sparkplug B".to_owned()));
        }
        // Any other message proves life, whatever its content.
        let read = read.unwrap_or_default();
        let nodes = &self.recent.nodes;
        let dies = |unit: &Unit, cause, end| Announcement {
            follows_birth: end == SessionEnd::Former,
            may_be_former: true,
            is_bridged: presence.bridge.is_some(),
            ..Announcement::of(
                unit.clone(),
                announced_at(message, arrived),
                presence.gone(cause, end != SessionEnd::Unknown),
            )
        };
        let ask = || {
            let may_ask = presence.format.sparkplug().is_some_and(|host| host.rebirth);
            let topic = (may_ask && nodes.asks(node, arrived)).then(|| command_topic(node.id.as_str()));
            let command = Payload::rebirth(arrived.as_millis().unsigned_abs());
            topic.flatten().map(|topic| Content::Command(topic, command))
        };
        if !is_device && of != MessageType::Data && read.has_bad_bd_seq() {
            issues.note(PayloadIssue::BadValue, || "bdSeq is no whole number".to_owned());
        }
        let at = self.recent.after_announcement(latest);
        let ends = match (of, is_device) {
            (MessageType::Birth, false) => (!nodes.born(node, &read, latest)).then_some(SessionEnd::Own),
            (MessageType::Death, false) => match nodes.died(node, &read, arrived) {
                None => {
                    self.note_issues(&unit, issues);
                    return Err((Rejection::UnknownState, NO_NUMBER.to_owned()));
                }
                end => end,
            },
            _ => None,
        };
        if let Some(end) = ends {
            self.note_issues(&unit, issues);
            self.recent.gone(arrived);
            let dead = Announcement { has_devices: true, ..dies(node, Cause::NodeDeath, end) };
            // A node that lives answers, and is heard.
            let asked = (end == SessionEnd::Unknown).then(ask).flatten();
            return Ok(Content::of_parts([Some(self.announcement(dead, message.stood_still)), asked, None]));
        }
        let is_broken =
            (of, is_device) != (MessageType::Birth, false) && nodes.is_broken(node, read.number());
        let asked = is_broken.then(ask).flatten();
        let is_dead = of == MessageType::Death;
        if let Some(metrics) = metrics.filter(|_| !is_dead) {
            self.take_metrics(metrics, &unit, &read, of, at, &mut issues);
        }
        self.note_issues(&unit, issues);
        // Historical values only prove that the device was present once.
        let is_of_past = is_device && read.is_historical();
        // Some libraries give each device a connection: its death is a last will, and proves nothing about its node.
        let of_node = of_device.filter(|_| !is_dead).map(|node| {
            let mut labels = labels.clone();
            labels.remove("device");
            heartbeat(node, at, message, labels)
        });
        let own = match is_dead {
            true => {
                self.recent.gone(arrived);
                Some(
                    self.announcement(dies(&unit, Cause::Disconnected, SessionEnd::Own), message.stood_still),
                )
            }
            false => (!is_of_past).then(|| heartbeat(unit, at, message, labels)),
        };
        Ok(Content::of_parts([own, of_node, asked]))
    }

    fn take_metrics(
        &self,
        metrics: &KindMetrics,
        unit: &Unit,
        read: &Payload,
        of: MessageType,
        at: Timestamp,
        issues: &mut PayloadIssues,
    ) {
        let Some(buffer) = self.values.as_deref() else { return };
        if of == MessageType::Birth {
            self.recent.nodes.define(unit, definitions(read, &metrics.metrics));
        }
        let found = values(read, &metrics.metrics, &self.recent.nodes.definitions(unit));
        buffer.take(unit, at, metrics.accept(found, issues));
    }
}

fn heartbeat(unit: Unit, at: Timestamp, message: &Incoming, labels: Labels) -> Content {
    let declared = Declared { topic_labels: labels, ..Declared::default() };
    Content::Heartbeat(Heartbeat { not_before: message.sent_after, declared, ..Heartbeat::of(unit, at) })
}
