//! Notes for the owners of partitions: the pages of units that another instance changed and the owner has not read
//! yet. Without a note, the owner finds the change with its next full read of the partition.

use std::collections::{BTreeMap, BTreeSet};

use super::partition::page_of;
use super::{Cells, ChangeSet, Index, NameRange, Result, partition_of};
use crate::presence::Unit;

/// The most notes of a partition that are read at once.
const MAX_NOTED: usize = 64;

/// Notes the pages of these units.
pub async fn note(cells: &dyn Cells, units: &[&Unit]) -> Result<()> {
    let (partitions, pages) = (cells.partitions(), cells.pages());
    let page = |unit: &&Unit| (partition_of(unit, partitions), page_of(unit, partitions, pages));
    let noted: BTreeSet<(u16, u32)> = units.iter().map(page).collect();
    write(cells, noted.iter(), Some(0)).await
}

/// Some of the notes of these partitions: the partition of each, and its page there.
pub async fn noted_pages(cells: &dyn Cells, partitions: &[u16]) -> Result<Vec<(u16, u32)>> {
    let all: Vec<NameRange> = partitions.iter().map(|partition| NameRange::of(*partition, "")).collect();
    let names = cells.names(Index::Noted, &all, MAX_NOTED).await?;
    let (mut pages, mut others) = (Vec::new(), Vec::new());
    for (partition, names) in partitions.iter().zip(names) {
        for name in names {
            match name.parse().ok().filter(|page| *page < cells.pages()) {
                Some(page) => pages.push((*partition, page)),
                // Another program wrote this name.
                None => others.push(ChangeSet::of(*partition).enter(Index::Noted, &name, None)),
            }
        }
    }
    cells.write_cells(&others).await?;
    Ok(pages)
}

/// Removes notes.
pub async fn remove_notes(cells: &dyn Cells, pages: &[(u16, u32)]) -> Result<()> {
    write(cells, pages.iter(), None).await
}

async fn write(cells: &dyn Cells, pages: impl Iterator<Item = &(u16, u32)>, at: Option<i64>) -> Result<()> {
    let mut sets: BTreeMap<u16, ChangeSet> = BTreeMap::new();
    for (partition, page) in pages {
        let set = sets.remove(partition).unwrap_or_else(|| ChangeSet::of(*partition));
        sets.insert(*partition, set.enter(Index::Noted, &page.to_string(), at));
    }
    let sets: Vec<ChangeSet> = sets.into_values().collect();
    cells.write_cells(&sets).await?;
    Ok(())
}
