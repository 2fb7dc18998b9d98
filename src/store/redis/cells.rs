//! Cells: a hash for each table in a partition, a sorted set for each index.
//!
//! Change-sets of one shape are one script: the shape is described once, then only the words of each follow, all that
//! a key is asked for is one command, and so is all that is written to it. That costs a server a quarter of what a
//! script does that is told each write.

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis::{ScriptInvocation, pipe};

use super::fields::Fields;
use super::{RedisEngine, outbox};
use crate::store::cells::{Shape, What, batches};
use crate::store::{
    Cell, CellPage, Cells, ChangeSet, Cursor, Index, IndexEntry, IndexRange, ListOrder, Log, Logged,
    MAX_STEP, Result, Table, Unreadable,
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
            let mut alike: BTreeMap<(u16, Shape), Vec<usize>> = BTreeMap::new();
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

    async fn range(&self, range: &IndexRange, partitions: &[u16]) -> Result<Vec<IndexEntry>> {
        let IndexRange { index, from, until, limit, order } = *range;
        let (mut read, most) = (pipe(), limit as isize);
        for partition in partitions {
            let key = self.keys.index(*partition, index);
            match order {
                ListOrder::OldestFirst => read.zrangebyscore_limit_withscores(key, from, until, 0, most),
                ListOrder::NewestFirst => read.zrevrangebyscore_limit_withscores(key, until, from, 0, most),
            };
        }
        let found: Vec<Vec<(Vec<u8>, f64)>> = self.topology.send("range", &read).await?;
        let mut entries = Vec::new();
        for (partition, members) in partitions.iter().zip(found) {
            let (names, scores): (Vec<Vec<u8>>, Vec<f64>) = members.into_iter().unzip();
            let names = self.index_names(*partition, index, names).await?;
            entries.extend(names.into_iter().zip(scores).filter_map(|(name, at)| {
                Some(IndexEntry { at: at as i64, name: name?, partition: *partition })
            }));
        }
        entries.sort_unstable();
        if order == ListOrder::NewestFirst {
            entries.reverse();
        }
        entries.truncate(limit);
        Ok(entries)
    }

    async fn names(&self, index: Index, begins: &[(u16, String)], limit: usize) -> Result<Vec<Vec<String>>> {
        let mut read = pipe();
        for (partition, begin) in begins {
            let (from, until) =
                (format!("[{begin}").into_bytes(), [b"(", begin.as_bytes(), b"\xff"].concat());
            read.cmd("ZRANGEBYLEX").arg(self.keys.index(*partition, index)).arg(from).arg(until);
            read.arg("LIMIT").arg(0).arg(limit);
        }
        let found: Vec<Vec<Vec<u8>>> = self.topology.send("names", &read).await?;
        let mut all = Vec::with_capacity(begins.len());
        for ((partition, _), names) in begins.iter().zip(found) {
            all.push(self.index_names(*partition, index, names).await?.into_iter().flatten().collect());
        }
        Ok(all)
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
    /// Members of an index as names; those that are no text are moved away.
    async fn index_names(
        &self,
        partition: u16,
        index: Index,
        members: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<String>>> {
        let (mut names, mut unreadable) = (Vec::with_capacity(members.len()), Vec::new());
        for member in members {
            names.push(String::from_utf8(member).map_err(|no| unreadable.push(no.into_bytes())).ok());
        }
        let key = self.keys.index(partition, index);
        self.quarantine_members(&key, &unreadable, index.table().what()).await?;
        Ok(names)
    }

    /// Writes the change-sets at these places, which are of one shape.
    async fn write_alike(
        &self,
        slot: u16,
        (partition, shape): &(u16, Shape),
        sets: &[ChangeSet],
        places: &[usize],
    ) -> Result<Vec<(usize, bool)>> {
        let mut call = self.scripts.write_cells.prepare_invoke();
        let alike: Vec<&ChangeSet> = places.iter().map(|at| &sets[*at]).collect();
        self.add_sets(&mut call, *partition, shape, &alike);
        let written: Vec<bool> = self.topology.run_alerting("write_cells", slot, &call).await?;
        Ok(places.iter().copied().zip(written).collect())
    }

    /// Adds the keys and arguments of `write_cells.lua` for change-sets of one shape.
    pub(super) fn add_sets(
        &self,
        call: &mut ScriptInvocation<'_>,
        partition: u16,
        shape: &Shape,
        sets: &[&ChangeSet],
    ) {
        call.arg(sets.len());
        for (what, times) in shape {
            let (word, key) = match what {
                What::Has(table) => ("has", self.keys.cells(partition, *table)),
                What::Lacks(table) => ("lacks", self.keys.cells(partition, *table)),
                What::Put(table) => ("put", self.keys.cells(partition, *table)),
                What::Remove(table) => ("remove", self.keys.cells(partition, *table)),
                What::Add(table) => ("add", self.keys.cells(partition, *table)),
                What::IsAt(index) => ("is_at", self.keys.index(partition, *index)),
                What::IsOff(index) => ("is_off", self.keys.index(partition, *index)),
                What::Enter(index) => ("enter", self.keys.index(partition, *index)),
                What::Leave(index) => ("leave", self.keys.index(partition, *index)),
                What::Append(log) => ("append", self.keys.log(partition, *log)),
            };
            call.key(key).arg(word).arg(*times);
        }
        let mut from = 0;
        for (what, times) in shape {
            let parts = || (from..from + times).flat_map(|at| sets.iter().map(move |set| &set.parts[at]));
            for part in parts() {
                match what {
                    What::Append(log) => call.arg(log.most()),
                    _ => call.arg(&part.name),
                };
            }
            for part in parts() {
                match what {
                    What::Has(_) | What::Put(_) | What::Append(_) => call.arg(part.value.as_slice()),
                    What::IsAt(_) | What::Enter(_) | What::Add(_) => call.arg(part.at),
                    What::Lacks(_) | What::IsOff(_) | What::Remove(_) | What::Leave(_) => &mut *call,
                };
            }
            from += times;
        }
    }
}
