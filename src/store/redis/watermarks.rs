//! The watermark of each partition: up to when its server has the heartbeats that Rollcall heard.
//!
//! A cluster keeps `heard` on one server and the heartbeats on all of them. Replication lags, so a replica that
//! becomes the primary lacks the newest heartbeats, while `heard` on another server says that they were recorded.
//! Therefore each canary also leaves a watermark in every partition, behind the heartbeats before it. The next canary
//! reads the watermarks first: if one is older than `heard`, heartbeats since then are lost, and Rollcall counts as
//! having heard only up to that watermark. As for every other gap, the time from there to the new canary is a blind
//! interval. A partition that moves to another server takes its watermark along.
//!
//! Between the promotion and that canary, units of the new primary seem silent though `heard` says that all was heard.
//! Therefore a deadline check reads the watermark with the units, and counts as heard only the time before both.
//!
//! If the clock of a server has jumped forward since the last canary, or a replica with another clock was promoted,
//! keys have expired too early, and their heartbeats are lost as well: see `clock_jump.rs`. So a watermark holds how
//! far that clock is ahead, and counts as earlier by the jump. The offset is taken when the watermarks are read: a
//! later jump shows at the next canary.
//!
//! Heartbeats that a server has lost were heard, so no connection makes up for them: the blind interval reaches up to
//! the canary, also if the session that hears is younger than the watermark, and after a jump however short it is.
//!
//! A server that dies may lose acknowledged heartbeats that no watermark covers yet: the heartbeats since the last
//! canary. That time is long while a canary waits for another server. So the first canary after a primary was replaced
//! ends a blind interval, however short it is. Watermarks are raised only at the primaries that were read: a new
//! primary would get the watermark of heartbeats that it lacks.
//!
//! A partition without a watermark, while others have theirs, was emptied, and its units are lost: operators are
//! notified. Until every partition has had its first watermark, no partition counts as emptied: the fleet is new, or
//! came from a single server. Whether every partition has had its watermark is read before the watermarks, because
//! another instance may write the last of the first watermarks meanwhile. If a canary has read the watermark of a
//! partition, and that watermark is gone when the canary writes, the canary does not write it again: the partition
//! was emptied meanwhile, and the next canary has to detect that.
//!
//! A single server needs no watermarks: it loses heartbeats and `heard` together.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{try_join, try_join_all};
use parking_lot::Mutex;
use redis::pipe;

use super::RedisEngine;
use super::clock_difference::{ClockOffset, server_time};
use super::clock_jump::SHORTEST;
use super::keys::Keys;
use super::reading::milliseconds;
use super::topology::{RedisServer, ScriptCall, ServerView, Topology};
use crate::clock::{Timestamp, monotonic};
use crate::presence::Gap;
use crate::store::Result;

/// The field of `heard` that exists since every partition has had its watermark.
pub(super) const HAS_WATERMARKS: &[u8] = b"has_watermarks";

/// The watermark of a partition. Its stored form: `1798000000000` or `1798000000000 -12` (ms).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watermark {
    /// Up to when the server has the heartbeats.
    pub heard: Timestamp,
    /// How far the clock of the server was ahead of the time of the fleet, at the most (ms); `None`: unknown.
    ahead: Option<i64>,
}

impl Watermark {
    /// `None`: the text is not a watermark, and counts as absent.
    pub fn parse(text: &[u8]) -> Option<Watermark> {
        let mut words = text.split(|byte| *byte == b' ');
        let heard = Timestamp::from_millis(milliseconds(words.next()?)?);
        let ahead = words.next().and_then(|word| str::from_utf8(word).ok()?.parse().ok());
        Some(Watermark { heard, ahead })
    }

    fn text(self) -> String {
        let heard = self.heard.as_millis();
        self.ahead.map_or_else(|| heard.to_string(), |ahead| format!("{heard} {ahead}"))
    }

    /// Up to when the server still has the heartbeats; `offset`: the current offset of its clock.
    pub fn kept(self, offset: Option<ClockOffset>) -> Timestamp {
        let jump = offset.zip(self.ahead).map_or(0, |(now, ahead)| now.least.saturating_sub(ahead));
        let jump = Duration::from_millis(u64::try_from(jump).unwrap_or_default());
        if jump > SHORTEST { self.heard - jump } else { self.heard }
    }
}

