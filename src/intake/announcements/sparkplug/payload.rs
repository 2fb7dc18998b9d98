//! The part of a Sparkplug B payload that Rollcall reads, and the command that it sends.
//!
//! The decoder of Protocol Buffers skips fields that are not declared here, so a data set or a template costs nothing.

use prost::Message;

use crate::intake::json::Value;
use crate::store::Metric as UnitMetric;

/// The metric with the number of a session.
const BD_SEQ: &str = "bdSeq";
/// The metric by which a host asks a node for its births.
const REBIRTH: &str = "Node Control/Rebirth";

/// Types of values. An integer of 32 bits does not itself show whether it has a sign.
const INT8: u32 = 1;
const INT16: u32 = 2;
const INT32: u32 = 3;
const INT64: u32 = 4;
const BOOLEAN: u32 = 11;

#[derive(Clone, PartialEq, Message)]
pub(in crate::intake) struct Payload {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(message, repeated, tag = "2")]
    pub metrics: Vec<Metric>,
    #[prost(uint64, optional, tag = "3")]
    pub seq: Option<u64>,
}

/// Only the number of a message: the decoder skips its metrics.
#[derive(Clone, PartialEq, Message)]
struct MessageNumber {
    #[prost(uint64, optional, tag = "3")]
    seq: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::intake) struct Metric {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(uint64, optional, tag = "2")]
    pub alias: Option<u64>,
    #[prost(uint32, optional, tag = "4")]
    pub datatype: Option<u32>,
    #[prost(bool, optional, tag = "5")]
    pub is_historical: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub is_null: Option<bool>,
    #[prost(oneof = "MetricValue", tags = "10, 11, 12, 13, 14, 15")]
    pub value: Option<MetricValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(in crate::intake) enum MetricValue {
    #[prost(uint32, tag = "10")]
    Int(u32),
    #[prost(uint64, tag = "11")]
    Long(u64),
    #[prost(float, tag = "12")]
    Float(f32),
    #[prost(double, tag = "13")]
    Double(f64),
    #[prost(bool, tag = "14")]
    Boolean(bool),
    #[prost(string, tag = "15")]
    Text(String),
}

impl Payload {
    /// `None` if the bytes are no payload.
    pub fn read(bytes: &[u8]) -> Option<Payload> {
        Payload::decode(bytes).ok()
    }

    /// As [`Payload::read`], without the metrics, which are many times as expensive as the rest.
    pub fn without_metrics(bytes: &[u8]) -> Option<Payload> {
        let MessageNumber { seq } = MessageNumber::decode(bytes).ok()?;
        Some(Payload { seq, ..Payload::default() })
    }

    /// The number of the session that a birth or a death belongs to.
    pub fn bd_seq(&self) -> Option<u64> {
        let metric = self.metrics.iter().find(|metric| metric.name.as_deref() == Some(BD_SEQ))?;
        match metric.value {
            Some(MetricValue::Long(number)) => Some(number),
            Some(MetricValue::Int(number)) => Some(number.into()),
            _ => None,
        }
    }

    /// Whether it has the number of a session in a form that is none.
    pub fn has_bad_bd_seq(&self) -> bool {
        self.bd_seq().is_none() && self.metrics.iter().any(|metric| metric.name.as_deref() == Some(BD_SEQ))
    }

    /// Whether it has metrics, and all of them were kept on the way.
    pub fn is_historical(&self) -> bool {
        !self.metrics.is_empty() && self.metrics.iter().all(|metric| metric.is_historical == Some(true))
    }

    /// The number of the message in its session.
    pub fn number(&self) -> Option<u8> {
        u8::try_from(self.seq?).ok()
    }

    /// The command that asks a node for its births.
    pub fn rebirth(timestamp: u64) -> Vec<u8> {
        let metric = Metric {
            name: Some(REBIRTH.to_owned()),
            datatype: Some(BOOLEAN),
            value: Some(MetricValue::Boolean(true)),
            ..Metric::default()
        };
        Payload { timestamp: Some(timestamp), metrics: vec![metric], seq: None }.encode_to_vec()
    }
}

/// A metric of the kind as a birth defines it: data may name it by its alias, and leaves its type out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::intake) struct Definition {
    /// The index of the metric in its kind.
    index: usize,
    alias: Option<u64>,
    datatype: Option<u32>,
}

