//! How long connections to the broker waited for a processor: on a busy machine a message is read so much later, and a
//! canary takes so much longer.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollcall::clock::Timestamp;
use tokio::task::JoinSet;

use super::now;

const PERIOD: Duration = Duration::from_millis(100);

/// The process of an instance, by its id; 0: none.
pub type Process = Arc<AtomicU32>;

/// How long the connections had waited in all, at moments; of those that waited at the same time, the longest counts.
#[derive(Clone, Debug, Default)]
pub struct Waits(Vec<(Timestamp, Duration)>);

impl Waits {
    /// How long they waited between two moments, or a little longer.
    pub fn between(&self, from: Timestamp, to: Timestamp) -> Duration {
        let before = self.0.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let after = self.0.partition_point(|(at, _)| *at < to).min(self.0.len().saturating_sub(1));
        let total = |at: usize| self.0.get(at).map_or(Duration::ZERO, |(_, total)| *total);
        total(after).saturating_sub(total(before))
    }
}

/// The waits, measured until they are dropped.
pub struct WaitsMeasured {
    waits: Arc<Mutex<Waits>>,
    _measuring: JoinSet<()>,
}

impl WaitsMeasured {
    pub fn of(processes: Vec<Process>) -> WaitsMeasured {
        let waits = Arc::<Mutex<Waits>>::default();
        let mut measuring = JoinSet::new();
        measuring.spawn(measure(processes, waits.clone()));
        WaitsMeasured { waits, _measuring: measuring }
    }

    pub fn so_far(&self) -> Waits {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn measure(processes: Vec<Process>, waits: Arc<Mutex<Waits>>) {
    let (mut total, mut known) = (Duration::ZERO, HashMap::new());
    let mut every = tokio::time::interval(PERIOD);
    loop {
        every.tick().await;
        let now_waited: HashMap<PathBuf, Duration> =
            processes.iter().flat_map(|process| waited(process.load(Ordering::Relaxed))).collect();
        let since = now_waited
            .iter()
            .map(|(thread, waited)| waited.saturating_sub(known.get(thread).copied().unwrap_or_default()));
        total += since.max().unwrap_or_default();
        known = now_waited;
        waits.lock().unwrap_or_else(PoisonError::into_inner).0.push((now(), total));
    }
}

/// How long each thread of a connection of this process has waited for a processor: the second number of `schedstat`, in
/// nanoseconds.
fn waited(id: u32) -> impl Iterator<Item = (PathBuf, Duration)> {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).ok();
        read("comm").filter(|name| name.starts_with("mqtt-"))?;
        let waited = read("schedstat")?.split(' ').nth(1)?.parse().ok()?;
        Some((thread.path(), Duration::from_nanos(waited)))
    })
}

#[test]
fn waits_count_from_the_sample_before_to_the_sample_after() {
    let at = Timestamp::from_millis;
    let sample = |(ms, waited)| (at(ms), Duration::from_millis(waited));
    let waits = Waits([(0, 0), (100, 10), (200, 40), (300, 40)].map(sample).to_vec());
    for (from, to, waited) in [(0, 300, 40), (100, 150, 30), (150, 200, 30), (250, 900, 0), (-50, 50, 10)] {
        assert_eq!(waits.between(at(from), at(to)), Duration::from_millis(waited), "{from} to {to}");
    }
    assert_eq!(Waits::default().between(at(0), at(1)), Duration::ZERO);
}
