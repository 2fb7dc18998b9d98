//! The requests of a connection to the broker: its client id, its topics, and how long the session is kept.
//!
//! A plain subscription has a persistent session, so the broker stores a backlog while Rollcall is away. Topics that
//! were removed from the configuration stay in that session until it expires; their messages are counted as
//! `bad_topic`. A shared subscription uses a new session each time: an absent member with a living session would still
//! receive its share of the messages.
//!
//! # Why more may be unacknowledged than the receive maximum
//! Mosquitto 2.0 does not count messages from its queue. So it sends many more than the receive maximum when
//! acknowledgements stop, continue and stop again. While reading stops, no ping is sent either, and after one and a
//! half keep-alives the broker drops the connection and sends all messages again. So reading stops only to limit
//! memory.
//!
//! # Why a session store that stores nothing
//! A new process that resumes its old session must give the library the packets that the broker has not acknowledged;
//! otherwise the library refuses to publish at QoS 1. At QoS 0 and 1 such a packet can only be an old canary, which
//! proves nothing: so the store is always empty.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rumqttc::{
    AckMode, AsyncClient, Broker, EventLoop, LastWill, MqttOptions, NetworkOptions, PersistedAckMode,
    PersistedSession, QoS, RetainForwardRule, SessionStore, SessionStoreError, SessionStoreKey, SubAck,
    SubscribeFilterInput, SubscribeReasonCode, TlsConfiguration, Transport,
};

use crate::address::{BrokerAddress, Scheme};
use crate::intake::config::MAX_PACKET;
use crate::intake::topic::{FleetFilters, widest};
use crate::intake::{Config, Tls, TlsFiles, canary, drops, timers};
use crate::presence::covers;
use crate::store::ShareMember;

/// The least number of messages that may be unacknowledged; a few megabytes.
const MIN_UNACKNOWLEDGED: usize = 32_768;

/// Canaries and probes on their way to the broker; the default would reserve 14 MB for them.
const OUTGOING: u16 = 128;

/// A member counts as deaf if it receives nothing for this long, or for three canaries.
const DEAF: Duration = Duration::from_secs(3);
/// A member closes its connection if none of its canaries was recorded for this long, or for five canaries.
const UNPROVED: Duration = Duration::from_secs(10);
/// Added to the time after which a broker drops a member, because brokers may be slow to notice.
const MARGIN: Duration = Duration::from_secs(5);

/// The address, the client and the requests of a connection.
pub(in crate::intake) struct Session {
    pub(super) address: BrokerAddress,
    /// The settings of TLS, if the address requires it.
    tls: Option<Tls>,
    pub(super) client_id: String,
    /// The name of the shared subscription within the fleet; `None` for a plain subscription.
    pub(in crate::intake) share: Option<String>,
    pub(super) credentials: Option<(String, String)>,
    /// How long, in seconds, the broker keeps the session while Rollcall is away; `None` if every connection begins a
    /// new session.
    pub(in crate::intake) expiry: Option<u32>,
    pub(super) qos: QoS,
    /// The topics to request at once.
    pub(super) first: Vec<TopicRequest>,
    /// The topics that a member requests when it attends.
    pub(super) share_requests: Vec<TopicRequest>,
    pub(super) keep_alive: Duration,
    /// The configured period of canaries; a short timeout may shorten it.
    pub(super) canary_period: Duration,
    /// The most unacknowledged messages that the broker may send.
    pub(super) window: u16,
    /// The most unacknowledged messages before reading stops: see the head of this file.
    pub(in crate::intake) most_unacknowledged: usize,
    /// The most acknowledgements and messages that wait to be sent to the broker.
    capacity: usize,
    pub(super) limits: SilenceLimits,
}

/// A topic filter to subscribe to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRequest {
    pub filter: String,
    qos: QoS,
    /// Requests retained messages, too.
    retained: bool,
}

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug)]
pub struct SilenceLimits {
    /// The longest silence of the broker before the connection counts as dead.
    pub silence: Duration,
    /// The limits of a member that attends.
    pub of_member: Option<MemberLimits>,
}

