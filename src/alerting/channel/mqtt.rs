//! The channel to an MQTT broker: each transition is published, and so is each timer, with a topic and a payload that
//! are templates.
//!
//! All messages of a delivery are published at QoS 1; it has arrived when the broker has acknowledged all of them. A
//! message has the key of its silence, or the id of its timer, so a subscriber recognizes repeated ones. With `retain`,
//! the last transition of each unit stays at the broker.

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Channel, Failure, ReceiverAnswer};
use crate::alerting::message::{
    AlertAction, Example, Member, MessageConfig, ReceiverMessage, Templates, TimerMessage, adversarial,
    example_timer, members, test_delivery, test_members, timers, without_labels,
};
use crate::clock::Timestamp;
use crate::presence::may_stand_in_topic;
use crate::store::Delivery;
use crate::trust::TlsFiles;

mod connections;

use connections::{Connections, Publication};

/// The topic by default: `rollcall/alerts/detector/pump-7`, or `rollcall/alerts/rollcall` for blindness.
pub const DEFAULT_TOPIC: &str = "rollcall/alerts/{{ member.source }}";
/// The longest topic that MQTT allows, in bytes.
const MAX_TOPIC: usize = 65_535;

#[derive(Clone, Default)]
pub struct MqttConfig {
    /// `mqtt://`, `mqtts://`, `ws://`, `wss://`.
    pub url: String,
    pub credentials: Option<(String, String)>,
    /// A template; empty: [`DEFAULT_TOPIC`].
    pub topic: String,
    /// A template; empty: the JSON of a transition or of a timer.
    pub payload: String,
    pub retain: bool,
    pub tls: TlsFiles,
}

pub struct Mqtt {
    connections: Connections,
    has_payload: bool,
    templates: Templates,
    message: MessageConfig,
}

/// A transition as it is published.
#[derive(Serialize)]
struct PublishedTransition<'a> {
    #[serde(rename = "type")]
    message_type: &'a str,
    /// The id of the notification.
    id: &'a str,
    timestamp: Timestamp,
    receiver: &'a str,
    #[serde(flatten)]
    member: &'a Member,
}

/// A timer as it is published.
#[derive(Serialize)]
struct PublishedTimer<'a> {
    /// The id of the notification, which is the same in every attempt.
    notification: &'a str,
    #[serde(flatten)]
    timer: &'a TimerMessage<'a>,
}

impl PublishedTimer<'_> {
    fn payload(&self) -> String {
        serde_json::to_string(self).expect("names and times are always JSON")
    }
}

impl Mqtt {
    /// A channel. Errors name the option and show no secret.
    pub fn new(receiver: &str, config: &MqttConfig, message: &MessageConfig) -> Result<Mqtt, String> {
        let mut templates = Templates::new(&message.zone);
        templates.add("topic", if config.topic.is_empty() { DEFAULT_TOPIC } else { &config.topic })?;
        if !config.payload.is_empty() {
            templates.add("payload", &config.payload)?;
        }
        let channel = Mqtt {
            connections: Connections::new(receiver, config)?,
            has_payload: !config.payload.is_empty(),
            templates,
            message: message.clone(),
        };
        let names = |what| [&config.topic, &config.payload].iter().any(|text| text.contains(what));
        let mut examples = Vec::new();
        // Programs decide what the data of timers are: only a timer shows whether a template fits.
        if !names("timer.data") {
            examples.push(example_timer(receiver));
        }
        // A template for timers need not name a transition.
        if !names("timer.") {
            examples.extend(Example::ALL.map(|example| example.delivery(receiver)));
            examples.push(adversarial(receiver));
            examples.extend(without_labels(receiver));
        }
        for example in &examples {
            channel.publications(&ReceiverMessage::new(example))?;
        }
        Ok(channel)
    }

    /// The topics and payloads of a message.
    fn publications(&self, message: &ReceiverMessage<'_>) -> Result<Vec<Publication>, String> {
        let delivery = message.delivery;
        let mut members = match message.is_test {
            true => test_members(delivery),
            false => members(delivery, &self.message.zone, &self.message.links),
        };
        let mut data = json!({
            "receiver": delivery.receiver,
            "notification": delivery.notification(),
            "group": message.group(),
            "group_key": delivery.group_key(),
        });
        let mut timers = timers(delivery).into_iter();
        let mut publication = |member: &Member| -> Result<Publication, String> {
            data["member"] = json!(member);
            let timer = timers.next();
            if let Some(timer) = &timer {
                data["timer"] = json!(timer);
            }
            let payload = match &timer {
                _ if self.has_payload => self.templates.render("payload", &data)?,
                Some(timer) => PublishedTimer { notification: delivery.notification(), timer }.payload(),
                None => self.payload(message, member),
            };
            Ok(Publication { topic: self.topic(&data)?, payload })
        };
        // A unit that was back for a while ends as offline, also in what is retained.
        members.sort_by_key(|member| member.action != AlertAction::Resolve);
        members.iter().map(&mut publication).collect()
    }

    fn topic(&self, data: &Value) -> Result<String, String> {
        let topic = self.templates.render("topic", data)?;
        let is_bad = topic.is_empty() || topic.len() > MAX_TOPIC || !may_stand_in_topic(&topic);
        match is_bad {
            true => {
                Err("topic: its result is not a topic; write {{ value | urlencode }} for labels".to_owned())
            }
            false => Ok(topic),
        }
    }

    fn payload(&self, message: &ReceiverMessage<'_>, member: &Member) -> String {
        let transition = PublishedTransition {
            message_type: if message.is_test { message.kind() } else { "rollcall.transition" },
            id: &message.delivery.id,
            timestamp: message.delivery.sealed_at,
            receiver: &message.delivery.receiver,
            member,
        };
        serde_json::to_string(&transition).expect("names and times are always JSON")
    }

    async fn publish(&self, message: &ReceiverMessage<'_>) -> Result<(), Failure> {
        let publications = self.publications(message).map_err(Failure::temporary)?;
        self.connections.publish(publications, !message.delivery.is_at_most_once()).await
    }
}

#[async_trait]
impl Channel for Mqtt {
    fn keeps_alerts(&self) -> bool {
        self.connections.retain
    }

    async fn send(&self, delivery: &Delivery, _now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        self.publish(&ReceiverMessage::new(delivery)).await.map(|()| ReceiverAnswer::default())
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        self.publish(&ReceiverMessage::test(&test_delivery(&self.connections.receiver, now))).await
    }

    /// Connects and logs in.
    async fn probe(&self) -> Result<(), Failure> {
        self.connections.probe().await
    }

    fn render(&self, delivery: &Delivery) -> Result<String, String> {
        let publications = self.publications(&ReceiverMessage::new(delivery))?;
        let each = publications.iter().map(|Publication { topic, payload }| format!("{topic}\n{payload}"));
        Ok(each.collect::<Vec<String>>().join("\n"))
    }
}
