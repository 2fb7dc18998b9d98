//! The lower bound of a storm: the reads and writes of each silence, as bare prepared commands
//! of a client that decides nothing and checks nothing, without scripts or
//! notifications.

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, pipe};

use rollcall::clock::Timestamp;
use rollcall::presence::{Cause, Facts, Lifecycle, Silence, Unit};
use rollcall::store::redis::{HashTags, facts_key};
use rollcall::store::{encoding, partition_of};

use super::fleet::{Fleet, TIMEOUT, unit};
use super::records::PARTITIONS;

/// Units in one step. Larger steps gain nothing and delay other clients.
const STEP: usize = 100;
/// Steps in flight, so that the server never waits for its client.
const AT_ONCE: usize = 3;

/// A step reads some units of one partition, and writes that they are offline.
struct Step {
    read: Pipeline,
    write: Pipeline,
}

/// The storm of a fleet that is due at one instant.
pub struct Storm(Vec<Step>);

impl Storm {
    /// Makes all commands.
    pub fn prepare(fleet: &Fleet, instant: Timestamp) -> Storm {
        let mut units: Vec<(u16, String, Unit)> = fleet.0.clone().map(|number| home(unit(number))).collect();
        units.sort_unstable();
        let partitions = units.chunk_by(|a, b| a.0 == b.0);
        Storm(partitions.flat_map(|units| units.chunks(STEP)).map(|units| step(units, instant)).collect())
    }

    /// Sends all commands; the figure is its duration.
    pub async fn run(self, client: &MultiplexedConnection) -> anyhow::Result<()> {
        let steps = self.0.into_iter().map(|step| async move {
            step.read.exec_async(&mut client.clone()).await?;
            step.write.exec_async(&mut client.clone()).await
        });
        Ok(stream::iter(steps).buffer_unordered(AT_ONCE).try_collect::<()>().await?)
    }
}

/// The partition of a unit, the key of its facts, and the unit.
fn home(unit: Unit) -> (u16, String, Unit) {
    (partition_of(&unit, PARTITIONS), facts_key("rollcall", PARTITIONS, HashTags::Plain, &unit), unit)
}

fn step(units: &[(u16, String, Unit)], instant: Timestamp) -> Step {
    let in_partition = |name: &str| format!("rollcall:{{p{}}}:{name}", units[0].0);
    let pages = || units.chunk_by(|a, b| a.1 == b.1);
    let names: Vec<String> = units.iter().map(|(_, _, unit)| unit.to_string()).collect();
    let facts = silent(instant);
    let mut read = pipe();
    read.mget(names.iter().map(|name| in_partition("alive:") + name).collect::<Vec<_>>());
    let mut write = pipe();
    write.atomic().zrem(in_partition("deadlines"), &names);
    for page in pages() {
        let names = page.iter().map(|(_, _, unit)| unit.to_string());
        read.cmd("HMGET").arg(&page[0].1).arg(names.clone().collect::<Vec<_>>());
        let values: Vec<(String, &str)> = names.map(|name| (name, facts.as_str())).collect();
        write.hset_multiple(&page[0].1, &values);
    }
    let offline: Vec<(i64, &String)> = names.iter().map(|name| (instant.as_millis(), name)).collect();
    write.zadd_multiple(in_partition("offline"), &offline);
    let entry: Vec<(&String, &str)> = names.iter().map(|name| (name, facts.as_str())).collect();
    write.xadd(in_partition("outbox"), "*", &entry);
    Step { read, write }
}

/// The values that are written for a unit whose deadline is `instant`.
fn silent(instant: Timestamp) -> String {
    let lifecycle = Lifecycle::Offline(Silence {
        deadline: instant,
        detected_at: instant,
        cause: Cause::Silence,
        allowed: TIMEOUT,
    });
    encoding::encode(&Facts::new(lifecycle, instant - TIMEOUT))
}
