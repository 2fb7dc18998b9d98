//! The members of a notification as alerts in Alertmanager's sense: labels, annotations, a begin and an end.

use std::collections::HashSet;

use crate::clock::Timestamp;
use crate::presence::Labels;
use crate::routing::alert::{ALERT_NAME, UNIT_OFFLINE, fingerprint};

use super::message::{AlertAction, Member, MessageConfig, ReceiverMessage, members, number};

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
    /// Adds the constant labels of the receiver. The alert's own labels win: what a unit says of itself is more exact.
    fn with_labels(mut self, labels: &Labels) -> Alert {
        for (name, value) in labels {
            self.labels.entry(name.clone()).or_insert_with(|| value.clone());
        }
        self
    }

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
        let ended = member.action == AlertAction::Resolve;
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

/// The alerts of a message; a test is an alert that is over at once.
pub fn alerts(message: &ReceiverMessage<'_>, config: &MessageConfig) -> Vec<Alert> {
    let delivery = message.delivery;
    if message.is_test {
        let labels = [(ALERT_NAME, TEST.to_owned()), ("receiver", delivery.receiver.clone())];
        let alert = Alert {
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            annotations: [("summary".to_owned(), message.title(config))].into(),
            starts_at: delivery.sealed_at,
            ends_at: Some(delivery.sealed_at),
            url: message.url(config),
        };
        return vec![alert.with_labels(&config.labels)];
    }
    let alerts = members(delivery, &config.zone, &config.links).into_iter().map(Alert::from);
    let mut alerts: Vec<Alert> = alerts.map(|alert| alert.with_labels(&config.labels)).collect();
    // A unit may have two members: it flapped, or was back for a while, and is offline again. Both have the same
    // labels, and the alert lasts.
    if !delivery.online.is_empty() && !delivery.offline.is_empty() {
        let firing: HashSet<Labels> =
            alerts.iter().filter(|alert| alert.ends_at.is_none()).map(|alert| alert.labels.clone()).collect();
        alerts.retain(|alert| alert.ends_at.is_none() || !firing.contains(&alert.labels));
    }
    alerts
}

