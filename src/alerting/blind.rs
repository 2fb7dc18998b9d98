//! Notifies operators of blindness while it lasts, and of its end.
//!
//! No unit is declared offline while nothing is heard, so operators have to know of blindness. A blind interval that is
//! longer than `hearing.tell_after` joins the group `blind` like any other event; its beginning identifies it: several
//! instances that notice it write the same. Its end joins when an interval is written to the ledger. An interval that
//! comes out shorter, because the broker had kept the messages of that time, is ended here.
//!
//! # Why a notification may go out without the engine
//! Notifications go through the engine, and the engine may be away. Then this instance delivers to its
//! receivers itself, once each, under the id that the engine would have given: another instance that is cut off
//! repeats it at most once, and a receiver can drop that. When the engine is back, it learns which receivers know.
//!
//! # A kind that is not heard
//! When the fleet is heard but one of its kinds is not, the same happens in a group of that kind. The group names the
//! kind, its topics and, in a fleet with several brokers, the broker. Any instance reads the end from the ledger of
//! the kind, so that operators learn of it even if the instance that noticed the beginning is gone.
//!
//! Only blindness of the kind alone counts: while the whole fleet is not heard, operators learn that once, not once
//! more for each kind.
//!
//! # After a start
//! An instance does not report blindness that began before its start while it lasts. With the first canary that blind
//! interval is over, and receivers are notified once of its end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;

use super::channel::{Channel, Failure, LastingBlindness, within};
use super::due::{DueWork, LoopName};
use super::fleet_notices::FleetNotices;
use super::group::{TOPICS, blind_group, group_of_kind};
use super::{ReceiverConfig, TICK};
use crate::clock::{Clock, Stopwatch, Timestamp, monotonic};
use crate::fleet::ReceiverHealths;
use crate::presence::{BrokerName, Filters, Hearing, Interval, Kind, Ledger};
use crate::store::{Delivery, Group, HearingStore, OutboxEvent, Result, notification_of};
use crate::telemetry::{DeliveryOutcome, Loop, Telemetry};

pub(super) struct BlindNotifier {
    /// Shorter blindness is not notified.
    pub after: Duration,
    /// The filters by which each kind is heard.
    pub filters: Filters,
    /// The brokers of a fleet that has several.
    pub brokers: Vec<BrokerName>,
    pub notices: FleetNotices,
    /// The receivers of its destination.
    pub receivers: Vec<(ReceiverConfig, Arc<dyn Channel>)>,
    pub hearing: Arc<dyn HearingStore>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    pub healths: Arc<ReceiverHealths>,
    /// The blindness that lasts and was notified, for receivers that forget it.
    pub lasting: watch::Sender<Vec<LastingBlindness>>,
}

pub(super) struct FleetBlindness {
    /// The start of this instance.
    since: Timestamp,
    heard: Option<Timestamp>,
    ongoing: Option<OngoingBlindness>,
    /// The last blindness that is over. The ledger may not have it, because the broker had kept the messages.
    last: Option<Interval>,
}

pub(super) struct KindBlindness {
    kind: Kind,
    /// The broker, if the fleet has several.
    broker: Option<BrokerName>,
    group: Group,
    /// Up to when it was heard, as far as the engine ever said.
    heard: Option<Timestamp>,
    /// The beginning of the blindness that lasts and was notified.
    ongoing: Option<Timestamp>,
    /// The beginnings of blind intervals whose end was notified, or needs no notification.
    ended: BTreeSet<Timestamp>,
}

/// How long after its end the blindness of a kind may still be notified: the ledger of the kind stores it that long.
const RECENT: Duration = Duration::from_secs(12 * 3600);

/// A blindness of the fleet that lasts and is notified.
struct OngoingBlindness {
    from: Timestamp,
    /// Since when receivers are notified of it.
    at: Timestamp,
    is_recorded: bool,
    /// Deliveries without the engine, by receiver.
    direct: Vec<DirectDelivery>,
}

struct DirectDelivery {
    is_done: bool,
    attempts: u32,
    next: Instant,
}

