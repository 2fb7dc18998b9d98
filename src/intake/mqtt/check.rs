//! Checks whether the broker accepts Rollcall, grants its requests, and delivers the messages.
//!
//! The probe is a client of its own, with another id and a session that ends with it, so that it does not take over the
//! session of a running instance. It never joins a shared subscription: it would receive messages that are then not
//! recorded.
//!
//! # Why it publishes on the topics of the fleet
//! Mosquitto grants a subscription even if its access rules withhold the messages. So the probe publishes a message on
//! a topic of each template, with a unit id that is reserved for it (see `topic`) and that Rollcall never treats as a
//! unit, and waits until the message comes back.

use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::FutureExt;
use rumqttc::{AsyncClient, Event, EventLoop, ManualAck, Packet, PubAck, PubAckReason, QoS};
use tokio::time::timeout_at;

use super::failure::{describe, no_share};
use super::probe_publisher::{PubAckFuture, publish_tracked};
use super::session::Grants;
use super::{Session, leave};
use crate::clock::{Clock, Stopwatch, Timestamp, monotonic};
use crate::intake::canary::{self, Canary, Key};
use crate::intake::topic::FleetFilters;
use crate::intake::{Config, Template};

/// How long a message may take to come back; with a distant broker, three times as long as its acceptance took.
const WAIT: Duration = Duration::from_secs(3);
const TRIPS: u32 = 3;
/// How long the broker may take to accept the connection.
const WAIT_FAR: Duration = Duration::from_secs(30);

/// A topic with a problem, and the missing right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicProblem {
    /// A message published on the topic does not come back.
    Unheard(String),
    /// The probe may not publish on the topic, so the check cannot tell whether messages are heard.
    Unknown(String),
}

/// Connects, subscribes as intake would, listens on every topic, and leaves. Takes as long as the broker does; the
/// caller limits the time. Returns the topics that are not heard.
pub async fn probe(config: &Config) -> anyhow::Result<Vec<TopicProblem>> {
    let plain = Config { share: String::new(), ..config.clone() };
    let mut topics = Vec::new();
    for (text, kind) in &plain.topics {
        let template = Template::parse(text, kind.clone())?;
        let mut kinds = plain.topics.iter().filter_map(|(_, kind)| kind.as_ref());
        topics.push((template.filter(), template.probe(kinds.next())));
    }
    let (mut status, mut feeds) = (Vec::new(), Vec::new());
    for (kind, presence) in &plain.presence {
        for text in presence.format.data_topics() {
            let template = Template::of_announcements(text, kind.clone())?;
            topics.push((template.filter(), template.probe(None)));
        }
        for text in presence.status_topics() {
            status.push(Template::of_announcements(text, kind.clone())?.filter());
        }
        feeds.extend(presence.feeds());
    }
    let heartbeats = topics.iter().map(|(filter, _)| filter.clone()).collect();
    let filters = FleetFilters { heartbeats, status, feeds };
    let mut session = Session::new(&plain, "check", filters)?;
    session.client_id = format!("{}-check-{:08x}", config.client_id, rand::random::<u32>());
    session.expiry = None;
    let canary = canary::topic(&session.client_id);
    session.first.iter_mut().filter(|request| request.filter.starts_with(canary::PREFIX)).for_each(
        |request| {
            request.filter.clone_from(&canary);
        },
    );
    topics.push((canary.clone(), canary));
    let (client, mut events) = session.open(1, WAIT_FAR);
    let probes = topics.into_iter().map(|(filter, topic)| TopicProbe::new(filter, topic)).collect();
    let probed = listen(&session, !config.share.is_empty(), &client, &mut events, probes).await;
    leave(client, events).await;
    match probed {
        Ok(mut probes) => Ok(probes.iter_mut().filter_map(|probe| probe.problem(config.user())).collect()),
        Err(why) => bail!("{}: {why}", session.address),
    }
}

