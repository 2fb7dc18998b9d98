//! Whose script runs next, when there is more to do than the server can do at once.
//!
//! A server works off whatever one client has sent before it turns to the next one, so a hundred
//! scripts that are sent together keep everybody else waiting for as long as all of them take. Few
//! are sent at a time; while one runs, the next is there.
//!
//! What writes records goes first: that a unit is silent is on record within two seconds, also if a
//! hundred thousand are, and telling follows. It is held up, but not for good: under a load of
//! changes that does not end it goes on slowly. So does what is read for the mirror while very many units
//! are due: it would find them, too, and look at them beside those whose work that is.
//!
//! Few is as many as keep the server at work: more where it is far away, see `round_trip`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

/// How many batches of units are read at a time.
const READING: usize = 2;
/// How many scripts that change units are under way.
const CHANGING: usize = 2;
/// How many looks are: while the server reads for one, it writes for another, and a third is decided.
const LOOKING: usize = 3;
/// How many scripts that tell are under way.
const TELLING: usize = 2;
/// How many steps of one call are under way at once: while one runs, the next is there.
const STEPS: usize = 2;
/// So many fewer where there are other instances: the server has theirs to go on with.
const FEWER: usize = 1;
/// How long a script that tells is held up at the most, and a question for the mirror.
const PATIENCE: Duration = Duration::from_millis(100);

/// The turns of one instance at its server.
pub struct Turns {
    looking: Gate,
    reading: Gate,
    changing: Gate,
    telling: Gate,
    shape: Mutex<Shape>,
    /// Looks and changes that wait or are under way, and a storm.
    changes: AtomicUsize,
    all_changed: Notify,
    is_storm: watch::Sender<bool>,
}

/// What says how many turns there are.
#[derive(Clone, Copy)]
struct Shape {
    /// How many fewer beside other instances.
    fewer: usize,
    /// How many times as many where the server is far away.
    times: usize,
}

/// Lets few through at a time, in the order in which they came.
struct Gate {
    permits: Semaphore,
    /// How many may be through where there are no other instances.
    alone: usize,
    /// How many may be at the moment.
    most: Mutex<usize>,
}

/// A turn; it ends when this is dropped.
pub struct Turn<'a> {
    _permit: SemaphorePermit<'a>,
    _change: Option<Changing<'a>>,
}

struct Changing<'a>(&'a Turns);

impl Turns {
    pub fn new() -> Turns {
        Turns {
            looking: Gate::new(LOOKING),
            reading: Gate::new(READING),
            changing: Gate::new(CHANGING),
            telling: Gate::new(TELLING),
            shape: Mutex::new(Shape { fewer: 0, times: 1 }),
            changes: AtomicUsize::new(0),
            all_changed: Notify::new(),
            is_storm: watch::Sender::new(false),
        }
    }

    /// So many instances share the server. Turns that are taken go on to their end.
    pub fn share(&self, instances: usize) {
        let fewer = if instances > 1 { FEWER } else { 0 };
        self.reshape(|shape| Shape { fewer, ..shape });
    }

    /// The server is so far away that there is room for so many times as much under way.
    pub fn stretch(&self, times: usize) {
        if times != self.times() {
            self.reshape(|shape| Shape { times, ..shape });
        }
    }

    /// Whether it is that far away.
    pub fn are_far(&self) -> bool {
        self.times() > 1
    }

    /// How many steps of one call may be under way at once.
    pub fn steps(&self) -> usize {
        STEPS * self.times()
    }

    fn times(&self) -> usize {
        self.shape.lock().expect("nothing panics under this lock").times
    }

    fn reshape(&self, change: impl FnOnce(Shape) -> Shape) {
        let mut shape = self.shape.lock().expect("nothing panics under this lock");
        *shape = change(*shape);
        for gate in [&self.looking, &self.reading, &self.changing, &self.telling] {
            gate.set((gate.alone - shape.fewer) * shape.times);
        }
    }

    /// Very many units are due, until that is over: telling is held up also where no look is under way for a
    /// moment, as between two questions for those that are due.
    pub fn storm(&self, is_on: bool) {
        let was_on = self.is_storm.send_replace(is_on);
        if is_on && !was_on {
            self.changes.fetch_add(1, Ordering::Relaxed);
        } else if was_on && !is_on {
            drop(Changing(self));
        }
    }

    /// Tells of storms that come and go.
    pub fn storms(&self) -> watch::Receiver<bool> {
        self.is_storm.subscribe()
    }

    /// Waits for a storm to end, if there is one, but not for good.
    pub async fn calm(&self) {
        let _ = tokio::time::timeout(PATIENCE, self.storms().wait_for(|is_on| !is_on)).await;
    }

