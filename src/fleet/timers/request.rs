//! A client's request for a timer, over HTTP or MQTT. Hostile until parsed.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cause::json;
use crate::clock::{Timestamp, parse_moment, parse_span};
use crate::presence::{NewTimer, TimerData, TimerId, TimerType};

/// How far away a timer may be due: ten years.
pub const FARTHEST_DUE: Duration = Duration::from_secs(3653 * 86_400);

/// How deep the data of a timer may be nested. Programs that read them refuse much deeper data.
const MAX_DATA: usize = 64;

/// A timer, and whether it is refused if its id is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerRequest {
    pub timer: NewTimer,
    pub only_new: bool,
}

/// A request for a timer that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTimer {
    /// The id of the timer, if it can be read.
    pub id: Option<TimerId>,
    /// The reason, in words.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestFields<'a> {
    id: Option<String>,
    #[serde(rename = "type")]
    timer_type: Option<String>,
    due: Option<String>,
    #[serde(rename = "in")]
    span: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    if_absent: bool,
}

impl TimerRequest {
    /// Reads a JSON object that arrives at that moment. `id`: from a path or a topic; if neither they nor the object
    /// have an id, the timer gets a new one.
    pub fn read(json: &[u8], id: Option<&TimerId>, now: Timestamp) -> Result<TimerRequest, BadTimer> {
        let wrong = |id: Option<&TimerId>, why: String| BadTimer { id: id.cloned(), why };
        // serde would read a list as the fields in their order.
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err(wrong(id, "a timer is a JSON object".to_owned()));
        }
        let fields: RequestFields<'_> = json::read(json).map_err(|why| wrong(id, why))?;
        let own = match &fields.id {
            Some(own) => Some(own.parse::<TimerId>().map_err(|error| wrong(id, error.to_string()))?),
            None => None,
        };
        if let (Some(id), Some(own)) = (id, &own)
            && id != own
        {
            return Err(wrong(
                Some(id),
                format!("the id {own} in the timer is not the id {id} of the request"),
            ));
        }
        let id = id.cloned().or(own).unwrap_or_else(made);
        match fields.check(now) {
            Ok((timer_type, due, data)) => {
                let (only_new, is_span) = (fields.if_absent, fields.span.is_some());
                Ok(TimerRequest { timer: NewTimer { id, timer_type, due, is_span, data }, only_new })
            }
            Err(why) => Err(wrong(Some(&id), why)),
        }
    }
}

/// A new id.
fn made() -> TimerId {
    let id = format!("tmr_{:032x}", rand::random::<u128>());
    id.parse().expect("letters and digits are an id")
}

impl RequestFields<'_> {
    fn check(&self, now: Timestamp) -> Result<(TimerType, Timestamp, TimerData), String> {
        let timer_type = self.timer_type.as_deref().ok_or("type is missing: the class of the timer")?;
        let timer_type = timer_type.parse().map_err(|error| format!("type: {error}"))?;
        let due = due(self.due.as_deref(), self.span.as_deref(), now)?;
        let data = self.data.map_or(Ok(TimerData::default()), |data| data_of(data.get()))?;
        Ok((timer_type, due, data))
    }
}

fn due(due: Option<&str>, span: Option<&str>, now: Timestamp) -> Result<Timestamp, String> {
    let due = match (due, span) {
        (Some(due), None) => parse_moment(due)
            .ok_or_else(|| format!("due: {due:?} is not a moment; write 2026-11-25T06:00:00Z"))?,
        (None, Some(span)) => {
            now + parse_span(span)
                .ok_or_else(|| format!("in: {span:?} is not a span of time; write 30m or 2h"))?
        }
        _ => return Err("write either due, a moment, or in, a span of time".to_owned()),
    };
    if due > now + FARTHEST_DUE {
        let days = FARTHEST_DUE.as_secs() / 86_400;
        return Err(format!("a timer is due within {days} days, and {due} is later"));
    }
    Ok(due)
}

/// Data that every program can read. A number that is too large for some programs, or half a character, is valid JSON
/// and is refused.
fn data_of(json: &str) -> Result<TimerData, String> {
    let data: TimerData = json.parse().map_err(|error: crate::presence::TimerError| error.to_string())?;
    // The parser refuses more than 128 levels.
    let read: Value = json::read(json.as_bytes()).map_err(|why| format!("data: {why}"))?;
    if depth(&read) > MAX_DATA {
        return Err(format!("the data of a timer are nested at most {MAX_DATA} deep"));
    }
    Ok(data)
}

