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
//!
//! # Why a session store that stores nothing
//! A new process that resumes its old session must tell the library what it still owed to the
//! broker; otherwise the library refuses to send anything that is acknowledged. At QoS 0 and 1 all
//! that can be owed is a canary, which is worthless by then: nothing is owed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use rumqttc::{
    AckMode, AsyncClient, ConnectReturnCode, ConnectionError, DisconnectReasonCode, Event, EventLoop,
    ManualAck, MqttOptions, NetworkOptions, Packet, PersistedAckMode, PersistedSession, PubAck, Publish,
    PublishOptions, QoS, RetainForwardRule, SessionStore, SessionStoreError, SessionStoreKey, StateError,
    SubAck, SubscribeFilterInput, SubscribeReasonCode,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::reader::{Message, Reader, What};
use super::record::Item;
use super::{CONNECTION, Config, canary};
use crate::address::BrokerAddress;
use crate::backoff::Backoff;
use crate::clock::{Clock, Timestamp};
use crate::telemetry::Rejection;

/// The largest packet that is received, and then rejected and counted. The broker is told and
/// drops what is larger, so that no device can make Rollcall hold more than a few times this.
pub(super) const LARGEST_PACKET: u32 = 16 << 20;

/// How the broker is tried again. A connection that stood for the longest wait was a success.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(15) };

/// Canaries on their way to the broker; the default would reserve 14 MB for them.
const OUTGOING: u16 = 16;

/// How long the broker may take to see us off.
const FAREWELL: Duration = Duration::from_secs(1);

/// Whom to connect to, as whom, and what to ask for.
pub(super) struct Session {
    address: BrokerAddress,
    client_id: String,
    credentials: Option<(String, String)>,
    /// Kept by the broker while we are away; `None`: it begins anew with every connection.
    expiry: Option<u32>,
    qos: QoS,
    filters: Vec<String>,
    keep_alive: Duration,
    window: u16,
}

impl Session {
    /// A session for everything that fits `filters` and for the canaries.
    pub fn new(config: &Config, filters: Vec<String>) -> anyhow::Result<Session> {
        let shared = !config.share.is_empty();
        let filters = filters.into_iter().chain([canary::FILTER.to_owned()]);
        let filters = match shared {
            false => filters.collect(),
            true => filters.map(|filter| format!("$share/{}/{filter}", config.share)).collect(),
        };
        // Instances that share a subscription may share a configuration, but not a client id. A
        // persistent session needs the same one each time.
        let client_id = match shared {
            false => format!("{}-{CONNECTION}", config.client_id),
            true => format!("{}-{CONNECTION}-{:08x}", config.client_id, rand::random::<u32>()),
        };
        let expiry = u32::try_from(config.session_expiry.as_secs()).unwrap_or(u32::MAX);
        Ok(Session {
            address: config.url.parse()?,
            client_id,
            credentials: config.credentials.clone(),
            // A member that is away with a living session would keep its share of the messages.
            expiry: (!shared).then_some(expiry),
            qos: qos(config.qos),
            filters,
            keep_alive: config.keep_alive,
            window: config.receive_maximum,
        })
    }

    /// The id by which the broker knows us.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    fn open(&self) -> (AsyncClient, EventLoop) {
        let broker = (self.address.host.clone(), self.address.port);
        let mut options = MqttOptions::new(&self.client_id, broker);
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options
            .set_network_options(network)
            .set_keep_alive(self.keep_alive.as_secs() as u16)
            .set_clean_start(self.expiry.is_none())
            .set_session_expiry_interval(Some(self.expiry.unwrap_or(0)))
            .set_receive_maximum(Some(self.window))
            .set_max_packet_size(Some(LARGEST_PACKET))
            .set_outgoing_inflight_upper_limit(OUTGOING)
            .set_max_request_batch(128)
            .set_ack_mode(AckMode::Manual);
        if self.expiry.is_some() {
            options.set_session_store(NothingOwed);
        }
        if let Some((name, password)) = &self.credentials {
            options.set_credentials(name, password.clone());
        }
        // Room for every acknowledgement that can be due, and then some.
        AsyncClient::builder(options).capacity(4 * usize::from(self.window) + 64).build()
    }

    fn subscribe(&self, client: &AsyncClient) -> Result<(), String> {
        let filters = self.filters.iter().map(|filter| {
            SubscribeFilterInput::new(filter, self.qos).retain_forward_rule(RetainForwardRule::Never)
        });
        client.try_subscribe_many(filters).map_err(|error| format!("subscribing: {error}"))
    }

    /// Whether the broker gave us everything that we asked for.
    fn granted(&self, answer: &SubAck) -> Result<(), String> {
        for (filter, code) in self.filters.iter().zip(&answer.return_codes) {
            match code {
                SubscribeReasonCode::Success(qos) if *qos >= self.qos => {}
                SubscribeReasonCode::Success(qos) => tracing::warn!(
                    filter,
                    "the broker grants only {qos:?}: heartbeats may be lost between it and Rollcall"
                ),
                refused => {
                    let what = format!("the broker refused the subscription to {filter}: {refused:?}");
                    let todo = "allow it there, for the user mqtt.username, or change the topics";
                    tracing::error!(filter, client_id = self.client_id, "{what}; {todo}");
                    return Err(what);
                }
            }
        }
        Ok(())
    }
}

fn qos(level: u8) -> QoS {
    match level {
        0 => QoS::AtMostOnce,
        _ => QoS::AtLeastOnce,
    }
}

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
        Canaries { topic: canary::topic(client_id), qos: qos(level), instance, period, link, clock }
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

