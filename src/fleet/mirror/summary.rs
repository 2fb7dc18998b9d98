//! Counts of all units: how many are in each state, by kind, by label, and by the time since they were heard.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use super::Mirror;
use super::filter::{ArchiveLimits, FleetShard, UnitFilter};
use super::label_counter::{CountsByLabel, LabelCounter, TOP, add_top};
use super::view::Cursor;
use crate::clock::Timestamp;
use crate::presence::{Hearing, Kind, State, StateCounts};
use crate::store::table::UnitRow;

/// The most threads that count the units of a large fleet; each has a shard of it.
const COUNTERS: usize = 4;

/// The windows within which units are counted as seen: from a minute to a week.
pub const WINDOWS: [Duration; 8] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(15 * 60),
    Duration::from_secs(3600),
    Duration::from_secs(6 * 3600),
    Duration::from_secs(24 * 3600),
    Duration::from_secs(48 * 3600),
    Duration::from_secs(7 * 86_400),
];

/// The most values of a label in [`UnitSummary::worst`].
const WORST: usize = 50;

/// The counts of the units that have a value.
pub type ValueCounts = (Arc<str>, StateCounts);

/// Counts of the units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitSummary {
    /// When they were counted.
    pub at: Timestamp,
    /// For each configured kind, in order, the number of units in each of [`State::ALL`].
    pub kinds: Vec<(Kind, StateCounts)>,
    /// For each kind, how many units are archived: no other number counts them.
    pub archived: Vec<u64>,
    /// For each kind, of how many units the silence is unusual.
    pub unusual: Vec<u64>,
    /// For each kind, the last heartbeat of the unit that has been offline for longest.
    pub silent_since: Vec<Option<Timestamp>>,
    /// The numbers of units by the values of each of [`Mirror::labels`].
    pub labels: CountsByLabel,
    /// For each label, the [`WORST`] values with most offline units, the worst first.
    pub worst: Vec<(String, Vec<ValueCounts>)>,
    /// How many units were heard within each of [`WINDOWS`]; a longer window includes the shorter ones.
    pub seen_within: [u64; WINDOWS.len()],
    /// How many units were ever heard.
    pub heard: u64,
    /// The sum of their times since the last heartbeat.
    pub silence: Duration,
}

impl Mirror {
    /// Counts all units, on a few threads. Takes some milliseconds for a million.
    pub fn summary(&self, hearing: &Hearing, now: Timestamp) -> UnitSummary {
        let threads = if self.is_large() { counters() } else { 1 };
        let count = |number| self.count(FleetShard { number, of: threads }, hearing, now);
        let sum = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || count(number))).collect();
            let mut sum = count(0);
            for other in others {
                sum.merge(other.join().expect("counting does not panic"));
            }
            sum
        });
        // A unit that was heard in `n` windows was heard in the `n` longest ones.
        let seen_within = std::array::from_fn(|window| sum.heard_in[WINDOWS.len() - window..].iter().sum());
        let heard = sum.heard_in.iter().sum();
        let silence = Duration::from_millis(sum.silence_ms);
        let (mut labels, mut worst) = (CountsByLabel::new(), Vec::new());
        let most = TOP / self.labels().len().max(1);
        for (label, counter) in self.labels().into_iter().zip(sum.counters) {
            let mut values = counter.finish();
            add_top(&label, &values, most, &mut labels);
            // Of values with as many offline units, the values with most units stay first.
            values.sort_by_key(|(_, counts)| Reverse(counts[State::Offline as usize]));
            values.truncate(WORST);
            worst.push((label, values));
        }
        let kinds = self.kinds().cloned().zip(sum.states).collect();
        let (archived, unusual, silent_since) = (sum.archived, sum.unusual, sum.silent_since);
        UnitSummary {
            at: now,
            kinds,
            archived,
            unusual,
            silent_since,
            labels,
            worst,
            seen_within,
            heard,
            silence,
        }
    }

    fn count(&self, shard: FleetShard, hearing: &Hearing, now: Timestamp) -> PartialSummary {
        let mut evaluator = self.evaluator(hearing, now);
        let mut count = PartialSummary::new(self.kinds.len(), self.labels().len());
        let archive = ArchiveLimits::new(self, now);
        let mut starts = WINDOWS.map(|length| now - length);
        starts.sort();
        let mut cursor = Cursor::new(UnitFilter { shard: Some(shard), ..UnitFilter::default() });
        while self.read_rows(&mut cursor, |rows| {
            let table = rows.table;
            for (counter, index) in count.counters.iter_mut().zip(table.labels()) {
                counter.begin(rows.partition, index);
            }
            let mut run = RowRun::default();
            // Within the iterator a row costs a fraction of what it costs in a loop around it.
            rows.units().for_each(|(slot, kind, row)| {
                if archive.as_ref().is_some_and(|archive| archive.has(table, slot, row)) {
                    count.archived[kind] += 1;
                    return;
                }
                let is_heard = row.state.is_heard();
                let state = evaluator.state(table, slot, row);
                if !run.has(kind, row, state) {
                    count.add(&run);
                    run = RowRun::begin(kind, row, state, &starts);
                }
                run.rows += 1;
                if evaluator.unusual_since(table, slot, row, state).is_some() {
                    count.unusual[kind] += 1;
                }
                if is_heard {
                    count.silence_ms += (now.as_millis() - row.last_seen.as_millis()).max(0) as u64;
                }
                if row.state.is_offline() {
                    let since = &mut count.silent_since[kind];
                    *since = earlier(*since, Some(row.last_seen));
                }
                for (counter, index) in count.counters.iter_mut().zip(table.labels()) {
                    counter.add(index, slot, state);
                }
            });
            count.add(&run);
        }) {}
        count
    }
}