/// The alert that stands for all silences beyond the first `most`.
pub fn mass_alert(receiver: &str, open: usize, most: usize, now: Timestamp, config: &MessageConfig) -> Alert {
    let labels = [(ALERT_NAME, MASS.to_owned()), ("receiver", receiver.to_owned())];
    let [open, most] = [open, most].map(|count| number(count as u64));
    let summary = format!("OFFLINE: {open} units");
    let description = format!("{open} units are offline; the first {most} of them are alerts of their own");
    let annotations = [("summary", summary), ("description", description)];
    let owned =
        |pairs: [(&str, String); 2]| -> Labels { pairs.map(|(name, value)| (name.to_owned(), value)).into() };
    let (labels, annotations, url) = (owned(labels), owned(annotations), config.links.home_page());
    Alert { labels, annotations, starts_at: now, ends_at: None, url }.with_labels(&config.labels)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::alerting::message::{pages, test_delivery};
    use crate::presence::{Cause, Closing, OfflineRecord};
    use crate::store::Delivery;

    #[test]
    fn a_message_says_that_a_unit_flaps_and_how_it_is_then_with_one_alert() {
        let moments = [0, 1, 2].map(|hour| Timestamp::from_millis(1_732_147_200_000 + hour * 3_600_000));
        let [silence, since, end] = moments;
        let unit = || "gate:7".parse().unwrap();
        let begun =
            OfflineRecord { cause: Cause::Flapping, ..OfflineRecord::open(unit(), silence, since, since) };
        let ended = |why| OfflineRecord { back_at: Some(end), closed_by: Some(why), ..begun.clone() };
        let open = |last_seen| OfflineRecord::open(unit(), last_seen, end, end);
        let after = "2024-11-21T02:00:00.000Z, was flapping since 2024-11-21T01:00:00.000Z";
        let cases = [
            (vec![begun.clone()], vec![], "FLAPPING: gate 7", "flapping since 2024-11-21T01:00:00.000Z", 1),
            (
                vec![],
                vec![ended(Closing::Stable)],
                "STABLE: gate 7",
                &format!("stable, online since {after}"),
                0,
            ),
            // The record that was open when the unit began to flap, or another one.
            (
                vec![open(silence)],
                vec![ended(Closing::StableOffline)],
                "OFFLINE: gate 7",
                &format!("offline since {after}"),
                1,
            ),
            (
                vec![open(since)],
                vec![ended(Closing::StableOffline)],
                "OFFLINE: gate 7",
                &format!("offline since {after}"),
                1,
            ),
        ];
        let config = MessageConfig::default();
        for (offline, online, title, text, firing) in cases {
            let delivery =
                Delivery { offline, online, ..test_delivery("hook", end + Duration::from_secs(1)) };
            let mut digest = delivery.clone();
            digest.situation.merged = Some(2);
            digest.offline.push(open(since));
            assert_eq!(
                ReceiverMessage::new(&digest).kind(),
                "rollcall.notification",
                "a digest has other units, too"
            );
            let message = ReceiverMessage::new(&delivery);
            assert_eq!((message.kind(), message.title(&config).as_str()), ("rollcall.flapping", title));
            assert!(message.text(&config).contains(text), "{}", message.text(&config));
            let alerts = alerts(&message, &config);
            let lasting = alerts.iter().filter(|alert| alert.ends_at.is_none()).count();
            assert_eq!((alerts.len(), lasting), (1, firing), "{title}");
            // A service that keeps an alert for each key closes the last one, or keeps the one that lasts. A service
            // that calls an operator for each key does so, too.
            for changes in [members, pages] {
                let mut open = std::collections::BTreeSet::from([format!("flapping:{}", begun.id)]);
                for member in changes(&delivery, &config.zone, &config.links) {
                    match member.action {
                        AlertAction::Trigger => open.insert(member.key),
                        AlertAction::Resolve => open.remove(&member.key),
                        AlertAction::Acknowledge => panic!("it was not acknowledged"),
                    };
                }
                assert_eq!(open.len(), firing, "{title}");
            }
        }
    }

    #[test]
    fn every_alert_has_the_labels_of_the_receiver_unless_its_unit_has_its_own() {
        let config = MessageConfig {
            labels: [("severity".to_owned(), "critical".to_owned())].into(),
            ..MessageConfig::default()
        };
        let at = Timestamp::ZERO;
        let plain = OfflineRecord::open("gate:7".parse().unwrap(), at, at, at);
        let mut own = OfflineRecord::open("gate:8".parse().unwrap(), at, at, at);
        own.labels.insert("severity".to_owned(), "info".to_owned());
        let delivery = Delivery { offline: vec![plain, own], ..test_delivery("hook", at) };
        let severities = |message: &ReceiverMessage<'_>| -> Vec<String> {
            alerts(message, &config).iter().map(|alert| alert.labels["severity"].clone()).collect()
        };
        assert_eq!(severities(&ReceiverMessage::new(&delivery)), ["critical", "info"]);
        assert_eq!(severities(&ReceiverMessage::test(&delivery)), ["critical"]);
        assert_eq!(mass_alert("hook", 7, 5, at, &config).labels["severity"], "critical");
    }

    #[test]
    fn a_unit_that_was_back_for_a_while_is_one_alert_that_lasts() {
        let [before, back, deadline] = [0, 1, 2].map(|hour| Timestamp::from_millis(hour * 3_600_000));
        let unit = || "gate:7".parse().unwrap();
        let old = OfflineRecord::open(unit(), before, before, before);
        let closed = OfflineRecord { back_at: Some(back), closed_by: Some(Closing::Return), ..old };
        let other = OfflineRecord::open("gate:8".parse().unwrap(), before, before, before);
        let other = OfflineRecord { back_at: Some(back), closed_by: Some(Closing::Return), ..other };
        let delivery = Delivery {
            offline: vec![OfflineRecord::open(unit(), back, deadline, deadline)],
            online: vec![closed, other],
            ..test_delivery("hook", deadline)
        };
        let alerts = alerts(&ReceiverMessage::new(&delivery), &MessageConfig::default());
        let shown: Vec<(&str, bool)> =
            alerts.iter().map(|alert| (alert.labels["unit"].as_str(), alert.ends_at.is_some())).collect();
        assert_eq!(shown, [("7", false), ("8", true)]);
    }
}
