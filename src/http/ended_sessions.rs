//! Sessions that were ended: a cookie that was copied before is of no use afterwards, at no instance.
//!
//! Sessions are stored nowhere, so those that were ended are, until they would have ended by themselves. Every instance
//! reads them again when their version is another one. While the engine does not answer, the last known ones count.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::fleet::{Changed, Collection, Contents};
use crate::store::{Cells, Content, Documents, EngineError, Table};

/// The most that are kept; those that would end first leave first.
const MAX_ENDED: usize = 1000;

/// When a session that was ended would have ended, in seconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
struct Ended(i64);

impl Content for Ended {
    /// The digest of its cookie.
    type Name = String;
    const TABLE: Table = Table::Sessions;
}

pub(super) struct EndedSessions(Collection<Ended, Contents<Ended>>);

impl EndedSessions {
    pub fn new(cells: Arc<dyn Cells>) -> EndedSessions {
        EndedSessions(Collection::new(Documents::new(cells), |ended| ended))
    }

    pub async fn contains(&self, cookie: &str) -> bool {
        let known = match self.0.current().await {
            Ok(known) => Some(known),
            Err(error) => {
                tracing::debug!("the sessions that were ended are those known before: {error}");
                self.0.cached()
            }
        };
        known.is_some_and(|known| known.contains_key(&name_of(cookie)))
    }

    /// Ends a session that would end at this second.
    pub async fn add(&self, cookie: &str, ends: i64, now: Timestamp) -> Result<(), EngineError> {
        let name = name_of(cookie);
        self.0
            .change(|known| {
                let write = [(name.clone(), Ended(ends))].into();
                Ok(Some(Changed { write, forget: over(known, now), with: None }))
            })
            .await
    }
}

/// Those that are over, and those beyond the most that are kept.
fn over(known: &Contents<Ended>, now: Timestamp) -> Vec<String> {
    let seconds = now.as_millis() / 1000;
    let mut kept: Vec<(&String, i64)> = known.iter().map(|(name, Ended(ends))| (name, *ends)).collect();
    kept.sort_by_key(|(_, ends)| -ends);
    let is_over = |(at, (_, ends)): &(usize, &(&String, i64))| *ends <= seconds || at + 1 >= MAX_ENDED;
    kept.iter().enumerate().filter(is_over).map(|(_, (name, _))| (*name).clone()).collect()
}

/// Who reads the engine learns no cookie.
fn name_of(cookie: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, cookie.as_bytes()).as_ref())
}
