//! The engine's own values of a unit, beside its row in memory. Facts stay on disk.

use crate::clock::Timestamp;
use crate::presence::BrokerName;
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

/// The value of an expiry key, and the broker that delivered its heartbeat.
pub(super) type ExpiryKey = (MaybeTimestamp, Option<BrokerName>);

/// The engine's own values by slot, one list for each value. A heartbeat reads two of them.
#[derive(Default)]
pub(super) struct Columns {
    /// The next check of each unit, for the deadline index.
    pub next_checks: Blocks<MaybeTimestamp>,
    /// A digest of the stored facts; zero for none.
    pub facts: Blocks<u64>,
    pub flags: Blocks<RowFlags>,
}

impl Columns {
    /// Adds empty values up to this number of slots.
    pub fn grow(&mut self, slots: usize) {
        while self.flags.len() < slots {
            self.next_checks.push(MaybeTimestamp::NONE);
            self.facts.push(0);
            self.flags.push(RowFlags::default());
        }
    }
}

/// The write state of a row, and the number of the broker that delivered the heartbeat of its expiry key (0:
/// unknown). Both lie together, because a heartbeat reads both.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RowFlags(u8, pub u8);

impl RowFlags {
    /// A change of the row is being written; no other change may begin until that is committed or rolled back.
    pub const LOCKED: RowFlags = RowFlags(1, 0);
    /// The newest heartbeat is not on disk yet.
    pub const DIRTY: RowFlags = RowFlags(2, 0);
    /// A heartbeat brought the next check forward, which is not on disk yet.
    pub const CHECK_MOVED: RowFlags = RowFlags(4, 0);
    /// The unit has an expiry key: the last seen time of its row.
    pub const ALIVE: RowFlags = RowFlags(8, 0);
    /// The unit is on disk: the next write is an update.
    pub const STORED: RowFlags = RowFlags(16, 0);

    /// The flags of a unit on disk without pending changes.
    pub fn stored(broker: u8) -> RowFlags {
        RowFlags(RowFlags::STORED.0, broker)
    }

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
