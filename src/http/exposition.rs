//! The formats of metrics: the text format of Prometheus, and OpenMetrics for clients that ask for it.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING};

use crate::store::{Metric, MetricType};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpositionFormat {
    /// The text format of Prometheus.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// The format that the client accepts with the larger weight; text by default.
    pub fn accepted(headers: &HeaderMap) -> ExpositionFormat {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut open, mut text) = (0.0_f32, 0.0_f32);
        for offer in values.flat_map(|value| value.split(',')) {
            let (media, parameters) = offer.split_once(';').unwrap_or((offer, ""));
            let parameter = |name: &str| {
                let mut all = parameters.split(';').filter_map(|one| one.trim().split_once('='));
                all.find(|(found, _)| found.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
            };
            let weight = parameter("q").map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
            match media.trim().to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => {
                    let known = matches!(parameter("version"), None | Some("1.0.0" | "0.0.1"));
                    open = if known { open.max(weight) } else { open };
                }
                "text/plain" | "text/*" | "*/*" => text = text.max(weight),
                _ => {}
            }
        }
        if open > 0.0 && open >= text { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Text }
    }

    /// The exact content type: Prometheus 3 refuses a page whose type it does not know.
    pub fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Text => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The end of a page.
    pub fn end(self) -> &'static [u8] {
        match self {
            ExpositionFormat::Text => b"",
            ExpositionFormat::OpenMetrics => b"# EOF\n",
        }
    }
}

/// Samples of one name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family<'a> {
    pub name: &'a str,
    pub help: &'a str,
    pub metric_type: MetricType,
    pub unit: &'a str,
}

impl<'a> Family<'a> {
    pub const fn gauge(name: &'a str, help: &'a str) -> Family<'a> {
        Family { name, help, metric_type: MetricType::Gauge, unit: "" }
    }

    /// The family of a metric of units.
    pub fn of(metric: &'a Metric) -> Family<'a> {
        let Metric { name, help, metric_type, unit, .. } = metric;
        Family { name, help, metric_type: *metric_type, unit }
    }

    /// Writes the comment lines before the samples.
    pub fn begin(&self, out: &mut Vec<u8>, format: ExpositionFormat) {
        let (name, metric_type) = match (format, self.metric_type) {
            (ExpositionFormat::Text, MetricType::Info) => (self.name, MetricType::Gauge),
            (ExpositionFormat::Text, metric_type) => (self.name, metric_type),
            // In OpenMetrics the samples have the suffix `_total`, but the name of their family does not.
            (ExpositionFormat::OpenMetrics, MetricType::Counter) => {
                (without(self.name, "_total"), MetricType::Counter)
            }
            (ExpositionFormat::OpenMetrics, MetricType::Info) => {
                (without(self.name, "_info"), MetricType::Info)
            }
            (ExpositionFormat::OpenMetrics, MetricType::Gauge) => (self.name, MetricType::Gauge),
        };
        let has_unit = format == ExpositionFormat::OpenMetrics && !self.unit.is_empty();
        push(out, &["# HELP ", name, " "]);
        escape(out, self.help, format == ExpositionFormat::OpenMetrics);
        push(out, &["\n# TYPE ", name, " ", metric_type.as_str(), "\n"]);
        if has_unit {
            push(out, &["# UNIT ", name, " ", self.unit, "\n"]);
        }
    }

    /// Writes a sample of a unit up to its value; `more` are other labels and their values.
    pub fn sample<'b>(
        &self,
        out: &mut Vec<u8>,
        kind: &str,
        id: &str,
        more: impl IntoIterator<Item = (&'b str, &'b str)>,
    ) {
        push(out, &[self.name, "{kind=\"", kind, "\",unit=\""]);
        escape(out, id, true);
        for (label, value) in more {
            push(out, &["\",", label, "=\""]);
            escape(out, value, true);
        }
        push(out, &["\"} "]);
    }
}

fn without<'a>(name: &'a str, ending: &str) -> &'a str {
    name.strip_suffix(ending).unwrap_or(name)
}

fn push(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

fn escape(out: &mut Vec<u8>, text: &str, quotes: bool) {
    for &byte in text.as_bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'"' if quotes => out.extend_from_slice(b"\\\""),
            b'\n' => out.extend_from_slice(b"\\n"),
            _ => out.push(byte),
        }
    }
}

/// Returns whether `Accept-Encoding` names gzip and does not refuse it with a weight of zero.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let all = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).any(|offer| {
        let (coding, parameters) = offer.split_once(';').unwrap_or((offer, ""));
        let weight = parameters.trim().strip_prefix("q=").map(|weight| weight.trim().parse::<f32>());
        coding.trim().eq_ignore_ascii_case("gzip") && weight != Some(Ok(0.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_where_it_is_offered_and_not_refused() {
        let cases = [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip; q=0", false),
            ("gzip;q=0.000", false),
            ("identity", false),
            ("", false),
        ];
        for (offer, expected) in cases {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, offer.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), expected, "{offer}");
        }
    }

    #[test]
    fn openmetrics_is_used_if_its_weight_is_at_least_that_of_text() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
            text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let cases = [
            (prometheus, ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text", ExpositionFormat::OpenMetrics),
            ("Application/OpenMetrics-Text; version=1.0.0 , */*", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0, text/plain;q=0.1", ExpositionFormat::Text),
            ("application/openmetrics-text;q=0", ExpositionFormat::Text),
            ("application/openmetrics-text;q=0.3, text/plain;q=0.5", ExpositionFormat::Text),
            ("*/*", ExpositionFormat::Text),
            ("", ExpositionFormat::Text),
        ];
        for (offer, expected) in cases {
            let headers = HeaderMap::from_iter([(ACCEPT, offer.parse().unwrap())]);
            assert_eq!(ExpositionFormat::accepted(&headers), expected, "{offer}");
        }
    }

    #[test]
    fn a_family_is_named_and_escaped_as_its_format_requires() {
        let name = "pump_starts_total";
        let family = Family { name, help: "a \"b\" \\", metric_type: MetricType::Counter, unit: "starts" };
        let begun = |format| {
            let mut out = Vec::new();
            family.begin(&mut out, format);
            String::from_utf8(out).unwrap()
        };
        let text = "# HELP pump_starts_total a \"b\" \\\\\n# TYPE pump_starts_total counter\n";
        assert_eq!(begun(ExpositionFormat::Text), text);
        let open =
            "# HELP pump_starts a \\\"b\\\" \\\\\n# TYPE pump_starts counter\n# UNIT pump_starts starts\n";
        assert_eq!(begun(ExpositionFormat::OpenMetrics), open);
        let mut out = Vec::new();
        family.sample(&mut out, "pump", "a\"\n", Some(("value", "\\")));
        let sample = r#"pump_starts_total{kind="pump",unit="a\"\n",value="\\"} "#;
        assert_eq!(String::from_utf8(out).unwrap(), sample);
    }
}
