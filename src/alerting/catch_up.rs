//! Waits for the outboxes of other instances before this instance seals its groups.
//!
//! A return, or a gateway that inhibits, may be in the outbox of another instance. A live instance lets its entries
//! join within a fraction of a second; a dead one keeps its outboxes until its lease ends. So this instance seals a
//! due group only after all entries that were in those outboxes at that time have joined. Otherwise operators would
//! be notified of a unit that is back. Entries that stay in their outbox join here: joining twice is joining once.

use std::time::{Duration, Instant};

use crate::clock::{Timestamp, monotonic};
use crate::store::{OutboxStore, Position, Result};

/// After this time without a change, no instance works on an outbox.
const STALLED: Duration = Duration::from_millis(500);

/// How far the outboxes of other instances have joined.
pub(super) struct CatchUp {
    /// Every entry from before this moment has joined.
    up_to: Timestamp,
    under_way: Option<OutboxSnapshot>,
}

/// The contents of the outboxes at one moment.
struct OutboxSnapshot {
    at: Timestamp,
    since: Instant,
    /// Outboxes that still have entries from before that moment.
    left: Vec<OutboxBacklog>,
}

struct OutboxBacklog {
    /// The newest entry when the snapshot was taken.
    newest: Position,
    /// The oldest entry, and since when it is the oldest.
    oldest: Position,
    since: Instant,
}

impl OutboxSnapshot {
    async fn take(store: &dyn OutboxStore, others: &[u16], at: Timestamp) -> Result<OutboxSnapshot> {
        let since = monotonic();
        let newest = store.newest_entries(others).await?;
        let left = newest.into_iter().map(|newest| OutboxBacklog { oldest: newest.clone(), newest, since });
        Ok(OutboxSnapshot { at, since, left: left.collect() })
    }

    /// Reads which entries are left.
    async fn update(&mut self, store: &dyn OutboxStore) -> Result<()> {
        let newest: Vec<Position> = self.left.iter().map(|one| one.newest.clone()).collect();
        let oldest = if newest.is_empty() { Vec::new() } else { store.oldest_up_to(&newest).await? };
        let now = monotonic();
        self.left.retain_mut(|one| {
            let Some(found) = oldest.iter().find(|entry| entry.outbox == one.newest.outbox) else {
                return false;
            };
            if *found != one.oldest {
                (one.oldest, one.since) = (found.clone(), now);
            }
            true
        });
        Ok(())
    }
}

impl CatchUp {
    pub fn begin() -> CatchUp {
        CatchUp { up_to: Timestamp::ZERO, under_way: None }
    }

    /// Observes the outboxes of other instances. Answers the outboxes on which no instance works: their entries join
    /// here. `longest`: how long groups wait for others; `now`: the own outboxes have joined up to this moment.
    pub async fn observe(
        &mut self,
        store: &dyn OutboxStore,
        others: &[u16],
        longest: Duration,
        now: Timestamp,
    ) -> Result<Vec<u16>> {
        if others.is_empty() {
            *self = CatchUp { up_to: now, under_way: None };
            return Ok(Vec::new());
        }
        let snapshot = match &mut self.under_way {
            Some(snapshot) => {
                snapshot.update(store).await?;
                snapshot
            }
            none => none.insert(OutboxSnapshot::take(store, others, now).await?),
        };
        let stalled: Vec<u16> = snapshot
            .left
            .iter()
            .filter(|one| {
                monotonic().duration_since(one.since) >= STALLED && others.contains(&one.newest.outbox)
            })
            .map(|one| one.newest.outbox)
            .collect();
        if snapshot.left.is_empty() || monotonic().duration_since(snapshot.since) >= longest {
            self.up_to = snapshot.at;
            self.under_way = None;
        }
        Ok(stalled)
    }

    /// Groups that are due up to this moment may be sealed.
    pub fn up_to(&self) -> Timestamp {
        self.up_to
    }
}
