//! What the engine keeps of a unit beside its row in memory. Facts stay on disk.

use crate::clock::Timestamp;
use crate::store::table::Blocks;

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

/// By slot: what the engine keeps beside the rows, one list for each value. A heartbeat reads two of them.
#[derive(Default)]
pub(super) struct Columns {
    /// The next check of each unit, for the deadline index.
    pub next_checks: Blocks<MaybeTimestamp>,
    /// A digest of the stored facts; zero for none.
    pub facts: Blocks<u64>,
    pub flags: Blocks<RowFlags>,
}

impl Columns {
    /// Adds empty values until there are so many.
    pub fn grow(&mut self, slots: usize) {
        while self.flags.len() < slots {
            self.next_checks.push(MaybeTimestamp::NONE);
            self.facts.push(0);
            self.flags.push(RowFlags::default());
        }
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
    /// The unit has an expiry key: the last seen time of its row.
    pub const ALIVE: RowFlags = RowFlags(8);
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
