//! Builds the loops of alerting, one for each receiver and one for each kind of due work, and runs them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::blind::BlindNotifier;
use super::buffer::{Buffers, DeliveryBuffer};
use super::channel::{Channel, LastingBlindness, open};
use super::deliver::{Deliver, most_leased};
use super::dispatch::Dispatcher;
use super::due::{self, DueWork};
use super::flapping::EpisodeEnds;
use super::fleet_notices::FleetNotices;
use super::group_incidents::GroupIncidents;
use super::health::SharedHealth;
use super::holds::Holds;
use super::incidents::Incidents;
use super::limit::ReceiverLimit;
use super::mass_offline::MassOffline;
use super::orphans::Orphans;
use super::reports::ReportMaking;
use super::resend::Resend;
use super::routed_groups::RoutedGroups;
use super::silenced::SilenceEnds;
use super::stateful_alerts::{StatefulAlerts, StatefulReceivers};
use super::timers::TimerFiring;
use super::unusual::UnusualSilences;
use super::{AlertingConfig, ReceiverConfig, Stores};
use crate::clock::Clock;
use crate::fleet::{
    Attempts, FlapDetector, Inhibitions, MassBreaker, Ownership, ReceiverHealths, UnusualNotices,
};
use crate::presence::{BrokerName, Filters};
use crate::routing::Routes;
use crate::telemetry::Telemetry;

/// Notifies operators until it is stopped; attempts under way get a moment to end. Ends early only with an error.
/// `outbox_grew` wakes it when the outbox has a new entry.
pub async fn run(
    config: AlertingConfig,
    stores: Stores,
    ownership: Ownership,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    outbox_grew: Arc<Notify>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let routed = routed_groups(&config, &stores, &telemetry);
    let (deliveries, cells) = (stores.deliveries.clone(), stores.cells.clone());
    let incidents = GroupIncidents::new(stores.groups.clone(), deliveries, stores.queries.clone(), cells);
    let mut assembly = Assembly {
        routed,
        incidents: Arc::new(incidents),
        healths: Arc::new(ReceiverHealths::new(stores.cells.clone())),
        attempts: Attempts::new(stores.cells.clone()),
        lasting_blindness: watch::Sender::new(Vec::new()),
        lasting_trip: watch::Sender::new(None),
        buffers: HashMap::new(),
        notified_of_blindness: Vec::new(),
        stateful: StatefulReceivers::default(),
        longest_attempt: Duration::ZERO,
        loops: FuturesUnordered::new(),
        stores,
        ownership,
        clock,
        telemetry,
        stop,
    };
    for receiver in config.receivers {
        assembly.add_receiver(receiver)?;
    }
    assembly.add_due_work(config.blind_after, (config.filters, config.brokers), outbox_grew);
    assembly.run().await
}

fn routed_groups(config: &AlertingConfig, stores: &Stores, telemetry: &Arc<Telemetry>) -> RoutedGroups {
    let Stores { cells, queries, silences, .. } = stores;
    let routes = Routes::new(config.route.clone());
    let names = config.receivers.iter().map(|receiver| receiver.name.clone());
    let destinations = routes.destinations(names.collect()).with_archive(config.archive_after.clone());
    let inhibitions = Inhibitions::new(cells.clone(), config.inhibition.clone(), telemetry.clone());
    let breaker = MassBreaker::new(
        config.breaker.map(|rule| (rule, stores.units.clone())),
        cells.clone(),
        queries.clone(),
        silences.clone(),
        telemetry.clone(),
    );
    RoutedGroups {
        routes,
        destinations,
        groups: stores.groups.clone(),
        queries: queries.clone(),
        holds: Holds {
            inhibitions: Arc::new(inhibitions),
            breaker: Arc::new(breaker),
            silences: silences.clone(),
        },
        flapping: Arc::new(FlapDetector::new(cells.clone(), config.flapping.clone(), telemetry.clone())),
    }
}

