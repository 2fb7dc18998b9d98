//! Looking into the mirror: every unit, piece by piece, and how many there are of each sort.
//!
//! A piece is read under the lock of its partition, which is open again before the next one, so
//! that no heartbeat waits for a list of a million units.

use std::ops::Range;
use std::time::Duration;

use super::row::{Absence, Row};
use super::shard::Shard;
use super::tally::{Counted, Counts, TOP, Tally};
use super::wanted::{Filter, Part, Wanted};
use super::{Mirror, row::RowState};
use crate::clock::Timestamp;
use crate::presence::{self, Facts, Hearing, Kind, KindRules, Override, Snapshot, Standing, State, Unit};
use crate::store::table::Key;

/// How many rows are read at a time, within some tens of microseconds.
const PIECE: usize = 1024;

/// On how many threads the units of a large fleet are counted, each some of the partitions.
const COUNTERS: u16 = 4;

/// So few units are counted sooner than a thread is started.
const FEW: usize = 100_000;

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

/// How many units there are of each sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// For each configured kind, in order, the number of units in each of [`State::ALL`].
    pub kinds: Vec<(Kind, Counts)>,
    /// For each of these, the last sign of life of the unit that has been offline for longest.
    pub silent_since: Vec<Option<Timestamp>>,
    /// The same numbers by the values of each of [`Mirror::labels`].
    pub labels: Counted,
    /// How many units were heard within each of [`WINDOWS`]; a longer one includes the shorter.
    pub seen_within: [u64; WINDOWS.len()],
    /// How many units were ever heard.
    pub heard: u64,
    /// How long ago they were heard, added up.
    pub silence: Duration,
}

/// Where a reader of the mirror has come to, and what it wants to see.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    partition: u16,
    place: usize,
    wanted: Wanted,
}

impl Cursor {
    /// At the beginning of those units.
    pub fn of(wanted: Wanted) -> Cursor {
        Cursor { wanted, ..Cursor::default() }
    }
}

/// What the mirror knows of a unit that a caller named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is wanted.
    Wanted,
    /// It is there and not wanted.
    Unwanted,
    /// There is no such unit.
    Nobody,
}

/// One unit as a reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Its kind.
    pub kind: &'a str,
    /// Its id.
    pub id: &'a str,
    /// Its state.
    pub state: State,
    /// Its newest heartbeat; `None` if it was never heard.
    pub last_seen: Option<Timestamp>,
    /// Its value of each of [`Mirror::labels`], if a reader wants them; empty where it has none.
    pub values: Values<'a>,
}

/// Values of labels, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values<'a> {
    text: &'a str,
    places: &'a [Range<usize>],
}

impl<'a> Values<'a> {
    /// The values.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let text = self.text;
        self.places.iter().map(move |place| &text[place.clone()])
    }
}

/// A piece of the mirror, to be used again for the next one.
#[derive(Default)]
pub struct Chunk {
    names: String,
    units: Vec<(usize, Range<usize>, State, Option<Timestamp>)>,
    /// Whether values of labels are read, too: that costs more than all the rest.
    with_values: bool,
    /// Of all units one after the other, as places in `names`.
    values: Vec<Range<usize>>,
}

impl Chunk {
    /// One that has values of labels beside the units.
    pub fn with_values() -> Chunk {
        Chunk { with_values: true, ..Chunk::default() }
    }
}

impl Mirror {
    /// Reads the next piece into `chunk`; false if there is none. Units that are there all the
    /// while are read exactly once.
    pub fn read_next(
        &self,
        cursor: &mut Cursor,
        chunk: &mut Chunk,
        hearing: &Hearing,
        now: Timestamp,
    ) -> bool {
        chunk.names.clear();
        chunk.units.clear();
        chunk.values.clear();
        let mut evaluator = StateEvaluator::new(&self.kinds, hearing, now);
        self.read_piece(cursor, |piece| {
            let shard = piece.shard;
            for (place, row) in piece.units().filter(|(place, row)| piece.filter.matches(shard, *place, row))
            {
                let start = chunk.names.len();
                chunk.names.push_str(shard.id(row));
                let name = start..chunk.names.len();
                let last_seen = row.state.is_heard().then_some(row.last_seen);
                chunk.units.push((
                    usize::from(row.kind),
                    name,
                    evaluator.state(shard, place, row),
                    last_seen,
                ));
                for tags in shard.tags.iter().filter(|_| chunk.with_values) {
                    let start = chunk.names.len();
                    match tags.number_at(place) {
                        0 => {}
                        number => chunk.names.push_str(&tags.value(number)),
                    }
                    chunk.values.push(start..chunk.names.len());
                }
            }
        })
    }

