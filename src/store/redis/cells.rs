//! Cells: a hash for each table in a partition, or several for a table on pages; a sorted set for each index.
//!
//! Change-sets of one shape in one partition are a block of a script: the shape is described once, followed by the
//! words of each change-set. One command reads everything needed from a key, and one writes everything to it. That
//! costs the server a quarter of a script that gets each write by itself. Outside of a cluster, a script has the blocks
//! of many partitions, because a storm has a few change-sets for each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use redis::{InfoDict, pipe};

use super::RedisEngine;
use super::due_members::due_members;
use super::fields::{FieldScan, HashField};
use super::key_scan::KeyScan;
use super::topology::{ScriptCall, Topology};
use crate::store::change_set::{Shape, What, alike, batches};
use crate::store::{
    Cell, CellCursor, CellPage, Cells, ChangePart, ChangeSet, EntryOrder, Index, IndexEntry, IndexRange,
    NameRange, ReceiverName, Result, Table, Unreadable,
};
use crate::telemetry::Telemetry;

/// A member of a sorted set, and its score.
type ScoredMember = (Vec<u8>, f64);

/// How many cells one command scans.
const STEP: usize = 500;
/// The number of parts of change-sets that one script writes: about a quarter of a millisecond, because Redis serves
/// no other command meanwhile.
const PARTS: usize = 250;
/// More members than any set has, within the exact integers of Lua.
const MOST: usize = 1 << 40;
/// How many keys one command scans.
const KEYS: usize = 1000;
/// How many pages of a table are read at once.
const PAGES: u32 = 32;

/// Change-sets of one shape in one partition.
struct Block<'a> {
    /// The positions of its change-sets among all.
    places: &'a [usize],
    sets: Vec<&'a ChangeSet>,
}

impl<'a> Block<'a> {
    fn new(sets: &'a [ChangeSet], places: &'a [usize]) -> Block<'a> {
        Block { places, sets: places.iter().map(|at| &sets[*at]).collect() }
    }

    fn partition(&self) -> u16 {
        self.sets[0].partition
    }

    /// The number of parts of all its change-sets.
    fn parts(&self) -> usize {
        self.sets.len() * self.sets[0].len()
    }

    /// The parts of a column of the shape, which begins at this part: the first of every change-set, the second of
    /// every change-set, and so on.
    fn column(&self, from: usize, times: usize) -> impl Iterator<Item = ChangePart<'a>> {
        (from..from + times).flat_map(|at| self.sets.iter().map(move |set| set.part(at)))
    }
}

/// These change-sets, which are alike, in blocks that fit into a call.
fn blocks<'a>(sets: &'a [ChangeSet], places: &'a [usize]) -> impl Iterator<Item = Block<'a>> {
    let most = (PARTS / sets[places[0]].len()).max(1);
    places.chunks(most).map(|places| Block::new(sets, places))
}

