//! Silences and blind intervals that a receiver was not notified of ("untold"): their returns are left out of its
//! deliveries.

use std::collections::HashMap;

use super::notification::blindness;
use super::{AlertStore, Delivery, Group, Result};
use crate::clock::Timestamp;
use crate::presence::{Interval, OfflineRecord};
use crate::telemetry::Telemetry;

/// Why a receiver was not notified of a silence, or of a blind interval that lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untold {
    /// Its notification became a dead letter.
    Dead,
    /// The receiver was absent, and the silence was over when the receiver was configured again.
    Past,
}

impl Untold {
    /// The stored value for [`Untold::Past`].
    pub const PAST: &str = "-";

    /// From the stored value: the id of a dead letter, or [`Untold::PAST`].
    pub fn of(stored: &str) -> Untold {
        if stored == Untold::PAST { Untold::Past } else { Untold::Dead }
    }
}

impl Delivery {
    /// This delivery without untold silences that are past, and without the returns of all untold silences.
    pub(super) fn without(mut self, untold: &HashMap<String, Untold>) -> Delivery {
        let is_past = |name: String| untold.get(&name) == Some(&Untold::Past);
        self.offline.retain(|record| !is_past(silence(record)));
        self.blind.retain(|interval| !is_past(blindness_in(&self.group, interval)));
        self.online.retain(|record| !untold.contains_key(&silence(record)));
        self
    }

    /// Whether the delivery has no members.
    pub(super) fn is_empty(&self) -> bool {
        self.offline.is_empty() && self.online.is_empty() && self.blind.is_empty()
    }
}

/// The name of a blind interval among untold ones; it contains the group, because the fleet and a kind may be blind
/// from the same moment on.
pub(super) fn blindness_in(group: &Group, interval: &Interval) -> String {
    format!("{} {}", blindness(interval), group.key)
}

/// The name of a silence: one opening of a record. A record may be opened twice.
pub(super) fn silence(record: &OfflineRecord) -> String {
    format!("{} {}", record.detected_at.as_millis(), record.id)
}

/// Leaves out the returns of untold silences, and untold silences that are past. A delivery without members is ended.
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
