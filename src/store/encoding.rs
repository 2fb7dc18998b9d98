//! The stored form of facts, the same in every engine.
//!
//! One line of text: a letter for the lifecycle, the last seen time in ms, the distance from there to the last check
//! (absent if there was no expiry key), since when the unit is known (`@` if a heartbeat admitted it, `=` if it was
//! registered, and the second in digits of base 36), and a JSON object with the rest, for units that need one. An
//! ordinary unit takes about 30 bytes:
//!
//! ```text
//! p1732147200000+86400000@sn9xc0{"l":{"site":"north"}}
//! ```
//!
//! | letter | lifecycle |
//! |---|---|
//! | `n` | registered, never seen |
//! | `p` | present |
//! | `f` | offline; `o` in the JSON has the silence |
//! | `r` | retired; `r` in the JSON has the time |
//!
//! # Why the times of a silence are distances
//! Redis stores a page of small values as one packed string. A value longer than 64 bytes makes Redis unpack the
//! page, which costs memory for all units on the page and is slow just when many units fall silent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{
    Acknowledgement, BrokerName, Cause, Departure, Facts, Interval, Known, Labels, Lifecycle, Override,
    Silence,
};

#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Rest {
    #[serde(rename = "l", skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    #[serde(rename = "t", skip_serializing_if = "Option::is_none")]
    declared_ms: Option<u64>,
    #[serde(rename = "ot", skip_serializing_if = "Option::is_none")]
    set_timeout_ms: Option<u64>,
    #[serde(rename = "og", skip_serializing_if = "Option::is_none")]
    set_grace_ms: Option<u64>,
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    sleep: Option<(i64, i64)>,
    #[serde(rename = "p", skip_serializing_if = "Option::is_none")]
    pause: Option<(i64, i64)>,
    /// The time from last seen to the deadline, the time from the deadline to the detection (ms), the cause, and the
    /// allowed silence (ms).
    #[serde(rename = "o", skip_serializing_if = "Option::is_none")]
    silence: Option<(i64, i64, char, u64)>,
    /// The time from last seen to the announcement that the unit is gone (ms), the time in which it may be heard (ms),
    /// and the cause.
    #[serde(rename = "d", skip_serializing_if = "Option::is_none")]
    departure: Option<(i64, u64, char)>,
    /// Whether the announcement came over HTTP.
    #[serde(rename = "h", skip_serializing_if = "std::ops::Not::not")]
    over_http: bool,
    /// The time from last seen to the presumed begin of the silence (ms).
    #[serde(rename = "u", skip_serializing_if = "Option::is_none")]
    unseen_ms: Option<i64>,
    /// The broker that delivered the last heartbeat, or HTTP.
    #[serde(rename = "b", skip_serializing_if = "Option::is_none")]
    broker: Option<BrokerName>,
    #[serde(rename = "r", skip_serializing_if = "Option::is_none")]
    retired: Option<i64>,
    /// When the open record was acknowledged (ms), the author and the comment.
    #[serde(rename = "a", skip_serializing_if = "Option::is_none")]
    acknowledged: Option<(i64, String, String)>,
    #[serde(rename = "m", skip_serializing_if = "String::is_empty")]
    note: String,
}

/// Facts as text.
pub fn encode(facts: &Facts) -> String {
    let seen = facts.last_seen.as_millis();
    let (letter, silence, retired) = match &facts.lifecycle {
        Lifecycle::NeverSeen => ('n', None, None),
        Lifecycle::Present => ('p', None, None),
        Lifecycle::Offline(s) => {
            let (deadline, detected_at) = (s.deadline.as_millis(), s.detected_at.as_millis());
            let allowed = s.allowed.as_millis() as u64;
            ('f', Some((deadline - seen, detected_at - deadline, letter_of(s.cause), allowed)), None)
        }
        Lifecycle::Retired(at) => ('r', None, Some(at.as_millis())),
    };
    let rest = Rest {
        labels: facts.labels.clone(),
        declared_ms: facts.declared_timeout.map(|t| t.as_millis() as u64),
        set_timeout_ms: facts.set.timeout.map(|t| t.as_millis() as u64),
        set_grace_ms: facts.set.grace.map(|t| t.as_millis() as u64),
        sleep: facts.sleep.map(|i| (i.from.as_millis(), i.to.as_millis())),
        pause: facts.pause.map(|i| (i.from.as_millis(), i.to.as_millis())),
        silence,
        departure: facts
            .departure
            .map(|d| (d.at.as_millis() - seen, d.settle.as_millis() as u64, letter_of(d.cause))),
        over_http: facts.departure.is_some_and(|departure| departure.over_http),
        unseen_ms: facts.silent_from.map(|from| from.as_millis() - seen),
        broker: facts.broker.clone(),
        retired,
        acknowledged: facts
            .acknowledged
            .as_ref()
            .map(|one| (one.at.as_millis(), one.author.clone(), one.comment.clone())),
        note: facts.note.clone(),
    };
    let mut text = format!("{letter}{seen}");
    if let Some(checked_at) = facts.checked_at {
        text += &format!("{:+}", checked_at.as_millis() - seen);
    }
    if let Some(known) = facts.known {
        text.push(if known.is_registered { REGISTERED } else { ADMITTED });
        push_base_36(&mut text, known.since.as_millis().max(0) as u64 / 1000);
    }
    if rest != Rest::default() {
        text += &serde_json::to_string(&rest).expect("plain numbers and strings");
    }
    text
}

