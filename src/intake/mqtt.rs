//! The connection to the broker: kept, lost, made again.
//!
//! Each connection is a client of its own with a number. An acknowledgement carries the number of
//! the connection that its message came by and is dropped if that is no longer the current one: on
//! a new connection the same packet id means another message. The broker sends again what was not
//! acknowledged; a repeated heartbeat is harmless.
//!
//! # Why polling never waits
//! The client library does everything inside `poll`: it reads, acknowledges, and keeps the
//! connection alive. So nothing here awaits anything else while a connection stands. Messages are
//! queued without waiting ([`super`] says what happens when there is no room), and before a
//! connection is made the queue has room for all that may come unacknowledged.
//!
//! # Why it watches for silence itself
//! The library pings after a time without *sending*. The canary is sent every second, so a broker
//! that went away without a word would never be pinged. Nothing received for two keep-alives, not
//! even the canary, is a dead connection.

use std::pin::pin;
use std::time::Duration;

use rumqttc::{
    AsyncClient, ConnectReturnCode, ConnectionError, DisconnectReasonCode, Event, EventLoop, ManualAck,
    Packet, PubAck, Publish, PublishOptions, QoS, StateError,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::reader::{Message, Reader, What};
use super::record::Item;
use super::{CONNECTION, canary};
use crate::backoff::Backoff;
use crate::clock::{Clock, Timestamp};
use crate::telemetry::Rejection;

mod probe;
mod session;

pub use probe::probe;
pub(super) use session::Session;

/// The largest packet that is received, and then rejected and counted. The broker is told and
/// drops what is larger, so that no device can make Rollcall hold more than a few times this.
pub(super) const LARGEST_PACKET: u32 = 16 << 20;

/// How the broker is tried again. A connection that stood for the longest wait was a success.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(15) };

/// How long the broker may take to see us off.
const FAREWELL: Duration = Duration::from_secs(1);

/// The current connection, for those who answer by it.
#[derive(Default)]
pub(super) struct Link {
    number: u64,
    client: Option<AsyncClient>,
    subscribed: bool,
}

/// What the broker waits for before it forgets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    connection: u64,
    packet: u16,
}

impl Link {
    /// Acknowledges messages of this connection; those of earlier ones come again by themselves.
    pub fn acknowledge(&self, acks: &[Ack]) {
        let Some(client) = &self.client else { return };
        for ack in acks.iter().filter(|ack| ack.connection == self.number) {
            // There is room for as many as can be due. What fails has lost its connection.
            let _ = client.try_manual_ack(ManualAck::PubAck(PubAck::new(ack.packet, None)));
        }
    }
}

/// The connection, over all its losses.
pub(super) struct Connection {
    session: Session,
    reader: Reader,
    /// `None` once Rollcall is stopping: nothing more is taken.
    queue: Option<mpsc::Sender<Item>>,
    link: watch::Sender<Link>,
    number: u64,
    /// How long canaries are withheld after a loss, for it to show as blind time.
    deafness: Duration,
    deaf_until: Timestamp,
    stop: CancellationToken,
    recorded: CancellationToken,
}

/// How a connection ended.
enum Ended {
    Lost(String),
    Left,
}

impl Connection {
    /// A connection that takes messages until `stop` and stands until everything is `recorded`.
    pub fn new(
        session: Session,
        reader: Reader,
        queue: mpsc::Sender<Item>,
        link: watch::Sender<Link>,
        deafness: Duration,
        stop: CancellationToken,
        recorded: CancellationToken,
    ) -> Connection {
        let (queue, deaf_until) = (Some(queue), Timestamp::ZERO);
        Connection { session, reader, queue, link, number: 0, deafness, deaf_until, stop, recorded }
    }

