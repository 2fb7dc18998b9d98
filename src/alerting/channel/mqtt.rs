//! The channel to an MQTT broker: each transition is published, and so is each timer, with a topic and a payload that are
//! templates.
//!
//! A delivery has a connection of its own, with a session that ends with it. All of its messages are published at QoS 1;
//! it has arrived when the broker has acknowledged all of them. A message has the key of its silence, or the id of its
//! timer, so a subscriber recognizes repeated ones. With `retain`, the last transition of each unit stays at the broker.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rumqttc::{
    AsyncClient, Broker, ConnectionError, Event, EventLoop, MqttOptions, NetworkOptions, Packet,
    PubAckReason, PublishOptions, PublishResult, QoS, TlsConfiguration, Transport,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Answer, Channel, Failure, tls};
use crate::address::{BrokerAddress, Scheme};
use crate::alerting::message::{
    Example, Member, Message, MessageConfig, Templates, TimerMessage, example_timer, hostile, members,
    test_delivery, test_members, timers,
};
use crate::clock::Timestamp;
use crate::store::Delivery;
use crate::trust::{self, TlsFiles};

/// The topic by default: `rollcall/alerts/detector/pump-7`, or `rollcall/alerts/rollcall` for blindness.
pub const DEFAULT_TOPIC: &str = "rollcall/alerts/{{ member.source }}";
/// How long leaving may take.
const DISCONNECT: Duration = Duration::from_secs(1);
/// The most messages that wait for an acknowledgement at a time.
const UNACKNOWLEDGED: u16 = 100;
const KEEP_ALIVE_SECONDS: u16 = 30;
/// MQTT allows no longer one.
const LONGEST_TOPIC: usize = 65_535;

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
    receiver: String,
    address: BrokerAddress,
    credentials: Option<(String, String)>,
    tls: TlsConfiguration,
    retain: bool,
    has_payload: bool,
    templates: Templates,
    message: MessageConfig,
}

