//! Groups whose next check is brought forward because their routes have changed: a new or shorter `repeat_interval`
//! or escalation applies to silences that receivers were notified of before.
//!
//! Receivers may have been notified of a member while its route had neither: then the member may not be listed as
//! lasting, and its group may have no next check. A scan of all members finds them: once for each partition, after a
//! start or a reload.

use std::collections::BTreeMap;

use super::StoredGroups;
use super::member::{GroupsOf, StoredGroup, StoredMember};
use super::names::{lasting_name, read_member};
use crate::clock::Timestamp;
use crate::presence::{Labels, Stage};
use crate::routing::is_of_silences;
use crate::store::documents::Document;
use crate::store::member_names::of_member;
use crate::store::{Cell, ChangeSet, Destinations, EntryOrder, Index, IndexRange, MAX_STEP, Result, Table};

impl StoredGroups {
    /// Sets the next checks of groups of these partitions by the current routes. Call it once for each partition.
    pub async fn reschedule(
        &self,
        partitions: &[u16],
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<()> {
        for partition in partitions {
            self.bring_forward(*partition, destinations, now).await?;
            self.add_missing(*partition, destinations, now).await?;
        }
        Ok(())
    }

    /// Brings groups forward whose next check is later than the current routes would set it.
    async fn bring_forward(&self, partition: u16, destinations: &Destinations, now: Timestamp) -> Result<()> {
        let (mut from, mut after) = (now.as_millis() + 1, String::new());
        loop {
            let range = IndexRange {
                index: Index::Reminders,
                from,
                after: &after,
                until: i64::MAX,
                limit: MAX_STEP,
                order: EntryOrder::OldestFirst,
            };
            let found = self.engine.range(&range, &[partition]).await?;
            let late = found.iter().filter(|entry| {
                let first = destinations.of(&entry.name).again.first();
                first.is_some_and(|first| (now + first).as_millis() < entry.at)
            });
            let sets = late.map(|entry| {
                let set = ChangeSet::of(partition).is_at(Index::Reminders, &entry.name, Some(entry.at));
                set.enter(Index::Reminders, &entry.name, Some(now.as_millis()))
            });
            self.documents.write(&sets.collect::<Vec<_>>()).await?;
            match found.into_iter().nth(MAX_STEP - 1) {
                Some(last) => (from, after) = (last.at, last.name),
                None => return Ok(()),
            }
        }
    }

    /// Lets members last that were notified while their routes neither reminded nor escalated.
    async fn add_missing(&self, partition: u16, destinations: &Destinations, now: Timestamp) -> Result<()> {
        let mut from = None;
        loop {
            let page = self.engine.scan_cells(Table::Members, partition, from).await?;
            let mut missing: BTreeMap<String, Vec<Document<StoredMember>>> = BTreeMap::new();
            for (name, stored) in page.cells {
                let cell = Cell { table: Table::Members, partition, name };
                let known: Document<StoredMember> = self.documents.document(cell, Some(stored)).await?;
                let is_notified = known.value.as_ref().is_some_and(|one| one.stage == Stage::Notified);
                let Some((group, _)) = read_member(&known.name).filter(|_| is_notified) else { continue };
                if is_of_silences(group) && destinations.of(group).again.first().is_some() {
                    missing.entry(group.to_owned()).or_default().push(known);
                }
            }
            self.add_lasting(partition, missing, now).await?;
            from = page.next;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    async fn add_lasting(
        &self,
        partition: u16,
        missing: BTreeMap<String, Vec<Document<StoredMember>>>,
        now: Timestamp,
    ) -> Result<()> {
        let keys: Vec<String> = missing.keys().cloned().collect();
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let next = self.documents.numbers::<StoredGroup>(Index::Reminders, &names).await?;
        let groups = self.documents.read::<StoredGroup>(&keys).await?;
        let mut sets = Vec::new();
        for (((key, members), next), group) in missing.into_iter().zip(next).zip(groups) {
            let is_new = |member: &StoredMember| member.lasts_since().is_none();
            let new = members.iter().filter_map(|one| Some((one, one.value.clone().filter(is_new)?)));
            if next.is_some() && new.clone().next().is_none() {
                continue;
            }
            let mut set = ChangeSet::of(partition);
            let state = group.value.clone().unwrap_or_default();
            if state.labels.is_none() {
                let labels = self.labels_of(&key, &members[0].name).await?;
                set = group.change_in(set, Some(&StoredGroup { labels, ..state }))?;
            }
            for (known, member) in new {
                let (_, own) = read_member(&known.name).unwrap_or_default();
                set = known.change_in(set, Some(&member.lasting(now)))?;
                set = set.enter(Index::Lasting, &lasting_name(&key, now, own), Some(0));
            }
            set = set.add(Table::GroupVersions, &key, 1);
            let at = next.map_or(now, |next| next.min(now));
            sets.push(set.enter(Index::Reminders, &key, Some(at.as_millis())));
        }
        // A member that changed meanwhile is over, or the next call finds it.
        self.documents.write(&sets).await?;
        Ok(())
    }

    /// The labels of a group, from the record of one of its members.
    async fn labels_of(&self, key: &str, name: &str) -> Result<Option<Labels>> {
        let Some((member, _)) = read_member(name).and_then(|(_, member)| of_member(member)) else {
            return Ok(None);
        };
        let of = self.documents.one::<GroupsOf>(&member.to_owned()).await?;
        let groups = of.value.into_iter().flatten();
        Ok(groups.into_iter().find(|group| group.key == key).map(|group| group.labels))
    }
}
