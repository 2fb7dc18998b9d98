//! Limits on the requests under way to the server, for times when there is more work than the server can do.
//!
//! Redis executes everything that one client has sent before it serves the next client, so a hundred scripts sent
//! together delay every other client until the last of them ends. Therefore only a few are under way: while one runs,
//! the next one waits at the server.
//!
//! Scripts that write records go first: the record of a silence is written within two seconds, also in a mass
//! offline of a hundred thousand units, and notifications follow. Scripts of alerting are delayed, but go on slowly
//! under endless changes. Reads for the mirror are delayed in the same way while very many units are due: the
//! mirror would also find due units, and check them beside the expiry loop.
//!
//! Poll a call that waits for its permit, or has it, to its end, or drop it. A caller that holds it and awaits
//! another call may wait for ever.
//!
//! The limits are just high enough to keep the server busy: higher for a server far away, see `round_trip.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// How many batches of units are read at once.
const READ_LIMIT: usize = 2;
/// How many scripts that change units are under way at once.
const CHANGE_LIMIT: usize = 2;
/// How many deadline checks are under way at once: one is read, one is decided, one is written.
const CHECK_LIMIT: usize = 3;
/// How many scripts of alerting are under way at once.
const ALERTING_LIMIT: usize = 2;
/// How many steps of one call are under way at once: while one runs, the next one waits at the server.
const STEP_LIMIT: usize = 2;
/// How much lower each limit is beside other instances, which also keep the server busy.
const FEWER: usize = 1;
/// The longest delay of a script of alerting, or of a read for the mirror.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// The limits of one instance.
pub struct Admission {
    checks: AdmissionLimit,
    reads: AdmissionLimit,
    changes: AdmissionLimit,
    alerting: AdmissionLimit,
    scale: Mutex<Scale>,
    pending: Arc<Pending>,
    is_storm: watch::Sender<bool>,
}

/// Checks and changes that wait or are under way.
#[derive(Default)]
struct Pending {
    /// The number of these, and one more for a storm.
    changes: AtomicUsize,
    no_changes: Notify,
}

/// How the limits differ from their base.
#[derive(Clone, Copy)]
struct Scale {
    /// The difference beside other instances.
    fewer: usize,
    /// The factor for a server far away.
    times: usize,
}

/// Admits a limited number of requests, in the order of arrival.
struct AdmissionLimit {
    permits: Arc<Semaphore>,
    /// The limit of a single instance near its server.
    base: usize,
    current: Mutex<usize>,
}

/// A request is under way until its permit is dropped.
pub struct Permit {
    _permit: OwnedSemaphorePermit,
    _change: Option<PendingChange>,
}

struct PendingChange(Arc<Pending>);

impl Admission {
    pub fn new() -> Admission {
        Admission {
            checks: AdmissionLimit::new(CHECK_LIMIT),
            reads: AdmissionLimit::new(READ_LIMIT),
            changes: AdmissionLimit::new(CHANGE_LIMIT),
            alerting: AdmissionLimit::new(ALERTING_LIMIT),
            scale: Mutex::new(Scale { fewer: 0, times: 1 }),
            pending: Arc::default(),
            is_storm: watch::Sender::new(false),
        }
    }

    /// Sets the number of instances that share the server. Requests under way are not affected.
    pub fn share(&self, instances: usize) {
        let fewer = if instances > 1 { FEWER } else { 0 };
        self.rescale(|scale| Scale { fewer, ..scale });
    }

    /// Sets the factor of the limits for the distance of the server.
    pub fn set_times(&self, times: usize) {
        if times != self.times() {
            self.rescale(|scale| Scale { times, ..scale });
        }
    }

    pub fn is_far(&self) -> bool {
        self.times() > 1
    }

    /// How many steps of one call may be under way at once.
    pub fn steps(&self) -> usize {
        STEP_LIMIT * self.times()
    }

    fn times(&self) -> usize {
        self.scale.lock().times
    }

    fn rescale(&self, change: impl FnOnce(Scale) -> Scale) {
        let mut scale = self.scale.lock();
        *scale = change(*scale);
        for limit in [&self.checks, &self.reads, &self.changes, &self.alerting] {
            limit.set((limit.base - scale.fewer) * scale.times);
        }
    }

    /// Begins or ends a storm, in which very many units are due: alerting is delayed also while no check is under
    /// way, as between two reads of due units.
    pub fn storm(&self, is_on: bool) {
        let was_on = self.is_storm.send_replace(is_on);
        if is_on && !was_on {
            self.pending.changes.fetch_add(1, Ordering::Relaxed);
        } else if was_on && !is_on {
            drop(PendingChange(self.pending.clone()));
        }
    }

    /// Whether a storm is on, as a channel.
    pub fn storms(&self) -> watch::Receiver<bool> {
        self.is_storm.subscribe()
    }

    /// Waits for the end of a storm, but no longer than [`MAX_DELAY`].
    pub async fn wait_for_end_of_storm(&self) {
        let _ = tokio::time::timeout(MAX_DELAY, self.storms().wait_for(|is_on| !is_on)).await;
    }