/// The definitions of the metrics that the kind has, each once, even if a birth repeats it.
pub(in crate::intake) fn definitions(birth: &Payload, wanted: &[UnitMetric]) -> Vec<Definition> {
    let mut all = vec![None; wanted.len()];
    for metric in &birth.metrics {
        if let Some(index) = metric.name.as_deref().and_then(|name| index_of(name, wanted)) {
            all[index] = Some(Definition { index, alias: metric.alias, datatype: metric.datatype });
        }
    }
    all.into_iter().flatten().collect()
}

/// The value of each metric of the kind. Historical values are older than their arrival, and left out.
pub(in crate::intake) fn values(
    payload: &Payload,
    wanted: &[UnitMetric],
    known: &[Definition],
) -> Vec<Option<Value>> {
    let mut values = vec![None; wanted.len()];
    let is_of_now = |metric: &&Metric| metric.is_historical != Some(true) && metric.is_null != Some(true);
    for metric in payload.metrics.iter().filter(is_of_now) {
        let named = metric.name.as_deref().filter(|name| !name.is_empty());
        let is_it = |one: &&Definition| match named {
            Some(name) => Some(one.index) == index_of(name, wanted),
            None => metric.alias.is_some() && one.alias == metric.alias,
        };
        let definition = known.iter().find(is_it);
        let index = named.and_then(|name| index_of(name, wanted)).or(definition.map(|one| one.index));
        let datatype = metric.datatype.or(definition.and_then(|one| one.datatype));
        if let (Some(index), Some(value)) = (index, &metric.value) {
            values[index] = Some(value_of(value, datatype));
        }
    }
    values
}

/// The metric whose pointer is the name of a Sparkplug metric, after a slash: `/Inputs/Temperature`.
fn index_of(name: &str, wanted: &[UnitMetric]) -> Option<usize> {
    let is_named = |metric: &UnitMetric| {
        let mut levels = name.split('/');
        metric.pointer.iter().all(|level| levels.next() == Some(level)) && levels.next().is_none()
    };
    wanted.iter().position(is_named)
}