/// A transition as it is published.
#[derive(Serialize)]
struct Transition<'a> {
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
    /// The same in every attempt.
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
            receiver: receiver.to_owned(),
            address: config.url.parse::<BrokerAddress>().map_err(|error| format!("url: {error}"))?,
            credentials: config.credentials.clone(),
            tls: TlsConfiguration::Rustls(tls::client(&config.tls)?.into()),
            retain: config.retain,
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
        // What is for timers need not name a transition.
        if !names("timer.") {
            examples.extend(Example::ALL.map(|example| example.delivery(receiver)));
            examples.push(hostile(receiver));
        }
        for example in &examples {
            channel.publications(&Message::new(example))?;
        }
        Ok(channel)
    }

    /// The topics and payloads of a message.
    fn publications(&self, message: &Message<'_>) -> Result<Vec<(String, String)>, String> {
        let delivery = message.delivery;
        let members = match message.is_test {
            true => test_members(delivery),
            false => members(delivery, &self.message.zone, &self.message.links),
        };
        let mut data = json!({
            "receiver": delivery.receiver,
            "notification": delivery.notification(),
            "group": message.group(),
            "group_key": delivery.group.key,
        });
        let mut timers = timers(delivery).into_iter();
        let mut publication = |member: &Member| -> Result<(String, String), String> {
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
            Ok((self.topic(&data)?, payload))
        };
        members.iter().map(&mut publication).collect()
    }

    fn topic(&self, data: &Value) -> Result<String, String> {
        let topic = self.templates.render("topic", data)?;
        let is_bad = topic.is_empty() || topic.len() > LONGEST_TOPIC || topic.contains(['+', '#', '\0']);
        match is_bad {
            true => Err("topic: its result is no topic; write {{ value | urlencode }} for labels".to_owned()),
            false => Ok(topic),
        }
    }

    fn payload(&self, message: &Message<'_>, member: &Member) -> String {
        let transition = Transition {
            message_type: if message.is_test { message.kind() } else { "rollcall.transition" },
            id: &message.delivery.id,
            timestamp: message.delivery.sealed_at,
            receiver: &message.delivery.receiver,
            member,
        };
        serde_json::to_string(&transition).expect("names and times are always JSON")
    }

    async fn publish(&self, message: &Message<'_>) -> Result<(), Failure> {
        let publications = self.publications(message).map_err(Failure::temporary)?;
        let (client, mut events) = self.connect(publications.len());
        let options = || match PublishOptions::new(QoS::AtLeastOnce) {
            options if self.retain => options.retained(),
            options => options,
        };
        let mut answers = FuturesUnordered::new();
        for (topic, payload) in publications {
            let notice = client.try_publish_tracked(topic.clone(), payload.into_bytes(), options());
            let notice = notice.map_err(|error| self.failed(format!("publishing: {error}")))?;
            answers.push(async move { (topic, notice.wait_async().await) });
        }
        {
            let polling = poll(&mut events);
            tokio::pin!(polling);
            loop {
                tokio::select! {
                    error = &mut polling => return Err(self.failed(describe(&error))),
                    answer = answers.next() => match answer {
                        None => break,
                        Some((topic, Ok(PublishResult::Qos1(ack)))) => match ack.reason {
                            PubAckReason::Success | PubAckReason::NoMatchingSubscribers => {}
                            reason => {
                                let why = format!("refuses what is published to {topic} ({reason:?}); allow it there");
                                return Err(self.failed(why));
                            }
                        },
                        Some((topic, _)) => return Err(self.failed(format!("did not acknowledge {topic}"))),
                    },
                }
            }
        }
        leave(client, events).await;
        Ok(())
    }

    /// A client with room for that many messages, which connects when its events are polled.
    fn connect(&self, messages: usize) -> (AsyncClient, EventLoop) {
        let client_id = format!("rollcall-{}-{:08x}", self.receiver, rand::random::<u32>());
        let mut options = self.options(&client_id);
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options
            .set_network_options(network)
            .set_keep_alive(KEEP_ALIVE_SECONDS)
            .set_clean_start(true)
            .set_session_expiry_interval(Some(0))
            .set_outgoing_inflight_upper_limit(UNACKNOWLEDGED);
        if let Some((name, password)) = &self.credentials {
            options.set_credentials(name, password.clone());
        }
        AsyncClient::builder(options).capacity(messages + 8).build()
    }

    fn options(&self, client_id: &str) -> MqttOptions {
        let BrokerAddress { scheme, host, port, .. } = &self.address;
        let url = self.address.to_string();
        match scheme {
            Scheme::Mqtt => MqttOptions::new(client_id, (host.clone(), *port)),
            Scheme::Mqtts => {
                let mut options = MqttOptions::new(client_id, (host.clone(), *port));
                options.set_transport(Transport::tls_with_config(self.tls.clone()));
                options
            }
            Scheme::Ws => {
                let broker = Broker::websocket(url).expect("an address is a URL of a websocket");
                MqttOptions::new(client_id, broker)
            }
            Scheme::Wss => MqttOptions::websocket_with_tls_config(client_id, url, self.tls.clone())
                .expect("an address is a URL of a websocket"),
        }
    }

    fn failed(&self, why: impl std::fmt::Display) -> Failure {
        Failure::temporary(format!("{}: the broker {why}", self.address))
    }
}

/// Polls until the connection fails.
async fn poll(events: &mut EventLoop) -> ConnectionError {
    loop {
        if let Err(error) = events.poll().await {
            return error;
        }
    }
}

async fn leave(client: AsyncClient, mut events: EventLoop) {
    let _ = client.try_disconnect_with_timeout(DISCONNECT);
    drop(client);
    let _ = timeout(2 * DISCONNECT, poll(&mut events)).await;
}

fn describe(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ConnectionRefused(code) => {
            format!("refused us ({code:?}); check username and password_file")
        }
        error => match trust::cause(error) {
            Some(cause) => format!("was not connected to: {}", trust::advice("receiver", "broker", cause)),
            None => format!("was not reached, or left: {error}"),
        },
    }
}

#[async_trait]
impl Channel for Mqtt {
    async fn send(&self, delivery: &Delivery, _now: Timestamp) -> Result<Answer, Failure> {
        self.publish(&Message::new(delivery)).await.map(|()| Answer::default())
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        self.publish(&Message::test(&test_delivery(&self.receiver, now))).await
    }

    /// Connects and logs in.
    async fn probe(&self) -> Result<(), Failure> {
        let (client, mut events) = self.connect(0);
        let is_accepted = |event: &Event| matches!(event, Event::Incoming(Packet::ConnAck(_)));
        while !is_accepted(&events.poll().await.map_err(|error| self.failed(describe(&error)))?) {}
        leave(client, events).await;
        Ok(())
    }

    fn render(&self, delivery: &Delivery) -> Result<String, String> {
        let publications = self.publications(&Message::new(delivery))?;
        let each = publications.iter().map(|(topic, payload)| format!("{topic}\n{payload}"));
        Ok(each.collect::<Vec<String>>().join("\n"))
    }
}
