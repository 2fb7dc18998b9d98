//! What is kept in memory of a unit: what a heartbeat needs, and no more. Facts stay on disk.

use crate::clock::Timestamp;
use crate::store::table::{self, Name, Row as _};

/// A moment, or none, in eight bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment(i64);

impl Moment {
    pub const NONE: Moment = Moment(-1);

    pub fn get(self) -> Option<Timestamp> {
        (self.0 >= 0).then(|| Timestamp::from_millis(self.0))
    }
}

impl From<Option<Timestamp>> for Moment {
    fn from(moment: Option<Timestamp>) -> Moment {
        moment.map_or(Moment::NONE, |at| Moment(at.as_millis()))
    }
}

/// One unit in 32 bytes.
pub(super) struct Row {
    /// The expiry key: the newest heartbeat.
    pub alive: Moment,
    /// Its next check, for the deadline index.
    pub next_check: Moment,
    /// A digest of its facts as stored, zero for none.
    pub facts: u64,
    /// Where its id starts in the names.
    pub name: u32,
    /// The number of its kind.
    pub kind: u16,
    /// The length of its id.
    pub length: u8,
    /// See [`Marks`].
    pub marks: Marks,
}

const _: () = assert!(size_of::<Row>() == 32);

impl Row {
    /// A row with a name alone.
    pub fn named(Name { start, kind, length }: Name) -> Row {
        Row { name: start, kind, length, marks: Marks::default(), ..Row::vacant() }
    }
}

impl table::Row for Row {
    fn vacant() -> Row {
        let (alive, next_check) = (Moment::NONE, Moment::NONE);
        Row { alive, next_check, facts: 0, name: 0, kind: 0, length: 0, marks: Marks::FREE }
    }

    fn is_vacant(&self) -> bool {
        self.marks.has(Marks::FREE)
    }

    fn name(&self) -> Name {
        Name { start: self.name, kind: self.kind, length: self.length }
    }

    fn set_start(&mut self, start: u32) {
        self.name = start;
    }
}

/// What is under way with a row.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Marks(u8);

impl Marks {
    /// A change of it is being written: nothing else may change it until that has come to an end.
    pub const BUSY: Marks = Marks(1);
    /// Its newest heartbeat is not on disk yet.
    pub const UNWRITTEN: Marks = Marks(2);
    /// A heartbeat brought its next check forward, which is not on disk yet.
    pub const CHECK_MOVED: Marks = Marks(4);
    /// No unit: the slot is free for the next one.
    pub const FREE: Marks = Marks(8);
    /// It is on disk: what comes next updates it.
    pub const STORED: Marks = Marks(16);

    pub fn has(self, mark: Marks) -> bool {
        self.0 & mark.0 != 0
    }

    pub fn set(&mut self, mark: Marks) {
        self.0 |= mark.0;
    }

    pub fn clear(&mut self, mark: Marks) {
        self.0 &= !mark.0;
    }
}
