//! A fleet that is ready in seconds: written by the engine's own code, as if it had been heard.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures_util::{StreamExt, TryStreamExt, stream};

use rollcall::clock::{Stopwatch, Timestamp};
use rollcall::presence::{
    Change, Facts, Heartbeat, IndexChange, KeyChange, Labels, Lifecycle, Snapshot, Unit,
};
use rollcall::store::UnitStore;

use super::{say, thousands};

/// The timeout of every unit of a benchmark.
pub const TIMEOUT: Duration = Duration::from_secs(48 * 3600);

/// The kind of every unit of a benchmark, for a configuration.
pub const KIND: &str =
    "[[kind]]\nname = \"detector\"\ntopics = [\"units/{unit}/heartbeat\"]\ntimeout = \"48h\"";

/// Units in one batch, and batches in flight.
const CHUNK: usize = 4000;
const AT_ONCE: usize = 4;

/// Units by number.
#[derive(Clone, Debug)]
pub struct Fleet(pub Range<u32>);

/// The unit with that number.
pub fn unit(number: u32) -> Unit {
    format!("detector:unit-{number:07}").parse().expect("it is one")
}

impl Fleet {
    /// Registers units with last seen times that may depend on the unit.
    pub async fn fill(
        &self,
        engine: &Arc<impl UnitStore + 'static>,
        now: Timestamp,
        last_seen: impl Fn(u32) -> Timestamp,
    ) -> anyhow::Result<()> {
        self.fill_with(engine, now, last_seen, |_| Labels::new()).await
    }

    /// Registers units like [`Fleet::fill`], each at one of `sites` sites.
    pub async fn fill_by_site(
        &self,
        engine: &Arc<impl UnitStore + 'static>,
        now: Timestamp,
        last_seen: impl Fn(u32) -> Timestamp,
        sites: u32,
    ) -> anyhow::Result<()> {
        let labels = |number| Labels::from([("site".to_owned(), format!("site-{}", number % sites))]);
        self.fill_with(engine, now, last_seen, labels).await
    }

    async fn fill_with(
        &self,
        engine: &Arc<impl UnitStore + 'static>,
        now: Timestamp,
        last_seen: impl Fn(u32) -> Timestamp,
        labels: impl Fn(u32) -> Labels,
    ) -> anyhow::Result<()> {
        say(format!("registering {} units", thousands(self.0.len() as u32)));
        let numbers: Vec<u32> = self.0.clone().collect();
        let began = Stopwatch::start();
        let chunks = numbers.chunks(CHUNK).map(|chunk| {
            // Keys last until the deadline, however long registering takes.
            let passed = began.elapsed();
            let change = |n: &u32| present(unit(*n), last_seen(*n), now + passed, labels(*n));
            let changes: Vec<_> = chunk.iter().map(change).collect();
            let engine = engine.clone();
            async move {
                tokio::spawn(async move { engine.apply(&changes).await }).await?.map_err(anyhow::Error::from)
            }
        });
        let applied: Vec<Vec<bool>> = stream::iter(chunks).buffer_unordered(AT_ONCE).try_collect().await?;
        ensure!(applied.iter().flatten().all(|applied| *applied), "some units were registered before");
        Ok(())
    }

    /// A heartbeat of each unit.
    pub fn beats(&self, at: Timestamp) -> Vec<Heartbeat> {
        self.0
            .clone()
            .map(|n| Heartbeat { declared: Default::default(), ..Heartbeat::of(unit(n), at) })
            .collect()
    }
}

/// The change that adds a unit that was seen at `last_seen`.
fn present(unit: Unit, last_seen: Timestamp, now: Timestamp, labels: Labels) -> (Snapshot, Change) {
    let deadline = last_seen + TIMEOUT;
    let facts = Facts { checked_at: Some(now), labels, ..Facts::new(Lifecycle::Present, last_seen) };
    let change = Change {
        key: KeyChange::Set { last_seen, ttl: deadline.since(now).max(Duration::from_millis(1)) },
        index: IndexChange::CheckAt(deadline),
        facts: Some(facts),
        record: None,
    };
    (Snapshot { unit, alive: None, alive_at: None, facts: None, stored: None }, change)
}