/// The blindness of a kind: one for each of its brokers if the fleet has several.
fn of_kind(kind: &Kind, filters: &[String], brokers: &[BrokerName]) -> Vec<KindBlindness> {
    let of = |broker: Option<&BrokerName>, filters: &[String]| KindBlindness {
        kind: kind.clone(),
        broker: broker.cloned(),
        group: group_of_kind(kind, broker, filters),
        heard: None,
        ongoing: None,
        ended: BTreeSet::new(),
    };
    let at = |broker: &BrokerName| {
        let here: Vec<String> = filters.iter().filter(|filter| broker.has_filter(filter)).cloned().collect();
        (!here.is_empty()).then(|| of(Some(broker), &here))
    };
    if brokers.is_empty() { vec![of(None, filters)] } else { brokers.iter().filter_map(at).collect() }
}

impl KindBlindness {
    /// Notes up to when the kind is heard, and answers the time since then in which the fleet was, at most since the start
    /// of this instance. An engine that lost its data knows nothing of the kind until its next probe, but this instance
    /// still does: otherwise all time since its start would be blind.
    fn unheard(&mut self, hearing: &Hearing, start: Timestamp) -> Interval {
        self.heard = hearing.at(&self.kind, self.broker.as_ref()).heard.or(self.heard);
        let from = self.heard.unwrap_or(start).max(start);
        Interval { from, to: hearing.heard.unwrap_or(from) }
    }
}

fn lasting(fleet: &FleetBlindness, kinds: &[KindBlindness]) -> Vec<LastingBlindness> {
    let since = |from| Interval { from, to: Timestamp::NEVER };
    let of_fleet = fleet.ongoing.as_ref();
    let of_fleet = of_fleet.map(|one| LastingBlindness { group: blind_group(), interval: since(one.from) });
    let of_kinds = kinds
        .iter()
        .filter_map(|one| Some(LastingBlindness { group: one.group.clone(), interval: since(one.ongoing?) }));
    of_fleet.into_iter().chain(of_kinds).collect()
}

impl DueWork for BlindNotifier {
    type Progress = (FleetBlindness, Vec<KindBlindness>);
    const REPORTED_AS: Option<LoopName> = Some((Loop::Dispatch, "blindness"));

    fn begin(&self) -> (FleetBlindness, Vec<KindBlindness>) {
        let fleet = FleetBlindness { since: self.clock.now(), heard: None, ongoing: None, last: None };
        let kinds = self.filters.iter().flat_map(|(kind, filters)| of_kind(kind, filters, &self.brokers));
        (fleet, kinds.collect())
    }

    async fn step(&self, (fleet, kinds): &mut (FleetBlindness, Vec<KindBlindness>)) -> Result<Duration> {
        let notified = self.notify(fleet, kinds).await;
        self.lasting.send_replace(lasting(fleet, kinds));
        notified.map(|()| TICK)
    }
}

impl BlindNotifier {
    /// Answers the first error of a notification. A notification that failed is tried again with the next step.
    async fn notify(&self, fleet: &mut FleetBlindness, kinds: &mut [KindBlindness]) -> Result<()> {
        // The loops that need the engine report that it is away.
        let hearing = self.hearing.hearing().await.ok();
        fleet.heard = hearing.as_ref().and_then(|hearing| hearing.heard).or(fleet.heard);
        // Where nothing was ever heard, blindness begins with the start of this instance.
        let (heard, now) = (fleet.heard.unwrap_or(fleet.since), self.clock.now());
        if now.since(heard.max(fleet.since)) <= self.after {
            let Some(hearing) = hearing else { return Ok(()) };
            let mut stepped = self.end_of_fleet(fleet, heard, &hearing, now).await;
            let hearing = hearing.by_filters(&self.filters).by_brokers(&self.filters, &self.brokers);
            for of_kind in kinds {
                stepped = stepped.and(self.notify_of_kind(of_kind, fleet, &hearing, now).await);
            }
            return stepped;
        }
        let mut stepped = Ok(());
        if let Some(hearing) = &hearing
            && fleet.ongoing.as_ref().is_some_and(|ongoing| ongoing.is_recorded && ongoing.from < heard)
        {
            // Another blindness began before the end of the last one was written.
            stepped = self.end_of_fleet(fleet, heard, hearing, now).await;
        }
        let ongoing = fleet.ongoing.get_or_insert_with(|| self.ongoing_since(heard, now));
        if hearing.is_some() && !ongoing.is_recorded {
            // The beginning from the engine is the same for all instances.
            ongoing.from = heard;
            let recorded = self.record(ongoing, now).await;
            ongoing.is_recorded = recorded.is_ok();
            stepped = stepped.and(recorded);
        }
        if !ongoing.is_recorded {
            self.deliver_directly(ongoing).await;
        }
        stepped
    }

