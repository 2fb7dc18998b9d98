//! What a payload says, beside that its sender lives.
//!
//! Any payload proves life: empty, binary, broken. A JSON object may say more, each thing in a
//! field of its own; what is not plausible is counted and passed over, alone.
//!
//! | field | form | bounds |
//! |---|---|---|
//! | `ts` | seconds, milliseconds or microseconds since 1970, by magnitude; RFC 3339 | see below |
//! | `timeout` | seconds, or text such as `"36h"`, `"2d 12h"`, `"PT36H"` | 1 s … 400 d |
//! | `sleep` | like `timeout` | 1 s … 400 d |
//! | `labels` | object of text, numbers, booleans | 16 labels, 1–128 bytes each |
//!
//! # When a device's own time is believed
//! Only where its kind says so, and if it is at most five minutes ahead of the arrival (then the
//! arrival counts: nobody is last seen in the future) and not older than a day and the allowed
//! silence together. A device whose clock fell back to 1970 lives all the same; a message that was
//! stored on the way for a few hours is told from one that was not.

use std::time::Duration;

use super::json::{self, Said, Value};
use super::{Fields, PayloadIssues};
use crate::clock::{Timestamp, parse_span};
use crate::presence::{
    Declared, KindRules, Labels, MOST_LABELS, TimeSource, is_label_name, is_label_value, is_timeout,
};
use crate::telemetry::PayloadIssue;

/// How far a device's clock may be ahead.
const AHEAD: Duration = Duration::from_secs(300);
/// How much older than the allowed silence a heartbeat may say that it is.
const ON_ITS_WAY: Duration = Duration::from_secs(86_400);
/// The longest text that may be a duration or a time.
const LONGEST_TEXT: usize = 64;

/// What a payload says.
pub(super) struct Spoken {
    /// When the heartbeat counts for.
    pub at: Timestamp,
    /// When the device sent it, by a clock of its own that is plausible, whether the kind goes by it
    /// or not.
    pub sent: Option<Timestamp>,
    /// What else it says.
    pub declared: Declared,
}

/// Reads a payload.
pub(super) fn read(
    payload: &[u8],
    fields: &Fields,
    rules: &KindRules,
    arrived: Timestamp,
    odd: &mut PayloadIssues,
) -> Spoken {
    let mut spoken = Spoken { at: arrived, sent: None, declared: Declared::default() };
    if payload.trim_ascii_start().first() != Some(&b'{') {
        return spoken;
    }
    let said = match json::scan(payload, fields) {
        Ok(said) => said,
        Err(error) => {
            odd.note(PayloadIssue::BrokenJson, || error.to_string());
            return spoken;
        }
    };
    spoken.declared = declared(&said, rules, odd);
    spoken.sent = sent(&said, &spoken.declared, rules, arrived);
    if let (Some(value), TimeSource::Device) = (&said.ts, rules.clock) {
        match spoken.sent {
            Some(sent) => spoken.at = sent,
            None => odd.note(PayloadIssue::BadTimestamp, || shorten(value)),
        }
    }
    spoken
}

fn declared(said: &Said, rules: &KindRules, odd: &mut PayloadIssues) -> Declared {
    let mut span = |value: &Option<Value>, why: PayloadIssue| {
        let value = value.as_ref()?;
        let span = duration(value).filter(|span| is_timeout(*span));
        if span.is_none() {
            odd.note(why, || shorten(value));
        }
        span
    };
    // A timeout that the kind does not accept would only send every heartbeat down the slow road.
    let timeout = span(&said.timeout, PayloadIssue::BadTimeout).filter(|_| rules.accept_timeout);
    let sleep = span(&said.sleep, PayloadIssue::BadSleep).filter(|_| rules.accept_sleep);
    if sleep.is_some_and(|sleep| sleep > rules.max_sleep) {
        odd.note(PayloadIssue::BadSleep, || "longer than max_sleep, and shortened to it".to_owned());
    }
    let sleep = sleep.map(|sleep| sleep.min(rules.max_sleep));
    Declared { timeout, labels: labels(&said.labels, odd), sleep }
}

