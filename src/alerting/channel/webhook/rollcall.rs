//! Rollcall's own body, and the event of CloudEvents around its data.

use serde::Serialize;

use crate::alerting::group::{UnheardKind, lost, of_kind};
use crate::alerting::message::{
    BlindIntervalData, LabelCount, MassNotice, MessageConfig, ReceiverMessage, SizeLimit, TEST, TimerMessage,
    bounded, counts, fitting, timers,
};
use crate::clock::Timestamp;
use crate::presence::{Incident, Labels, OfflineRecord};
use crate::store::{Delivery, MeantFor};

/// The source of an event without `http.external_url`.
const SOURCE: &str = "/rollcall";

/// The body of a delivery, without links.
pub fn body(delivery: &Delivery) -> String {
    text(&ReceiverMessage::new(delivery), &MessageConfig::default(), SizeLimit::default().bytes())
}

/// The body of a message, with records of at most `most` bytes.
pub fn text(message: &ReceiverMessage<'_>, config: &MessageConfig, most: usize) -> String {
    let timestamp = message.delivery.sealed_at;
    bounded(most, |room| {
        let body = Body { message_type: message.kind(), timestamp, data: data(message, config, room) };
        serde_json::to_string(&body).expect("names and times are always JSON")
    })
}

/// An event of CloudEvents 1.0 in its structured mode.
pub fn cloud_event(message: &ReceiverMessage<'_>, config: &MessageConfig, most: usize) -> String {
    let delivery = message.delivery;
    bounded(most, |room| {
        let event = CloudEvent {
            specversion: "1.0",
            id: if delivery.timers.is_empty() { &delivery.id } else { delivery.notification() },
            source: config.links.home_page().unwrap_or_else(|| SOURCE.to_owned()),
            event_type: message.kind(),
            subject: delivery.group_key(),
            time: delivery.sealed_at,
            datacontenttype: "application/json",
            data: data(message, config, room),
        };
        serde_json::to_string(&event).expect("names and times are always JSON")
    })
}

/// An event of CloudEvents, serialized directly: a `serde_json::Value` would round the numbers of a timer's data.
#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: &'a str,
    source: String,
    #[serde(rename = "type")]
    event_type: &'static str,
    subject: &'a str,
    time: Timestamp,
    datacontenttype: &'static str,
    data: EventData<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    message_type: &'static str,
    timestamp: Timestamp,
    data: EventData<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EventData<'a> {
    Notification {
        receiver: &'a str,
        group: &'a Labels,
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        offline: &'a [OfflineRecord],
        online: &'a [OfflineRecord],
        reminder: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        meant_for: Option<&'a MeantFor>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        counts: Vec<LabelCount>,
        #[serde(skip_serializing_if = "Option::is_none")]
        merged: Option<u64>,
        still_offline: Option<u64>,
        incident: Option<&'a Incident>,
        truncated: usize,
    },
    Blind {
        receiver: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        /// The kind that is not heard, the broker if the fleet has several, and the topic filters; the fleet if there
        /// is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<&'a String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        broker: Option<&'a String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        topics: Option<&'a String>,
        intervals: Vec<BlindIntervalData>,
        /// What the engine lost, and the text about it, if a loss caused the intervals.
        #[serde(flatten)]
        loss: Option<LossData<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        meant_for: Option<&'a MeantFor>,
    },
    Breaker {
        receiver: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        breaker: MassNotice,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        meant_for: Option<&'a MeantFor>,
    },
    Timer {
        receiver: &'a str,
        timers: Vec<TimerMessage<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        meant_for: Option<&'a MeantFor>,
    },
    Test {
        receiver: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>,
        text: &'static str,
    },
}

/// A loss of data.
#[derive(Serialize)]
struct LossData<'a> {
    lost: &'a str,
    text: String,
}

/// `room`: for the records, see [`bounded`].
fn data<'a>(message: &ReceiverMessage<'a>, config: &MessageConfig, mut room: Option<usize>) -> EventData<'a> {
    let delivery = message.delivery;
    let (receiver, url) = (delivery.receiver.as_str(), message.url(config));
    if message.is_test {
        return EventData::Test { receiver, url, text: TEST };
    }
    if !delivery.timers.is_empty() {
        let meant_for = delivery.meant_for.as_ref();
        return EventData::Timer { receiver, timers: timers(delivery), meant_for };
    }
    if delivery.blind.is_empty() {
        let (offline, online) = (&delivery.offline[..], &delivery.online[..]);
        let fits = [fitting(offline, &mut room), fitting(online, &mut room)];
        return EventData::Notification {
            receiver,
            group: &delivery.group.labels,
            url,
            offline: &offline[..fits[0]],
            online: &online[..fits[1]],
            reminder: delivery.reminder,
            meant_for: delivery.meant_for.as_ref(),
            counts: counts(delivery),
            merged: delivery.situation.merged,
            still_offline: delivery.situation.lasting,
            incident: delivery.situation.incident.as_ref(),
            truncated: offline.len() + online.len() - fits[0] - fits[1],
        };
    }
    let meant_for = delivery.meant_for.as_ref();
    if let Some(breaker) = MassNotice::of(delivery) {
        return EventData::Breaker { receiver, url, breaker, text: message.text(config), meant_for };
    }
    let loss = lost(delivery).map(|lost| LossData { lost, text: message.text(config) });
    let unheard = of_kind(delivery);
    let id = unheard.as_ref().map(UnheardKind::id);
    let broker = unheard.as_ref().and_then(|unheard| unheard.broker);
    let (kind, topics) = unheard.map(|unheard| (unheard.kind, unheard.topics)).unzip();
    let blind = delivery.blind.iter();
    let intervals = blind.map(|interval| BlindIntervalData::new(interval, id.as_deref())).collect();
    EventData::Blind { receiver, url, kind, broker, topics, intervals, loss, meant_for }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerting::message::example_timer;

    #[test]
    fn the_data_of_a_timer_are_as_they_were_written_in_every_format() {
        let data =
            r#"{"z":18446744073709551616,"a":0.1000000000000000055511151231257827,"p":1.10,"k":1,"k":2}"#;
        let mut delivery = example_timer("hook");
        delivery.timers[0].data = data.parse().unwrap();
        let (message, config) = (ReceiverMessage::new(&delivery), MessageConfig::default());
        let most = SizeLimit::default().bytes();
        for body in [text(&message, &config, most), cloud_event(&message, &config, most)] {
            assert!(body.contains(data), "{body}");
        }
    }
}
