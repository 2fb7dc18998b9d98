//! Checks whether the broker accepts a client without a user name, under a client id like Rollcall's.
//!
//! A client that connects with the client id of another takes over its session. So any client that the broker accepts
//! without a name could take over Rollcall's session, and with it the messages of devices.
//!
//! The check is harmless: its client id is random, its session ends with it, and it subscribes to nothing.

use rumqttc::{Event, Packet};

use super::{Session, leave};
use crate::intake::Config;
use crate::intake::topic::FleetFilters;

/// Waits as long as the broker does; the caller limits the time.
pub async fn accepts_anonymous(config: &Config) -> anyhow::Result<bool> {
    let nameless = Config { share: String::new(), credentials: None, watch_sys: false, ..config.clone() };
    let mut session = Session::new(&nameless, "anonymous", FleetFilters::default())?;
    session.client_id = format!("{}-anonymous-{:08x}", config.client_id, rand::random::<u32>());
    session.expiry = None;
    let (client, mut events) = session.open(1, super::CONNECT);
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => {
                leave(client, events).await;
                return Ok(true);
            }
            Ok(_) => {}
            // The broker refused the client or cannot be reached; `probe` reports which.
            Err(_) => return Ok(false),
        }
    }
}
