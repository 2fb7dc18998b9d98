//! The service: builds the loops, runs them and stops them. The only place that starts long-lived tasks.
//!
//! Every loop runs until the stop token. A loop that returns earlier is a bug: it stops everything, and the process
//! ends with an error, so that its supervisor can restart it. Correctness does not depend on a tidy stop.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod certificates;
mod reload;

use certificates::Certificates;
pub use reload::Reload;
use reload::{Reloader, anew_with_each};

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::config::{Config, brokers_of, client_digest, filters_of};
use crate::expiry::Expiry;
use crate::fleet::coverage::Coverage;
use crate::fleet::walk::Removed;
use crate::fleet::{
    Attempts, AvailabilityHistory, CountRecorder, Lease, Mirror, RemovedKinds, RhythmKeeper, Roll,
    SharedRules, Silences, Timers, Walk, examination, renamed,
};
use crate::intake::listener::Listener;
use crate::intake::{Bodies, StateSources, ValueBuffer};
use crate::routing::Routes;
use crate::store::{Engine, EngineError, StoredDeliveries, StoredGroups};
use crate::telemetry::Telemetry;
use crate::trust::ServerTls;
use crate::{alerting, deadman, engines, history, http, intake};

/// The length of a round over all units.
const WALK: Duration = Duration::from_secs(30);

/// How long the lease may take to resign from the roster.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long loops may take to end after the stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

const RECONNECT: Backoff = Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(5) };

/// Serves until `stop`.
///
/// # Errors
/// At the start: the address is in use, or the engine refuses the configuration. (The service waits for an engine that
/// cannot be reached.) Later: a loop ended by itself.
pub async fn run(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    run_with(config, None, stop).await
}

