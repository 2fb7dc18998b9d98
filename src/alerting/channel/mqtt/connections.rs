//! Connections to a broker. Each is used by one attempt at a time.
//!
//! A message that the broker refuses may end the connection; other attempts are unaffected. A connection that served
//! one attempt serves the next, so a storm does not connect for each message. A connection that is not used for
//! [`IDLE`] is closed, which is sooner than a broker expects a ping.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, ready};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use rumqttc::{
    AsyncClient, Broker, ConnectReturnCode, ConnectionError, Event, EventLoop, MqttOptions, NetworkOptions,
    Packet, PubAckReason, PublishOptions, PublishResult, QoS, TlsConfiguration, Transport,
};
use tokio::time::{sleep, timeout};

use super::MqttConfig;
use crate::address::{BrokerAddress, Scheme};
use crate::alerting::channel::{Failure, tls};
use crate::clock::monotonic;
use crate::{cause, trust};

/// How long a disconnect may take.
const DISCONNECT: Duration = Duration::from_secs(1);
/// The most messages of a connection that wait for an acknowledgement.
const UNACKNOWLEDGED: u16 = 100;
const KEEP_ALIVE_SECONDS: u16 = 30;
/// How long a connection may be unused.
const IDLE: Duration = Duration::from_secs(10);

/// A message to publish.
#[derive(Clone)]
pub(super) struct Publication {
    pub topic: String,
    pub payload: String,
}

/// The broker of a receiver, and the connections to it that no attempt uses.
pub(super) struct Connections {
    pub receiver: String,
    address: BrokerAddress,
    credentials: Option<(String, String)>,
    tls: TlsConfiguration,
    pub retain: bool,
    idle: Arc<Idle>,
}

#[derive(Default)]
struct Idle(Mutex<IdleBrokerConnections>);

#[derive(Default)]
struct IdleBrokerConnections {
    /// In the order of their last use, the latest last.
    connections: Vec<BrokerConnection>,
    /// Whether a task closes connections that are unused for long.
    is_watched: bool,
}

struct BrokerConnection {
    client: AsyncClient,
    events: EventLoop,
    used_at: Instant,
}

impl Connections {
    /// Errors name the option and show no secret.
    pub fn new(receiver: &str, config: &MqttConfig) -> Result<Connections, String> {
        Ok(Connections {
            receiver: receiver.to_owned(),
            address: config.url.parse().map_err(|error| format!("url: {error}"))?,
            credentials: config.credentials.clone(),
            tls: TlsConfiguration::Rustls(tls::client(&config.tls)?.into()),
            retain: config.retain,
            idle: Arc::default(),
        })
    }

    /// Publishes at QoS 1; all have arrived when the broker has acknowledged each.
    ///
    /// Only its use shows whether the broker has ended an idle connection meanwhile. So messages that `may_repeat` use
    /// an idle connection and, if it fails, are published again on a new one; other messages get a new connection at
    /// once.
    pub async fn publish(&self, publications: Vec<Publication>, may_repeat: bool) -> Result<(), Failure> {
        let idle = if may_repeat { self.idle.take() } else { None };
        if let Some(mut connection) = idle
            && let Ok(answered) = self.publish_on(&mut connection, publications.clone()).await
        {
            answered?;
            self.idle.put(connection);
            return Ok(());
        }
        let mut connection = self.connect();
        let published = self.publish_on(&mut connection, publications).await;
        published.map_err(|error| self.failed(describe(&error)))??;
        match may_repeat {
            true => self.idle.put(connection),
            false => connection.leave().await,
        }
        Ok(())
    }

    /// `Err`: the connection has ended.
    async fn publish_on(
        &self,
        connection: &mut BrokerConnection,
        publications: Vec<Publication>,
    ) -> Result<Result<(), Failure>, ConnectionError> {
        let BrokerConnection { client, events, .. } = connection;
        let answers = stream::iter(publications).map(|publication| self.publish_one(client, publication));
        let answered = answers.buffered(UNACKNOWLEDGED.into()).try_for_each(|()| ready(Ok(())));
        tokio::select! {
            error = poll(events) => Err(error),
            answered = answered => Ok(answered),
        }
    }

