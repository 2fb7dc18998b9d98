//! What Rollcall shows: metrics, health, records and units.
//!
//! One file a page. A page lists what it reads and gets no more; lists and counts come from the
//! mirror, single units and records from the engine, and nothing walks over the engine for a
//! request but `/metrics/units`, where kinds have metrics: their values are read as they are
//! written, and held nowhere. The mirror holds the partitions of this instance, so what instances count adds up.
//! Whatever goes wrong is answered as `application/problem+json`.
//!
//! The server answers from the first moment of the process: before the engine is there, `/healthz` and
//! `/readyz` do, and every other page is answered by 503.
//!
//! Every page is read-only so far. With tokens configured, every page but the two for health needs
//! one.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use anyhow::ensure;
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::fleet::{Mirror, Ownership, Roll};
use crate::store::{Catalogue, Engine};
use crate::telemetry::Telemetry;

mod connections;
mod exposition;
mod guard;
mod health;
mod home;
mod metrics;
mod probe;
mod problem;
mod records;
mod targets;
mod unit_metrics;
mod units;

use connections::Limits;
use probe::Probed;
use problem::Problem;
use unit_metrics::Listed;

/// What the server needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; anything but loopback needs at least one token.
    pub listen: SocketAddr,
    /// Who may ask; empty: everybody who can reach the address.
    pub tokens: Vec<Token>,
    /// Which units `/metrics/units` shows when the request does not say.
    pub unit_metrics: UnitMetrics,
    /// The most units that one page of `/metrics/units` shows.
    pub unit_metrics_limit: u64,
}

/// Which units `/metrics/units` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitMetrics {
    /// Every unit.
    #[default]
    All,
    /// Those with an open record.
    Offline,
    /// None.
    Off,
}

/// A bearer token.
#[derive(Clone, Debug)]
pub struct Token {
    /// Whose it is, for the log.
    pub name: String,
    /// SHA-256 of the token.
    pub sha256: [u8; 32],
    /// What its holder may do.
    pub role: Role,
}

/// What the holder of a token may do; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look.
    Viewer,
    /// Acknowledge, silence, replay.
    Operator,
    /// Register and remove units.
    Admin,
}

/// What the server shows.
#[derive(Clone)]
pub struct Shown {
    /// Which part of the fleet this instance speaks of where it speaks of all units.
    pub ownership: Ownership,
    /// Single units and records.
    pub engine: Arc<dyn Engine>,
    /// The rules, and how far Rollcall has heard.
    pub roll: Arc<Roll>,
    /// All units.
    pub mirror: Arc<Mirror>,
    /// What units of each kind tell of themselves.
    pub metrics: Arc<Catalogue>,
    /// Metrics and what is wrong.
    pub telemetry: Arc<Telemetry>,
    /// The time of asking.
    pub clock: Clock,
}

/// The pages that are answered now: from the first moment those for health, and all as soon as
/// [`Pages::show`] was told what to show. Cheap to share.
#[derive(Clone)]
pub struct Pages {
    config: Arc<Config>,
    early: Router,
    all: Arc<OnceLock<Router>>,
}

impl Pages {
    /// The pages of `instance` while it waits for the engine.
    pub fn new(config: Config, instance: &str, telemetry: Arc<Telemetry>) -> Pages {
        let early = Router::new()
            .merge(health::early_pages(instance.to_owned(), telemetry))
            .fallback(|| async { Problem::unavailable("waiting for the engine; /readyz says why") });
        Pages { early: guarded(early, &config), config: Arc::new(config), all: Arc::default() }
    }

    /// Answers every page from now on. Streams end with `stop`.
    pub fn show(&self, shown: Shown, stop: &CancellationToken) {
        // What was shown before goes on to be shown.
        let _ = self.all.set(guarded(pages(&self.config, shown, stop), &self.config));
    }

    fn now(&self) -> Router {
        self.all.get().unwrap_or(&self.early).clone()
    }
}

/// Answers requests until `stop`; answers that are on their way get a few seconds more, streams
/// are cut off. The listener is bound by the caller, so that a port in use is found at the start.
pub async fn serve(
    listener: TcpListener,
    pages: Pages,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    ensure!(
        address.ip().is_loopback() || !pages.config.tokens.is_empty(),
        "{address} can be reached from elsewhere; configure a token or listen on 127.0.0.1 (http.listen)"
    );
    connections::accept(listener, pages, Limits::default(), telemetry, stop).await;
    Ok(())
}

fn pages(config: &Config, shown: Shown, stop: &CancellationToken) -> Router {
    let Shown { ownership, engine, roll, mirror, metrics, telemetry, clock } = shown;
    let listed = Listed {
        mirror: mirror.clone(),
        engine: engine.clone(),
        roll: roll.clone(),
        clock: clock.clone(),
        metrics: metrics.metrics(),
        usual: config.unit_metrics,
        limit: config.unit_metrics_limit,
        stop: stop.clone(),
    };
    let probed =
        Probed { engine: engine.clone(), roll: roll.clone(), clock: clock.clone(), metrics: metrics.clone() };
    Router::new()
        .merge(home::page(ownership.clone(), mirror.clone(), roll.clone(), clock.clone()))
        .merge(health::pages(ownership.clone(), mirror.clone(), telemetry.clone()))
        .merge(metrics::page(mirror, roll.clone(), telemetry, clock.clone()))
        .merge(unit_metrics::page(listed))
        .merge(probe::page(probed))
        .merge(targets::page(engine.clone(), ownership))
        .merge(records::pages(engine.clone()))
        .merge(units::page(engine, roll, clock, metrics))
        .fallback(|| async { Problem::not_found("there is no such page") })
}

/// What every request passes on its way to a page.
fn guarded(pages: Router, config: &Config) -> Router {
    pages
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(from_fn(guard::limit_time))
        .layer(from_fn_with_state(Arc::from(config.tokens.as_slice()), guard::ask_for_a_token))
        .layer(from_fn(guard::set_headers))
}
