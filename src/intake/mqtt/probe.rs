//! Whether the broker lets Rollcall in and grants what it asks for, without hearing the fleet.
//!
//! The probe is a client of its own, with another id and a session that ends with it, so that it
//! does not push out an instance that is running. It never joins a shared subscription either: it
//! would be handed messages that nobody then records.
//!
//! It cannot see everything: Mosquitto grants a subscription whose messages its access rules then
//! withhold. Only the canary proves the way there and back.

use anyhow::bail;
use rumqttc::{Event, Packet};

use super::words::describe;
use super::{Session, leave};
use crate::intake::{Config, Template};

/// Connects, subscribes as intake would, and leaves. Takes as long as the broker does; the caller
/// bounds it.
pub async fn probe(config: &Config) -> anyhow::Result<()> {
    let alone = Config { share: String::new(), ..config.clone() };
    let mut filters = Vec::new();
    for (text, kind) in &alone.topics {
        filters.push(Template::parse(text, kind.clone())?.filter());
    }
    let mut session = Session::new(&alone, "check", filters)?;
    session.client_id = format!("{}-check-{:08x}", config.client_id, rand::random::<u32>());
    session.expiry = None;
    let (client, mut events) = session.open(1);
    let wrong = loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => match session.subscribe(&client, &session.first) {
                Ok(()) => continue,
                Err(why) => break Some(why),
            },
            Ok(Event::Incoming(Packet::SubAck(answer))) => {
                break session.granted(&answer, &session.first).err();
            }
            Ok(_) => {}
            Err(error) => bail!("{}: {}", session.address, describe(&error)),
        }
    };
    leave(client, events).await;
    match wrong {
        Some(why) => bail!("{}: {why}", session.address),
        None => Ok(()),
    }
}
