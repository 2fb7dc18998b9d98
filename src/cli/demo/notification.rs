//! The notifications of the demo, one line each.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::presence::OfflineRecord;
use crate::simulate::webhook_sink::Received;

/// The most units that a line names.
const NAMED: usize = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NotificationCounts {
    pub notifications: usize,
    pub silences: usize,
    pub returns: usize,
}

pub(super) fn count(received: &[Received]) -> NotificationCounts {
    let mut counts = NotificationCounts { notifications: received.len(), ..NotificationCounts::default() };
    for one in received {
        let data = &one.json()["data"];
        counts.silences += data["offline"].as_array().map_or(0, Vec::len);
        counts.returns += data["online"].as_array().map_or(0, Vec::len);
    }
    counts
}

/// A line for the units that fell silent, and one for the units that are back.
pub(super) fn lines(received: &Received) -> Vec<String> {
    describe(&received.json())
}

fn describe(notification: &Value) -> Vec<String> {
    let data = &notification["data"];
    let offline: Vec<OfflineRecord> = read(&data["offline"]);
    let online: Vec<OfflineRecord> = read(&data["online"]);
    let mut lines = Vec::new();
    if !offline.is_empty() {
        let found = offline.iter().map(|record| record.detected_at.since(record.deadline)).max();
        let found = found.unwrap_or_default().as_millis();
        lines.push(format!("alert  OFFLINE {}; found within {found} ms of the deadline", units(&offline)));
    }
    if !online.is_empty() {
        lines.push(format!("alert  BACK    {}{}", units(&online), away(&online)));
    }
    for interval in data["intervals"].as_array().into_iter().flatten() {
        let seconds = interval["seconds"].as_f64().unwrap_or_default();
        lines.push(format!(
            "alert  BLIND   for {seconds:.0} s Rollcall could not hear; this does not count as silence of any unit"
        ));
    }
    lines
}

/// A list of another shape is read as empty.
fn read<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    serde_json::from_value(list.clone()).unwrap_or_default()
}

/// `sim-000001 at site-01`, or `40 units at site-01: sim-000001, sim-000006, sim-000011 …`.
fn units(records: &[OfflineRecord]) -> String {
    let site = records[0].labels.get("site").map(|site| format!(" at {site}")).unwrap_or_default();
    if let [record] = records {
        return format!("{}{site}", record.unit);
    }
    let named: Vec<String> = records.iter().take(NAMED).map(|record| record.unit.to_string()).collect();
    let more = if records.len() > NAMED { " …" } else { "" };
    format!("{} units{site}: {}{more}", records.len(), named.join(", "))
}

/// For a single unit: how long it was silent.
fn away(records: &[OfflineRecord]) -> String {
    let [OfflineRecord { last_seen, back_at: Some(back), .. }] = records else { return String::new() };
    format!(" after {:.0} s", back.since(*last_seen).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(unit: &str, back: bool) -> Value {
        json!({
            "id": format!("detector:{unit}:1000"), "kind": "detector", "unit": unit, "labels": {"site": "north"},
            "last_seen": "1970-01-01T00:00:01Z", "deadline": "1970-01-01T00:00:06Z",
            "detected_at": "1970-01-01T00:00:06.004Z", "cause": "silence",
            "back_at": back.then_some("1970-01-01T00:00:13Z"), "closed_by": back.then_some("return"),
        })
    }

    #[test]
    fn a_notification_has_a_line_for_each_transition() {
        let many: Vec<Value> = ["a", "b", "c", "d"].into_iter().map(|unit| record(unit, false)).collect();
        let cases = [
            (
                json!({"offline": [record("a", false)], "online": []}),
                vec!["alert  OFFLINE a at north; found within 4 ms of the deadline"],
            ),
            (
                json!({"offline": many, "online": [record("e", true)]}),
                vec![
                    "alert  OFFLINE 4 units at north: a, b, c …; found within 4 ms of the deadline",
                    "alert  BACK    e at north after 12 s",
                ],
            ),
            (
                json!({"intervals": [{"seconds": 400.2}]}),
                vec![
                    "alert  BLIND   for 400 s Rollcall could not hear; this does not count as silence of any unit",
                ],
            ),
            (json!({"offline": "?"}), vec![]),
        ];
        for (data, expected) in cases {
            assert_eq!(describe(&json!({"data": data})), expected);
        }
    }
}