/// How many threads count: one processor is left to heartbeats and to the search for silent units.
fn counters() -> u16 {
    available_parallelism().map_or(1, |cores| (cores.get() - 1).clamp(1, COUNTERS)) as u16
}

/// The counts of one shard of the fleet.
struct PartialSummary {
    /// By kind, in order.
    states: Vec<StateCounts>,
    /// By kind, in order.
    archived: Vec<u64>,
    /// By kind, in order.
    unusual: Vec<u64>,
    silent_since: Vec<Option<Timestamp>>,
    /// One for each label, in the mirror's order.
    counters: Vec<LabelCounter>,
    /// Units by the number of [`WINDOWS`] in which they were heard.
    heard_in: [u64; WINDOWS.len() + 1],
    /// The sum of their times since the last heartbeat.
    silence_ms: u64,
}

/// Successive rows that count alike, as most neighbours do: to add a whole run costs a tenth of adding each row.
#[derive(Default)]
struct RowRun {
    rows: u64,
    kind: usize,
    state: Option<State>,
    /// The number of [`WINDOWS`] in which the rows were heard, and when; `None`: they were never heard.
    heard_in: Option<(usize, Range<Timestamp>)>,
}

impl RowRun {
    /// An empty run, for rows like this row. `starts`: the starts of the windows, the earliest first.
    fn begin(kind: usize, row: &UnitRow, state: State, starts: &[Timestamp; WINDOWS.len()]) -> RowRun {
        let windows = starts.partition_point(|start| *start <= row.last_seen);
        let from = windows.checked_sub(1).map_or(Timestamp::ZERO, |last| starts[last]);
        let until = starts.get(windows).copied().unwrap_or(Timestamp::NEVER);
        let heard_in = row.state.is_heard().then_some((windows, from..until));
        RowRun { rows: 0, kind, state: Some(state), heard_in }
    }

    /// Whether the row counts like the rows of the run.
    fn has(&self, kind: usize, row: &UnitRow, state: State) -> bool {
        let heard_alike = match &self.heard_in {
            Some((_, window)) => row.state.is_heard() && window.contains(&row.last_seen),
            None => !row.state.is_heard(),
        };
        heard_alike && self.kind == kind && self.state == Some(state)
    }
}

impl PartialSummary {
    fn new(kinds: usize, labels: usize) -> PartialSummary {
        PartialSummary {
            states: vec![StateCounts::default(); kinds],
            archived: vec![0; kinds],
            unusual: vec![0; kinds],
            silent_since: vec![None; kinds],
            counters: (0..labels).map(|_| LabelCounter::default()).collect(),
            heard_in: Default::default(),
            silence_ms: 0,
        }
    }

    fn add(&mut self, run: &RowRun) {
        let Some(state) = run.state else { return };
        self.states[run.kind][state as usize] += run.rows;
        if let Some((windows, _)) = run.heard_in {
            self.heard_in[windows] += run.rows;
        }
    }

    fn merge(&mut self, other: PartialSummary) {
        for (sum, counts) in self.states.iter_mut().zip(other.states) {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        self.archived.iter_mut().zip(other.archived).for_each(|(sum, count)| *sum += count);
        self.unusual.iter_mut().zip(other.unusual).for_each(|(sum, count)| *sum += count);
        for (since, other) in self.silent_since.iter_mut().zip(other.silent_since) {
            *since = earlier(*since, other);
        }
        self.counters.iter_mut().zip(other.counters).for_each(|(counter, other)| counter.merge(other));
        self.heard_in.iter_mut().zip(other.heard_in).for_each(|(sum, count)| *sum += count);
        self.silence_ms += other.silence_ms;
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}
