//! Imports a fleet into Redis.
//!
//! Until the migration is complete, `meta` has the field `moving` instead of the fleet's id, and no instance serves
//! the fleet. A migration that starts again removes the keys of an interrupted one.
//!
//! # Why expiry keys have a long TTL
//! The timeout of a unit depends on the configuration, which a migration does not know. A TTL that is too long does
//! no harm: the value of the key decides, and the next heartbeat sets the TTL.

use std::time::Duration;

use async_trait::async_trait;
use redis::{Pipeline, pipe};

use super::key_scan::KeyScan;
use super::ledger::TAKEN;
use super::target_check::TargetCheck;
use super::{HashTags, Keys, RedisConfig, Topology, eviction, meta};
use crate::clock::Timestamp;
use crate::presence::{FilterBlindness, Hearing, OfflineRecord};
use crate::store::json::to_json;
use crate::store::migration::{Importer, LAYOUT, MigrationItem};
use crate::store::{EngineError, OutboxEvent, Result};
use crate::telemetry::Telemetry;

/// How many items are written in one step.
const STEP: usize = 200;
/// How many keys one command scans.
const NAMES: usize = 1000;
/// The TTL of expiry keys: longer than the longest timeout and grace together.
const TTL: Duration = Duration::from_secs(1000 * 86_400);

/// A server to which a fleet is moved.
pub struct RedisImporter {
    topology: Topology,
    keys: Keys,
    arrival: TargetCheck,
}

impl RedisImporter {
    /// Marks the prefix as the target of a migration, and removes the keys of an interrupted one.
    ///
    /// # Errors
    /// `Refused` if there is a fleet already, `Unavailable` while the server cannot be reached.
    pub async fn prepare(
        config: &RedisConfig,
        telemetry: std::sync::Arc<Telemetry>,
    ) -> Result<RedisImporter> {
        let topology = Topology::new(config, telemetry)?;
        eviction::refuse(&topology, &config.allow_eviction).await?;
        let (keys, arrival) = (meta::new_keys(config), TargetCheck::begin(&topology, config).await?);
        let importer = RedisImporter { topology, keys, arrival };
        let mut read = pipe();
        read.hmget(importer.keys.meta(), &["fleet", "moving"]);
        let ((fleet, moving),): ((Option<String>, Option<String>),) =
            importer.topology.send("meta", &read).await?;
        if fleet.is_some() {
            return Err(EngineError::Refused(format!(
                "there is a fleet at {} already, under the prefix {}; choose another prefix or database",
                importer.topology.address(),
                config.prefix
            )));
        }
        if moving.is_some() {
            importer.clear().await?;
        }
        let mut begin = pipe();
        begin.hset(importer.keys.meta(), "moving", 1).ignore();
        begin.hset(importer.keys.meta(), "partitions", importer.keys.partitions()).ignore();
        // An interrupted migration may have begun with another form.
        match importer.keys.tags() {
            HashTags::Plain => begin.hdel(importer.keys.meta(), "tags").ignore(),
            tags => begin.hset(importer.keys.meta(), "tags", tags.to_string()).ignore(),
        };
        importer.topology.send::<()>("meta", &begin).await?;
        Ok(importer)
    }

    /// Removes all keys but `meta`.
    async fn clear(&self) -> Result<()> {
        let mut scan = KeyScan::of("clear", self.keys.tagged_pattern(), NAMES);
        while let Some(keys) = scan.next(&self.topology).await? {
            let mut unlink = pipe();
            // One command for each: in a cluster the keys of one command are in one slot.
            for key in keys {
                unlink.cmd("UNLINK").arg(key).ignore();
            }
            self.topology.send::<()>("clear", &unlink).await?;
        }
        Ok(())
    }

    /// Writes the watermark of each partition, see `watermarks.rs`.
    async fn put_watermarks(&self, heard: Timestamp) -> Result<()> {
        let mut pipe = pipe();
        if self.topology.has_parts() {
            for partition in 0..self.keys.partitions() {
                pipe.set(self.keys.in_partition(partition, "heard"), heard.as_millis()).ignore();
            }
        }
        self.topology.send("complete", &pipe).await
    }

