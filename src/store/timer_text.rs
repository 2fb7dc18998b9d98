//! The stored form of a timer in an engine whose values are texts.
//!
//! One line: a letter for the state, the type, the moment in ms, base 36; and the data. A timer that waits for the
//! first of its kind takes 21 bytes more than its data:
//!
//! ```text
//! wreport-due m3q9k5s0 {"device":"d-7"}
//! ```
//!
//! One that has fired or was cancelled has the moment of that, and its receipts:
//!
//! ```text
//! freport-due m3q9k5s0 m3q9k5s4 hook:d,mail:p {"device":"d-7"}
//! ```
//!
//! Before the data stands, of a span, the sum of the steps of the clock that its moment contains, in ms, base 36:
//!
//! ```text
//! wreport-due m3q9k5s0 +0 {"device":"d-7"}
//! ```
//!
//! | letter | state | | letter | receipt |
//! |---|---|---|---|---|
//! | `w` | waiting | | `p` | pending |
//! | `f` | fired | | `b` | begun |
//! | `d` | delivered | | `d` | delivered |
//! | `x` | dead | | `x` | dead |
//! | `c` | cancelled | | `u` | unknown |
//!
//! # Why so short
//! Redis stores a page of small values as one packed string. A value longer than 64 bytes makes it unpack the page,
//! which costs 60 bytes more for each timer on it. So timers that have fired or were cancelled lie elsewhere.
//!
//! The form is the only one of its timer: a script compares the stored text with that of the timer that was read.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::presence::{
    FiredTimer, Guarantee, NewTimer, Receipt, Timer, TimerClass, TimerData, TimerId, TimerLifecycle,
    TimerState, TimerType,
};

/// Instead of the receipts of a timer that has none.
const NO_RECEIPTS: &str = "-";

pub(super) fn letter_of_state(state: TimerState) -> char {
    match state {
        TimerState::Waiting => 'w',
        TimerState::Fired => 'f',
        TimerState::Delivered => 'd',
        TimerState::Dead => 'x',
        TimerState::Cancelled => 'c',
    }
}

pub(super) fn letter_of_receipt(receipt: Receipt) -> char {
    match receipt {
        Receipt::Pending => 'p',
        Receipt::Begun => 'b',
        Receipt::Delivered => 'd',
        Receipt::Dead => 'x',
        Receipt::Unknown => 'u',
    }
}

/// A new timer as text, without its id. `stepped`: the sum of the steps of the clock until now.
pub(super) fn encode_waiting(timer: &NewTimer, stepped: Duration) -> String {
    waiting_text(&timer.timer_type, timer.due, timer.is_span.then_some(stepped), &timer.data)
}

fn waiting_text(of: &TimerType, due: Timestamp, stepped: Option<Duration>, data: &TimerData) -> String {
    let mut letter = [0; 4];
    let letter: &str = letter_of_state(TimerState::Waiting).encode_utf8(&mut letter);
    [letter, of.as_str(), " ", &moment(due), " ", &steps_text(stepped), data.as_str()].concat()
}

/// The begin of the part with the data.
fn steps_text(stepped: Option<Duration>) -> String {
    let ms = stepped.map(|stepped| moment(Timestamp::ZERO + stepped));
    ms.map(|ms| format!("+{ms} ")).unwrap_or_default()
}

/// A timer as text, without its id.
pub(super) fn encode(timer: &Timer) -> String {
    let (letter, due) = (letter_of_state(timer.state()), moment(timer.due));
    let of = &timer.timer_type;
    let data = steps_text(timer.stepped) + timer.data.as_str();
    match &timer.lifecycle {
        TimerLifecycle::Waiting => waiting_text(of, timer.due, timer.stepped, &timer.data),
        TimerLifecycle::Cancelled { at } => {
            format!("{letter}{of} {due} {} {NO_RECEIPTS} {data}", moment(*at))
        }
        TimerLifecycle::Fired { at, receipts } => {
            format!("{letter}{of} {due} {} {} {data}", moment(*at), receipts_text(receipts))
        }
    }
}

/// The part between the moment and the data of a timer of this class that fires now.
pub(super) fn fired_part(class: &TimerClass, now: Timestamp) -> String {
    let pending = |name: &String| (name.clone(), Receipt::Pending);
    let receipts: Vec<(String, Receipt)> = class.receivers.iter().map(pending).collect();
    format!("{} {}", moment(now), receipts_text(&receipts))
}