/// The loops so far, and what they share.
struct Assembly {
    stores: Stores,
    routed: RoutedGroups,
    incidents: Arc<GroupIncidents>,
    healths: Arc<ReceiverHealths>,
    attempts: Attempts,
    ownership: Ownership,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
    lasting_blindness: watch::Sender<Vec<LastingBlindness>>,
    lasting_trip: watch::Sender<Option<LastingBlindness>>,
    buffers: HashMap<String, Arc<DeliveryBuffer>>,
    notified_of_blindness: Vec<(ReceiverConfig, Arc<dyn Channel>)>,
    stateful: StatefulReceivers,
    /// The longest time that an attempt to deliver may take.
    longest_attempt: Duration,
    /// Each loop, with its description.
    loops: FuturesUnordered<BoxFuture<'static, (String, anyhow::Result<()>)>>,
}

impl Assembly {
    fn add_receiver(&mut self, receiver: ReceiverConfig) -> anyhow::Result<()> {
        let name = receiver.name.clone();
        let channel = open(&receiver).map_err(|error| anyhow::anyhow!("receiver {name}: {error}"))?;
        channel.keep_order(self.stores.deliveries.clone());
        if channel.keeps_alerts() {
            self.stateful.all.insert(name.clone());
        }
        if channel.is_pager() {
            self.stateful.pagers.insert(name.clone());
        }
        if self.routed.destinations.blind().receivers.contains(&name) {
            self.notified_of_blindness.push((receiver.clone(), channel.clone()));
        }
        self.longest_attempt = self.longest_attempt.max(receiver.timeout);
        self.telemetry.receiver_configured(&name);
        self.add_resend(&receiver, &channel);
        self.add_delivery(receiver, channel);
        Ok(())
    }

