//! Whose script runs next, when there is more to do than the server can do at once.
//!
//! A server works off whatever one client has sent before it turns to the next one, so a hundred
//! scripts that are sent together keep everybody else waiting for as long as all of them take. Few
//! are sent at a time; while one runs, the next is there.
//!
//! What writes records goes first: that a unit is silent is on record within two seconds, also if a
//! hundred thousand are, and telling follows. It is held up, but not for good: under a load of
//! changes that does not end it goes on slowly.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// How many batches of units are read at a time.
const READING: usize = 2;
/// How many scripts that change units are under way.
const CHANGING: usize = 2;
/// How many scripts that tell are under way.
const TELLING: usize = 2;
/// The same where there are other instances: the server has theirs to go on with.
const TELLING_BESIDE_OTHERS: usize = 1;
/// How long a script that tells is held up at the most.
const PATIENCE: Duration = Duration::from_millis(100);

/// The turns of one instance at its server.
pub struct Turns {
    reading: Semaphore,
    changing: Semaphore,
    telling: Semaphore,
    /// Changes that wait or are under way.
    changes: AtomicUsize,
    all_changed: Notify,
    /// How many scripts that tell may be under way at the moment.
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
            reading: Semaphore::new(READING),
            changing: Semaphore::new(CHANGING),
            telling: Semaphore::new(TELLING),
            changes: AtomicUsize::new(0),
            all_changed: Notify::new(),
            most: Mutex::new(TELLING),
        }
    }

    /// So many instances share the server. Turns that are taken go on to their end.
    pub fn share(&self, instances: usize) {
        let wanted = if instances > 1 { TELLING_BESIDE_OTHERS } else { TELLING };
        let mut most = self.most.lock().expect("nothing panics under this lock");
        self.telling.add_permits(wanted.saturating_sub(*most));
        // Those that are taken are asked for again the next time.
        *most = wanted.max(*most - self.telling.forget_permits(most.saturating_sub(wanted)));
    }

    /// Waits for a turn to read units.
    pub async fn read(&self) -> Turn<'_> {
        Turn { _permit: permit(&self.reading).await, _change: None }
    }

    /// Waits for a turn to change units. They come in the order in which they were asked for.
    pub async fn change(&self) -> Turn<'_> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        let change = Changing(self);
        Turn { _permit: permit(&self.changing).await, _change: Some(change) }
    }

    /// Waits for a turn to tell.
    pub async fn tell(&self) -> Turn<'_> {
        let permit = permit(&self.telling).await;
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

async fn permit(semaphore: &Semaphore) -> SemaphorePermit<'_> {
    semaphore.acquire().await.expect("it is never closed")
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
        drop(change);
        assert!(turns.tell().now_or_never().is_some());
    }

    #[tokio::test]
    async fn few_scripts_are_under_way_and_beside_other_instances_fewer() {
        let turns = Turns::new();
        let change = || std::iter::from_fn(|| turns.change().now_or_never()).collect::<Vec<Turn>>();
        assert_eq!(change().len(), CHANGING);
        let tell = || std::iter::from_fn(|| turns.tell().now_or_never()).collect::<Vec<Turn>>();
        let mut held = tell();
        assert_eq!(held.len(), TELLING);
        // Those that are taken go on to their end, and fewer begin.
        turns.share(3);
        held.pop();
        turns.share(3);
        assert_eq!(tell().len(), 0);
        held.clear();
        assert_eq!(tell().len(), TELLING_BESIDE_OTHERS);
        turns.share(1);
        turns.share(1);
        assert_eq!(tell().len(), TELLING);
        // Who gave up waiting for a turn holds up nobody.
        let _turn = turns.tell().now_or_never().expect("no change waits");
    }
}
