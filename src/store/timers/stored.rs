//! Timers as cells.
//!
//! A timer that fired or was cancelled is JSON. A waiting timer is a line, because millions of them may wait: its
//! type, its moment in ms, base 36, and its data. The line takes 10 bytes more than type and data:
//!
//! ```text
//! report-due m3q9k5s0 {"device":"d-7"}
//! ```
//!
//! For a span, the sum of the steps of the clock that its moment contains stands before the data, in ms, base 36:
//!
//! ```text
//! report-due m3q9k5s0 +0 {"device":"d-7"}
//! ```
//!
//! # Why no JSON
//! Redis stores a page of small values as one packed string. A value longer than 64 bytes makes Redis unpack the
//! page, which costs 60 bytes more for each timer on it. A timer with a type of ten letters and 40 bytes of data
//! takes 60 bytes in this form, and 69 as the shortest JSON. Past timers, which have more, are in another table.
//!
//! Each timer has exactly one such form: a change-set compares the stored form with that of the timer that was read.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{Receipt, Timer, TimerData, TimerId, TimerLifecycle, TimerType};
use crate::store::documents::TableValue;
use crate::store::json::{from_json, to_json};
use crate::store::{EngineError, Result, Table};

/// A waiting timer, without its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitingTimer {
    pub timer_type: TimerType,
    pub due: Timestamp,
    stepped: Option<Duration>,
    data: TimerData,
}

impl WaitingTimer {
    pub fn of(timer: &Timer) -> WaitingTimer {
        let Timer { timer_type, due, stepped, data, .. } = timer.clone();
        WaitingTimer { timer_type, due, stepped, data }
    }

    pub fn timer(&self, id: TimerId) -> Timer {
        let WaitingTimer { timer_type, due, stepped, data } = self.clone();
        Timer { id, timer_type, due, stepped, data, lifecycle: TimerLifecycle::Waiting }
    }

    fn text(&self) -> String {
        let WaitingTimer { timer_type, due, stepped, data } = self;
        let steps = stepped.map(|stepped| format!("+{} ", base36(Timestamp::ZERO + stepped)));
        [timer_type.as_str(), " ", &base36(*due), " ", &steps.unwrap_or_default(), data.as_str()].concat()
    }

    fn parse(text: &str) -> Option<WaitingTimer> {
        let (timer_type, rest) = text.split_once(' ')?;
        let (due, data) = rest.split_once(' ')?;
        // No JSON begins with a plus.
        let (stepped, data) = match data.strip_prefix('+').map(|rest| rest.split_once(' ')) {
            None => (None, data),
            Some(part) => (Some(from_base36(part?.0)?.since(Timestamp::ZERO)), part?.1),
        };
        let (timer_type, due, data) = (timer_type.parse().ok()?, from_base36(due)?, TimerData::stored(data)?);
        Some(WaitingTimer { timer_type, due, stepped, data })
    }
}

impl TableValue for WaitingTimer {
    type Name = TimerId;
    const TABLE: Table = Table::Timers;

    fn encode_into(&self, stored: &mut Vec<u8>) -> Result<()> {
        stored.extend_from_slice(self.text().as_bytes());
        Ok(())
    }

    fn decode(stored: &[u8]) -> Result<WaitingTimer> {
        let timer = std::str::from_utf8(stored).ok().and_then(WaitingTimer::parse);
        timer.ok_or_else(|| EngineError::Damaged("it is not a timer; it does not fire".to_owned()))
    }
}

/// A timer that fired or was cancelled, without its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct PastTimer {
    #[serde(rename = "type")]
    timer_type: TimerType,
    /// Its moment (ms).
    due: i64,
    data: TimerData,
    /// When it was cancelled (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled: Option<i64>,
    /// When it fired (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fired: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    receipts: Vec<(String, Receipt)>,
}

