//! The counts of this instance's units. One count serves the metrics, the summary, pages and streams of the same
//! moment.

use std::sync::Arc;

use super::PageSources;
use super::http_error::HttpError;
use super::scans::Scans;
use super::shared_answers::{MaxAge, SharedAnswers};
use crate::clock::Clock;
use crate::fleet::mirror::UnitSummary;
use crate::fleet::{Mirror, Roll};

/// Counts the units of this instance. Cheap to share.
#[derive(Clone)]
pub(super) struct UnitCounts {
    mirror: Arc<Mirror>,
    roll: Arc<Roll>,
    scans: Scans,
    last: SharedAnswers<UnitSummary>,
    clock: Clock,
}

impl UnitCounts {
    pub fn new(sources: &PageSources, scans: Scans) -> UnitCounts {
        UnitCounts {
            mirror: sources.mirror.clone(),
            roll: sources.roll.clone(),
            scans,
            last: SharedAnswers::new(1),
            clock: sources.clock.clone(),
        }
    }

    /// The greatest age of a count. In a small fleet a count includes every change before the request.
    pub fn age(&self) -> MaxAge {
        if self.mirror.is_large() { MaxAge::LARGE_FLEET } else { MaxAge::EXACT }
    }

    pub async fn units(&self, age: MaxAge) -> Result<Arc<UnitSummary>, HttpError> {
        let (mirror, roll, scans, clock) =
            (self.mirror.clone(), self.roll.clone(), self.scans.clone(), self.clock.clone());
        let make = async move { scans.run(move || mirror.summary(&roll.hearing(), clock.now())).await };
        self.last.get("", age, make).await
    }
}
