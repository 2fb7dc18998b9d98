//! Entries of the outbox whose events have joined their groups.
//!
//! In a cluster a unit's partition and that of its group may be on different servers. If an entry left its outbox as
//! soon as its events had joined, and the server of the group were replaced by a replica without them, no receiver
//! would be notified: the record would be there, and its event nowhere. So an entry stays until replicas have what
//! joined. If they do not answer in time, the next entries follow anyway, and this one is passed over. As soon as
//! another server takes over it is read again, and joins once more, which changes nothing where it did not get lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::{RedisEngine, outbox};
use crate::store::{Position, Result};

/// How often replicas are waited for again.
const RETRY: Duration = Duration::from_secs(1);

/// How long an entry stays for replicas that do not answer, and how many of them stay in an outbox: a replica that
/// lags further is not promoted while others live, and one that is gone permanently delays the removal only.
const MAX_AGE: Duration = Duration::from_secs(60);
const MAX_ENTRIES: usize = 100_000;

#[derive(Default)]
pub(super) struct JoinedEntries(Mutex<BTreeMap<u16, Outbox>>);

/// The oldest entries of an outbox, all of which have joined; most of the time there are none.
struct Outbox {
    ids: Vec<String>,
    /// The partitions of the groups that they joined.
    groups: BTreeSet<u16>,
    /// When the outbox was read, before the first of them joined.
    since: Instant,
    asked: Instant,
}

impl Outbox {
    fn read_now() -> Outbox {
        let now = Instant::now();
        Outbox { ids: Vec::new(), groups: BTreeSet::new(), since: now, asked: now }
    }
}

impl JoinedEntries {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u16, Outbox>> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// The last entry of an outbox that has joined; the next ones have not.
    pub fn last(&self, outbox: u16) -> Option<String> {
        self.all().get(&outbox)?.ids.last().cloned()
    }
}

impl RedisEngine {
    /// Removes entries that have joined groups in these partitions, or passes over them until replicas have them.
    /// Entries that may have been lost stay, and join again.
    pub(super) async fn remove_joined(&self, entries: &[Position], groups: &BTreeSet<u16>) -> Result<()> {
        if !self.topology.has_parts() {
            return outbox::remove(self, entries).await;
        }
        let have_them = self.wait_for_replicas(groups.clone()).await;
        let mut by_outbox: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for Position { outbox, id } in entries {
            by_outbox.entry(*outbox).or_default().push(id.clone());
        }
        let mut removed = Vec::new();
        for (outbox, ids) in by_outbox {
            let mut all = self.joined_entries.all();
            let joined = all.entry(outbox).or_insert_with(Outbox::read_now);
            if self.is_one_replaced(groups, outbox, joined.since) {
                continue;
            }
            if have_them {
                removed.extend(ids.into_iter().map(|id| Position { outbox, id }));
            } else {
                joined.ids.extend(ids);
                joined.groups.extend(groups);
            }
        }
        outbox::remove(self, &removed).await
    }

    /// Removes entries of these outboxes that replicas have by now, and forgets those that may have been lost. To be
    /// called before the outboxes are read.
    pub(super) async fn review_joined(&self, outboxes: &[u16]) -> Result<()> {
        if !self.topology.has_parts() {
            return Ok(());
        }
        for outbox in outboxes {
            let Some((groups, since, is_over)) = self.joined_to_review(*outbox) else { continue };
            let have_them = self.wait_for_replicas(groups.clone()).await;
            if !(have_them || is_over) || self.is_one_replaced(&groups, *outbox, since) {
                continue;
            }
            let Some(joined) = self.joined_entries.all().insert(*outbox, Outbox::read_now()) else {
                continue;
            };
            let entry = |id| Position { outbox: *outbox, id };
            outbox::remove(self, &joined.ids.into_iter().map(entry).collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    /// The groups of the entries of an outbox for which replicas are to be asked again, when that outbox was read, and
    /// whether it is the last time.
    fn joined_to_review(&self, outbox: u16) -> Option<(BTreeSet<u16>, Instant, bool)> {
        let mut all = self.joined_entries.all();
        let joined = all.entry(outbox).or_insert_with(Outbox::read_now);
        if joined.ids.is_empty() || self.is_one_replaced(&joined.groups, outbox, joined.since) {
            *joined = Outbox::read_now();
            return None;
        }
        if joined.asked.elapsed() < RETRY {
            return None;
        }
        joined.asked = Instant::now();
        let is_over = joined.since.elapsed() > MAX_AGE || joined.ids.len() > MAX_ENTRIES;
        Some((joined.groups.clone(), joined.since, is_over))
    }

    /// Whether a server of an outbox or of the groups that its entries joined has taken over since.
    fn is_one_replaced(&self, groups: &BTreeSet<u16>, outbox: u16, since: Instant) -> bool {
        groups.iter().chain([&outbox]).any(|number| {
            let primary_since = self.topology.primary_since(self.keys.slot_of_outbox(*number));
            primary_since.is_some_and(|primary_since| primary_since > since)
        })
    }
}
