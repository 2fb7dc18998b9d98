//! Cells: a hash for each table in a partition, a sorted set for each index.
//!
//! Change-sets of one shape are one script: the shape is described once, then only the words of each follow, all that
//! a key is asked for is one command, and so is all that is written to it. That costs a server a quarter of what a
//! script does that is told each write.

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis::pipe;

use super::fields::Fields;
use super::{RedisEngine, outbox};
use crate::store::cells::{What, batches};
use crate::store::{
    Cell, CellPage, Cells, ChangeSet, Cursor, Index, IndexEntry, Log, Logged, MAX_STEP, Result, Table,
    Unreadable,
};

/// How many cells one command scans.
const STEP: usize = 500;

#[async_trait]
impl Cells for RedisEngine {
    async fn read_cells(&self, cells: &[Cell]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut read = pipe();
        for Cell { table, partition, name } in cells {
            read.hget(self.keys.cells(*partition, *table), name);
        }
        self.topology.send("read_cells", &read).await
    }

    async fn write_cells(&self, sets: &[ChangeSet]) -> Result<Vec<bool>> {
        let mut written = vec![false; sets.len()];
        for batch in batches(sets) {
            let mut alike: BTreeMap<(u16, Vec<What>), Vec<usize>> = BTreeMap::new();
            for at in batch {
                alike.entry((sets[at].partition, sets[at].shape())).or_default().push(at);
            }
            let steps = alike.iter().flat_map(|(shape, places)| {
                let slot = self.keys.slot(shape.0);
                places.chunks(MAX_STEP).map(move |places| (slot, self.write_alike(slot, shape, sets, places)))
            });
            for (at, is_written) in self.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
                written[at] = is_written;
            }
        }
        Ok(written)
    }

    async fn entries(
        &self,
        index: Index,
        partitions: &[u16],
        until: i64,
        limit: usize,
    ) -> Result<Vec<IndexEntry>> {
        let mut read = pipe();
        for partition in partitions {
            let key = self.keys.index(*partition, index);
            read.zrangebyscore_limit_withscores(key, "-inf", until, 0, limit as isize);
        }
        let found: Vec<Vec<(Vec<u8>, f64)>> = self.topology.send("range", &read).await?;
        let mut entries = Vec::new();
        for (partition, members) in partitions.iter().zip(found) {
            let mut unreadable = Vec::new();
            for (name, at) in members {
                match String::from_utf8(name) {
                    Ok(name) => entries.push(IndexEntry { at: at as i64, name, partition: *partition }),
                    Err(no) => unreadable.push(no.into_bytes()),
                }
            }
            let key = self.keys.index(*partition, index);
            self.quarantine_members(&key, &unreadable, index.table().what()).await?;
        }
        entries.sort_unstable();
        entries.truncate(limit);
        Ok(entries)
    }

    async fn scan_cells(&self, table: Table, partition: u16, from: Option<Cursor>) -> Result<CellPage> {
        let from = from.map(|Cursor(cursor)| cursor.parse().unwrap_or_default());
        let mut fields =
            Fields::of(&self.topology, "scan_cells", self.keys.cells(partition, table), STEP).from(from);
        let mut page = CellPage::default();
        for (name, value) in fields.next().await?.unwrap_or_default() {
            // Such a name is not Rollcall's; the examination of the keys does not look at names.
            page.cells.extend(String::from_utf8(name).ok().map(|name| (name, value)));
        }
        page.next = fields.cursor().map(|cursor| Cursor(cursor.to_string()));
        Ok(page)
    }

    async fn newest(&self, log: Log, partition: u16, limit: usize) -> Result<Vec<Logged>> {
        let mut read = pipe();
        read.cmd("XREVRANGE").arg(self.keys.log(partition, log)).arg("+").arg("-");
        read.arg("COUNT").arg(limit.min(log.most()));
        let (entries,): (Vec<outbox::Stored>,) = self.topology.send("newest", &read).await?;
        let logged = |(id, fields): outbox::Stored| {
            let value = fields.chunks_exact(2).find(|pair| pair[0] == b"entry").map(|pair| pair[1].clone());
            Logged { partition, id, value: value.unwrap_or_default() }
        };
        Ok(entries.into_iter().map(logged).collect())
    }

    async fn quarantine_cell(&self, unreadable: &Unreadable, why: &str) -> Result<()> {
        match unreadable {
            Unreadable::Cell(Cell { table, partition, name }, value) => {
                let key = self.keys.cells(*partition, *table);
                self.quarantine_field(&key, name, value).await?;
                self.telemetry.unreadable(table.what(), &format!("{key} {name}"), why);
                Ok(())
            }
            Unreadable::Entry(index, IndexEntry { name, partition, .. }) => {
                let key = self.keys.index(*partition, *index);
                self.quarantine_members(&key, &[name.clone().into_bytes()], index.table().what()).await
            }
            Unreadable::Logged(log, Logged { partition, id, value }) => {
                let key = self.keys.log(*partition, *log);
                let mut put = pipe();
                put.atomic();
                put.hset(self.keys.unreadable_of(&key), format!("{key}\n{id}"), value.as_slice()).ignore();
                put.xdel(&key, &[id]).ignore();
                self.topology.send::<()>("quarantine", &put).await?;
                self.telemetry.unreadable(log.what(), &format!("{key} {id}"), why);
                Ok(())
            }
        }
    }
}

impl RedisEngine {
    /// Writes the change-sets at these places, which are of one shape.
    async fn write_alike(
        &self,
        slot: u16,
        (partition, shape): &(u16, Vec<What>),
        sets: &[ChangeSet],
        places: &[usize],
    ) -> Result<Vec<(usize, bool)>> {
        let mut call = self.scripts.write_cells.prepare_invoke();
        call.arg(places.len());
        for what in shape {
            let (word, key) = match what {
                What::Has(table) => ("has", self.keys.cells(*partition, *table)),
                What::Lacks(table) => ("lacks", self.keys.cells(*partition, *table)),
                What::Put(table) => ("put", self.keys.cells(*partition, *table)),
                What::Remove(table) => ("remove", self.keys.cells(*partition, *table)),
                What::IsAt(index) => ("is_at", self.keys.index(*partition, *index)),
                What::IsOff(index) => ("is_off", self.keys.index(*partition, *index)),
                What::Enter(index) => ("enter", self.keys.index(*partition, *index)),
                What::Leave(index) => ("leave", self.keys.index(*partition, *index)),
                What::Append(log) => ("append", self.keys.log(*partition, *log)),
            };
            call.key(key).arg(word);
        }
        for (column, what) in shape.iter().enumerate() {
            let parts = || places.iter().map(|at| &sets[*at].parts[column]);
            for part in parts() {
                match what {
                    What::Append(log) => call.arg(log.most()),
                    _ => call.arg(&part.name),
                };
            }
            for part in parts() {
                match what {
                    What::Has(_) | What::Put(_) | What::Append(_) => call.arg(part.value.as_slice()),
                    What::IsAt(_) | What::Enter(_) => call.arg(part.at),
                    What::Lacks(_) | What::IsOff(_) | What::Remove(_) | What::Leave(_) => &mut call,
                };
            }
        }
        let written: Vec<bool> = self.topology.run_alerting("write_cells", slot, &call).await?;
        Ok(places.iter().copied().zip(written).collect())
    }
}
