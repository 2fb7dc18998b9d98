//! Facts and records, to look at. Nothing here scans the keyspace: records have their index, facts
//! lie on numbered pages.

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{FromRedisValue, pipe};

use super::RedisEngine;
use super::units::{parse_unit, snapshot};
use crate::clock::Timestamp;
use crate::engine::json::from_json;
use crate::engine::{Queries, Result};
use crate::presence::{OfflineRecord, RecordId, Snapshot, Unit};

/// The most notes of a partition that are taken at a time; the rest stays for the next.
const MOST_NOTED: u32 = 64;

/// The most records of a partition that are removed in one step.
const MOST_REMOVED: usize = 500;

#[async_trait]
impl Queries for RedisEngine {
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>> {
        let archive = self.keys.in_partition(self.keys.partition(&id.unit), "archive");
        let mut pipe = pipe();
        pipe.hget(archive, id.to_string());
        let (json,): (Option<String>,) = self.topology.send("record", &pipe).await?;
        json.map(|json| from_json("a record", &json)).transpose()
    }

    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>> {
        let indexes: &[&str] = if open { &["open"] } else { &["open", "past"] };
        let of_all = (0..self.keys.partitions()).flat_map(|p| indexes.iter().map(move |index| (p, *index)));
        let lists = of_all.map(|(partition, index)| self.newest(partition, index, before.as_ref(), limit));
        let lists = try_join_all(lists).await?;
        let mut newest: Vec<(i64, u16, String)> = lists.into_iter().flatten().collect();
        newest.sort_by(|a, b| (b.0, &b.2).cmp(&(a.0, &a.2)));
        newest.truncate(limit);
        if newest.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = pipe();
        for (_, partition, id) in &newest {
            pipe.hget(self.keys.in_partition(*partition, "archive"), id);
        }
        let records: Vec<Option<String>> = self.topology.send("archive", &pipe).await?;
        records.into_iter().flatten().map(|json| from_json("a record", &json)).collect()
    }

    fn pages(&self) -> u32 {
        self.keys.pages()
    }

    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>> {
        let mut facts = pipe();
        facts.hgetall(self.keys.facts_page(partition, page));
        let (facts,): (Vec<(String, String)>,) = self.topology.send("page", &facts).await?;
        if facts.is_empty() {
            return Ok(Vec::new());
        }
        let names = facts.iter().map(|(name, _)| name.as_str());
        let alive: Vec<Option<String>> = self.read_alive(partition, names).await?;
        let whole = facts.into_iter().zip(alive);
        whole.map(|((name, stored), alive)| snapshot(parse_unit(&name)?, alive, Some(stored))).collect()
    }

    async fn alive(&self, partition: u16, names: &[&str]) -> Result<Vec<Option<Timestamp>>> {
        let alive: Vec<Option<i64>> = self.read_alive(partition, names.iter().copied()).await?;
        Ok(alive.into_iter().map(|ms| ms.map(Timestamp::from_millis)).collect())
    }

    async fn note(&self, units: &[&Unit]) -> Result<()> {
        let mut pipe = pipe();
        for unit in units {
            let noted = self.keys.in_partition(self.keys.partition(unit), "noted");
            pipe.sadd(noted, self.keys.page(unit)).ignore();
        }
        if pipe.is_empty() { Ok(()) } else { self.topology.send("note", &pipe).await }
    }

    async fn noted(&self, partitions: &[u16]) -> Result<Vec<(u16, u32)>> {
        let mut pipe = pipe();
        for partition in partitions {
            pipe.cmd("SPOP").arg(self.keys.in_partition(*partition, "noted")).arg(MOST_NOTED);
        }
        let noted: Vec<Vec<u32>> = self.topology.send("noted", &pipe).await?;
        let pages = partitions.iter().zip(noted);
        Ok(pages.flat_map(|(partition, pages)| pages.into_iter().map(|page| (*partition, page))).collect())
    }

    async fn forget_records(&self, partitions: &[u16], before: Timestamp) -> Result<usize> {
        let steps = partitions.iter().map(|&partition| async move {
            let mut script = self.scripts.forget_records.prepare_invoke();
            for name in ["past", "archive", "closed"] {
                script.key(self.keys.in_partition(partition, name));
            }
            script.arg(before.as_millis()).arg(MOST_REMOVED);
            self.topology.run::<usize>("forget_records", &script).await
        });
        Ok(try_join_all(steps).await?.into_iter().sum())
    }
}

impl RedisEngine {
    /// The values of the expiry keys of some units of a partition.
    async fn read_alive<T: FromRedisValue>(
        &self,
        partition: u16,
        names: impl Iterator<Item = &str>,
    ) -> Result<T> {
        let mut alive = redis::cmd("MGET");
        let mut key = self.keys.in_partition(partition, "alive:");
        let prefix = key.len();
        for name in names {
            key.truncate(prefix);
            key.push_str(name);
            alive.arg(&key);
        }
        let mut pipe = pipe();
        pipe.add_command(alive);
        let (values,): (T,) = self.topology.send("alive", &pipe).await?;
        Ok(values)
    }

    /// The newest record ids of a partition, strictly before a place in the order (time, id).
    async fn newest(
        &self,
        partition: u16,
        index: &str,
        before: Option<&(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<(i64, u16, String)>> {
        let key = self.keys.in_partition(partition, index);
        let mut found: Vec<(i64, u16, String)> = Vec::new();
        let mut skip = 0;
        loop {
            let from = before.map_or("+inf".to_owned(), |(at, _)| at.as_millis().to_string());
            let mut pipe = pipe();
            pipe.zrevrangebyscore_limit_withscores(&key, from, "-inf", skip, limit as isize);
            let (page,): (Vec<(String, f64)>,) = self.topology.send("records", &pipe).await?;
            let read = page.len();
            let wanted = page.into_iter().map(|(id, at)| (at as i64, partition, id)).filter(|(at, _, id)| {
                before.is_none_or(|(time, last)| (*at, id.as_str()) < (time.as_millis(), &last.to_string()))
            });
            found.extend(wanted);
            // Records of one and the same millisecond are sifted by id, which may take more pages.
            if found.len() >= limit || read < limit {
                found.truncate(limit);
                return Ok(found);
            }
            skip += limit as isize;
        }
    }
}
