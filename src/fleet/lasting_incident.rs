//! The incident of a group that lasts, as it is stored.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{Incident, Judgement};
use crate::store::{Table, TableValue};

/// The incident of a group that lasts, as receivers were notified of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastingIncident {
    pub incident: Incident,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Incident>,
    /// The notification that reports this state.
    pub notification: String,
    /// When the first notification of the incident was sealed.
    pub begun: Timestamp,
}

impl TableValue for LastingIncident {
    /// The key of the group.
    type Name = String;
    const TABLE: Table = Table::Incidents;
}

impl LastingIncident {
    pub fn judgement(&self) -> Judgement {
        Judgement { told: Some(self.incident.clone()), replaced: self.replaced.clone() }
    }
}