fn value_of(value: &MetricValue, datatype: Option<u32>) -> Value {
    match value {
        MetricValue::Int(bits) => Value::Int(match datatype {
            Some(INT8) => (*bits as i8).into(),
            Some(INT16) => (*bits as i16).into(),
            Some(INT32) => (*bits as i32).into(),
            _ => (*bits).into(),
        }),
        MetricValue::Long(bits) if datatype == Some(INT64) => Value::Int(*bits as i64),
        MetricValue::Long(number) => i64::try_from(*number).map_or(Value::Float(*number as f64), Value::Int),
        MetricValue::Float(number) => Value::Float((*number).into()),
        MetricValue::Double(number) => Value::Float(*number),
        MetricValue::Boolean(value) => Value::Bool(*value),
        MetricValue::Text(text) => Value::Text(text.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MetricType;

    fn metric(name: &str, value: MetricValue) -> Metric {
        Metric { name: Some(name.to_owned()), value: Some(value), ..Metric::default() }
    }

    fn wanted() -> Vec<UnitMetric> {
        ["Inputs/Temperature", "Runs"]
            .map(|name| UnitMetric {
                name: name.to_lowercase(),
                pointer: name.split('/').map(str::to_owned).collect(),
                metric_type: MetricType::Gauge,
                help: String::new(),
                unit: String::new(),
                label: String::new(),
            })
            .into()
    }

    #[test]
    fn a_death_of_a_published_library_has_the_number_of_its_session() {
        // The will of a node of sparkplug-client 3.2.4.
        let death = [
            0x08, 0xb9, 0xbf, 0x9d, 0xa7, 0xa2, 0x34, 0x12, 0x0b, 0x0a, 0x05, b'b', b'd', b'S', b'e', b'q',
            0x20, 0x08, 0x58, 0x00,
        ];
        let read = Payload::read(&death).unwrap();
        assert_eq!((read.timestamp, read.bd_seq(), read.number()), (Some(1_795_915_472_825), Some(0), None));
        // A message of its data, with a negative integer.
        let data = [
            0x08, 0x01, 0x12, 0x0d, 0x0a, 0x01, b't', 0x10, 0x04, 0x20, 0x03, 0x50, 0xfb, 0xff, 0xff, 0xff,
            0x0f, 0x18, 0x03,
        ];
        let read = Payload::read(&data).unwrap();
        assert_eq!((read.metrics[0].alias, read.number()), (Some(4), Some(3)));
        let without = Payload::without_metrics(&data).unwrap();
        assert_eq!((without.number(), without.metrics), (Some(3), vec![]));
        let value = read.metrics[0].value.as_ref().unwrap();
        assert_eq!(value_of(value, read.metrics[0].datatype), Value::Int(-5));
        assert_eq!(Payload::read(b"offline"), None);
        let numbered = |value| Payload { metrics: vec![metric("bdSeq", value)], ..Payload::default() };
        for (value, number) in [
            (MetricValue::Int(3), Some(3)),
            (MetricValue::Text("3".to_owned()), None),
            (MetricValue::Double(3.0), None),
        ] {
            let read = numbered(value);
            assert_eq!((read.bd_seq(), read.has_bad_bd_seq()), (number, number.is_none()), "{read:?}");
        }
        assert_eq!(Payload::read(b""), Some(Payload::default()));
    }

    #[test]
    fn a_message_is_of_the_past_if_all_its_values_are() {
        let kept = |is_historical| Metric { is_historical, ..metric("Runs", MetricValue::Long(1)) };
        for (metrics, expected) in [
            (vec![], false),
            (vec![kept(None)], false),
            (vec![kept(Some(true)), kept(Some(false))], false),
            (vec![kept(Some(true)), kept(Some(true))], true),
        ] {
            assert_eq!(Payload { metrics, ..Payload::default() }.is_historical(), expected);
        }
    }

    #[test]
    fn a_rebirth_is_one_boolean() {
        let command = Payload::read(&Payload::rebirth(5)).unwrap();
        assert_eq!(command.timestamp, Some(5));
        assert_eq!(command.metrics[0].name.as_deref(), Some("Node Control/Rebirth"));
        assert_eq!(command.metrics[0].value, Some(MetricValue::Boolean(true)));
    }

    #[test]
    fn data_names_metrics_by_name_or_by_the_alias_of_the_birth() {
        let wanted = wanted();
        let birth = Payload {
            metrics: vec![
                Metric {
                    alias: Some(7),
                    datatype: Some(INT16),
                    ..metric("Inputs/Temperature", MetricValue::Int(65_526))
                },
                metric("Other", MetricValue::Int(1)),
                Metric { datatype: Some(8), ..metric("Runs", MetricValue::Long(9)) },
            ],
            ..Payload::default()
        };
        let known = definitions(&birth, &wanted);
        assert_eq!(values(&birth, &wanted, &known), [Some(Value::Int(-10)), Some(Value::Int(9))]);
        let metrics = std::iter::repeat_n(birth.metrics.clone(), 1000).flatten().collect();
        let repeated = Payload { metrics, ..Payload::default() };
        assert_eq!(definitions(&repeated, &wanted), known);

        let by_alias = |alias, value| Metric { alias: Some(alias), value: Some(value), ..Metric::default() };
        let data = |metrics: Vec<Metric>| Payload { metrics, ..Payload::default() };
        let cases = [
            (data(vec![by_alias(7, MetricValue::Int(12))]), [Some(Value::Int(12)), None]),
            (data(vec![by_alias(7, MetricValue::Int(65_535))]), [Some(Value::Int(-1)), None]),
            (data(vec![by_alias(8, MetricValue::Int(12))]), [None, None]),
            (data(vec![metric("Runs", MetricValue::Long(10))]), [None, Some(Value::Int(10))]),
            (data(vec![metric("Runs", MetricValue::Boolean(true))]), [None, Some(Value::Bool(true))]),
            (
                data(vec![Metric { is_historical: Some(true), ..metric("Runs", MetricValue::Long(1)) }]),
                [None, None],
            ),
            (
                data(vec![Metric { is_null: Some(true), ..metric("Runs", MetricValue::Long(1)) }]),
                [None, None],
            ),
        ];
        for (payload, expected) in cases {
            assert_eq!(values(&payload, &wanted, &known), expected, "{payload:?}");
        }
        // Without the birth, only metrics with a name have a meaning.
        let both = data(vec![by_alias(7, MetricValue::Int(12)), metric("Runs", MetricValue::Long(3))]);
        assert_eq!(values(&both, &wanted, &[]), [None, Some(Value::Int(3))]);
    }
}
