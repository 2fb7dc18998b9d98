//! Silences that may be lost though receivers acknowledged them.

use std::collections::HashSet;

use async_trait::async_trait;

use super::{Group, Result};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::routing::Destinations;

/// A silence of which receivers acknowledged the notification.
#[derive(Clone, Debug, PartialEq)]
pub struct AcknowledgedSilence {
    /// As receivers were notified of it.
    pub record: OfflineRecord,
    /// The group of the notification.
    pub group: Group,
    pub receivers: Vec<String>,
}

/// A silence that is marked as notified in its group.
#[derive(Clone, Debug, PartialEq)]
pub struct NotifiedMark {
    pub silence: AcknowledgedSilence,
    /// The groups of the record, stored if none are.
    pub groups: Vec<Group>,
    /// Receivers of the group that have not acknowledged it and are notified of it.
    pub rest: Vec<String>,
}

/// Finds notified silences that a failover lost, and restores them.
#[async_trait]
pub trait NotifiedSilences: Send + Sync {
    /// Silences of which receivers acknowledged the notification to this process lately, and which the engine may have
    /// lost since, because a replica took over; none where there are no replicas. They are answered again until
    /// [`NotifiedSilences::resolve_doubtful`]. While there are none, the other instances see that this one has
    /// compared.
    async fn doubtful(&self) -> Result<Vec<AcknowledgedSilence>> {
        Ok(Vec::new())
    }

    /// Ends when silences may have become doubtful since the last [`NotifiedSilences::doubtful`].
    async fn wait_for_doubtful(&self) {
        std::future::pending().await
    }

    /// Marks members of groups as notified, so that the return of each silence is notified to its receivers: members
    /// that are lost and, if no receiver is left to be notified, those that wait for a notification. To members that
    /// are marked it adds the receivers. Answers how many changed. Safe to repeat.
    async fn mark_notified(
        &self,
        _markings: &[NotifiedMark],
        _destinations: &Destinations,
        _now: Timestamp,
    ) -> Result<usize> {
        Ok(0)
    }

    /// The engine has the silences of the last [`NotifiedSilences::doubtful`] again, but for those in `later`.
    fn resolve_doubtful(&self, _later: &HashSet<RecordId>) {}
}