    /// Waits for a turn to look at units and to change them by that.
    pub async fn look(&self) -> Turn<'_> {
        let change = Changing::new(self);
        Turn { _permit: self.looking.pass().await, _change: Some(change) }
    }

    /// Waits for a turn to read units.
    pub async fn read(&self) -> Turn<'_> {
        Turn { _permit: self.reading.pass().await, _change: None }
    }

    /// Waits for a turn to change units. They come in the order in which they were asked for.
    pub async fn change(&self) -> Turn<'_> {
        let change = Changing::new(self);
        Turn { _permit: self.changing.pass().await, _change: Some(change) }
    }

    /// Waits for a turn to tell.
    pub async fn tell(&self) -> Turn<'_> {
        let permit = self.telling.pass().await;
        let all_changed = async {
            loop {
                let mut changed = std::pin::pin!(self.all_changed.notified());
                changed.as_mut().enable();
                if self.changes.load(Ordering::Relaxed) == 0 {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, all_changed).await;
        Turn { _permit: permit, _change: None }
    }
}

impl Gate {
    fn new(alone: usize) -> Gate {
        Gate { permits: Semaphore::new(alone), alone, most: Mutex::new(alone) }
    }

    async fn pass(&self) -> SemaphorePermit<'_> {
        self.permits.acquire().await.expect("it is never closed")
    }

    fn set(&self, wanted: usize) {
        let mut most = self.most.lock().expect("nothing panics under this lock");
        self.permits.add_permits(wanted.saturating_sub(*most));
        // Those that are taken are asked for again the next time.
        *most = wanted.max(*most - self.permits.forget_permits(most.saturating_sub(wanted)));
    }
}

impl<'a> Changing<'a> {
    fn new(turns: &'a Turns) -> Changing<'a> {
        turns.changes.fetch_add(1, Ordering::Relaxed);
        Changing(turns)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if self.0.changes.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.all_changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_tells_waits_for_what_changes_units_but_not_for_good() {
        let turns = Turns::new();
        let change = turns.change().await;
        assert!(turns.tell().now_or_never().is_none());
        drop(turns.tell().await);
        turns.storm(true);
        turns.storm(true);
        drop(change);
        assert!(turns.tell().now_or_never().is_none());
        turns.storm(false);
        turns.storm(false);
        assert!(turns.tell().now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_is_read_for_the_mirror_waits_for_a_storm_to_end_but_not_for_good() {
        let turns = Turns::new();
        let _change = turns.change().await;
        assert!(turns.calm().now_or_never().is_some());
        turns.storm(true);
        assert!(turns.calm().now_or_never().is_none());
        turns.calm().await;
        turns.storm(false);
        assert!(turns.calm().now_or_never().is_some());
    }

    #[tokio::test]
    async fn few_batches_are_under_way_and_beside_other_instances_fewer() {
        let turns = Turns::new();
        let look = || std::iter::from_fn(|| turns.look().now_or_never()).collect::<Vec<Turn>>();
        let read = || std::iter::from_fn(|| turns.read().now_or_never()).collect::<Vec<Turn>>();
        let change = || std::iter::from_fn(|| turns.change().now_or_never()).collect::<Vec<Turn>>();
        let tell = || std::iter::from_fn(|| turns.tell().now_or_never()).collect::<Vec<Turn>>();
        let all = || [tell().len(), look().len(), read().len(), change().len()];
        assert_eq!(all(), [TELLING, LOOKING, READING, CHANGING]);
        let mut held = tell();
        // Those that are taken go on to their end, and fewer begin.
        turns.share(3);
        held.pop();
        turns.share(3);
        assert_eq!(tell().len(), 0);
        held.clear();
        assert_eq!(all(), [TELLING - FEWER, LOOKING - FEWER, READING - FEWER, CHANGING - FEWER]);
        turns.share(1);
        turns.share(1);
        assert_eq!(all(), [TELLING, LOOKING, READING, CHANGING]);
        turns.stretch(3);
        assert_eq!(all(), [3 * TELLING, 3 * LOOKING, 3 * READING, 3 * CHANGING]);
        assert!(turns.are_far() && turns.steps() == 3 * STEPS);
        turns.share(3);
        assert_eq!(look().len(), 3 * (LOOKING - FEWER));
        turns.share(1);
        turns.stretch(1);
        assert_eq!(all(), [TELLING, LOOKING, READING, CHANGING]);
        // Who gave up waiting for a turn holds up nobody.
        let _turn = turns.tell().now_or_never().expect("no change waits");
    }
}
