//! Decides whether a device may connect, under which client id, and which topics it may use. Intake logs in by other
//! rules.
//!
//! # Client ids
//! A session belongs to a client id: a client that connects with the id of another takes it over. So an id
//! that is in use belongs to its user, an id that is the name of a user belongs to that user, and those
//! of Rollcall to Rollcall.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::access_rules::{AccessRules, ClientIdentity, overlaps};
use super::authentication::{AuthOutcome, Authentication};
use super::users::Users;
use super::{Config, INSIDE, read};
use crate::presence::covers;
use crate::telemetry::{BrokerRefusal, Telemetry};

/// The topics of Rollcall's own: canaries and others.
const OURS: &str = "rollcall/#";
const CANARIES: &str = "rollcall/canary/#";
/// The begin of the topics of alerts: a receiver of type `mqtt` publishes there, as any other client.
const ALERTS: &str = "rollcall/alerts/";
/// The longest client id, and the longest filter that a device may subscribe to, in bytes. Both are kept.
const MAX_ID: usize = 256;
const MAX_FILTER: usize = 512;

/// One for all devices.
pub(super) struct AccessControl {
    users: Option<Authentication>,
    rules: Option<AccessRules>,
    own_id: String,
    slots: Arc<Semaphore>,
    in_use: Mutex<HashMap<String, ClientIdInUse>>,
    numbers: AtomicU64,
    telemetry: Arc<Telemetry>,
}

struct ClientIdInUse {
    user: Option<String>,
    /// By number; the token disconnects the client.
    connections: HashMap<u64, CancellationToken>,
}

/// The credentials in a device's CONNECT.
pub(super) struct Credentials<'a> {
    pub id: &'a str,
    pub user: Option<&'a str>,
    pub password: &'a [u8],
    pub from: SocketAddr,
    pub disconnect: &'a CancellationToken,
}

/// Why a device is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectRefusal {
    Login,
    ClientId,
    Full,
}

/// An admitted device, until it is dropped.
pub(super) struct AdmittedClient {
    access: Arc<AccessControl>,
    id: String,
    number: u64,
    pub user: Option<String>,
    _slot: OwnedSemaphorePermit,
}

impl AccessControl {
    pub fn open(config: &Config, telemetry: Arc<Telemetry>) -> anyhow::Result<AccessControl> {
        let users = read(config.password_file.as_deref(), "broker.password_file", Users::parse)?;
        Ok(AccessControl {
            users: users.map(Authentication::of),
            rules: read(config.rules_file.as_deref(), "broker.rules_file", AccessRules::parse)?,
            own_id: config.own_client_id.clone(),
            slots: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            in_use: Mutex::default(),
            numbers: AtomicU64::new(0),
            telemetry,
        })
    }

    /// Admits a device, or returns why not.
    pub async fn admit(
        self: &Arc<Self>,
        credentials: Credentials<'_>,
    ) -> Result<AdmittedClient, ConnectRefusal> {
        let Credentials { id, from, .. } = credentials;
        let user = match self.authenticate(&credentials).await {
            Ok(user) => user,
            Err((refused, why)) => {
                self.refuse(BrokerRefusal::Login, from, id, why);
                return Err(refused);
            }
        };
        if let Some(why) = self.is_of_another(id, user.as_deref()) {
            self.refuse(BrokerRefusal::ClientId, from, id, why);
            return Err(ConnectRefusal::ClientId);
        }
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            let why =
                "broker.max_connections devices are connected; raise it if all of them belong to the fleet";
            self.refuse(BrokerRefusal::Connection, from, id, why);
            return Err(ConnectRefusal::Full);
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        if !self.take_id(id, user.as_deref(), number, credentials.disconnect) {
            let why = "another user is connected with this client id; give each device its own";
            self.refuse(BrokerRefusal::ClientId, from, id, why);
            return Err(ConnectRefusal::ClientId);
        }
        Ok(AdmittedClient { access: self.clone(), id: id.to_owned(), number, user, _slot: slot })
    }

    /// Counts and logs a refusal.
    pub fn refuse(&self, what: BrokerRefusal, from: SocketAddr, id: &str, why: &str) {
        self.telemetry.broker_refused(what, from, id, why);
    }

    /// Counts and logs that a device sends faster than it is read.
    pub fn held_back(&self, from: SocketAddr, id: &str, why: &str) {
        self.telemetry.broker_held_back(from, id, why);
    }

    /// The user; `None`: no password file is configured.
    async fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<String>, (ConnectRefusal, &'static str)> {
        if credentials.user == Some(INSIDE) {
            return Err((ConnectRefusal::Login, "its user name is that of rollcall itself"));
        }
        let Some(users) = &self.users else { return Ok(None) };
        let Some(user) = credentials.user else {
            return Err((ConnectRefusal::Login, "it gives no user name; broker.password_file requires one"));
        };
        match users.verify(user, credentials.password).await {
            AuthOutcome::Accepted => Ok(Some(user.to_owned())),
            AuthOutcome::Rejected => {
                Err((ConnectRefusal::Login, "user name or password are wrong; see broker.password_file"))
            }
            AuthOutcome::Busy => {
                Err((ConnectRefusal::Full, "too many logins wait; the device may try again"))
            }
        }
    }

    /// Why this id does not belong to that user, whether it is in use or not.
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

    fn take_id(&self, id: &str, user: Option<&str>, number: u64, disconnect: &CancellationToken) -> bool {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || ClientIdInUse { user: user.map(str::to_owned), connections: HashMap::new() };
        let entry = in_use.entry(id.to_owned()).or_insert_with(new);
        let is_own = entry.user.as_deref() == user;
        if is_own {
            entry.connections.insert(number, disconnect.clone());
        }
        is_own
    }

    /// The client ids of all connections.
    pub fn connected(&self) -> Vec<String> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Ends the connections of a client id.
    pub fn disconnect(&self, id: &str) {
        let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.get(id).into_iter().flat_map(|id| id.connections.values()).for_each(CancellationToken::cancel);
    }

    /// Whether a device may publish there.
    pub fn may_publish(&self, client: ClientIdentity, topic: &str) -> bool {
        // Whatever the rules allow: a canary of a device would make Rollcall believe that it hears.
        !covers(CANARIES, topic)
            && match &self.rules {
                Some(rules) => rules.may_publish(client, topic),
                None => !(covers(OURS, topic) || topic.starts_with('$')) || topic.starts_with(ALERTS),
            }
    }

    /// Whether a device may subscribe to a filter.
    pub fn may_subscribe(&self, client: ClientIdentity, filter: &str) -> bool {
        if filter.len() > MAX_FILTER {
            return false;
        }
        // A shared subscription receives the messages that fit its filter.
        let shared = filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/'));
        let filter = shared.map_or(filter, |(_, filter)| filter);
        match &self.rules {
            Some(rules) => rules.may_subscribe(client, filter),
            None => !(overlaps(OURS, filter) || filter.starts_with('$')) || filter.starts_with(ALERTS),
        }
    }
}

impl Drop for AdmittedClient {
    fn drop(&mut self) {
        let mut in_use = self.access.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = in_use.get_mut(&self.id) {
            entry.connections.remove(&self.number);
            if entry.connections.is_empty() {
                in_use.remove(&self.id);
            }
        }
    }
}
