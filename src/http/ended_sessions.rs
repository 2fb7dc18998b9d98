//! Sessions that were ended: a cookie that was copied before is of no use afterwards, at no instance.
//!
//! Sessions are stored nowhere, so those that were ended are, until they would have ended by themselves. Every instance
//! reads them again when their version is another one. While the engine does not answer, the last known ones count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use crate::clock::Timestamp;
use crate::store::{EngineError, Shared, SharedChange, SharedEntries, SharedStore};

/// The most that are kept; those that would end first leave first.
const MAX_ENDED: usize = 1000;
/// How often a change is tried again while other instances make one.
const ATTEMPTS: usize = 20;

pub(super) struct EndedSessions {
    store: Arc<dyn SharedStore>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    version: Option<String>,
    /// By the digests of cookies: when they would have ended, in seconds.
    ends: HashMap<String, i64>,
}

impl EndedSessions {
    pub fn new(store: Arc<dyn SharedStore>) -> EndedSessions {
        EndedSessions { store, known: Mutex::default() }
    }

    pub async fn contains(&self, cookie: &str) -> bool {
        if let Err(error) = self.refresh().await {
            tracing::debug!("the sessions that were ended are those known before: {error}");
        }
        self.known().ends.contains_key(&name_of(cookie))
    }

    /// Ends a session that would end at this second.
    pub async fn add(&self, cookie: &str, ends: i64, now: Timestamp) -> Result<(), EngineError> {
        for _ in 0..ATTEMPTS {
            self.refresh().await?;
            let change = self.known().with(name_of(cookie), ends, now);
            if self.store.change_shared(Shared::Sessions, &change).await? {
                return self.refresh().await;
            }
        }
        let why = format!("others ended sessions {ATTEMPTS} times meanwhile");
        Err(EngineError::Unavailable(why))
    }

    async fn refresh(&self) -> Result<(), EngineError> {
        let version = self.store.shared_version(Shared::Sessions).await?;
        if version == self.known().version {
            return Ok(());
        }
        let SharedEntries { version, entries } = self.store.shared(Shared::Sessions).await?;
        let ends = entries.into_iter().filter_map(|(name, ends)| Some((name, ends.parse().ok()?))).collect();
        *self.known() = Known { version, ends };
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl Known {
    /// The change that adds one, and forgets those that are over.
    fn with(&self, name: String, ends: i64, now: Timestamp) -> SharedChange {
        let seconds = now.as_millis() / 1000;
        let mut kept: Vec<(&String, i64)> = self.ends.iter().map(|(name, ends)| (name, *ends)).collect();
        kept.sort_by_key(|(_, ends)| -ends);
        let is_over = |(at, (_, ends)): &(usize, &(&String, i64))| *ends <= seconds || at + 1 >= MAX_ENDED;
        let forget = kept.iter().enumerate().filter(is_over).map(|(_, (name, _))| (*name).clone()).collect();
        SharedChange { version: self.version.clone(), write: vec![(name, ends.to_string())], forget }
    }
}

/// Who reads the engine learns no cookie.
fn name_of(cookie: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, cookie.as_bytes()).as_ref())
}
