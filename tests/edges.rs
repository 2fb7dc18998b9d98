//! The service at its edges, as operators and supervisors meet it: before the engine is there, and
//! when it is told to end.

use std::time::Duration;

use rollcall::config;
use rollcall::service;
use rollcall::simulate::servers::{Server, free_port};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(40);

/// Status, type and body of a page; `None` while nothing listens.
async fn page(port: u16, path: &str) -> Option<(u16, String, String)> {
    let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await.ok()?;
    let content = answer.headers().get("content-type")?.to_str().ok()?.to_owned();
    Some((answer.status().as_u16(), content, answer.text().await.ok()?))
}

async fn eventually(what: &str, mut fact: impl AsyncFnMut() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_answered_before_the_engine_is_there_and_readiness_says_what_is_waited_for() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let (redis, http) = (free_port().unwrap(), free_port().unwrap());
    let broker = Server::mosquitto(&dir.path().join("broker"), free_port().unwrap(), "").unwrap();
    let text = format!(
        "engine.url = \"redis://127.0.0.1:{redis}/0\"\nmqtt.url = \"mqtt://127.0.0.1:{}\"\n\
         http.listen = \"127.0.0.1:{http}\"\ninstance.name = \"early\"",
        broker.port()
    );
    let config = config::parse(&text, None, []).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(service::run(config, stop.clone()));

    eventually("it says what it waits for", async || {
        page(http, "/readyz").await.is_some_and(|(_, _, body)| body.contains("waiting for the engine: "))
    })
    .await;
    let (status, _, body) = page(http, "/readyz").await.unwrap();
    let ready: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &ready["ready"], &ready["instance"]), (503, &false.into(), &"early".into()));
    let (status, _, body) = page(http, "/healthz").await.unwrap();
    assert_eq!((status, body.as_str()), (200, "ok"));
    for other in ["/", "/metrics", "/api/v1/records", "/nowhere"] {
        let (status, content, body) = page(http, other).await.unwrap();
        assert_eq!((status, content.as_str()), (503, "application/problem+json"), "{other}: {body}");
    }

    let _redis = Server::redis(&dir.path().join("redis"), redis, &[]).unwrap();
    eventually("every page is there", async || page(http, "/metrics").await.unwrap().0 == 200).await;
    eventually("it is ready", async || page(http, "/readyz").await.unwrap().0 == 200).await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_waits_for_the_engine_ends_when_it_is_told_to() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (redis, http) = (free_port().unwrap(), free_port().unwrap());
    let text = format!("engine.url = \"redis://127.0.0.1:{redis}/0\"\nhttp.listen = \"127.0.0.1:{http}\"");
    let stop = CancellationToken::new();
    let running = tokio::spawn(service::run(config::parse(&text, None, []).unwrap(), stop.clone()));
    eventually("it lives", async || page(http, "/healthz").await.is_some()).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    assert!(page(http, "/healthz").await.is_none());
}