/// The watermarks, read before a canary is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watermarks {
    pub oldest: Option<Timestamp>,
    /// Whether the clock of a server has jumped forward since its watermark.
    pub has_jump: bool,
    /// The partitions that were emptied.
    pub emptied: Vec<u16>,
    /// How far the clock of the server of each partition was ahead of the time of the fleet, at the most (ms).
    ahead: Vec<Option<i64>>,
    /// Whether every partition had a watermark before these were read. If not, another instance may be writing the
    /// first watermarks.
    pub were_complete: bool,
}

impl Watermarks {
    /// `read`: the watermark of each partition, and the offset of the clock of its server.
    fn of(read: &[(Option<Watermark>, Option<ClockOffset>)], were_complete: bool) -> Watermarks {
        let kept =
            read.iter().filter_map(|(watermark, offset)| watermark.map(|one| (one.kept(*offset), one.heard)));
        let ahead = read.iter().map(|(watermark, offset)| {
            offset.map(|offset| offset.most).or_else(|| watermark.as_ref()?.ahead)
        });
        let ahead = ahead.collect();
        let Some(oldest) = kept.clone().map(|(kept, _)| kept).min() else {
            return Watermarks { ahead, ..Watermarks::default() };
        };
        let emptied = (0..).zip(read).filter(|(_, (watermark, _))| watermark.is_none());
        let emptied = emptied.map(|(partition, _)| partition).collect();
        let has_jump = kept.clone().any(|(kept, heard)| kept < heard);
        Watermarks { oldest: Some(oldest), has_jump, emptied, ahead, were_complete }
    }

