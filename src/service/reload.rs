//! Loads the configuration again, by SIGHUP or `POST /-/reload`.
//!
//! Receivers, routes and the classes of timers are replaced: new loops of alerting begin with them, and the former
//! loops end. The new loops continue where the former ones stopped, because all their state is in the store; for the
//! store they are another instance. The rules of kinds, such as their timeouts, are replaced in place: see
//! [`crate::fleet::SharedRules`]. Certificates of servers are read again. A file with an error changes nothing.
//!
//! Other options need a restart of the process. A reload names the sections that differ from those at the start.

use std::future::Future;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt, TryStreamExt};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::certificates::Certificates;
use super::routes_of;
use crate::alerting;
use crate::clock::Clock;
use crate::config::{Config, ConfigError, Sections};
use crate::fleet::{Roll, Timers};
use crate::http::{AlertRoutes, ReloadRequest, ShownConfiguration};
use crate::presence::Kind;
use crate::telemetry::Telemetry;

/// The sections that a reload replaces.
const REPLACED: [&str; 8] = ["route", "receiver", "time", "inhibit", "breaker", "timer", "timers", "report"];

/// The most requests that wait.
const WAITING: usize = 4;

/// The most former loops that are still ending beside the running one.
const MAX_ENDING: usize = 4;

/// The source of the configuration, and the requests to load it again.
pub struct Reload {
    load: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
    sender: mpsc::Sender<ReloadRequest>,
    requests: mpsc::Receiver<ReloadRequest>,
}

impl Reload {
    pub fn new(load: impl Fn() -> Result<Config, ConfigError> + Send + Sync + 'static) -> Reload {
        let (sender, requests) = mpsc::channel(WAITING);
        Reload { load: Box::new(load), sender, requests }
    }

    pub fn sender(&self) -> mpsc::Sender<ReloadRequest> {
        self.sender.clone()
    }
}

/// The loop that answers the requests.
pub(super) struct Reloader {
    pub reload: Reload,
    pub certificates: Certificates,
    /// The configuration at the start.
    pub started: Sections,
    /// Uses the rules of kinds.
    pub roll: Arc<Roll>,
    /// Registers timers by their classes.
    pub timers: Arc<Timers>,
    /// The replaced part, and its routes for pages.
    pub alerting: watch::Sender<Arc<alerting::AlertingConfig>>,
    pub routes: watch::Sender<Arc<AlertRoutes>>,
    /// The configuration as pages show it.
    pub configuration: watch::Sender<Arc<ShownConfiguration>>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

impl Reloader {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(Some(request)) = stop.run_until_cancelled(self.reload.requests.recv()).await {
            let loaded = self.load();
            match &loaded {
                Ok(text) => self.telemetry.configuration_loaded(text, self.clock.now()),
                Err(why) => self.telemetry.configuration_refused(why),
            }
            // The client may have disconnected.
            let _ = request.send(loaded);
        }
        stop.cancelled().await;
        Ok(())
    }

    /// Loads the configuration. Returns the text for the operator.
    fn load(&self) -> Result<String, String> {
        let config = (self.reload.load)().map_err(|error| error.to_string())?;
        let before = self.alerting.borrow().clone();
        // Another program may be writing the file, so it may be incomplete or empty.
        let without = alerting::without_receivers;
        if let (None, Some(why)) = (without(&before), without(&config.alerting)) {
            return Err(format!(
                "{why}; nothing is changed; to notify nobody, restart Rollcall with this file"
            ));
        }
        self.certificates.renew().map_err(|error| format!("{error}; nothing is changed"))?;
        // These options belong to sections that a reload does not replace.
        let (filters, brokers) = (before.filters.clone(), before.brokers.clone());
        let blind_after = before.blind_after;
        let alerting = alerting::AlertingConfig { filters, brokers, blind_after, ..config.alerting };
        let is_gone = |name: &&String| alerting.receivers.iter().all(|receiver| receiver.name != **name);
        for name in before.receivers.iter().map(|receiver| &receiver.name).filter(is_gone) {
            self.telemetry.receiver_removed(name);
        }
        self.timers.replace_rules(config.timers);
        self.routes.send_replace(Arc::new(routes_of(&alerting)));
        self.alerting.send_replace(Arc::new(alerting));
        self.configuration.send_replace(Arc::new(config.shown));
        self.roll.census().configured(config.sections.shared(&self.started));
        let rules = self.roll.replace_rules(&config.rules);
        let mut loaded = "routes and receivers are replaced".to_owned();
        if !rules.is_empty() {
            let kinds: Vec<&str> = rules.iter().map(Kind::as_str).collect();
            loaded.push_str(&format!(", and so are timeouts and other rules of {}", kinds.join(", ")));
        }
        let rest: Vec<&str> = self
            .started
            .changed(&config.sections)
            .into_iter()
            .filter(|section| !REPLACED.contains(section))
            .collect();
        if !rest.is_empty() {
            loaded.push_str(&format!("; a restart is needed for the changes in {}", rest.join(", ")));
        }
        Ok(loaded)
    }
}

/// Runs a loop with the configuration of alerting, and a new loop with each loaded configuration, until they are
/// stopped. A replaced loop may take seconds to end. The new loop begins meanwhile, as the loop of another instance
/// would, so that a receiver that hangs delays no other receiver.
pub(super) async fn anew_with_each<F: Future<Output = anyhow::Result<()>>>(
    mut configs: watch::Receiver<Arc<alerting::AlertingConfig>>,
    stop: CancellationToken,
    run: impl Fn(alerting::AlertingConfig, CancellationToken) -> F,
) -> anyhow::Result<()> {
    let mut ending = FuturesUnordered::new();
    loop {
        let config = configs.borrow_and_update().as_ref().clone();
        let until = stop.child_token();
        let mut running = Box::pin(run(config, until.clone()));
        loop {
            tokio::select! {
                ended = &mut running => {
                    ended?;
                    return ending.try_collect().await;
                }
                Some(ended) = ending.next() => ended?,
                Ok(()) = configs.changed(), if ending.len() < MAX_ENDING => break,
            }
        }
        until.cancel();
        ending.push(running);
    }
}
