//! The watermark of each partition: up to when its server has the heartbeats that Rollcall heard.
//!
//! A cluster keeps `heard` on one server and the heartbeats on all of them. Replication lags, so a replica that
//! becomes the primary lacks the newest heartbeats, while `heard` on another server says that they were recorded.
//! Therefore each canary also leaves a watermark in every partition, behind the heartbeats before it. The next canary
//! reads the watermarks first: if one is older than `heard`, heartbeats since then are lost, and Rollcall counts as
//! having heard up to that watermark only. As for every other gap, the time from there to the new canary is a blind
//! interval. A partition that moves to another server takes its watermark along.
//!
//! Between the promotion and that canary, units of the new primary seem silent though `heard` says that all was heard.
//! Therefore a deadline check reads the watermark with the units, and counts as heard only the time before both.
//!
//! A server that dies may lose acknowledged heartbeats that no watermark covers yet: the heartbeats since the last
//! canary. That time is long while a canary waits for another server. So the first canary after a primary was replaced
//! ends a blind interval, however short it is. Watermarks are raised only at the primaries that were read: a new
//! primary would get the watermark of heartbeats that it lacks.
//!
//! A partition without a watermark, while others have theirs, was emptied, and its units are lost: operators are
//! notified. Until every partition has had its first watermark, no partition counts as emptied: the fleet is new, or
//! came from a single server. Whether every partition has had it is read before the watermarks, because another
//! instance may write the last of the first watermarks meanwhile. If a canary has read the watermark of a partition, it
//! does not write a watermark that is gone by then: the partition was emptied meanwhile, and the next canary has to see
//! that.
//!
//! A single server needs no watermarks: it loses heartbeats and `heard` together.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use redis::pipe;

use super::RedisEngine;
use super::keys::Keys;
use super::reading::milliseconds;
use super::topology::{ScriptCall, ServerView, Topology};
use crate::clock::Timestamp;
use crate::store::Result;

/// The field of `heard` that is there since every partition has had its watermark.
pub(super) const HAS_WATERMARKS: &[u8] = b"has_watermarks";

/// The watermarks, as they were read before a canary is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watermarks {
    pub oldest: Option<Timestamp>,
    /// The partitions that were emptied.
    pub emptied: Vec<u16>,
    /// Whether every partition had a watermark before these were read. If not, another instance may be writing the
    /// first watermarks.
    pub were_complete: bool,
}

impl Watermarks {
    fn of(watermarks: &[Option<Timestamp>], were_complete: bool) -> Watermarks {
        let Some(oldest) = watermarks.iter().flatten().min() else { return Watermarks::default() };
        let emptied = (0..)
            .zip(watermarks)
            .filter(|(_, watermark)| watermark.is_none())
            .map(|(partition, _)| partition);
        Watermarks { oldest: Some(*oldest), emptied: emptied.collect(), were_complete }
    }

    /// Whether every partition has a watermark.
    pub fn are_complete(&self) -> bool {
        self.oldest.is_some() && self.emptied.is_empty()
    }

    /// Whether the partition had a watermark.
    fn has(&self, partition: u16) -> bool {
        self.oldest.is_some() && !self.emptied.contains(&partition)
    }
}

/// Primaries by their addresses, and since when each is a primary: a server that was replaced may become a primary
/// again.
pub(super) type Primaries = BTreeSet<(String, Option<Instant>)>;

pub(super) fn primaries(view: &ServerView) -> Primaries {
    view.map.servers().iter().map(|server| (server.address().to_owned(), server.since())).collect()
}

/// The primaries when a canary of this instance ended the last blind interval, or needed to end none.
#[derive(Default)]
pub(super) struct KnownPrimaries(Mutex<Primaries>);

impl KnownPrimaries {
    /// Whether a known primary is not among these any more.
    pub fn is_one_replaced(&self, primaries: &Primaries) -> bool {
        !self.0.lock().expect("nothing panics under this lock").is_subset(primaries)
    }

    pub fn keep(&self, primaries: Primaries) {
        *self.0.lock().expect("nothing panics under this lock") = primaries;
    }
}

