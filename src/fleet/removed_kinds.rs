//! Kinds that are no longer configured, and whether they were removed for long enough to close what is open of them:
//! nothing watches their units, so nothing else would ever close it.
//!
//! The time is counted in memory, so a restart begins it again: a wrong file that is corrected in time closes nothing.
//! Instances announce their kinds with their counts: see [`super::census`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

use super::ownership::View;
use crate::clock::Timestamp;
use crate::presence::Kind;
use crate::store::{Result, Roster};

pub struct RemovedKinds {
    /// How long what is open of a kind stays open.
    stay: Duration,
    /// Since when no instance is known to be configured with the kind.
    since: Mutex<BTreeMap<Kind, Timestamp>>,
}

impl RemovedKinds {
    /// What is open of a kind stays open for `stay` after the kind is known to be removed.
    pub fn new(stay: Duration) -> RemovedKinds {
        RemovedKinds { stay, since: Mutex::default() }
    }

    pub fn stay(&self) -> Duration {
        self.stay
    }

    /// Notes that something is open of these kinds, which this instance is not configured with. Answers those that no
    /// instance was configured with for long enough.
    pub async fn due(
        &self,
        met: BTreeSet<Kind>,
        roster: &dyn Roster,
        view: &View,
        now: Timestamp,
    ) -> Result<BTreeSet<Kind>> {
        if met.is_empty() {
            return Ok(met);
        }
        let others: Vec<String> =
            view.instances.iter().filter(|name| **name != view.instance).cloned().collect();
        let elsewhere = if others.is_empty() { Vec::new() } else { roster.counts(&others).await? };
        let mut since = self.since.lock();
        let is_due = |kind: &Kind| {
            let begun = since.entry(kind.clone()).or_insert(now);
            if elsewhere.iter().any(|counts| counts.contains_key(kind.as_str())) {
                *begun = now;
            }
            now.since(*begun) >= self.stay
        };
        Ok(met.into_iter().filter(is_due).collect())
    }

    /// Forgets the other kinds: nothing is open of them any more.
    pub fn keep(&self, is_open: impl Fn(&Kind) -> bool) {
        self.since.lock().retain(|kind, _| is_open(kind));
    }
}
