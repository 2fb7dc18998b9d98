//! Whether the broker lets Rollcall in, grants what it asks for, and delivers it.
//!
//! The probe is a client of its own, with another id and a session that ends with it, so that it
//! does not push out an instance that is running. It never joins a shared subscription either: it
//! would be handed messages that nobody then records.
//!
//! # Why it speaks on the topics of the fleet
//! Mosquitto grants a subscription whose messages its access rules then withhold. So the probe says
//! something on a topic of each template, as a unit with an id that is reserved for this
//! (see `topic`) and that no Rollcall takes for a unit, and listens whether it comes back.

use std::time::Duration;

use anyhow::bail;
use rumqttc::{
    AsyncClient, Event, EventLoop, ManualAck, Outgoing, Packet, PubAck, PubAckReason, PublishOptions, QoS,
};
use tokio::time::{Instant, timeout_at};

use super::words::describe;
use super::{Session, leave};
use crate::clock::{Clock, Timestamp};
use crate::intake::canary::{self, Canary, Key};
use crate::intake::{Config, Template};

/// How long what was said may take to come back.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is wrong with a topic, and which right is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deaf {
    /// What is published there does not come back.
    Unheard(String),
    /// The probe may not publish there, so nothing is known.
    Unknown(String),
}

/// Connects, subscribes as intake would, listens on every topic, and leaves. Takes as long as the broker
/// does; the caller bounds it. Answers with the topics that are not heard.
pub async fn probe(config: &Config) -> anyhow::Result<Vec<Deaf>> {
    let alone = Config { share: String::new(), ..config.clone() };
    let mut topics = Vec::new();
    for (text, kind) in &alone.topics {
        let template = Template::parse(text, kind.clone())?;
        let mut kinds = alone.topics.iter().filter_map(|(_, kind)| kind.as_ref());
        topics.push((template.filter(), template.probe(kinds.next())));
    }
    let filters = topics.iter().map(|(filter, _)| filter.clone()).collect();
    let mut session = Session::new(&alone, "check", filters)?;
    session.client_id = format!("{}-check-{:08x}", config.client_id, rand::random::<u32>());
    session.expiry = None;
    let canary = canary::topic(&session.client_id);
    session.first.iter_mut().filter(|wish| wish.filter.starts_with(canary::PREFIX)).for_each(|wish| {
        wish.filter.clone_from(&canary);
    });
    topics.push((canary.clone(), canary));
    let (client, mut events) = session.open(1);
    let said = topics.into_iter().map(|(filter, topic)| Said::new(filter, topic)).collect();
    let listening = listen(&session, &client, &mut events, said).await;
    leave(client, events).await;
    match listening {
        Ok(said) => Ok(said.iter().filter_map(|said| said.verdict(config.user())).collect()),
        Err(why) => bail!("{}: {why}", session.address),
    }
}

/// Something that was said on a topic.
struct Said {
    filter: String,
    topic: String,
    packet: Option<u16>,
    answer: Option<PubAckReason>,
    came_back: bool,
}

impl Said {
    fn new(filter: String, topic: String) -> Said {
        Said { filter, topic, packet: None, answer: None, came_back: false }
    }

    fn verdict(&self, user: &str) -> Option<Deaf> {
        let Said { filter, topic, .. } = self;
        if self.came_back {
            return None;
        }
        let is_canary = topic.starts_with(canary::PREFIX);
        Some(match self.answer {
            Some(PubAckReason::NotAuthorized) if is_canary => Deaf::Unheard(format!(
                "the broker does not let {user} publish to {topic}, so Rollcall cannot prove that it hears; allow \
                 it to write and to read {}#",
                canary::PREFIX
            )),
            Some(PubAckReason::NotAuthorized) => Deaf::Unknown(format!(
                "whether {filter} is heard is not known, for the broker does not let {user} publish to {topic}; \
                 allow it to write there"
            )),
            _ => Deaf::Unheard(format!(
                "what is published to {topic} does not come back, though the subscription to {filter} was \
                 granted; allow {user} to read {filter}"
            )),
        })
    }
}

/// Subscribes, says something on each topic, and waits until all of it came back or the time is up.
async fn listen(
    session: &Session,
    client: &AsyncClient,
    events: &mut EventLoop,
    mut said: Vec<Said>,
) -> Result<Vec<Said>, String> {
    let key = Key::of_fleet(&format!("{:016x}", rand::random::<u64>()));
    let mut until = None;
    while said.iter().any(|said| !said.came_back) {
        let polled = match until {
            None => events.poll().await,
            Some(until) => match timeout_at(until, events.poll()).await {
                Ok(polled) => polled,
                Err(_) => break,
            },
        };
        match polled.map_err(|error| describe(&error))? {
            Event::Incoming(Packet::ConnAck(_)) => session.subscribe(client, &session.first)?,
            Event::Incoming(Packet::SubAck(answer)) => {
                session.granted(&answer, &session.first)?;
                let now = Clock::system().now();
                said.iter().try_for_each(|said| speak(client, &key, &said.topic, now))?;
                until = Some(Instant::now() + PATIENCE);
            }
            Event::Outgoing(Outgoing::Publish(packet)) => {
                let next = said.iter_mut().find(|said| said.packet.is_none());
                next.into_iter().for_each(|said| said.packet = Some(packet));
            }
            Event::Incoming(Packet::PubAck(PubAck { pkid, reason, .. })) => {
                let answered = said.iter_mut().find(|said| said.packet == Some(pkid));
                answered.into_iter().for_each(|said| said.answer = Some(reason));
            }
            Event::Incoming(Packet::Publish(came)) => {
                if came.qos != QoS::AtMostOnce {
                    // Or the fleet would soon hold up what is listened for. What fails has lost its connection.
                    let _ = client.try_manual_ack(ManualAck::PubAck(PubAck::new(came.pkid, None)));
                }
                let is_ours = |said: &&mut Said| {
                    said.topic.as_bytes() == came.topic
                        && Canary::read(&key, &said.topic, &came.payload).is_some()
                };
                said.iter_mut().filter(is_ours).for_each(|said| said.came_back = true);
            }
            _ => {}
        }
    }
    Ok(said)
}

fn speak(client: &AsyncClient, key: &Key, topic: &str, now: Timestamp) -> Result<(), String> {
    let payload = Canary::new(key, topic, &key.tag(), 1, now).to_json();
    let options = PublishOptions::new(QoS::AtLeastOnce);
    client.try_publish(topic.to_owned(), payload, options).map_err(|error| format!("publishing: {error}"))
}
