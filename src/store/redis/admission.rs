//! Limits on what is under way to the server at once, when there is more to do than it can do.
//!
//! A server works off whatever one client has sent before it turns to the next one, so a hundred
//! scripts that are sent together delay every other client for as long as all of them take. Few
//! are sent at a time; while one runs, the next is there.
//!
//! Scripts that write records go first: that a unit is silent is on record within two seconds, also if a
//! hundred thousand are, and telling follows. Telling is delayed, but not for good: under a load of
//! changes that does not end it goes on slowly. The same holds for what is read for the mirror while very many
//! units are due: it would find them, too, and check them beside the loop whose work that is.
//!
//! Few is as many as keep the server at work: more where it is far away, see `round_trip.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

/// How many batches of units are read at a time.
const READ_LIMIT: usize = 2;
/// How many scripts that change units are under way.
const CHANGE_LIMIT: usize = 2;
/// How many deadline checks are: while the server reads for one, it writes for another, and a third is decided.
const CHECK_LIMIT: usize = 3;
/// How many scripts that tell are under way.
const TELL_LIMIT: usize = 2;
/// How many steps of one call are under way at once: while one runs, the next is there.
const STEP_LIMIT: usize = 2;
/// How many fewer where there are other instances: the server has theirs to go on with.
const FEWER: usize = 1;
/// How long a script that tells, or a read for the mirror, is delayed at the most.
const LONGEST_HOLD: Duration = Duration::from_millis(100);

/// What one instance may have under way to its server.
pub struct Admission {
    checks: Limit,
    reads: Limit,
    changes: Limit,
    tells: Limit,
    shape: Mutex<Shape>,
    /// Checks and changes that wait or are under way, and a storm.
    pending_changes: AtomicUsize,
    no_changes: Notify,
    is_storm: watch::Sender<bool>,
}

/// What the limits are made from.
#[derive(Clone, Copy)]
struct Shape {
    /// How many fewer beside other instances.
    fewer: usize,
    /// How many times as many where the server is far away.
    times: usize,
}

/// Admits few at a time, in the order in which they came.
struct Limit {
    permits: Semaphore,
    /// How many are admitted where there are no other instances.
    base: usize,
    /// How many are at the moment.
    current: Mutex<usize>,
}

/// Something is under way until this is dropped.
pub struct Permit<'a> {
    _permit: SemaphorePermit<'a>,
    _change: Option<PendingChange<'a>>,
}

struct PendingChange<'a>(&'a Admission);

impl Admission {
    pub fn new() -> Admission {
        Admission {
            checks: Limit::new(CHECK_LIMIT),
            reads: Limit::new(READ_LIMIT),
            changes: Limit::new(CHANGE_LIMIT),
            tells: Limit::new(TELL_LIMIT),
            shape: Mutex::new(Shape { fewer: 0, times: 1 }),
            pending_changes: AtomicUsize::new(0),
            no_changes: Notify::new(),
            is_storm: watch::Sender::new(false),
        }
    }

    /// That many instances share the server. What is under way goes on to its end.
    pub fn share(&self, instances: usize) {
        let fewer = if instances > 1 { FEWER } else { 0 };
        self.reshape(|shape| Shape { fewer, ..shape });
    }

    /// The server is so far away that there is room for `times` as much under way.
    pub fn stretch(&self, times: usize) {
        if times != self.times() {
            self.reshape(|shape| Shape { times, ..shape });
        }
    }

    /// Whether it is that far away.
    pub fn is_far(&self) -> bool {
        self.times() > 1
    }

    /// How many steps of one call may be under way at once.
    pub fn steps(&self) -> usize {
        STEP_LIMIT * self.times()
    }

    fn times(&self) -> usize {
        self.shape.lock().expect("nothing panics under this lock").times
    }

    fn reshape(&self, change: impl FnOnce(Shape) -> Shape) {
        let mut shape = self.shape.lock().expect("nothing panics under this lock");
        *shape = change(*shape);
        for limit in [&self.checks, &self.reads, &self.changes, &self.tells] {
            limit.set((limit.base - shape.fewer) * shape.times);
        }
    }

    /// Very many units are due, until that is over: telling is delayed also where no check is under way for a
    /// moment, as between two reads of the units that are due.
    pub fn storm(&self, is_on: bool) {
        let was_on = self.is_storm.send_replace(is_on);
        if is_on && !was_on {
            self.pending_changes.fetch_add(1, Ordering::Relaxed);
        } else if was_on && !is_on {
            drop(PendingChange(self));
        }
    }

    /// Tells of storms that come and go.
    pub fn storms(&self) -> watch::Receiver<bool> {
        self.is_storm.subscribe()
    }

    /// Waits for a storm to end, if there is one, but not for good.
    pub async fn calm(&self) {
        let _ = tokio::time::timeout(LONGEST_HOLD, self.storms().wait_for(|is_on| !is_on)).await;
    }

