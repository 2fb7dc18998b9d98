//! Decides whether a device may connect, under which client id, and which topics it may use.
//!
//! # Client ids
//! A session belongs to a client id: a client that connects with the id of another takes over its session. So an id in
//! use belongs to the user that connected with it (see [`super::sessions`]), an id that equals a user name belongs to
//! that user, and Rollcall's ids belong to Rollcall.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access_rules::{AccessRules, ClientIdentity, overlaps};
use super::authentication::{AuthOutcome, Authentication};
use super::bytes::{BAD_CLIENT_ID, BAD_LOGIN, BUSY};
use super::users::Users;
use super::{Config, names};
use crate::presence::covers;
use crate::telemetry::{BrokerRefusal, MAX_SHOWN, Telemetry, truncate};

/// The topics that Rollcall itself uses: canaries and others.
const OURS: &str = "rollcall/#";
const CANARIES: &str = "rollcall/canary/#";
/// The prefix of the topics of alerts: a receiver of type `mqtt` publishes there, like any other client.
const ALERTS: &str = "rollcall/alerts/";
/// The prefix of the topics of states. Every client may read them, as it may read all heartbeats.
const STATES: &str = "rollcall/state/";
/// The longest client id, and the longest filter that a device may subscribe to, in bytes: memory holds both.
const MAX_ID: usize = 256;
const MAX_FILTER: usize = 512;

/// The checks for all devices.
pub struct AccessControl {
    users: Option<Authentication>,
    rules: Option<AccessRules>,
    own_id: String,
    slots: Arc<Semaphore>,
    telemetry: Arc<Telemetry>,
}

/// A client as the log and the rules identify it.
#[derive(Clone, Debug)]
pub struct Peer {
    pub from: SocketAddr,
    pub id: Box<str>,
    /// The name of the user; `None`: no password file is configured.
    pub user: Option<String>,
}

/// The reason why a client is not admitted, with the reason code for its answer.
pub struct Refusal {
    pub what: BrokerRefusal,
    pub code: u8,
    pub why: String,
}

impl Refusal {
    pub fn new<T>(what: BrokerRefusal, code: u8, why: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal { what, code, why: why.into() })
    }
}

/// The address in log lines about a disconnected client.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Peer {
    /// A client whose name is not known yet.
    pub fn unknown(from: SocketAddr) -> Peer {
        Peer { from, id: "".into(), user: None }
    }

    fn identity(&self) -> ClientIdentity<'_> {
        ClientIdentity { id: &self.id, name: self.user.as_deref() }
    }
}

impl AccessControl {
    pub fn open(config: &Config, telemetry: Arc<Telemetry>) -> anyhow::Result<AccessControl> {
        let users = read(config.password_file.as_deref(), "broker.password_file", Users::parse)?;
        Ok(AccessControl {
            users: users.map(Authentication::of),
            rules: read(config.rules_file.as_deref(), "broker.rules_file", AccessRules::parse)?,
            own_id: config.own_client_id.clone(),
            slots: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            telemetry,
        })
    }

    /// Admits a device with its user name and password, until the permit is dropped.
    pub async fn admit(
        &self,
        id: &str,
        login: (Option<&str>, &[u8]),
    ) -> Result<(Option<String>, OwnedSemaphorePermit), Refusal> {
        let user = self.authenticate(login).await?;
        if let Some(why) = self.is_of_another(id, user.as_deref()) {
            return Refusal::new(BrokerRefusal::ClientId, BAD_CLIENT_ID, why);
        }
        let why = "broker.max_connections devices are connected; raise it if all of them belong to the fleet";
        let slot = self.slots.clone().try_acquire_owned();
        slot.map_or_else(|_| Refusal::new(BrokerRefusal::Connection, BUSY, why), |slot| Ok((user, slot)))
    }

    /// Counts and logs a refusal.
    pub fn refuse(&self, what: BrokerRefusal, peer: &Peer, why: &str) {
        self.telemetry.broker_refused(what, peer.from, &peer.id, why);
    }

    /// Counts and logs that a device sends faster than it is read.
    pub fn held_back(&self, peer: &Peer, why: &str) {
        self.telemetry.broker_held_back(peer.from, &peer.id, why);
    }

    async fn authenticate(&self, (user, password): (Option<&str>, &[u8])) -> Result<Option<String>, Refusal> {
        let Some(users) = &self.users else { return Ok(None) };
        let (code, why) = match user {
            None => (BAD_LOGIN, "it gives no user name; broker.password_file requires one"),
            Some(user) => match users.verify(user, password).await {
                AuthOutcome::Accepted => return Ok(Some(user.to_owned())),
                AuthOutcome::Rejected => {
                    (BAD_LOGIN, "user name or password are wrong; see broker.password_file")
                }
                AuthOutcome::Busy => (BUSY, "too many logins wait; the device may try again"),
            },
        };
        Refusal::new(BrokerRefusal::Login, code, why)
    }

    /// The reason why this user may never have this id.
    fn is_of_another(&self, id: &str, user: Option<&str>) -> Option<&'static str> {
        let rest = id.strip_prefix(&self.own_id);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            return Some("this client id is rollcall's own (mqtt.client_id); give the device another");
        }
        if id.len() > MAX_ID {
            return Some("its client id is longer than 256 bytes");
        }
        let is_user = self.users.as_ref().is_some_and(|users| users.knows(id));
        (is_user && user != Some(id)).then_some("this client id is the name of another user")
    }

    /// Returns whether a device may publish to a topic; counts a refusal.
    pub fn may_publish(&self, peer: &Peer, topic: &str) -> bool {
        // The rules cannot allow this: a canary of a device would make Rollcall believe that it hears.
        let may = !covers(CANARIES, topic)
            && match &self.rules {
                Some(rules) => rules.may_publish(peer.identity(), topic),
                None => !(covers(OURS, topic) || topic.starts_with('$')) || topic.starts_with(ALERTS),
            };
        self.count(may, BrokerRefusal::Publish, peer, ("publish", topic))
    }

    /// Returns whether a device may subscribe to a filter; counts a refusal.
    pub fn may_subscribe(&self, peer: &Peer, filter: &str) -> bool {
        // A shared subscription receives the messages that fit its filter.
        let of_messages = names::shared(filter).1;
        let may = filter.len() <= MAX_FILTER
            && match &self.rules {
                Some(rules) => rules.may_subscribe(peer.identity(), of_messages),
                None => {
                    let is_ours = overlaps(OURS, of_messages) || of_messages.starts_with('$');
                    !is_ours || [ALERTS, STATES].iter().any(|open| of_messages.starts_with(open))
                }
            };
        self.count(may, BrokerRefusal::Subscribe, peer, ("subscribe", filter))
    }

    fn count(&self, may: bool, what: BrokerRefusal, peer: &Peer, (verb, name): (&str, &str)) -> bool {
        if !may {
            // The name comes from a device, so it may be long and hold any characters.
            let name = truncate(name, MAX_SHOWN).escape_debug().to_string();
            self.refuse(what, peer, &format!("it may not {verb} to {name}; see broker.rules_file"));
        }
        may
    }
}

fn read<T>(
    path: Option<&Path>,
    option: &str,
    parse: fn(&str) -> Result<T, String>,
) -> anyhow::Result<Option<T>> {
    let Some(path) = path else { return Ok(None) };
    let read = crate::small_file::read_file(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = read.with_context(|| format!("{option}: cannot read {}", path.display()))?;
    parse(&text).map(Some).map_err(|why| anyhow!("{option}: {}: {why}", path.display()))
}