    /// Hands a message over at once, so that the order stays, and waits for its acknowledgement.
    fn publish_one(
        &self,
        client: &AsyncClient,
        Publication { topic, payload }: Publication,
    ) -> impl Future<Output = Result<(), Failure>> {
        let options = PublishOptions::new(QoS::AtLeastOnce);
        let options = if self.retain { options.retained() } else { options };
        let notice = client.try_publish_tracked(topic.clone(), payload.into_bytes(), options);
        async move {
            let notice = notice.map_err(|error| self.failed(format!("publishing: {error}")))?;
            match notice.wait_async().await {
                Ok(PublishResult::Qos1(ack)) => match ack.reason {
                    PubAckReason::Success | PubAckReason::NoMatchingSubscribers => Ok(()),
                    reason => Err(self.failed(format!(
                        "refuses what is published to {topic} ({reason:?}); allow it there"
                    ))),
                },
                _ => Err(self.failed(format!("did not acknowledge {topic}"))),
            }
        }
    }

    /// Connects, logs in and leaves.
    pub async fn probe(&self) -> Result<(), Failure> {
        let mut connection = self.connect();
        let is_accepted = |event: &Event| matches!(event, Event::Incoming(Packet::ConnAck(_)));
        let mut next = async || connection.events.poll().await.map_err(|error| self.failed(describe(&error)));
        while !is_accepted(&next().await?) {}
        connection.leave().await;
        Ok(())
    }

    /// A new connection, which opens when its events are polled. Its session ends with it.
    fn connect(&self) -> BrokerConnection {
        // Not `rollcall-`: a broker, such as the in-process one, may reserve such ids for the connections of
        // `[mqtt]`.
        let client_id = format!("rollcall_alerts-{}-{:08x}", self.receiver, rand::random::<u32>());
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
        let (client, events) =
            AsyncClient::builder(options).capacity(usize::from(UNACKNOWLEDGED) + 8).build();
        BrokerConnection { client, events, used_at: monotonic() }
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

impl Idle {
    /// The connection that was used last.
    fn take(&self) -> Option<BrokerConnection> {
        self.0.lock().connections.pop()
    }

    /// Keeps a connection for the next attempt.
    fn put(self: &Arc<Idle>, connection: BrokerConnection) {
        let mut state = self.0.lock();
        state.connections.push(BrokerConnection { used_at: monotonic(), ..connection });
        if !std::mem::replace(&mut state.is_watched, true) {
            tokio::spawn(self.clone().watch());
        }
    }

    /// Closes connections that are unused for long; ends when none is left.
    async fn watch(self: Arc<Idle>) {
        loop {
            sleep(IDLE).await;
            let unused: Vec<BrokerConnection> = {
                let mut state = self.0.lock();
                state.is_watched = !state.connections.is_empty();
                if !state.is_watched {
                    return;
                }
                state
                    .connections
                    .extract_if(.., |connection| monotonic().duration_since(connection.used_at) >= IDLE)
                    .collect()
            };
            join_all(unused.into_iter().map(BrokerConnection::leave)).await;
        }
    }
}

impl BrokerConnection {
    async fn leave(mut self) {
        let _ = self.client.try_disconnect_with_timeout(DISCONNECT);
        drop(self.client);
        let _ = timeout(2 * DISCONNECT, poll(&mut self.events)).await;
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

fn describe(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ConnectionRefused(code) => {
            let advice = match code {
                ConnectReturnCode::ClientIdentifierNotValid => {
                    "permit client ids that begin with rollcall_alerts-"
                }
                _ => "check username and password_file",
            };
            format!("refused the connection ({code:?}); {advice}")
        }
        error => match trust::cause(error) {
            Some(cause) => format!("was not connected to: {}", trust::advice("receiver", "broker", cause)),
            None => format!("was not reached, or left: {}", cause::why("receiver", "broker", error)),
        },
    }
}
