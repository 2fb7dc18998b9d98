//! Connections of this process that are lost. Messages that devices sent since the last proof may lie at the broker,
//! and a thief of the session may have taken them: so no deadline is judged beyond that proof until a canary of a
//! later connection is recorded, and with it the time that was blind.

use std::collections::HashMap;

use parking_lot::RwLock;

use crate::presence::BrokerName;
use crate::store::Subscription;

/// The lost connections, by client id.
#[derive(Default)]
pub(super) struct LostConnections(RwLock<HashMap<String, LostConnection>>);

pub(super) struct LostConnection {
    /// `None`: the fleet has one broker.
    pub broker: Option<BrokerName>,
    pub number: u64,
}

impl LostConnections {
    pub fn insert(&self, client_id: &str, lost: LostConnection) {
        self.0.write().insert(client_id.to_owned(), lost);
    }

    /// Notes that a canary of this subscription is recorded.
    pub fn proved(&self, subscription: &Subscription) {
        let Some((client_id, connection)) = subscription.connection() else { return };
        let is_later = |lost: &LostConnection| lost.number < connection;
        if self.0.read().get(client_id).is_some_and(is_later) {
            self.0.write().remove(client_id);
        }
    }

    /// The brokers of the lost connections.
    pub fn brokers(&self) -> Vec<Option<BrokerName>> {
        let lost = self.0.read();
        lost.values().map(|lost| lost.broker.clone()).collect()
    }
}
