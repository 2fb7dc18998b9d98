//! Reads messages of Sparkplug nodes: see [`crate::intake::announcements::sparkplug`].

use super::announced::{announced_at, gone};
use super::{Content, Incoming, Reader};
use crate::clock::Timestamp;
use crate::intake::PayloadIssues;
use crate::intake::announcements::SparkplugHost;
use crate::intake::announcements::sparkplug::payload::{Payload, definitions, values};
use crate::intake::announcements::sparkplug::{MessageType, command_topic, message_type, node_id};
use crate::intake::kind_metrics::KindMetrics;
use crate::intake::topic::{Origin, Refusal};
use crate::presence::{Announced, Announcement, Cause, Declared, Heartbeat, Labels, Unit};
use crate::telemetry::Rejection;

const DOT: &str = "a group or a node has a dot in its name, so that two devices could get one id";

impl Reader {
    /// Reads a message of a node, or of a device through its node: births and data are heartbeats of both.
    ///
    /// In one piece: each step needs what the steps before it found.
    pub(super) fn sparkplug(
        &self,
        host: &SparkplugHost,
        origin: Origin,
        topic: &str,
        (payload, message): (&[u8], &Incoming),
        (arrived, latest): (Timestamp, Timestamp),
        mut issues: PayloadIssues,
    ) -> Result<Content, Refusal> {
        let Some((of, is_device)) = message_type(topic) else { return Ok(Content::Nothing) };
        let Origin { unit, labels, presence, .. } = origin;
        let id = node_id(unit.id.as_str(), is_device);
        let id = id.ok_or_else(|| (Rejection::BadUnit, DOT.to_owned()))?;
        let of_device =
            is_device.then(|| Unit::new(unit.kind.clone(), id.parse().expect("the begin of an id")));
        let node = of_device.as_ref().unwrap_or(&unit);
        let metrics = self.values.as_deref().and_then(|buffer| buffer.metrics_of(&unit.kind));
        let metrics = metrics.filter(|metrics| !metrics.metrics.is_empty());
        // Most data only prove that their node is alive.
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
        let settle = presence.as_ref().map_or(Default::default(), |presence| presence.settle);
        let is_bridged = presence.as_ref().is_some_and(|presence| presence.bridge.is_some());
        let dies = |unit: &Unit, cause| Announcement {
            is_bridged,
            ..gone(unit, announced_at(message, arrived), Announced::Gone { cause, settle })
        };
        let at = self.recent.after_announcement(latest);
        let is_alive = match (of, is_device) {
            (MessageType::Birth, false) => nodes.born(node, &read, latest),
            (MessageType::Death, false) => false,
            _ => true,
        };
        if !is_alive {
            self.recent.gone(arrived);
            let is_late = of == MessageType::Death && !nodes.died(node, &read, arrived);
            let dead =
                Announcement { follows_birth: is_late, has_devices: true, ..dies(node, Cause::NodeDeath) };
            return Ok(Content::Announcement(dead.into()));
        }
        let is_broken =
            (of, is_device) != (MessageType::Birth, false) && nodes.is_broken(node, read.number());
        let asked = (host.rebirth && is_broken && nodes.asks(node, arrived))
            .then(|| command_topic(node.id.as_str()))
            .flatten()
            .map(|topic| Content::Command(topic, Payload::rebirth(arrived.as_millis().unsigned_abs())));
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
                Some(Content::Announcement(dies(&unit, Cause::Disconnected).into()))
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
    let declared = Declared { labels, ..Declared::default() };
    Content::Heartbeat(Heartbeat { not_before: message.sent_after, declared, ..Heartbeat::of(unit, at) })
}
