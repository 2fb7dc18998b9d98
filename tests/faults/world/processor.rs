//! How long instances waited for a processor: on a busy machine they do everything later, and canaries take as long.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollcall::clock::Timestamp;
use tokio::task::JoinSet;

use super::now;

const PERIOD: Duration = Duration::from_millis(100);

/// The process of an instance, by its id; 0: none.
pub type Process = Arc<AtomicU32>;

/// How long the threads of all instances together had waited for a processor, at moments.
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
    let mut total = Duration::ZERO;
    let mut known: Vec<(u32, Duration)> = vec![Default::default(); processes.len()];
    let mut every = tokio::time::interval(PERIOD);
    loop {
        every.tick().await;
        for (process, known) in processes.iter().zip(&mut known) {
            let id = process.load(Ordering::Relaxed);
            let waited = waited(id);
            let before = if known.0 == id { known.1 } else { Duration::ZERO };
            total += waited.saturating_sub(before);
            *known = (id, waited.max(before));
        }
        waits.lock().unwrap_or_else(PoisonError::into_inner).0.push((now(), total));
    }
}

/// How long the threads of a process have waited for a processor: the second number of `schedstat`, in nanoseconds.
fn waited(id: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let waited = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
    });
    waited.sum()
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
