//! Reads units: the commands that read expiry keys and facts, and the snapshots from their answers.

use redis::Pipeline;

use super::RedisEngine;
use super::keys::PageId;
use crate::clock::Timestamp;
use crate::presence::{BrokerName, Change, KeyChange, Snapshot, Unit};
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

/// The snapshot of a unit from its key and its facts, and whether its key holds no number. Unreadable facts stay in
/// their stored form: see [`Snapshot::is_unreadable`].
pub(super) fn snapshot(unit: Unit, alive: Option<&[u8]>, stored: Option<Vec<u8>>) -> (Snapshot, bool) {
    let heard = alive.and_then(KeyValue::parse);
    let is_unreadable = alive.is_some() && heard.is_none();
    let (at, alive_at) = heard.map_or((None, None), |heard| (Some(heard.at), heard.broker));
    let stored = stored.map(|stored| String::from_utf8_lossy(&stored).into_owned());
    let facts = stored.as_deref().and_then(encoding::decode);
    (Snapshot { unit, alive: at, alive_at, facts, stored: stored.map(Into::into) }, is_unreadable)
}

/// The value of an expiry key: when the unit was last heard (ms) and, after a space, the broker that heard it, if
/// there are several.
pub(super) struct KeyValue {
    pub at: Timestamp,
    pub broker: Option<BrokerName>,
}

impl KeyValue {
    /// `None` for a text that Rollcall does not write.
    pub fn parse(text: &[u8]) -> Option<KeyValue> {
        KeyValue::parts(text).map(KeyValue::of)
    }

    pub fn of((at, broker): (Timestamp, Option<&str>)) -> KeyValue {
        KeyValue { at, broker: broker.map(|name| name.parse().expect("the name of a broker")) }
    }

    /// The moment, and the name of the broker. Copies nothing, because each heartbeat reads the previous value.
    pub fn parts(text: &[u8]) -> Option<(Timestamp, Option<&str>)> {
        let (at, broker) = match text.iter().position(|byte| *byte == b' ') {
            None => (text, None),
            Some(end) => (&text[..end], Some(str::from_utf8(&text[end + 1..]).ok()?)),
        };
        let at = Timestamp::from_millis(milliseconds(at)?);
        broker.is_none_or(BrokerName::is_name).then_some((at, broker))
    }

    pub fn text(at: Timestamp, broker: Option<&BrokerName>) -> String {
        let mut text = at.as_millis().to_string();
        if let Some(broker) = broker {
            text.push(' ');
            text.push_str(broker.as_str());
        }
        text
    }
}

/// The milliseconds in a text; `None` unless Rollcall would write this text: a change compares it with the stored
/// text.
pub(super) fn milliseconds(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain =
        text == "0" || digits.as_bytes().first().is_some_and(|first| (b'1'..=b'9').contains(first));
    let ms: i64 = text.parse().ok().filter(|_| is_plain)?;
    (Timestamp::from_millis(ms).as_millis() == ms).then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_key_holds_a_moment_and_perhaps_a_broker_and_nothing_else() {
        for text in ["1732147200000", "1732147200000 eu", "0 b-1_x"] {
            let KeyValue { at, broker } = KeyValue::parse(text.as_bytes()).unwrap();
            assert_eq!(KeyValue::text(at, broker.as_ref()), text);
        }
        let long = format!("1 {}", "x".repeat(33));
        for text in [
            "", " ", "1 ", " eu", "01 eu", "1  eu", "1 eu ", "1 EU", "1 eu us", "x eu", "1\neu", &long, "+1",
            "-0", "-",
        ] {
            assert!(KeyValue::parse(text.as_bytes()).is_none(), "{text:?}");
        }
        assert!(KeyValue::parse(b"1 \xff").is_none());
    }
}
