//! The newest values of units. They are stored on pages like facts, so that a value takes little more than its
//! text. Each metric has pages of its own, so that a request for one metric reads only that metric.

use std::ops::Range;

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use super::columns::{Column, add_block};
use super::topology::ScriptCall;
use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::{DataStore, EngineError, MAX_CHANGES, MetricValue, Reading, Result, encoding};
use crate::telemetry::Stored;

/// How many values one step writes: half a millisecond of the server's time.
const STEP: usize = 200;

#[async_trait]
impl DataStore for RedisEngine {
    async fn keep_values(&self, readings: &[Reading<'_>]) -> Result<Vec<bool>> {
        let partition = |index: &usize| self.keys.partition(readings[*index].unit);
        let mut indices: Vec<usize> = (0..readings.len()).collect();
        indices.sort_by_cached_key(|index| (partition(index), readings[*index].unit));
        let steps = indices.chunk_by(|a, b| partition(a) == partition(b)).flat_map(|indices| {
            indices.chunks(STEP).map(|step| {
                let partition = partition(&step[0]);
                (self.keys.slot(partition), self.keep_step(partition, step, readings))
            })
        });
        let mut known = vec![false; readings.len()];
        let answers = self.topology.run_limited(steps.collect()).await?;
        for (index, answer) in indices.iter().zip(answers.into_iter().flatten()) {
            known[*index] = answer == 1;
        }
        Ok(known)
    }

    async fn values(&self, unit: &Unit, metrics: &[&str]) -> Result<Vec<Option<MetricValue>>> {
        let (partition, page) = self.keys.page_id(unit);
        let mut pipe = pipe();
        for metric in metrics {
            pipe.hget(self.keys.data_page(partition, metric, page), unit.to_string());
        }
        let values: Vec<Option<Vec<u8>>> = self.topology.send("values", &pipe).await?;
        let read = |(metric, text): (&&str, Option<Vec<u8>>)| {
            let text = String::from_utf8_lossy(&text?).into_owned();
            let value = parse(&text);
            if value.is_none() {
                let location = format!("{} of {unit}", self.keys.data_page(partition, metric, page));
                let why = format!("{text:?} is not a moment and value; the next of that unit replaces it");
                self.telemetry.unreadable(Stored::Value, &location, &why);
            }
            value
        };
        Ok(metrics.iter().zip(values).map(read).collect())
    }

    async fn walk_values(
        &self,
        partition: u16,
        metric: &str,
        pages: Range<u32>,
    ) -> Result<Vec<(String, String)>> {
        let mut pipe = pipe();
        for page in pages {
            pipe.hgetall(self.keys.data_page(partition, metric, page));
        }
        let pages: Vec<Vec<(Vec<u8>, Vec<u8>)>> = self.topology.send("walk_values", &pipe).await?;
        let text = |(name, text)| Some((String::from_utf8(name).ok()?, String::from_utf8(text).ok()?));
        let mut values: Vec<(String, String)> = pages.into_iter().flatten().filter_map(text).collect();
        for (_, text) in &mut values {
            // Keep the text after the moment. A text that another program wrote has no moment, and is left out.
            let value = text.find(' ').map_or(text.len(), |at| at + 1);
            text.drain(..value);
        }
        values.retain(|(_, text)| !text.is_empty());
        Ok(values)
    }

    async fn forget_values(&self, units: &[Unit]) -> Result<()> {
        let mut pipe = pipe();
        for unit in units {
            pipe.smembers(self.keys.in_partition(self.keys.partition(unit), "data"));
        }
        let metrics: Vec<Vec<String>> = self.topology.send("data", &pipe).await?;
        let with_values = units.iter().zip(&metrics).filter(|(_, metrics)| !metrics.is_empty());
        let steps = with_values.map(|(unit, metrics)| {
            (self.keys.slot(self.keys.partition(unit)), self.forget_values_of(unit, metrics))
        });
        self.topology.run_limited(steps.collect()).await?;
        Ok(())
    }
}

impl RedisEngine {
    /// Removes the values of a unit, unless the unit is known. If the unit changes meanwhile, it is read again.
    async fn forget_values_of(&self, unit: &Unit, metrics: &[String]) -> Result<()> {
        let (partition, page) = self.keys.page_id(unit);
        let (page_of_facts, name) = (self.keys.facts_page(partition, page), unit.to_string());
        for _ in 0..MAX_CHANGES {
            let mut read = pipe();
            read.hget(&page_of_facts, &name);
            let (facts,): (Option<Vec<u8>>,) = self.topology.send("forget_values", &read).await?;
            if facts.as_deref().is_some_and(|facts| !encoding::is_retired(facts)) {
                return Ok(());
            }
            let pages: Vec<String> =
                metrics.iter().map(|metric| self.keys.data_page(partition, metric, page)).collect();
            let name = name.as_bytes();
            let expected = match &facts {
                Some(facts) => {
                    Column { what: "has", key: &page_of_facts, times: 1, words: vec![name, facts] }
                }
                None => Column { what: "lacks", key: &page_of_facts, times: 1, words: vec![name] },
            };
            let remove = |page| Column { what: "remove", key: page, times: 1, words: vec![name] };
            let columns: Vec<Column> =
                std::iter::once(expected).chain(pages.iter().map(String::as_str).map(remove)).collect();
            let mut script = ScriptCall::of(&self.scripts.write_cells);
            add_block(&mut script, 1, &columns);
            if self.topology.run::<Vec<bool>>("forget_values", script).await? == [true] {
                return Ok(());
            }
        }
        Err(EngineError::contended(format_args!("the values of {unit}")))
    }

    /// Writes values of one partition; `indices` are sorted by unit.
    async fn keep_step(
        &self,
        partition: u16,
        indices: &[usize],
        readings: &[Reading<'_>],
    ) -> Result<Vec<u8>> {
        let mut script = ScriptCall::of(&self.scripts.keep_values);
        script.key(self.keys.in_partition(partition, "data"));
        for &index in indices {
            let Reading { unit, metric, at, value } = readings[index];
            let page = self.keys.page(unit);
            script.key(self.keys.facts_page(partition, page));
            script.key(self.keys.data_page(partition, metric, page));
            script.arg(metric).arg(unit.to_string()).arg(at.as_millis()).arg(value);
        }
        self.topology.run("keep_values", script).await
    }
}

fn parse(text: &str) -> Option<MetricValue> {
    let (at, text) = text.split_once(' ')?;
    Some(MetricValue { at: Timestamp::from_millis(at.parse().ok()?), text: text.to_owned() })
}
