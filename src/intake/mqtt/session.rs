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
    AckMode, AsyncClient, Broker, EventLoop, LastWill, MqttOptions, NetworkOptions, PersistedAckMode,
    PersistedSession, QoS, RetainForwardRule, SessionStore, SessionStoreError, SessionStoreKey, SubAck,
    SubscribeFilterInput, SubscribeReasonCode, TlsConfiguration, Transport,
};

use super::LARGEST_PACKET;
use crate::address::{BrokerAddress, Scheme};
use crate::intake::{Config, MAIN, Tls, TlsFiles, canary, drops};
use crate::store::Member;

/// Canaries and probes on their way to the broker; the default would reserve 14 MB for them.
const OUTGOING: u16 = 128;

/// A member that hears nothing at all for this long, or for three canaries, is deaf.
const DEAF: Duration = Duration::from_secs(3);
/// A member of which nothing was recorded for this long, or for five canaries, is of no use.
const UNPROVED: Duration = Duration::from_secs(10);
/// Added to the time after which a broker drops a member, for a broker that is slow to notice.
const MARGIN: Duration = Duration::from_secs(5);

/// Whom to connect to, as whom, and what to ask for.
pub(in crate::intake) struct Session {
    pub(super) address: BrokerAddress,
    /// There is one where the address wants it.
    tls: Option<Tls>,
    pub(super) client_id: String,
    /// Name of the shared subscription that it is a member of, if it is.
    pub(in crate::intake) share: Option<String>,
    pub(super) credentials: Option<(String, String)>,
    /// ValueOutcome by the broker while we are away; `None`: it begins anew with every connection.
    pub(in crate::intake) expiry: Option<u32>,
    pub(super) qos: QoS,
    /// What is asked for at once.
    pub(super) first: Vec<Wish>,
    /// What a member asks for when it attends.
    pub(super) shared: Vec<Wish>,
    pub(super) keep_alive: Duration,
    pub(super) window: u16,
    pub(super) patience: Patience,
}

/// Something to subscribe to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub filter: String,
    qos: QoS,
    /// Whether what was kept from before is wanted too.
    kept: bool,
}

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Before it counts as dead.
    pub silence: Duration,
    /// What is asked of a member that attends.
    pub of_member: Option<MemberPatience>,
}

/// How long a member that attends may be of no use: see `visit`.
#[derive(Clone, Copy, Debug)]
pub struct MemberPatience {
    pub silence: Duration,
    pub unproved: Duration,
}

impl Session {
    /// The session of connection `name` for everything that fits `filters`, and for the canaries.
    pub fn new(config: &Config, name: &str, filters: Vec<String>) -> anyhow::Result<Session> {
        let is_member = !config.share.is_empty();
        let qos = qos(config.qos);
        let wish = |filter: String| Wish { filter, qos, kept: false };
        // Instances that share a subscription may share a configuration, but not a client id. A
        // persistent session needs the same one each time.
        let client_id = match is_member {
            false => format!("{}-{name}", config.client_id),
            true => format!("{}-{name}-{:08x}", config.client_id, rand::random::<u32>()),
        };
        let own = wish(canary::topic(&client_id));
        let fleet = filters.into_iter();
        let (first, shared): (Vec<Wish>, Vec<Wish>) = match is_member {
            false => (fleet.map(wish).chain([own]).collect(), Vec::new()),
            true => {
                let gone = Wish { filter: canary::GONE_FILTER.to_owned(), qos: QoS::AtLeastOnce, kept: true };
                let shared = fleet.map(|filter| wish(format!("$share/{}/{filter}", config.share)));
                (vec![own, gone], shared.collect())
            }
        };
        let kept = Wish { filter: drops::TOPIC.to_owned(), qos: QoS::AtMostOnce, kept: true };
        let watched = (config.watch_sys && name == MAIN).then_some(kept);
        let first = first.into_iter().chain(watched).collect();
        let of_member = is_member.then(|| MemberPatience {
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
        Ok(Session {
            address,
            tls,
            client_id,
            share: is_member.then(|| config.share.clone()),
            credentials: config.credentials.clone(),
            expiry: (!is_member).then_some(expiry),
            qos,
            first,
            shared,
            keep_alive: config.keep_alive,
            window: config.receive_maximum,
            patience: Patience { silence: 2 * config.keep_alive, of_member },
        })
    }

    /// The id by which the broker knows us.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Connection `number` as a member of the shared subscription, if it is one.
    pub fn member(&self, connection: u64) -> Option<Member> {
        let share = self.share.clone()?;
        Some(Member { share, client_id: self.client_id.clone(), connection })
    }

    /// How long after its last proof the broker is certain to have dropped a member: it closes its
    /// connection itself, and if the broker does not see that, it misses the member's pings.
    pub fn release(&self, keep_alive: Duration) -> Duration {
        let unproved = self.patience.of_member.map_or(UNPROVED, |of_member| of_member.unproved);
        unproved + keep_alive * 3 / 2 + MARGIN
    }

    /// A client that is not connected yet, for connection `number`, and what it does when polled.
    pub fn open(&self, number: u64) -> (AsyncClient, EventLoop) {
        let mut options = self.transport();
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
        if let Some(member) = self.member(number) {
            let topic = canary::gone_topic(&self.client_id);
            let word = canary::last_word(&member);
            options.set_last_will(LastWill::new(topic, word, QoS::AtLeastOnce, true, None));
        }
        if let Some((name, password)) = &self.credentials {
            options.set_credentials(name, password.clone());
        }
        // Room for every acknowledgement that can be due, and then some.
        AsyncClient::builder(options).capacity(4 * usize::from(self.window) + 64).build()
    }

    /// How the broker is spoken to.
    fn transport(&self) -> MqttOptions {
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

    /// Asks for this.
    pub fn subscribe(&self, client: &AsyncClient, wishes: &[Wish]) -> Result<(), String> {
        let filters = wishes.iter().map(|wish| {
            let kept = if wish.kept { RetainForwardRule::OnEverySubscribe } else { RetainForwardRule::Never };
            SubscribeFilterInput::new(&wish.filter, wish.qos).retain_forward_rule(kept)
        });
        client.try_subscribe_many(filters).map_err(|error| format!("subscribing: {error}"))
    }

    /// Asks to be given no more as a member.
    pub fn unsubscribe(&self, client: &AsyncClient) -> Result<(), String> {
        let filters = self.shared.iter().map(|wish| wish.filter.clone());
        client.try_unsubscribe_many(filters).map_err(|error| format!("unsubscribing: {error}"))
    }

    /// Whether the broker gave us everything that we asked for.
    pub fn granted(&self, answer: &SubAck, wishes: &[Wish]) -> Result<(), String> {
        for (Wish { filter, qos: wanted, .. }, code) in wishes.iter().zip(&answer.return_codes) {
            match code {
                SubscribeReasonCode::Success(qos) if qos >= wanted => {}
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

/// Whether nothing at all was granted.
pub fn all_refused(answer: &SubAck) -> bool {
    answer.return_codes.iter().all(|code| !matches!(code, SubscribeReasonCode::Success(_)))
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
