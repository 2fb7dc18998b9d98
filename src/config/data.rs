//! Checks the metrics of kinds: a metric name has one meaning in all kinds.

use std::collections::HashMap;

use super::file;
use super::problem::Problems;
use crate::presence::{Kind, is_label_name};
use crate::store::{Catalogue, Metric, MetricType};

/// The most metrics of a kind. Each is a series for each unit.
const MAX_METRICS: usize = 16;
/// The longest name, in bytes.
const MAX_NAME: usize = 100;
/// The longest pointer, in bytes, and the most levels that it goes down.
const MAX_POINTER: usize = 256;
const DEEPEST: usize = 8;
/// Names that Prometheus uses itself.
const TAKEN: [&str; 3] = ["up", "ALERTS", "ALERTS_FOR_STATE"];
const TAKEN_BEGINNINGS: [&str; 3] = ["rollcall_", "scrape_", "__"];
/// Suffixes that OpenMetrics reserves for samples of other types.
const SUFFIXES: [&str; 6] = ["_total", "_info", "_created", "_bucket", "_count", "_sum"];

pub(super) fn catalogue(kinds: &[file::Kind], problems: &mut Problems) -> Catalogue {
    let mut families: HashMap<String, (Metric, String)> = HashMap::new();
    let mut all = Vec::new();
    for (at, kind) in kinds.iter().enumerate() {
        let path = format!("kind[{at}].metric");
        if kind.metric.len() > MAX_METRICS {
            problems.error(&path, format!("names more than {MAX_METRICS} metrics"));
        }
        let mut metrics: Vec<Metric> = Vec::new();
        for (nr, one) in kind.metric.iter().enumerate() {
            let path = format!("{path}[{nr}]");
            let Some(metric) = metric(&path, one, problems) else { continue };
            if metrics.iter().any(|before| before.name == metric.name) {
                problems
                    .error(format!("{path}.name"), format!("{:?} is used twice; rename one", metric.name));
            }
            agrees(&path, &metric, &families, problems);
            families.entry(family(&metric).to_owned()).or_insert((metric.clone(), path));
            metrics.push(metric);
        }
        // An invalid name is reported where kinds are checked.
        all.extend(kind.name.parse::<Kind>().ok().map(|kind| (kind, metrics)));
    }
    Catalogue::new(all)
}

/// Checks that a name has one type and one help over all kinds.
fn agrees(
    path: &str,
    metric: &Metric,
    families: &HashMap<String, (Metric, String)>,
    problems: &mut Problems,
) {
    let Some((before, other)) = families.get(family(metric)) else { return };
    if before.name != metric.name {
        let text = format!("{:?} and {:?} of {other} are one family in Prometheus", metric.name, before.name);
        return problems.error(format!("{path}.name"), text);
    }
    let same = [
        ("type", before.metric_type == metric.metric_type),
        ("help", before.help == metric.help),
        ("unit", before.unit == metric.unit),
        ("label", before.label == metric.label),
    ];
    for (option, _) in same.into_iter().filter(|(_, same)| !same) {
        problems
            .error(format!("{path}.{option}"), format!("differs from that of {:?} in {other}", metric.name));
    }
}

fn metric(path: &str, one: &file::Metric, problems: &mut Problems) -> Option<Metric> {
    let errors = problems.errors.len();
    let metric_type = match one.metric_type {
        Some(file::MetricType::Gauge) => MetricType::Gauge,
        Some(file::MetricType::Counter) => MetricType::Counter,
        Some(file::MetricType::Info) => MetricType::Info,
        None => {
            problems.error(format!("{path}.type"), "is missing; write \"gauge\", \"counter\" or \"info\"");
            MetricType::Gauge
        }
    };
    if let Err(text) = check_name(&one.name, metric_type) {
        problems.error(format!("{path}.name"), text);
    }
    if one.help.is_empty() || one.help.chars().any(char::is_control) {
        problems.error(format!("{path}.help"), "has to describe the value, in one line");
    }
    let is_unit = one.unit.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let stem = one.name.strip_suffix("_total").unwrap_or(&one.name);
    if !is_unit || metric_type == MetricType::Info && !one.unit.is_empty() {
        problems.error(format!("{path}.unit"), "may have the characters a-z, 0-9 and _; an info has no unit");
    } else if !one.unit.is_empty() && !stem.ends_with(&format!("_{}", one.unit)) {
        problems.error(format!("{path}.unit"), format!("the name has to end in it: {stem}_{}", one.unit));
    }
    if !is_label_name(&one.label) {
        problems.error(format!("{path}.label"), format!("{:?} cannot be the name of a label", one.label));
    }
    let pointer = read_pointer(&one.pointer);
    let pointer = pointer.map_err(|text| problems.error(format!("{path}.pointer"), text)).ok()?;
    let metric = Metric {
        name: one.name.clone(),
        pointer,
        metric_type,
        help: one.help.clone(),
        unit: one.unit.clone(),
        label: one.label.clone(),
    };
    (problems.errors.len() == errors).then_some(metric)
}

