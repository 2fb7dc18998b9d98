//! The plain way: a key with a time to live for each unit, expiry notifications, and `HDEL` as the lock of each
//! listener. The service that Rollcall replaces worked so; it is the baseline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, pipe};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use rollcall::clock::{Clock, Timestamp};
use rollcall::simulate::servers::{Server, free_port};

use super::fleet::TIMEOUT;
use super::{say, thousands};

const WATCHED: &str = "plain:units";

/// A Redis with keys that expire, and a listener.
pub struct Plain {
    listening: JoinHandle<()>,
    won: Arc<AtomicU64>,
    late_ms: Arc<Mutex<Vec<f64>>>,
    _redis: Server,
    _dir: tempfile::TempDir,
}

impl Plain {
    /// Registers units whose deadlines follow from their number and begins to listen.
    pub async fn start(
        units: u32,
        clock: &Clock,
        deadline: impl Fn(u32) -> Option<Timestamp>,
    ) -> anyhow::Result<Plain> {
        let dir = tempfile::TempDir::new()?;
        let redis = Server::redis(dir.path(), free_port()?, &[])?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", redis.port()))?;
        let connection = client.get_multiplexed_async_connection().await?;
        say(format!("registering {} units for the plain way", thousands(units)));
        let numbers: Vec<u32> = (0..units).collect();
        stream::iter(numbers.chunks(1000).map(|chunk| {
            let mut pipe = pipe();
            for unit in chunk {
                let ttl = deadline(*unit).map_or(TIMEOUT, |deadline| deadline.since(clock.now()));
                let ms = ttl.as_millis().max(1) as u64;
                let at = deadline(*unit).unwrap_or(Timestamp::ZERO).as_millis();
                pipe.pset_ex(format!("plain:{unit:07}"), at, ms).ignore();
                pipe.hset(WATCHED, unit, at).ignore();
            }
            let mut connection = connection.clone();
            async move { pipe.exec_async(&mut connection).await }
        }))
        .buffer_unordered(4)
        .try_collect::<()>()
        .await?;
        let mut events = client.get_async_pubsub().await?;
        events.subscribe("__keyevent@0__:expired").await?;
        let (won, late_ms) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (wins, late, clock) = (won.clone(), late_ms.clone(), clock.clone());
        let listening = tokio::spawn(async move {
            let mut events = events.into_on_message();
            while let Some(event) = events.next().await {
                let heard = clock.now();
                let key: String = event.get_payload().unwrap_or_default();
                if let Some(at) = take(connection.clone(), &key).await {
                    late.lock().await.push((heard.as_millis() - at) as f64);
                    wins.fetch_add(1, Relaxed);
                }
            }
        });
        Ok(Plain { listening, won, late_ms, _redis: redis, _dir: dir })
    }

    /// For how many silences the listener has won the lock.
    pub fn won(&self) -> u64 {
        self.won.load(Relaxed)
    }

    /// How late these silences were, in ms.
    pub async fn late_ms(&self) -> Vec<f64> {
        self.late_ms.lock().await.clone()
    }

    /// Waits until the listener has won `count` locks, at most for `patience`.
    pub async fn wait_for(&self, count: u64, patience: Duration) {
        let won = super::until("all have expired", patience, async || Ok(self.won() >= count));
        // A timeout is a result here, not a failure.
        let _ = won.await;
    }
}

/// The deadline of the unit of a key, for the listener that removes it.
async fn take(mut connection: MultiplexedConnection, key: &str) -> Option<i64> {
    let unit: u32 = key.strip_prefix("plain:")?.parse().ok()?;
    let at: i64 = connection.hget(WATCHED, unit).await.ok()?;
    let removed: i64 = connection.hdel(WATCHED, unit).await.ok()?;
    (removed == 1).then_some(at)
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
