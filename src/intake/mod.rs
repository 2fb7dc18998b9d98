//! From MQTT to recorded heartbeats.

use std::time::Duration;

use crate::presence::Kind;

/// What intake needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// `mqtt://host:port` (TLS and websockets come later).
    pub url: String,
    /// Prefix of the client id; the connection's name is appended.
    pub client_id: String,
    /// Name and password towards the broker.
    pub credentials: Option<(String, String)>,
    /// Name of a shared subscription; empty: one plain subscription with a persistent session.
    pub share: String,
    /// 0 or 1, for the fleet's topics and the canary alike.
    pub qos: u8,
    /// At most half of the time after which a dead connection is noticed.
    pub keep_alive: Duration,
    /// How long the broker keeps the session and its backlog while Rollcall is away.
    pub session_expiry: Duration,
    /// The most messages that the broker may send ahead of their acknowledgement.
    pub receive_maximum: u16,
    /// Payloads above this are rejected.
    pub max_payload: usize,
    /// The most heartbeats that are recorded in one go.
    pub max_batch: usize,
    /// The canary's period.
    pub canary_period: Duration,
    /// Topic templates with the kind that they belong to; `None` where the template captures
    /// `{kind}`.
    pub topics: Vec<(String, Option<Kind>)>,
    /// Names of the JSON fields that are read.
    pub fields: Fields,
}

/// Names of the JSON fields that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The device's own time.
    pub ts: String,
    /// The silence that the unit asks to be allowed.
    pub timeout: String,
    /// Labels.
    pub labels: String,
    /// A planned silence.
    pub sleep: String,
}
