//! The metrics of a process, as a scrape reads them.

use prometheus::proto::Metric;
use rollcall::telemetry::Telemetry;

/// The sum of the series of a metric that have all of these label values; of a histogram, the number of observations.
/// `None` if there is no such series.
pub fn sum(telemetry: &Telemetry, metric: &str, labels: &[&str]) -> Option<f64> {
    let families = telemetry.gather();
    let family = families.iter().find(|family| family.name() == metric)?;
    let has = |one: &Metric, value: &str| one.get_label().iter().any(|label| label.value() == value);
    let is_meant = |one: &&Metric| labels.iter().all(|value| has(one, value));
    let value = |one: &Metric| {
        let observations = one.get_histogram().get_sample_count() as f64;
        one.get_counter().get_value() + one.get_gauge().get_value() + observations
    };
    family.get_metric().iter().filter(is_meant).map(value).reduce(|a, b| a + b)
}
