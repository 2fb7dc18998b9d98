//! Silences and blind intervals that a receiver was not notified of ("unnotified"): their returns are left out of its
//! deliveries.
//!
//! A dead letter that is delivered again waits behind the other notifications of its group. Its silences are unnotified
//! until it is leased, so the returns before it are left out, and those behind it are delivered.

use std::collections::HashMap;

use super::notification::blindness;
use super::{Delivery, Group};
use crate::presence::{Interval, OfflineRecord};
use crate::routing::is_of_root;

/// Why a receiver was not notified of a silence, or of a blind interval that lasted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unnotified {
    /// Its notification, with this id, became a dead letter.
    Dead(String),
    /// The receiver was absent, and the silence was over when the receiver was configured again.
    Past,
}

impl Unnotified {
    /// The stored value for [`Unnotified::Past`].
    pub const PAST: &str = "-";

    /// From the stored value: the id of a dead letter, or [`Unnotified::PAST`].
    pub fn of(stored: String) -> Unnotified {
        if stored == Unnotified::PAST { Unnotified::Past } else { Unnotified::Dead(stored) }
    }
}

impl Delivery {
    /// This delivery without the past silences among the unnotified, and without the returns and the reminders of all
    /// unnotified silences.
    pub(super) fn without(mut self, unnotified: &HashMap<String, Unnotified>) -> Delivery {
        let is_past = |name: String| unnotified.get(&name) == Some(&Unnotified::Past);
        let is_left_out =
            |name: String| if self.reminder { unnotified.contains_key(&name) } else { is_past(name) };
        self.offline.retain(|record| !is_left_out(silence_in(&self.group, record)));
        self.blind.retain(|interval| !is_past(blindness_in(&self.group, interval)));
        self.online.retain(|record| !unnotified.contains_key(&silence_in(&self.group, record)));
        self
    }

    /// The names of its silences, as names of unnotified silences.
    pub(super) fn silences(&self) -> Vec<String> {
        self.offline.iter().map(|record| silence_in(&self.group, record)).collect()
    }

    /// The names of the silences that its receiver is not notified of if the delivery is given up. None for a
    /// reminder: the receiver was notified of its silences before.
    pub(super) fn silences_lost(&self) -> Vec<String> {
        if self.reminder { Vec::new() } else { self.silences() }
    }

    /// The silences that its receiver was notified of before: the silences of returns, and those of a reminder.
    pub(super) fn notified_before(&self) -> impl Iterator<Item = &OfflineRecord> {
        self.online.iter().chain(self.offline.iter().filter(|_| self.reminder))
    }

    pub fn is_empty(&self) -> bool {
        let has_records = !self.offline.is_empty() || !self.online.is_empty();
        !has_records && self.blind.is_empty() && self.timers.is_empty()
    }
}

/// The name of a blind interval in the table of unnotified silences. It contains the group, because the fleet and a
/// kind may be blind from the same moment on.
pub(super) fn blindness_in(group: &Group, interval: &Interval) -> String {
    format!("{} {}", blindness(interval), group.key)
}

/// The name of a silence in the table of unnotified silences. In the group of a route other than the root it contains
/// the group: a receiver of two routes may have been notified by the other route.
pub(super) fn silence_in(group: &Group, record: &OfflineRecord) -> String {
    let name = silence(record);
    if is_of_root(&group.key) { name } else { format!("{name} {}", group.key) }
}

/// The name of a silence: one opening of a record. A record may be opened twice.
pub(super) fn silence(record: &OfflineRecord) -> String {
    format!("{} {}", record.detected_at.as_millis(), record.id)
}

/// Deliveries without the returns of unnotified silences, and without past unnotified silences.
pub(super) struct LeftOut {
    pub deliveries: Vec<Delivery>,
    /// The silences of which the receiver is notified now: their dead letter is among the deliveries.
    pub notified: Vec<UnnotifiedSilence>,
    /// The silences whose returns were the last members of a delivery: nothing else needs these entries.
    pub over: Vec<UnnotifiedSilence>,
}

/// A silence that a receiver was not notified of.
pub(super) struct UnnotifiedSilence {
    /// The key of its group.
    pub group: String,
    /// Its name in the table of unnotified silences.
    pub name: String,
}

/// `deliveries`: all deliveries of one group, in order.
pub(super) fn left_out(deliveries: Vec<Delivery>, mut unnotified: HashMap<String, Unnotified>) -> LeftOut {
    let mut left =
        LeftOut { deliveries: Vec::with_capacity(deliveries.len()), notified: Vec::new(), over: Vec::new() };
    for delivery in deliveries {
        if unnotified.is_empty() {
            left.deliveries.push(delivery);
            continue;
        }
        let (group, own) = (delivery.group.clone(), Unnotified::Dead(delivery.notification().to_owned()));
        let named = |name| UnnotifiedSilence { group: group.key.clone(), name };
        for name in delivery.silences_lost() {
            if unnotified.get(&name) == Some(&own) {
                unnotified.remove(&name);
                left.notified.push(named(name));
            }
        }
        let returns: Vec<String> = delivery.online.iter().map(|record| silence_in(&group, record)).collect();
        let delivery = delivery.without(&unnotified);
        if delivery.is_empty() {
            left.over.extend(returns.into_iter().map(named));
        }
        left.deliveries.push(delivery);
    }
    left
}
