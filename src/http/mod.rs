//! What Rollcall shows: metrics, health, records and units.

use std::net::SocketAddr;

/// What the server needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; anything but loopback needs at least one token.
    pub listen: SocketAddr,
    /// Who may ask; empty: everybody who can reach the address.
    pub tokens: Vec<Token>,
}

/// A bearer token.
#[derive(Clone, Debug)]
pub struct Token {
    /// Whose it is, for the log.
    pub name: String,
    /// SHA-256 of the token.
    pub sha256: [u8; 32],
    /// What its holder may do.
    pub role: Role,
}

/// What the holder of a token may do; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look.
    Viewer,
    /// Acknowledge, silence, replay.
    Operator,
    /// Register and remove units.
    Admin,
}