/// Whether these stored facts are of a retired unit; reads only their letter.
pub fn is_retired(stored: &[u8]) -> bool {
    stored.starts_with(b"r")
}

/// Facts from text; `None` for a text that [`encode`] does not write.
pub fn decode(text: &str) -> Option<Facts> {
    let (numbers, rest) = match text.find('{') {
        Some(at) => (&text[..at], serde_json::from_str(&text[at..]).ok()?),
        None => (text, Rest::default()),
    };
    let letter = numbers.chars().next()?;
    let numbers = numbers.get(1..)?;
    let (numbers, known) = match numbers.find([ADMITTED, REGISTERED]) {
        Some(at) => {
            let is_registered = numbers[at..].starts_with(REGISTERED);
            let second = u64::from_str_radix(&numbers[at + 1..], BASE as u32).ok()?;
            let since = Timestamp::from_millis(i64::try_from(second).ok()?.checked_mul(1000)?);
            (&numbers[..at], Some(Known { since, is_registered }))
        }
        None => (numbers, None),
    };
    let (seen, checked_at) = match numbers.find(['+', '-']) {
        Some(at) => (&numbers[..at], Some(numbers[at..].parse::<i64>().ok()?)),
        None => (numbers, None),
    };
    let seen: i64 = seen.parse().ok()?;
    let moment = Timestamp::from_millis;
    let interval = |(from, to)| Interval { from: moment(from), to: moment(to) };
    let lifecycle = match (letter, rest.silence, rest.retired) {
        ('n', ..) => Lifecycle::NeverSeen,
        ('p', ..) => Lifecycle::Present,
        ('f', Some((deadline, detected_at, cause, allowed)), _) => Lifecycle::Offline(Silence {
            deadline: moment(seen.checked_add(deadline)?),
            detected_at: moment(seen.checked_add(deadline)?.checked_add(detected_at)?),
            cause: cause_of(cause)?,
            allowed: Duration::from_millis(allowed),
        }),
        ('r', _, Some(at)) => Lifecycle::Retired(moment(at)),
        _ => return None,
    };
    Some(Facts {
        lifecycle,
        last_seen: moment(seen),
        broker: rest.broker,
        silent_from: optional(rest.unseen_ms, |distance| Some(moment(seen.checked_add(distance)?)))?,
        checked_at: checked_at.map(|distance| moment(seen.saturating_add(distance))),
        declared_timeout: rest.declared_ms.map(Duration::from_millis),
        set: Override {
            timeout: rest.set_timeout_ms.map(Duration::from_millis),
            grace: rest.set_grace_ms.map(Duration::from_millis),
        },
        labels: rest.labels,
        sleep: rest.sleep.map(interval),
        pause: rest.pause.map(interval),
        departure: optional(rest.departure, |stored| departure(seen, stored, rest.over_http))?,
        acknowledged: rest.acknowledged.map(|(at, author, comment)| Acknowledgement {
            at: moment(at),
            author,
            comment,
        }),
        note: rest.note,
        known,
    })
}

/// A value that may be missing; `None` if the value is damaged.
fn optional<T, U>(stored: Option<T>, read: impl FnOnce(T) -> Option<U>) -> Option<Option<U>> {
    stored.map_or(Some(None), |stored| read(stored).map(Some))
}

/// A stored announcement; `None` if it is damaged.
fn departure(
    seen: i64,
    (distance, settle_ms, cause): (i64, u64, char),
    over_http: bool,
) -> Option<Departure> {
    Some(Departure {
        at: Timestamp::from_millis(seen.checked_add(distance)?),
        settle: Duration::from_millis(settle_ms),
        cause: cause_of(cause).filter(|cause| cause.is_announced())?,
        over_http,
    })
}

/// The character before the second since which a unit is known.
const ADMITTED: char = '@';
const REGISTERED: char = '=';

const BASE: u64 = 36;

fn push_base_36(text: &mut String, number: u64) {
    if number >= BASE {
        push_base_36(text, number / BASE);
    }
    text.extend(char::from_digit((number % BASE) as u32, BASE as u32));
}

fn letter_of(cause: Cause) -> char {
    match cause {
        // No facts of a unit have these causes: they belong to records of flapping and of unusual silences.
        Cause::Silence | Cause::Flapping | Cause::Unusual => 's',
        Cause::NeverSeen => 'n',
        Cause::LastWill => 'w',
        Cause::NodeDeath => 'd',
        Cause::Disconnected => 'c',
    }
}

