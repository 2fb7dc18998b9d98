//! A dead man's switch: pings to another monitor, as long as Rollcall does its work.
//!
//! The pings go to a check that raises an alarm when they stop, as healthchecks.io and similar services offer:
//! `URL/start` when Rollcall starts, `URL` every period while it works, `URL/fail` with the problems in the body while
//! it does not. A machine that fails sends no pings, so the check raises the alarm that no program can raise about
//! itself.
//!
//! # When Rollcall works
//! The engine answers, every connection to the broker is up, the fleet is heard, and no receiver has refused its last
//! notification. Warnings that do not keep Rollcall from its work send no failure: they are on `/readyz` and in the
//! metrics.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use reqwest::{Client, redirect};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::clock::monotonic;
use crate::telemetry::Telemetry;
use crate::{cause, trust};

/// How long a start may take before its problems are a failure.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Config {
    /// The address of the check; its path is often a secret.
    pub url: Url,
    pub every: Duration,
    /// How long a ping may take.
    pub timeout: Duration,
}

/// `Debug` omits the path of the address.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Pings until `stop`. The log gets the first ping that fails, and the first that succeeds again. A ping is not
/// retried: the next one is due soon.
///
/// # Errors
/// The HTTP client cannot be built.
pub async fn run(config: Config, telemetry: Arc<Telemetry>, stop: CancellationToken) -> anyhow::Result<()> {
    let client = Client::builder()
        .tls_backend_preconfigured(trust::web()?)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .timeout(config.timeout)
        .user_agent(concat!("rollcall/", env!("CARGO_PKG_VERSION")))
        .build()
        .context("no HTTP client for the deadman's pings")?;
    let mut deadman = Deadman { config, client, telemetry, is_failing: false };
    stop.run_until_cancelled(deadman.run()).await;
    Ok(())
}

struct Deadman {
    config: Config,
    client: Client,
    telemetry: Arc<Telemetry>,
    /// Whether the last ping failed.
    is_failing: bool,
}

impl Deadman {
    async fn run(&mut self) {
        let mut grace_until = Some(monotonic() + GRACE);
        self.ping("start", String::new()).await;
        let mut ticks = interval(self.config.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let failures = failures(&self.telemetry);
            if failures.is_empty() {
                grace_until = None;
                self.ping("", failures).await;
            } else if grace_until.is_none_or(|until| until <= monotonic()) {
                self.ping("fail", failures).await;
            }
        }
    }

    async fn ping(&mut self, end: &str, body: String) {
        let url = with_end(&self.config.url, end);
        let answer =
            self.client.post(url).body(body).send().await.and_then(|answer| answer.error_for_status());
        match answer {
            Ok(_) if self.is_failing => {
                tracing::info!("the deadman's pings get through again");
                self.is_failing = false;
            }
            Ok(_) => {}
            // The error itself would show the whole address.
            Err(error) if !self.is_failing => {
                let origin = self.config.url.origin().ascii_serialization();
                tracing::warn!(
                    "a ping to {origin} did not get through, check deadman.url: {}",
                    cause::why("deadman", "server", &error.without_url())
                );
                self.is_failing = true;
            }
            Err(_) => {}
        }
    }
}

/// The problems that keep Rollcall from its work, one line each.
fn failures(telemetry: &Telemetry) -> String {
    let failures = telemetry.failures().into_iter();
    failures.map(|problem| format!("{}: {}\n", problem.name, problem.text)).collect()
}

/// The address with one more level at the end of its path; the query stays.
fn with_end(url: &Url, end: &str) -> Url {
    let mut url = url.clone();
    if !end.is_empty() {
        let path = format!("{}/{end}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_ping_is_one_more_level_of_the_path() {
        for (url, end, expected) in [
            ("https://hc.example/uuid", "", "https://hc.example/uuid"),
            ("https://hc.example/uuid/", "fail", "https://hc.example/uuid/fail"),
            ("https://hc.example/a/b?create=1", "start", "https://hc.example/a/b/start?create=1"),
        ] {
            assert_eq!(with_end(&url.parse().unwrap(), end).as_str(), expected);
        }
    }
}
