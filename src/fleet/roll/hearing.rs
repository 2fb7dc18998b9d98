//! How far Rollcall has heard: read from the store, advanced by canaries.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Roll;
use super::lost_connections::LostConnection;
use crate::clock::Timestamp;
use crate::presence::{BrokerName, Hearing, Kind, Probed, RemovedFilter};
use crate::store::{Advance, Gap, Result, ShareMember, Subscription};

/// Round trips by which a check may run later than the moment that the previous check set: to write that moment, to
/// read the index, to read the unit, and for a unit that comes due during a read of the index to wait for the next
/// one.
const LATE_BY: u32 = 4;

/// How blindness is measured, and how much hearing is owed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HearingConfig {
    /// Two canaries further apart than this enclose a blind interval.
    pub gap: Duration,
    /// Whether the gap shrinks with the shortest timeout of a unit.
    pub follows: bool,
    /// The most hearing that is owed after a blind interval.
    pub settle: Duration,
    /// Operators are notified of blind intervals longer than this.
    pub tell_after: Duration,
}

/// How far Rollcall has heard, as this instance knows it.
#[derive(Default)]
pub(super) struct CurrentHearing {
    hearing: Arc<Hearing>,
    /// The filters that are no longer configured and hold back their kinds.
    removed: Arc<[RemovedFilter]>,
    /// The read that this copy comes from.
    read: ReadNumber,
}

impl CurrentHearing {
    /// Whether no later read was faster than this one.
    fn takes(&self, read: ReadNumber) -> bool {
        self.read <= read
    }
}

/// The number of a read of the hearing, taken before it began. Two reads may overlap, and the read that began first may
/// end last: it must not set the copy back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadNumber(u64);

impl Roll {
    /// Two canaries further apart than this enclose a blind interval.
    pub fn gap(&self) -> Duration {
        self.pace.gap()
    }

    /// How far Rollcall has heard, as of the last [`Roll::refresh_hearing`] or canary.
    pub fn hearing(&self) -> Arc<Hearing> {
        self.heard.read().hearing.clone()
    }

    /// The same for readers that ask how a time was spent: blind time that lasts now counts as blind, too. Deadlines are
    /// decided without it, because messages of that time may still arrive.
    pub fn hearing_so_far(&self) -> Hearing {
        let hearing = (*self.hearing()).clone();
        hearing.with_lasting(self.telemetry.is_blind(), |kind| self.late_of(kind))
    }

    /// The filters that are no longer configured and hold back their kinds, as of the same moment.
    pub fn removed_filters(&self) -> Arc<[RemovedFilter]> {
        self.heard.read().removed.clone()
    }

    /// Waits until Rollcall has heard further than before.
    pub async fn heard_more(&self) {
        self.heard_more.notified().await;
    }

    /// Reads from the engine how far Rollcall has heard.
    pub async fn refresh_hearing(&self) -> Result<Arc<Hearing>> {
        let read = self.begin_hearing();
        Ok(self.keep_hearing(self.engine.hearing().await?, read))
    }