fn labels(said: &Option<Value>, odd: &mut PayloadIssues) -> Labels {
    let mut labels = Labels::new();
    let members = match said {
        None => return labels,
        Some(Value::Object(members)) => members,
        Some(value) => {
            odd.note(PayloadIssue::BadLabel, || shorten(value));
            return labels;
        }
    };
    for (name, value) in members {
        let text = match value {
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(value) => value.clone(),
            Value::Object(_) | Value::Other => String::new(),
        };
        let room = labels.len() < MOST_LABELS || labels.contains_key(name);
        if room && is_label_name(name) && is_label_value(&text) {
            labels.insert(name.clone(), text);
        } else {
            odd.note(PayloadIssue::BadLabel, || format!("{:.40} = {}", name.escape_debug(), shorten(value)));
        }
    }
    labels
}

fn sent(said: &Said, declared: &Declared, rules: &KindRules, arrived: Timestamp) -> Option<Timestamp> {
    let allowed = rules.resolve(declared.timeout, Default::default()).allowed();
    let plausible = arrived - allowed - ON_ITS_WAY..=arrived + AHEAD;
    let sent = moment(said.ts.as_ref()?).filter(|moment| plausible.contains(moment))?;
    Some(sent.min(arrived))
}

/// A length of time in whole milliseconds.
fn duration(value: &Value) -> Option<Duration> {
    let span = match value {
        Value::Int(seconds) => Duration::from_secs(u64::try_from(*seconds).ok()?),
        Value::Float(seconds) => Duration::try_from_secs_f64(*seconds).ok()?,
        Value::Text(text) if text.len() > LONGEST_TEXT => return None,
        Value::Text(text) => match text.trim().parse() {
            Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
            Err(_) => parse_span(text)?,
        },
        Value::Bool(_) | Value::Object(_) | Value::Other => return None,
    };
    Some(Duration::from_millis(u64::try_from(span.as_millis()).ok()?))
}

fn moment(value: &Value) -> Option<Timestamp> {
    match value {
        Value::Int(number) => since_1970(*number as f64),
        Value::Float(number) => since_1970(*number),
        Value::Text(text) if text.len() > LONGEST_TEXT => None,
        Value::Text(text) => match text.trim().parse() {
            Ok(number) => since_1970(number),
            Err(_) => {
                let moment: jiff::Timestamp = text.trim().parse().ok()?;
                Some(Timestamp::from_millis(moment.as_millisecond()))
            }
        },
        Value::Bool(_) | Value::Object(_) | Value::Other => None,
    }
}

/// Seconds up to the year 5138, milliseconds from 1973 and microseconds from 1973 do not overlap.
fn since_1970(number: f64) -> Option<Timestamp> {
    let ms = match number {
        n if n < 0.0 => return None,
        n if n < 1e11 => n * 1e3,
        n if n < 1e14 => n,
        n if n < 1e17 => n / 1e3,
        // Larger, or not a number.
        _ => return None,
    };
    Some(Timestamp::from_millis(ms as i64))
}

