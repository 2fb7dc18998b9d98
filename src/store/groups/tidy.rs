//! Removes members that ended long ago, and groups without members.

use std::collections::BTreeSet;

use super::StoredGroups;
use super::member::{GroupsOf, StoredGroup, StoredMember};
use super::names::{of_group, read_member};
use crate::clock::Timestamp;
use crate::presence::Stage;
use crate::store::documents::{Document, TableValue};
use crate::store::member_names::of_member;
use crate::store::notification::KEPT_AFTER_END;
use crate::store::{Cell, ChangeSet, Index, IndexEntry, MAX_STEP, Result, Table};

impl StoredGroups {
    /// Removes a bounded number of members that ended longer than [`KEPT_AFTER_END`] ago.
    pub(super) async fn tidy(&self, partitions: &[u16], now: Timestamp) -> Result<()> {
        let before = now - KEPT_AFTER_END;
        let over = self.engine.due_entries(Index::Over, partitions, before.as_millis(), MAX_STEP).await?;
        if over.is_empty() {
            return Ok(());
        }
        let cell = |IndexEntry { name, partition, .. }: &IndexEntry| Cell {
            table: Table::Members,
            partition: *partition,
            name: name.clone(),
        };
        let members = self.documents.read_cells::<StoredMember>(over.iter().map(cell).collect()).await?;
        let (mut sets, mut groups) = (Vec::new(), BTreeSet::new());
        for (IndexEntry { name, partition, .. }, member) in over.iter().zip(&members) {
            let is_over = member.value.as_ref().is_none_or(|member| member.stage == Stage::Over);
            let set = member.expect_in(ChangeSet::of(*partition)).enter(Index::Over, name, None);
            sets.push(if is_over { member.change_in(set, None)? } else { set });
            let (group, member) = read_member(name).unwrap_or((name, ""));
            groups.insert(group.to_owned());
            if let Some((id, _)) = of_member(member).filter(|_| is_over) {
                let of_unit = GroupsOf::TABLE.partition(id, self.partitions());
                sets.push(ChangeSet::of(of_unit).put(GroupsOf::TABLE, id, None));
            }
        }
        // Members that have changed are read again by the next call.
        self.documents.write(&sets).await?;
        self.forget_groups(groups.into_iter().collect(), before).await
    }

    /// Removes groups that were sealed before `before` and in which nothing waits or lasts.
    async fn forget_groups(&self, keys: Vec<String>, before: Timestamp) -> Result<()> {
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let ranges: Vec<_> = keys.iter().map(|key| of_group(key, self.partitions())).collect();
        let (stored, due, next, lasting) = tokio::try_join!(
            self.documents.read::<StoredGroup>(&keys),
            self.documents.numbers::<StoredGroup>(Index::GroupsDue, &names),
            self.documents.numbers::<StoredGroup>(Index::Reminders, &names),
            self.documents.count_names(Index::Lasting, &ranges),
        )?;
        let mut sets = Vec::new();
        for (((stored, due), next), lasting) in stored.iter().zip(due).zip(next).zip(lasting) {
            let Document { name: key, value: Some(group), .. } = stored else { continue };
            let is_old = group.sealed().is_none_or(|sealed| sealed < before);
            if is_old && due.is_none() && next.is_none() && lasting == 0 {
                let set = stored.change_in(ChangeSet::of(self.partition(key)), None)?;
                let set = set.is_at(Index::GroupsDue, key, None).is_at(Index::Reminders, key, None);
                sets.push(set.put(Table::GroupVersions, key, None));
            }
        }
        self.documents.write(&sets).await?;
        Ok(())
    }
}
