//! The start and the end of the service as operators and supervisors see them: before the engine answers, and
//! with signals.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rollcall::config;
use rollcall::service;
use rollcall::simulate::servers::{Server, free_port};
use rumqttc::{AsyncClient, MqttOptions, PublishOptions, QoS};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::http::get;

const MAX_WAIT: Duration = Duration::from_secs(120);

/// Status, type and body of a page; `None` while nothing listens.
async fn page(port: u16, path: &str) -> Option<(u16, String, String)> {
    let answer = get(format!("http://127.0.0.1:{port}{path}")).await.ok()?;
    let content = answer.headers().get("content-type")?.to_str().ok()?.to_owned();
    Some((answer.status().as_u16(), content, answer.text().await.ok()?))
}

async fn eventually(what: &str, mut fact: impl AsyncFnMut() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_answered_before_the_engine_is_there_and_readiness_names_the_engine() {
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
async fn a_service_that_waits_for_the_engine_ends_with_a_signal() {
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

/// A process with the embedded engine and the broker within, and the lines of its log.
struct Process {
    child: Child,
    lines: Receiver<String>,
    broker: u16,
}

impl Process {
    fn start(dir: &Path, options: &str) -> Process {
        let (broker, http) = (free_port().unwrap(), free_port().unwrap());
        let text = format!(
            "engine = {{ type = \"embedded\", path = \"fleet\" }}\nbroker.listen = \"127.0.0.1:{broker}\"\n\
             http.listen = \"127.0.0.1:{http}\"\n{options}"
        );
        std::fs::write(dir.join("rollcall.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        command.arg("serve").current_dir(dir).env_remove("RUST_LOG").stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (line, lines) = mpsc::channel();
        let pipe = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || pipe.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
        Process { child, lines, broker }
    }

    /// The lines up to the first that contains `text`.
    fn until(&self, text: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|line: &String| !line.contains(text)) {
            let line = self.lines.recv_timeout(MAX_WAIT);
            seen.push(line.unwrap_or_else(|_| panic!("no line with {text:?} in {seen:#?}")));
        }
        seen
    }

    fn signal(&self, signals: &[&str]) {
        let each = signals.iter().map(|signal| format!("kill -{signal} {}", self.child.id()));
        let script = each.collect::<Vec<_>>().join("; ");
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn beat(port: u16, topic: &str) {
    let options = MqttOptions::new("device", ("127.0.0.1", port));
    let (client, mut events) = AsyncClient::builder(options).capacity(8).build();
    let follow = tokio::spawn(async move { while events.poll().await.is_ok() {} });
    let notice = client.publish_tracked(topic, "{}", PublishOptions::new(QoS::AtLeastOnce)).await.unwrap();
    notice.wait_async().await.unwrap();
    client.disconnect().await.unwrap();
    follow.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offline_unit_is_a_line_that_its_id_cannot_forge_also_without_receivers() {
    for format in ["human", "json"] {
        let dir = tempfile::tempdir().unwrap();
        let options =
            format!("log.format = \"{format}\"\nkind = [{{ name = \"detector\", timeout = \"1s\" }}]");
        let process = Process::start(dir.path(), &options);
        let mut lines = process.until("no receiver is configured: no notification will be sent");
        lines.extend(process.until("the fleet is heard"));
        beat(process.broker, "units/a\u{202e}\" level=error/heartbeat").await;
        lines.extend(process.until("unit offline"));
        let expected = match format {
            "human" => r#"unit="detector:a\u{202e}\" level=error""#,
            _ => r#""unit":"detector:a\u202e\" level=error""#,
        };
        assert!(lines.last().unwrap().contains(expected), "{lines:#?}");
        beat(process.broker, "units/a\u{202e}\" level=error/heartbeat").await;
        lines.extend(process.until("unit back"));
        for line in lines {
            assert!(!line.contains('\u{202e}'), "{line}");
            let ours = line.contains(" rollcall::") || line.contains("\"target\":\"rollcall::");
            assert!(ours, "a library speaks: {line}");
        }
    }
}

#[test]
fn two_signals_at_once_are_one_stop() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = Process::start(dir.path(), "");
    process.until("the fleet is heard");
    // Two different signals, because two equal ones may be delivered as one.
    process.signal(&["TERM", "INT"]);
    let lines = process.until("stopped");
    assert!(lines.iter().all(|line| !line.contains("second time")), "{lines:#?}");
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
}