#[async_trait]
impl Cells for RedisEngine {
    async fn read_cells(&self, cells: &[Cell]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut of_keys: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, Cell { table, partition, name }) in cells.iter().enumerate() {
            of_keys.entry(self.keys.cell(*partition, *table, name)).or_default().push(at);
        }
        let mut read = pipe();
        for (key, places) in &of_keys {
            read.cmd("HMGET").arg(key).arg(places.iter().map(|at| &cells[*at].name).collect::<Vec<_>>());
        }
        let found: Vec<Vec<Option<Vec<u8>>>> = self.topology.send("read_cells", &read).await?;
        let mut values = vec![None; cells.len()];
        for (at, value) in
            of_keys.into_values().zip(found).flat_map(|(places, found)| places.into_iter().zip(found))
        {
            values[at] = value;
        }
        Ok(values)
    }

    async fn write_cells(&self, sets: &[ChangeSet]) -> Result<Vec<bool>> {
        // A change-set without parts counts as applied.
        let mut written: Vec<bool> = sets.iter().map(ChangeSet::is_empty).collect();
        for mut batch in batches(sets) {
            batch.retain(|at| !sets[*at].is_empty());
            let blocks = alike(sets, &mut batch).flat_map(|places| blocks(sets, places)).collect();
            let steps = self.calls(blocks).into_iter().map(|call| {
                let slot = self.keys.slot(call[0].partition());
                (slot, self.write_blocks(slot, call))
            });
            for (at, is_written) in self.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
                written[at] = is_written;
            }
        }
        Ok(written)
    }

    async fn range(&self, range: &IndexRange<'_>, partitions: &[u16]) -> Result<Vec<IndexEntry>> {
        let IndexRange { index, after, limit, order, .. } = *range;
        let found = match after {
            "" => self.range_from(range, partitions).await?,
            _ => self.range_after(range, partitions).await?,
        };
        let mut entries = Vec::new();
        for (partition, members) in partitions.iter().zip(found) {
            entries.extend(self.index_entries(*partition, index, members).await?);
        }
        entries.sort_unstable();
        if order == EntryOrder::NewestFirst {
            entries.reverse();
        }
        entries.truncate(limit);
        Ok(entries)
    }

    async fn names(&self, index: Index, ranges: &[NameRange], limit: usize) -> Result<Vec<Vec<String>>> {
        let mut read = pipe();
        for NameRange { partition, from, before } in ranges {
            read.cmd("ZRANGEBYLEX").arg(self.keys.index(*partition, index));
            read.arg(format!("[{from}")).arg(format!("({before}")).arg("LIMIT").arg(0).arg(limit as isize);
        }
        let found: Vec<Vec<Vec<u8>>> = self.topology.send("names", &read).await?;
        let mut all = Vec::with_capacity(ranges.len());
        for (range, names) in ranges.iter().zip(found) {
            all.push(self.index_names(range.partition, index, names).await?.into_iter().flatten().collect());
        }
        Ok(all)
    }

    async fn count_names(&self, index: Index, ranges: &[NameRange]) -> Result<Vec<usize>> {
        let mut read = pipe();
        for NameRange { partition, from, before } in ranges {
            read.cmd("ZLEXCOUNT").arg(self.keys.index(*partition, index));
            read.arg(format!("[{from}")).arg(format!("({before}"));
        }
        self.topology.send("count_names", &read).await
    }

    async fn replicated(&self, partitions: BTreeSet<u16>) {
        self.wait_for_replicas(partitions).await;
    }

    async fn numbers(&self, index: Index, entries: &[(u16, &str)]) -> Result<Vec<Option<i64>>> {
        let mut of_partitions: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (at, (partition, _)) in entries.iter().enumerate() {
            of_partitions.entry(*partition).or_default().push(at);
        }
        let mut read = pipe();
        for (partition, places) in &of_partitions {
            let names: Vec<&str> = places.iter().map(|at| entries[*at].1).collect();
            read.cmd("ZMSCORE").arg(self.keys.index(*partition, index)).arg(names);
        }
        let scores: Vec<Vec<Option<f64>>> = self.topology.send("numbers", &read).await?;
        let mut numbers = vec![None; entries.len()];
        for (at, score) in of_partitions
            .into_values()
            .zip(scores)
            .flat_map(|(places, scores)| places.into_iter().zip(scores))
        {
            numbers[at] = score.map(|score| score as i64);
        }
        Ok(numbers)
    }

    /// Slow: Redis finds keys by a part of their names only by scanning all keys, of which there is one for each
    /// unit.
    async fn receivers_with_cells(&self) -> Result<BTreeSet<ReceiverName>> {
        let mut receivers = BTreeSet::new();
        let mut scan = KeyScan::of("receivers", self.keys.owned_pattern("cells"), KEYS);
        while let Some(keys) = scan.next(&self.topology).await? {
            let texts = keys.iter().filter_map(|key| str::from_utf8(key).ok());
            let tables = texts.filter_map(|key| Table::named(key.split_once(":cells:")?.1));
            receivers.extend(tables.filter_map(Table::receiver));
        }
        Ok(receivers)
    }

    fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    async fn due_entries(
        &self,
        index: Index,
        partitions: &[u16],
        until: i64,
        limit: usize,
    ) -> Result<Vec<IndexEntry>> {
        let key = |partition| self.keys.index(partition, index);
        let found = due_members(self, key, partitions, until, limit).await?;
        let mut entries = Vec::new();
        for (partition, members) in found {
            entries.extend(self.index_entries(partition, index, members).await?);
        }
        Ok(entries)
    }

    async fn sizes(&self, index: Index, partitions: &[u16]) -> Result<Vec<i64>> {
        let mut read = pipe();
        for partition in partitions {
            read.zcard(self.keys.index(*partition, index));
        }
        self.topology.send("index_sizes", &read).await
    }

    async fn scan_cells(&self, table: Table, partition: u16, from: Option<CellCursor>) -> Result<CellPage> {
        let from = from.map(|CellCursor(cursor)| cursor.parse().unwrap_or_default());
        if table.is_paged() {
            return self.scan_pages(table, partition, from.unwrap_or_default() as u32).await;
        }
        let mut fields =
            FieldScan::of(&self.topology, "scan_cells", self.keys.cells(partition, table), STEP).from(from);
        let mut page = CellPage::default();
        let read = fields.next().await?.unwrap_or_default();
        page.cells = self.named(&self.keys.cells(partition, table), read).await?;
        page.next = fields.cursor().map(|cursor| CellCursor(cursor.to_string()));
        Ok(page)
    }

    async fn quarantine_cell(&self, unreadable: &Unreadable, why: &str) -> Result<()> {
        match unreadable {
            Unreadable::Cell(Cell { table, partition, name }, value) => {
                let key = self.keys.cell(*partition, *table, name);
                self.quarantine_field(&key, name.as_bytes(), value, why).await
            }
            Unreadable::CellInPart(Cell { table, partition, name }, value) => {
                let key = self.keys.cell(*partition, *table, name);
                let place = format!("{key}\n{name}");
                let mut copy = pipe();
                copy.hset(self.keys.unreadable_of(&key), &place, value.as_slice()).ignore();
                self.topology.send::<()>("quarantine", &copy).await?;
                self.report_unreadable(&key, Some(name.as_bytes()), why);
                Ok(())
            }
            Unreadable::Entry(index, IndexEntry { name, partition, .. }) => {
                let key = self.keys.index(*partition, *index);
                self.quarantine_members(&key, &[name.clone().into_bytes()]).await
            }
        }
    }
}