/// How long an attending member may receive nothing, and have no canary recorded: see `state`.
#[derive(Clone, Copy, Debug)]
pub struct MemberLimits {
    pub silence: Duration,
    pub unproved: Duration,
}

/// The most unacknowledged messages of a connection that hears no units.
const UNACKNOWLEDGED: u16 = 1000;

/// Opens a connection that hears no units, with a session that ends with it; it is not connected yet. Answers its client,
/// its event loop and its client id.
pub(super) fn open_beside(
    config: &Config,
    name: &str,
    will: Option<LastWill>,
) -> anyhow::Result<(AsyncClient, EventLoop, String)> {
    let name = format!("{name}-{:08x}", rand::random::<u32>());
    let session = Session::new(config, &name, FleetFilters::default())?;
    let mut options = session.transport();
    let mut network = NetworkOptions::new();
    network.set_tcp_nodelay(true);
    options
        .set_network_options(network)
        .set_keep_alive(config.keep_alive.as_secs() as u16)
        .set_clean_start(true)
        .set_session_expiry_interval(Some(0))
        .set_outgoing_inflight_upper_limit(UNACKNOWLEDGED);
    if let Some((name, password)) = &config.credentials {
        options.set_credentials(name, password.clone());
    }
    if let Some(will) = will {
        options.set_last_will(will);
    }
    let (client, events) = AsyncClient::builder(options).capacity(UNACKNOWLEDGED.into()).build();
    Ok((client, events, session.client_id().to_owned()))
}

impl Session {
    /// The session of connection `name` for the topics of `filters`, for canaries and, if configured, for timers. The
    /// first connection also subscribes to the topics that a share does not divide.
    ///
    /// In one piece: it only lists the requests and the settings.
    pub fn new(config: &Config, name: &str, filters: FleetFilters) -> anyhow::Result<Session> {
        let (is_member, is_main) = (!config.share.is_empty(), name == config.connection(1));
        let qos = qos(config.qos);
        let request = |filter: String| TopicRequest { filter, qos, retained: false };
        // Instances in one share may have one configuration, but need different client ids. A persistent session needs
        // the same client id each time.
        let client_id = match is_member {
            false => format!("{}-{name}", config.client_id),
            true => format!("{}-{name}-{:08x}", config.client_id, rand::random::<u32>()),
        };
        let own = request(canary::topic(&client_id));
        // A broker may deliver a message once for each matching filter.
        let FleetFilters { heartbeats, status, feeds } = filters;
        let is_heard = heartbeats.iter().any(|filter| covers(filter, timers::FILTER));
        let timers = (config.timers && !is_heard).then(|| timers::FILTER.to_owned());
        let fleet = heartbeats.into_iter().chain(timers);
        let retained = |filter: &str, qos| TopicRequest { filter: filter.to_owned(), qos, retained: true };
        let (first, share_requests): (Vec<TopicRequest>, Vec<TopicRequest>) = match is_member {
            false => (
                widest(status.into_iter().chain(fleet)).into_iter().map(request).chain([own]).collect(),
                Vec::new(),
            ),
            true => {
                let share = fleet.map(|filter| request(format!("$share/{}/{filter}", config.share)));
                let answers = request(canary::answers_topic(&client_id));
                let gone = retained(canary::GONE_FILTER, QoS::AtLeastOnce);
                let status = status.into_iter().filter(|_| is_main).map(request);
                ([own, answers, gone].into_iter().chain(status).collect(), share.collect())
            }
        };
        let feeds = feeds.iter().filter(|_| is_main || !is_member).map(|filter| retained(filter, qos));
        let watched = (config.watch_sys && is_main).then(|| retained(drops::TOPIC, QoS::AtMostOnce));
        let first = first.into_iter().chain(feeds).chain(watched).collect();
        let of_member = is_member.then(|| MemberLimits {
            silence: DEAF.max(3 * config.canary_period),
            unproved: UNPROVED.max(5 * config.canary_period),
        });
        let expiry = u32::try_from(config.session_expiry.as_secs()).unwrap_or(u32::MAX);
        let address: BrokerAddress = config.url.parse()?;
        let tls = match &config.tls {
            _ if !address.scheme.is_secure() => None,
            Some(tls) => Some(tls.clone()),
            None => Some(Tls::read(&TlsFiles::default())?),
        };
        let most_unacknowledged = MIN_UNACKNOWLEDGED.max(2 * usize::from(config.receive_maximum));
        // Each request about a timer may need an answer besides its acknowledgement.
        let for_each = if config.timers { 2 } else { 1 };
        Ok(Session {
            address,
            tls,
            client_id,
            share: config.share_of_fleet(),
            credentials: config.credentials.clone(),
            expiry: (!is_member).then_some(expiry),
            qos,
            first,
            share_requests,
            keep_alive: config.keep_alive,
            canary_period: config.canary_period,
            window: config.receive_maximum,
            most_unacknowledged,
            capacity: for_each * most_unacknowledged + 64,
            limits: SilenceLimits { silence: 2 * config.keep_alive, of_member },
        })
    }

    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Connection `number` as a member of the shared subscription, if it is one.
    pub fn member(&self, connection: u64) -> Option<ShareMember> {
        let share = self.share.clone()?;
        Some(ShareMember { share, client_id: self.client_id.clone(), connection })
    }

