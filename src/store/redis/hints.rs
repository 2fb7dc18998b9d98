//! Expiry notifications as hints. They may be late, lost or about other keys; a hint leads to a check of the unit.
//!
//! A connection of its own subscribes to them, and subscribes again by itself after a failure. After a failure, and
//! after a new subscription, notifications may have been lost, which is a hint too. The same connection gets the
//! notifications of instances that start or stop.
//!
//! While very many units are due, the connection unsubscribes: for each instance, the notifications of all units
//! would cost the server as much as the records of a tenth of them.

use redis::aio::ConnectionManager;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use super::RedisEngine;
use super::keys::Keys;
use super::topology::{classify, manager};
use crate::store::{Hint, Result};

/// Sends hints until the receiver is dropped. Hints that find the channel full are dropped: the deadline index finds
/// their units.
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
    // Without this subscription, each renewal of the lease notices other instances.
    if let Err(error) = connection.subscribe(engine.keys.roster()).await {
        tracing::warn!("instances that start or stop are noticed late: {}", problem(error));
    }
    let expired = format!("__keyevent@{database}__:expired");
    let (mut storms, mut is_subscribed) = (engine.topology.storms(), false);
    loop {
        let wanted = !*storms.borrow_and_update();
        if wanted && !is_subscribed {
            connection.subscribe(&expired).await.map_err(problem)?;
        } else if is_subscribed && !wanted {
            connection.unsubscribe(&expired).await.map_err(problem)?;
        }
        is_subscribed = wanted;
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
