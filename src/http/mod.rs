//! The web server: metrics, health, records and units; and the pages for people, in [`web`].
//!
//! One file for each page. The state struct of a page lists its sources. Lists and counts come from the mirrors of all
//! instances, single units and records from the engine. Only `/metrics/units` reads the engine page by page for a
//! request, if kinds have metrics: it writes their values as they are read, and stores none. The mirror holds only the
//! partitions of this instance, so the metrics of all instances add up. Errors are answered as
//! `application/problem+json`.
//!
//! The server answers from the start of the process: before the engine answers, `/healthz` and `/readyz` work, and
//! every other page answers 503.
//!
//! Requests that change something are guarded: see `changes.rs`. With tokens configured, every page except those for
//! health and for the login needs a token: see `middleware.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::ensure;
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use ring::digest::{SHA256, digest};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Stopwatch, Timestamp};
use crate::fleet::{
    AvailabilityHistory, Beginning, BodyReader, Coverage, FlapRules, Mirror, Ownership, Roll, Silences,
    Timers,
};
use crate::presence::{Kind, MassOfflineRule, Unit};
use crate::routing::{Inhibition, Route, Routes};
use crate::store::{Catalogue, Cells, DataStore, Queries, Roster, StoredDeliveries, StoredGroups, UnitStore};
use crate::telemetry::Telemetry;
use crate::trust::ServerTls;

mod alertmanager;
mod audit;
mod availability;
mod body;
mod breaker;
mod changes;
mod compression;
mod configuration;
mod connections;
mod counts;
mod coverage;
mod cursor;
mod deliveries;
mod ended_sessions;
mod entries;
mod entry_answers;
mod entry_body;
mod explain;
mod exposition;
mod expressions;
mod health;
mod heartbeats;
mod http_error;
mod import;
mod incidents;
mod instances;
mod inventory;
mod metrics;
mod middleware;
mod notices;
mod openapi;
mod operators;
mod past_counts;
mod peers;
mod policy;
mod probe;
mod proxies;
mod rate_limit;
mod receivers;
mod records;
mod registry;
mod reload;
mod rhythm;
mod scans;
mod session;
mod settings;
mod shared_answers;
mod silences;
mod strangers;
mod stream;
mod suggest;
mod summary;
mod switches;
mod targets;
mod threads;
mod timeline;
mod timers;
mod tls;
mod told;
mod unit_filter;
mod unit_list;
mod unit_metrics;
mod units;
mod web;

use availability::AvailabilityState;
pub use changes::AUTHOR;
use changes::HasTokens;
pub use configuration::{ShownConfiguration, ShownOption, ShownValue, ValueOrigin};
use connections::ConnectionLimits;
use counts::UnitCounts;
use deliveries::DeliveriesState;
use ended_sessions::EndedSessions;
use heartbeats::HeartbeatsState;
use http_error::HttpError;
use import::ImportState;
use inventory::InventoryState;
use middleware::{AdmissionRules, KnownClients};
use past_counts::PastCountReader;
use peers::PeerKey;
use policy::PolicyTrials;
use probe::ProbePage;
pub use proxies::{HeaderName, Proxies, ProxyUsers};
use rate_limit::{RequestLimit, RequestRate};
use records::Records;
pub use reload::{ReloadRequest, Reloads};
use rhythm::Rhythms;
use scans::Scans;
use session::BrowserSessions;
use silences::SilencesState;
use strangers::StrangersState;
use suggest::Suggestions;
use summary::Summaries;
pub use switches::Switches;
pub use threads::RequestThreads;
use timeline::Timelines;
use timers::TimersState;
pub use tls::{TlsConfig, open_tls};
use unit_list::{UnitLists, changing};
use unit_metrics::UnitMetricsState;
use units::UnitViews;
use web::Web;

#[derive(Clone, Debug)]
pub struct Config {
    /// The address of the server. An address other than loopback needs at least one token.
    pub listen: SocketAddr,
    /// The tokens of clients. If the list is empty, every client that reaches the address is admitted.
    pub tokens: Vec<Token>,
    /// The units that `/metrics/units` shows, unless the request says otherwise.
    pub unit_metrics: UnitMetrics,
    /// The most units that one page of `/metrics/units` shows.
    pub unit_metrics_limit: u64,
    /// How many requests a client may send in a second; zero: there is no limit.
    pub requests_per_second: u32,
    /// Where operators reach the pages, without a slash at the end, for links.
    pub external_url: Option<String>,
    /// The address and the files for TLS, if it is used.
    pub tls: Option<TlsConfig>,
    /// The proxies in front of the server.
    pub proxies: Proxies,
    /// The switches of a simulated fleet.
    pub switches: Option<Switches>,
    /// A topic on which a unit may be heard.
    pub example_topic: Option<String>,
}

