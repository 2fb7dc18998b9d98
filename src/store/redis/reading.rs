//! Reads units: the commands that read expiry keys and facts, and the snapshots from their answers.

use redis::Pipeline;

use super::RedisEngine;
use super::keys::PageId;
use crate::clock::Timestamp;
use crate::presence::{Change, KeyChange, Snapshot, Unit};
use crate::store::{EngineError, Result, encoding};

impl RedisEngine {
    /// Adds the commands that read the keys and facts of units, in the order of `by_page`: keys before facts, one
    /// command for the keys of a partition and one for the facts of a page.
    pub(super) fn add_reads(&self, units: &[Unit], located: &[(PageId, usize)], pipe: &mut Pipeline) {
        let mut key = String::new();
        for located in located.chunk_by(|a, b| a.0.0 == b.0.0) {
            self.keys.begin_alive(located[0].0.0, &mut key);
            let name = key.len();
            let get = pipe.cmd("MGET");
            for &(_, index) in located {
                key.truncate(name);
                units[index].write_into(&mut key);
                get.arg(&key);
            }
        }
        for located in located.chunk_by(|a, b| a.0 == b.0) {
            let (partition, page) = located[0].0;
            let get = pipe.cmd("HMGET").arg(self.keys.facts_page(partition, page));
            for &(_, index) in located {
                get.arg(units[index].to_string());
            }
        }
    }
}

/// Units as they were read.
pub(super) struct UnitsRead {
    pub snapshots: Vec<Snapshot>,
    /// Values to quarantine before the units are read again.
    pub unreadable: Vec<UnreadableUnit>,
}

/// A value that allows no decision about its unit.
pub(super) enum UnreadableUnit {
    /// An expiry key that holds no number.
    Key(Unit, Vec<u8>),
    /// Facts that are no text.
    Facts(Unit, Vec<u8>),
}

/// The units from the answers to [`RedisEngine::add_reads`].
pub(super) fn units_read(
    units: &[Unit],
    located: &[(PageId, usize)],
    values: Vec<Vec<Option<Vec<u8>>>>,
) -> Result<UnitsRead> {
    let mut values: Vec<Option<Vec<u8>>> = values.into_iter().flatten().collect();
    let facts = values.split_off(located.len().min(values.len()));
    let mut snapshots: Vec<Option<Snapshot>> = vec![None; units.len()];
    let mut unreadable = Vec::new();
    for ((&(_, index), alive), facts) in located.iter().zip(values).zip(facts) {
        let unit = || units[index].clone();
        if let Some(text) = facts.as_ref().filter(|text| std::str::from_utf8(text).is_err()) {
            unreadable.push(UnreadableUnit::Facts(unit(), text.clone()));
        }
        let (read, is_unreadable) = snapshot(unit(), alive.as_deref(), facts);
        if is_unreadable {
            unreadable.push(UnreadableUnit::Key(unit(), alive.unwrap_or_default()));
        }
        snapshots[index] = Some(read);
    }
    let missing = || EngineError::Damaged("redis answered fewer values than requested".to_owned());
    let snapshots = snapshots.into_iter().map(|seen| seen.ok_or_else(missing)).collect::<Result<_>>()?;
    Ok(UnitsRead { snapshots, unreadable })
}

/// Whether a change reads or writes the expiry key: there was a key, or the change sets one.
pub(super) fn is_marked(seen: &Snapshot, change: &Change) -> bool {
    seen.alive.is_some() || matches!(change.key, KeyChange::Set { .. })
}

/// The snapshot of a unit from its key and its facts, and whether its key holds no number. Unreadable facts stay as
/// they are stored: see [`Snapshot::is_unreadable`].
pub(super) fn snapshot(unit: Unit, alive: Option<&[u8]>, stored: Option<Vec<u8>>) -> (Snapshot, bool) {
    let at = alive.and_then(milliseconds).map(Timestamp::from_millis);
    let is_unreadable = alive.is_some() && at.is_none();
    let stored = stored.map(|stored| String::from_utf8_lossy(&stored).into_owned());
    let facts = stored.as_deref().and_then(encoding::decode);
    (Snapshot { unit, alive: at, facts, stored: stored.map(Into::into) }, is_unreadable)
}

/// The number of milliseconds in an expiry key; `None` if it holds anything else.
pub(super) fn milliseconds(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    // Only the text that Rollcall would write: a change compares it with the stored text.
    let ms: i64 = text.parse().ok().filter(|ms: &i64| ms.to_string() == text)?;
    (Timestamp::from_millis(ms).as_millis() == ms).then_some(ms)
}
