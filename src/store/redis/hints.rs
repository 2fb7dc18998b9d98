//! Expiry notifications, as hints. They may be late, lost or about something else; a hint leads
//! to a check of the unit.
//!
//! Heard on a connection of its own, which subscribes again by itself. Whenever that happened, or
//! the connection went away, notifications may have been lost: that is a hint too. The same
//! connection hears of instances that come and go.
//!
//! While very many units are due, a notification of each would cost the server as much as to write down a
//! tenth of them, for every instance that listens; none are heard then.

use redis::aio::ConnectionManager;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use super::RedisEngine;
use super::keys::Keys;
use super::topology::{classify, manager};
use crate::store::{Hint, Result};

/// Sends hints until the receiver is dropped. When they come faster than they are taken,
/// they are dropped: the deadline index finds their units.
pub(super) async fn listen(engine: &RedisEngine, hints: mpsc::Sender<Hint>) -> Result<()> {
    let client = engine.topology.client();
    let database = client.get_connection_info().redis_settings().db();
    let keys = engine.keys.clone();
    let telemetry = engine.telemetry.clone();
    let sender = hints.clone();
    let (roster, roster_changed) = (keys.roster(), engine.roster_changed.clone());
    let forward = move |push: PushInfo| -> std::result::Result<(), ()> {
        if channel(&push) == Some(roster.as_bytes()) {
            roster_changed.notify_one();
        } else if let Some(hint) = hint(&keys, &push)
            && sender.try_send(hint).is_err()
        {
            telemetry.expiry_notification_dropped();
        }
        Ok(())
    };
    let config = manager().set_push_sender(forward).set_automatic_resubscription();
    let problem = |error| classify(engine.topology.address(), &error);
    let mut connection = ConnectionManager::new_with_config(client, config).await.map_err(problem)?;
    // Without it, others are noticed when the lease is renewed.
    if let Err(error) = connection.subscribe(engine.keys.roster()).await {
        tracing::warn!("instances that come and go are noticed late: {}", problem(error));
    }
    let expired = format!("__keyevent@{database}__:expired");
    let (mut storms, mut heard) = (engine.topology.storms(), false);
    loop {
        let wanted = !*storms.borrow_and_update();
        if wanted && !heard {
            connection.subscribe(&expired).await.map_err(problem)?;
        } else if heard && !wanted {
            connection.unsubscribe(&expired).await.map_err(problem)?;
        }
        heard = wanted;
        tokio::select! {
            () = hints.closed() => return Ok(()),
            changed = storms.changed() => changed.unwrap_or_default(),
        }
    }
}

fn channel(push: &PushInfo) -> Option<&[u8]> {
    match push.data.first() {
        Some(Value::BulkString(channel)) if push.kind == PushKind::Message => Some(channel),
        _ => None,
    }
}

fn hint(keys: &Keys, push: &PushInfo) -> Option<Hint> {
    match push.kind {
        PushKind::Message => {
            let Some(Value::BulkString(key)) = push.data.get(1) else { return None };
            keys.unit_of_alive(std::str::from_utf8(key).ok()?).map(Hint::Expired)
        }
        PushKind::Subscribe | PushKind::Disconnection => Some(Hint::Doubt),
        _ => None,
    }
}
