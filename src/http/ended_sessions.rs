//! Sessions that users ended by logging out: a stolen copy of the cookie is refused afterwards, at every instance.
//!
//! Rollcall stores no sessions, only the ended ones, until they would have expired anyway. Every instance reads the
//! list when its version has changed. While the engine does not answer, an instance uses the last list that it read.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::fleet::{Changed, Collection, DocumentsByName};
use crate::store::{Cells, Documents, EngineError, Table, TableValue};

/// The most ended sessions that are stored; beyond it, the sessions that expire first are dropped.
const MAX_ENDED: usize = 1000;

/// The expiry time of an ended session, in seconds since 1970.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
struct EndedSession(i64);

impl TableValue for EndedSession {
    /// The digest of a session's cookie.
    type Name = String;
    const TABLE: Table = Table::Sessions;
}

pub(super) struct EndedSessions(Collection<EndedSession, DocumentsByName<EndedSession>>);

impl EndedSessions {
    pub fn new(cells: Arc<dyn Cells>) -> EndedSessions {
        EndedSessions(Collection::new(Documents::new(cells), |ended| ended))
    }

    pub async fn contains(&self, cookie: &str) -> bool {
        let known = match self.0.current().await {
            Ok(known) => Some(known),
            Err(error) => {
                tracing::debug!("cannot read the ended sessions, using the last known ones: {error}");
                self.0.cached()
            }
        };
        known.is_some_and(|known| known.contains_key(&name_of(cookie)))
    }

    /// Ends a session that would otherwise expire at the second `ends`.
    pub async fn add(&self, cookie: &str, ends: i64, now: Timestamp) -> Result<(), EngineError> {
        let name = name_of(cookie);
        self.0
            .change(|known| {
                let write = [(name.clone(), EndedSession(ends))].into();
                Ok(Some(Changed { write, forget: over(known, now), with: None }))
            })
            .await
    }
}

/// The names to drop: expired sessions, and those beyond [`MAX_ENDED`].
fn over(known: &DocumentsByName<EndedSession>, now: Timestamp) -> Vec<String> {
    let seconds = now.as_millis() / 1000;
    let mut kept: Vec<(&String, i64)> =
        known.iter().map(|(name, EndedSession(ends))| (name, *ends)).collect();
    kept.sort_by_key(|(_, ends)| -ends);
    let is_over = |(at, (_, ends)): &(usize, &(&String, i64))| *ends <= seconds || at + 1 >= MAX_ENDED;
    kept.iter().enumerate().filter(is_over).map(|(_, (name, _))| (*name).clone()).collect()
}

/// The name is a digest, so that a reader of the engine learns no cookie.
fn name_of(cookie: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, cookie.as_bytes()).as_ref())
}
