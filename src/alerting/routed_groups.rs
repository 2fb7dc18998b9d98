//! The groups of events; the routes, holds and flapping decide which of them an event joins, and when.

use std::sync::Arc;

use super::holds::Holds;
use crate::clock::Timestamp;
use crate::fleet::FlapDetector;
use crate::routing::{Destinations, Routes};
use crate::store::{Queries, Result, StoredGroups};

#[derive(Clone)]
pub(super) struct RoutedGroups {
    pub routes: Routes,
    /// Without holds.
    pub destinations: Destinations,
    pub groups: StoredGroups,
    /// For open records.
    pub queries: Arc<dyn Queries>,
    pub holds: Holds,
    pub flapping: Arc<FlapDetector>,
}

impl RoutedGroups {
    /// The destinations at `now`.
    pub async fn destinations_at(&self, now: Timestamp) -> Result<Destinations> {
        self.holds.at(&self.destinations, now).await
    }

    /// The destinations as of now, with alert silences that an operator began a moment ago, perhaps on another
    /// instance.
    pub async fn current_destinations(&self, now: Timestamp) -> Result<Destinations> {
        self.holds.silences.current().await?;
        self.destinations_at(now).await
    }
}