    /// Adds the commands of an item.
    fn put(&self, item: &MigrationItem, pipe: &mut Pipeline) -> Result<()> {
        match item {
            MigrationItem::Unit { unit, facts, alive, next_check } => {
                let (partition, page) = self.keys.page_id(unit);
                pipe.hset(self.keys.facts_page(partition, page), unit.to_string(), facts).ignore();
                if let Some(alive) = alive {
                    let ttl = TTL.as_millis() as u64;
                    pipe.pset_ex(self.keys.alive(unit), alive.as_millis(), ttl).ignore();
                }
                if let Some(next_check) = next_check {
                    let deadlines = self.keys.in_partition(partition, "deadlines");
                    pipe.zadd(deadlines, unit.to_string(), next_check.as_millis()).ignore();
                }
            }
            MigrationItem::Value { unit, metric, at, value } => {
                let (partition, page) = self.keys.page_id(unit);
                pipe.sadd(self.keys.in_partition(partition, "data"), metric).ignore();
                let text = format!("{} {value}", at.as_millis());
                pipe.hset(self.keys.data_page(partition, metric, page), unit.to_string(), text).ignore();
            }
            MigrationItem::Record(record) => self.put_record(record, pipe)?,
            MigrationItem::OutboxEvent(event) => {
                let (number, field, text) = match event {
                    OutboxEvent::Record(record) => {
                        (self.keys.partition(&record.id.unit), "record", to_json(record)?)
                    }
                    OutboxEvent::Blind(interval) => {
                        let text = format!("{} {}", interval.from.as_millis(), interval.to.as_millis());
                        (self.keys.partitions(), "blind", text)
                    }
                    OutboxEvent::DataLost(loss) => (self.keys.partitions(), "lost", to_json(loss)?),
                };
                pipe.cmd("XADD").arg(self.keys.outbox(number)).arg("*").arg(field).arg(text).ignore();
            }
            MigrationItem::Cell { table, partition, name, value } => {
                pipe.hset(self.keys.cell(*partition, *table, name), name, value.as_slice()).ignore();
            }
            MigrationItem::Entry { index, partition, name, at } => {
                pipe.zadd(self.keys.index(*partition, *index), name, *at).ignore();
            }
        }
        Ok(())
    }

    fn put_record(&self, record: &OfflineRecord, pipe: &mut Pipeline) -> Result<()> {
        let partition = self.keys.partition(&record.id.unit);
        let key = |name: &str| self.keys.in_partition(partition, name);
        let (id, detected) = (record.id.to_string(), record.detected_at.as_millis());
        if let Some(back) = record.back_at {
            pipe.hset(key("archive"), &id, to_json(record)?).ignore();
            pipe.zadd(key("closed"), &id, back.as_millis()).ignore();
            pipe.zadd(key("past"), id, detected).ignore();
        } else {
            // The facts of the unit hold the rest of the record.
            pipe.zadd(key("offline"), record.id.unit.to_string(), detected).ignore();
        }
        Ok(())
    }
}

#[async_trait]
impl Importer for RedisImporter {
    async fn import(&self, items: Vec<MigrationItem>) -> Result<()> {
        for step in items.chunks(STEP) {
            let mut pipe = pipe();
            step.iter().try_for_each(|item| self.put(item, &mut pipe))?;
            self.topology.send::<()>("import", &pipe).await?;
        }
        Ok(())
    }

    async fn complete(&self, hearing: Hearing) -> Result<()> {
        let mut pipe = pipe();
        pipe.atomic();
        for interval in hearing.ledger.intervals() {
            let (from, to) = (interval.from.as_millis(), interval.to.as_millis());
            pipe.zadd(self.keys.blind(), format!("{from} {to}"), to).ignore();
        }
        // Adjacent intervals are stored as one. These entries preserve the ends of intervals in which another client
        // may have got heartbeats.
        for end in hearing.ledger.taken() {
            let (to, score) = (end.as_millis(), end.as_millis() as f64 + TAKEN);
            pipe.zadd(self.keys.blind(), format!("{to} {to}"), score).ignore();
        }
        for interval in hearing.ledger.intervals() {
            let to = interval.to.as_millis();
            pipe.hset(self.keys.heard(), "ledger", to).ignore();
        }
        for ((kind, filter), at) in &hearing.filters.proved {
            pipe.hset(self.keys.filters(), format!("{kind} {filter}"), at.as_millis()).ignore();
        }
        for (kind, FilterBlindness { filter, interval }) in
            hearing.filters.blind.iter().flat_map(|(kind, all)| all.iter().map(move |one| (kind, one)))
        {
            let (from, to) = (interval.from.as_millis(), interval.to.as_millis());
            pipe.zadd(self.keys.blind_of(kind), format!("{from} {to} {filter}"), to).ignore();
            pipe.hset(self.keys.heard(), "kinds", 1).ignore();
        }
        if let Some(heard) = hearing.heard.map(Timestamp::as_millis) {
            pipe.hset(self.keys.heard(), "at", heard).ignore();
        }
        if !pipe.is_empty() {
            self.topology.send::<redis::Value>("complete", &pipe).await?;
        }
        // Otherwise the first canary writes them, and an instance that ends meanwhile leaves only some of them.
        if let Some(heard) = hearing.heard {
            self.put_watermarks(heard).await?;
        }
        self.arrival.check(&self.topology, &self.keys).await?;
        // In a transaction of its own, because it is in another slot of a cluster; last, because instances may serve
        // the fleet after it.
        let mut complete = redis::pipe();
        complete.atomic();
        let fleet = meta::new_id();
        let fields = [("fleet", fleet), ("layout", LAYOUT.to_string())];
        complete.hset_multiple(self.keys.meta(), &fields).hdel(self.keys.meta(), "moving").ignore();
        self.topology.send::<redis::Value>("complete", &complete).await.map(|_| ())
    }
}
