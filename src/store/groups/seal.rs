//! Sealing: the notifications of groups that are due.

use super::StoredGroups;
use super::names::{WaitingName, of_group, waiting_in};
use super::step::GroupStep;
use crate::clock::Timestamp;
use crate::presence::MAX_MEMBERS;
use crate::store::notification::{MAX_SEALED, begin_of_blindness};
use crate::store::{Destinations, Index, IndexEntry, MAX_CHANGES, MAX_STEP, Result};

/// The number of groups that are sealed at once.
const GROUPS: usize = 100;
/// The most waiting members of each of these; a larger group is sealed alone.
const MEMBERS: usize = 100;

impl StoredGroups {
    /// Seals due groups of these partitions: fixes the members and the id of their notifications, and queues a
    /// delivery for each receiver of the group. A notification has at most 10 000 members; a larger group is sealed
    /// as several notifications. A silence is sealed when its own wait is over. Silences that joined later are sealed
    /// together in one more notification, when the waits of all of them are over; members that join after that are
    /// sealed when the interval has passed. Answers how many members were sealed; if any were, more may be due.
    pub async fn seal(
        &self,
        partitions: &[u16],
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        let due = self.engine.due_entries(Index::GroupsDue, partitions, now.as_millis(), MAX_STEP).await?;
        let mut sealed = 0;
        'due: for due in due.chunks(GROUPS) {
            let (few, many) = self.by_size(due).await?;
            let alone = many.into_iter().map(|entry| vec![entry]);
            for due in std::iter::once(few).filter(|few| !few.is_empty()).chain(alone) {
                sealed += self.seal_groups(due, destinations, now).await?;
                if sealed >= 10 * MAX_SEALED {
                    break 'due;
                }
            }
        }
        self.tidy(partitions, now).await?;
        Ok(sealed)
    }

    /// The groups with few waiting members, and the groups with many.
    async fn by_size(&self, due: &[IndexEntry]) -> Result<(Vec<IndexEntry>, Vec<IndexEntry>)> {
        let ranges: Vec<_> = due.iter().map(|entry| of_group(&entry.name, self.partitions())).collect();
        let counts = self.documents.count_names(Index::Waiting, &ranges).await?;
        let (few, many): (Vec<_>, Vec<_>) =
            due.iter().cloned().zip(counts).partition(|(_, count)| *count <= MEMBERS);
        let entries = |of: Vec<(IndexEntry, usize)>| of.into_iter().map(|(entry, _)| entry).collect();
        Ok((entries(few), entries(many)))
    }

    /// Seals one notification of each of these groups.
    async fn seal_groups(
        &self,
        mut due: Vec<IndexEntry>,
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        let mut sealed = 0;
        for round in 0..MAX_CHANGES {
            let mut steps = self.due_steps(&due, destinations, now).await?;
            if round > 0 {
                steps.iter_mut().for_each(GroupStep::look_again);
            }
            let sets =
                steps.iter().map(|step| step.change_set(Timestamp::ZERO)).collect::<Result<Vec<_>>>()?;
            // Free the steps, which may have ten thousand members: the change-sets have everything that is written.
            let counts: Vec<usize> = steps.into_iter().map(|step| step.count).collect();
            let written = self.documents.write(&sets).await?;
            let done = counts.into_iter().zip(&written).filter(|(_, is_written)| **is_written);
            sealed += done.map(|(count, _)| count).sum::<usize>();
            let lost = due.into_iter().zip(&written).filter(|(_, is_written)| !**is_written);
            due = lost.map(|(entry, _)| entry).collect();
            if due.is_empty() {
                break;
            }
            // Other instances have changed these groups, and some may not be due any more.
            let names: Vec<String> = due.iter().map(|entry| entry.name.clone()).collect();
            let at = self.groups_due(&names).await?;
            let again = due.into_iter().zip(at).filter_map(|(entry, at)| {
                let at = at.filter(|at| *at <= now)?;
                Some(IndexEntry { at: at.as_millis(), ..entry })
            });
            due = again.collect();
        }
        // Groups that change too often stay due.
        Ok(sealed)
    }

    /// The decisions on due groups, from their stored state.
    async fn due_steps<'a>(
        &self,
        due: &[IndexEntry],
        destinations: &'a Destinations,
        now: Timestamp,
    ) -> Result<Vec<GroupStep<'a>>> {
        let keys: Vec<String> = due.iter().map(|entry| entry.name.clone()).collect();
        let groups = self.documents.read(&keys).await?;
        let new = |(entry, group): (&IndexEntry, _)| {
            let at = Some(Timestamp::from_millis(entry.at));
            GroupStep::new(group, at, (destinations, now), self.partitions())
        };
        let mut steps: Vec<GroupStep> = due.iter().zip(groups).map(new).collect();
        let open: Vec<usize> = (0..steps.len()).filter(|at| !steps[*at].hold()).collect();
        // Read before the names: a member that begins to wait afterwards changes the version.
        self.load_versions(&mut steps, &open).await?;
        self.load_lasting(&mut steps).await?;
        let waiting = self.load_waiting(&steps, &open).await?;
        let ready: Vec<Vec<WaitingName>> =
            open.iter().zip(&waiting).map(|(at, waiting)| steps[*at].ready(waiting)).collect();
        let names = open.iter().zip(&ready);
        let names = names.flat_map(|(at, ready)| {
            let read = |one: &WaitingName| {
                let begin = begin_of_blindness(&one.member).map(str::to_owned);
                std::iter::once(one.member.clone()).chain(begin)
            };
            ready.iter().flat_map(read).map(move |name| (*at, name))
        });
        let names: Vec<(usize, String)> = names.collect();
        self.load_members(&mut steps, &names).await?;
        let lanes = open.iter().zip(&ready).filter(|(_, ready)| !ready.is_empty()).flat_map(|(at, ready)| {
            let receivers = steps[*at].may_tell(ready.iter().any(|one| !one.is_silence));
            receivers.into_iter().map(move |receiver| (*at, receiver))
        });
        let lanes: Vec<(usize, String)> = lanes.collect();
        self.load_lanes(&mut steps, lanes).await?;
        for ((at, waiting), ready) in open.into_iter().zip(waiting).zip(ready) {
            steps[at].seal(waiting, ready)?;
        }
        Ok(steps)
    }

    /// The first waiting members of these groups, in order: as many as a notification may have, and one more.
    async fn load_waiting(&self, steps: &[GroupStep<'_>], of: &[usize]) -> Result<Vec<Vec<WaitingName>>> {
        let range = |at: &usize| {
            [false, true].map(|is_silence| waiting_in(steps[*at].key(), self.partitions(), is_silence))
        };
        let ranges: Vec<_> = of.iter().flat_map(range).collect();
        let names = self.documents.names(Index::Waiting, &ranges, MAX_MEMBERS + 1).await?;
        let read = |names: &[Vec<String>]| {
            let names = names.iter().flatten();
            names.filter_map(|name| WaitingName::read(name)).collect::<Vec<WaitingName>>()
        };
        Ok(names.chunks(2).map(read).collect())
    }
}