impl RedisEngine {
    /// The members of a range in each of these partitions, from a number on.
    async fn range_from(&self, range: &IndexRange<'_>, partitions: &[u16]) -> Result<Vec<Vec<ScoredMember>>> {
        let IndexRange { index, from, until, limit, order, .. } = *range;
        let (mut read, most) = (pipe(), limit as isize);
        for partition in partitions {
            let key = self.keys.index(*partition, index);
            match order {
                EntryOrder::OldestFirst => read.zrangebyscore_limit_withscores(key, from, until, 0, most),
                EntryOrder::NewestFirst => read.zrevrangebyscore_limit_withscores(key, until, from, 0, most),
            };
        }
        self.topology.send("range", &read).await
    }

    /// The members of a range in each of these partitions, from a number and a name on.
    async fn range_after(
        &self,
        range: &IndexRange<'_>,
        partitions: &[u16],
    ) -> Result<Vec<Vec<ScoredMember>>> {
        let IndexRange { index, from, after, until, limit, .. } = *range;
        let steps = partitions.iter().map(|partition| {
            let step = async move {
                let mut script = ScriptCall::of(&self.scripts.range_after);
                script
                    .key(self.keys.index(*partition, index))
                    .arg(from)
                    .arg(after)
                    .arg(until)
                    .arg(limit.min(MOST));
                self.topology.run("range_after", script).await
            };
            (self.keys.slot(*partition), step)
        });
        self.topology.run_limited(steps.collect()).await
    }

