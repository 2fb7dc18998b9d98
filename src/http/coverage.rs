//! How many units each silence covers, for lists and pages that ask for that again and again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Sources;
use super::problem::Problem;
use crate::fleet::coverage::covered;
use crate::routing::{AlertSilence, SilenceId};
use crate::store::Queries;

/// How long a count is not made again.
const FRESH: Duration = Duration::from_secs(30);

/// Counts units. Cheap to share.
#[derive(Clone)]
pub(super) struct Coverage {
    queries: Arc<dyn Queries>,
    kept: Arc<Mutex<HashMap<SilenceId, Counted>>>,
    /// One count at a time; the next one finds it.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone, Copy)]
struct Counted {
    /// `None`: the fleet is too large to be counted in time.
    units: Option<u64>,
    at: Instant,
}

impl Coverage {
    pub fn new(sources: &Sources) -> Coverage {
        Coverage { queries: sources.records.clone(), kept: Arc::default(), turn: Arc::default() }
    }

    /// How many units each of these silences covers; one that could not be counted in time is not in it.
    pub async fn of(&self, silences: &[&AlertSilence]) -> Result<HashMap<SilenceId, u64>, Problem> {
        let _turn = self.turn.lock().await;
        let now = Instant::now();
        let due: Vec<AlertSilence> = {
            let mut kept = self.kept();
            kept.retain(|_, counted| now - counted.at < FRESH);
            silences.iter().filter(|one| !kept.contains_key(&one.id)).map(|one| (*one).clone()).collect()
        };
        let counts = covered(self.queries.clone(), &due).await?;
        let mut kept = self.kept();
        for silence in &due {
            let units = counts.as_ref().and_then(|counts| counts.get(&silence.id).copied());
            kept.insert(silence.id, Counted { units, at: now });
        }
        let found = |one: &&AlertSilence| Some((one.id, kept.get(&one.id)?.units?));
        Ok(silences.iter().filter_map(found).collect())
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<SilenceId, Counted>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
