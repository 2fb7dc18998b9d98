//! The pings of the dead man's switch, as another monitor receives them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use rollcall::clock::{Clock, Timestamp};
use rollcall::deadman::{self, Config};
use rollcall::telemetry::{DeliveryOutcome, Loop, Telemetry};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const MAX_WAIT: Duration = Duration::from_secs(120);

type Pings = Arc<Mutex<Vec<(String, String)>>>;

async fn take(State(pings): State<Pings>, uri: Uri, body: String) -> StatusCode {
    pings.lock().unwrap().push((uri.path().to_owned(), body));
    StatusCode::OK
}

/// A monitor that keeps its pings, and a Rollcall of which only the dead man's switch runs.
struct World {
    pings: Pings,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
}

impl World {
    async fn new() -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (pings, stop) = (Pings::default(), CancellationToken::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/check", listener.local_addr().unwrap()).parse().unwrap();
        let monitor = Router::new().fallback(take).with_state(pings.clone());
        tokio::spawn(async move { axum::serve(listener, monitor).await });
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)));
        let config = Config { url, every: Duration::from_millis(20), timeout: MAX_WAIT };
        tokio::spawn(deadman::run(config, telemetry.clone(), stop.clone()));
        World { pings, telemetry, stop }
    }

    /// Waits for the next ping to this path and returns its body. Earlier pings are dropped.
    async fn next(&self, path: &str) -> String {
        self.pings.lock().unwrap().clear();
        self.first(path).await
    }

    async fn first(&self, path: &str) -> String {
        let awaited = async {
            loop {
                let ping = self.pings.lock().unwrap().iter().find(|(to, _)| to == path).cloned();
                match ping {
                    Some((_, body)) => return body,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(MAX_WAIT, awaited).await.unwrap_or_else(|_| panic!("no ping to {path}"))
    }

    fn all_is_well(&self) {
        self.telemetry.engine_answered(Loop::Sweep, "");
        self.telemetry.mqtt_connected(("main", "main"), "broker");
        self.telemetry.blind(false, Some(Timestamp::ZERO));
    }
}

#[tokio::test]
async fn a_start_is_pinged_and_after_it_success() {
    let world = World::new().await;
    world.first("/check/start").await;
    // A loop that has not started yet is not a failure.
    assert!(world.pings.lock().unwrap().iter().all(|(path, _)| path == "/check/start"));
    world.all_is_well();
    assert_eq!(world.next("/check").await, "");
    world.stop.cancel();
}

#[tokio::test]
async fn a_cause_that_keeps_rollcall_from_its_work_is_a_failure_until_it_is_over() {
    let world = World::new().await;
    world.all_is_well();
    world.next("/check").await;
    world.telemetry.engine_failed(Loop::Sweep, "", &"gone for lunch");
    let said = world.next("/check/fail").await;
    assert!(said.starts_with("engine_down: ") && said.contains("gone for lunch"), "{said}");
    world.telemetry.engine_answered(Loop::Sweep, "");
    world.next("/check").await;
    world.telemetry.notification("mail", DeliveryOutcome::Retry, Duration::ZERO, "answered 503");
    let said = world.next("/check/fail").await;
    assert!(said.starts_with("not_delivered: receiver mail "), "{said}");
    world.telemetry.notification("mail", DeliveryOutcome::Delivered, Duration::ZERO, "");
    world.next("/check").await;
    world.stop.cancel();
}