/// A timer from text; `None` for a text that [`encode`] does not write.
pub(super) fn decode(id: &TimerId, text: &str) -> Option<Timer> {
    let letter = text.chars().next()?;
    let (timer_type, rest) = text.get(letter.len_utf8()..)?.split_once(' ')?;
    let (due, rest) = rest.split_once(' ')?;
    let (lifecycle, data) = if letter == 'w' {
        (TimerLifecycle::Waiting, rest)
    } else {
        let (at, rest) = rest.split_once(' ')?;
        let (receipts, data) = rest.split_once(' ')?;
        let at = moment_of(at)?;
        let lifecycle = match letter {
            'c' => TimerLifecycle::Cancelled { at },
            _ => TimerLifecycle::Fired { at, receipts: receipts_of(receipts)? },
        };
        (lifecycle, data)
    };
    let (timer_type, due) = (timer_type.parse().ok()?, moment_of(due)?);
    // No JSON begins like that.
    let (stepped, data) = match data.strip_prefix('+').map(|rest| rest.split_once(' ')) {
        None => (None, data),
        Some(part) => (Some(moment_of(part?.0)?.since(Timestamp::ZERO)), part?.1),
    };
    let timer = Timer { id: id.clone(), timer_type, due, stepped, data: TimerData::stored(data)?, lifecycle };
    (letter_of_state(timer.state()) == letter).then_some(timer)
}

/// Whether this is a stored timer that has fired and that receivers have not got yet, whatever follows the letter.
pub(super) fn is_fired(stored: &[u8]) -> bool {
    stored.starts_with(b"f")
}

/// The begin of the notification of a timer in its short form: no other notification begins like that. The letter of
/// its guarantee follows, its id, and after a line break the timer as it is stored. These are a third of the bytes, and
/// a script that fires a timer has them all.
pub(super) const FIRED: &str = "timer ";

/// The part of the short form before the id of the timer.
pub(super) fn begin_of_fired(guarantee: Guarantee) -> String {
    format!("{FIRED}{} ", letter_of_guarantee(guarantee))
}

fn letter_of_guarantee(guarantee: Guarantee) -> &'static str {
    match guarantee {
        Guarantee::AtLeastOnce => "l",
        Guarantee::AtMostOnce => "m",
    }
}

/// The timer of the short form, without [`FIRED`]; `None`: it cannot be read.
pub(super) fn decode_fired(text: &str) -> Option<FiredTimer> {
    let (letter, text) = text.split_once(' ')?;
    let guarantees = [Guarantee::AtLeastOnce, Guarantee::AtMostOnce];
    let guarantee = guarantees.into_iter().find(|one| letter_of_guarantee(*one) == letter)?;
    let (id, stored) = text.split_once('\n')?;
    FiredTimer::of(decode(&id.parse().ok()?, stored)?, guarantee)
}

pub(super) fn is_timer(text: &str) -> bool {
    "any".parse().is_ok_and(|id| decode(&id, text).is_some())
}

/// Receipts as text, such as `hook:d,mail:p`; [`NO_RECEIPTS`] for none.
pub(super) fn receipts_text(receipts: &[(String, Receipt)]) -> String {
    if receipts.is_empty() {
        return NO_RECEIPTS.to_owned();
    }
    let texts = receipts.iter().map(|(name, receipt)| format!("{name}:{}", letter_of_receipt(*receipt)));
    texts.collect::<Vec<_>>().join(",")
}

/// The same from text.
pub(super) fn receipts_of(text: &str) -> Option<Vec<(String, Receipt)>> {
    if text == NO_RECEIPTS {
        return Some(Vec::new());
    }
    let receipt = |one: &str| {
        let (name, letter) = one.split_once(':')?;
        let of_letter = |receipt: &Receipt| letter == letter_of_receipt(*receipt).encode_utf8(&mut [0; 4]);
        Some((name.to_owned(), Receipt::ALL.into_iter().find(of_letter)?))
    };
    text.split(',').map(receipt).collect()
}

/// How many digits the last moment has.
const MAX_MOMENT: usize = 13;
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A moment in base 36, as Lua reads it: eight digits until the year 2059.
pub(super) fn moment(at: Timestamp) -> String {
    let mut ms = at.as_millis().max(0);
    let mut digits = [0; MAX_MOMENT];
    let mut first = MAX_MOMENT;
    loop {
        first -= 1;
        digits[first] = DIGITS[(ms % 36) as usize];
        ms /= 36;
        if ms == 0 {
            return digits[first..].iter().map(|digit| char::from(*digit)).collect();
        }
    }
}