fn shorten(value: &Value) -> String {
    format!("{:.60}", format!("{value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_732_147_200_000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn rules() -> KindRules {
        KindRules { clock: TimeSource::Device, ..KindRules::new("detector".parse().unwrap()) }
    }

    fn hear(payload: &str) -> (Timestamp, Declared, Vec<PayloadIssue>) {
        let mut odd = PayloadIssues::default();
        let Spoken { at, declared, .. } =
            read(payload.as_bytes(), &Fields::default(), &rules(), NOW, &mut odd);
        (at, declared, odd.kinds())
    }

    #[test]
    fn any_payload_proves_life_and_only_a_broken_object_is_odd() {
        let deep = format!("{{\"ts\":{}", "[".repeat(200_000));
        let cases = [
            ("", vec![]),
            ("alive", vec![]),
            ("\u{0}\u{1}", vec![]),
            ("[1,", vec![]),
            ("42", vec![]),
            ("{}", vec![]),
            ("{\"battery\":87}", vec![]),
            ("  {\"battery\":", vec![PayloadIssue::BrokenJson]),
            ("{\"timeout\":60}{", vec![PayloadIssue::BrokenJson]),
            ("{\"timeout\":NaN}", vec![PayloadIssue::BrokenJson]),
            (deep.as_str(), vec![PayloadIssue::BrokenJson]),
        ];
        for (payload, odd) in cases {
            assert_eq!(hear(payload), (NOW, Declared::default(), odd), "{payload:.40}");
        }
        let mut odd = PayloadIssues::default();
        let Spoken { at, .. } = read(b"{\xff\xfe", &Fields::default(), &rules(), NOW, &mut odd);
        assert_eq!((at, odd.kinds()), (NOW, vec![PayloadIssue::BrokenJson]));
    }

    #[test]
    fn a_timeout_is_a_number_of_seconds_or_a_duration_within_bounds() {
        let day = 24 * HOUR;
        let cases = [
            ("129600", Some(36 * HOUR)),
            ("1.5", Some(Duration::from_millis(1500))),
            ("\"36h\"", Some(36 * HOUR)),
            ("\"2 days\"", Some(2 * day)),
            ("\"1d 12h\"", Some(36 * HOUR)),
            ("\"PT36H\"", Some(36 * HOUR)),
            ("\"90\"", Some(Duration::from_secs(90))),
            ("34560000", Some(400 * day)),
            ("34560001", None),
            ("0", None),
            ("0.999", None),
            ("-5", None),
            ("-5.5", None),
            ("1e300", None),
            ("18446744073709551615", None),
            ("123456789012345678901234567890", None),
            ("\"-1h\"", None),
            ("\"NaN\"", None),
            ("\"inf\"", None),
            ("\"1 month\"", None),
            ("\"soon\"", None),
            ("\"\"", None),
            ("true", None),
            ("[60]", None),
            ("{\"s\":60}", None),
        ];
        for (text, timeout) in cases {
            let odd = if timeout.is_none() { vec![PayloadIssue::BadTimeout] } else { vec![] };
            let (_, declared, oddities) = hear(&format!("{{\"timeout\":{text}}}"));
            assert_eq!((declared.timeout, oddities), (timeout, odd), "timeout {text}");
            let (_, declared, _) = hear(&format!("{{\"sleep\":{text}}}"));
            assert_eq!(declared.sleep, timeout, "sleep {text}");
        }
        assert_eq!(hear("{\"timeout\":null}"), (NOW, Declared::default(), vec![]));
        assert_eq!(hear("{\"sleep\":0}").2, [PayloadIssue::BadSleep]);
    }

    #[test]
    fn a_kind_that_accepts_no_timeout_declares_none() {
        let rules = KindRules { accept_timeout: false, ..rules() };
        let mut odd = PayloadIssues::default();
        let Spoken { declared, .. } = read(b"{\"timeout\":60}", &Fields::default(), &rules, NOW, &mut odd);
        assert!(declared.is_empty() && odd.kinds().is_empty());
    }

    #[test]
    fn a_planned_silence_is_only_as_long_as_the_kind_accepts() {
        let cases = [(true, 48, Some(24)), (true, 12, Some(12)), (true, 24, Some(24)), (false, 48, None)];
        for (accept_sleep, most, expected) in cases {
            let rules = KindRules { accept_sleep, max_sleep: most * HOUR, ..rules() };
            let mut odd = PayloadIssues::default();
            let Spoken { declared, .. } =
                read(b"{\"sleep\":\"24h\"}", &Fields::default(), &rules, NOW, &mut odd);
            assert_eq!(declared.sleep, expected.map(|hours| hours * HOUR), "{accept_sleep} {most}");
            let expected = if accept_sleep && most < 24 { vec![PayloadIssue::BadSleep] } else { vec![] };
            assert_eq!(odd.kinds(), expected, "{accept_sleep} {most}");
        }
    }

    #[test]
    fn a_plausible_time_counts_in_seconds_milliseconds_microseconds_and_rfc_3339() {
        let earlier = NOW - HOUR;
        for ts in [
            "1732143600",
            "1732143600.0",
            "1732143600000",
            "1732143600000000",
            "\"2024-11-20T23:00:00Z\"",
            "\"2024-11-21T01:00:00+02:00\"",
            "\"1732143600\"",
        ] {
            assert_eq!(hear(&format!("{{\"ts\":{ts}}}")), (earlier, Declared::default(), vec![]), "{ts}");
        }
    }

    #[test]
    fn an_implausible_time_is_passed_over_and_nobody_is_last_seen_in_the_future() {
        let cases = [
            ("1732147499", NOW, vec![]),                           // 299 s ahead: the arrival
            ("1732147501", NOW, vec![PayloadIssue::BadTimestamp]), // 301 s ahead
            ("1731888000", NOW - 72 * HOUR, vec![]),               // 48 h allowed, and a day
            ("1731887999", NOW, vec![PayloadIssue::BadTimestamp]), // a second older
            ("0", NOW, vec![PayloadIssue::BadTimestamp]),
            ("-1", NOW, vec![PayloadIssue::BadTimestamp]),
            ("1e300", NOW, vec![PayloadIssue::BadTimestamp]),
            ("1732143600000000000", NOW, vec![PayloadIssue::BadTimestamp]),
            ("\"yesterday\"", NOW, vec![PayloadIssue::BadTimestamp]),
            ("\"NaN\"", NOW, vec![PayloadIssue::BadTimestamp]),
            ("true", NOW, vec![PayloadIssue::BadTimestamp]),
        ];
        for (ts, at, odd) in cases {
            assert_eq!(hear(&format!("{{\"ts\":{ts}}}")), (at, Declared::default(), odd), "{ts}");
        }
        let (at, declared, odd) = hear("{\"ts\":1729555200,\"timeout\":\"40d\"}");
        assert_eq!((at, declared.timeout, odd.len()), (NOW - 720 * HOUR, Some(960 * HOUR), 0));
    }

    #[test]
    fn a_kind_that_goes_by_arrival_does_not_even_look_at_the_time() {
        let rules = KindRules { clock: TimeSource::Arrival, ..rules() };
        let mut odd = PayloadIssues::default();
        let Spoken { at, .. } = read(b"{\"ts\":-1}", &Fields::default(), &rules, NOW, &mut odd);
        assert_eq!((at, odd.kinds().len()), (NOW, 0));
    }

    #[test]
    fn labels_are_text_numbers_and_booleans_and_a_bad_one_is_passed_over_alone() {
        let (_, declared, odd) =
            hear("{\"labels\":{\"site\":\"north\",\"floor\":3,\"t\":1.5,\"spare\":false}}");
        let expected = [("floor", "3"), ("site", "north"), ("spare", "false"), ("t", "1.5")];
        let expected: Labels = expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        assert_eq!((declared.labels, odd.len()), (expected, 0));

        for bad in ["{\"a-b\":1}", "{\"a\":null}", "{\"a\":[1]}", "{\"a\":\"\"}", "{\"kind\":1}", "7"] {
            let (_, declared, odd) = hear(&format!("{{\"labels\":{bad}}}"));
            assert_eq!((declared.labels.len(), odd), (0, vec![PayloadIssue::BadLabel]), "{bad}");
        }
        let many: Vec<String> = (0..1000).map(|n| format!("\"l{n}\":{n}")).collect();
        let (_, declared, odd) = hear(&format!("{{\"labels\":{{{}}}}}", many.join(",")));
        assert_eq!((declared.labels.len(), odd), (MOST_LABELS, vec![PayloadIssue::BadLabel]));
    }

    #[test]
    fn fields_may_have_other_names() {
        let fields = Fields { timeout: "silence_ok".to_owned(), ..Fields::default() };
        let mut odd = PayloadIssues::default();
        let Spoken { declared, .. } =
            read(b"{\"silence_ok\":60,\"timeout\":7}", &fields, &rules(), NOW, &mut odd);
        assert_eq!(declared.timeout, Some(Duration::from_secs(60)));
    }
}