impl Config {
    fn has_tokens(&self) -> HasTokens {
        HasTokens(!self.tokens.is_empty() || self.proxies.users.is_some())
    }

    /// Where operators reach the pages.
    fn address(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.external_url.clone().unwrap_or_else(|| format!("{scheme}://{}", self.listen))
    }

    /// The name in `external_url`, without a port.
    fn external_host(&self) -> Option<&str> {
        let (_, rest) = self.external_url.as_ref()?.split_once("://")?;
        let host = rest.split('/').next()?;
        Some(match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next()?,
            None => host.split(':').next()?,
        })
    }

    /// The path of the pages as browsers see it, without a slash at its end: empty unless a proxy adds one.
    fn base(&self) -> &str {
        let rest = self.external_url.as_ref().and_then(|url| url.split_once("://")).map(|(_, rest)| rest);
        rest.and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap_or_default()
    }
}

/// The units that `/metrics/units` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitMetrics {
    #[default]
    All,
    /// Units with an open record.
    Offline,
    /// No unit.
    Off,
}

/// A bearer token.
#[derive(Clone, Debug)]
pub struct Token {
    /// The name that the log shows.
    pub name: String,
    pub sha256: [u8; 32],
    pub role: Role,
    /// The token is refused from this moment on.
    pub expires_at: Option<Timestamp>,
    /// The units for which a device may send heartbeats.
    pub device: DeviceRights,
}

/// The units for which a device may send heartbeats, and how many.
#[derive(Clone, Debug, Default)]
pub struct DeviceRights {
    /// Empty means the units of every kind.
    pub kinds: Vec<Kind>,
    /// The prefixes of ids; empty means every id.
    pub unit_prefixes: Vec<String>,
    /// Zero means no limit.
    pub heartbeats_per_second: u32,
}

impl DeviceRights {
    fn allow(&self, unit: &Unit) -> bool {
        let mut prefixes = self.unit_prefixes.iter();
        (self.kinds.is_empty() || self.kinds.contains(&unit.kind))
            && (self.unit_prefixes.is_empty() || prefixes.any(|one| unit.id.as_str().starts_with(one)))
    }
}

