//! Reads messages of Sparkplug nodes: see [`crate::intake::announcements::sparkplug`].

use super::announced::{announced_at, gone};
use super::{Content, Incoming, Reader};
use crate::clock::Timestamp;
use crate::intake::PayloadIssues;
use crate::intake::announcements::SparkplugHost;
use crate::intake::announcements::sparkplug::payload::{Payload, definitions, values};
use crate::intake::announcements::sparkplug::{MessageType, command_topic, message_type, node_id};
use crate::intake::topic::{Origin, Refusal};
use crate::presence::{Announced, Announcement, Cause, Declared, Heartbeat, Labels, Unit};
use crate::telemetry::Rejection;

const DOT: &str = "a group or a node has a dot in its name, so that two devices could get one id";

impl Reader {
    /// Reads a message of a node, or of a device that its node publishes: a birth and data are heartbeats of both.
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
        let node = node_id(origin.unit.id.as_str(), is_device);
        let node = node.ok_or_else(|| (Rejection::BadUnit, DOT.to_owned()))?;
        let node = Unit::new(origin.unit.kind.clone(), node.parse().expect("the begin of an id"));
        let read = Payload::read(payload);
        if read.is_none() && of == MessageType::Death {
            return Err((Rejection::UnknownState, "the payload is none of Sparkplug B".to_owned()));
        }
        // Any other message proves life, whatever it holds.
        let read = read.unwrap_or_default();
        let nodes = &self.recent.nodes;
        let settle = origin.presence.as_ref().map_or(Default::default(), |presence| presence.settle);
        let is_bridged = origin.presence.as_ref().is_some_and(|presence| presence.bridge.is_some());
        let dies = |unit: &Unit, cause| Announcement {
            is_bridged,
            ..gone(unit, announced_at(message, arrived), Announced::Gone { cause, settle })
        };
        let at = self.recent.after_announcement(latest);
        let is_alive = match (of, is_device) {
            (MessageType::Birth, false) => nodes.born(&node, &read, latest),
            (MessageType::Death, false) => false,
            _ => true,
        };
        if !is_alive {
            self.recent.gone(arrived);
            let is_late = of == MessageType::Death && !nodes.died(&node, &read, arrived);
            let dead =
                Announcement { follows_birth: is_late, has_devices: true, ..dies(&node, Cause::NodeDeath) };
            return Ok(Content::Announcement(dead.into()));
        }
        let is_broken =
            (of, is_device) != (MessageType::Birth, false) && nodes.is_broken(&node, read.number());
        let mut all = Vec::new();
        if of == MessageType::Death {
            self.recent.gone(arrived);
            all.push(Content::Announcement(dies(&origin.unit, Cause::Disconnected).into()));
        } else {
            self.take_metrics(&origin.unit, &read, of, at, &mut issues);
            // Values that the node kept say that the device was there once.
            if !(is_device && read.is_historical()) {
                let (unit, labels) = (origin.unit.clone(), origin.labels.clone());
                all.push(heartbeat(unit, at, message, labels));
            }
        }
        self.note_issues(&origin.unit, issues);
        // Some libraries connect each device by itself: its death is a last will, and proves nothing of its node.
        if is_device && of != MessageType::Death {
            let labels = origin.labels.into_iter().filter(|(label, _)| label != "device").collect();
            all.push(heartbeat(node.clone(), at, message, labels));
        }
        if host.rebirth
            && is_broken
            && nodes.asks(&node, arrived)
            && let Some(topic) = command_topic(node.id.as_str())
        {
            all.push(Content::Command(topic, Payload::rebirth(arrived.as_millis().unsigned_abs())));
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Content::Several(all),
        })
    }

    fn take_metrics(
        &self,
        unit: &Unit,
        read: &Payload,
        of: MessageType,
        at: Timestamp,
        issues: &mut PayloadIssues,
    ) {
        let Some(buffer) = self.values.as_deref() else { return };
        let Some(metrics) = buffer.metrics_of(&unit.kind).filter(|metrics| !metrics.metrics.is_empty())
        else {
            return;
        };
        if of == MessageType::Birth {
            self.recent.nodes.define(unit, definitions(read, &metrics.metrics));
        }
        let found = values(read, &metrics.metrics, &self.recent.nodes.definitions(unit));
        buffer.take(unit, at, metrics.accept(found, issues));
    }
}

fn heartbeat(unit: Unit, at: Timestamp, message: &Incoming, labels: Labels) -> Content {
    let declared = Declared { labels, ..Declared::default() };
    Content::Heartbeat(Heartbeat {
        unit,
        at,
        not_before: message.sent_after,
        place: None,
        broker: None,
        declared,
    })
}
