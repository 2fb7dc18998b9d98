//! What is asked of the broker: who we are, what we want to hear, and for how long it keeps that.
//!
//! A plain subscription has a persistent session, so the broker keeps a backlog while Rollcall is
//! away. Topics that were taken out of the configuration stay in that session until it expires;
//! their messages are counted as `bad_topic`. A shared subscription begins anew each time: a member
//! that is away with a living session would keep its share of the messages.
//!
//! # Why a session store that stores nothing
//! A new process that resumes its old session must tell the library what it still owed to the
//! broker; otherwise the library refuses to send anything that is acknowledged. At QoS 0 and 1 all
//! that can be owed is a canary, which is worthless by then: nothing is owed.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rumqttc::{
    AckMode, AsyncClient, EventLoop, MqttOptions, NetworkOptions, PersistedAckMode, PersistedSession, QoS,
    RetainForwardRule, SessionStore, SessionStoreError, SessionStoreKey, SubAck, SubscribeFilterInput,
    SubscribeReasonCode,
};

use super::LARGEST_PACKET;
use crate::address::BrokerAddress;
use crate::intake::{CONNECTION, Config, canary};

/// Canaries on their way to the broker; the default would reserve 14 MB for them.
const OUTGOING: u16 = 16;

/// Whom to connect to, as whom, and what to ask for.
pub(in crate::intake) struct Session {
    pub(super) address: BrokerAddress,
    pub(super) client_id: String,
    pub(super) credentials: Option<(String, String)>,
    /// Kept by the broker while we are away; `None`: it begins anew with every connection.
    pub(super) expiry: Option<u32>,
    pub(super) qos: QoS,
    pub(super) filters: Vec<String>,
    pub(super) keep_alive: Duration,
    pub(super) window: u16,
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

    /// A client that is not connected yet, and what it does when polled.
    pub fn open(&self) -> (AsyncClient, EventLoop) {
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

    /// Asks for everything.
    pub fn subscribe(&self, client: &AsyncClient) -> Result<(), String> {
        let filters = self.filters.iter().map(|filter| {
            SubscribeFilterInput::new(filter, self.qos).retain_forward_rule(RetainForwardRule::Never)
        });
        client.try_subscribe_many(filters).map_err(|error| format!("subscribing: {error}"))
    }

    /// Whether the broker gave us everything that we asked for.
    pub fn granted(&self, answer: &SubAck) -> Result<(), String> {
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

/// QoS 2 is never asked for: a repeated heartbeat is harmless.
pub fn qos(level: u8) -> QoS {
    match level {
        0 => QoS::AtMostOnce,
        _ => QoS::AtLeastOnce,
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
