//! Reminders and escalations of groups whose silences last: see `presence/reminding.rs`.

use std::collections::BTreeMap;

use super::member::{GroupVersion, StoredGroup, StoredMember};
use super::names::{of_group, read_lasting};
use super::reminding::{OngoingMember, Reminding, RepeatNotification};
use super::{StoredGroups, member_cell};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, Stage, Unit};
use crate::store::documents::Document;
use crate::store::lane::{Lane, append, owe};
use crate::store::member_names::of_member;
use crate::store::notification::MAX_REMINDED;
use crate::store::{ChangeSet, Destinations, Group, Index, IndexEntry, Result, Table};

/// The number of groups that one call checks.
const GROUPS: usize = 50;

/// Members of a group that are checked together.
struct LastingPage {
    members: Vec<OngoingMember>,
    stored: Vec<Document<StoredMember>>,
    /// The entries of members that do not last any more: their returns joined while no route of the group reminded.
    stray: Vec<String>,
}

impl StoredGroups {
    /// Checks groups of these partitions whose silences last and for which a reminder or an escalation is due, and
    /// seals notifications of silences that receivers know of. A repeated check seals the same notifications under
    /// the same ids. Answers how many notifications were sealed.
    pub async fn remind(
        &self,
        partitions: &[u16],
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        let due = self.engine.due_entries(Index::Reminders, partitions, now.as_millis(), GROUPS).await?;
        let mut notified = 0;
        for entry in due {
            notified += self.check_group(&entry, destinations, now).await?;
        }
        Ok(notified)
    }

    /// Checks one group. Answers how many notifications were sealed.
    async fn check_group(
        &self,
        entry: &IndexEntry,
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        let key = &entry.name;
        let destination = destinations.of(key);
        let next = |at: Option<Timestamp>| {
            let set = ChangeSet::of(entry.partition).is_at(Index::Reminders, key, Some(entry.at));
            set.enter(Index::Reminders, key, at.map(Timestamp::as_millis))
        };
        let held_until = destinations.held_until(key, now);
        if held_until.is_some() || destination.again.first().is_none() {
            self.documents.write(&[next(held_until)]).await?;
            return Ok(0);
        }
        // Read before the names: a silence that begins to last afterwards changes the version.
        let version = self.documents.one::<GroupVersion>(key).await?;
        let all = [of_group(key, self.partitions())];
        let names = self.documents.names(Index::Lasting, &all, usize::MAX).await?.pop().unwrap_or_default();
        let group = self.documents.one::<StoredGroup>(key).await?;
        let labels = group.value.and_then(|group| group.labels).unwrap_or_default();
        let group = Group { key: key.clone(), labels };
        let idle = match destination.again.repeat {
            Some(_) => self.idle(key, &destination.notified_again()).await?,
            None => Vec::new(),
        };
        let is_quiet = |record: &OfflineRecord| destinations.is_quiet(key, record, now);
        let first = names.iter().find_map(|name| Some(read_lasting(name)?.0)).unwrap_or(now);
        let moments = (first, Timestamp::from_millis(entry.at));
        let (mut soonest, mut notified) = (None, 0);
        let pages = names.len().div_ceil(MAX_REMINDED).max(1);
        for at in 0..pages {
            let names = names.chunks(MAX_REMINDED).nth(at).unwrap_or_default();
            let page = self.lasting_page(key, names).await?;
            let to = (&*destination, &idle[..]);
            let found = Reminding::new(&group, to, &page.members, &is_quiet, moments, now);
            soonest = soonest.into_iter().chain(found.next).min();
            let is_last = at + 1 == pages;
            let mut set = ChangeSet::of(entry.partition).is_at(Index::Reminders, key, Some(entry.at));
            if is_last {
                set = version.expect_in(next(soonest));
            } else if found.notifications.is_empty() {
                continue;
            }
            set = self.repeat(page_changes(set, &page, &found)?, key, &found.notifications, now).await?;
            if self.documents.write(&[set]).await? != [true] {
                // The silences changed, or another instance was faster. The next call tries again.
                return Ok(notified);
            }
            notified += found.notifications.len();
        }
        Ok(notified)
    }

