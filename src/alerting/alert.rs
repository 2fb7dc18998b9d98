//! The members of a notification as alerts in Alertmanager's sense: labels, annotations, a begin and an end.

use crate::clock::Timestamp;
use crate::presence::Labels;
use crate::routing::alert::{ALERT_NAME, UNIT_OFFLINE, fingerprint};

use super::message::{Action, Member, Message, MessageConfig, members};

/// The name of the alert of a blindness of the fleet or of a kind.
pub const BLIND: &str = "RollcallBlind";
const TEST: &str = "RollcallTest";
const MASS: &str = "UnitsOffline";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    pub labels: Labels,
    pub annotations: Labels,
    /// The deadline that passed.
    pub starts_at: Timestamp,
    /// `None` while it lasts.
    pub ends_at: Option<Timestamp>,
    /// The page of its unit.
    pub url: Option<String>,
}

impl Alert {
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.labels)
    }
}

impl From<Member> for Alert {
    fn from(member: Member) -> Alert {
        let mut labels = member.labels;
        let name = if member.unit.is_some() { UNIT_OFFLINE } else { BLIND };
        labels.entry(ALERT_NAME.to_owned()).or_insert_with(|| name.to_owned());
        let annotations = [("summary", member.title), ("description", member.text)];
        let ended = member.action == Action::Resolve;
        Alert {
            labels,
            annotations: annotations.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
            starts_at: member.from,
            // An alert without an end is firing, and one that ends before it begins is refused.
            ends_at: ended.then(|| member.to.unwrap_or(member.from).max(member.from)),
            url: member.url,
        }
    }
}

/// The alerts of a message; a test is one that is over at once.
pub fn alerts(message: &Message<'_>, config: &MessageConfig) -> Vec<Alert> {
    let delivery = message.delivery;
    if message.is_test {
        let labels = [(ALERT_NAME, TEST.to_owned()), ("receiver", delivery.receiver.clone())];
        return vec![Alert {
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            annotations: [("summary".to_owned(), message.title(config))].into(),
            starts_at: delivery.sealed_at,
            ends_at: Some(delivery.sealed_at),
            url: message.url(config),
        }];
    }
    members(delivery, &config.zone, &config.links).into_iter().map(Alert::from).collect()
}

/// The alert that stands for all silences beyond the first `most`.
pub fn mass_alert(receiver: &str, open: usize, most: usize, now: Timestamp, url: Option<String>) -> Alert {
    let labels = [(ALERT_NAME, MASS.to_owned()), ("receiver", receiver.to_owned())];
    let summary = format!("OFFLINE: {open} units");
    let description = format!("{open} units are offline; the first {most} of them are alerts of their own");
    let annotations = [("summary", summary), ("description", description)];
    let owned =
        |pairs: [(&str, String); 2]| -> Labels { pairs.map(|(name, value)| (name.to_owned(), value)).into() };
    Alert { labels: owned(labels), annotations: owned(annotations), starts_at: now, ends_at: None, url }
}