    /// How long after its last proof the broker has certainly dropped a member: the member closes its connection, and a
    /// broker that does not notice that misses the member's pings.
    pub fn release(&self, keep_alive: Duration) -> Duration {
        let unproved = self.limits.of_member.map_or(UNPROVED, |of_member| of_member.unproved);
        unproved + keep_alive * 3 / 2 + MARGIN
    }

    /// A client for connection `number`, not connected yet, and its event loop. The broker has `accepts_within` to
    /// accept it.
    pub fn open(&self, number: u64, accepts_within: Duration) -> (AsyncClient, EventLoop) {
        let mut options = self.transport();
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options
            .set_network_options(network)
            .set_connect_timeout(accepts_within)
            .set_keep_alive(self.keep_alive.as_secs() as u16)
            .set_clean_start(self.expiry.is_none())
            .set_session_expiry_interval(Some(self.expiry.unwrap_or(0)))
            .set_receive_maximum(Some(self.window))
            .set_max_packet_size(Some(MAX_PACKET))
            .set_outgoing_inflight_upper_limit(OUTGOING)
            .set_max_request_batch(128)
            .set_ack_mode(AckMode::Manual);
        if self.expiry.is_some() {
            options.set_session_store(EmptySessionStore);
        }
        if let Some(member) = self.member(number) {
            let topic = canary::gone_topic(&self.client_id);
            let payload = canary::gone_payload(&member);
            options.set_last_will(LastWill::new(topic, payload, QoS::AtLeastOnce, true, None));
        }
        if let Some((name, password)) = &self.credentials {
            options.set_credentials(name, password.clone());
        }
        // The capacity has room for every acknowledgement that can be due, and for some more.
        AsyncClient::builder(options).capacity(self.capacity).build()
    }

    pub(super) fn transport(&self) -> MqttOptions {
        let BrokerAddress { scheme, host, port, .. } = &self.address;
        let tls = || match &self.tls {
            Some(tls) => TlsConfiguration::Rustls(tls.0.clone()),
            None => unreachable!("a secure address has settings of TLS"),
        };
        let url = self.address.to_string();
        match scheme {
            Scheme::Mqtt => MqttOptions::new(&self.client_id, (host.clone(), *port)),
            Scheme::Mqtts => {
                let mut options = MqttOptions::new(&self.client_id, (host.clone(), *port));
                options.set_transport(Transport::tls_with_config(tls()));
                options
            }
            Scheme::Ws => {
                let broker = Broker::websocket(url).expect("an address is a URL of a websocket");
                MqttOptions::new(&self.client_id, broker)
            }
            Scheme::Wss => MqttOptions::websocket_with_tls_config(&self.client_id, url, tls())
                .expect("an address is a URL of a websocket"),
        }
    }

