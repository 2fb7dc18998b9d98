//! Rollcall's own body, and the event of CloudEvents around its data.

use serde::Serialize;
use serde_json::{Value, json};

use crate::alerting::group::{lost, of_kind};
use crate::alerting::message::{
    BlindInterval, LabelCount, MassNotice, Message, MessageConfig, TEST, TimerMessage, bounded, counts,
    fitting, timers,
};
use crate::clock::Timestamp;
use crate::presence::{Incident, Labels, OfflineRecord};
use crate::store::{Delivery, MeantFor};

/// The source of an event without `http.external_url`.
const SOURCE: &str = "/rollcall";

/// The body of a delivery, without links.
pub fn body(delivery: &Delivery) -> String {
    text(&Message::new(delivery), &MessageConfig::default())
}

/// The body of a message.
pub fn text(message: &Message<'_>, config: &MessageConfig) -> String {
    let timestamp = message.delivery.sealed_at;
    bounded(|room| {
        let body = Body { message_type: message.kind(), timestamp, data: data(message, config, room) };
        serde_json::to_string(&body).expect("names and times are always JSON")
    })
}

/// An event of CloudEvents 1.0 in its structured mode.
pub fn cloud_event(message: &Message<'_>, config: &MessageConfig) -> String {
    bounded(|room| event(message, config, room))
}

fn event(message: &Message<'_>, config: &MessageConfig, room: Option<usize>) -> String {
    let delivery = message.delivery;
    let data = serde_json::to_value(data(message, config, room)).expect("names and times are always JSON");
    let event: Value = json!({
        "specversion": "1.0",
        "id": if delivery.timers.is_empty() { &delivery.id } else { delivery.notification() },
        "source": config.links.home_page().unwrap_or_else(|| SOURCE.to_owned()),
        "type": message.kind(),
        "subject": delivery.group_key(),
        "time": delivery.sealed_at,
        "datacontenttype": "application/json",
        "data": data,
    });
    event.to_string()
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    message_type: &'static str,
    timestamp: Timestamp,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
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
        /// The kind that is not heard, and its topic filters; the fleet if there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<&'a String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        topics: Option<&'a String>,
        intervals: Vec<BlindInterval>,
        /// What the engine lost, and the text, if that is why there are intervals.
        #[serde(flatten)]
        loss: Option<Loss<'a>>,
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
struct Loss<'a> {
    lost: &'a str,
    text: String,
}

/// `room`: for the records, see [`bounded`].
fn data<'a>(message: &Message<'a>, config: &MessageConfig, mut room: Option<usize>) -> Data<'a> {
    let delivery = message.delivery;
    let (receiver, url) = (delivery.receiver.as_str(), message.url(config));
    if message.is_test {
        return Data::Test { receiver, url, text: TEST };
    }
    if !delivery.timers.is_empty() {
        let meant_for = delivery.meant_for.as_ref();
        return Data::Timer { receiver, timers: timers(delivery), meant_for };
    }
    if delivery.blind.is_empty() {
        let (offline, online) = (&delivery.offline[..], &delivery.online[..]);
        let fits = [fitting(offline, &mut room), fitting(online, &mut room)];
        return Data::Notification {
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
        return Data::Breaker { receiver, url, breaker, text: message.text(config), meant_for };
    }
    let loss = lost(delivery).map(|lost| Loss { lost, text: message.text(config) });
    let (kind, topics) = of_kind(delivery).unzip();
    let blind = delivery.blind.iter();
    let intervals = blind.map(|interval| BlindInterval::new(interval, kind.map(String::as_str))).collect();
    Data::Blind { receiver, url, kind, topics, intervals, loss, meant_for }
}
