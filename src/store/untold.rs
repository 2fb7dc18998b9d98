//! Silences, and blindness, that a receiver was not told: their returns are left out of what is told to it.

use std::collections::HashMap;

use super::notification::blindness;
use super::{AlertStore, Delivery, Group, Result};
use crate::clock::Timestamp;
use crate::presence::{Interval, OfflineRecord};
use crate::telemetry::Telemetry;

/// Why a receiver was not told a silence, or blindness that lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untold {
    /// It died as a dead letter.
    Dead,
    /// It was over when the receiver came back, which was not configured for a while.
    Past,
}

impl Untold {
    /// What stands in the place of a dead letter for what was over.
    pub const PAST: &str = "-";

    /// As it is stored: the id of a dead letter, or [`Untold::PAST`].
    pub fn of(stored: &str) -> Untold {
        if stored == Untold::PAST { Untold::Past } else { Untold::Dead }
    }
}

impl Delivery {
    /// What is left of it for a receiver that was not told these.
    pub(super) fn without(mut self, untold: &HashMap<String, Untold>) -> Delivery {
        let is_past = |name: String| untold.get(&name) == Some(&Untold::Past);
        self.offline.retain(|record| !is_past(silence(record)));
        self.blind.retain(|interval| !is_past(blindness_in(&self.group, interval)));
        self.online.retain(|record| !untold.contains_key(&silence(record)));
        self
    }

    /// Whether there is nothing to tell.
    pub(super) fn is_empty(&self) -> bool {
        self.offline.is_empty() && self.online.is_empty() && self.blind.is_empty()
    }
}

/// By what it is known among what a receiver was not told: the fleet and a kind may be blind from the same moment on.
pub(super) fn blindness_in(group: &Group, interval: &Interval) -> String {
    format!("{} {}", blindness(interval), group.key)
}

/// One opening of a record, the same when it is closed. A record may be opened twice.
pub(super) fn silence(record: &OfflineRecord) -> String {
    format!("{} {}", record.detected_at.as_millis(), record.id)
}

/// Leaves out the returns of units whose silence this receiver was not told, because it died as a dead
/// letter or was over before the receiver came back, and the latter themselves. A delivery with nothing left
/// to say is ended.
pub(super) async fn leave_out_untold(
    store: &dyn AlertStore,
    telemetry: &Telemetry,
    receiver: &str,
    leased: Vec<Delivery>,
    untold: &HashMap<String, Untold>,
    now: Timestamp,
) -> Result<Vec<Delivery>> {
    let (empty, full): (Vec<Delivery>, Vec<Delivery>) =
        leased.into_iter().map(|delivery| delivery.without(untold)).partition(Delivery::is_empty);
    if !empty.is_empty() {
        store.delivered(&empty, now).await?;
        telemetry.notifications_left_out(receiver, empty.len() as u64);
    }
    Ok(full)
}