    /// Writes the end of the fleet's blindness, if there is one. After an error the blindness still lasts for this
    /// instance.
    async fn end_of_fleet(
        &self,
        fleet: &mut FleetBlindness,
        heard: Timestamp,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Result<()> {
        if let Some(ongoing) = &fleet.ongoing {
            self.end(ongoing, heard, hearing, now).await?;
            fleet.last = Some(Interval { from: ongoing.from, to: heard });
            fleet.ongoing = None;
        }
        Ok(())
    }

    /// Notifies of the blindness of one kind, and of its end, while the fleet is heard.
    async fn notify_of_kind(
        &self,
        of_kind: &mut KindBlindness,
        fleet: &FleetBlindness,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Result<()> {
        let unheard = of_kind.unheard(hearing, fleet.since);
        let KindBlindness { kind, broker, group, heard, ongoing, ended } = of_kind;
        let (broker, from) = (broker.as_ref(), heard.unwrap_or(fleet.since));
        let of_fleet = hearing.ledger.with(fleet.last);
        let is_notified = |interval: &Interval| interval.length_outside(&of_fleet) > self.after;
        if is_notified(&unheard) {
            if ongoing.is_none() {
                let interval = Interval { from, to: Timestamp::NEVER };
                self.notices.join(group, interval, now).await?;
                *ongoing = Some(from);
                let topics = group.labels.get(TOPICS);
                let broker = broker.map(BrokerName::as_str);
                tracing::warn!(%kind, broker, %from, topics, "a kind is not heard for longer than hearing.tell_after: the \
                     receivers are notified");
            }
            return Ok(());
        }
        let Some(heard) = *heard else { return Ok(()) };
        let ledger = Ledger::new(hearing.filters.blind_of(kind, broker).copied());
        for over in ledger.intervals().iter().filter(|over| over.length() > self.after) {
            let is_recent = over.to <= heard && now.since(over.to) < RECENT;
            if is_recent && !ended.contains(&over.from) {
                if is_notified(over) || *ongoing == Some(over.from) {
                    self.notices.join(group, *over, now).await?;
                }
                ended.insert(over.from);
            }
        }
        if let Some(from) = ongoing.filter(|from| !ended.contains(from)) {
            self.notices.join(group, Interval { from, to: heard }, now).await?;
        }
        *ongoing = None;
        Ok(())
    }

    fn ongoing_since(&self, from: Timestamp, at: Timestamp) -> OngoingBlindness {
        tracing::warn!(%from, "blind for longer than hearing.tell_after: the receivers are notified");
        let direct =
            self.receivers.iter().map(|_| DirectDelivery { is_done: false, attempts: 0, next: monotonic() });
        OngoingBlindness { from, at, is_recorded: false, direct: direct.collect() }
    }

    /// Joins the event for the receivers that have had no direct delivery.
    async fn record(&self, ongoing: &OngoingBlindness, now: Timestamp) -> Result<()> {
        let done = self.receivers.iter().zip(&ongoing.direct).filter(|(_, direct)| direct.is_done);
        let done: Vec<String> = done.map(|((receiver, _), _)| receiver.name.clone()).collect();
        let interval = Interval { from: ongoing.from, to: Timestamp::NEVER };
        self.notices.join_except(&done, &blind_group(), interval, now).await
    }

    /// Joins the end, unless the ledger has an interval that does.
    async fn end(
        &self,
        ongoing: &OngoingBlindness,
        heard: Timestamp,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Result<()> {
        let is_notified = ongoing.is_recorded || ongoing.direct.iter().any(|direct| direct.is_done);
        let is_long = |interval: &Interval| interval.to > ongoing.from && interval.length() > self.after;
        if !is_notified || hearing.ledger.intervals().iter().any(is_long) {
            return Ok(());
        }
        self.notices.join(&blind_group(), Interval { from: ongoing.from, to: heard }, now).await
    }

    /// Makes an attempt with each receiver that is due and has had no direct delivery.
    async fn deliver_directly(&self, ongoing: &mut OngoingBlindness) {
        let interval = Interval { from: ongoing.from, to: Timestamp::NEVER };
        let event = OutboxEvent::Blind(interval);
        let group = blind_group();
        let id = notification_of(&group.key, &event);
        let at = ongoing.at;
        let due = self.receivers.iter().zip(&mut ongoing.direct);
        let due = due.filter(|(_, direct)| !direct.is_done && direct.next <= monotonic());
        let attempts = due.map(|((receiver, channel), direct)| {
            direct.attempts += 1;
            let delivery = Delivery {
                blind: vec![interval],
                attempt: direct.attempts,
                ..Delivery::new(Delivery::id_of(&id, &receiver.name), &receiver.name, group.clone(), at)
            };
            async move {
                let began = Stopwatch::start();
                let result = within(receiver.timeout, channel.send(&delivery, self.clock.now())).await;
                self.conclude(receiver, direct, result.map(|_| ()), began.elapsed());
            }
        });
        join_all(attempts).await;
    }

    fn conclude(
        &self,
        receiver: &ReceiverConfig,
        direct: &mut DirectDelivery,
        result: std::result::Result<(), Failure>,
        took: Duration,
    ) {
        let name = &receiver.name;
        let failure = result.as_ref().err().map(ToString::to_string);
        self.healths.note(name, failure.as_deref(), self.clock.now());
        let Err(why) = result else {
            direct.is_done = true;
            tracing::info!(receiver = name, "notified a receiver of blindness while the engine is down");
            return self.telemetry.notification(name, DeliveryOutcome::Delivered, took, "");
        };
        // A receiver that wants no more notifications gets no other attempt.
        direct.is_done = matches!(why, Failure::Gone { .. });
        direct.next = monotonic() + receiver.retry.backoff().wait(direct.attempts, rand::random());
        tracing::warn!(
            receiver = name,
            "cannot notify a receiver of blindness while the engine is down: {why}"
        );
        self.telemetry.notification(name, DeliveryOutcome::Retry, took, &why.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_kind_outlives_an_engine_that_loses_its_data() {
        let kind: Kind = "pump".parse().unwrap();
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        // Up to when the fleet and the kind are heard, step by step, and for how many seconds the kind was not heard.
        let cases: [&[(i64, Option<i64>, u64)]; 5] = [
            &[(1000, None, 900), (2000, Some(1999), 1)],
            &[(1000, Some(999), 1), (1001, None, 2), (1002, None, 3), (1003, Some(1003), 0)],
            // It is not heard after the loss, either.
            &[(1000, Some(990), 10), (1300, None, 310)],
            &[(150, Some(50), 50)],
            &[(90, None, 0)],
        ];
        for steps in cases {
            let mut blindness = of_kind(&kind, &["pumps/+".to_owned()], &[]).remove(0);
            for (fleet, of_kind, unheard) in steps {
                let of_kind = Hearing { heard: of_kind.map(at), ..Hearing::default() };
                let kinds = Arc::new([(kind.clone(), of_kind)].into());
                let hearing = Hearing { heard: Some(at(*fleet)), kinds, ..Hearing::default() };
                let found = blindness.unheard(&hearing, at(100)).length();
                assert_eq!(found, Duration::from_secs(*unheard), "{fleet} of {steps:?}");
            }
        }
    }
}