fn check_name(name: &str, metric_type: MetricType) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let begins = name.bytes().next().is_some_and(|b| plain(b) && !b.is_ascii_digit());
    if !begins || name.len() > MAX_NAME || !name.bytes().all(plain) {
        return Err(format!(
            "{name:?} is not a valid name of a metric; write 1 to {MAX_NAME} of A-Z a-z 0-9 _, not first a digit"
        ));
    }
    if TAKEN.contains(&name) || TAKEN_BEGINNINGS.iter().any(|taken| name.starts_with(taken)) {
        return Err(format!(
            "{name:?} is reserved for Rollcall or Prometheus; begin it with the measured thing"
        ));
    }
    let suffix = match metric_type {
        MetricType::Gauge => "",
        MetricType::Counter => "_total",
        MetricType::Info => "_info",
    };
    if !name.ends_with(suffix) {
        let name_of_type = metric_type.as_str();
        return Err(format!("the name of a metric of type {name_of_type} ends in {suffix}: {name}{suffix}"));
    }
    let stem = &name[..name.len() - suffix.len()];
    match SUFFIXES.iter().find(|reserved| stem.ends_with(*reserved)) {
        Some(reserved) => Err(format!("{reserved} at the end of a name belongs to another type")),
        None if stem.is_empty() => Err(format!("{name:?} is only a suffix")),
        None => Ok(()),
    }
}

/// The name without the suffix of its type: the name of the family in OpenMetrics.
fn family(metric: &Metric) -> &str {
    let suffix = match metric.metric_type {
        MetricType::Gauge => "",
        MetricType::Counter => "_total",
        MetricType::Info => "_info",
    };
    metric.name.strip_suffix(suffix).unwrap_or(&metric.name)
}

/// The tokens of a JSON pointer (RFC 6901).
fn read_pointer(text: &str) -> Result<Vec<String>, String> {
    let Some(tokens) = text.strip_prefix('/') else {
        return Err(format!(
            "{text:?} is not a JSON pointer; write /battery/volts for a field within a field"
        ));
    };
    let tokens: Vec<&str> = tokens.split('/').collect();
    if text.len() > MAX_POINTER || tokens.len() > DEEPEST {
        return Err(format!("goes down at most {DEEPEST} levels, with {MAX_POINTER} bytes"));
    }
    let unescape = |token: &str| {
        let bad = token.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1']));
        (!bad).then(|| token.replace("~1", "/").replace("~0", "~"))
    };
    let tokens: Option<Vec<String>> = tokens.into_iter().map(unescape).collect();
    tokens.ok_or_else(|| "has a ~; write ~0 for it, and ~1 for a / within a name".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_read_by_rfc_6901() {
        let cases = [
            ("/battery", Some(vec!["battery"])),
            ("/a/0/b~1c~0d", Some(vec!["a", "0", "b/c~d"])),
            ("/~01", Some(vec!["~1"])),
            ("/", Some(vec![""])),
            ("battery", None),
            ("", None),
            ("/a~2", None),
            ("/a~", None),
            ("/1/2/3/4/5/6/7/8/9", None),
        ];
        for (text, tokens) in cases {
            let tokens = tokens.map(|tokens| tokens.into_iter().map(str::to_owned).collect());
            assert_eq!(read_pointer(text).ok(), tokens, "{text:?}");
        }
    }

    #[test]
    fn a_name_is_valid_in_prometheus_and_not_reserved() {
        use MetricType::{Counter, Gauge, Info};
        let good =
            [("battery_volts", Gauge), ("x", Gauge), ("pump_starts_total", Counter), ("fw_info", Info)];
        for (name, metric_type) in good {
            assert_eq!(check_name(name, metric_type), Ok(()), "{name}");
        }
        let bad = [
            ("", Gauge),
            ("2x", Gauge),
            ("a-b", Gauge),
            ("a:b", Gauge),
            ("up", Gauge),
            ("rollcall_x", Gauge),
            ("scrape_x", Gauge),
            ("x_total", Gauge),
            ("x_info", Gauge),
            ("x_count", Gauge),
            ("starts", Counter),
            ("_total", Counter),
            ("x_info_total", Counter),
            ("firmware", Info),
            (&"x".repeat(101), Gauge),
        ];
        for (name, metric_type) in bad {
            assert!(check_name(name, metric_type).is_err(), "{name} {metric_type:?}");
        }
    }
}
