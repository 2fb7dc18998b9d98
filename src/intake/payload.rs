//! Reads a payload: the fields of a heartbeat and the values of metrics.
//!
//! Any payload proves life: empty, binary or broken. A JSON object may contain more, in separate fields. An implausible
//! field is counted and ignored; the other fields are still used.
//!
//! | field | form | bounds |
//! |---|---|---|
//! | `ts` | seconds, milliseconds or microseconds since 1970, by magnitude; RFC 3339 | see below |
//! | `timeout` | seconds, or text such as `"36h"`, `"2d 12h"`, `"PT36H"` | 1 s … 400 d |
//! | `sleep` | like `timeout` | 1 s … 400 d |
//! | `labels` | object of text, numbers, booleans | 16 labels, 1–128 bytes each |
//!
//! # When Rollcall believes the time of a device
//! Only if the kind enables it, and the time is plausible: at most five minutes after the arrival, and not older than a
//! day plus the allowed silence. For a time after the arrival the arrival counts, because no unit is last seen in the
//! future. So a device whose clock fell back to 1970 still counts as alive now, and a message that was stored in
//! transit for a few hours counts for the time when it was sent.

use std::time::Duration;

use super::json::{self, FieldSelection, PayloadFields, Scanned, Value};
use super::kind_metrics::KindMetrics;
use super::{Fields, PayloadIssues};
use crate::cause;
use crate::clock::{Timestamp, parse_moment, parse_span};
use crate::presence::{
    Declared, KindRules, Labels, MAX_LABELS, TimeSource, is_label_name, is_label_value, is_timeout,
};
use crate::telemetry::PayloadIssue;

/// How far a clock elsewhere may be ahead.
pub(super) const MAX_CLOCK_LEAD: Duration = Duration::from_secs(300);
/// How much older than the allowed silence a heartbeat may claim to be.
const IN_TRANSIT: Duration = Duration::from_secs(86_400);
/// The longest text that may be a duration or a time.
const MAX_TEXT: usize = 64;

/// A payload that was read.
pub(super) struct ParsedPayload {
    /// The moment of the heartbeat.
    pub at: Timestamp,
    /// When the device sent the heartbeat, by its own plausible clock, even if the kind does not use that time.
    pub sent: Option<Timestamp>,
    pub declared: Declared,
    /// The values of metrics, each with the index of its metric.
    pub values: Vec<(u8, Box<str>)>,
}

/// A payload without the byte order mark that some libraries write at its begin.
pub(super) fn without_mark(payload: &[u8]) -> &[u8] {
    payload.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(payload)
}

/// Reads a payload that arrives at that moment, of a kind with these rules and metrics.
pub(super) fn read(
    payload: &[u8],
    fields: &Fields,
    metrics: Option<&KindMetrics>,
    rules: &KindRules,
    arrived: Timestamp,
    issues: &mut PayloadIssues,
) -> ParsedPayload {
    let (declared, values) = Default::default();
    let mut parsed = ParsedPayload { at: arrived, sent: None, declared, values };
    if payload.trim_ascii_start().first() != Some(&b'{') {
        return parsed;
    }
    let Scanned { fields, values } = scan(payload, fields, metrics, issues);
    parsed.declared = declare(&fields, rules, issues);
    parsed.sent = sent(&fields, &parsed.declared, rules, arrived);
    if let (Some(value), TimeSource::Device) = (&fields.ts, rules.clock) {
        match parsed.sent {
            Some(sent) => parsed.at = sent,
            None => issues.note(PayloadIssue::BadTimestamp, || value.to_string()),
        }
    }
    if let Some(metrics) = metrics {
        parsed.values = metrics.accept(values, issues);
    }
    parsed
}

/// Reads fields and metrics in one pass. A payload may break only one of them: a number that is too large breaks only
/// the pass that reads it. Then a separate pass for each follows.
fn scan(
    payload: &[u8],
    fields: &Fields,
    metrics: Option<&KindMetrics>,
    issues: &mut PayloadIssues,
) -> Scanned {
    let tree = metrics.map(|metrics| &metrics.tree);
    let scan = |fields, metrics| json::scan(payload, FieldSelection { fields, metrics });
    let mut read_fields = |scanned: serde_json::Result<Scanned>| {
        scanned.unwrap_or_else(|error| {
            issues.note(PayloadIssue::BrokenJson, || cause::json::words(&error));
            Scanned::default()
        })
    };
    match scan(Some(fields), tree) {
        Err(_) if tree.is_some() => {
            let values = scan(None, tree).unwrap_or_default().values;
            Scanned { values, ..read_fields(scan(Some(fields), None)) }
        }
        scanned => read_fields(scanned),
    }
}

