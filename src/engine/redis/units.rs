//! The state of units: the heartbeat pipeline, snapshots, changes, the deadline index.
//!
//! # Why batches of a few hundred
//! A pipeline of 200 heartbeats keeps the server busy for about a millisecond. Longer ones gain
//! nothing and make everybody else wait; several are under way at once.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{Pipeline, pipe};

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::engine::json::to_json;
use crate::engine::{EngineError, LARGEST_STEP, Refresh, Result, UnitStore, encoding};
use crate::presence::{Change, IndexChange, KeyChange, Snapshot, Unit};

const BATCH: usize = 200;

#[async_trait]
impl UnitStore for RedisEngine {
    async fn refresh(&self, beats: &[Refresh]) -> Result<Vec<bool>> {
        let answers = try_join_all(beats.chunks(BATCH).map(|batch| self.refresh_batch(batch))).await?;
        Ok(answers.into_iter().flatten().collect())
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let answers = try_join_all(units.chunks(LARGEST_STEP).map(|step| self.read_step(step))).await?;
        Ok(answers.into_iter().flatten().collect())
    }

    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let mut partitions: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (place, (seen, _)) in changes.iter().enumerate() {
            partitions.entry(self.keys.partition(&seen.unit)).or_default().push(place);
        }
        let steps = partitions.iter().flat_map(|(partition, places)| {
            places.chunks(BATCH).map(|places| self.apply_step(*partition, places, changes))
        });
        let mut applied = vec![false; changes.len()];
        for (place, answer) in try_join_all(steps).await?.into_iter().flatten() {
            applied[place] = answer;
        }
        Ok(applied)
    }

    fn partitions(&self) -> u16 {
        self.keys.partitions()
    }

    async fn due(&self, partition: u16, until: Timestamp, skip: usize, limit: usize) -> Result<Vec<Unit>> {
        let deadlines = self.keys.in_partition(partition, "deadlines");
        let mut pipe = pipe();
        pipe.zrangebyscore_limit(deadlines, "-inf", until.as_millis(), skip as isize, limit as isize);
        let (names,): (Vec<String>,) = self.topology.send("due", &pipe).await?;
        names.iter().map(|name| parse_unit(name)).collect()
    }

    async fn first_looks(&self) -> Result<Vec<Option<Timestamp>>> {
        let keys = (0..self.keys.partitions()).map(|p| self.keys.in_partition(p, "deadlines"));
        first_scores(self, "first_looks", keys).await
    }
}

impl RedisEngine {
    async fn refresh_batch(&self, beats: &[Refresh]) -> Result<Vec<bool>> {
        let mut pipe = pipe();
        let mut looks: BTreeMap<u16, Vec<(i64, String)>> = BTreeMap::new();
        for beat in beats {
            set_alive(&mut pipe, &self.keys.alive(&beat.unit), beat.at.as_millis(), beat);
            let look = (beat.look.as_millis(), beat.unit.to_string());
            looks.entry(self.keys.partition(&beat.unit)).or_default().push(look);
        }
        for (partition, looks) in looks {
            // Brings a look forward where the allowed silence is shorter than it was; never back.
            let zadd = pipe.cmd("ZADD").arg(self.keys.in_partition(partition, "deadlines"));
            zadd.arg("XX").arg("LT");
            for (look, unit) in looks {
                zadd.arg(look).arg(unit);
            }
            zadd.ignore();
        }
        let before: Vec<Option<i64>> = self.topology.send("refresh", &pipe).await?;
        let newer: Vec<(&Refresh, i64)> = beats
            .iter()
            .zip(&before)
            .filter_map(|(beat, before)| before.filter(|b| *b > beat.at.as_millis()).map(|b| (beat, b)))
            .collect();
        self.restore(newer).await?;
        Ok(before.into_iter().map(|before| before.is_some()).collect())
    }

    /// Heartbeats arrived out of order and the older overwrote the newer: the newer goes back. If
    /// an even newer one was overwritten by that, it goes back in turn, until the largest stands.
    async fn restore(&self, mut overwritten: Vec<(&Refresh, i64)>) -> Result<()> {
        while !overwritten.is_empty() {
            let mut pipe = pipe();
            for (beat, at) in &overwritten {
                set_alive(&mut pipe, &self.keys.alive(&beat.unit), *at, beat);
            }
            let before: Vec<Option<i64>> = self.topology.send("restore", &pipe).await?;
            overwritten = overwritten
                .into_iter()
                .zip(before)
                .filter_map(|((beat, at), before)| before.filter(|b| *b > at).map(|b| (beat, b)))
                .collect();
        }
        Ok(())
    }

    async fn read_step(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let mut pipe = pipe();
        for unit in units {
            pipe.get(self.keys.alive(unit));
            pipe.hget(self.keys.facts(unit), unit.to_string());
        }
        let values: Vec<Option<String>> = self.topology.send("read", &pipe).await?;
        let mut values = values.into_iter();
        let mut next = || values.next().flatten();
        units.iter().map(|unit| snapshot(unit.clone(), next(), next())).collect()
    }