    /// Called before a read of the hearing begins.
    pub(super) fn begin_hearing(&self) -> ReadNumber {
        ReadNumber(self.hearing_reads.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Returns the hearing that was read, and stores it unless a later read was faster.
    pub(super) fn keep_hearing(&self, hearing: Hearing, read: ReadNumber) -> Arc<Hearing> {
        let (settle, delay) = (self.config.settle, LATE_BY * self.round_trip());
        let hearing = Hearing { settle, delay, ..hearing }.by_filters(&self.filters);
        let hearing = hearing.by_brokers(&self.filters, &self.brokers);
        let rules = self.rules();
        let timeout = |kind: &Kind| rules.get(kind).map_or(Duration::ZERO, |rules| rules.policy.timeout);
        let removed = hearing.removed(&self.filters, timeout);
        let hearing = hearing.held_back(&removed).over_http(rules.keys());
        // Cut off under the lock, so that a connection that is lost meanwhile stays noted.
        let mut current = self.heard.write();
        let hearing = Arc::new(hearing.cut_off(&self.lost.brokers()));
        if !current.takes(read) {
            return hearing;
        }
        let before = &current.hearing;
        let of_kind = |(kind, of_kind): (&Kind, &Hearing)| {
            let at = |(broker, at): (&BrokerName, &Hearing)| at.heard > before.at(kind, Some(broker)).heard;
            of_kind.heard > before.of(kind).heard || of_kind.brokers.iter().any(at)
        };
        let further = hearing.heard > before.heard || hearing.kinds.iter().any(of_kind);
        *current = CurrentHearing { hearing: hearing.clone(), removed: removed.into(), read };
        drop(current);
        if further {
            self.heard_more.notify_one();
        }
        hearing
    }

    /// Notes that a canary of a plain subscription that was sent at `sent_at` was recorded, with everything before it
    /// and a probe of each filter.
    pub async fn canary_returned(&self, sent_at: Timestamp) -> Result<()> {
        let probed = Probed::all(&self.filters, sent_at, self.pace.gap());
        let canary = (sent_at, self.pace.gap());
        self.canary_of(&Subscription::Plain, canary, &probed, sent_at).await.map(|_| ())
    }

    /// Notes that this subscription recorded a canary that was sent at `sent_at`, and everything that was sent to it
    /// before. Up to `unbroken` before the canary, the subscription missed nothing since its last canary. `probed`:
    /// the proofs of probes that came before the canary. That the engine answers at `now` proves that requests over
    /// HTTP are recorded. `false`: the member does not attend (any more).
    pub async fn canary_of(
        &self,
        subscription: &Subscription,
        (sent_at, unbroken): (Timestamp, Duration),
        probed: &[Probed],
        now: Timestamp,
    ) -> Result<bool> {
        let gap = Gap { blind: unbroken, tell_after: self.config.tell_after };
        let read = self.begin_hearing();
        let mut proofs = Probed::over_http(self.rules().keys(), now, self.pace.gap() + self.round_trip());
        proofs.extend_from_slice(probed);
        let prove = self.engine.prove(&proofs);
        // In this order: an instance that reads that the fleet was heard further reads the same of its kinds. Both
        // are sent at once, because the engine may be far away.
        let (proved, advanced) =
            tokio::join!(prove, self.engine.advance_and_hear(subscription, sent_at, gap));
        proved?;
        let (advance, hearing) = advanced?;
        let Advance::Heard(blind) = advance else { return Ok(false) };
        self.lost.proved(subscription);
        if let Some(interval) = blind {
            self.telemetry.was_blind(&interval);
            self.outbox_grew.notify_one();
        }
        self.keep_hearing(hearing, read);
        Ok(true)
    }

    /// Notes that the connection of a client with this number is lost, or that the client's first connection, with
    /// the next number, does not hear yet. `broker`: its broker, if the fleet has several.
    pub fn connection_lost(&self, client_id: &str, broker: Option<&BrokerName>, number: u64) {
        self.lost.insert(client_id, LostConnection { broker: broker.cloned(), number });
        let mut current = self.heard.write();
        current.hearing = Arc::new((*current.hearing).clone().cut_off(&self.lost.brokers()));
    }

    /// The key that signs the canaries of the fleet.
    pub fn key(&self) -> &str {
        self.engine.key()
    }

    /// Up to when a session of the broker has heard, if that is known.
    pub async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>> {
        self.engine.heard_by(client_id).await
    }

    /// Begins a member of a shared subscription: see [`HearingStore::attend`](crate::store::HearingStore::attend).
    pub async fn attend(&self, member: &ShareMember, now: Timestamp, release: Duration) -> Result<()> {
        self.engine.attend(member, now, release).await
    }

    /// Ends a member of a shared subscription: see [`HearingStore::depart`](crate::store::HearingStore::depart).
    pub async fn depart(&self, member: &ShareMember, dropped: Option<Timestamp>) -> Result<bool> {
        self.engine.depart(member, dropped).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_read_does_not_set_the_hearing_back() {
        let (slow, fast) = (ReadNumber(1), ReadNumber(2));
        let mut current = CurrentHearing::default();
        assert!(current.takes(slow), "the first");
        current.read = fast;
        assert!(!current.takes(slow) && current.takes(fast) && current.takes(ReadNumber(3)));
    }
}