fn cause_of(letter: char) -> Option<Cause> {
    Cause::OF_SILENCES.into_iter().find(|cause| letter_of(*cause) == letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_ordinary_unit_is_one_short_line() {
        let mut facts = Facts::new(Lifecycle::Present, Timestamp::from_millis(1_732_147_200_000));
        facts.checked_at = Some(Timestamp::from_millis(1_732_147_200_003));
        assert_eq!(encode(&facts), "p1732147200000+3");
        facts.known = Some(Known::admitted(facts.last_seen - Duration::from_secs(1)));
        assert_eq!(encode(&facts), "p1732147200000+3@sn9xbz");
        facts.known = Some(Known::registered(facts.last_seen));
        assert_eq!(encode(&facts), "p1732147200000+3=sn9xc0");
    }

    /// By default Redis packs values of up to 64 bytes: see the module.
    #[test]
    fn the_longest_ordinary_silence_stays_on_a_packed_page() {
        let year = Duration::from_secs(400 * 86_400);
        let seen = Timestamp::from_millis(1_732_147_200_000);
        let deadline = seen + year;
        let detected_at = deadline + Duration::from_secs(3600);
        let silence = Silence { deadline, detected_at, cause: Cause::Silence, allowed: year };
        let known = Some(Known::admitted(seen));
        let text = encode(&Facts { known, ..Facts::new(Lifecycle::Offline(silence), seen) });
        assert!(text.len() <= 64, "{text} takes {} bytes", text.len());
    }

    #[test]
    fn facts_of_an_earlier_build_have_no_presumed_begin_and_a_presumed_begin_reads_back() {
        let seen = Timestamp::from_millis(1_732_147_200_000);
        assert_eq!(decode("p1732147200000"), Some(Facts::new(Lifecycle::Present, seen)));
        let facts = Facts {
            silent_from: Some(seen + Duration::from_secs(2)),
            ..Facts::new(Lifecycle::Present, seen)
        };
        assert_eq!(encode(&facts), "p1732147200000{\"u\":2000}");
        assert_eq!(decode("p1732147200000{\"u\":2000}"), Some(facts));
    }

    #[test]
    fn damaged_text_is_recognised() {
        for text in [
            "",
            "p",
            "x1",
            "p1+",
            "p1{",
            "f1",
            "r1",
            "p1+2+3",
            "p1@",
            "p1@-",
            "p1@2+3",
            "p1@2=3",
            "p1@zzzzzzzzzzzz",
            "é",
            "f1{\"o\":[1,1,\"x\",1]}",
            "p1{\"d\":[1,1,\"s\"]}",
        ] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }

    fn moment() -> impl Strategy<Value = Timestamp> {
        (0i64..2_000_000_000_000).prop_map(Timestamp::from_millis)
    }

    fn span() -> impl Strategy<Value = Duration> {
        (0u64..40_000_000_000).prop_map(Duration::from_millis)
    }

    fn interval() -> impl Strategy<Value = Interval> {
        (moment(), moment()).prop_map(|(from, to)| Interval { from, to })
    }

    fn departure() -> impl Strategy<Value = Departure> {
        let cause = prop_oneof![Just(Cause::LastWill), Just(Cause::NodeDeath), Just(Cause::Disconnected)];
        (moment(), span(), cause, any::<bool>()).prop_map(|(at, settle, cause, over_http)| Departure {
            at,
            settle,
            cause,
            over_http,
        })
    }

    fn lifecycle() -> impl Strategy<Value = Lifecycle> {
        let cause = (0..Cause::OF_SILENCES.len()).prop_map(|at| Cause::OF_SILENCES[at]);
        let silence =
            (moment(), moment(), cause, span()).prop_map(|(deadline, detected_at, cause, allowed)| {
                Lifecycle::Offline(Silence { deadline, detected_at, cause, allowed })
            });
        let plain = prop_oneof![Just(Lifecycle::Present), Just(Lifecycle::NeverSeen)];
        prop_oneof![plain, silence, moment().prop_map(Lifecycle::Retired)]
    }

    proptest! {
        #[test]
        fn encoded_facts_read_back(
            lifecycle in lifecycle(), last_seen in moment(), checked_at in prop::option::of(moment()),
            times in (prop::option::of(span()), prop::option::of(span()), prop::option::of(span())),
            labels in prop::collection::btree_map("[a-z]{1,8}", "\\PC{1,16}", 0..4),
            silent_from in prop::option::of(moment()),
            sleep in prop::option::of(interval()), pause in prop::option::of(interval()),
            departure in prop::option::of(departure()),
            acknowledged in prop::option::of((moment(), "\\PC{1,16}", "\\PC{0,16}")), note in "\\PC{0,16}",
            known in prop::option::of((moment(), any::<bool>())), broker in prop::option::of("[a-z0-9_-]{1,32}"),
        ) {
            let acknowledged = acknowledged.map(|(at, author, comment)| Acknowledgement { at, author, comment });
            let (declared_timeout, timeout, grace) = times;
            let set = Override { timeout, grace };
            let known = known.map(|(at, is_registered)| Known { is_registered, ..Known::admitted(at) });
            let broker = broker.map(|name| name.parse().unwrap());
            let facts = Facts { lifecycle, last_seen, broker, silent_from, checked_at, declared_timeout, set, labels, sleep, pause, departure, acknowledged, note, known };
            prop_assert_eq!(decode(&encode(&facts)), Some(facts));
        }
    }
}