    /// The receivers for which no notification of the group waits.
    async fn idle(&self, group: &str, receivers: &[&String]) -> Result<Vec<String>> {
        let lane = |name: &&String| Lane::cell(name, self.partition(group), group);
        let lanes = self.engine.read_cells(&receivers.iter().map(lane).collect::<Vec<_>>()).await?;
        let idle = receivers.iter().zip(lanes).filter(|(_, lane)| lane.is_none());
        Ok(idle.map(|(receiver, _)| (*receiver).clone()).collect())
    }

    /// Some lasting members of a group, with their open records.
    async fn lasting_page(&self, group: &str, names: &[String]) -> Result<LastingPage> {
        let cells = names
            .iter()
            .filter_map(|name| Some(member_cell(group, read_lasting(name)?.1, self.partitions())));
        let documents = self.documents.read_cells::<StoredMember>(cells.collect()).await?;
        let mut page = LastingPage { members: Vec::new(), stored: Vec::new(), stray: Vec::new() };
        let lasting = names.iter().filter_map(|name| Some((name, read_lasting(name)?)));
        for ((name, (notified_at, member)), stored) in lasting.zip(documents) {
            match stored.value.as_ref().filter(|known| known.stage == Stage::Notified) {
                Some(known) => {
                    let told = known.told.clone().unwrap_or_default();
                    let (name, record) = (member.to_owned(), known.kept.as_deref().cloned());
                    page.members.push(OngoingMember {
                        name,
                        notified_at,
                        told,
                        record,
                        is_acknowledged: false,
                    });
                    page.stored.push(stored);
                }
                None => page.stray.push(name.clone()),
            }
        }
        let ids: Vec<_> =
            page.members.iter().map(|member| of_member(&member.name).map(|(_, id)| id)).collect();
        let units: Vec<Unit> = ids.iter().flatten().map(|id| id.unit.clone()).collect();
        let mut open: BTreeMap<Unit, OfflineRecord> = BTreeMap::new();
        for seen in self.engine.read(&units).await? {
            let record = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
            open.extend(record.map(|record| (seen.unit, record)));
        }
        for (member, id) in page.members.iter_mut().zip(ids) {
            let Some(open) = id.and_then(|id| open.get(&id.unit).filter(|record| record.id == id)) else {
                continue;
            };
            member.is_acknowledged = open.is_acknowledged();
            member.record.get_or_insert_with(|| open.clone());
        }
        Ok(page)
    }

    /// A change-set that also appends notifications to the lanes of their receivers.
    async fn repeat(
        &self,
        mut set: ChangeSet,
        group: &str,
        notifications: &[RepeatNotification],
        now: Timestamp,
    ) -> Result<ChangeSet> {
        let mut of_receivers: BTreeMap<&String, Vec<&str>> = BTreeMap::new();
        for RepeatNotification { id, notification, receivers } in notifications {
            set = set.put(Table::Notifications, id, Some(&notification.stored()?));
            set = owe(set, id, receivers.len());
            receivers.iter().for_each(|name| of_receivers.entry(name).or_default().push(id));
        }
        let cell = |name: &&String| Lane::cell(name, set.partition, group);
        let lanes: Vec<Document<Lane>> =
            self.documents.read_cells(of_receivers.keys().map(cell).collect()).await?;
        for ((receiver, ids), lane) in of_receivers.into_iter().zip(&lanes) {
            set = append(set, lane, receiver, &ids, (now, false))?;
        }
        Ok(set)
    }
}

/// A change-set that also expects the members to be unchanged, and adds their new receivers.
fn page_changes(mut set: ChangeSet, page: &LastingPage, found: &Reminding) -> Result<ChangeSet> {
    for (at, stored) in page.stored.iter().enumerate() {
        let told = found.receivers.iter().find(|(other, _)| *other == at);
        set = match (told, &stored.value) {
            (Some((_, told)), Some(member)) => {
                stored.change_in(set, Some(&StoredMember { told: Some(told.clone()), ..member.clone() }))?
            }
            _ => stored.expect_in(set),
        };
    }
    for stray in &page.stray {
        set = set.enter(Index::Lasting, stray, None);
    }
    Ok(set)
}
