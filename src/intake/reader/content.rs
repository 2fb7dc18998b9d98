//! The content of a message: what it says to the recorder.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::intake::canary::Canary;
use crate::intake::timers::ReceivedCommand;
use crate::presence::{Announcement, BrokerName, Heartbeat, Kind};
use crate::store::ShareMember;

/// The content of a message.
#[derive(Debug, PartialEq)]
pub(in crate::intake) enum Content {
    Heartbeat(Heartbeat),
    /// A unit is announced as gone.
    Announcement(Box<Announcement>),
    /// A canary of this client.
    Canary(Canary),
    /// Probes of the filter with this index, sent at these moments, came back: every message before them came.
    Probes(usize, Vec<Timestamp>),
    /// The probe of another member of the share: this topic and this payload report to it that the probe came.
    OfAnother(String, Vec<u8>),
    /// The broker has dropped this member of a shared subscription.
    MemberLost(ShareMember),
    /// The bridge of this kind announced itself as offline.
    BridgeLost(Kind),
    /// The member has unsubscribed from its share: it gets no messages after this.
    Unsubscribed,
    /// A program registers or cancels a timer.
    Timer(Box<ReceivedCommand>),
    /// Publish this payload on this topic: a request to a device.
    Command(String, Vec<u8>),
    /// A message with several contents, none of them a canary or a probe.
    Several(Vec<Content>),
    /// Nothing for the recorder.
    Nothing,
}

impl Content {
    /// The content of a message with these parts.
    pub(super) fn of_parts(parts: [Option<Content>; 3]) -> Content {
        let mut parts = parts.into_iter().flatten();
        match (parts.next(), parts.next()) {
            (first, None) => first.unwrap_or(Content::Nothing),
            (first, second) => Content::Several(first.into_iter().chain(second).chain(parts).collect()),
        }
    }

    /// How long after an announcement that a unit is gone a canary has to be sent.
    pub fn canary_after(&self) -> Option<Duration> {
        match self {
            Content::Announcement(announcement) => Some(announcement.wait()),
            Content::Several(all) => all.iter().filter_map(Content::canary_after).max(),
            _ => None,
        }
    }

    /// Changes each announcement that a unit is gone.
    pub fn change_announcements(&mut self, change: &dyn Fn(&mut Announcement)) {
        match self {
            Content::Announcement(announcement) => change(announcement),
            Content::Several(all) => all.iter_mut().for_each(|one| one.change_announcements(change)),
            _ => {}
        }
    }

    /// Notes the broker of heartbeats and announcements of these kinds.
    pub(super) fn came_by(&mut self, broker: &BrokerName, kinds: &[Kind]) {
        match self {
            Content::Heartbeat(heartbeat) if kinds.contains(&heartbeat.unit.kind) => {
                heartbeat.broker = Some(broker.clone());
            }
            Content::Announcement(announcement) if kinds.contains(&announcement.unit.kind) => {
                announcement.broker = Some(broker.clone());
            }
            Content::Several(all) => all.iter_mut().for_each(|one| one.came_by(broker, kinds)),
            _ => {}
        }
    }
}