    /// Members of an index as names; members that are no text are quarantined.
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
        self.quarantine_members(&key, &unreadable).await?;
        Ok(names)
    }

    /// The blocks of each call. In a cluster, a call has the blocks of one partition.
    fn calls<'a>(&self, blocks: Vec<Block<'a>>) -> Vec<Vec<Block<'a>>> {
        let mut calls: Vec<Vec<Block<'a>>> = Vec::new();
        let mut parts = 0;
        for block in blocks {
            parts += block.parts();
            match calls.last_mut() {
                Some(call)
                    if parts <= PARTS && (!self.has_slots || call[0].partition() == block.partition()) =>
                {
                    call.push(block);
                }
                _ => {
                    parts = block.parts();
                    calls.push(vec![block]);
                }
            }
        }
        calls
    }

    async fn write_blocks(&self, slot: u16, blocks: Vec<Block<'_>>) -> Result<Vec<(usize, bool)>> {
        let mut call = ScriptCall::of(&self.scripts.write_cells);
        for block in &blocks {
            let shape = block.sets[0].shape();
            call.arg(block.sets.len()).arg(shape.len());
            self.add_columns(&mut call, &shape, block);
            add_names(&mut call, &shape, block);
        }
        let written: Vec<bool> = self.topology.run_alerting("write_cells", slot, call).await?;
        Ok(blocks.iter().flat_map(|block| block.places).copied().zip(written).collect())
    }

    /// Adds the keys of the columns, the sort of each column, and how many names a change-set has in it.
    fn add_columns(&self, call: &mut ScriptCall<'_>, shape: &Shape, block: &Block<'_>) {
        let (partition, mut from) = (block.partition(), 0);
        for (what, times) in shape {
            let word = match what {
                What::Has(_) => "has",
                What::Lacks(_) => "lacks",
                What::Put(_) => "put",
                What::Remove(_) => "remove",
                What::Add(_) => "add",
                What::AddWord(_) => "add_word",
                What::RemoveWord(_) => "remove_word",
                What::IsAt(_) => "is_at",
                What::IsOff(_) => "is_off",
                What::Enter(_) => "enter",
                What::EnterNew(_) => "enter_new",
                What::Leave(_) => "leave",
            };
            let (key, paged) = match what {
                What::Has(table)
                | What::Lacks(table)
                | What::Put(table)
                | What::Remove(table)
                | What::Add(table)
                | What::AddWord(table)
                | What::RemoveWord(table) => {
                    (self.keys.cells(partition, *table), table.is_paged().then_some(*table))
                }
                What::IsAt(index)
                | What::IsOff(index)
                | What::Enter(index)
                | What::EnterNew(index)
                | What::Leave(index) => (self.keys.index(partition, *index), None),
            };
            match paged {
                None => call.key(key).arg(word),
                Some(table) => {
                    for part in block.column(from, *times) {
                        call.key(self.keys.cell(partition, table, part.name));
                    }
                    call.arg(format!("{word}@"))
                }
            };
            call.arg(*times);
            from += times;
        }
    }

    /// Members of an index with their numbers, as entries; members that are no text are quarantined.
    async fn index_entries(
        &self,
        partition: u16,
        index: Index,
        members: Vec<(Vec<u8>, f64)>,
    ) -> Result<Vec<IndexEntry>> {
        let (names, scores): (Vec<Vec<u8>>, Vec<f64>) = members.into_iter().unzip();
        let names = self.index_names(partition, index, names).await?.into_iter().zip(scores);
        Ok(names
            .filter_map(|(name, at)| Some(IndexEntry { at: at as i64, name: name?, partition }))
            .collect())
    }

    /// Fields of a hash as cells; a field whose name is no text is quarantined.
    async fn named(&self, key: &str, fields: Vec<HashField>) -> Result<Vec<(String, Vec<u8>)>> {
        let mut cells = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            match String::from_utf8(name) {
                Ok(name) => cells.push((name, value)),
                Err(no) => {
                    let why = "its name is no text, and it was quarantined";
                    self.quarantine_field(key, no.as_bytes(), &value, why).await?;
                }
            }
        }
        Ok(cells)
    }

    /// Some whole pages of a table, from this one on.
    async fn scan_pages(&self, table: Table, partition: u16, from: u32) -> Result<CellPage> {
        let to = self.keys.pages().min(from + PAGES);
        let mut read = pipe();
        for page in from..to {
            read.hgetall(self.keys.cells_page(partition, table, page));
        }
        let pages: Vec<Vec<HashField>> = self.topology.send("scan_cells", &read).await?;
        let mut cells = Vec::new();
        for (page, fields) in (from..to).zip(pages) {
            cells.extend(self.named(&self.keys.cells_page(partition, table, page), fields).await?);
        }
        Ok(CellPage { cells, next: (to < self.keys.pages()).then(|| CellCursor(to.to_string())) })
    }
}

/// Whether all keys of a script have to be in one slot: in a cluster, also in one that has a single server and whose
/// address is that of the server.
pub(super) async fn has_slots(topology: &Topology) -> Result<bool> {
    if topology.has_parts() {
        return Ok(true);
    }
    let mut question = pipe();
    question.cmd("INFO").arg("cluster");
    let (info,): (InfoDict,) = topology.send("info", &question).await?;
    Ok(info.get::<u8>("cluster_enabled") == Some(1))
}

/// The names of all columns, each with its values or numbers, in the order of `write_cells.lua`.
fn add_names(call: &mut ScriptCall<'_>, shape: &Shape, block: &Block<'_>) {
    let mut from = 0;
    for (what, times) in shape {
        for part in block.column(from, *times) {
            match what {
                What::Put(_) => call.arg(part.name).arg(part.value),
                What::Enter(_) | What::EnterNew(_) => call.arg(part.at).arg(part.name),
                _ => call.arg(part.name),
            };
        }
        for part in block.column(from, *times) {
            match what {
                What::Has(_) | What::AddWord(_) | What::RemoveWord(_) => call.arg(part.value),
                What::IsAt(_) | What::Add(_) => call.arg(part.at),
                _ => break,
            };
        }
        from += times;
    }
}