/// A message that is published on a topic.
struct TopicProbe {
    filter: String,
    topic: String,
    answer: Option<PubAckFuture>,
    came_back: bool,
}

impl TopicProbe {
    fn new(filter: String, topic: String) -> TopicProbe {
        TopicProbe { filter, topic, answer: None, came_back: false }
    }

    fn publish(&mut self, client: &AsyncClient, key: &Key, now: Timestamp) -> Result<(), String> {
        let canary = Canary::new(key, &self.topic, &key.tag(), 1, now);
        let answer = publish_tracked(client, &self.topic, &canary, None);
        self.answer = Some(answer.ok_or("publishing: the client has no room")?);
        Ok(())
    }

    fn problem(&mut self, user: &str) -> Option<TopicProblem> {
        if self.came_back {
            return None;
        }
        let answer = self.answer.take().and_then(FutureExt::now_or_never).flatten();
        let TopicProbe { filter, topic, .. } = self;
        let is_canary = topic.starts_with(canary::PREFIX);
        Some(match answer {
            Some(PubAckReason::NotAuthorized) if is_canary => TopicProblem::Unheard(format!(
                "the broker does not let {user} publish to {topic}, so Rollcall cannot prove that it hears; allow \
                 it to write and to read {}#",
                canary::PREFIX
            )),
            Some(PubAckReason::NotAuthorized) => TopicProblem::Unknown(format!(
                "it is not known whether {filter} is heard, because the broker does not let {user} publish to {topic}; \
                 allow it to write there"
            )),
            _ => TopicProblem::Unheard(format!(
                "what is published to {topic} does not come back, though the subscription to {filter} was \
                 granted; allow {user} to read {filter}"
            )),
        })
    }
}

/// Subscribes, publishes on each topic, and waits until all messages have come back or the time is over.
async fn listen(
    session: &Session,
    needs_share: bool,
    client: &AsyncClient,
    events: &mut EventLoop,
    mut probes: Vec<TopicProbe>,
) -> Result<Vec<TopicProbe>, String> {
    let key = Key::of_fleet(&format!("{:016x}", rand::random::<u64>()));
    let (began, mut wait) = (Stopwatch::start(), WAIT);
    let mut until: Option<Instant> = None;
    while probes.iter().any(|probe| !probe.came_back) {
        let polled = match until {
            None => events.poll().await,
            Some(until) => match timeout_at(until.into(), events.poll()).await {
                Ok(polled) => polled,
                Err(_) => break,
            },
        };
        match polled.map_err(|error| describe(&error))? {
            Event::Incoming(Packet::ConnAck(answer)) => {
                wait = WAIT.max(TRIPS * began.elapsed());
                no_share(&answer).filter(|_| needs_share).map_or(Ok(()), |why| Err(why.to_owned()))?;
                session.subscribe(client, &session.first)?;
            }
            Event::Incoming(Packet::SubAck(answer)) => {
                let grants = Grants::of(&answer, &session.first);
                grants.log(session.client_id());
                grants.refusal().map_or(Ok(()), Err)?;
                let now = Clock::system().now();
                probes.iter_mut().try_for_each(|probe| probe.publish(client, &key, now))?;
                until = Some(monotonic() + wait);
            }
            Event::Incoming(Packet::Publish(message)) => {
                if message.qos != QoS::AtMostOnce {
                    // Without acknowledgements the messages of the fleet would soon block the probes. If this fails,
                    // the connection is lost.
                    let _ = client.try_manual_ack(ManualAck::PubAck(PubAck::new(message.pkid, None)));
                }
                let is_ours = |probe: &&mut TopicProbe| {
                    probe.topic.as_bytes() == message.topic
                        && Canary::read(&key, &probe.topic, &message.payload).is_some()
                };
                probes.iter_mut().filter(is_ours).for_each(|probe| probe.came_back = true);
            }
            _ => {}
        }
    }
    Ok(probes)
}
