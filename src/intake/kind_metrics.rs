//! The metrics of a kind, and which values they accept.
//!
//! | type | accepted values |
//! |---|---|
//! | gauge | a number; `true` and `false` are 1 and 0 |
//! | counter | a number that is not negative |
//! | info | text of 1–128 bytes without control characters; a number, `true` or `false` as its text |

use std::sync::Arc;

use super::PayloadIssues;
use super::json::Value;
use super::metric_tree::MetricTree;
use crate::presence::is_label_value;
use crate::store::{Metric, MetricType};
use crate::telemetry::PayloadIssue;

pub(super) struct KindMetrics {
    pub tree: MetricTree,
    pub metrics: Arc<[Metric]>,
}

impl KindMetrics {
    pub fn new(metrics: Arc<[Metric]>) -> KindMetrics {
        let tree = MetricTree::new(metrics.iter().map(|metric| metric.pointer.as_slice()));
        KindMetrics { tree, metrics }
    }

    /// The accepted values of a payload as text, each with the index of its metric. A value that its metric's type does
    /// not accept is noted and left out.
    pub fn accept(&self, found: Vec<Option<Value>>, issues: &mut PayloadIssues) -> Vec<(u8, Box<str>)> {
        let mut accepted = Vec::new();
        for (index, (metric, found)) in self.metrics.iter().zip(found).enumerate() {
            let Some(found) = found else { continue };
            match text(&found, metric.metric_type) {
                Some(text) => accepted.push((index as u8, text.into())),
                None => issues.note(PayloadIssue::BadValue, || {
                    format!("{} is no {}: {found}", metric.name, metric.metric_type.as_str())
                }),
            }
        }
        accepted
    }
}

/// The text of a value for Prometheus; `None` if the type does not accept the value.
fn text(value: &Value, metric_type: MetricType) -> Option<String> {
    let is_info = metric_type == MetricType::Info;
    match (value, metric_type) {
        (Value::Text(text), MetricType::Info) => is_label_value(text).then(|| text.clone()),
        (Value::Bool(value), _) if is_info => Some(value.to_string()),
        (Value::Bool(value), MetricType::Gauge) => Some(u8::from(*value).to_string()),
        (Value::Int(value), _) if is_info || metric_type == MetricType::Gauge || *value >= 0 => {
            Some(value.to_string())
        }
        // JSON cannot hold such numbers; Sparkplug can.
        (Value::Float(value), _) if !value.is_finite() => None,
        (Value::Float(value), _) if is_info || metric_type == MetricType::Gauge || *value >= 0.0 => {
            // A very large or very small number would be hundreds of digits long.
            let plain = value.to_string();
            Some(if plain.len() <= 24 { plain } else { format!("{value:e}") })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::json::{FieldSelection, scan};

    fn metric(pointer: &str, metric_type: MetricType) -> Metric {
        Metric {
            name: pointer.to_owned(),
            pointer: pointer.split('/').skip(1).map(str::to_owned).collect(),
            metric_type,
            help: String::new(),
            unit: String::new(),
            label: String::new(),
        }
    }

    fn read(metrics: &[Metric], payload: &str) -> (Vec<(u8, String)>, usize) {
        let metrics = KindMetrics::new(metrics.into());
        let mut issues = PayloadIssues::default();
        let wanted = FieldSelection { fields: None, metrics: Some(&metrics.tree) };
        let found = scan(payload.as_bytes(), wanted).map(|scanned| scanned.values).unwrap_or_default();
        let values = metrics.accept(found, &mut issues);
        (values.into_iter().map(|(index, text)| (index, text.into())).collect(), issues.kinds().len())
    }

    #[test]
    fn values_are_found_wherever_they_stand_between_anything() {
        let metrics = [
            metric("/battery/volts", MetricType::Gauge),
            metric("/list/2/x", MetricType::Gauge),
            metric("/battery", MetricType::Info),
            metric("/starts", MetricType::Counter),
        ];
        let deep = format!("{{\"x\":{}{},\"starts\":5}}", "[".repeat(100_000), "]".repeat(100_000));
        let of =
            |values: &[(u8, &str)]| values.iter().map(|(n, v)| (*n, (*v).to_owned())).collect::<Vec<_>>();
        let cases = [
            ("{}", of(&[]), 0),
            ("{\"volts\":1,\"y\":{\"battery\":{\"volts\":2}}}", of(&[]), 0),
            ("{\"list\":[0,{},{\"y\":1,\"x\":-2.5},9],\"starts\":7}", of(&[(1, "-2.5"), (3, "7")]), 0),
            ("{\"list\":{\"2\":{\"x\":1}}}", of(&[(1, "1")]), 0),
            // An object is no text, but the metrics within it are found anyway.
            ("{\"battery\":{\"volts\":3.5}}", of(&[(0, "3.5")]), 1),
            ("{\"battery\":\"full\"}", of(&[(2, "full")]), 0),
            ("{\"starts\":1,\"starts\":2}", of(&[(3, "2")]), 0),
            ("{\"starts\":1,\"starts\":null}", of(&[]), 0),
            (deep.as_str(), of(&[(3, "5")]), 0),
            ("{\"starts\":5} x", of(&[]), 0),
            ("{\"starts\":5", of(&[]), 0),
            ("[5]", of(&[]), 0),
        ];
        for (payload, values, issues) in cases {
            assert_eq!(read(&metrics, payload), (values, issues), "{payload:.60}");
        }
    }

    #[test]
    fn a_value_of_a_wrong_type_is_passed_over_alone_and_noted() {
        let [gauge, counter, info] = [MetricType::Gauge, MetricType::Counter, MetricType::Info];
        let cases = [
            ("1", gauge, Some("1")),
            ("-1.25", gauge, Some("-1.25")),
            ("1e300", gauge, Some("1e300")),
            ("18446744073709551615", gauge, Some("18446744073709552000")),
            ("true", gauge, Some("1")),
            ("\"1\"", gauge, None),
            ("[1]", gauge, None),
            ("{}", gauge, None),
            ("0", counter, Some("0")),
            ("-1", counter, None),
            ("-0.5", counter, None),
            ("true", counter, None),
            ("\"v1.2\"", info, Some("v1.2")),
            ("7", info, Some("7")),
            ("false", info, Some("false")),
            ("\"\"", info, None),
            ("\"a\\nb\"", info, None),
        ];
        for (value, metric_type, expected) in cases {
            let metrics = [metric("/a", metric_type), metric("/b", gauge)];
            let (values, issues) = read(&metrics, &format!("{{\"a\":{value},\"b\":1}}"));
            let a = values.iter().find(|(index, _)| *index == 0).map(|(_, text)| text.as_str());
            assert_eq!(
                (a, issues),
                (expected, usize::from(expected.is_none())),
                "{value} as {metric_type:?}"
            );
            assert!(values.contains(&(1, "1".to_owned())), "{value}");
        }
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let of_type = |metric_type| text(&Value::Float(number), metric_type);
            assert_eq!(
                [gauge, counter, info].map(of_type),
                [None, None, None],
                "{number}, as Sparkplug has it"
            );
        }
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(129));
        assert_eq!(read(&[metric("/a", info)], &long), (vec![], 1));
    }
}
