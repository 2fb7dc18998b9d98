//! Expiry notifications as hints. They may be late, lost or about other keys; a hint leads to a check of the unit.
//!
//! A server notifies only of its own keys, so each server has a connection that subscribes. A connection that is cut
//! is replaced: the cut is noticed at once or, if the server is silent, by a request every ten seconds. Notifications
//! may have been lost then, and before a new subscription, so both are hints too. The same connections get the
//! notifications of instances that start or stop, which a cluster passes on to every server.
//!
//! While very many units of a server are due, its connection unsubscribes: for each instance, the notifications of
//! all units would cost the server as much as the records of a tenth of the units.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};

use super::RedisEngine;
use super::config::patience;
use super::keys::Keys;
use super::topology::{RedisServer, classify, may_pass};
use crate::store::{EngineError, Hint, Result};

/// The time between two attempts to listen to one of several servers.
const RETRY: Duration = Duration::from_millis(500);
/// The time between two requests that check a silent connection.
const ASKED_EVERY: Duration = Duration::from_secs(10);
/// The wait before a server that refused the subscription is tried again.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// Sends hints until the receiver is dropped. If the channel is full, hints are dropped: the deadline index finds
/// their units.
pub(super) async fn listen(engine: &RedisEngine, hints: mpsc::Sender<Hint>) -> Result<()> {
    let mut changes = engine.topology.changes();
    loop {
        changes.mark_unchanged();
        let servers = engine.topology.servers().await?;
        // A new connection begins with `Hint::Doubt`, so no hint is lost when the earlier connections end here.
        let mut listening: FuturesUnordered<_> =
            servers.iter().map(|server| keep_listening(engine, server, &hints)).collect();
        tokio::select! {
            ended = listening.next() => return ended.unwrap_or(Ok(())),
            changed = changes.changed() => changed.unwrap_or_default(),
        }
    }
}

/// Listens to one server. A server that may be replaced is retried without end, while the other servers go on; a
/// failure that ends with a failover is no warning.
async fn keep_listening(
    engine: &RedisEngine,
    server: &RedisServer,
    hints: &mpsc::Sender<Hint>,
) -> Result<()> {
    let mut was_refused = false;
    loop {
        match listen_to(engine, server, hints).await {
            Err(error) if !engine.topology.is_fixed() => {
                let is_refused = !matches!(error, EngineError::Unavailable(_) | EngineError::Passing(_));
                if !is_refused {
                    tracing::debug!("cannot subscribe to expiry notifications: {error}");
                } else if !std::mem::replace(&mut was_refused, true) {
                    tracing::warn!(
                        "expiry notifications do not arrive; the sweep finds silences without them: {error}"
                    );
                }
                tokio::time::sleep(if is_refused { REFUSED_RETRY } else { RETRY }).await;
            }
            Ok(()) if !engine.topology.is_fixed() && !hints.is_closed() => tokio::time::sleep(RETRY).await,
            ended => return ended,
        }
    }
}

/// Sends the hints of one server until the receiver is dropped, or the connection is cut.
async fn listen_to(engine: &RedisEngine, server: &RedisServer, hints: &mpsc::Sender<Hint>) -> Result<()> {
    let client = server.client().clone();
    let database = client.get_connection_info().redis_settings().db();
    let cut = Arc::new(Notify::new());
    let config = patience().set_push_sender(forward(engine, hints.clone(), cut.clone()));
    let problem = |error| classify(server.address(), &error);
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(problem)?;
    match connection.subscribe(engine.keys.roster()).await {
        Ok(()) => engine.roster_is_refused.store(false, Ordering::Relaxed),
        // The next connection subscribes.
        Err(error) if may_pass(&error) => return Err(problem(error)),
        // Without this subscription, each renewal of the lease notices other instances.
        Err(_) if engine.roster_is_refused.swap(true, Ordering::Relaxed) => {}
        Err(error) => tracing::warn!("instances that start or stop are noticed late: {}", problem(error)),
    }
    let expired = format!("__keyevent@{database}__:expired");
    let (mut storms, mut is_subscribed) = (server.admission().storms(), false);
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
            () = cut.notified() => return Ok(()),
            changed = storms.changed() => changed.unwrap_or_default(),
            () = tokio::time::sleep(ASKED_EVERY) => {
                connection.send_packed_command(&redis::cmd("TIME")).await.map_err(problem)?;
            }
        }
    }
}

/// Forwards the messages of a server: hints, the instances that start or stop, and the end of the connection.
fn forward(
    engine: &RedisEngine,
    hints: mpsc::Sender<Hint>,
    cut: Arc<Notify>,
) -> impl Fn(PushInfo) -> std::result::Result<(), ()> + Send + Sync + 'static {
    let (keys, telemetry) = (engine.keys.clone(), engine.telemetry.clone());
    let (roster, roster_changed) = (keys.roster(), engine.roster_changed.clone());
    move |push| {
        if push.kind == PushKind::Disconnection {
            cut.notify_one();
        }
        if channel(&push) == Some(roster.as_bytes()) {
            roster_changed.notify_one();
        } else if let Some(hint) = hint(&keys, &push)
            && hints.try_send(hint).is_err()
        {
            telemetry.expiry_notification_dropped();
        }
        Ok(())
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