    /// What is known of units of a partition, each named `<kind>:<unit>`, in order.
    pub fn find_all<'a>(
        &self,
        partition: u16,
        wanted: &Wanted,
        names: impl Iterator<Item = &'a str>,
    ) -> Vec<Found> {
        let shard = self.read(partition);
        let filter = Filter::new(wanted, self, &shard).filter(|_| wanted.takes(partition));
        let find = |name: &str| {
            let (kind, id) = name.split_once(':')?;
            let kind = self.kinds.iter().position(|rules| rules.kind.as_str() == kind)? as u16;
            shard.find(Key::new(&self.hasher, kind, id))
        };
        let evaluator = |name| match find(name) {
            None => Found::Nobody,
            Some(place) => match &filter {
                Some(filter) if filter.matches(&shard, place, &shard.rows[place]) => Found::Wanted,
                _ => Found::Unwanted,
            },
        };
        names.map(evaluator).collect()
    }

    /// The units of a piece that was read.
    pub fn units<'a>(&'a self, chunk: &'a Chunk) -> impl Iterator<Item = Seen<'a>> {
        let labels = chunk.values.len() / chunk.units.len().max(1);
        chunk.units.iter().enumerate().map(move |(number, (kind, name, state, last_seen))| Seen {
            kind: self.kinds[*kind].kind.as_str(),
            id: &chunk.names[name.clone()],
            state: *state,
            last_seen: *last_seen,
            values: Values {
                text: &chunk.names,
                places: &chunk.values[number * labels..(number + 1) * labels],
            },
        })
    }

    /// Counts all units, on a few threads. Takes some milliseconds for a million.
    pub fn summary(&self, hearing: &Hearing, now: Timestamp) -> Summary {
        let threads = if self.size() < FEW { 1 } else { COUNTERS };
        let count = |number| self.count(Part { number, of: threads }, hearing, now);
        let sum = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || count(number))).collect();
            let mut sum = count(0);
            for other in others {
                sum.absorb(other.join().expect("counting does not panic"));
            }
            sum
        });
        // A unit that was heard in so many windows was heard in the longest ones.
        let seen_within = std::array::from_fn(|window| sum.heard_in[WINDOWS.len() - window..].iter().sum());
        let heard = sum.heard_in.iter().sum();
        let silence = Duration::from_millis(sum.silence_ms);
        let mut labels = Counted::new();
        let values = TOP / self.labels().len().max(1);
        for (label, tally) in self.labels().iter().zip(sum.tallies) {
            tally.finish(label, values, &mut labels);
        }
        let kinds = self.kinds().cloned().zip(sum.states).collect();
        Summary { kinds, silent_since: sum.silent_since, labels, seen_within, heard, silence }
    }

    /// About how many units there are.
    fn size(&self) -> usize {
        self.partitions().map(|partition| self.read(partition).rows.len()).sum()
    }

    /// Counts the units of a part.
    fn count(&self, part: Part, hearing: &Hearing, now: Timestamp) -> Count {
        let mut evaluator = StateEvaluator::new(&self.kinds, hearing, now);
        let mut count = Count {
            states: vec![Counts::default(); self.kinds.len()],
            silent_since: vec![None; self.kinds.len()],
            tallies: self.labels().iter().map(|_| Tally::default()).collect(),
            heard_in: Default::default(),
            silence_ms: 0,
        };
        let starts = WINDOWS.map(|length| now - length);
        let mut cursor = Cursor::of(Wanted { part: Some(part), ..Wanted::default() });
        while self.read_piece(&mut cursor, |piece| {
            let shard = piece.shard;
            for (tally, tags) in count.tallies.iter_mut().zip(&shard.tags) {
                tally.go_on(piece.partition, tags);
            }
            for (place, row) in piece.units() {
                let state = evaluator.state(shard, place, row);
                count.states[usize::from(row.kind)][state as usize] += 1;
                if row.state.is_heard() {
                    // Counting without branches is the fastest, as each row may fall into another window.
                    count.heard_in[starts.iter().filter(|start| **start <= row.last_seen).count()] += 1;
                    count.silence_ms += now.since(row.last_seen).as_millis() as u64;
                }
                if row.state.is_offline() {
                    let since = &mut count.silent_since[usize::from(row.kind)];
                    *since = earlier(*since, Some(row.last_seen));
                }
                for (tally, tags) in count.tallies.iter_mut().zip(&shard.tags) {
                    tally.add(tags, place, state);
                }
            }
        }) {}
        count
    }

    fn read_piece(&self, cursor: &mut Cursor, each: impl FnOnce(&Piece)) -> bool {
        while usize::from(cursor.partition) < self.shards.len() {
            if cursor.wanted.takes(cursor.partition) {
                let shard = self.read(cursor.partition);
                let end = shard.rows.len().min(cursor.place + PIECE);
                let filter = Filter::new(&cursor.wanted, self, &shard);
                if let Some(filter) = filter.filter(|_| cursor.place < end) {
                    let places = cursor.place..end;
                    each(&Piece { partition: cursor.partition, shard: &shard, places, filter });
                    cursor.place = end;
                    return true;
                }
            }
            cursor.partition += 1;
            cursor.place = 0;
        }
        false
    }
}

