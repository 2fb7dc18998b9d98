//! One connection of a device, from the lobby to its end.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::frames::Violation;
use super::gate::{Gate, Login, Place, Refused};
use super::lobby::Ticket;
use super::room::Capacity;
use super::rules::Client;
use crate::telemetry::{BrokerRefusal, LONGEST_SHOWN, truncate};

pub(super) struct Guest {
    pub gate: Arc<Gate>,
    pub room: Arc<Capacity>,
    /// How many messages wait for Rollcall.
    pub waiting: Arc<dyn Fn() -> usize + Send + Sync>,
    /// Ends the connection.
    pub cut: CancellationToken,
    from: SocketAddr,
    is_in: Mutex<In>,
}

/// How far it came.
enum In {
    Lobby { _ticket: Ticket },
    Place { id: String, _place: Place },
    Gone,
}

impl Guest {
    pub fn new(
        gate: Arc<Gate>,
        room: Arc<Capacity>,
        waiting: Arc<dyn Fn() -> usize + Send + Sync>,
        from: SocketAddr,
        ticket: Ticket,
    ) -> Guest {
        Guest {
            gate,
            room,
            waiting,
            cut: CancellationToken::new(),
            from,
            is_in: Mutex::new(In::Lobby { _ticket: ticket }),
        }
    }

    /// Lets it in; answers with the user that it is.
    pub async fn admit(
        &self,
        id: &str,
        user: Option<&str>,
        password: &[u8],
    ) -> Result<Option<String>, Refused> {
        let place = self.gate.admit(Login { id, user, password, from: self.from, cut: &self.cut }).await?;
        let user = place.user.clone();
        *self.lock() = In::Place { id: id.to_owned(), _place: place };
        Ok(user)
    }

    /// Its connection has ended.
    pub fn leaves(&self) {
        *self.lock() = In::Gone;
    }

    /// Whether it may publish there, as soon as there is room for it.
    pub async fn may_publish(&self, client: Client<'_>, topic: &str) -> bool {
        let may = self.gate.may_publish(client, topic);
        if !may {
            let why = format!("it may not publish to {}; see broker.rules_file", shown(topic));
            self.gate.refuse(BrokerRefusal::Publish, self.from, client.id, &why);
        } else if self.room.is_full() {
            self.gate.held_back(self.from, client.id, "rollcall takes messages more slowly than they come");
            self.room.available().await;
        }
        may
    }

    /// Whether it may subscribe to that.
    pub fn may_subscribe(&self, client: Client<'_>, filter: &str) -> bool {
        let may = self.gate.may_subscribe(client, filter);
        if !may {
            let why = format!("it may not subscribe to {}; see broker.rules_file", shown(filter));
            self.gate.refuse(BrokerRefusal::Subscribe, self.from, client.id, &why);
        }
        may
    }

    /// It sends a message of that size.
    pub fn sends(&self, size: u32) {
        self.room.enter(size, (self.waiting)());
    }

    /// It is above its rate.
    pub fn is_held_back(&self) {
        self.gate.held_back(self.from, &self.id(), "it sends more than broker.max_rate messages a second");
    }

    /// It wished that messages be retained.
    pub fn unretained(&self, wishes: u64) {
        for _ in 0..wishes {
            let why = "this broker retains nothing: the message was passed on and not kept";
            self.gate.refuse(BrokerRefusal::Retained, self.from, &self.id(), why);
        }
    }

    /// It is disconnected for what it sent.
    pub fn breaks(&self, why: Violation) {
        let text = match why {
            Violation::Stranger => "it does not speak MQTT".to_owned(),
            Violation::TooLarge(size) => {
                format!(
                    "it sent a packet of {size} bytes; broker.max_packet allows fewer, and CONNECT 16 KiB"
                )
            }
            Violation::Unreleased => {
                "it began more messages at QoS 2 than may wait to be released".to_owned()
            }
        };
        self.gate.refuse(BrokerRefusal::Packet, self.from, &self.id(), &text);
    }

    fn id(&self) -> String {
        match &*self.lock() {
            In::Place { id, .. } => id.clone(),
            _ => String::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, In> {
        self.is_in.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name in the log: what a device made up can be long and hold anything.
fn shown(name: &str) -> String {
    truncate(name, LONGEST_SHOWN).escape_debug().to_string()
}
