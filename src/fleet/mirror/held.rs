//! Rows that are held for a while with the lock open, to ask the engine for their expiry keys.

use super::row::RowState;
use super::shard::Shard;
use super::{Mark, Mirror};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};

/// Some rows of a partition, one after the other; to be used again for the next ones.
#[derive(Default)]
pub struct Held {
    mark: u32,
    /// `<kind>:<unit>`, end to end, and where each ends.
    text: String,
    ends: Vec<usize>,
    /// The place of each.
    rows: Vec<u32>,
    next: usize,
    all: usize,
}

/// Units whose expiry key is not what it is for most.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Odd {
    /// Those whose key should not be there: they are back, or a crash left it.
    pub with: Vec<Unit>,
    /// Those whose key should be there: they are overdue, or offline and that was never told here.
    pub without: Vec<Unit>,
}

impl Held {
    /// Their names, `<kind>:<unit>`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }

    /// How much of the partition was held so far, from 0 to 1.
    pub fn done(&self) -> f64 {
        self.next as f64 / self.all.max(1) as f64
    }
}

impl Mirror {
    /// Holds the next rows of a partition, at most `most`; false if there is none.
    pub fn hold_next(&self, partition: u16, held: &mut Held, most: usize) -> bool {
        let Mark { number, .. } = self.mark(partition);
        let shard = self.read(partition);
        held.mark = number;
        held.text.clear();
        held.ends.clear();
        held.rows.clear();
        held.all = shard.rows.len();
        while held.next < shard.rows.len() && held.rows.len() < most {
            let row = &shard.rows[held.next];
            if row.state != RowState::Free {
                held.text.push_str(self.kind(row.kind).as_str());
                held.text.push(':');
                held.text.push_str(shard.id(row));
                held.ends.push(held.text.len());
                held.rows.push(held.next as u32);
            }
            held.next += 1;
        }
        !held.rows.is_empty()
    }

    /// What the expiry keys of held rows say, in order.
    pub fn heard(&self, partition: u16, held: &Held, alive: &[Option<Timestamp>]) -> Odd {
        let mut shard = self.write(partition);
        let mut odd = Odd::default();
        for ((place, name), alive) in held.rows.iter().zip(held.names()).zip(alive) {
            let Some(state) = shard.heard_at(*place, held.mark, *alive) else { continue };
            let is_present = matches!(state, RowState::Present | RowState::Assumed);
            if alive.is_none() && is_present {
                odd.without.extend(name.parse::<Unit>());
            } else if alive.is_some() && !is_present {
                odd.with.extend(name.parse::<Unit>());
            }
        }
        odd
    }

    fn kind(&self, number: u16) -> &Kind {
        &self.kinds[usize::from(number)].kind
    }
}

impl Shard {
    /// The row at that place was heard then, if it was, unless it is another unit's since the mark. Answers
    /// how it stands.
    fn heard_at(&mut self, place: u32, mark: u32, at: Option<Timestamp>) -> Option<RowState> {
        let row = self.rows.get_mut(place as usize)?;
        if row.told >= mark || row.state == RowState::Free {
            return None;
        }
        if let Some(at) = at.filter(|_| matches!(row.state, RowState::Present | RowState::Assumed)) {
            row.last_seen = row.last_seen.max(at);
        }
        Some(row.state)
    }
}