impl PastTimer {
    /// `None`: the timer waits.
    pub fn of(timer: &Timer) -> Option<PastTimer> {
        let Timer { timer_type, due, data, lifecycle, .. } = timer.clone();
        let (cancelled, fired, receipts) = match lifecycle {
            TimerLifecycle::Waiting => return None,
            TimerLifecycle::Cancelled { at } => (Some(at.as_millis()), None, Vec::new()),
            TimerLifecycle::Fired { at, receipts } => (None, Some(at.as_millis()), receipts),
        };
        Some(PastTimer { timer_type, due: due.as_millis(), data, cancelled, fired, receipts })
    }

    pub fn timer(&self, id: TimerId) -> Timer {
        let PastTimer { timer_type, due, data, cancelled, fired, receipts } = self.clone();
        let at = Timestamp::from_millis(cancelled.or(fired).unwrap_or(due));
        let lifecycle = match cancelled {
            Some(_) => TimerLifecycle::Cancelled { at },
            None => TimerLifecycle::Fired { at, receipts },
        };
        Timer { id, timer_type, due: Timestamp::from_millis(due), stepped: None, data, lifecycle }
    }
}

impl TableValue for PastTimer {
    type Name = TimerId;
    const TABLE: Table = Table::PastTimers;
}

/// The number of waiting timers of a type in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct TimerCount(pub i64);

impl TableValue for TimerCount {
    type Name = TimerType;
    const TABLE: Table = Table::TimerCounts;
}

/// The change of a past timer by a receipt.
pub(in crate::store) struct ReceiptChange {
    /// The expected cell; `after` is the new cell.
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    /// Whether the timer then has an only attempt without an outcome.
    pub has_begun: bool,
}

/// Writes the receipt of a timer at a receiver; `None`: nothing changes, because the timer is unknown now, or was
/// registered again.
pub(in crate::store) fn receipt_change(
    stored: Option<&[u8]>,
    (id, due): &(TimerId, Timestamp),
    receiver: &str,
    receipt: Receipt,
) -> Option<ReceiptChange> {
    let before = stored?;
    let known = from_json::<PastTimer>(PastTimer::TABLE.as_str(), std::str::from_utf8(before).ok()?).ok()?;
    let known = known.timer(id.clone());
    let changed = (known.due == *due).then_some(known)?.with_receipt(receiver, receipt)?;
    let after = to_json(&PastTimer::of(&changed)?).ok()?.into_bytes();
    Some(ReceiptChange { before: before.to_vec(), after, has_begun: changed.begun() > 0 })
}

/// The most digits of a moment in base 36.
const MAX_DIGITS: usize = 13;
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A moment in ms: eight digits until the year 2059.
fn base36(at: Timestamp) -> String {
    let mut ms = at.as_millis().max(0);
    let mut digits = [0; MAX_DIGITS];
    let mut first = MAX_DIGITS;
    loop {
        first -= 1;
        digits[first] = DIGITS[(ms % 36) as usize];
        ms /= 36;
        if ms == 0 {
            return digits[first..].iter().map(|digit| char::from(*digit)).collect();
        }
    }
}

