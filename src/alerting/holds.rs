//! Holds of notifications: inhibition and alert silences hold single silences, the mass-offline breaker
//! holds all groups but those of blindness.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::fleet::{Inhibitions, MassBreaker, Silences};
use crate::presence::Trip;
use crate::routing::Destinations;
use crate::store::Result;

#[derive(Clone)]
pub(super) struct Holds {
    pub inhibitions: Arc<Inhibitions>,
    pub breaker: Arc<MassBreaker>,
    pub silences: Arc<Silences>,
}

impl Holds {
    /// The destinations at `now`.
    pub async fn at(&self, destinations: &Destinations, now: Timestamp) -> Result<Destinations> {
        let trip = self.breaker.held().await?;
        self.with(trip.as_ref(), destinations, now).await
    }

    /// The destinations at `now`, with a trip of the breaker that the caller has read.
    pub async fn with(
        &self,
        trip: Option<&Trip>,
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<Destinations> {
        let hold = trip.map(|trip| trip.holds_until(now));
        let inhibitors = self.inhibitions.current().await?;
        let silences = self.silences.cached().await?;
        Ok(destinations.at(now).with_inhibitors(inhibitors).with_silences(silences).with_hold(hold))
    }
}
