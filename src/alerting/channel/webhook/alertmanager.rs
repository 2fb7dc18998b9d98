//! The payload of Alertmanager's webhooks, version 4: every bridge that is built for it works.
//!
//! A record is an alert: `startsAt` is its deadline, `endsAt` the return of its unit. `groupKey` is the key of the
//! group, `fingerprint` the number that Alertmanager computes from the same labels.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::alerting::alert::{Alert, alerts};
use crate::alerting::message::{MessageConfig, ReceiverMessage, bounded, fitting};
use crate::presence::Labels;

const FIRING: &str = "firing";
const RESOLVED: &str = "resolved";
/// Alertmanager's word for an end that is not known.
const NO_END: &str = "0001-01-01T00:00:00Z";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    version: &'static str,
    group_key: &'a str,
    truncated_alerts: usize,
    status: &'static str,
    receiver: &'a str,
    group_labels: Labels,
    common_labels: Labels,
    common_annotations: Labels,
    /// Routes of Rollcall have no labels.
    route_labels: Labels,
    #[serde(rename = "externalURL")]
    external_url: String,
    alerts: Vec<PayloadAlert>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PayloadAlert {
    status: &'static str,
    labels: Labels,
    annotations: Labels,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL")]
    generator_url: String,
    fingerprint: String,
}

impl From<Alert> for PayloadAlert {
    fn from(alert: Alert) -> PayloadAlert {
        PayloadAlert {
            status: if alert.ends_at.is_some() { RESOLVED } else { FIRING },
            fingerprint: alert.fingerprint(),
            labels: alert.labels,
            annotations: alert.annotations,
            starts_at: alert.starts_at.to_string(),
            ends_at: alert.ends_at.map_or(NO_END.to_owned(), |at| at.to_string()),
            generator_url: alert.url.unwrap_or_default(),
        }
    }
}

pub fn payload(message: &ReceiverMessage<'_>, config: &MessageConfig, most: usize) -> String {
    bounded(most, |room| payload_within(message, config, room))
}

fn payload_within(message: &ReceiverMessage<'_>, config: &MessageConfig, mut room: Option<usize>) -> String {
    let delivery = message.delivery;
    let mut alerts: Vec<PayloadAlert> = alerts(message, config).into_iter().map(PayloadAlert::from).collect();
    let is_lasting = delivery.situation.lasting.is_some_and(|lasting| lasting > 0);
    let is_firing = is_lasting || alerts.iter().any(|alert| alert.status == FIRING);
    let fits = fitting(&alerts, &mut room);
    let truncated_alerts = alerts.len() - fits;
    alerts.truncate(fits);
    let common_labels = common(alerts.iter().map(|alert| &alert.labels));
    // Only labels that all alerts share, as in Alertmanager: what a loss of data concerns is a label of no alert.
    let is_common = |&(name, value): &(&String, &String)| common_labels.get(name) == Some(value);
    let group_labels = message.group().iter().filter(is_common);
    let group_labels = group_labels.map(|(name, value)| (name.clone(), value.clone())).collect();
    let payload = Payload {
        version: "4",
        group_key: delivery.group_key(),
        truncated_alerts,
        status: if is_firing { FIRING } else { RESOLVED },
        receiver: &delivery.receiver,
        group_labels,
        common_labels,
        common_annotations: common(alerts.iter().map(|alert| &alert.annotations)),
        route_labels: Labels::new(),
        external_url: config.links.home_page().unwrap_or_default(),
        alerts,
    };
    serde_json::to_string(&payload).expect("names and times are always JSON")
}

/// The pairs of name and value that all label sets have.
fn common<'a>(mut all: impl Iterator<Item = &'a Labels>) -> Labels {
    let mut common: BTreeMap<String, String> = all.next().cloned().unwrap_or_default();
    for labels in all {
        common.retain(|name, value| labels.get(name) == Some(value));
    }
    common
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::alerting::group::{TOPICS, group_of_kind};
    use crate::alerting::message::{Example, adversarial, without_labels};
    use crate::store::Delivery;

    #[test]
    fn the_labels_of_the_group_are_a_part_of_those_that_all_alerts_have() {
        let of_kind = Delivery {
            group: group_of_kind(&"detector".parse().unwrap(), None, &["fleet/+".to_owned()]),
            ..Example::Blind.delivery("hook")
        };
        assert!(of_kind.group.labels.contains_key(TOPICS));
        let examples = Example::ALL.map(|example| example.delivery("hook"));
        let others = without_labels("hook").into_iter().chain([of_kind, adversarial("hook")]);
        for delivery in examples.into_iter().chain(others) {
            let payload = payload(&ReceiverMessage::new(&delivery), &MessageConfig::default(), usize::MAX);
            let payload: Value = serde_json::from_str(&payload).unwrap();
            let labels = |name: &str| -> BTreeMap<String, String> {
                serde_json::from_value(payload[name].clone()).unwrap()
            };
            let common = labels("commonLabels");
            for (name, value) in labels("groupLabels") {
                assert_eq!(common.get(&name), Some(&value), "{name} of {}", delivery.id);
            }
        }
    }

    #[test]
    fn a_group_is_resolved_with_the_last_of_its_units() {
        let mut back = Example::Recovery.delivery("hook");
        for (lasting, expected) in [(None, RESOLVED), (Some(1), FIRING), (Some(0), RESOLVED)] {
            back.situation.lasting = lasting;
            let payload = payload(&ReceiverMessage::new(&back), &MessageConfig::default(), usize::MAX);
            let payload: Value = serde_json::from_str(&payload).unwrap();
            let alerts: Vec<_> =
                payload["alerts"].as_array().unwrap().iter().map(|one| one["status"].as_str()).collect();
            assert_eq!(
                (payload["status"].as_str(), alerts),
                (Some(expected), vec![Some(RESOLVED)]),
                "{lasting:?}"
            );
        }
    }

    #[test]
    fn the_labels_of_a_group_of_units_are_there() {
        let storm = Example::Storm.delivery("hook");
        let payload = payload(&ReceiverMessage::new(&storm), &MessageConfig::default(), usize::MAX);
        let payload: Value = serde_json::from_str(&payload).unwrap();
        assert_eq!(payload["groupLabels"], serde_json::json!({"kind": "detector", "site": "north"}));
    }
}
