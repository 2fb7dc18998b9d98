//! Units as their keys and facts are read: the commands that ask for them, and the answers.

use redis::Pipeline;

use super::RedisEngine;
use super::keys::PageId;
use crate::clock::Timestamp;
use crate::presence::{Change, KeyChange, Snapshot, Unit};
use crate::store::{EngineError, Result, encoding};

impl RedisEngine {
    /// Asks for keys and facts of units, in the order in which `by_page` placed them: keys before facts, and what
    /// is in the same place in one command.
    pub(super) fn ask_for(&self, units: &[Unit], located: &[(PageId, usize)], pipe: &mut Pipeline) {
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

/// What was read of units.
pub(super) struct Read {
    pub found: Vec<Snapshot>,
    /// What has to be put aside before they are read once more.
    pub unreadable: Vec<UnreadableValue>,
}

/// What no decision can be made from, not even to leave the unit out.
pub(super) enum UnreadableValue {
    /// An expiry key that holds no number.
    Key(Unit, Vec<u8>),
    /// Facts that are no text.
    Facts(Unit, Vec<u8>),
}

/// The units that [`RedisEngine::ask_for`] asked for.
pub(super) fn answered(
    units: &[Unit],
    located: &[(PageId, usize)],
    values: Vec<Vec<Option<Vec<u8>>>>,
) -> Result<Read> {
    let mut values: Vec<Option<Vec<u8>>> = values.into_iter().flatten().collect();
    let facts = values.split_off(located.len().min(values.len()));
    let mut found: Vec<Option<Snapshot>> = vec![None; units.len()];
    let mut unreadable = Vec::new();
    for ((&(_, index), alive), facts) in located.iter().zip(values).zip(facts) {
        let unit = || units[index].clone();
        if let Some(text) = facts.as_ref().filter(|text| std::str::from_utf8(text).is_err()) {
            unreadable.push(UnreadableValue::Facts(unit(), text.clone()));
        }
        let (read, is_unreadable) = snapshot(unit(), alive.as_deref(), facts);
        if is_unreadable {
            unreadable.push(UnreadableValue::Key(unit(), alive.unwrap_or_default()));
        }
        found[index] = Some(read);
    }
    let missing = || EngineError::Damaged("redis answered less than it was asked for".to_owned());
    let found = found.into_iter().map(|found| found.ok_or_else(missing)).collect::<Result<_>>()?;
    Ok(Read { found, unreadable })
}

/// Whether a change has to do with the expiry key: it was there, or is to be.
pub(super) fn is_marked(seen: &Snapshot, change: &Change) -> bool {
    seen.alive.is_some() || matches!(change.key, KeyChange::Set { .. })
}

/// A unit as its key and its facts say, and whether its key holds no number. Facts that cannot be read are
/// kept as they are stored: see [`Snapshot::is_unreadable`].
pub(super) fn snapshot(unit: Unit, alive: Option<&[u8]>, stored: Option<Vec<u8>>) -> (Snapshot, bool) {
    let at = alive.and_then(milliseconds).map(Timestamp::from_millis);
    let is_unreadable = alive.is_some() && at.is_none();
    let stored = stored.map(|stored| String::from_utf8_lossy(&stored).into_owned());
    let facts = stored.as_deref().and_then(encoding::decode);
    (Snapshot { unit, alive: at, facts, stored: stored.map(Into::into) }, is_unreadable)
}

/// A number of milliseconds, which is all that an expiry key may hold.
pub(super) fn milliseconds(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    // As it would be written: it is compared with what is stored.
    let ms: i64 = text.parse().ok().filter(|ms: &i64| ms.to_string() == text)?;
    (Timestamp::from_millis(ms).as_millis() == ms).then_some(ms)
}