    /// Waits until units may be checked, and changed by that.
    pub async fn check(&self) -> Permit<'_> {
        let change = PendingChange::new(self);
        Permit { _permit: self.checks.pass().await, _change: Some(change) }
    }

    /// Waits until units may be read.
    pub async fn read(&self) -> Permit<'_> {
        Permit { _permit: self.reads.pass().await, _change: None }
    }

    /// Waits until units may be changed, in the order of the calls.
    pub async fn change(&self) -> Permit<'_> {
        let change = PendingChange::new(self);
        Permit { _permit: self.changes.pass().await, _change: Some(change) }
    }

    /// Waits until a script that tells may be sent.
    pub async fn tell(&self) -> Permit<'_> {
        let permit = self.tells.pass().await;
        let no_changes = async {
            loop {
                let mut changed = std::pin::pin!(self.no_changes.notified());
                changed.as_mut().enable();
                if self.pending_changes.load(Ordering::Relaxed) == 0 {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(LONGEST_HOLD, no_changes).await;
        Permit { _permit: permit, _change: None }
    }
}

impl Limit {
    fn new(base: usize) -> Limit {
        Limit { permits: Semaphore::new(base), base, current: Mutex::new(base) }
    }

    async fn pass(&self) -> SemaphorePermit<'_> {
        self.permits.acquire().await.expect("it is never closed")
    }

    fn set(&self, wanted: usize) {
        let mut current = self.current.lock().expect("nothing panics under this lock");
        self.permits.add_permits(wanted.saturating_sub(*current));
        // Permits that are held now are withdrawn the next time.
        *current = wanted.max(*current - self.permits.forget_permits(current.saturating_sub(wanted)));
    }
}

impl<'a> PendingChange<'a> {
    fn new(admission: &'a Admission) -> PendingChange<'a> {
        admission.pending_changes.fetch_add(1, Ordering::Relaxed);
        PendingChange(admission)
    }
}

impl Drop for PendingChange<'_> {
    fn drop(&mut self) {
        if self.0.pending_changes.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.no_changes.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_tells_waits_for_what_changes_units_but_not_for_good() {
        let admission = Admission::new();
        let change = admission.change().await;
        assert!(admission.tell().now_or_never().is_none());
        drop(admission.tell().await);
        admission.storm(true);
        admission.storm(true);
        drop(change);
        assert!(admission.tell().now_or_never().is_none());
        admission.storm(false);
        admission.storm(false);
        assert!(admission.tell().now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_is_read_for_the_mirror_waits_for_a_storm_to_end_but_not_for_good() {
        let admission = Admission::new();
        let _change = admission.change().await;
        assert!(admission.calm().now_or_never().is_some());
        admission.storm(true);
        assert!(admission.calm().now_or_never().is_none());
        admission.calm().await;
        admission.storm(false);
        assert!(admission.calm().now_or_never().is_some());
    }

    #[tokio::test]
    async fn few_batches_are_under_way_and_beside_other_instances_fewer() {
        let admission = Admission::new();
        let check = || std::iter::from_fn(|| admission.check().now_or_never()).collect::<Vec<Permit>>();
        let read = || std::iter::from_fn(|| admission.read().now_or_never()).collect::<Vec<Permit>>();
        let change = || std::iter::from_fn(|| admission.change().now_or_never()).collect::<Vec<Permit>>();
        let tell = || std::iter::from_fn(|| admission.tell().now_or_never()).collect::<Vec<Permit>>();
        let all = || [tell().len(), check().len(), read().len(), change().len()];
        assert_eq!(all(), [TELL_LIMIT, CHECK_LIMIT, READ_LIMIT, CHANGE_LIMIT]);
        let mut held = tell();
        // What is under way goes on to its end, and less begins.
        admission.share(3);
        held.pop();
        admission.share(3);
        assert_eq!(tell().len(), 0);
        held.clear();
        assert_eq!(
            all(),
            [TELL_LIMIT - FEWER, CHECK_LIMIT - FEWER, READ_LIMIT - FEWER, CHANGE_LIMIT - FEWER]
        );
        admission.share(1);
        admission.share(1);
        assert_eq!(all(), [TELL_LIMIT, CHECK_LIMIT, READ_LIMIT, CHANGE_LIMIT]);
        admission.stretch(3);
        assert_eq!(all(), [3 * TELL_LIMIT, 3 * CHECK_LIMIT, 3 * READ_LIMIT, 3 * CHANGE_LIMIT]);
        assert!(admission.is_far() && admission.steps() == 3 * STEP_LIMIT);
        admission.share(3);
        assert_eq!(check().len(), 3 * (CHECK_LIMIT - FEWER));
        admission.share(1);
        admission.stretch(1);
        assert_eq!(all(), [TELL_LIMIT, CHECK_LIMIT, READ_LIMIT, CHANGE_LIMIT]);
        // A caller that gave up waiting delays no other.
        let _permit = admission.tell().now_or_never().expect("no change waits");
    }
}
