//! The clocks of the servers of a cluster, and how they affect deadlines.
//!
//! | what | goes by |
//! |---|---|
//! | deadlines, last seen times, records, blind intervals, leases | the time of the fleet: the clock of the server that keeps `{hearing}`, which never goes back, see `renew.lua` |
//! | the deadline index, and every other sorted set of moments | the same: the caller gives the moment |
//! | the end of an expiry key (`PX`) | the clock of the server that has its partition |
//!
//! A server with a wrong clock is no danger as long as the clock goes evenly: it adds the rest of a key's life to its
//! own time. But a replica gets the end of each key by the clock of its primary. A replica whose clock is ahead removes
//! keys too early as soon as it is promoted, and with them the newest heartbeats of their units; a clock that is set
//! forward does the same. Keys that live too long do no harm: the deadline index finds their units.
//!
//! So the offset of each partition's clock from the time of the fleet is stored. Each renewal of a lease reads the
//! clock of every primary with its role, and each deadline check reads the clock behind its units. An offset that has
//! grown is a jump, by the rule of `clock_jump.rs`: no check decides until a renewal has moved `heard` back by the
//! length of the jump, and the next canary ends a blind interval. The same write stores the new offset, so that of
//! several instances one does this, and an instance that starts after the jump knows of it.
//!
//! # Why the whole fleet is blind
//! A failover is blind time of the whole fleet anyway, because canaries wait for the watermarks of every partition. A
//! ledger for each partition would double what a check reads, for a fault that time services prevent.
//!
//! # Why the clock of the server that keeps hearing is not followed here
//! The time of the fleet goes by it, and `renew.lua` handles its jumps. Partitions on the same server jump with it.

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use redis::pipe;

use super::RedisEngine;
use super::clock_jump::SHORTEST;
use super::conditional::{ConditionalWrite, Expect, Fields};
use super::reading::milliseconds;
use super::topology::Clocks;
use crate::clock::Timestamp;
use crate::presence::Hearing;
use crate::store::Result;

/// The field of `heard` with the offsets.
pub(super) const FIELD: &str = "clocks";

/// A smaller difference (ms) is not stored: clocks that time services follow differ by a few milliseconds.
const SMALLEST: i64 = 100;

/// How far the clock of each partition is ahead of the time of the fleet (ms); `None` if it is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offsets(Vec<Option<i64>>);

/// Between which offsets (ms) a clock was when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockReading {
    least: i64,
    most: i64,
    /// Whether a growth is a jump.
    may_jump: bool,
}

/// The clocks of partitions, as this instance knows them.
#[derive(Debug, Default)]
pub(super) struct PartitionClocks {
    /// When the last renewal was sent, and the time of the fleet in its answer.
    renewed: Option<(Instant, Timestamp)>,
    /// The stored offsets, as they were read last.
    stored: Option<Vec<u8>>,
    /// The offsets of clocks that have jumped, which no renewal has handled yet.
    jumped: BTreeMap<u16, i64>,
}

impl Offsets {
    /// The stored form is a list of `<number of partitions>:<offset>`, with `?` for an unknown one.
    fn parse(text: &[u8], partitions: u16) -> Option<Offsets> {
        let mut offsets = Vec::with_capacity(usize::from(partitions));
        for (count, offset) in runs(text) {
            let count = count.filter(|count| offsets.len() + count <= usize::from(partitions))?;
            offsets.resize(offsets.len() + count, offset);
        }
        (offsets.len() == usize::from(partitions)).then_some(Offsets(offsets))
    }

    fn text(&self) -> String {
        let runs = self.0.chunk_by(|a, b| a == b).map(|run| match run[0] {
            Some(offset) => format!("{}:{offset}", run.len()),
            None => format!("{}:?", run.len()),
        });
        runs.collect::<Vec<_>>().join(" ")
    }