    async fn apply_step(
        &self,
        partition: u16,
        places: &[usize],
        changes: &[(Snapshot, Change)],
    ) -> Result<Vec<(usize, bool)>> {
        let mut script = self.scripts.apply.prepare_invoke();
        for name in ["deadlines", "records", "open", "archive", "closed"] {
            script.key(self.keys.in_partition(partition, name));
        }
        script.key(self.keys.outbox(partition));
        for &place in places {
            let (seen, change) = &changes[place];
            script.key(self.keys.alive(&seen.unit)).key(self.keys.facts(&seen.unit));
            for argument in arguments(seen, change)? {
                script.arg(argument);
            }
        }
        let answers: Vec<u8> = self.topology.run("apply", &script).await?;
        Ok(places.iter().copied().zip(answers.into_iter().map(|answer| answer == 1)).collect())
    }
}

fn set_alive(pipe: &mut Pipeline, key: &str, at: i64, beat: &Refresh) {
    let ttl = beat.ttl.as_millis() as u64;
    pipe.cmd("SET").arg(key).arg(at).arg("PX").arg(ttl).arg("XX").arg("GET");
}

/// The eleven arguments of `apply.lua` for one change.
fn arguments(seen: &Snapshot, change: &Change) -> Result<[String; 11]> {
    let (value, ttl) = match change.key {
        KeyChange::Keep => (String::new(), String::new()),
        KeyChange::Delete => ("-".to_owned(), String::new()),
        KeyChange::Set { last_seen, ttl } => {
            (last_seen.as_millis().to_string(), ttl.as_millis().max(1).to_string())
        }
    };
    let look = match change.index {
        IndexChange::Keep => String::new(),
        IndexChange::Take => "-".to_owned(),
        IndexChange::LookAt(at) => at.as_millis().to_string(),
    };
    let [id, detected_at, closed_at, json] = match &change.record {
        None => Default::default(),
        Some(record) => [
            record.id.to_string(),
            record.detected_at.as_millis().to_string(),
            record.back_at.map(|at| at.as_millis().to_string()).unwrap_or_default(),
            to_json(record)?,
        ],
    };
    Ok([
        seen.unit.to_string(),
        seen.alive.map(|at| at.as_millis().to_string()).unwrap_or_default(),
        seen.stored.as_deref().unwrap_or_default().to_owned(),
        value,
        ttl,
        look,
        change.facts.as_ref().map(encoding::encode).unwrap_or_default(),
        id,
        detected_at,
        closed_at,
        json,
    ])
}

/// A unit as its key and its facts say.
pub(super) fn snapshot(unit: Unit, alive: Option<String>, stored: Option<String>) -> Result<Snapshot> {
    let alive = match alive {
        None => None,
        Some(text) => match text.parse() {
            Ok(ms) => Some(Timestamp::from_millis(ms)),
            Err(_) => return Err(damaged("the expiry key", &unit, &text)),
        },
    };
    let facts = match &stored {
        None => None,
        Some(text) => Some(encoding::decode(text).ok_or_else(|| damaged("the facts", &unit, text))?),
    };
    Ok(Snapshot { unit, alive, facts, stored: stored.map(Into::into) })
}

fn damaged(what: &str, unit: &Unit, text: &str) -> EngineError {
    let text: String = text.chars().take(80).collect();
    EngineError::Damaged(format!(
        "{what} of {unit} cannot be read ({text:?}); another program wrote there: delete it in redis and let \
         the unit be heard again"
    ))
}

pub(super) fn parse_unit(name: &str) -> Result<Unit> {
    name.parse().map_err(|error| {
        EngineError::Damaged(format!("the deadline index holds {name:?}, which is no unit: {error}"))
    })
}

/// The smallest score of each of several sorted sets.
pub(super) async fn first_scores(
    engine: &RedisEngine,
    name: &'static str,
    keys: impl Iterator<Item = String>,
) -> Result<Vec<Option<Timestamp>>> {
    let mut pipe = pipe();
    for key in keys {
        pipe.zrange_withscores(key, 0, 0);
    }
    let firsts: Vec<Vec<(String, f64)>> = engine.topology.send(name, &pipe).await?;
    let first = |first: Vec<(String, f64)>| first.first().map(|(_, at)| Timestamp::from_millis(*at as i64));
    Ok(firsts.into_iter().map(first).collect())
}

/// The smallest score of several sorted sets.
pub(super) async fn first_score(
    engine: &RedisEngine,
    name: &'static str,
    keys: impl Iterator<Item = String>,
) -> Result<Option<Timestamp>> {
    Ok(first_scores(engine, name, keys).await?.into_iter().flatten().min())
}
