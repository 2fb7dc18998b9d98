//! Whether the broker lets a client in that says nothing of who it is, under a client id like Rollcall's.
//!
//! A client that connects with the client id of another takes over its session. So any client that gets in
//! without a name could take Rollcall's, and with it what devices say.
//!
//! It is harmless: its id is made up and in use by nobody, its session ends with it, and it subscribes to
//! nothing.

use rumqttc::{Event, Packet};

use super::{Session, leave};
use crate::intake::Config;

/// Tries it. Takes as long as the broker does; the caller bounds it.
pub async fn lets_strangers_in(config: &Config) -> anyhow::Result<bool> {
    let nameless = Config { share: String::new(), credentials: None, watch_sys: false, ..config.clone() };
    let mut session = Session::new(&nameless, "stranger", Vec::new())?;
    session.client_id = format!("{}-stranger-{:08x}", config.client_id, rand::random::<u32>());
    session.expiry = None;
    let (client, mut events) = session.open(1);
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => {
                leave(client, events).await;
                return Ok(true);
            }
            Ok(_) => {}
            // It was refused, or the broker cannot be reached; the other probe tells which.
            Err(_) => return Ok(false),
        }
    }
}
