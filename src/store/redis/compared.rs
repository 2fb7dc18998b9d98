//! Which instances have compared what their receivers acknowledged with what is stored since a primary was replaced.
//!
//! The instance that lets a transition join its group need not be the one whose receivers know of a silence that the
//! failover lost: see `acknowledged.rs`. Before that one has written it again, its return would be notified to no
//! receiver, and the silence, found again, under another id. So transitions wait until every live instance has announced
//! that it has compared under the primaries of now.
//!
//! An instance that has died announces nothing, so they wait no longer than [`LONGEST`].

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use redis::pipe;
use tokio::time::Instant;

use super::RedisEngine;
use crate::store::Result;

/// The longest wait: instances learn of a new primary within two seconds, and compare at once.
const LONGEST: Duration = Duration::from_secs(4);
/// The time between two looks at the announcements.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an announcement is valid, and when it is repeated.
const VALID: Duration = Duration::from_secs(8);
const REPEATED: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Comparisons {
    /// The name of this instance, since it has a lease.
    instance: OnceLock<String>,
    /// The last announcement, and when it was made.
    announced: Mutex<Option<(String, Instant)>>,
    /// When the primary was replaced for which no transition waits any more.
    passed: Mutex<Option<Instant>>,
}

impl Comparisons {
    /// This instance has a lease.
    pub fn has_lease(&self, instance: &str) {
        self.instance.get_or_init(|| instance.to_owned());
    }
}

impl RedisEngine {
    /// Announces that this instance has compared under the primaries with these epochs.
    pub(super) async fn announce_comparison(&self, epochs: &str) -> Result<()> {
        let Comparisons { instance, announced, .. } = &self.comparisons;
        let Some(instance) = instance.get() else { return Ok(()) };
        let is_recent = |(known, at): &(String, Instant)| known == epochs && at.elapsed() < REPEATED;
        if announced.lock().expect("nothing panics under this lock").as_ref().is_some_and(is_recent) {
            return Ok(());
        }
        let now = Instant::now();
        let mut write = pipe();
        write.pset_ex(self.keys.compared(instance), epochs, VALID.as_millis() as u64).ignore();
        self.topology.send::<()>("announce_comparison", &write).await?;
        *announced.lock().expect("nothing panics under this lock") = Some((epochs.to_owned(), now));
        Ok(())
    }

    /// Waits, after a primary was replaced, until every live instance has compared.
    pub(super) async fn hold_after_failover(&self) {
        let passed = || *self.comparisons.passed.lock().expect("nothing panics under this lock");
        let Some(since) = self.topology.replaced_at().filter(|since| passed() < Some(*since)) else { return };
        while since.elapsed() < LONGEST && !self.all_have_compared().await {
            tokio::time::sleep(AGAIN).await;
        }
        *self.comparisons.passed.lock().expect("nothing panics under this lock") = Some(since);
    }

    /// Whether every live instance has compared under the primaries of now; not if that cannot be read.
    async fn all_have_compared(&self) -> bool {
        let epochs = self.topology.epochs();
        let read = async {
            let mut read = pipe();
            read.zrange(self.keys.roster(), 0, -1);
            let (instances,): (Vec<String>,) = self.topology.send("comparisons", &read).await?;
            let mut read = pipe();
            for instance in &instances {
                read.get(self.keys.compared(instance));
            }
            let compared: Vec<Option<String>> = self.topology.send("comparisons", &read).await?;
            Result::Ok(compared.iter().all(|one| one.as_ref() == Some(&epochs)))
        };
        read.await.unwrap_or(false)
    }
}