fn depth(json: &Value) -> usize {
    match json {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::MAX_TIMER_BYTES;

    const NOW: Timestamp = Timestamp::from_millis(1_764_000_000_000);

    fn read(json: &str) -> Result<TimerRequest, BadTimer> {
        TimerRequest::read(json.as_bytes(), None, NOW)
    }

    #[test]
    fn a_timer_is_read_with_its_data_as_they_are_written() {
        let json = r#" {"id": "a b", "type": "report", "in": "1m 30s", "data": {"b": 1.50, "a": [1]}, "if_absent": true}"#;
        let TimerRequest { timer, only_new } = read(json).unwrap();
        assert_eq!((timer.id.as_str(), timer.timer_type.as_str(), only_new), ("a b", "report", true));
        assert_eq!(timer.due, NOW + Duration::from_secs(90));
        assert_eq!(timer.data.as_str(), r#"{"b": 1.50, "a": [1]}"#);
        let bare = read(r#"{"type":"x","due":"2025-11-24T17:00:00+01:00","data":null}"#).unwrap();
        assert_eq!(bare.timer.due.to_string(), "2025-11-24T16:00:00.000Z");
        assert_eq!((bare.timer.data, bare.only_new), (TimerData::default(), false));
        assert!(bare.timer.id.as_str().starts_with("tmr_"), "{}", bare.timer.id);
        assert_ne!(read(r#"{"type":"x","in":"1s"}"#).unwrap().timer.id, bare.timer.id);
        let id: TimerId = "7".parse().unwrap();
        for json in [r#"{"type":"x","in":"0s"}"#, r#"{"id":"7","type":"x","in":"0s"}"#] {
            assert_eq!(TimerRequest::read(json.as_bytes(), Some(&id), NOW).unwrap().timer.id, id);
        }
    }

    #[test]
    fn what_is_no_timer_is_refused_with_the_reason() {
        let with = |rest: &str| format!(r#"{{"id":"a","type":"x",{rest}}}"#);
        let deep = |levels: usize| {
            with(&format!("\"in\":\"1s\",\"data\":{}{}", "[".repeat(levels), "]".repeat(levels)))
        };
        assert!(read(&deep(MAX_DATA)).is_ok());
        let large = with(&format!("\"in\":\"1s\",\"data\":\"{}\"", "x".repeat(MAX_TIMER_BYTES)));
        let cases = [
            ("", "JSON object"),
            ("[\"a\",\"x\"]", "JSON object"),
            ("null", "JSON object"),
            ("{", "it is cut off"),
            (r#"{"in":"1s"}"#, "type is missing"),
            (r#"{"type":"A b","in":"1s"}"#, "type: "),
            (r#"{"type":7,"in":"1s"}"#, "type: write a text, not 7"),
            (&with("\"in\":\"1s\",\"colour\":1"), "colour"),
            (&with("\"in\":\"1s\",\"in\":\"2s\""), "in is given twice"),
            (&with("\"data\":1"), "either due"),
            (&with("\"due\":\"2025-11-24T16:00:00Z\",\"in\":\"1s\""), "either due"),
            (&with("\"due\":\"tomorrow\""), "is not a moment"),
            (&with("\"due\":\"2025-11-24T16:00:00\""), "is not a moment"),
            (&with("\"in\":\"-1s\""), "is not a span"),
            (&with("\"in\":\"4000d\""), "within 3653 days"),
            (&with("\"due\":\"9999-01-01T00:00:00Z\""), "within 3653 days"),
            (&with("\"in\":\"1s\",\"data\":1e999"), "data: it is no JSON: a number is too large"),
            (&with(r#""in":"1s","data":"\ud800""#), "data: "),
            (&large, "65536 bytes"),
            (&deep(MAX_DATA + 1), "nested at most"),
            (&deep(60_000 / 2), "data: it is no JSON: it is nested too deeply"),
            (r#"{"id":"a/b","type":"x","in":"1s"}"#, "the id of a timer"),
            (r#"{"id":"","type":"x","in":"1s"}"#, "the id of a timer"),
        ];
        for (json, why) in cases {
            let BadTimer { why: text, .. } = read(json).expect_err(json);
            assert!(text.contains(why), "{json}: {text}");
        }
        let id = |json: &str| read(json).unwrap_err().id.map(|id| id.to_string());
        assert_eq!(id(&with("\"in\":\"soon\"")), Some("a".to_owned()));
        let other =
            TimerRequest::read(br#"{"id":"b","type":"x","in":"1s"}"#, Some(&"a".parse().unwrap()), NOW);
        assert!(other.unwrap_err().why.contains("is not the id a of the request"));
    }

    #[test]
    fn brackets_in_texts_are_not_deep() {
        let data = format!("\"in\":\"1s\",\"data\":{{\"[\":\"{}\"}}", "[".repeat(1000));
        assert!(read(&format!(r#"{{"type":"x",{data}}}"#)).is_ok());
    }
}
