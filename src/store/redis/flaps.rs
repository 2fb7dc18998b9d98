//! The last transitions of units whose kinds have flap detection: a hash, and a sorted set of looks, in each partition.

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use super::fields::Fields;
use super::steps::Steps;
use super::units::first_score;
use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::{FlapChange, FlapStore, Result};

/// How many units one script changes, and how many one command scans.
const STEP: usize = 200;

#[async_trait]
impl FlapStore for RedisEngine {
    async fn flaps(&self, units: &[Unit]) -> Result<Vec<Option<String>>> {
        let mut read = pipe();
        for unit in units {
            read.hget(self.keys.in_partition(self.keys.partition(unit), "flaps"), unit.to_string());
        }
        let texts: Vec<Option<Vec<u8>>> = self.topology.send("flaps", &read).await?;
        Ok(texts.into_iter().map(|bytes| bytes.map(text)).collect())
    }

    async fn change_flaps(&self, changes: &[FlapChange]) -> Result<Vec<bool>> {
        let mut partitions: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (at, change) in changes.iter().enumerate() {
            partitions.entry(self.keys.partition(&change.unit)).or_default().push(at);
        }
        let steps = partitions.iter().flat_map(|(partition, places)| {
            let steps = places.chunks(STEP);
            steps.map(|places| (self.keys.slot(*partition), self.change_some(*partition, changes, places)))
        });
        let mut written = vec![false; changes.len()];
        for (at, is_written) in self.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
            written[at] = is_written;
        }
        Ok(written)
    }

    async fn due_flaps(
        &self,
        partitions: &[u16],
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Unit, Option<String>)>> {
        let mut read = pipe();
        for partition in partitions {
            let looks = self.keys.in_partition(*partition, "flap_checks");
            read.zrangebyscore_limit(looks, "-inf", now.as_millis(), 0, limit as isize);
        }
        let due: Vec<Vec<Vec<u8>>> = self.topology.send("flap_checks", &read).await?;
        let mut units: Vec<Unit> = Vec::new();
        let mut forget = pipe();
        for (partition, names) in partitions.iter().zip(due) {
            for name in names {
                match str::from_utf8(&name).ok().and_then(|name| name.parse().ok()) {
                    Some(unit) => units.push(unit),
                    // Another program wrote a name that is not a unit's.
                    None => {
                        forget.zrem(self.keys.in_partition(*partition, "flap_checks"), name).ignore();
                    }
                }
            }
        }
        self.topology.send::<()>("flap_checks", &forget).await?;
        units.truncate(limit);
        let texts = self.flaps(&units).await?;
        Ok(units.into_iter().zip(texts).collect())
    }

    async fn first_flaps(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        let looks = partitions.iter().map(|partition| self.keys.in_partition(*partition, "flap_checks"));
        first_score(self, "first_flaps", looks).await
    }

    async fn flaps_in(&self, partition: u16) -> Result<Vec<(Unit, String)>> {
        let key = self.keys.in_partition(partition, "flaps");
        let mut fields = Fields::of(&self.topology, "flaps", key, STEP).in_background();
        let mut all = BTreeMap::new();
        while let Some(page) = fields.next().await? {
            let readable = |(name, value): (Vec<u8>, Vec<u8>)| Some((text(name).parse().ok()?, text(value)));
            all.extend(page.into_iter().filter_map(readable));
        }
        Ok(all.into_iter().collect())
    }
}

impl RedisEngine {
    /// Changes the units at these places, which are of one partition.
    async fn change_some(
        &self,
        partition: u16,
        changes: &[FlapChange],
        places: &[usize],
    ) -> Result<Vec<(usize, bool)>> {
        let [flaps, looks] = ["flaps", "flap_checks"].map(|name| self.keys.in_partition(partition, name));
        let mut steps = Steps::default();
        for FlapChange { unit, before, after } in places.iter().map(|at| &changes[*at]) {
            let unit = unit.to_string();
            let unit = unit.as_bytes();
            steps.begin().expect_field(&flaps, unit, before.as_deref().map(str::as_bytes));
            match after {
                Some((text, at)) => {
                    let at = at.as_millis().to_string();
                    steps.write("HSET", &flaps, &[unit, text.as_bytes()]);
                    steps.write("ZADD", &looks, &[at.as_bytes(), unit]);
                }
                None => {
                    steps.write("HDEL", &flaps, &[unit]).write("ZREM", &looks, &[unit]);
                }
            }
        }
        let (slot, script) = (self.keys.slot(partition), steps.call(&self.scripts.write_steps));
        let written: Vec<bool> = self.topology.run_alerting("change_flaps", slot, &script).await?;
        Ok(places.iter().copied().zip(written).collect())
    }
}

/// Bytes that are no UTF-8 are no JSON either.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
