//! Looking into the mirror: every unit, piece by piece, and how many there are of each sort.
//!
//! A piece is read under the lock of its partition, which is open again before the next one, so
//! that nobody who writes heartbeats waits for a list of a million units.

use std::ops::Range;
use std::time::Duration;

use super::Mirror;
use super::row::{Absence, Footing, Row};
use super::shard::Shard;
use crate::clock::Timestamp;
use crate::presence::{self, Facts, Hearing, Kind, KindRules, Override, Snapshot, Standing, State, Unit};

/// How many rows are read at a time, within some tens of microseconds.
const PIECE: usize = 1024;

/// The windows within which units are counted as seen: name and length.
pub const WINDOWS: [(&str, Duration); 8] = [
    ("1m", Duration::from_secs(60)),
    ("5m", Duration::from_secs(5 * 60)),
    ("15m", Duration::from_secs(15 * 60)),
    ("1h", Duration::from_secs(3600)),
    ("6h", Duration::from_secs(6 * 3600)),
    ("24h", Duration::from_secs(24 * 3600)),
    ("48h", Duration::from_secs(48 * 3600)),
    ("7d", Duration::from_secs(7 * 86_400)),
];

/// How many units there are of each sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// For each configured kind, in order, the number of units in each of [`State::ALL`].
    pub kinds: Vec<(Kind, [u64; State::ALL.len()])>,
    /// How many units were heard within each of [`WINDOWS`]; a longer one includes the shorter.
    pub seen_within: [u64; WINDOWS.len()],
}

/// Where a reader of the mirror has come to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    partition: u16,
    place: usize,
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
}

/// A piece of the mirror, to be used again for the next one.
#[derive(Default)]
pub struct Chunk {
    names: String,
    units: Vec<(usize, Range<usize>, State, Option<Timestamp>)>,
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
        let mut judge = Judge::new(&self.kinds, hearing, now);
        self.read_piece(cursor, |shard, place, row| {
            let start = chunk.names.len();
            chunk.names.push_str(shard.id(row));
            let name = start..chunk.names.len();
            let last_seen = row.footing.is_heard().then_some(row.last_seen);
            chunk.units.push((usize::from(row.kind), name, judge.state(shard, place, row), last_seen));
        })
    }

    /// The units of a piece that was read.
    pub fn units<'a>(&'a self, chunk: &'a Chunk) -> impl Iterator<Item = Seen<'a>> {
        chunk.units.iter().map(|(kind, name, state, last_seen)| Seen {
            kind: self.kinds[*kind].kind.as_str(),
            id: &chunk.names[name.clone()],
            state: *state,
            last_seen: *last_seen,
        })
    }

    /// Counts all units. Takes some ten milliseconds for a million.
    pub fn summary(&self, hearing: &Hearing, now: Timestamp) -> Summary {
        let mut judge = Judge::new(&self.kinds, hearing, now);
        let mut states = vec![[0; State::ALL.len()]; self.kinds.len()];
        // By in how many windows they were heard. Counting without branches is the fastest, as
        // each row may fall into another one.
        let mut heard_in = [0; WINDOWS.len() + 1];
        let starts = WINDOWS.map(|(_, length)| now - length);
        let mut cursor = Cursor::default();
        while self.read_piece(&mut cursor, |shard, place, row| {
            states[usize::from(row.kind)][judge.state(shard, place, row) as usize] += 1;
            if row.footing.is_heard() {
                heard_in[starts.iter().filter(|start| **start <= row.last_seen).count()] += 1;
            }
        }) {}
        // A unit that was heard in so many windows was heard in the longest ones.
        let seen_within = std::array::from_fn(|window| heard_in[WINDOWS.len() - window..].iter().sum());
        Summary { kinds: self.kinds().cloned().zip(states).collect(), seen_within }
    }

    fn read_piece(&self, cursor: &mut Cursor, mut each: impl FnMut(&Shard, usize, &Row)) -> bool {
        while usize::from(cursor.partition) < self.shards.len() {
            let shard = self.read(cursor.partition);
            let end = shard.rows.len().min(cursor.place + PIECE);
            if cursor.place < end {
                let places = cursor.place..end;
                for (place, row) in places.clone().zip(&shard.rows[places]) {
                    if row.footing != Footing::Free {
                        each(&shard, place, row);
                    }
                }
                cursor.place = end;
                return true;
            }
            *cursor = Cursor { partition: cursor.partition + 1, place: 0 };
        }
        false
    }
}

/// Says the state of rows by the rules of presence: it lays what a row holds into a snapshot that
/// is made once.
struct Judge<'a> {
    kinds: &'a [KindRules],
    hearing: &'a Hearing,
    now: Timestamp,
    snapshot: Snapshot,
}

impl Judge<'_> {
    fn new<'a>(kinds: &'a [KindRules], hearing: &'a Hearing, now: Timestamp) -> Judge<'a> {
        let unit: Unit = "any:unit".parse().expect("a constant name");
        Judge { kinds, hearing, now, snapshot: Snapshot { unit, alive: None, facts: None, stored: None } }
    }

    fn state(&mut self, shard: &Shard, place: usize, row: &Row) -> State {
        if row.footing.is_offline() {
            return State::Offline;
        }
        let policy = shard.policy(row);
        let absence = shard.absence(place);
        // Most rows. Blind time only ever moves a deadline back, so a unit that was heard within its
        // timeout has time left by any ledger, and nothing else has to be asked.
        if absence == Absence::default() && self.now.since(row.last_seen) <= policy.timeout {
            return if row.footing.is_heard() { State::Online } else { State::NeverSeen };
        }
        let facts = self.snapshot.facts.get_or_insert_with(|| Facts::new(Standing::Present, Timestamp::ZERO));
        facts.standing = match row.footing {
            Footing::NeverSeen => Standing::NeverSeen,
            _ => Standing::Present,
        };
        facts.last_seen = row.last_seen;
        facts.set = Override { timeout: Some(policy.timeout), grace: Some(policy.grace) };
        facts.pause = absence.pause;
        facts.sleep = absence.sleep;
        let rules = &self.kinds[usize::from(row.kind)];
        presence::state(&self.snapshot, rules, self.hearing, self.now)
            .expect("only a unit that was removed has none")
    }
}
