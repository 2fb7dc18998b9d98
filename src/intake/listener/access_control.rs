//! Decides whether a device may connect, under which client id, and which topics it may use.
//!
//! # Client ids
//! A session belongs to a client id: a client that connects with the id of another takes it over. So an id
//! that is in use belongs to its user (see [`super::sessions`]), an id that is the name of a user belongs to that user,
//! and those of Rollcall to Rollcall.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access_rules::{AccessRules, ClientIdentity, overlaps};
use super::authentication::{AuthOutcome, Authentication};
use super::users::Users;
use super::{Config, read};
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
pub struct AccessControl {
    users: Option<Authentication>,
    rules: Option<AccessRules>,
    own_id: String,
    slots: Arc<Semaphore>,
    telemetry: Arc<Telemetry>,
}

/// Why a device is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectRefusal {
    Login,
    ClientId,
    Full,
}

/// An admitted device, until it is dropped.
pub struct AdmittedClient {
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
            telemetry,
        })
    }

    /// Admits a device with its user name and password, or returns why not.
    pub async fn admit(
        &self,
        id: &str,
        login: (Option<&str>, &[u8]),
        from: SocketAddr,
    ) -> Result<AdmittedClient, ConnectRefusal> {
        let user = match self.authenticate(login).await {
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
        Ok(AdmittedClient { user, _slot: slot })
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
        (user, password): (Option<&str>, &[u8]),
    ) -> Result<Option<String>, (ConnectRefusal, &'static str)> {
        let Some(users) = &self.users else { return Ok(None) };
        let Some(user) = user else {
            return Err((ConnectRefusal::Login, "it gives no user name; broker.password_file requires one"));
        };
        match users.verify(user, password).await {
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
