//! The row of a unit in memory: as much as a heartbeat needs. Facts stay on disk.

use crate::clock::Timestamp;
use crate::store::table::{self, Name, Row as _};

/// A timestamp, or none, in eight bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct MaybeTimestamp(i64);

impl MaybeTimestamp {
    pub const NONE: MaybeTimestamp = MaybeTimestamp(-1);

    pub fn get(self) -> Option<Timestamp> {
        (self.0 >= 0).then(|| Timestamp::from_millis(self.0))
    }
}

impl From<Option<Timestamp>> for MaybeTimestamp {
    fn from(moment: Option<Timestamp>) -> MaybeTimestamp {
        moment.map_or(MaybeTimestamp::NONE, |at| MaybeTimestamp(at.as_millis()))
    }
}

/// One unit in 32 bytes.
pub(super) struct Row {
    /// The expiry key: the newest heartbeat.
    pub alive: MaybeTimestamp,
    /// Its next check, for the deadline index.
    pub next_check: MaybeTimestamp,
    /// A digest of the stored facts; zero for none.
    pub facts: u64,
    /// The start of its id in the names.
    pub name: u32,
    /// The number of its kind.
    pub kind: u16,
    /// The length of its id.
    pub length: u8,
    pub flags: RowFlags,
}

const _: () = assert!(size_of::<Row>() == 32);

impl Row {
    /// A row that has only a name.
    pub fn named(Name { start, kind, length }: Name) -> Row {
        Row { name: start, kind, length, flags: RowFlags::default(), ..Row::vacant() }
    }
}

impl table::Row for Row {
    fn vacant() -> Row {
        let (alive, next_check) = (MaybeTimestamp::NONE, MaybeTimestamp::NONE);
        Row { alive, next_check, facts: 0, name: 0, kind: 0, length: 0, flags: RowFlags::VACANT }
    }

    fn is_vacant(&self) -> bool {
        self.flags.contains(RowFlags::VACANT)
    }

    fn name(&self) -> Name {
        Name { start: self.name, kind: self.kind, length: self.length }
    }

    fn set_start(&mut self, start: u32) {
        self.name = start;
    }
}

/// The write state of a row.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowFlags(u8);

impl RowFlags {
    /// A change of it is being written, and no other change may begin until that is committed or rolled back.
    pub const LOCKED: RowFlags = RowFlags(1);
    /// Its newest heartbeat is not on disk yet.
    pub const DIRTY: RowFlags = RowFlags(2);
    /// A heartbeat brought its next check forward, which is not on disk yet.
    pub const CHECK_MOVED: RowFlags = RowFlags(4);
    /// The slot has no unit and is free.
    pub const VACANT: RowFlags = RowFlags(8);
    /// The unit is on disk: the next write is an update.
    pub const STORED: RowFlags = RowFlags(16);

    pub fn contains(self, flag: RowFlags) -> bool {
        self.0 & flag.0 != 0
    }

    pub fn insert(&mut self, flag: RowFlags) {
        self.0 |= flag.0;
    }

    pub fn remove(&mut self, flag: RowFlags) {
        self.0 &= !flag.0;
    }
}
