//! Which device gets in, under which client id, and what it may do there. Intake does not come this way.
//!
//! # Client ids
//! The id decides about a session: a client that connects with the id of another pushes it out. So an id
//! that is in use belongs to its user, one that is the name of a user belongs to that user, and those
//! of Rollcall to Rollcall.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::logins::{self, Logins};
use super::rules::{Client, Rules, covers, meets};
use super::users::Users;
use super::{Config, INSIDE, read};
use crate::telemetry::{BrokerRefusal, Telemetry};

/// Where Rollcall proves that it hears, and what else is its own.
const OURS: &str = "rollcall/#";
const CANARIES: &str = "rollcall/canary/#";
/// The longest client id, and the longest filter that a device may subscribe to, in bytes. Both are kept.
const LONGEST_ID: usize = 256;
const LONGEST_FILTER: usize = 512;

/// Decides; one for all devices.
pub(super) struct Gate {
    users: Option<Logins>,
    rules: Option<Rules>,
    own_id: String,
    places: Arc<Semaphore>,
    taken: Mutex<HashMap<String, Taken>>,
    numbers: AtomicU64,
    telemetry: Arc<Telemetry>,
}

/// A client id in use.
struct Taken {
    user: Option<String>,
    /// By number, and what ends each.
    connections: HashMap<u64, CancellationToken>,
}

/// What a device says of itself.
pub(super) struct Login<'a> {
    pub id: &'a str,
    pub user: Option<&'a str>,
    pub password: &'a [u8],
    pub from: SocketAddr,
    /// Ends its connection.
    pub cut: &'a CancellationToken,
}

/// Why it does not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Login,
    ClientId,
    Full,
}

/// The place of a device that got in, until it is dropped.
pub(super) struct Place {
    gate: Arc<Gate>,
    id: String,
    number: u64,
    pub user: Option<String>,
    _place: OwnedSemaphorePermit,
}

impl Gate {
    pub fn open(config: &Config, telemetry: Arc<Telemetry>) -> anyhow::Result<Gate> {
        let users = read(config.password_file.as_deref(), "broker.password_file", Users::parse)?;
        Ok(Gate {
            users: users.map(Logins::of),
            rules: read(config.rules_file.as_deref(), "broker.rules_file", Rules::parse)?,
            own_id: config.own_client_id.clone(),
            places: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            taken: Mutex::default(),
            numbers: AtomicU64::new(0),
            telemetry,
        })
    }

    /// Lets a device in, or says why not.
    pub async fn admit(self: &Arc<Self>, login: Login<'_>) -> Result<Place, Refused> {
        let Login { id, from, .. } = login;
        let user = match self.identify(&login).await {
            Ok(user) => user,
            Err((refused, why)) => {
                self.refuse(BrokerRefusal::Login, from, id, why);
                return Err(refused);
            }
        };
        if let Some(why) = self.is_of_another(id, user.as_deref()) {
            self.refuse(BrokerRefusal::ClientId, from, id, why);
            return Err(Refused::ClientId);
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            let why = "broker.max_connections are connected; raise it if they are all yours";
            self.refuse(BrokerRefusal::Connection, from, id, why);
            return Err(Refused::Full);
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        if !self.take(id, user.as_deref(), number, login.cut) {
            let why = "another user is connected with this client id; give each device its own";
            self.refuse(BrokerRefusal::ClientId, from, id, why);
            return Err(Refused::ClientId);
        }
        Ok(Place { gate: self.clone(), id: id.to_owned(), number, user, _place: place })
    }

    /// Counts and logs that something was refused.
    pub fn refuse(&self, what: BrokerRefusal, from: SocketAddr, id: &str, why: &str) {
        self.telemetry.broker_refused(what, from, id, why);
    }

    /// Counts and logs that a device sends faster than it is read.
    pub fn held_back(&self, from: SocketAddr, id: &str, why: &str) {
        self.telemetry.broker_held_back(from, id, why);
    }

    /// The user that it is; `None` where nobody looks at names.
    async fn identify(&self, login: &Login<'_>) -> Result<Option<String>, (Refused, &'static str)> {
        if login.user == Some(INSIDE) {
            return Err((Refused::Login, "its user name is that of rollcall itself"));
        }
        let Some(users) = &self.users else { return Ok(None) };
        let Some(user) = login.user else {
            return Err((Refused::Login, "it gives no user name; broker.password_file asks for one"));
        };
        match users.look(user, login.password).await {
            logins::Login::Right => Ok(Some(user.to_owned())),
            logins::Login::Wrong => {
                Err((Refused::Login, "user name or password are wrong; see broker.password_file"))
            }
            logins::Login::Busy => Err((Refused::Full, "too many logins wait; it may come again")),
        }
    }

    /// Why this id is not for that user, whether it is connected or not.
    fn is_of_another(&self, id: &str, user: Option<&str>) -> Option<&'static str> {
        let rest = id.strip_prefix(&self.own_id);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            return Some("this client id is rollcall's own (mqtt.client_id); give the device another");
        }
        if id.len() > LONGEST_ID {
            return Some("its client id is longer than 256 bytes");
        }
        let is_user = self.users.as_ref().is_some_and(|users| users.know(id));
        (is_user && user != Some(id)).then_some("this client id is the name of another user")
    }

    fn take(&self, id: &str, user: Option<&str>, number: u64, cut: &CancellationToken) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Taken { user: user.map(str::to_owned), connections: HashMap::new() };
        let entry = taken.entry(id.to_owned()).or_insert_with(new);
        let is_own = entry.user.as_deref() == user;
        if is_own {
            entry.connections.insert(number, cut.clone());
        }
        is_own
    }

    /// The ids of all that are connected.
    pub fn connected(&self) -> Vec<String> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Ends the connections of a client id.
    pub fn cut(&self, id: &str) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken
            .get(id)
            .into_iter()
            .flat_map(|taken| taken.connections.values())
            .for_each(CancellationToken::cancel);
    }

    /// Whether a device may publish there.
    pub fn may_publish(&self, client: Client, topic: &str) -> bool {
        // Whatever the rules say: a canary of another would make Rollcall believe that it hears.
        !covers(CANARIES, topic)
            && match &self.rules {
                Some(rules) => rules.may_publish(client, topic),
                None => !covers(OURS, topic) && !topic.starts_with('$'),
            }
    }

    /// Whether a device may subscribe to that.
    pub fn may_subscribe(&self, client: Client, filter: &str) -> bool {
        if filter.len() > LONGEST_FILTER {
            return false;
        }
        // A shared subscription brings what its filter brings.
        let shared = filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/'));
        let filter = shared.map_or(filter, |(_, filter)| filter);
        match &self.rules {
            Some(rules) => rules.may_subscribe(client, filter),
            None => !meets(OURS, filter) && !filter.starts_with('$'),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.gate.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = taken.get_mut(&self.id) {
            entry.connections.remove(&self.number);
            if entry.connections.is_empty() {
                taken.remove(&self.id);
            }
        }
    }
}
