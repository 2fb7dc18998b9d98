//! One connection of a device, from the handshake to its end.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::access_control::{AccessControl, AdmittedClient, ConnectRefusal, Credentials};
use super::access_rules::ClientIdentity;
use super::backpressure::Backpressure;
use super::frames::Violation;
use super::pending::PendingPermit;
use crate::telemetry::{BrokerRefusal, MAX_SHOWN, truncate};

pub(super) struct ClientConnection {
    pub access: Arc<AccessControl>,
    pub backpressure: Arc<Backpressure>,
    /// How many messages wait for intake.
    pub waiting: Arc<dyn Fn() -> usize + Send + Sync>,
    pub disconnect: CancellationToken,
    from: SocketAddr,
    phase: Mutex<Phase>,
}

enum Phase {
    Pending { _permit: PendingPermit },
    Admitted { id: String, _client: AdmittedClient },
    Closed,
}

impl ClientConnection {
    pub fn new(
        access: Arc<AccessControl>,
        backpressure: Arc<Backpressure>,
        waiting: Arc<dyn Fn() -> usize + Send + Sync>,
        from: SocketAddr,
        permit: PendingPermit,
    ) -> ClientConnection {
        ClientConnection {
            access,
            backpressure,
            waiting,
            disconnect: CancellationToken::new(),
            from,
            phase: Mutex::new(Phase::Pending { _permit: permit }),
        }
    }

    /// Admits the device; returns its user.
    pub async fn admit(
        &self,
        id: &str,
        user: Option<&str>,
        password: &[u8],
    ) -> Result<Option<String>, ConnectRefusal> {
        let disconnect = &self.disconnect;
        let credentials = Credentials { id, user, password, from: self.from, disconnect };
        let client = self.access.admit(credentials).await?;
        let user = client.user.clone();
        *self.lock() = Phase::Admitted { id: id.to_owned(), _client: client };
        Ok(user)
    }

    pub fn ended(&self) {
        *self.lock() = Phase::Closed;
    }

    /// Whether the device may publish to a topic; waits while devices are held back.
    pub async fn may_publish(&self, client: ClientIdentity<'_>, topic: &str) -> bool {
        let may = self.access.may_publish(client, topic);
        if !may {
            let why = format!("it may not publish to {}; see broker.rules_file", shown(topic));
            self.access.refuse(BrokerRefusal::Publish, self.from, client.id, &why);
        } else if self.backpressure.is_on() {
            self.access.held_back(
                self.from,
                client.id,
                "rollcall takes messages more slowly than they arrive",
            );
            self.backpressure.released().await;
        }
        may
    }

    /// Whether the device may subscribe to a filter.
    pub fn may_subscribe(&self, client: ClientIdentity<'_>, filter: &str) -> bool {
        let may = self.access.may_subscribe(client, filter);
        if !may {
            let why = format!("it may not subscribe to {}; see broker.rules_file", shown(filter));
            self.access.refuse(BrokerRefusal::Subscribe, self.from, client.id, &why);
        }
        may
    }

    /// Counts a message of `size` bytes for backpressure.
    pub fn message_read(&self, size: u32) {
        self.backpressure.message_read(size, (self.waiting)());
    }

    /// The device exceeds its rate.
    pub fn rate_exceeded(&self) {
        self.access.held_back(self.from, &self.id(), "it sends more than broker.max_rate messages a second");
    }

    /// The device sends large packets faster than they are read.
    pub fn bulk_exceeded(&self) {
        let why = "packets above 16 KiB come faster than they are read, from all devices together";
        self.access.held_back(self.from, &self.id(), why);
    }

    /// The device speaks a version of MQTT that is not served; the library refuses it.
    pub fn level_refused(&self, level: u8) {
        let why = match level {
            3 => "it speaks MQTT 3.1 (level 3 of the protocol); let it speak 3.1.1 or 5".to_owned(),
            _ => format!("it speaks level {level} of the protocol; MQTT 3.1.1 (level 4) and 5 are served"),
        };
        self.access.refuse(BrokerRefusal::Packet, self.from, &self.id(), &why);
    }

    /// The device sent so many messages with the retain flag.
    pub fn retain_refused(&self, count: u64) {
        for _ in 0..count {
            let why = "this broker retains nothing: the message was passed on and not kept";
            self.access.refuse(BrokerRefusal::Retained, self.from, &self.id(), why);
        }
    }

    /// The device is disconnected for a violation.
    pub fn violates(&self, why: Violation) {
        let text = match why {
            Violation::NotMqtt => "it does not speak MQTT".to_owned(),
            Violation::TooLarge(size) => {
                format!(
                    "it sent a packet of {size} bytes; broker.max_packet allows fewer, and CONNECT 16 KiB"
                )
            }
            Violation::Unreleased => {
                "it began more messages at QoS 2 than may wait to be released".to_owned()
            }
            Violation::Malformed(_, what) => format!("it sent {what}, against the protocol"),
        };
        self.access.refuse(BrokerRefusal::Packet, self.from, &self.id(), &text);
    }

    fn id(&self) -> String {
        match &*self.lock() {
            Phase::Admitted { id, .. } => id.clone(),
            _ => String::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A topic in the log: a device may make it long and put anything into it.
fn shown(name: &str) -> String {
    truncate(name, MAX_SHOWN).escape_debug().to_string()
}