    /// Whether servers have lost heartbeats up to `heard`. A canary of another instance that is being recorded raises
    /// the watermarks a little later than `heard`, and loses nothing.
    pub fn have_lost(&self, heard: Timestamp, gap: Gap) -> bool {
        self.has_jump || self.oldest.is_some_and(|oldest| heard.since(oldest) > gap.blind)
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

/// Primaries by their addresses, and since when each is a primary: a replaced server may become a primary again.
pub(super) type Primaries = BTreeSet<(String, Option<Instant>)>;

pub(super) fn primaries(view: &ServerView) -> Primaries {
    view.map.servers().iter().map(|server| (server.address().to_owned(), server.since())).collect()
}

/// The primaries at the last canary of this instance that ended a blind interval, or had none to end.
#[derive(Default)]
pub(super) struct KnownPrimaries(Mutex<Primaries>);

impl KnownPrimaries {
    /// Whether a known primary is missing from these.
    pub fn is_one_replaced(&self, primaries: &Primaries) -> bool {
        !self.0.lock().is_subset(primaries)
    }

    pub fn keep(&self, primaries: Primaries) {
        *self.0.lock() = primaries;
    }
}

/// Reads the watermark of each partition.
pub(super) async fn read(topology: &Topology, keys: &Keys) -> Result<Vec<Option<Watermark>>> {
    let mut read = pipe();
    for partition in 0..keys.partitions() {
        read.get(keys.in_partition(partition, "heard"));
    }
    let watermarks: Vec<Option<Vec<u8>>> = topology.send("watermarks", &read).await?;
    Ok(watermarks.iter().map(|watermark| watermark.as_deref().and_then(Watermark::parse)).collect())
}

impl RedisEngine {
    /// Reads the watermarks; a single server has none.
    pub(super) async fn read_watermarks(&self) -> Result<Watermarks> {
        if !self.topology.has_parts() {
            return Ok(Watermarks::default());
        }
        let were_complete = self.had_watermarks().await?;
        let view = self.topology.view().await?;
        let offsets = try_join_all(view.map.servers().iter().map(|server| self.clock_offset(server)));
        let (watermarks, offsets) = try_join(read(&self.topology, &self.keys), offsets).await?;
        let offset = |partition| offsets.get(view.map.index(self.keys.slot(partition))?).copied().flatten();
        let read: Vec<_> = (0..).zip(watermarks).map(|(partition, one)| (one, offset(partition))).collect();
        Ok(Watermarks::of(&read, were_complete))
    }

    /// How far the clock of a server is ahead of the time of the fleet; `None` before the first renewal.
    async fn clock_offset(&self, server: &RedisServer) -> Result<Option<ClockOffset>> {
        let (known, sent) = (*self.server_clock.lock(), monotonic());
        let mut time = pipe();
        time.cmd("TIME");
        let (time,): ((i64, i64),) = self.topology.send_to("watermarks", server, &time).await?;
        Ok(known.offset_of((sent, monotonic()), server_time(time)))
    }

    /// Whether every partition of the fleet has had its watermark.
    async fn had_watermarks(&self) -> Result<bool> {
        if self.known_fleet.lock().has_watermarks {
            return Ok(true);
        }
        let mut read = pipe();
        read.hexists(self.keys.heard(), HAS_WATERMARKS);
        let (has_watermarks,): (bool,) = self.topology.send("watermarks", &read).await?;
        self.known_fleet.lock().has_watermarks = has_watermarks;
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
                let ahead = read.ahead.get(usize::from(partition)).copied().flatten();
                script.key(self.keys.in_partition(partition, "heard")).arg(heard.as_millis());
                script.arg(Watermark { heard, ahead }.text()).arg(if read.has(partition) {
                    "XX"
                } else {
                    ""
                });
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

    fn at(heard: i64, ahead: Option<i64>) -> Watermark {
        Watermark { heard: Timestamp::from_millis(heard), ahead }
    }

    #[test]
    fn the_oldest_watermark_counts_and_a_missing_one_is_a_loss_beside_others() {
        let of = |watermarks: [Option<i64>; 3]| {
            Watermarks::of(&watermarks.map(|heard| (heard.map(|heard| at(heard, None)), None)), true)
        };
        let watermarks = |oldest, emptied| Watermarks {
            oldest: Some(Timestamp::from_millis(oldest)),
            has_jump: false,
            emptied,
            ahead: vec![None; 3],
            were_complete: true,
        };
        assert_eq!(of([Some(3), Some(2), Some(5)]), watermarks(2, vec![]));
        let has = |watermarks: [Option<i64>; 3]| [0, 1, 2].map(|partition| of(watermarks).has(partition));
        assert_eq!(has([Some(3), None, Some(5)]), [true, false, true]);
        assert_eq!(has([None, None, None]), [false; 3], "a new fleet");
        assert_eq!(of([Some(3), None, None]), watermarks(3, vec![1, 2]));
        assert_eq!(of([None; 3]), Watermarks { ahead: vec![None; 3], ..Watermarks::default() });
    }

    #[test]
    fn a_watermark_counts_as_earlier_by_the_jump_of_its_servers_clock() {
        // (how far the clock was ahead, how far it is at least, up to when the server still has all)
        for (before, now, kept) in [
            (None, Some(3_600_000), 10_000),
            (Some(0), None, 10_000),
            (Some(0), Some(250), 10_000),
            (Some(0), Some(251), 9_749),
            (Some(-3_600_000), Some(0), -3_590_000),
            (Some(3_600_000), Some(3_600_000), 10_000),
            (Some(3_600_000), Some(0), 10_000), // keys live longer, which does no harm
        ] {
            let offset = now.map(|least| ClockOffset { least, most: least + 5 });
            let kept_now = at(10_000, before).kept(offset);
            assert_eq!(kept_now, Timestamp::from_millis(kept), "{before:?} {now:?}");
            let read = Watermarks::of(&[(Some(at(10_000, before)), offset)], true);
            assert_eq!((read.oldest, read.has_jump), (Some(kept_now), kept < 10_000));
            assert_eq!(read.ahead, [now.map(|now| now + 5).or(before)], "what the next watermark holds");
        }
    }

    #[test]
    fn a_watermark_is_read_as_it_was_written_and_nonsense_is_none() {
        for watermark in [at(1_798_000_000_000, None), at(1_798_000_000_000, Some(-12))] {
            assert_eq!(Watermark::parse(watermark.text().as_bytes()), Some(watermark));
        }
        for text in ["", " ", "soon", " 5", "\u{0}"] {
            assert_eq!(Watermark::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Watermark::parse(b"5 soon"), Some(at(5, None)));
    }
}