    /// Adds the loop that sends open records again, if the receiver forgets them.
    fn add_resend(&mut self, receiver: &ReceiverConfig, channel: &Arc<dyn Channel>) {
        let Some(every) = channel.resend_every() else { return };
        let name = &receiver.name;
        let is_notified_of_blindness = self.routed.destinations.blind().receivers.contains(name);
        let resend = Resend {
            receiver: name.clone(),
            channel: channel.clone(),
            every,
            timeout: receiver.timeout,
            routed: self.routed.clone(),
            notices: UnusualNotices::new(self.stores.cells.clone()),
            blindness: is_notified_of_blindness.then(|| self.lasting_blindness.subscribe()),
            trip: is_notified_of_blindness.then(|| self.lasting_trip.subscribe()),
            ownership: self.ownership.clone(),
            partitions: (0..self.stores.groups.partitions()).collect(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        };
        let (ownership, telemetry, stop) =
            (self.ownership.clone(), self.telemetry.clone(), self.stop.clone());
        let run = async move {
            due::run(&resend, ownership, telemetry, stop).await;
            Ok(())
        };
        self.add(format!("sending open records to {name} again"), run);
    }

    fn add_delivery(&mut self, receiver: ReceiverConfig, channel: Arc<dyn Channel>) {
        let name = receiver.name.clone();
        let capacity = most_leased(receiver.concurrency.max(1));
        let (buffer, queue) = DeliveryBuffer::new(capacity, receiver.rate_limit.is_none());
        self.buffers.insert(name.clone(), buffer.clone());
        let census = self.stores.roll.census();
        let incidents = Incidents {
            lasting: self.incidents.clone(),
            census: census.clone(),
            labels: census.labels(),
            is_pager: channel.is_pager(),
        };
        let limit = receiver.rate_limit;
        let deliver = Deliver {
            limit: limit.map(|limit| ReceiverLimit::new(limit, &name, self.stores.cells.clone())),
            receiver,
            channel,
            engine: self.stores.deliveries.clone(),
            incidents: Arc::new(incidents),
            healths: self.healths.clone(),
            attempts: self.attempts.clone(),
            ownership: self.ownership.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            buffer,
            stop: self.stop.clone(),
        };
        self.add(format!("delivering to {name}"), deliver.run(queue));
    }

    /// In one piece: it builds one kind of due work after the other.
    fn add_due_work(
        &mut self,
        blind_after: Duration,
        (filters, brokers): (Filters, Vec<BrokerName>),
        outbox_grew: Arc<Notify>,
    ) {
        let buffers = Buffers::new(std::mem::take(&mut self.buffers));
        let notices = FleetNotices {
            destinations: self.routed.destinations.clone(),
            groups: self.stores.groups.clone(),
            buffers: buffers.clone(),
        };
        let stateful_alerts = Arc::new(StatefulAlerts {
            stateful: std::mem::take(&mut self.stateful),
            incidents: self.incidents.clone(),
            deliveries: self.stores.deliveries.clone(),
            clock: self.clock.clone(),
        });
        let health = SharedHealth {
            healths: self.healths.clone(),
            receivers: buffers.receivers().cloned().collect(),
            telemetry: self.telemetry.clone(),
        };
        self.add_work("sharing the health of receivers", health);
        let orphans = Orphans {
            configured: buffers.receivers().cloned().collect(),
            engine: self.stores.deliveries.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        };
        self.add_work("looking for orphans", orphans);
        let blind = BlindNotifier {
            after: blind_after,
            filters,
            brokers,
            notices: notices.clone(),
            receivers: std::mem::take(&mut self.notified_of_blindness),
            hearing: self.stores.hearing.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            healths: self.healths.clone(),
            lasting: self.lasting_blindness.clone(),
        };
        self.add_work("notifying of blindness", blind);
        let mass_offline = MassOffline {
            breaker: self.routed.holds.breaker.clone(),
            notices,
            hearing: self.stores.hearing.clone(),
            ownership: self.ownership.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            lasting: self.lasting_trip.clone(),
        };
        self.add_work("mass-offline breaker", mass_offline);
        let silence_ends = SilenceEnds {
            routed: self.routed.clone(),
            ownership: self.ownership.clone(),
            clock: self.clock.clone(),
        };
        self.add_work("ending silences", silence_ends);
        let episode_ends = EpisodeEnds {
            routed: self.routed.clone(),
            stateful_alerts: stateful_alerts.clone(),
            units: self.stores.units.clone(),
            ownership: self.ownership.clone(),
            clock: self.clock.clone(),
        };
        self.add_work("ending episodes of flapping", episode_ends);
        let unusual = UnusualSilences {
            routed: self.routed.clone(),
            stateful_alerts: stateful_alerts.clone(),
            units: self.stores.units.clone(),
            notices: UnusualNotices::new(self.stores.cells.clone()),
            roll: self.stores.roll.clone(),
            roster: self.stores.roster.clone(),
            removed_kinds: self.stores.removed_kinds.clone(),
            ownership: self.ownership.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        };
        self.add_work("notifying of unusual silences", unusual);
        let firing = TimerFiring {
            engine: self.stores.timers.store(),
            timers: self.stores.timers.clone(),
            ownership: self.ownership.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            buffers: buffers.clone(),
            longest_attempt: self.longest_attempt,
        };
        self.add_work("firing timers", firing);
        if let Some(history) = self.stores.history.clone() {
            let making = ReportMaking {
                timers: self.stores.timers.clone(),
                history,
                ownership: self.ownership.clone(),
                clock: self.clock.clone(),
            };
            self.add_work("making reports", making);
        }
        let dispatcher = Dispatcher {
            routed: self.routed.clone(),
            outbox: self.stores.outbox.clone(),
            ownership: self.ownership.clone(),
            clock: self.clock.clone(),
            outbox_grew,
            stateful_alerts,
            buffers,
        };
        self.add_work("dispatching", Arc::new(dispatcher));
    }

    fn add(&mut self, what: String, run: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.loops.push(run.map(move |ended| (what, ended)).boxed());
    }

    fn add_work(&mut self, what: &str, work: impl DueWork + 'static) {
        let (ownership, telemetry) = (self.ownership.clone(), self.telemetry.clone());
        self.add(what.to_owned(), due::run(work, ownership, telemetry, self.stop.clone()).map(Ok));
    }

    /// Runs all loops until they are stopped.
    async fn run(mut self) -> anyhow::Result<()> {
        while let Some((what, ended)) = self.loops.next().await {
            ended.with_context(|| format!("alerting: {what} failed"))?;
            ensure!(self.stop.is_cancelled(), "alerting: {what} ended although it was not stopped");
        }
        Ok(())
    }
}