fn moment_of(text: &str) -> Option<Timestamp> {
    let at = Timestamp::from_millis(i64::from_str_radix(text, 36).ok()?);
    (moment(at) == text).then_some(at)
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

    /// As `fire_timers.lua` writes it.
    fn short_form(class: &TimerClass, text: &str, id: &str, now: Timestamp) -> String {
        let mut words = text.splitn(3, ' ');
        let (of, due, data) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let of = of.strip_prefix('w').unwrap();
        format!("{}{id}\nf{of} {due} {} {data}", begin_of_fired(class.guarantee), fired_part(class, now))
    }

    #[test]
    fn the_notification_of_a_timer_reads_back_from_its_short_form() {
        let now = Timestamp::from_millis(1_764_000_000_500);
        for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
            for (id, data) in [("a", "null"), ("a b:c", "{\"x\":\n [1, \"y z\"]}"), ("\u{e9} f", "1")] {
                let stepped = (data == "1").then_some(Duration::from_secs(3600));
                let timer = Timer { id: id.parse().unwrap(), stepped, ..timer(data) };
                let (timer_type, receivers) =
                    (timer.timer_type.clone(), vec!["hook".to_owned(), "mail".to_owned()]);
                let class =
                    TimerClass { timer_type, receivers, guarantee, keep: Default::default(), most: 9 };
                let text = short_form(&class, &encode(&timer), id, now);
                let short = text.strip_prefix(FIRED).unwrap();
                assert_eq!(decode_fired(short), Some(FiredTimer::new(&timer, &class, now)), "{text:?}");
                let stored = short.split_once('\n').unwrap().1;
                assert_eq!(stored, encode(&timer.fired(&class, now)));
                assert_eq!(decode_fired(&short[1..]), None, "without its guarantee");
            }
        }
        for garbage in ["", "l a", "l a\nwa zz 1", "q a\nfa zz zz hook:p 1", "l a/b\nfa zz zz hook:p 1"] {
            assert_eq!(decode_fired(garbage), None, "{garbage:?}");
        }
    }

    /// Redis packs values of up to 64 bytes by default: see the module.
    #[test]
    fn a_waiting_timer_with_forty_bytes_of_data_stays_on_a_packed_page() {
        let data = format!("\"{}\"", "x".repeat(38));
        let text = encode(&timer(&data));
        assert_eq!(text, format!("wreport-due mid3twu0 {data}").replace("mid3twu0", &moment(timer("1").due)));
        assert!(data.len() == 40 && text.len() <= 64, "{text} takes {} bytes", text.len());
    }

    #[test]
    fn damaged_text_is_recognised() {
        let id = "a".parse().unwrap();
        for text in [
            "",
            "w",
            "wa",
            "wa b",
            "wa zz",
            "wA zz 1",
            "wa -1 1",
            "wa 0zz 1",
            "wa ZZ 1",
            "wa zz {",
            "wa zz +",
            "wa zz + 1",
            "wa zz +00 1",
            "wa zz +0",
            "qa zz 1",
            "fa zz 1",
            "fa zz zz hook:d 1",
            "fa zz zz hook:q 1",
            "fa zz zz hook 1",
            "da zz zz hook:p 1",
            "ca zz zz 1",
            "é",
        ] {
            assert_eq!(decode(&id, text), None, "{text:?}");
        }
        assert!(decode(&id, "wa zz 1").is_some() && decode(&id, "fa zz zz hook:p 1").is_some());
    }

    fn lifecycle() -> impl Strategy<Value = TimerLifecycle> {
        let at = || (0i64..250_000_000_000_000).prop_map(Timestamp::from_millis);
        let receipts = prop::collection::vec(("[a-z0-9_-]{1,8}", prop::sample::select(&Receipt::ALL)), 0..4);
        prop_oneof![
            Just(TimerLifecycle::Waiting),
            at().prop_map(|at| TimerLifecycle::Cancelled { at }),
            (at(), receipts).prop_map(|(at, receipts)| TimerLifecycle::Fired { at, receipts }),
        ]
    }

    proptest! {
        #[test]
        fn an_encoded_timer_reads_back(
            due in 0i64..250_000_000_000_000, data in "\\PC{0,40}", lifecycle in lifecycle(),
            stepped in prop::option::of(0u64..1 << 40),
        ) {
            let data = serde_json::to_string(&data).unwrap();
            let stepped = stepped.map(Duration::from_millis);
            let timer = Timer { due: Timestamp::from_millis(due), stepped, lifecycle, ..timer(&data) };
            prop_assert_eq!(decode(&timer.id, &encode(&timer)), Some(timer));
        }
    }
}