fn from_base36(text: &str) -> Option<Timestamp> {
    let at = Timestamp::from_millis(i64::from_str_radix(text, 36).ok()?);
    (base36(at) == text).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timer(data: &str) -> Timer {
        let (id, timer_type) = ("report-7".parse().unwrap(), "report-due".parse().unwrap());
        let due = Timestamp::from_millis(1_764_000_000_000);
        let (data, lifecycle) = (data.parse().unwrap(), TimerLifecycle::Waiting);
        Timer { id, timer_type, due, stepped: None, data, lifecycle }
    }

    /// By default Redis packs values of up to 64 bytes: see the module.
    #[test]
    fn a_waiting_timer_with_forty_bytes_of_data_stays_on_a_packed_page() {
        let data = format!("\"{}\"", "x".repeat(38));
        let span = Timer { stepped: Some(Duration::ZERO), ..timer(&data) };
        for (timer, expected) in [(timer(&data), "report-due mid3twu0 "), (span, "report-due mid3twu0 +0 ")] {
            let text = WaitingTimer::of(&timer).text();
            let expected = expected.replace("mid3twu0", &base36(timer.due));
            assert_eq!(text, expected + &data);
            assert!(data.len() == 40 && text.len() <= 64, "{text} takes {} bytes", text.len());
        }
    }

    #[test]
    fn damaged_text_is_recognised() {
        for text in [
            "",
            "a",
            "a b",
            "a zz",
            "A zz 1",
            "a -1 1",
            "a 0zz 1",
            "a ZZ 1",
            "a zz {",
            "a zz +",
            "a zz + 1",
            "a zz +00 1",
            "a zz +0",
            "é",
        ] {
            assert_eq!(WaitingTimer::parse(text), None, "{text:?}");
        }
        assert!(WaitingTimer::parse("a zz 1").is_some() && WaitingTimer::parse("a zz +0 1").is_some());
    }

    #[test]
    fn a_receipt_changes_the_timer_that_fired_at_that_moment() {
        let waits = timer("[1]");
        let receipts = vec![("hook".to_owned(), Receipt::Begun), ("mail".to_owned(), Receipt::Pending)];
        let fired = Timer { lifecycle: TimerLifecycle::Fired { at: waits.due, receipts }, ..waits.clone() };
        let stored = PastTimer::of(&fired).unwrap().encode().unwrap();
        let of = (fired.id.clone(), fired.due);
        let change = receipt_change(Some(&stored), &of, "hook", Receipt::Delivered).unwrap();
        assert_eq!((&change.before, change.has_begun), (&stored, false));
        let expected = fired.clone().with_receipt("hook", Receipt::Delivered).unwrap();
        assert_eq!(PastTimer::decode(&change.after).unwrap().timer(of.0.clone()), expected);
        let other = (of.0.clone(), of.1 + Duration::from_millis(1));
        for (stored, of, receiver, receipt) in [
            (None, &of, "hook", Receipt::Dead),
            (Some(&b"{}"[..]), &of, "hook", Receipt::Dead),
            (Some(&stored[..]), &other, "hook", Receipt::Dead),
            (Some(&stored[..]), &of, "unknown", Receipt::Dead),
            (Some(&stored[..]), &of, "hook", Receipt::Begun),
        ] {
            assert!(receipt_change(stored, of, receiver, receipt).is_none(), "{receiver} {receipt:?}");
        }
    }

    fn lifecycle() -> impl Strategy<Value = TimerLifecycle> {
        let at = || (0i64..250_000_000_000_000).prop_map(Timestamp::from_millis);
        let receipts = prop::collection::vec(("[a-z0-9_-]{1,8}", prop::sample::select(&Receipt::ALL)), 0..4);
        prop_oneof![
            at().prop_map(|at| TimerLifecycle::Cancelled { at }),
            (at(), receipts).prop_map(|(at, receipts)| TimerLifecycle::Fired { at, receipts }),
        ]
    }

    proptest! {
        #[test]
        fn a_stored_timer_reads_back(
            due in 0i64..250_000_000_000_000, data in "\\PC{0,40}", lifecycle in lifecycle(),
            stepped in prop::option::of(0u64..1 << 40),
        ) {
            let data = serde_json::to_string(&data).unwrap();
            let stepped = stepped.map(Duration::from_millis);
            let timer = Timer { due: Timestamp::from_millis(due), ..timer(&data) };
            let waits = WaitingTimer::of(&Timer { stepped, ..timer.clone() });
            prop_assert_eq!(WaitingTimer::decode(&waits.encode().unwrap()).unwrap(), waits);
            let past = Timer { lifecycle, ..timer };
            let stored = PastTimer::of(&past).unwrap().encode().unwrap();
            prop_assert_eq!(PastTimer::decode(&stored).unwrap().timer(past.id.clone()), past);
        }
    }
}
