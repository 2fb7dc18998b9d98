//! Exports a fleet from Redis.
//!
//! Only the names of keys say which receivers have a backlog, so an export scans all keys of the server once, in
//! small steps.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use redis::pipe;

use super::group_of::groups_in;
use super::{RedisEngine, outbox};
use crate::clock::Timestamp;
use crate::presence::{Labels, Stage, since_of};
use crate::store::json::from_json;
use crate::store::{EngineError, Group, Queries, ReceiverName, Result};
use crate::store::{migration::Exporter, migration::MigrationItem};

/// How many groups one command reads.
const GROUPS: usize = 500;

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
                // Another program wrote a text that is not a value.
                let Some((at, value)) = text.split_once(' ') else { continue };
                let (Ok(unit), Ok(at)) = (name.parse(), at.parse()) else { continue };
                let (metric, value) = (metric.clone(), value.to_owned());
                items.push(MigrationItem::Value { unit, metric, at: Timestamp::from_millis(at), value });
            }
        }
        Ok(items)
    }

    /// A replica that became a primary may lack heartbeats.
    async fn complete_until(&self) -> Result<Option<Timestamp>> {
        Ok(self.read_watermarks().await?.oldest)
    }

    async fn export_rest(&self, partition: u16, receivers: &[ReceiverName]) -> Result<Vec<MigrationItem>> {
        let mut items = Vec::new();
        self.export_outbox(partition, &mut items).await?;
        items.extend(MigrationItem::cells(self, partition, receivers).await?);
        if partition < self.keys.partitions() {
            self.export_records(partition, &mut items).await?;
            self.export_groups(partition, &mut items).await?;
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

    /// Each part of one answer becomes items, in the order that an importer needs.
    async fn export_groups(&self, partition: u16, items: &mut Vec<MigrationItem>) -> Result<()> {
        let key = |name: &str| self.keys.in_partition(partition, name);
        let mut pipe = pipe();
        pipe.zrange_withscores(key("groups"), 0, -1).zrange_withscores(key("over"), 0, -1);
        pipe.hgetall(key("sealed")).hgetall(key("labels")).hgetall(key("members"));
        pipe.hgetall(key("group_of"));
        type Scores = Vec<(String, f64)>;
        type Texts = Vec<(String, String)>;
        type Answer = (Scores, Scores, HashMap<String, i64>, HashMap<String, String>, Texts, Texts);
        let (due, over, sealed, labels, members, group_of): Answer =
            self.topology.send("export_groups", &pipe).await?;
        let mut waiting: HashMap<String, Timestamp> = HashMap::new();
        for (group, _) in &due {
            let mut pipe = redis::pipe();
            pipe.zrange_withscores(self.keys.of(partition, "waiting", group), 0, -1);
            let (waits,): (Scores,) = self.topology.send("export_waiting", &pipe).await?;
            let waits = waits.into_iter().map(|(name, at)| (format!("{group}\n{name}"), since_of(at as i64)));
            waiting.extend(waits);
        }
        let lasting = self.export_lasting(partition, &members).await?;
        let due: HashMap<String, f64> = due.into_iter().collect();
        let over: HashMap<String, f64> = over.into_iter().collect();
        let of_members = members.iter().filter_map(|(name, _)| Some(name.split_once('\n')?.0));
        let named: BTreeSet<&str> = of_members
            .chain(sealed.keys().map(String::as_str))
            .chain(due.keys().map(String::as_str))
            .collect();
        for group in named {
            let (due, sealed) = (due.get(group).copied().map(moment), sealed.get(group));
            let sealed = sealed.copied().map(Timestamp::from_millis);
            let group = match labels.get(group) {
                Some(json) => from_json("a group", json)?,
                // No member waits in the group. The next member that joins brings the labels.
                None => Group { key: group.to_owned(), labels: Labels::new() },
            };
            items.push(MigrationItem::Group { group, due, sealed });
        }
        for (name, text) in &members {
            let Some((group, member)) = name.split_once('\n') else { continue };
            let (head, body) =
                text.split_once(' ').map_or((text.as_str(), None), |(head, body)| (head, Some(body)));
            let (head, notified) = head.split_at(head.find(':').unwrap_or(head.len()));
            let mut letters = head.chars();
            let Some(letter) = letters.next() else { continue };
            items.push(MigrationItem::GroupMember {
                group: group.to_owned(),
                name: member.to_owned(),
                letter,
                notified: notified.to_owned(),
                detected: Timestamp::from_millis(letters.as_str().parse().unwrap_or(0)),
                waits: waiting.get(name).copied().zip(body.map(str::to_owned)),
                lasting: lasting.get(name).map(|at| (*at, body.map(str::to_owned))),
                over: over.get(name).copied().map(moment),
            });
        }
        for (member, json) in group_of {
            items.push(MigrationItem::GroupOf { member, groups: groups_in(&json)? });
        }
        Ok(())
    }

    /// The members of groups that units share whose silences last, by when receivers were notified of them.
    async fn export_lasting(
        &self,
        partition: u16,
        members: &[(String, String)],
    ) -> Result<HashMap<String, Timestamp>> {
        let is_notified = |text: &str| text.starts_with(Stage::Notified.letter());
        let notified = members.iter().filter(|(_, text)| is_notified(text));
        let groups: BTreeSet<&str> =
            notified.filter_map(|(name, _)| Some(name.split_once('\n')?.0)).collect();
        let groups: Vec<&str> = groups.into_iter().collect();
        let mut lasting = HashMap::new();
        for step in groups.chunks(GROUPS) {
            let mut pipe = pipe();
            for group in step {
                pipe.zrange_withscores(self.keys.of(partition, "lasting", group), 0, -1);
            }
            let found: Vec<Vec<(String, f64)>> = self.topology.send("export_lasting", &pipe).await?;
            for (group, found) in step.iter().zip(found) {
                lasting.extend(found.into_iter().map(|(name, at)| (format!("{group}\n{name}"), moment(at))));
            }
        }
        Ok(lasting)
    }
}

/// The moment of a score.
fn moment(ms: f64) -> Timestamp {
    Timestamp::from_millis(ms as i64)
}