/// See the head of this file.
#[derive(Debug)]
struct NothingOwed;

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionStoreError>> + Send + 'a>>;

impl SessionStore for NothingOwed {
    fn load<'a>(&'a self, key: &'a SessionStoreKey) -> Answer<'a, Option<PersistedSession>> {
        Box::pin(std::future::ready(Ok(Some(PersistedSession {
            format_version: 1,
            client_id: key.client_id().to_owned(),
            clean_start: false,
            session_expiry_interval: None,
            outgoing_inflight_upper_limit: Some(OUTGOING),
            ack_mode: PersistedAckMode::Manual,
            last_pkid: 0,
            last_puback: 0,
            replay: Vec::new(),
            incoming_qos2: Vec::new(),
        }))))
    }

    fn save<'a>(&'a self, _: &'a SessionStoreKey, _: &'a PersistedSession) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn clear<'a>(&'a self, _: &'a SessionStoreKey) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::roll::Rules;
    use crate::intake::{Fields, topic::Template, topic::Topics};
    use crate::presence::{Kind, KindRules};
    use crate::telemetry::Telemetry;

    const WINDOW: u16 = 3;
    const DEAFNESS: Duration = Duration::from_secs(4);

    fn config(share: &str) -> Config {
        Config {
            url: "mqtt://127.0.0.1".to_owned(),
            client_id: "me".to_owned(),
            credentials: None,
            share: share.to_owned(),
            qos: 1,
            keep_alive: Duration::from_secs(30),
            session_expiry: Duration::from_secs(3600),
            receive_maximum: WINDOW,
            max_payload: 1024,
            max_batch: 10,
            canary_period: Duration::from_secs(1),
            topics: vec![("units/{unit}".to_owned(), Some("pump".parse().unwrap()))],
            fields: Fields::default(),
        }
    }

    fn connection(room: usize) -> (Connection, mpsc::Receiver<Item>, Clock) {
        let kind: Kind = "pump".parse().unwrap();
        let rules: Rules = [(kind.clone(), KindRules::new(kind.clone()))].into();
        let topics = Topics::new(vec![Template::parse("units/{unit}", Some(kind)).unwrap()], &rules);
        let clock = Clock::by_hand(Timestamp::from_millis(1_000_000));
        let session = Session::new(&config(""), topics.filters()).unwrap();
        let reader = Reader {
            topics,
            fields: Fields::default(),
            client_id: session.client_id().to_owned(),
            max_payload: 1024,
            clock: clock.clone(),
            telemetry: Arc::new(Telemetry::new(&clock)),
        };
        let (queue, queued) = mpsc::channel(room);
        let link = watch::Sender::new(Link::default());
        let (stop, recorded) = Default::default();
        (Connection::new(session, reader, queue, link, DEAFNESS, stop, recorded), queued, clock)
    }

    fn heartbeat(qos: QoS, pkid: u16) -> Publish {
        Publish { pkid, ..Publish::new("units/7", qos, "", None) }
    }

    #[test]
    fn the_last_places_in_the_queue_are_for_messages_that_are_acknowledged() {
        let (mut connection, mut queued, _) = connection(5);
        for _ in 0..9 {
            connection.take(&heartbeat(QoS::AtMostOnce, 0)).unwrap();
        }
        for pkid in 1..=WINDOW {
            connection.take(&heartbeat(QoS::AtLeastOnce, pkid)).unwrap();
        }
        assert!(connection.take(&heartbeat(QoS::AtLeastOnce, 4)).is_err(), "more than the broker may send");
        let acks: Vec<bool> =
            std::iter::from_fn(|| queued.try_recv().ok()).map(|item| item.ack.is_some()).collect();
        assert_eq!(acks, [false, false, true, true, true]);
    }

    #[test]
    fn canaries_are_withheld_after_a_loss_until_the_gap_shows_in_the_ledger() {
        let (mut connection, mut queued, clock) = connection(usize::from(WINDOW) + 1);
        let mut canary = |connection: &mut Connection| {
            let canary = canary::Canary { instance: String::new(), seq: 0, sent_at: clock.now().as_millis() };
            let message = Publish::new("rollcall/canary/me-main", QoS::AtMostOnce, canary.to_json(), None);
            connection.take(&message).unwrap();
            std::iter::from_fn(|| queued.try_recv().ok()).any(|item| matches!(item.what, What::Canary(_)))
        };
        assert!(canary(&mut connection));
        for _ in 0..2 {
            connection.take(&heartbeat(QoS::AtMostOnce, 0)).unwrap();
        }
        let told: Vec<bool> = (0..7)
            .map(|_| {
                clock.advance(Duration::from_secs(1));
                canary(&mut connection)
            })
            .collect();
        // Lost at 0 s and withheld for 4 s: the gap between those at 0 s and 5 s shows the loss.
        assert_eq!(told, [false, false, false, false, true, true, true]);
    }

    #[test]
    fn a_shared_session_is_nobody_elses_and_ends_with_its_connection() {
        let filters = || vec!["units/+".to_owned()];
        let plain = Session::new(&config(""), filters()).unwrap();
        assert_eq!((plain.client_id(), plain.expiry), ("me-main", Some(3600)));
        assert_eq!(plain.filters, ["units/+", "rollcall/canary/#"]);
        let shared = Session::new(&config("all"), filters()).unwrap();
        assert_eq!(shared.filters, ["$share/all/units/+", "$share/all/rollcall/canary/#"]);
        assert_eq!(shared.expiry, None);
        assert_ne!(shared.client_id(), Session::new(&config("all"), filters()).unwrap().client_id());
    }
}