fn declare(fields: &PayloadFields, rules: &KindRules, issues: &mut PayloadIssues) -> Declared {
    let mut span = |value: &Option<Value>, why: PayloadIssue| {
        let value = value.as_ref()?;
        let span = duration(value).filter(|span| is_timeout(*span));
        if span.is_none() {
            issues.note(why, || value.to_string());
        }
        span
    };
    // A kind that does not accept timeouts ignores the field; otherwise every heartbeat would be slow.
    let timeout = span(&fields.timeout, PayloadIssue::BadTimeout).filter(|_| rules.accept_timeout);
    let sleep = span(&fields.sleep, PayloadIssue::BadSleep).filter(|_| rules.accept_sleep);
    if sleep.is_some_and(|sleep| sleep > rules.max_sleep) {
        issues.note(PayloadIssue::BadSleep, || "longer than max_sleep, and shortened to it".to_owned());
    }
    let sleep = sleep.map(|sleep| sleep.min(rules.max_sleep));
    Declared { timeout, labels: labels(&fields.labels, issues), topic_labels: Labels::new(), sleep }
}

fn labels(value: &Option<Value>, issues: &mut PayloadIssues) -> Labels {
    let mut labels = Labels::new();
    let members = match value {
        None => return labels,
        Some(Value::Object(members)) => members,
        Some(value) => {
            issues.note(PayloadIssue::BadLabel, || value.to_string());
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
        let room = labels.len() < MAX_LABELS || labels.contains_key(name);
        if room && is_label_name(name) && is_label_value(&text) {
            labels.insert(name.clone(), text);
        } else {
            issues.note(PayloadIssue::BadLabel, || format!("{:.40} = {value}", name.escape_debug()));
        }
    }
    labels
}

fn sent(
    fields: &PayloadFields,
    declared: &Declared,
    rules: &KindRules,
    arrived: Timestamp,
) -> Option<Timestamp> {
    let allowed = rules.resolve(declared.timeout, Default::default()).allowed();
    let plausible = arrived - allowed - IN_TRANSIT..=arrived + MAX_CLOCK_LEAD;
    let sent = moment(fields.ts.as_ref()?).filter(|moment| plausible.contains(moment))?;
    Some(sent.min(arrived))
}

/// A length of time in whole milliseconds.
fn duration(value: &Value) -> Option<Duration> {
    let span = match value {
        Value::Int(seconds) => Duration::from_secs(u64::try_from(*seconds).ok()?),
        Value::Float(seconds) => Duration::try_from_secs_f64(*seconds).ok()?,
        Value::Text(text) if text.len() > MAX_TEXT => return None,
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
        Value::Text(text) if text.len() > MAX_TEXT => None,
        Value::Text(text) => match text.trim().parse() {
            Ok(number) => since_1970(number),
            Err(_) => parse_moment(text.trim()),
        },
        Value::Bool(_) | Value::Object(_) | Value::Other => None,
    }
}

/// The ranges do not overlap: seconds up to the year 5138, milliseconds from 1973 and microseconds from 1973.
fn since_1970(number: f64) -> Option<Timestamp> {
    let ms = match number {
        n if n < 0.0 => return None,
        n if n < 1e11 => n * 1e3,
        n if n < 1e14 => n,
        n if n < 1e17 => n / 1e3,
        // The number is larger, or not a number.
        _ => return None,
    };
    Some(Timestamp::from_millis(ms as i64))
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
        let mut issues = PayloadIssues::default();
        let ParsedPayload { at, declared, .. } =
            read(payload.as_bytes(), &Fields::default(), None, &rules(), NOW, &mut issues);
        (at, declared, issues.kinds())
    }

    #[test]
    fn any_payload_proves_life_and_only_a_broken_object_is_an_issue() {
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
        for (payload, issues) in cases {
            assert_eq!(hear(payload), (NOW, Declared::default(), issues), "{payload:.40}");
        }
        let mut issues = PayloadIssues::default();
        let ParsedPayload { at, .. } =
            read(b"{\xff\xfe", &Fields::default(), None, &rules(), NOW, &mut issues);
        assert_eq!((at, issues.kinds()), (NOW, vec![PayloadIssue::BrokenJson]));
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
            let expected = if timeout.is_none() { vec![PayloadIssue::BadTimeout] } else { vec![] };
            let (_, declared, issues) = hear(&format!("{{\"timeout\":{text}}}"));
            assert_eq!((declared.timeout, issues), (timeout, expected), "timeout {text}");
            let (_, declared, _) = hear(&format!("{{\"sleep\":{text}}}"));
            assert_eq!(declared.sleep, timeout, "sleep {text}");
        }
        assert_eq!(hear("{\"timeout\":null}"), (NOW, Declared::default(), vec![]));
        assert_eq!(hear("{\"sleep\":0}").2, [PayloadIssue::BadSleep]);
    }

    #[test]
    fn a_kind_that_accepts_no_timeout_declares_none() {
        let rules = KindRules { accept_timeout: false, ..rules() };
        let mut issues = PayloadIssues::default();
        let ParsedPayload { declared, .. } =
            read(b"{\"timeout\":60}", &Fields::default(), None, &rules, NOW, &mut issues);
        assert!(declared.is_empty() && issues.kinds().is_empty());
    }

    #[test]
    fn a_planned_silence_is_only_as_long_as_the_kind_accepts() {
        let cases = [(true, 48, Some(24)), (true, 12, Some(12)), (true, 24, Some(24)), (false, 48, None)];
        for (accept_sleep, most, expected) in cases {
            let rules = KindRules { accept_sleep, max_sleep: most * HOUR, ..rules() };
            let mut issues = PayloadIssues::default();
            let ParsedPayload { declared, .. } =
                read(b"{\"sleep\":\"24h\"}", &Fields::default(), None, &rules, NOW, &mut issues);
            assert_eq!(declared.sleep, expected.map(|hours| hours * HOUR), "{accept_sleep} {most}");
            let expected = if accept_sleep && most < 24 { vec![PayloadIssue::BadSleep] } else { vec![] };
            assert_eq!(issues.kinds(), expected, "{accept_sleep} {most}");
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
    fn an_implausible_time_is_passed_over_and_no_unit_is_last_seen_in_the_future() {
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
        for (ts, at, issues) in cases {
            assert_eq!(hear(&format!("{{\"ts\":{ts}}}")), (at, Declared::default(), issues), "{ts}");
        }
        let (at, declared, issues) = hear("{\"ts\":1729555200,\"timeout\":\"40d\"}");
        assert_eq!((at, declared.timeout, issues.len()), (NOW - 720 * HOUR, Some(960 * HOUR), 0));
    }

    #[test]
    fn a_kind_that_goes_by_arrival_does_not_even_look_at_the_time() {
        let rules = KindRules { clock: TimeSource::Arrival, ..rules() };
        let mut issues = PayloadIssues::default();
        let ParsedPayload { at, .. } =
            read(b"{\"ts\":-1}", &Fields::default(), None, &rules, NOW, &mut issues);
        assert_eq!((at, issues.kinds().len()), (NOW, 0));
    }

    #[test]
    fn labels_are_text_numbers_and_booleans_and_a_bad_one_is_passed_over_alone() {
        let (_, declared, issues) =
            hear("{\"labels\":{\"site\":\"north\",\"floor\":3,\"t\":1.5,\"spare\":false}}");
        let expected = [("floor", "3"), ("site", "north"), ("spare", "false"), ("t", "1.5")];
        let expected: Labels = expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        assert_eq!((declared.labels, issues.len()), (expected, 0));

        for bad in ["{\"a-b\":1}", "{\"a\":null}", "{\"a\":[1]}", "{\"a\":\"\"}", "{\"kind\":1}", "7"] {
            let (_, declared, issues) = hear(&format!("{{\"labels\":{bad}}}"));
            assert_eq!((declared.labels.len(), issues), (0, vec![PayloadIssue::BadLabel]), "{bad}");
        }
        let many: Vec<String> = (0..1000).map(|n| format!("\"l{n}\":{n}")).collect();
        let (_, declared, issues) = hear(&format!("{{\"labels\":{{{}}}}}", many.join(",")));
        assert_eq!((declared.labels.len(), issues), (MAX_LABELS, vec![PayloadIssue::BadLabel]));
    }

    #[test]
    fn fields_may_have_other_names() {
        let fields = Fields { timeout: "silence_ok".to_owned(), ..Fields::default() };
        let mut issues = PayloadIssues::default();
        let ParsedPayload { declared, .. } =
            read(b"{\"silence_ok\":60,\"timeout\":7}", &fields, None, &rules(), NOW, &mut issues);
        assert_eq!(declared.timeout, Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_payload_that_is_broken_for_a_metric_still_serves_the_fields_and_the_other_way_round() {
        let metric = crate::store::Metric {
            name: "volts".to_owned(),
            pointer: vec!["volts".to_owned()],
            metric_type: crate::store::MetricType::Gauge,
            help: String::new(),
            unit: String::new(),
            label: String::new(),
        };
        let metrics = KindMetrics::new([metric].into());
        let minute = Some(Duration::from_secs(60));
        let cases = [
            ("{\"timeout\":60,\"volts\":3}", minute, Some("3"), vec![]),
            ("{\"timeout\":60,\"volts\":1e999}", minute, None, vec![]),
            ("{\"timeout\":1e999,\"volts\":3}", None, Some("3"), vec![PayloadIssue::BrokenJson]),
            ("{\"timeout\":60,\"volts\":\"3\"}", minute, None, vec![PayloadIssue::BadValue]),
            ("{\"timeout\":60,\"volts\":3", None, None, vec![PayloadIssue::BrokenJson]),
        ];
        for (payload, timeout, volts, expected) in cases {
            let mut issues = PayloadIssues::default();
            let fields = Fields::default();
            let parsed = read(payload.as_bytes(), &fields, Some(&metrics), &rules(), NOW, &mut issues);
            assert_eq!(parsed.declared.timeout, timeout, "{payload}");
            assert_eq!(parsed.values.first().map(|(_, text)| &**text), volts, "{payload}");
            assert_eq!(issues.kinds(), expected, "{payload}");
        }
    }
}