    /// The offsets after clocks were read, and the longest jump with its partitions. `jumped`: offsets that were read
    /// in between.
    fn follow(
        &self,
        measured: &[Option<ClockReading>],
        jumped: &BTreeMap<u16, i64>,
    ) -> (Offsets, Option<(Duration, Vec<u16>)>) {
        let mut after = self.clone();
        let (mut longest, mut partitions) = (0, Vec::new());
        for ((partition, offset), measured) in (0..).zip(&mut after.0).zip(measured) {
            let before = *offset;
            let mut latest = jumped.get(&partition).copied();
            if let Some(ClockReading { least, most, may_jump }) = *measured {
                let now = before.unwrap_or(0).clamp(least, most);
                latest = latest.max(may_jump.then_some(now));
                if before.is_none_or(|before| (now - before).abs() > SMALLEST) {
                    *offset = Some(now);
                }
            }
            let jump = before.zip(latest).map_or(0, |(before, latest)| latest - before);
            if is_jump(jump) {
                longest = jump.max(longest);
                partitions.push(partition);
            }
        }
        let jump = (!partitions.is_empty()).then(|| (Duration::from_millis(longest as u64), partitions));
        (after, jump)
    }
}

fn is_jump(growth: i64) -> bool {
    growth > SHORTEST.as_millis() as i64
}

/// The runs of equal offsets in a stored text: how many partitions, and their offset.
fn runs(text: &[u8]) -> impl Iterator<Item = (Option<usize>, Option<i64>)> {
    text.split(|byte| *byte == b' ').map(|run| {
        let mut parts = run.splitn(2, |byte| *byte == b':');
        let count = parts.next().and_then(|count| str::from_utf8(count).ok()?.parse().ok());
        let offset = parts.next().and_then(|offset| str::from_utf8(offset).ok());
        // Anything else than an offset counts as unknown, and is written again.
        (count, offset.and_then(|offset| offset.parse().ok()))
    })
}

/// The offset of one partition in a stored text.
fn offset_of(text: &[u8], partition: u16) -> Option<i64> {
    let mut left = usize::from(partition);
    for (count, offset) in runs(text) {
        let count = count?;
        if left < count {
            return offset;
        }
        left -= count;
    }
    None
}

impl PartitionClocks {
    /// The stored offsets were read.
    pub fn keep(&mut self, stored: Option<&[u8]>) {
        if self.stored.as_deref() != stored {
            self.stored = stored.map(<[u8]>::to_vec);
        }
    }

    /// A check has read the clock of a partition, in an answer that arrived by `now`, and the stored offsets. Answers
    /// whether the clock of any partition has jumped.
    pub fn read(&mut self, partition: u16, now: Instant, clock: Timestamp, stored: Option<&[u8]>) -> bool {
        let stored = stored.and_then(|text| offset_of(text, partition));
        if let (Some((sent, fleet)), Some(stored)) = (self.renewed, stored) {
            // An answer that was on the network for long shows an earlier time.
            let least = clock.as_millis() - (fleet + now.duration_since(sent)).as_millis();
            if is_jump(least - stored) {
                let latest = self.jumped.entry(partition).or_insert(least);
                *latest = least.max(*latest);
            }
        }
        self.have_jumped()
    }

    /// Whether a clock has jumped, and no renewal has handled that.
    pub fn have_jumped(&self) -> bool {
        !self.jumped.is_empty()
    }

    /// A renewal that was sent at `sent` answered the time of the fleet.
    pub fn renewed(&mut self, sent: Instant, fleet: Timestamp) {
        self.renewed = Some((sent, fleet));
    }

    /// The time of the fleet at `now`, or a little later.
    pub fn fleet_time(&self, now: Instant) -> Option<Timestamp> {
        self.renewed.map(|(sent, fleet)| fleet + now.duration_since(sent))
    }

    /// These jumps are handled.
    fn handled(&mut self, jumped: &BTreeMap<u16, i64>) {
        self.jumped.retain(|partition, offset| jumped.get(partition) != Some(offset));
    }
}

