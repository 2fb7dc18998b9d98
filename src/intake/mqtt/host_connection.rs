//! The connection that publishes the state of Rollcall as a host application of Sparkplug: see [`super::host`].
//!
//! It is a connection of its own, with a session that ends with it: only a new connection can publish a state that is
//! newer than the will of another instance, and the connection that hears must not end for that. It begins when the
//! fleet is heard, because nodes then send what they stored, and stays while the other one connects again: the broker
//! keeps messages for its session.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rumqttc::{AsyncClient, Event, EventLoop, Packet, QoS, RetainForwardRule, SubscribeFilterInput};
use tokio::sync::watch;
use tokio::time::{Interval, sleep};
use tokio_util::sync::CancellationToken;

use super::host::{HostAnswer, HostDue, HostStatement};
use super::session::open_beside;
use super::{BACKOFF, Proof, describe, failures_after, leave};
use crate::clock::{Clock, Stopwatch};
use crate::intake::Config;
use crate::telemetry::Telemetry;

/// The time between two looks at work that was put off.
const TICK: Duration = Duration::from_secs(1);

/// The connection, over all its losses.
pub(in crate::intake) struct HostConnection {
    config: Config,
    statement: HostStatement,
    /// The proof of the connection that hears.
    proof: watch::Receiver<Proof>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
}

/// Why a connection ends.
enum HostConnectionEnd {
    Lost(String),
    /// Another instance with the same host id ended, and its last will says that the host is offline.
    Outdated,
    Stopped,
}

impl HostConnection {
    /// `None`: Rollcall is no host application at this broker.
    pub fn new(
        config: &Config,
        proof: watch::Receiver<Proof>,
        clock: Clock,
        telemetry: Arc<Telemetry>,
    ) -> Option<HostConnection> {
        let statement = HostStatement::new(config.sparkplug_host()?);
        let config = Config { share: String::new(), watch_sys: false, timers: false, ..config.clone() };
        Some(HostConnection { config, statement, proof, clock, telemetry })
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let heard = self.proof.wait_for(|proof| proof.at.is_some());
        // The sender is gone only when Rollcall stops.
        if !matches!(stop.run_until_cancelled(heard).await, Some(Ok(_))) {
            return;
        }
        let mut failures = 0;
        loop {
            let began = Stopwatch::start();
            let why = match self.connect(&stop).await {
                HostConnectionEnd::Stopped => return,
                HostConnectionEnd::Outdated => continue,
                HostConnectionEnd::Lost(why) => why,
            };
            failures = failures_after(failures, began.elapsed());
            let wait = BACKOFF.wait(failures, rand::random());
            let wait_seconds = wait.as_secs_f32();
            tracing::warn!(wait_seconds, "the state of the Sparkplug host is not published: {why}");
            if stop.run_until_cancelled(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Stays connected until the connection ends.
    async fn connect(&self, stop: &CancellationToken) -> HostConnectionEnd {
        self.statement.connecting(self.clock.now());
        let (client, mut events) = match open_beside(&self.config, "host", Some(self.statement.will())) {
            Ok((client, events, _)) => (client, events),
            Err(error) => return HostConnectionEnd::Lost(error.to_string()),
        };
        let mut ticks = tokio::time::interval(TICK);
        let end = loop {
            match self.next(&client, &mut events, &mut ticks, stop).await {
                Ok(packet) => {
                    if let Err(end) = self.receive(&packet, &client) {
                        break end;
                    }
                }
                Err(HostConnectionEnd::Lost(why)) => return HostConnectionEnd::Lost(why),
                Err(end) => break end,
            }
        };
        if let HostConnectionEnd::Stopped = end {
            self.statement.publish_end(&client, self.clock.now());
        }
        // After DISCONNECT the broker does not publish the will.
        leave(client, events).await;
        end
    }

    /// The next packet. Work that is due is done meanwhile: a poll that has begun is not dropped for it.
    async fn next(
        &self,
        client: &AsyncClient,
        events: &mut EventLoop,
        ticks: &mut Interval,
        stop: &CancellationToken,
    ) -> Result<Packet, HostConnectionEnd> {
        loop {
            let mut poll = pin!(events.poll());
            let event = loop {
                tokio::select! {
                    event = &mut poll => break event,
                    _ = ticks.tick() => self.tick(client)?,
                    () = stop.cancelled() => return Err(HostConnectionEnd::Stopped),
                }
            };
            match event {
                Ok(Event::Incoming(packet)) => return Ok(packet),
                Ok(_) => {}
                Err(error) => return Err(HostConnectionEnd::Lost(describe(&error))),
            }
        }
    }

    fn tick(&self, client: &AsyncClient) -> Result<(), HostConnectionEnd> {
        let HostDue { publication, connection, calm } = self.statement.due(self.clock.now());
        if publication {
            self.statement.publish(client);
        }
        if calm {
            self.telemetry.host_state_calm(&self.config.connection(1));
        }
        if connection { Err(HostConnectionEnd::Outdated) } else { Ok(()) }
    }

    fn receive(&self, packet: &Packet, client: &AsyncClient) -> Result<(), HostConnectionEnd> {
        let topic = &self.statement.topic;
        match packet {
            Packet::ConnAck(_) => {
                let states = SubscribeFilterInput::new(topic.as_str(), QoS::AtLeastOnce)
                    .retain_forward_rule(RetainForwardRule::OnEverySubscribe);
                let subscribed = client.try_subscribe_many(vec![states]);
                subscribed.map_err(|error| HostConnectionEnd::Lost(format!("subscribing: {error}")))?;
            }
            Packet::SubAck(_) => self.statement.publish(client),
            Packet::Publish(publish) if publish.topic.as_ref() == topic.as_bytes() => {
                match self.statement.answer(&publish.payload, self.clock.now()) {
                    HostAnswer::Nothing => {}
                    HostAnswer::PublishAgain => self.statement.publish(client),
                    HostAnswer::Refused => {
                        self.telemetry.host_state_refused(&self.config.connection(1), topic);
                    }
                    HostAnswer::Reconnect => return Err(HostConnectionEnd::Outdated),
                }
            }
            _ => {}
        }
        Ok(())
    }
}
