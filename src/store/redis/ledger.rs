//! Stored hearing, and the ledger of blind intervals. The ledger is read again only when its version has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redis::{Pipeline, Value, pipe};

use super::clock_difference::server_time;
use super::clock_jump::LastRenewal;
use super::hearing_fields::parse_filter;
use super::reading::milliseconds;
use super::{RedisEngine, eviction};
use crate::clock::{Timestamp, monotonic};
use crate::presence::{FilterBlindness, FilterProofs, Hearing, Interval, Kind, Ledger, is_plausible};
use crate::store::{EngineError, Result};
use crate::telemetry::Stored;

/// Added to the score of an interval in which the broker may have given heartbeats to another client.
pub(super) const TAKEN: f64 = 0.5;

/// Up to when Rollcall has heard (ms), the versions of the ledger and of the ledgers of kinds, the id of the fleet,
/// and up to when keys may have been evicted (ms).
const VERSIONS: &[&str] = &["at", "ledger", "kinds", "fleet", eviction::FIELD];
pub(super) type Versions =
    (Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>);

/// Stored hearing: up to when Rollcall has heard, versions and fleet; up to when filters were heard; the server's
/// clock (s, µs).
pub(super) type HearingReply = (Versions, Vec<(Vec<u8>, Vec<u8>)>, (i64, i64));

/// The last read ledger, with its versions.
pub(super) type CachedLedger = ((i64, i64), Hearing);

impl RedisEngine {
    /// Adds the commands that read hearing; [`RedisEngine::hearing_of`] takes their answers.
    pub(super) fn add_hearing_reads(&self, pipe: &mut Pipeline) {
        pipe.hmget(self.keys.heard(), VERSIONS).hgetall(self.keys.filters()).cmd("TIME");
    }

    /// The hearing from the answers to [`RedisEngine::add_hearing_reads`], which were requested after the renewal
    /// `last`.
    pub(super) async fn hearing_of(&self, stored: HearingReply, last: LastRenewal) -> Result<Hearing> {
        let ((heard, version, of_kinds, fleet, evicted), filters, time) = stored;
        let jumped = self.server_clock.lock().read(last, monotonic(), server_time(time));
        let mut known = self.ledger.lock().await;
        let number =
            |field, value: &Option<Vec<u8>>| self.hearing_number(field, value.as_deref()).unwrap_or(0);
        let proved = self.parse_filters(filters);
        if (number("ledger", &version), number("kinds", &of_kinds)) != known.0 {
            *known = self.read_ledger(&proved).await?;
        } else {
            known.1.heard = self.hearing_number("at", heard.as_deref()).map(Timestamp::from_millis);
        }
        // Another call may have detected a loss meanwhile: an answer from before it is about the lost fleet.
        let mut fleet_known = self.known_fleet.lock();
        if known.1.heard.is_some() && fleet.is_none_or(|fleet| fleet == fleet_known.id.as_bytes()) {
            fleet_known.heard = known.1.heard;
            fleet_known.furthest = fleet_known.furthest.max(known.1.heard);
        }
        drop(fleet_known);
        // After a jump, expiry keys and their heartbeats have expired too early: see `clock_jump.rs`.
        let heard = known.1.heard.filter(|_| !jumped);
        let filters = Arc::new(FilterProofs { proved, blind: known.1.filters.blind.clone() });
        let evicted = self.evictions.until(evicted.as_deref());
        let skipped = self.steps.lock().last;
        Ok(Hearing { heard, evicted, skipped, filters, ..known.1.clone() })
    }

    /// A stored number of hearing. A text that is not a number, or a moment that is years ahead, counts as absent:
    /// Rollcall is blind until the next canary writes it.
    fn hearing_number(&self, field: &str, text: Option<&[u8]>) -> Option<i64> {
        let location = format!("{} {field}", self.keys.heard());
        let now = self.server_clock.lock().fleet_time(monotonic());
        let is_true = |ms: &i64| now.is_none_or(|now| is_plausible(Timestamp::from_millis(*ms), &[now]));
        let number = milliseconds(text?).filter(is_true);
        match number {
            Some(_) => self.telemetry.readable(Stored::Hearing, &location),
            None => {
                let why = "it is not a number, or a moment years ahead; the time until the next canary is blind; that canary writes it again";
                self.telemetry.unreadable(Stored::Hearing, &location, why);
            }
        }
        number
    }

    /// The intervals of a ledger. An unreadable interval is reported and left out.
    fn read_intervals<T>(
        &self,
        key: &str,
        scored: &[(Vec<u8>, f64)],
        parse: impl Fn(&str) -> Result<T>,
    ) -> Vec<T> {
        let interval = |(text, _): &(Vec<u8>, f64)| {
            let text = String::from_utf8_lossy(text);
            let read = parse(&text);
            if let Err(why) = &read {
                let location = format!("{key} {text}");
                self.telemetry.unreadable(Stored::Hearing, &location, &format!("{why}; ZREM it there"));
            }
            read.ok()
        };
        scored.iter().filter_map(interval).collect()
    }