    /// Waits until units may be checked. The permit includes their changes.
    pub async fn check(&self) -> Permit {
        let change = PendingChange::new(&self.pending);
        Permit { _permit: self.checks.pass().await, _change: Some(change) }
    }

    /// Waits until units may be read.
    pub async fn read(&self) -> Permit {
        Permit { _permit: self.reads.pass().await, _change: None }
    }

    /// Waits until units may be changed, in the order of the calls.
    pub async fn change(&self) -> Permit {
        let change = PendingChange::new(&self.pending);
        Permit { _permit: self.changes.pass().await, _change: Some(change) }
    }

    /// Waits until a script of alerting may be sent.
    pub async fn alerting(&self) -> Permit {
        let permit = self.alerting.pass().await;
        let no_changes = async {
            loop {
                let mut changed = std::pin::pin!(self.pending.no_changes.notified());
                changed.as_mut().enable();
                if self.pending.changes.load(Ordering::Relaxed) == 0 {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(MAX_DELAY, no_changes).await;
        Permit { _permit: permit, _change: None }
    }
}

impl AdmissionLimit {
    fn new(base: usize) -> AdmissionLimit {
        AdmissionLimit { permits: Arc::new(Semaphore::new(base)), base, current: Mutex::new(base) }
    }

    async fn pass(&self) -> OwnedSemaphorePermit {
        self.permits.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    fn set(&self, wanted: usize) {
        let mut current = self.current.lock();
        self.permits.add_permits(wanted.saturating_sub(*current));
        // Permits in use are withdrawn by a later call.
        *current = wanted.max(*current - self.permits.forget_permits(current.saturating_sub(wanted)));
    }
}

impl PendingChange {
    fn new(pending: &Arc<Pending>) -> PendingChange {
        pending.changes.fetch_add(1, Ordering::Relaxed);
        PendingChange(pending.clone())
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        if self.0.changes.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.no_changes.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn alerting_waits_for_changes_of_units_but_not_forever() {
        let admission = Admission::new();
        let change = admission.change().await;
        assert!(admission.alerting().now_or_never().is_none());
        drop(admission.alerting().await);
        admission.storm(true);
        admission.storm(true);
        drop(change);
        assert!(admission.alerting().now_or_never().is_none());
        admission.storm(false);
        admission.storm(false);
        assert!(admission.alerting().now_or_never().is_some());
    }

    #[tokio::test]
    async fn reads_for_the_mirror_wait_for_the_end_of_a_storm_but_not_forever() {
        let admission = Admission::new();
        let _change = admission.change().await;
        assert!(admission.wait_for_end_of_storm().now_or_never().is_some());
        admission.storm(true);
        assert!(admission.wait_for_end_of_storm().now_or_never().is_none());
        admission.wait_for_end_of_storm().await;
        admission.storm(false);
        assert!(admission.wait_for_end_of_storm().now_or_never().is_some());
    }

    #[tokio::test]
    async fn few_requests_are_under_way_and_beside_other_instances_fewer() {
        let admission = Admission::new();
        let check = || std::iter::from_fn(|| admission.check().now_or_never()).collect::<Vec<Permit>>();
        let read = || std::iter::from_fn(|| admission.read().now_or_never()).collect::<Vec<Permit>>();
        let change = || std::iter::from_fn(|| admission.change().now_or_never()).collect::<Vec<Permit>>();
        let alerting = || std::iter::from_fn(|| admission.alerting().now_or_never()).collect::<Vec<Permit>>();
        let all = || [alerting().len(), check().len(), read().len(), change().len()];
        assert_eq!(all(), [ALERTING_LIMIT, CHECK_LIMIT, READ_LIMIT, CHANGE_LIMIT]);
        let mut held = alerting();
        // Requests under way continue, and fewer begin.
        admission.share(3);
        held.pop();
        admission.share(3);
        assert_eq!(alerting().len(), 0);
        held.clear();
        assert_eq!(
            all(),
            [ALERTING_LIMIT - FEWER, CHECK_LIMIT - FEWER, READ_LIMIT - FEWER, CHANGE_LIMIT - FEWER]
        );
        admission.share(1);
        admission.share(1);
        assert_eq!(all(), [ALERTING_LIMIT, CHECK_LIMIT, READ_LIMIT, CHANGE_LIMIT]);
        admission.set_times(3);
        assert_eq!(all(), [3 * ALERTING_LIMIT, 3 * CHECK_LIMIT, 3 * READ_LIMIT, 3 * CHANGE_LIMIT]);
        assert!(admission.is_far() && admission.steps() == 3 * STEP_LIMIT);
        admission.share(3);
        assert_eq!(check().len(), 3 * (CHECK_LIMIT - FEWER));
        admission.share(1);
        admission.set_times(1);
        assert_eq!(all(), [ALERTING_LIMIT, CHECK_LIMIT, READ_LIMIT, CHANGE_LIMIT]);
        // A caller that gave up waiting delays no other.
        let _permit = admission.alerting().now_or_never().expect("no change waits");
    }
}
