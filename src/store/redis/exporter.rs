//! Exports a fleet from Redis.
//!
//! Only the names of keys say which receivers have a backlog, so an export scans all keys of the server once, in
//! small steps.

use async_trait::async_trait;
use redis::pipe;

use super::{RedisEngine, outbox};
use crate::clock::Timestamp;
use crate::store::json::from_json;
use crate::store::{EngineError, Queries, ReceiverName, Result};
use crate::store::{migration::Exporter, migration::MigrationItem};

#[async_trait]
impl Exporter for RedisEngine {
    async fn check_not_served(&self) -> Result<()> {
        let mut pipe = pipe();
        pipe.cmd("TIME")
            .zrange_withscores(self.keys.roster(), 0, -1)
            .hmget(self.keys.clock(), &["server", "fleet"]);
        type Answer = ((i64, i64), Vec<(String, f64)>, (Option<i64>, Option<i64>));
        let ((seconds, micros), roster, (then, fleet)): Answer = self.topology.send("roster", &pipe).await?;
        // Leases end by the time of the fleet, which is ahead of a server whose clock was set back.
        let server = seconds * 1000 + micros / 1000;
        let passed = (server - then.unwrap_or(server)).max(0);
        let now = server.max(fleet.unwrap_or(0) + passed);
        let instances: Vec<String> =
            roster.into_iter().filter(|(_, end)| *end as i64 > now).map(|(name, _)| name).collect();
        if instances.is_empty() {
            return Ok(());
        }
        Err(EngineError::Refused(format!(
            "the fleet at {} is served by {}; stop every instance (one that was killed is gone after some seconds)",
            self.topology.address(),
            instances.join(", ")
        )))
    }

    async fn export_units(&self, partition: u16, page: u32) -> Result<Vec<MigrationItem>> {
        let units = self.walk(partition, page).await?;
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<String> = units.iter().map(|seen| seen.unit.to_string()).collect();
        let mut pipe = pipe();
        pipe.cmd("ZMSCORE").arg(self.keys.in_partition(partition, "deadlines")).arg(&names);
        pipe.smembers(self.keys.in_partition(partition, "data"));
        type Answer = (Vec<Option<f64>>, Vec<String>);
        let (next_checks, metrics): Answer = self.topology.send("export_units", &pipe).await?;
        let mut items = Vec::new();
        for (seen, next_check) in units.into_iter().zip(next_checks) {
            let facts = seen.stored.as_deref().unwrap_or_default().to_owned();
            let open = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
            items.push(MigrationItem::Unit {
                unit: seen.unit,
                facts,
                alive: seen.alive,
                next_check: next_check.map(moment),
            });
            items.extend(open.map(MigrationItem::Record));
        }
        for metric in metrics {
            let mut pipe = redis::pipe();
            pipe.hgetall(self.keys.data_page(partition, &metric, page));
            let (values,): (Vec<(String, String)>,) = self.topology.send("export_values", &pipe).await?;
            for (name, text) in values {
                // Another program wrote this text: it is not a value.
                let Some((at, value)) = text.split_once(' ') else { continue };
                let (Ok(unit), Ok(at)) = (name.parse(), at.parse()) else { continue };
                let (metric, value) = (metric.clone(), value.to_owned());
                items.push(MigrationItem::Value { unit, metric, at: Timestamp::from_millis(at), value });
            }
        }
        Ok(items)
    }

    /// A promoted replica may lack heartbeats.
    async fn complete_until(&self) -> Result<Option<Timestamp>> {
        Ok(self.read_watermarks().await?.oldest)
    }

    async fn export_rest(&self, partition: u16, receivers: &[ReceiverName]) -> Result<Vec<MigrationItem>> {
        let mut items = Vec::new();
        self.export_outbox(partition, &mut items).await?;
        items.extend(MigrationItem::cells(self, partition, receivers).await?);
        if partition < self.keys.partitions() {
            self.export_records(partition, &mut items).await?;
        }
        Ok(items)
    }
}

impl RedisEngine {
    async fn export_outbox(&self, number: u16, items: &mut Vec<MigrationItem>) -> Result<()> {
        let mut pipe = pipe();
        pipe.xrange_all(self.keys.outbox(number));
        let (entries,): (Vec<outbox::StreamEntry>,) = self.topology.send("export_outbox", &pipe).await?;
        for (_, fields) in &entries {
            items.extend(outbox::events_in(fields)?.into_iter().map(MigrationItem::OutboxEvent));
        }
        Ok(())
    }

    async fn export_records(&self, partition: u16, items: &mut Vec<MigrationItem>) -> Result<()> {
        let mut pipe = pipe();
        pipe.cmd("HGETALL").arg(self.keys.in_partition(partition, "archive"));
        let (records,): (Vec<(String, String)>,) = self.topology.send("export_records", &pipe).await?;
        for (_, json) in records {
            items.push(MigrationItem::Record(from_json("a record", &json)?));
        }
        Ok(())
    }
}

/// The moment of a score.
fn moment(ms: f64) -> Timestamp {
    Timestamp::from_millis(ms as i64)
}