    pub fn subscribe(&self, client: &AsyncClient, requests: &[TopicRequest]) -> Result<(), String> {
        let filters = requests.iter().map(|request| {
            let rule = match request.retained {
                true => RetainForwardRule::OnEverySubscribe,
                false => RetainForwardRule::Never,
            };
            SubscribeFilterInput::new(&request.filter, request.qos).retain_forward_rule(rule)
        });
        client.try_subscribe_many(filters).map_err(|error| format!("subscribing: {error}"))
    }

    /// Unsubscribes a member from its share.
    pub fn unsubscribe(&self, client: &AsyncClient) -> Result<(), String> {
        let filters = self.share_requests.iter().map(|request| request.filter.clone());
        client.try_unsubscribe_many(filters).map_err(|error| format!("unsubscribing: {error}"))
    }
}

/// The broker's answer to requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Filters that are granted at a lower QoS, and that QoS.
    lowered: Vec<(String, QoS)>,
    /// The first refused filter, and the reason code.
    refused: Option<(String, SubscribeReasonCode)>,
    pub is_nothing_granted: bool,
}

impl Grants {
    pub fn of(answer: &SubAck, requests: &[TopicRequest]) -> Grants {
        let is_granted = |code: &SubscribeReasonCode| matches!(code, SubscribeReasonCode::Success(_));
        let is_nothing_granted = !answer.return_codes.iter().any(is_granted);
        let mut grants = Grants { is_nothing_granted, ..Grants::default() };
        for (TopicRequest { filter, qos: wanted, .. }, code) in requests.iter().zip(&answer.return_codes) {
            match code {
                SubscribeReasonCode::Success(qos) if qos >= wanted => {}
                SubscribeReasonCode::Success(qos) => grants.lowered.push((filter.clone(), *qos)),
                refused => {
                    grants.refused = Some((filter.clone(), *refused));
                    break;
                }
            }
        }
        grants
    }

    /// The reason why the connection is useless; `None` if all filters are granted.
    pub fn refusal(&self) -> Option<String> {
        let (filter, code) = self.refused.as_ref()?;
        Some(format!("the broker refused the subscription to {filter}: {code:?}"))
    }

    /// Logs, for an operator, what the broker did not grant as requested.
    pub fn log(&self, client_id: &str) {
        for (filter, qos) in &self.lowered {
            tracing::warn!(
                filter,
                "the broker grants only {qos:?}: heartbeats may be lost between it and Rollcall"
            );
        }
        if let (Some((filter, _)), Some(refusal)) = (&self.refused, self.refusal()) {
            let todo = "allow it there, for the user mqtt.username, or change the topics";
            tracing::error!(filter, client_id, "{refusal}; {todo}");
        }
    }
}

/// QoS 2 is never requested: a repeated heartbeat is harmless.
pub fn qos(level: u8) -> QoS {
    match level {
        0 => QoS::AtMostOnce,
        _ => QoS::AtLeastOnce,
    }
}

/// A session store that stores nothing; the head of this file gives the reason.
#[derive(Debug)]
struct EmptySessionStore;

type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionStoreError>> + Send + 'a>>;

impl SessionStore for EmptySessionStore {
    fn load<'a>(&'a self, key: &'a SessionStoreKey) -> StoreFuture<'a, Option<PersistedSession>> {
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

    fn save<'a>(&'a self, _: &'a SessionStoreKey, _: &'a PersistedSession) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn clear<'a>(&'a self, _: &'a SessionStoreKey) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