    /// Up to when filters were heard. A filter with an unreadable time counts as not heard until its next probe.
    fn parse_filters(&self, filters: Vec<(Vec<u8>, Vec<u8>)>) -> BTreeMap<(Kind, String), Timestamp> {
        let parse = |(name, at): (Vec<u8>, Vec<u8>)| {
            let read = parse_filter(&name, &at);
            if read.is_none() {
                let (name, at) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(&at));
                let location = format!("{} {name}", self.keys.filters());
                let why = format!("{at:?} is not a time at which a filter was heard; HDEL it there");
                self.telemetry.unreadable(Stored::Hearing, &location, &why);
            }
            read
        };
        filters.into_iter().filter_map(parse).collect()
    }

    /// Reads the ledgers and hearing with their versions in one step, and the ledgers of kinds that have filters.
    async fn read_ledger(&self, proved: &BTreeMap<(Kind, String), Timestamp>) -> Result<CachedLedger> {
        let kinds: BTreeSet<&Kind> = proved.keys().map(|(kind, _)| kind).collect();
        let mut pipe = pipe();
        pipe.atomic().hmget(self.keys.heard(), VERSIONS);
        pipe.zrange_withscores(self.keys.blind(), 0, -1);
        for kind in &kinds {
            pipe.zrange_withscores(self.keys.blind_of(kind), 0, -1);
        }
        let mut answers: Vec<Value> = self.topology.send("ledger", &pipe).await?;
        let damaged = |error| EngineError::Damaged(format!("the ledger: {error}"));
        let ledgers = answers.split_off(1);
        let ((heard, version, of_kinds, ..),): (Versions,) =
            redis::from_redis_value(Value::Array(answers)).map_err(damaged)?;
        let ledgers: Vec<Vec<(Vec<u8>, f64)>> =
            redis::from_redis_value(Value::Array(ledgers)).map_err(damaged)?;
        let heard = self.hearing_number("at", heard.as_deref());
        let version = self.hearing_number("ledger", version.as_deref());
        let of_kinds = self.hearing_number("kinds", of_kinds.as_deref());
        let taken = ledgers[0].iter().filter(|(_, end)| end.fract() > 0.0);
        let taken: Vec<Timestamp> = taken.map(|(_, end)| Timestamp::from_millis(*end as i64)).collect();
        let mut blind = BTreeMap::new();
        for (kind, scored) in kinds.into_iter().zip(&ledgers[1..]) {
            let of_kind = self.read_intervals(&self.keys.blind_of(kind), scored, parse_filter_blindness);
            if !of_kind.is_empty() {
                blind.insert(kind.clone(), of_kind);
            }
        }
        let intervals = self.read_intervals(&self.keys.blind(), &ledgers[0], parse_interval);
        let hearing = Hearing {
            heard: heard.map(Timestamp::from_millis),
            ledger: Ledger::new(intervals).with_taken(taken),
            filters: Arc::new(FilterProofs { blind, ..FilterProofs::default() }),
            ..Hearing::default()
        };
        Ok(((version.unwrap_or(0), of_kinds.unwrap_or(0)), hearing))
    }
}

/// `<from> <to> <filter>`; a filter may hold spaces.
pub(super) fn parse_filter_blindness(text: &str) -> Result<FilterBlindness> {
    let (from, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (to, filter) = rest.split_once(' ').unwrap_or((rest, ""));
    let interval = parse_interval(&format!("{from} {to}"))?;
    Ok(FilterBlindness { filter: filter.to_owned(), interval })
}

/// `<from> <to>` in ms.
pub(super) fn parse_interval(text: &str) -> Result<Interval> {
    let parse = |ms: &str| ms.parse().ok().map(Timestamp::from_millis);
    text.split_once(' ')
        .and_then(|(from, to)| Some(Interval { from: parse(from)?, to: parse(to)? }))
        .ok_or_else(|| EngineError::Damaged(format!("the ledger holds {text:?}, which is no blind interval")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blind_interval_of_a_kind_names_its_filter() {
        let read = parse_filter_blindness("5 7 eu/a b/+").unwrap();
        assert_eq!((read.filter.as_str(), read.interval), ("eu/a b/+", parse_interval("5 7").unwrap()));
        for text in ["", "5", "5 x eu/a", "x 7 eu/a"] {
            assert!(parse_filter_blindness(text).is_err(), "{text:?}");
        }
    }
}
