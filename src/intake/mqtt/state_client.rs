//! The connection that publishes the states of units, and reads what is published.
//!
//! It is a connection of its own, with a session that ends with it, so that states never delay heartbeats or canaries.
//! After subscribing, it publishes a mark to itself: everything that the broker retains arrives before the mark.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rumqttc::{
    AsyncClient, Event, Packet, PubAckReason, PublishOptions, QoS, RetainForwardRule, SubscribeFilterInput,
};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::session::open_beside;
use super::{BACKOFF, failures_after};
use crate::clock::Stopwatch;
use crate::fleet::SharedRules;
use crate::intake::Config;
use crate::intake::states::{self, Outlet, Published};
use crate::telemetry::{PublishedOutcome, Telemetry};

/// The wait before a message without room is tried again on the current connection.
const FULL: Duration = Duration::from_millis(5);
/// How long the broker may take to send everything that it retains.
const MAX_READING: Duration = Duration::from_secs(30);

/// Publishes over the current connection.
pub(in crate::intake) struct StateClient(watch::Receiver<Option<AsyncClient>>);

#[async_trait]
impl Outlet for StateClient {
    /// Publishes at QoS 1, when there is room.
    async fn publish(&self, topic: String, payload: Vec<u8>) -> Option<bool> {
        let options = PublishOptions::new(QoS::AtLeastOnce).retained();
        loop {
            let client = self.0.borrow().clone()?;
            if client.try_publish(topic.clone(), payload.clone(), options.clone()).is_ok() {
                return Some(true);
            }
            sleep(FULL).await;
        }
    }
}

/// The connection, over all its losses.
pub(in crate::intake) struct StateConnection {
    config: Config,
    filters: Vec<&'static str>,
    published: Arc<Published>,
    rules: SharedRules,
    current: watch::Sender<Option<AsyncClient>>,
    telemetry: Arc<Telemetry>,
}

impl StateConnection {
    pub fn new(
        config: &Config,
        filters: Vec<&'static str>,
        published: Arc<Published>,
        rules: SharedRules,
        telemetry: Arc<Telemetry>,
    ) -> (StateConnection, StateClient) {
        let (current, client) = watch::channel(None);
        let config = Config { share: String::new(), watch_sys: false, timers: false, ..config.clone() };
        (StateConnection { config, filters, published, rules, current, telemetry }, StateClient(client))
    }

    pub async fn run(self, stop: CancellationToken) {
        let mut failures = 0;
        loop {
            let began = Stopwatch::start();
            let why = match stop.run_until_cancelled(self.connect()).await {
                None => return,
                Some(why) => why,
            };
            self.current.send_replace(None);
            self.published.forget();
            failures = failures_after(failures, began.elapsed());
            let wait = BACKOFF.wait(failures, rand::random());
            tracing::warn!(wait_seconds = wait.as_secs_f32(), "states are not published: {why}");
            if stop.run_until_cancelled(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Stays connected until the connection ends; returns the reason.
    async fn connect(&self) -> String {
        let (client, mut events, mark) = match open_beside(&self.config, "states", None) {
            Ok((client, events, client_id)) => (client, events, format!("rollcall/canary/{client_id}")),
            Err(error) => return error.to_string(),
        };
        let reading = sleep(MAX_READING);
        tokio::pin!(reading);
        loop {
            let event = tokio::select! {
                event = events.poll() => event,
                () = &mut reading, if !self.published.is_ready() => {
                    return "the broker did not deliver what it retains".to_owned();
                }
            };
            match event {
                Ok(Event::Incoming(packet)) => {
                    if let Err(why) = self.receive(&packet, &client, &mark) {
                        return why;
                    }
                }
                Ok(_) => {}
                Err(error) => return super::describe(&error),
            }
        }
    }

    fn receive(&self, packet: &Packet, client: &AsyncClient, mark: &str) -> Result<(), String> {
        match packet {
            Packet::ConnAck(_) => {
                let retained = |filter: &&'static str| {
                    SubscribeFilterInput::new(*filter, QoS::AtLeastOnce)
                        .no_local(true)
                        .retain_forward_rule(RetainForwardRule::OnEverySubscribe)
                };
                let own = SubscribeFilterInput::new(mark, QoS::AtLeastOnce)
                    .retain_forward_rule(RetainForwardRule::Never);
                let all: Vec<_> = self.filters.iter().map(retained).chain([own]).collect();
                client.try_subscribe_many(all).map_err(|error| format!("subscribing: {error}"))
            }
            Packet::SubAck(_) => {
                let options = PublishOptions::new(QoS::AtLeastOnce);
                let sent = client.try_publish(mark.to_owned(), b"read".to_vec(), options);
                sent.map_err(|error| format!("publishing: {error}"))
            }
            Packet::Publish(publish) => {
                let Ok(topic) = std::str::from_utf8(&publish.topic) else { return Ok(()) };
                if topic == mark {
                    self.published.ready();
                    self.current.send_replace(Some(client.clone()));
                } else {
                    states::heard(&self.published, &self.rules, topic, &publish.payload);
                }
                Ok(())
            }
            Packet::PubAck(ack) => {
                if !matches!(ack.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers) {
                    self.telemetry.state_published(PublishedOutcome::Refused);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