    /// Stays connected.
    pub async fn stay(mut self) {
        let broker = self.session.address.to_string();
        let telemetry = self.reader.telemetry.clone();
        let mut failures = 0;
        while self.has_room().await {
            let began = Instant::now();
            let ended = self.connect().await;
            self.link.send_replace(Link::default());
            let Ended::Lost(why) = ended else { return };
            failures = if began.elapsed() < BACKOFF.longest { failures + 1 } else { 1 };
            let wait = BACKOFF.wait(failures, rand::random());
            telemetry.mqtt_disconnected(CONNECTION, &broker, &why, wait);
            if self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Waits until all that a new connection may bring unacknowledged finds room. `false` if
    /// Rollcall is stopping.
    async fn has_room(&self) -> bool {
        let Some(queue) = &self.queue else { return false };
        let room = queue.reserve_many(self.session.window.into());
        matches!(self.stop.run_until_cancelled(room).await, Some(Ok(_)))
    }

    async fn connect(&mut self) -> Ended {
        let (client, mut events) = self.session.open();
        self.number += 1;
        let patience = 2 * self.session.keep_alive;
        let mut heard = Instant::now();
        let (stop, recorded) = (self.stop.clone(), self.recorded.clone());
        let (mut stopped, mut recorded) = (pin!(stop.cancelled()), pin!(recorded.cancelled()));
        loop {
            // Polling may be cut off in the middle of writing a packet. That happens only when
            // Rollcall stops, and loses at most an acknowledgement: the message comes again.
            let event = tokio::select! {
                biased;
                () = &mut recorded => return leave(client, events).await,
                () = &mut stopped, if self.queue.is_some() => {
                    self.queue = None;
                    continue;
                }
                event = timeout(patience, events.poll()) => event,
            };
            let packet = match event {
                Ok(Ok(Event::Incoming(packet))) => packet,
                Ok(Ok(_)) if heard.elapsed() > patience => return Ended::Lost(silence(patience)),
                Ok(Ok(_)) => continue,
                Ok(Err(error)) => return Ended::Lost(describe(&error)),
                Err(_) => return Ended::Lost(silence(patience)),
            };
            heard = Instant::now();
            let result = match &packet {
                Packet::Publish(publish) => self.take(publish),
                Packet::ConnAck(_) => {
                    // Asked once; from now on it would only cost a checkpoint per packet.
                    events.options.clear_session_store();
                    self.publish_link(&client, false);
                    // Also when the session is an old one: the topics may be new.
                    self.session.subscribe(&client)
                }
                Packet::SubAck(answer) => self.session.granted(answer).map(|()| self.subscribed(&client)),
                _ => Ok(()),
            };
            if let Err(why) = result {
                return Ended::Lost(why);
            }
        }
    }

    fn publish_link(&self, client: &AsyncClient, subscribed: bool) {
        self.link.send_replace(Link { number: self.number, client: Some(client.clone()), subscribed });
    }

    fn subscribed(&self, client: &AsyncClient) {
        self.publish_link(client, true);
        self.reader.telemetry.mqtt_connected(CONNECTION, &self.session.address.to_string());
    }

    /// Reads a message and queues what it is.
    fn take(&mut self, publish: &Publish) -> Result<(), String> {
        let Some(queue) = &self.queue else { return Ok(()) };
        let message = Message { topic: &publish.topic, payload: &publish.payload, retain: publish.retain };
        let (mut what, arrived) = self.reader.read(&message);
        let ack =
            (publish.qos != QoS::AtMostOnce).then_some(Ack { connection: self.number, packet: publish.pkid });
        if matches!(what, What::Canary(sent_at) if sent_at <= self.deaf_until) {
            what = What::Nothing;
        }
        if ack.is_none() && what == What::Nothing {
            return Ok(());
        }
        if ack.is_none() && queue.capacity() <= self.session.window.into() {
            self.deaf_until = arrived + self.deafness;
            let topic = String::from_utf8_lossy(&publish.topic);
            let text = "the queue is full; the time until it has room counts as blind";
            self.reader.telemetry.message_rejected(&topic, Rejection::Overflow, text);
            return Ok(());
        }
        match queue.try_send(Item { what, arrived, ack }) {
            Ok(()) => Ok(()),
            Err(_) => Err("the broker sent more than the receive maximum allows".to_owned()),
        }
    }
}

/// Says good-bye, so that the broker need not find out.
async fn leave(client: AsyncClient, mut events: EventLoop) -> Ended {
    let _ = client.try_disconnect_with_timeout(FAREWELL);
    drop(client);
    let _ = timeout(2 * FAREWELL, async { while events.poll().await.is_ok() {} }).await;
    Ended::Left
}

fn silence(patience: Duration) -> String {
    format!(
        "nothing came for {} s, not even the canary; is the broker reachable, and may the client publish \
         and subscribe {}?",
        patience.as_secs(),
        canary::FILTER
    )
}

fn describe(error: &ConnectionError) -> String {
    use ConnectReturnCode as Code;
    match error {
        ConnectionError::ConnectionRefused(code) => match code {
            Code::BadUserNamePassword | Code::NotAuthorized => {
                format!("it refused us ({code:?}); check mqtt.username and its password")
            }
            Code::UnsupportedProtocolVersion | Code::RefusedProtocolVersion => {
                "it does not speak MQTT 5".to_owned()
            }
            code => format!("it refused us ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => match reason_code {
            DisconnectReasonCode::SessionTakenOver => {
                "another client came with our client id; give each instance its own mqtt.client_id".to_owned()
            }
            code => format!("it sent us away ({code:?})"),
        },
        error => error.to_string(),
    }
}

/// Publishes canaries while there is a subscribed connection.
pub(super) struct Canaries {
    topic: String,
    qos: QoS,
    instance: String,
    period: Duration,
    link: watch::Receiver<Link>,
    clock: Clock,
}

impl Canaries {
    /// Canaries of a new process.
    pub fn new(
        client_id: &str,
        level: u8,
        period: Duration,
        link: watch::Receiver<Link>,
        clock: Clock,
    ) -> Canaries {
        let instance = format!("{:016x}", rand::random::<u64>());
        Canaries { topic: canary::topic(client_id), qos: session::qos(level), instance, period, link, clock }
    }

    /// Never ends.
    pub async fn sing(mut self) {
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seq = 0;
        loop {
            // The first one at once after subscribing, or the time until the next tick is blind.
            if self.link.wait_for(|link| link.subscribed).await.is_err() {
                return std::future::pending().await;
            }
            ticks.tick().await;
            seq += 1;
            let sent_at = self.clock.now().as_millis();
            let canary = canary::Canary { instance: self.instance.clone(), seq, sent_at };
            if let Some(client) = &self.link.borrow().client {
                // One that finds no room is missed, and that is what it is for.
                let _ =
                    client.try_publish(self.topic.clone(), canary.to_json(), PublishOptions::new(self.qos));
            }
        }
    }
}

#[cfg(test)]
mod tests;