/// What was counted of a part of the units.
struct Count {
    /// By kind.
    states: Vec<Counts>,
    /// By kind.
    silent_since: Vec<Option<Timestamp>>,
    /// By label.
    tallies: Vec<Tally>,
    /// By in how many of [`WINDOWS`] they were heard.
    heard_in: [u64; WINDOWS.len() + 1],
    /// How long ago they were heard, added up.
    silence_ms: u64,
}

impl Count {
    fn absorb(&mut self, other: Count) {
        for (sum, counts) in self.states.iter_mut().zip(other.states) {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        for (since, other) in self.silent_since.iter_mut().zip(other.silent_since) {
            *since = earlier(*since, other);
        }
        self.tallies.iter_mut().zip(other.tallies).for_each(|(tally, other)| tally.absorb(other));
        self.heard_in.iter_mut().zip(other.heard_in).for_each(|(sum, count)| *sum += count);
        self.silence_ms += other.silence_ms;
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// Some rows of a partition, under its lock.
struct Piece<'a> {
    partition: u16,
    shard: &'a Shard,
    places: Range<usize>,
    filter: Filter,
}

impl Piece<'_> {
    fn units(&self) -> impl Iterator<Item = (usize, &Row)> {
        self.shard.units_in(self.places.clone())
    }
}

/// Says the state of rows by the rules of presence: it lays what a row holds into a snapshot that
/// is made once.
struct StateEvaluator<'a> {
    kinds: &'a [KindRules],
    hearing: &'a Hearing,
    now: Timestamp,
    snapshot: Snapshot,
}

impl StateEvaluator<'_> {
    fn new<'a>(kinds: &'a [KindRules], hearing: &'a Hearing, now: Timestamp) -> StateEvaluator<'a> {
        let unit: Unit = "any:unit".parse().expect("a constant name");
        StateEvaluator {
            kinds,
            hearing,
            now,
            snapshot: Snapshot { unit, alive: None, facts: None, stored: None },
        }
    }

    fn state(&mut self, shard: &Shard, place: usize, row: &Row) -> State {
        if row.state.is_offline() {
            return State::Offline;
        }
        let policy = shard.policy(row);
        let absence = shard.absence(place);
        // Most rows. Blind time only ever moves a deadline back, so a unit that was heard within its
        // timeout has time left by any ledger, and nothing else has to be asked.
        if absence == Absence::default() && self.now.since(row.last_seen) <= policy.timeout {
            return if row.state.is_heard() { State::Online } else { State::NeverSeen };
        }
        let facts = self.snapshot.facts.get_or_insert_with(|| Facts::new(Standing::Present, Timestamp::ZERO));
        facts.standing = match row.state {
            RowState::NeverSeen => Standing::NeverSeen,
            _ => Standing::Present,
        };
        facts.last_seen = row.last_seen;
        facts.set = Override { timeout: Some(policy.timeout), grace: Some(policy.grace) };
        facts.pause = absence.pause;
        facts.sleep = absence.sleep;
        facts.silent_from = absence.silent_from;
        let rules = &self.kinds[usize::from(row.kind)];
        presence::state(&self.snapshot, rules, self.hearing, self.now)
            .expect("only a unit that was removed has none")
    }
}