/// Serves until `stop`; `reload` loads the configuration again.
///
/// # Errors
/// The errors of [`run`].
pub async fn run_with(
    mut config: Config,
    reload: Option<Reload>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let clock = Clock::system();
    let telemetry = Arc::new(Telemetry::new(&clock));
    let listener = TcpListener::bind(config.http.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another http.listen", config.http.listen))?;
    tracing::info!(address = %listener.local_addr()?, "listening for http");
    let tls = match &config.http.tls {
        None => None,
        Some(wanted) => Some(tls_listener(wanted).await?),
    };
    // The in-process broker is the last one.
    let is_within_used = config.intake.last().is_some_and(|within| uses(&config.brokers, within));
    let devices = match config.broker.as_ref().filter(|_| is_within_used) {
        None => None,
        Some(wanted) => Some(Listener::bind(wanted, telemetry.clone()).await?),
    };
    let certificates = [tls.as_ref().map(|(_, tls)| tls.clone()), devices.as_ref().and_then(Listener::tls)];
    let certificates = Certificates(certificates.into_iter().flatten().collect());
    let threads = http::RequestThreads::start().context("threads cannot be started")?;
    let mut loops = Loops::default();
    let pages = http::Pages::new(config.http.clone(), &config.instance, telemetry.clone());
    let serving = http::serve(listener, pages.clone(), telemetry.clone(), loops.stop.clone());
    loops.add_on(threads.handle(), "http", serving);
    if let Some((listener, tls)) = tls {
        let serving = http::serve_tls(listener, tls, pages.clone(), telemetry.clone(), loops.stop.clone());
        loops.add_on(threads.handle(), "https", serving);
    }
    loops.add("certificates", certificates.clone().keep_fresh(loops.stop.clone()));
    let beginning = begin(&config, &clock, &telemetry);
    let Some((engine, lease)) = loops.meanwhile(beginning, &stop).await? else {
        loops.end().await;
        return Ok(());
    };
    if let Some(part) = lease.added_part() {
        for intake in &mut config.intake {
            intake.client_id = renamed(&intake.client_id, part);
        }
    }
    let reload = reload.map(|reload| (reload, certificates));
    start((config, devices), reload, (engine, lease), clock, telemetry, &pages, &mut loops);
    loops.run(&stop).await
}

/// Opens the engine and takes the lease of this instance; the clock then follows the clock of the fleet.
async fn begin(
    config: &Config,
    clock: &Clock,
    telemetry: &Arc<Telemetry>,
) -> anyhow::Result<(Arc<dyn Engine>, Lease)> {
    let mut failures = 0;
    loop {
        let begun = async {
            let engine = engines::open(&config.engine, &config.count_by_labels, telemetry.clone()).await?;
            let mut lease = Lease::take(
                engine.clone(),
                engine.clone(),
                clock.clone(),
                telemetry.clone(),
                &config.instance,
            )
            .await?;
            lease.announce(config.advertise.clone()).await?;
            Ok((engine, lease))
        };
        match begun.await {
            Ok(begun) => return Ok(begun),
            Err(EngineError::Unavailable(why) | EngineError::Passing(why) | EngineError::WrongType(why)) => {
                failures += 1;
                let wait = RECONNECT.wait(failures, rand::random());
                telemetry.waiting_for_engine(&why, wait);
                tokio::time::sleep(wait).await;
            }
            Err(refused) => return Err(refused.into()),
        }
    }
}

/// The listener for TLS, and its certificate.
async fn tls_listener(wanted: &http::TlsConfig) -> anyhow::Result<(TcpListener, Arc<ServerTls>)> {
    let tls = Arc::new(http::open_tls(&wanted.files)?);
    let listener = TcpListener::bind(wanted.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another http.tls_listen", wanted.listen))?;
    tracing::info!(address = %listener.local_addr()?, "listening for https");
    Ok((listener, tls))
}

/// Starts every loop except `http`, which already runs.
///
/// In one piece: it only builds the loops, one after the other.
fn start(
    (config, devices): (Config, Option<Listener>),
    reload: Option<(Reload, Certificates)>,
    (engine, lease): (Arc<dyn Engine>, Lease),
    clock: Clock,
    telemetry: Arc<Telemetry>,
    pages: &http::Pages,
    loops: &mut Loops,
) {
    let (stop, client) = (loops.stop.clone(), client_digest(&config));
    if let Some(why) = alerting::without_receivers(&config.alerting) {
        tracing::warn!("{why}");
    }
    let rules = SharedRules::from(Arc::new(config.rules));
    let outbox_grew = Arc::new(Notify::new());
    let ownership = lease.ownership();
    let mirror = Arc::new(Mirror::of(&*engine, rules.clone(), &config.count_by_labels));
    mirror.keep(|partition| ownership.owns(partition));
    let (filters, brokers) = (filters_of(&config.intake, &rules), brokers_of(&config.intake));
    let roll = Roll::new(
        engine.clone(),
        rules.clone(),
        mirror.clone(),
        telemetry.clone(),
        config.hearing,
        outbox_grew.clone(),
    );
    // Intake reports invalid templates, so ignore them here.
    let filters = filters.unwrap_or_default();
    let alerting =
        alerting::AlertingConfig { filters: filters.clone(), brokers: brokers.clone(), ..config.alerting };
    let configured = watch::Sender::new(Arc::new(alerting));
    let roll = Arc::new(roll.with_filters(filters).with_brokers(brokers));

    loops.add("lease", lease.keep(loops.leave.clone()));
    loops
        .add("examination", examination::run(engine.clone(), clock.clone(), telemetry.clone(), stop.clone()));
    let silences = Arc::new(Silences::new(engine.clone()));
    let coverage = Arc::new(Coverage::new(silences.clone()));
    let attempts = Attempts::new(engine.clone());
    let walk = Walk {
        engine: engine.clone(),
        attempts: attempts.clone(),
        roster: engine.clone(),
        ownership: ownership.clone(),
        roll: roll.clone(),
        mirror: mirror.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
        period: WALK,
        keep_records: config.keep_records,
        keep_deliveries: config.keep_deliveries,
        removed: Removed::new(config.close_unwatched),
        coverage: coverage.clone(),
    };
    loops.add("walk", walk.run(stop.clone()));
    let expiry = Expiry {
        config: config.expiry,
        engine: engine.clone(),
        roll: roll.clone(),
        ownership: ownership.clone(),
        has_nodes: config.intake.iter().any(intake::Config::has_nodes),
        mirror: mirror.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
    };
    loops.add("expiry", expiry.run(stop.clone()));
    let past: Option<Arc<dyn AvailabilityHistory>> = match &config.history {
        Some(wanted) => Some(Arc::new(history::HistoryReader::new(
            wanted.access.clone(),
            history::fleet_digest(roll.key()),
        ))),
        None => None,
    };
    if let Some(wanted) = config.history {
        let writer = history::HistoryWriter {
            config: wanted,
            queries: engine.clone(),
            cells: engine.clone(),
            roll: roll.clone(),
            ownership: ownership.clone(),
            clock: clock.clone(),
            telemetry: telemetry.clone(),
        };
        loops.add("history", writer.run(stop.clone()));
    }
    let timers = Timers::new(engine.clone(), config.timers, Arc::default(), telemetry.clone());
    let timers = Arc::new(timers);
    let stores = alerting::Stores {
        outbox: engine.clone(),
        groups: StoredGroups::new(engine.clone()),
        hearing: engine.clone(),
        queries: engine.clone(),
        cells: engine.clone(),
        units: engine.clone(),
        deliveries: StoredDeliveries::new(engine.clone()),
        timers: timers.clone(),
        history: past.clone(),
        silences: silences.clone(),
        roll: roll.clone(),
        roster: engine.clone(),
        removed_kinds: Arc::new(RemovedKinds::new(config.close_unwatched)),
    };
    let notify = {
        let (ownership, clock, telemetry) = (ownership.clone(), clock.clone(), telemetry.clone());
        move |config, until| {
            let (stores, ownership, outbox_grew) = (stores.clone(), ownership.clone(), outbox_grew.clone());
            alerting::run(config, stores, ownership, clock.clone(), telemetry.clone(), outbox_grew, until)
        }
    };
    loops.add("alerting", anew_with_each(configured.subscribe(), stop.clone(), notify));
    let routes = watch::Sender::new(Arc::new(routes_of(&configured.borrow())));
    let shown = routes.subscribe();
    let configuration = watch::Sender::new(Arc::new(config.shown));
    let shown_configuration = configuration.subscribe();
    roll.census().configured(config.sections.shared(&config.sections));
    roll.census().connects(client);
    roll.census().listens(devices.is_some());
    telemetry.configuration_begins(clock.now());
    let reloads = reload.as_ref().map(|(reload, _)| reload.sender());
    if let Some((reload, certificates)) = reload {
        let (clock, telemetry, started) = (clock.clone(), telemetry.clone(), config.sections);
        let (roll, timers) = (roll.clone(), timers.clone());
        let alerting = configured;
        let reloader = Reloader {
            reload,
            certificates,
            started,
            roll,
            timers,
            alerting,
            routes,
            configuration,
            clock,
            telemetry,
        };
        loops.add("reload", reloader.run(stop.clone()));
    }
    let census = roll.census().clone();
    let (counted, owned, until) = (engine.clone(), ownership.clone(), stop.clone());
    loops.add("census", async move { census.run(counted, owned, until).await });
    let counts = CountRecorder {
        mirror: mirror.clone(),
        roll: roll.clone(),
        ownership: ownership.clone(),
        cells: engine.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
    };
    loops.add("past counts", counts.run(stop.clone()));
    let rhythms = RhythmKeeper {
        mirror: mirror.clone(),
        ownership: ownership.clone(),
        cells: engine.clone(),
        clock: clock.clone(),
        telemetry: telemetry.clone(),
    };
    loops.add("rhythms", rhythms.run(stop.clone()));
    let values = ValueBuffer::new(&config.metrics, telemetry.clone()).map(Arc::new);
    let bodies = Bodies::new(&config.intake, rules, values.clone(), telemetry.clone());
    let states =
        StateSources { mirror: mirror.clone(), ownership: ownership.clone(), engine: engine.clone() };
    let sources = http::PageSources {
        timers: timers.clone(),
        ownership,
        units: engine.clone(),
        records: engine.clone(),
        deliveries: StoredDeliveries::new(engine.clone()),
        groups: StoredGroups::new(engine.clone()),
        values: engine.clone(),
        cells: engine.clone(),
        silences,
        coverage,
        roster: engine,
        roll: roll.clone(),
        mirror,
        bodies: Arc::new(bodies),
        metrics: config.metrics,
        history: past,
        keep_records: config.keep_records,
        keep_deliveries: config.keep_deliveries,
        routes: shown,
        reloads,
        configuration: shown_configuration,
        telemetry: telemetry.clone(),
        clock: clock.clone(),
    };
    let (lines, until) = (telemetry.clone(), stop.clone());
    loops.add("log", async move {
        lines.log_suppressed_transitions(&until).await;
        Ok(())
    });
    if let Some(pings) = config.deadman {
        loops.add("deadman", deadman::run(pings, telemetry.clone(), stop.clone()));
    }
    pages.show(sources, &stop);
    let within = config.intake.len() - 1;
    let mut devices = devices;
    for (at, intake) in config.intake.into_iter().enumerate() {
        let is_here = uses(&config.brokers, &intake);
        let listener = if at == within { devices.take() } else { None };
        let (roll, values, timers) = (roll.clone(), values.clone(), timers.clone());
        let (clock, telemetry, stop) = (clock.clone(), telemetry.clone(), stop.clone());
        if !is_here {
            if let Ok(broker) = intake.broker.parse() {
                let mirror = states.mirror.clone();
                let watch = intake::watch_elsewhere(broker, roll, mirror, telemetry, stop);
                loops.add("broker of other instances", watch);
            }
            continue;
        }
        let parts = (intake, listener, Some(states.clone()));
        loops.add("intake", intake::run(parts, roll, values, timers, clock, telemetry, stop));
    }
}

/// Whether an instance with these brokers uses this one.
fn uses(brokers: &[String], one: &intake::Config) -> bool {
    brokers.is_empty() || brokers.contains(&one.broker)
}

/// The routes and receivers of a configuration.
fn routes_of(config: &alerting::AlertingConfig) -> http::AlertRoutes {
    let receivers = config.receivers.iter().map(|receiver| receiver.name.clone()).collect();
    let types = config.types();
    let limited = config.receivers.iter().filter(|receiver| receiver.rate_limit.is_some());
    let limited = limited.map(|receiver| receiver.name.clone()).collect();
    let (routes, inhibition) = (Routes::new(config.route.clone()), config.inhibition.clone());
    let (breaker, flapping) = (config.breaker, config.flapping.clone());
    let unsent = alerting::without_receivers(config);
    http::AlertRoutes { routes, receivers, types, limited, inhibition, breaker, unsent, flapping }
}

/// The long-lived tasks, by name.
#[derive(Default)]
struct Loops {
    running: JoinSet<(&'static str, anyhow::Result<()>)>,
    /// Makes the lease resign from the roster, so that other instances take over while this one stops.
    leave: CancellationToken,
    /// Stops the loops. It is not the token of the process, so no loop ends before [`Loops::run`] has noticed that one.
    stop: CancellationToken,
}

impl Loops {
    fn add(&mut self, name: &'static str, run: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.add_on(&Handle::current(), name, run);
    }

    /// Adds a loop that runs on the runtime `threads`.
    fn add_on(
        &mut self,
        threads: &Handle,
        name: &'static str,
        run: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.running.spawn_on(async move { (name, run.await) }, threads);
    }

    /// Runs `work` beside the loops; `None` if `stop` came first.
    ///
    /// # Errors
    /// The error of `work`, or of a loop that ended meanwhile.
    async fn meanwhile<T>(
        &mut self,
        work: impl Future<Output = anyhow::Result<T>>,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<T>> {
        tokio::select! {
            () = stop.cancelled() => Ok(None),
            done = work => done.map(Some),
            failure = self.first_end() => Err(failure),
        }
    }

    /// Waits for the first loop that ends; an end without an error is an error too.
    async fn first_end(&mut self) -> anyhow::Error {
        match self.running.join_next().await {
            Some(Ok((name, Err(error)))) => error.context(format!("{name} failed")),
            Some(Ok((name, Ok(())))) => anyhow!("{name} ended by itself"),
            Some(Err(panic)) => anyhow!("a loop panicked: {panic}"),
            None => anyhow!("nothing runs"),
        }
    }

    /// Waits for `stop`, or for a loop that ends by itself, then ends all.
    async fn run(mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        let outcome = stop.run_until_cancelled(self.first_end()).await.map_or(Ok(()), Err);
        self.leave.cancel();
        // End the lease first, unless another loop has failed; then it ends with the rest.
        let _ = tokio::time::timeout(RESIGN_TIMEOUT, self.running.join_next()).await;
        self.end().await;
        outcome
    }

    async fn end(&mut self) {
        self.stop.cancel();
        let all_ended = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, all_ended).await.is_err() {
            let seconds = STOP_TIMEOUT.as_secs();
            tracing::warn!("a loop did not end within {seconds} s; its unfinished work is repeated");
        }
    }
}
