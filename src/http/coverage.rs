//! How many units each silence covers: the sum of the counts of all instances, see [`crate::fleet::coverage`]. A
//! request only reads numbers; only a change counts.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use super::PageSources;
use super::peers::Peers;
use crate::fleet::Ownership;
use crate::fleet::coverage::Coverage;
use crate::routing::{AlertSilence, SilenceId};
use crate::store::Queries;

/// Reads the numbers. Cheap to share.
#[derive(Clone)]
pub(super) struct CoveredUnits {
    coverage: Arc<Coverage>,
    ownership: Ownership,
    peers: Peers,
    queries: Arc<dyn Queries>,
}

/// The sender of a request for the numbers.
pub(super) enum Asked {
    /// Another instance, which needs the units of this instance only.
    ByPeer,
    /// A client, which needs the units of the fleet: this instance requests the parts of the others on the same path.
    At(String),
}

/// The answer of another instance: for a page of silences, or for one silence.
#[derive(Deserialize)]
#[serde(untagged)]
enum CoveragePart {
    Page { silences: Vec<SilenceCount> },
    One(SilenceCount),
}

#[derive(Deserialize)]
struct SilenceCount {
    id: SilenceId,
    units: Option<u64>,
}

impl CoveredUnits {
    pub fn new(sources: &PageSources) -> CoveredUnits {
        CoveredUnits {
            coverage: sources.coverage.clone(),
            ownership: sources.ownership.clone(),
            peers: Peers::new(sources),
            queries: sources.records.clone(),
        }
    }

    /// The number of units that each of these silences covers; silences that are not counted yet are left out.
    pub async fn of(&self, silences: &[&AlertSilence], asked: &Asked) -> HashMap<SilenceId, u64> {
        let partitions = self.ownership.view().partitions.clone();
        let own = |one: &AlertSilence| self.coverage.of_partitions(one, &partitions);
        let Asked::At(path) = asked else {
            return silences.iter().filter_map(|one| Some((one.id, own(one)?))).collect();
        };
        if silences.is_empty() {
            return HashMap::new();
        }
        let answers = self.peers.ask::<CoveragePart>(path).await;
        let parts: Vec<HashMap<SilenceId, u64>> =
            answers.parts.into_iter().map(CoveragePart::counts).collect();
        let of_fleet = |one: &AlertSilence| {
            let others = parts.iter().map(|part| part.get(&one.id).copied()).sum::<Option<u64>>()?;
            answers.missing.is_empty().then_some(own(one)? + others)
        };
        let counted =
            |one: &&AlertSilence| Some((one.id, of_fleet(one).or_else(|| self.coverage.when_made(one))?));
        silences.iter().filter_map(counted).collect()
    }

    /// Counts the units of a new silence; `None` if that takes too long. It is then counted later.
    pub async fn count(&self, made: SilenceId) -> Option<u64> {
        self.coverage.count(self.queries.clone(), made).await
    }
}

impl CoveragePart {
    fn counts(self) -> HashMap<SilenceId, u64> {
        let counts = match self {
            CoveragePart::Page { silences } => silences,
            CoveragePart::One(one) => vec![one],
        };
        counts.into_iter().filter_map(|one| Some((one.id, one.units?))).collect()
    }
}