/// Reads the watermark of each partition.
pub(super) async fn read(topology: &Topology, keys: &Keys) -> Result<Vec<Option<Timestamp>>> {
    let mut read = pipe();
    for partition in 0..keys.partitions() {
        read.get(keys.in_partition(partition, "heard"));
    }
    let watermarks: Vec<Option<Vec<u8>>> = topology.send("watermarks", &read).await?;
    let moment = |watermark: &Option<Vec<u8>>| watermark.as_deref().and_then(milliseconds);
    Ok(watermarks.iter().map(|watermark| moment(watermark).map(Timestamp::from_millis)).collect())
}

impl RedisEngine {
    /// Reads the watermarks; a single server has none.
    pub(super) async fn read_watermarks(&self) -> Result<Watermarks> {
        if !self.topology.has_parts() {
            return Ok(Watermarks::default());
        }
        let were_complete = self.had_watermarks().await?;
        Ok(Watermarks::of(&read(&self.topology, &self.keys).await?, were_complete))
    }

    /// Whether every partition of the fleet has had its watermark.
    async fn had_watermarks(&self) -> Result<bool> {
        if self.known_fleet().has_watermarks {
            return Ok(true);
        }
        let mut read = pipe();
        read.hexists(self.keys.heard(), HAS_WATERMARKS);
        let (has_watermarks,): (bool,) = self.topology.send("watermarks", &read).await?;
        self.known_fleet().has_watermarks = has_watermarks;
        Ok(has_watermarks)
    }

    /// Raises the watermarks to `heard`. `read`: the watermarks before the canary, of the primaries of the view.
    pub(super) async fn raise_watermarks(
        &self,
        view: &Arc<ServerView>,
        heard: Timestamp,
        read: &Watermarks,
    ) -> Result<()> {
        if !self.topology.has_parts() {
            return Ok(());
        }
        let steps = (0..self.keys.partitions()).map(|partition| {
            let raise = async move {
                let mut script = ScriptCall::of(&self.scripts.raise);
                script.key(self.keys.in_partition(partition, "heard")).arg(heard.as_millis());
                script.arg(if read.has(partition) { "XX" } else { "" });
                self.topology.run_under::<u8>(view, "watermarks", script).await
            };
            (self.keys.slot(partition), raise)
        });
        self.topology.run_limited(steps.collect()).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn a_primary_that_is_replaced_counts_until_a_canary_was_recorded() {
        let of = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), None)).collect::<Primaries>();
        let known = KnownPrimaries::default();
        assert!(!known.is_one_replaced(&of(&["a", "b"])), "the first canary");
        known.keep(of(&["a", "b"]));
        assert!(!known.is_one_replaced(&of(&["a", "b", "c"])), "one is added");
        assert!(known.is_one_replaced(&of(&["a", "c"])));
        assert!(known.is_one_replaced(&of(&["a", "c"])), "its canary was not recorded");
        known.keep(of(&["a", "c"]));
        assert!(!known.is_one_replaced(&of(&["a", "c"])));
        let again = Primaries::from([("a".to_owned(), None), ("c".to_owned(), Some(monotonic()))]);
        assert!(known.is_one_replaced(&again), "another one was the primary meanwhile");
    }

    #[test]
    fn the_oldest_watermark_counts_and_a_missing_one_is_a_loss_beside_others() {
        let at = |ms: Option<i64>| ms.map(Timestamp::from_millis);
        let of = |watermarks: [Option<i64>; 3]| Watermarks::of(&watermarks.map(at), true);
        let watermarks =
            |oldest, emptied| Watermarks { oldest: at(Some(oldest)), emptied, were_complete: true };
        assert_eq!(of([Some(3), Some(2), Some(5)]), watermarks(2, vec![]));
        let has = |watermarks: [Option<i64>; 3]| [0, 1, 2].map(|partition| of(watermarks).has(partition));
        assert_eq!(has([Some(3), None, Some(5)]), [true, false, true]);
        assert_eq!(has([None, None, None]), [false; 3], "a new fleet");
        assert_eq!(of([Some(3), None, None]), watermarks(3, vec![1, 2]));
        assert_eq!(of([None; 3]), Watermarks::default());
    }
}