impl RedisEngine {
    pub(super) fn partition_clocks(&self) -> MutexGuard<'_, PartitionClocks> {
        self.partition_clocks.lock().expect("nothing panics under this lock")
    }

    /// The hearing by which a check decides units of a partition, whose clock (s, µs) was read behind the units in an
    /// answer that arrived by `arrived`. `stored`: the offsets that were read with that hearing.
    pub(super) fn judged(
        &self,
        hearing: Hearing,
        partition: u16,
        (arrived, (seconds, micros)): (Instant, (i64, i64)),
        stored: Option<&[u8]>,
    ) -> Hearing {
        if self.server_clock().jumped().is_some() {
            // The time of the fleet is about to jump, and is no measure.
            return hearing;
        }
        let clock = Timestamp::from_millis(seconds * 1000 + micros / 1000);
        let jumped = self.partition_clocks().read(partition, arrived, clock, stored);
        Hearing { heard: hearing.heard.filter(|_| !jumped), ..hearing }
    }

    /// Stores the offsets of the clocks, and moves `heard` back if one has jumped. `sent` and `answered` are the begin
    /// and the end of the renewal that answered the time of the fleet.
    pub(super) async fn follow_clocks(
        &self,
        clocks: &Clocks,
        (sent, answered): (Instant, Instant),
        fleet: Timestamp,
    ) -> Result<()> {
        if !self.topology.has_parts() {
            return Ok(());
        }
        let measured = self.measured(clocks, (sent, answered), fleet);
        let (stored, jumped) = {
            let known = self.partition_clocks();
            (known.stored.clone(), known.jumped.clone())
        };
        let partitions = self.keys.partitions();
        let parse = |text: Option<&[u8]>| {
            let stored = text.and_then(|text| Offsets::parse(text, partitions));
            stored.unwrap_or_else(|| Offsets(vec![None; usize::from(partitions)]))
        };
        let stored = parse(stored.as_deref());
        let (after, jump) = stored.follow(&measured, &jumped);
        if after == stored && jump.is_none() {
            self.partition_clocks().handled(&jumped);
            return Ok(());
        }
        let decide = |read: &[&Fields], _: bool, write: &mut ConditionalWrite<'_>| {
            let heard = read[0];
            let text = heard.get(FIELD.as_bytes()).map(Vec::as_slice);
            let (after, jump) = parse(text).follow(&measured, &jumped);
            self.write_clocks(heard, &after.text(), jump.as_ref().map(|(by, _)| *by), write);
            jump
        };
        let (jump, ()) = self.write_if_unchanged("clocks", &[self.keys.heard()], &pipe(), decide).await?;
        self.partition_clocks().handled(&jumped);
        if let Some((by, partitions)) = jump {
            let servers: Vec<String> = self.servers_of(clocks, &partitions);
            tracing::warn!(
                seconds = by.as_secs_f64(),
                servers = servers.join(","),
                partitions = partitions.len(),
                "the clock of a server jumped forward, or a server with another clock took over, and expiry keys \
                 expired too early"
            );
        }
        Ok(())
    }

    /// Adds the write of new offsets and, after a jump, of an earlier `heard`.
    fn write_clocks(
        &self,
        heard: &Fields,
        text: &str,
        jump: Option<Duration>,
        write: &mut ConditionalWrite<'_>,
    ) {
        const AT: &[u8] = b"at";
        let at = heard.get(AT).filter(|_| jump.is_some());
        let names = [b"fleet".as_slice(), FIELD.as_bytes()].into_iter().chain(at.map(|_| AT));
        write.expect_some(heard, names.map(|name| (name, Expect::Same)));
        let is_known =
            heard.get(b"fleet".as_slice()).is_some_and(|id| id == self.known_fleet().id.as_bytes());
        if !is_known {
            // The loss of the fleet is handled first.
            return;
        }
        let key = self.keys.heard();
        if heard.get(FIELD.as_bytes()).is_none_or(|stored| stored != text.as_bytes()) {
            write.set(&key, FIELD.as_bytes(), text.as_bytes());
        }
        let at = at.and_then(|at| milliseconds(at)).map(Timestamp::from_millis);
        if let Some((at, jump)) = at.zip(jump) {
            write.set(&key, AT, (at - jump).as_millis().to_string().as_bytes());
        }
    }

    fn measured(
        &self,
        clocks: &Clocks,
        (sent, answered): (Instant, Instant),
        fleet: Timestamp,
    ) -> Vec<Option<ClockReading>> {
        let of_hearing = clocks.server(self.keys.slot_of_hearing());
        let of = |partition| {
            let server = clocks.server(self.keys.slot(partition))?;
            let read = clocks.read[server]?;
            let (earliest, latest) = (read.sent.duration_since(answered), read.arrived.duration_since(sent));
            let ahead = |passed: Duration| read.clock.as_millis() - (fleet + passed).as_millis();
            let may_jump = Some(server) != of_hearing;
            Some(ClockReading { least: ahead(latest), most: ahead(earliest), may_jump })
        };
        (0..self.keys.partitions()).map(of).collect()
    }

    /// The addresses of the servers that have these partitions.
    fn servers_of(&self, clocks: &Clocks, partitions: &[u16]) -> Vec<String> {
        let servers = partitions.iter().filter_map(|partition| clocks.server(self.keys.slot(*partition)));
        let servers: std::collections::BTreeSet<usize> = servers.collect();
        servers.into_iter().map(|server| clocks.address(server).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(least: i64, most: i64) -> Option<ClockReading> {
        Some(ClockReading { least, most, may_jump: true })
    }

    #[test]
    fn offsets_are_stored_as_runs_and_anything_else_is_not_read() {
        let offsets = Offsets(vec![Some(0), Some(0), Some(-3_600_000), None]);
        assert_eq!(offsets.text(), "2:0 1:-3600000 1:?");
        assert_eq!(Offsets::parse(offsets.text().as_bytes(), 4), Some(offsets));
        let text = b"2:0 1:-3600000 1:?";
        let of: Vec<Option<i64>> = (0..5).map(|partition| offset_of(text, partition)).collect();
        assert_eq!(of, [Some(0), Some(0), Some(-3_600_000), None, None]);
        for broken in ["", "x", "3:0", "5:0", "18446744073709551615:0 1:0", "4 0", "-4:0"] {
            let parsed = Offsets::parse(broken.as_bytes(), 4);
            assert!(parsed.is_none_or(|Offsets(offsets)| offsets == [None; 4]), "{broken:?}");
        }
    }

    #[test]
    fn a_clock_jumped_if_its_offset_grew_by_more_than_the_round_trip_explains() {
        // (the stored offset, the offsets between which it was, the offset then, the jump)
        let cases = [
            (Some(0), (-20, 30), Some(0), None),
            (Some(0), (90, 130), Some(0), None),
            (Some(0), (101, 130), Some(101), None),
            (Some(0), (250, 300), Some(250), None),
            (Some(0), (251, 300), Some(251), Some(251)),
            (Some(0), (-900, 3_600_000), Some(0), None),
            (Some(-3_600_000), (-5, 5), Some(-5), Some(3_599_995)),
            (Some(3_600_000), (-5, 5), Some(5), None),
            (None, (3_600_000, 3_600_010), Some(3_600_000), None),
        ];
        for (before, (least, most), after, jump) in cases {
            let (Offsets(followed), jumped) =
                Offsets(vec![before, None]).follow(&[read(least, most), None], &BTreeMap::new());
            assert_eq!(followed, [after, None], "{before:?} {least} {most}");
            let expected = jump.map(|ms| (Duration::from_millis(ms), vec![0]));
            assert_eq!(jumped, expected, "{before:?} {least} {most}");
        }
    }

    #[test]
    fn the_clock_that_the_fleet_goes_by_does_not_jump_here() {
        let measured = read(3_600_000, 3_600_001).map(|one| ClockReading { may_jump: false, ..one });
        let (Offsets(after), jump) = Offsets(vec![Some(0)]).follow(&[measured], &BTreeMap::new());
        assert_eq!((after, jump), (vec![Some(3_600_000)], None));
    }

    #[test]
    fn a_jump_that_a_check_found_lasts_until_a_renewal_has_handled_it() {
        let (begin, fleet) = (Instant::now(), Timestamp::from_millis(1_000_000_000));
        let after = |ms: u64| begin + Duration::from_millis(ms);
        let clock = |ms: i64| Timestamp::from_millis(1_000_000_000 + ms);
        let mut clocks = PartitionClocks::default();
        assert!(!clocks.read(1, begin, clock(60_000), Some(b"2:0")), "there was no renewal yet");
        clocks.renewed(begin, fleet);
        assert!(!clocks.read(1, after(100), clock(350), Some(b"2:0")));
        assert!(!clocks.read(1, after(100), clock(60_000), None), "no offset is known");
        assert!(
            !clocks.read(1, after(100), clock(60_000), Some(b"1:0 1:60000")),
            "another instance knows of it"
        );
        assert!(clocks.read(1, after(100), clock(60_100), Some(b"2:0")));
        assert!(
            clocks.read(1, after(200), clock(200), Some(b"2:0")),
            "also if the clock was set right again"
        );
        let jumped = clocks.jumped.clone();
        let (Offsets(offsets), jump) =
            Offsets(vec![Some(0), Some(0)]).follow(&[read(0, 1), read(0, 1)], &jumped);
        assert_eq!(offsets, [Some(0), Some(0)]);
        assert_eq!(jump, Some((Duration::from_millis(60_000), vec![1])));
        clocks.handled(&jumped);
        assert!(!clocks.have_jumped());
    }
}
