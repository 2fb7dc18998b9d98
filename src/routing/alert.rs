//! An open record as an alert in Alertmanager's sense: its name, its labels and its fingerprint.

use super::Matcher;
use super::matcher::label;
use crate::presence::{Labels, OfflineRecord};

/// The label that names an alert.
pub const ALERT_NAME: &str = "alertname";
/// The name of every open record, unless its unit has a label of that name.
pub const UNIT_OFFLINE: &str = "UnitOffline";

/// The name of the notice of an unusual silence.
pub const UNIT_UNUSUAL: &str = "UnitUnusual";

/// The name of the alert of the mass-offline breaker.
pub const BREAKER_TRIPPED: &str = "RollcallBreakerTripped";
/// The name of the alert of an engine that lost data.
pub const DATA_LOST_ALERT: &str = "RollcallDataLost";

/// The labels of an open record.
pub fn alert_labels(record: &OfflineRecord) -> Labels {
    let mut labels = record.labels.clone();
    labels.insert("kind".to_owned(), record.kind.to_string());
    labels.insert("unit".to_owned(), record.unit.to_string());
    if record.is_unusual() {
        labels.insert(ALERT_NAME.to_owned(), UNIT_UNUSUAL.to_owned());
    }
    labels.entry(ALERT_NAME.to_owned()).or_insert_with(|| UNIT_OFFLINE.to_owned());
    labels
}

/// Whether a matcher matches an open record as an alert.
pub fn is_match(matcher: &Matcher, record: &OfflineRecord) -> bool {
    matcher.is_match(alert_label(record, matcher.name()))
}

/// The value of a label of an open record as an alert; empty if there is none.
pub(super) fn alert_label<'a>(record: &'a OfflineRecord, name: &str) -> &'a str {
    match name {
        ALERT_NAME if record.is_unusual() => UNIT_UNUSUAL,
        ALERT_NAME => record.labels.get(ALERT_NAME).map_or(UNIT_OFFLINE, String::as_str),
        _ => label(record, name),
    }
}

/// The fingerprint that Alertmanager computes from the labels: FNV-1a over each name and each value, in the order of
/// the names, with a byte of all ones after each.
pub fn fingerprint(labels: &Labels) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for (name, value) in labels {
        name.bytes().chain([0xff]).chain(value.bytes()).chain([0xff]).for_each(&mut add);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn labels(labels: &[(&str, &str)]) -> Labels {
        labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn the_fingerprint_is_that_of_alertmanager() {
        // tests/alerting/ compares with a real Alertmanager.
        assert_eq!(fingerprint(&labels(&[])), "cbf29ce484222325");
        assert_eq!(fingerprint(&labels(&[("alertname", "A")])), "d2c6efc389df0927");
    }

    #[test]
    fn the_labels_of_an_alert_are_those_of_the_unit_its_kind_its_name_and_the_name_of_the_alert() {
        let moment = Timestamp::ZERO;
        let record = OfflineRecord::open("pump:1".parse().unwrap(), moment, moment, moment);
        let of = |own: &[(&str, &str)]| {
            let record = OfflineRecord { labels: labels(own), ..record.clone() };
            let labels = alert_labels(&record);
            labels.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&[("site", "north")]), "alertname=UnitOffline kind=pump site=north unit=1");
        assert_eq!(of(&[("alertname", "mine")]), "alertname=mine kind=pump unit=1");
        let named = |own: &[(&str, &str)]| {
            let matcher =
                Matcher::new(ALERT_NAME.to_owned(), super::super::Operator::Equal, "mine".to_owned());
            is_match(&matcher.unwrap(), &OfflineRecord { labels: labels(own), ..record.clone() })
        };
        assert_eq!((named(&[]), named(&[("alertname", "mine")])), (false, true));
    }

    #[test]
    fn matchers_of_the_labels_of_an_alert_match_its_record() {
        let moment = Timestamp::ZERO;
        // Such a record was stored before these names of labels were refused.
        let own = labels(&[("state", "texas"), ("cause", "theft"), ("alertname", "mine"), ("site", "north")]);
        for labels in [Labels::new(), own] {
            let record = OfflineRecord::open("pump:1".parse().unwrap(), moment, moment, moment);
            let record = OfflineRecord { labels, ..record };
            for (name, value) in alert_labels(&record) {
                let matcher = Matcher::new(name, super::super::Operator::Equal, value).unwrap();
                assert!(is_match(&matcher, &record), "{matcher}");
            }
        }
    }
}
