//! Alert silences as this instance knows them, and their changes.
//!
//! The store has all of them; this instance holds a copy and reads them again only when their version has changed. A
//! change is decided by [`crate::routing::alert_silence`] from the copy, and the store writes it only if the version
//! is still that of the copy. Several instances may change them at the same time.
//!
//! Alert silences that ended long ago are removed with the next change.

use std::sync::Arc;

use super::collection::{Changed, Collection, DocumentsByName};
use crate::clock::Timestamp;
use crate::routing::alert_silence::{self, MAX_SILENCES, SilenceError, SilenceRequest};
use crate::routing::{AlertSilence, AlertSilences, MAX_KEPT, Matcher, SilenceId, held};
use crate::store::{AuditEntry, Audited, Cells, ChangeSet, Documents, EngineError, Table, TableValue};

/// The longest text of matchers in the audit, in bytes.
const MAX_AUDITED: usize = 1024;

/// The most alert silences that one change removes.
const MAX_FORGOTTEN: usize = 500;

/// Why alert silences are not changed.
#[derive(Debug, thiserror::Error)]
pub enum SilencesError {
    #[error(transparent)]
    Refused(#[from] SilenceError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl TableValue for AlertSilence {
    type Name = SilenceId;
    const TABLE: Table = Table::Silences;
}

/// Alert silences as this instance knows them.
pub struct Silences {
    documents: Documents,
    known: Collection<AlertSilence, AlertSilences>,
}

impl Silences {
    pub fn new(cells: Arc<dyn Cells>) -> Silences {
        let documents = Documents::new(cells);
        let known = Collection::new(documents.clone(), |silences: DocumentsByName<AlertSilence>| {
            silences.into_values().collect::<Vec<_>>().into()
        });
        Silences { documents, known }
    }

    /// All alert silences that are stored now, also expired ones.
    pub async fn current(&self) -> Result<Arc<AlertSilences>, EngineError> {
        self.known.current().await
    }

    /// The cached alert silences. The first call reads them.
    pub async fn cached(&self) -> Result<Arc<AlertSilences>, EngineError> {
        match self.known.cached() {
            Some(silences) => Ok(silences),
            None => self.current().await,
        }
    }

    /// Adds an alert silence or, with an id, changes one. Answers the id of the alert silence that is in force. `by`:
    /// the author, for the audit.
    pub async fn put(
        &self,
        id: Option<SilenceId>,
        wanted: SilenceRequest,
        by: &str,
        now: Timestamp,
    ) -> Result<SilenceId, SilencesError> {
        let fresh = SilenceId::of_random(rand::random());
        let has_expressions = wanted.matchers.iter().any(Matcher::has_expression);
        let decide = |stored: &[AlertSilence]| {
            // An alert silence whose end is moved takes no more memory than before.
            let is_known = || stored.iter().any(|silence| silence.matchers == wanted.matchers);
            if has_expressions && held() > MAX_KEPT && !is_known() {
                return Err(SilenceError::ManyExpressions);
            }
            alert_silence::put(stored, id, wanted.clone(), fresh, now)
        };
        let written = self.change(by, now, decide).await?;
        Ok(written.last().map_or(fresh, |silence| silence.id))
    }

    /// Ends an alert silence now. Answers whether it was not over yet.
    pub async fn expire(&self, id: SilenceId, author: &str, now: Timestamp) -> Result<bool, SilencesError> {
        let decide = |stored: &[AlertSilence]| {
            alert_silence::expire(stored, id, now).map(|ended| ended.into_iter().collect::<Vec<_>>())
        };
        Ok(!self.change(author, now, decide).await?.is_empty())
    }

    /// Moves the end of an alert silence to a later moment. Answers its end: an end that is later already stays.
    pub async fn extend(
        &self,
        id: SilenceId,
        ends_at: Timestamp,
        author: &str,
        now: Timestamp,
    ) -> Result<Timestamp, SilencesError> {
        if !alert_silence::is_author(author) {
            return Err(SilenceError::BadAuthor.into());
        }
        let decide = |stored: &[AlertSilence]| {
            alert_silence::extend(stored, id, ends_at, now).map(|extended| extended.into_iter().collect())
        };
        if let Some(extended) = self.change(author, now, decide).await?.last() {
            return Ok(extended.ends_at);
        }
        let known = self.cached().await?;
        Ok(known.iter().find(|silence| silence.id == id).map_or(ends_at, |silence| silence.ends_at))
    }

    /// Adds a change to the audit that belongs to no alert silence.
    pub async fn note(&self, entry: &AuditEntry) -> Result<(), EngineError> {
        let set = self.documents.audit(ChangeSet::of(self.documents.fleet()), entry)?;
        self.documents.write(&[set]).await?;
        self.documents.bound_audit().await
    }

    /// The last changes, newest first.
    pub async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>, EngineError> {
        self.documents.audited(limit).await
    }

    /// Writes the change that `decide` returns, unless it is empty.
    async fn change(
        &self,
        author: &str,
        now: Timestamp,
        decide: impl Fn(&[AlertSilence]) -> Result<Vec<AlertSilence>, SilenceError>,
    ) -> Result<Vec<AlertSilence>, SilencesError> {
        let mut written = Vec::new();
        let decided = |stored: &AlertSilences| {
            written = decide(stored)?;
            if written.is_empty() {
                return Ok(None);
            }
            let forget = forgotten(stored, &written, now);
            let added = written.iter().filter(|one| !stored.iter().any(|known| known.id == one.id)).count();
            if stored.len() - forget.len() + added > MAX_SILENCES {
                return Err(SilencesError::from(SilenceError::TooMany));
            }
            let mut with = ChangeSet::of(self.documents.fleet());
            for one in &written {
                with = self.documents.audit(with, &entry(one, stored, author, now))?;
            }
            let write = written.iter().map(|one| (one.id, one.clone())).collect();
            Ok(Some(Changed { write, forget, with: Some(with) }))
        };
        self.known.change(decided).await?;
        if !written.is_empty() {
            self.documents.bound_audit().await?;
        }
        Ok(written)
    }
}

/// The alert silences that ended long ago, and are not written now.
fn forgotten(stored: &[AlertSilence], write: &[AlertSilence], now: Timestamp) -> Vec<SilenceId> {
    let is_written = |id: SilenceId| write.iter().any(|one| one.id == id);
    let old = stored.iter().filter(|silence| silence.is_forgotten(now) && !is_written(silence.id));
    old.map(|silence| silence.id).take(MAX_FORGOTTEN).collect()
}

fn entry(silence: &AlertSilence, stored: &[AlertSilence], author: &str, now: Timestamp) -> AuditEntry {
    let change = match stored.iter().any(|known| known.id == silence.id) {
        _ if silence.ends_at <= now => Audited::SilenceExpired,
        true => Audited::SilenceChanged,
        false => Audited::SilenceAdded,
    };
    let matchers: Vec<String> = silence.matchers.iter().map(ToString::to_string).collect();
    let mut matchers = matchers.join(", ");
    if matchers.len() > MAX_AUDITED {
        matchers.truncate(matchers.floor_char_boundary(MAX_AUDITED));
        matchers.push('…');
    }
    let AlertSilence { starts_at, ends_at, comment, .. } = silence;
    AuditEntry {
        at: now,
        author: author.to_owned(),
        change,
        subject: silence.id.to_string(),
        text: format!("{matchers} from {starts_at} until {ends_at}: {comment}"),
    }
}
