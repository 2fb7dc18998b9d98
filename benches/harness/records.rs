//! Watches offline records in Redis as they are written.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadOptions;
use redis::{AsyncCommands, pipe};
use tokio::task::JoinHandle;

use rollcall::clock::{Clock, Timestamp, monotonic};
use rollcall::store::encoding;

use super::World;

/// The number of partitions of a new fleet.
pub const PARTITIONS: u16 = 16;

/// Counts all records.
pub async fn count(client: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let mut pipe = pipe();
    for partition in 0..PARTITIONS {
        pipe.zcard(format!("rollcall:{{p{partition}}}:offline"));
        pipe.zcard(format!("rollcall:{{p{partition}}}:past"));
    }
    let counts: Vec<u64> = pipe.query_async(client).await?;
    Ok(counts.into_iter().sum())
}

/// Waits from `from` on until there are `wanted` records more than `before`, or `patience` has passed; returns how
/// many more there are, and after how long the last was seen.
pub async fn wait_for(
    client: &mut MultiplexedConnection,
    clock: &Clock,
    from: Timestamp,
    before: u64,
    wanted: u64,
    patience: Duration,
) -> anyhow::Result<(u64, Duration)> {
    loop {
        let more = count(client).await? - before;
        let passed = clock.now().since(from);
        if more >= wanted || passed > patience {
            return Ok((more, passed));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Watches the outboxes: an entry's id is the moment of its writing, by the clock of Redis. Entries
/// leave as soon as they have joined a group, so now and then one is gone before it is seen here:
/// written records are counted separately.
pub struct Watch(JoinHandle<anyhow::Result<Vec<f64>>>);

impl Watch {
    /// Watches for the time `span`.
    pub async fn start(world: &World, span: Duration) -> anyhow::Result<Watch> {
        let outboxes = (0..PARTITIONS).map(|p| format!("rollcall:{{p{p}}}:outbox")).collect();
        Ok(Watch::on(vec![(world.client().await?, outboxes)], span))
    }

    /// Watches outboxes, each over its connection, for the time `span`.
    pub fn on(outboxes: Vec<(MultiplexedConnection, Vec<String>)>, span: Duration) -> Watch {
        let end = monotonic() + span;
        Watch(tokio::spawn(async move {
            let watched = outboxes.into_iter().map(|(client, keys)| watch(client, keys, end));
            Ok(try_join_all(watched).await?.into_iter().flatten().collect())
        }))
    }

    /// The time from deadline to writing, in ms, of each record that was seen.
    pub async fn finish(self) -> anyhow::Result<Vec<f64>> {
        self.0.await?
    }
}

/// The time from deadline to writing, in ms, of each entry that is seen in these outboxes until `end`.
async fn watch(
    mut client: MultiplexedConnection,
    outboxes: Vec<String>,
    end: Instant,
) -> anyhow::Result<Vec<f64>> {
    let mut last: HashMap<String, String> = outboxes.into_iter().map(|key| (key, "0".to_owned())).collect();
    let mut late_ms = Vec::new();
    let wait = StreamReadOptions::default().block(200).count(1000);
    while monotonic() < end {
        let (keys, ids): (Vec<&String>, Vec<&String>) = last.iter().unzip();
        let streams: Option<Streams> = client.xread_options(&keys, &ids, &wait).await?;
        for (key, entries) in streams.into_iter().flatten() {
            for (id, fields) in entries {
                late_ms.extend(fields.chunks(2).filter_map(|field| lateness(&id, field)));
                last.insert(key.clone(), id);
            }
        }
    }
    Ok(late_ms)
}

/// Entries of streams: the id of each, then fields and values in turn.
type Streams = HashMap<String, Vec<(String, Vec<String>)>>;

fn lateness(id: &str, field: &[String]) -> Option<f64> {
    let written: i64 = id.split_once('-')?.0.parse().ok()?;
    let [name, facts] = field else { return None };
    let record = encoding::decode(facts)?.open_record(&name.parse().ok()?)?;
    Some((written - record.deadline.as_millis()) as f64)
}