impl Token {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// The SHA-256 of a token.
    pub fn digest(token: &str) -> [u8; 32] {
        digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

/// The rights of a token; each role includes those before it, except that a viewer sends no heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Send heartbeats, and nothing else.
    Device,
    /// Read.
    Viewer,
    /// Make silences, acknowledge, replay.
    Operator,
    /// Register and remove units.
    Admin,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Device => "device",
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

/// The sources of the pages.
#[derive(Clone)]
pub struct PageSources {
    /// The partitions that this instance shows on pages about all units.
    pub ownership: Ownership,
    /// Reads single units.
    pub units: Arc<dyn UnitStore>,
    pub records: Arc<dyn Queries>,
    pub deliveries: StoredDeliveries,
    pub groups: StoredGroups,
    /// Reads the newest values of the metrics of units.
    pub values: Arc<dyn DataStore>,
    /// Reads the addresses of the instances.
    pub roster: Arc<dyn Roster>,
    /// The rules of kinds, and the state of hearing.
    pub roll: Arc<Roll>,
    /// All units of this instance.
    pub mirror: Arc<Mirror>,
    /// The metrics of units, by kind.
    pub metrics: Arc<Catalogue>,
    /// Reads the bodies that devices send.
    pub bodies: Arc<dyn BodyReader>,
    /// Cells for the units whose silence inhibits others, for units that flap, and for shared documents.
    pub cells: Arc<dyn Cells>,
    pub silences: Arc<Silences>,
    pub coverage: Arc<Coverage>,
    pub timers: Arc<Timers>,
    /// Reads history, if it is configured.
    pub history: Option<Arc<dyn AvailabilityHistory>>,
    /// How long the engine keeps closed records.
    pub keep_records: Duration,
    /// How long it keeps attempts to notify.
    pub keep_deliveries: Duration,
    /// The current routes.
    pub routes: watch::Receiver<Arc<AlertRoutes>>,
    pub reloads: Reloads,
    /// The current configuration.
    pub configuration: watch::Receiver<Arc<ShownConfiguration>>,
    pub telemetry: Arc<Telemetry>,
    pub clock: Clock,
}

/// The pages that are served now: the health pages from the start, and all pages after [`Pages::show`]. Cheap to share.
#[derive(Clone)]
pub struct Pages {
    config: Arc<Config>,
    early: Router,
    all: Arc<OnceLock<Router>>,
}

/// The routes and the receivers that are configured.
pub struct AlertRoutes {
    pub routes: Routes,
    pub receivers: Vec<String>,
    /// The type of each receiver.
    pub types: BTreeMap<String, &'static str>,
    /// The receivers that have a rate limit.
    pub limited: BTreeSet<String>,
    pub inhibition: Inhibition,
    /// When the mass-offline breaker trips; `None` if it is not enabled.
    pub breaker: Option<MassOfflineRule>,
    /// Why no notification will be sent, with advice; `None` if routes name receivers.
    pub unsent: Option<&'static str>,
    /// The kinds that have flap detection.
    pub flapping: FlapRules,
}

/// The default has no routes and no receivers.
impl Default for AlertRoutes {
    fn default() -> AlertRoutes {
        let inhibition = Inhibition::default();
        AlertRoutes {
            routes: Routes::new(Route::default()),
            receivers: Vec::new(),
            types: BTreeMap::new(),
            limited: BTreeSet::new(),
            inhibition,
            breaker: None,
            unsent: None,
            flapping: FlapRules::new(),
        }
    }
}

impl Pages {
    /// The pages of `instance` while it waits for the engine.
    pub fn new(config: Config, instance: &str, telemetry: Arc<Telemetry>) -> Pages {
        telemetry.web_address(&config.address());
        let early = Router::new()
            .merge(health::early_pages(instance.to_owned(), telemetry))
            .fallback(|| async { HttpError::unavailable("waiting for the engine; /readyz says why") });
        Pages { early: guarded(early, &config, None), config: Arc::new(config), all: Arc::default() }
    }

    /// Serves every page from now on. Streams end with `stop`.
    pub fn show(&self, sources: PageSources, stop: &CancellationToken) {
        let config = &*self.config;
        let (clock, peer_key) = (sources.clock.clone(), PeerKey::new(&sources));
        let is_secure = config.external_url.as_ref().is_some_and(|url| url.starts_with("https:"));
        // Only people and programs that read pages get sessions; a device needs none.
        let of_people = config.tokens.iter().filter(|token| token.role > Role::Device);
        let sessions =
            BrowserSessions::new(of_people.cloned().collect(), sources.roll.key(), config.base(), is_secure);
        let sessions = Arc::new(sessions);
        let ended = Arc::new(EndedSessions::new(sources.cells.clone()));
        let beginning = Beginning::new(sources.cells.clone());
        tokio::spawn(beginning.note(sources.clock.clone(), stop.clone()));
        let all = pages(config, sources, (sessions.clone(), ended.clone()), stop);
        // A second call changes nothing.
        let _ = self.all.set(guarded(all, config, Some(KnownClients { sessions, ended, peer_key, clock })));
    }

    fn now(&self) -> Router {
        self.all.get().unwrap_or(&self.early).clone()
    }
}

/// Answers requests until `stop`. Pending answers get a few seconds more; streams are cut off. The caller binds the
/// listener, so that a port in use is an error at the start.
pub async fn serve(
    listener: TcpListener,
    pages: Pages,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    check_address(listener.local_addr()?, &pages.config, "http.listen")?;
    Ok(connections::accept(listener, None, pages, ConnectionLimits::default(), telemetry, stop).await?)
}

/// As [`serve`], over TLS.
pub async fn serve_tls(
    listener: TcpListener,
    tls: Arc<ServerTls>,
    pages: Pages,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    check_address(listener.local_addr()?, &pages.config, "http.tls_listen")?;
    Ok(connections::accept(listener, Some(tls), pages, ConnectionLimits::default(), telemetry, stop).await?)
}

/// Refuses an address that is open to other machines while no client needs a token.
///
/// # Errors
/// The refusal, with advice.
pub fn check_address(address: SocketAddr, config: &Config, option: &str) -> anyhow::Result<()> {
    ensure!(
        address.ip().is_loopback() || config.has_tokens().0,
        "other machines can reach {address}; configure a token or listen on 127.0.0.1 ({option})"
    );
    Ok(())
}

/// In one piece: it only adds one page after the other.
fn pages(
    config: &Config,
    sources: PageSources,
    sessions: (Arc<BrowserSessions>, Arc<EndedSessions>),
    stop: &CancellationToken,
) -> Router {
    let PageSources { ownership, units, values, roll, mirror, metrics, telemetry, clock, .. } =
        sources.clone();
    let unit_metrics_state = UnitMetricsState {
        mirror: mirror.clone(),
        engine: values.clone(),
        roll: roll.clone(),
        clock: clock.clone(),
        metrics: metrics.metrics(),
        default_mode: config.unit_metrics,
        limit: config.unit_metrics_limit,
        stop: stop.clone(),
    };
    let has_tokens = config.has_tokens();
    let scans = Scans::new();
    let (counts, lists) = (UnitCounts::new(&sources, scans.clone()), UnitLists::new(&sources, scans.clone()));
    let summaries = Summaries::new(&sources, counts.clone());
    let (records, timers) = (Records::new(sources.records.clone()), TimersState::new(&sources));
    let (past_counts, trials) = (PastCountReader::new(&sources), PolicyTrials::new(&sources));
    let shared = (lists.clone(), summaries.clone(), past_counts.clone(), records.clone());
    let probe_state = ProbePage { units, values, roll: roll.clone(), clock: clock.clone(), metrics };
    Router::new()
        .merge(health::pages(ownership.clone(), mirror.clone(), telemetry.clone()))
        .merge(metrics::page(mirror, counts, telemetry, clock.clone()))
        .merge(unit_metrics::page(unit_metrics_state))
        .merge(probe::page(probe_state))
        .merge(targets::page(sources.roster.clone(), ownership))
        .merge(records::pages(records.clone()))
        .merge(receivers::page(&sources))
        .merge(audit::page(sources.silences.clone()))
        .merge(reload::page(sources.reloads.clone(), has_tokens))
        .merge(changing(operators::pages(&sources, has_tokens), &lists))
        .merge(changing(registry::pages(&sources, has_tokens), &lists))
        .merge(deliveries::pages(DeliveriesState::new(&sources), has_tokens))
        .merge(silences::pages(SilencesState::new(&sources), has_tokens))
        .merge(timers::pages(timers.clone(), has_tokens))
        .merge(heartbeats::pages(HeartbeatsState::new(config, &sources)))
        .merge(breaker::pages(&sources, has_tokens))
        .merge(alertmanager::pages(&sources, config.external_url.as_deref(), has_tokens))
        .merge(stream::page(&sources, summaries.clone(), stop.clone()))
        .merge(summary::page(summaries.clone()))
        .merge(inventory::page(InventoryState::new(&sources)))
        .merge(changing(import::page(ImportState::new(&sources), has_tokens), &lists))
        .merge(unit_list::page(lists.clone()))
        .merge(openapi::page())
        .merge(instances::page(&sources))
        .merge(past_counts::page(past_counts))
        .merge(policy::page(trials.clone()))
        .merge(strangers::page(StrangersState::new(&sources)))
        .merge(units::page(UnitViews::new(&sources)))
        .merge(rhythm::page(Rhythms::new(&sources)))
        .merge(suggest::page(Suggestions::new(&sources, scans.clone())))
        .merge(availability::page(AvailabilityState::new(&sources, scans)))
        .merge(timeline::page(Timelines::new(&sources)))
        .merge(changing(web::pages(Web::new(config, &sources, shared, sessions, (timers, trials))), &lists))
}

/// A client may send as many requests at once as its rate allows in this time.
const BURST: Duration = Duration::from_secs(2);

/// The pages behind the middleware that every request passes.
fn guarded(pages: Router, config: &Config, known: Option<KnownClients>) -> Router {
    let login = format!("{}/login", config.base()).into();
    let tokens = config.tokens.as_slice().into();
    let proxies = Arc::new(config.proxies.clone());
    let access = AdmissionRules {
        tokens,
        has_tokens: config.has_tokens(),
        login,
        proxies,
        known,
        rate: RequestRate::per_second(config.requests_per_second, BURST),
        requests: Arc::new(RequestLimit::open()),
        began: Stopwatch::start(),
        wrong: Arc::new(RequestLimit::closed()),
        external_host: config.external_host().map(Arc::from),
    };
    pages
        .method_not_allowed_fallback(|| async { HttpError::method_not_allowed() })
        .layer(from_fn(middleware::limit_time))
        .layer(from_fn_with_state(access, middleware::require_token))
        .layer(from_fn(middleware::plain_errors))
        .layer(from_fn(middleware::set_headers))
        .layer(from_fn(compression::compress))
}
