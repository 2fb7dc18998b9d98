//! A histogram of the current moment: how many units are in each bucket now, not a count over time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};

/// Counted again for each scrape.
#[derive(Clone)]
pub(super) struct SnapshotHistogram {
    desc: Desc,
    counted: Arc<Mutex<Histogram>>,
}

impl SnapshotHistogram {
    pub fn new(name: &str, help: &str) -> SnapshotHistogram {
        let desc = Desc::new(name.to_owned(), help.to_owned(), Vec::new(), Default::default());
        SnapshotHistogram { desc: desc.expect("a constant name"), counted: Arc::default() }
    }

    /// `within`: upper bounds and cumulative counts, ascending.
    pub fn set(&self, within: impl IntoIterator<Item = (Duration, u64)>, count: u64, sum: Duration) {
        let buckets = within.into_iter().map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound.as_secs_f64());
            bucket.set_cumulative_count(count);
            bucket
        });
        let mut counted = Histogram::default();
        counted.set_bucket(buckets.collect());
        counted.set_sample_count(count);
        counted.set_sample_sum(sum.as_secs_f64());
        *self.counted.lock() = counted;
    }
}

impl Collector for SnapshotHistogram {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut metric = Metric::default();
        metric.set_histogram(self.counted.lock().clone());
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(vec![metric]);
        vec![family]
    }
}
