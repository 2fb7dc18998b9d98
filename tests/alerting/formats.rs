//! Claims about the formats of webhooks, and about their connections.

use std::path::Path;
use std::sync::Arc;

use rollcall::alerting::{Failure, Format, HttpConfig, Links, open, probe};
use rollcall::presence::Interval;
use rollcall::simulate::webhook_sink::{Answer, Options, Received, WebhookSink};
use rollcall::trust::TlsFiles;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::shapes::differences;
use super::support::certificates::Authority;
use super::*;

async fn sink() -> WebhookSink {
    WebhookSink::start(Options::default()).await.unwrap()
}

fn with_links(config: WebhookConfig) -> ReceiverConfig {
    let links = Links::new(&"https://rollcall.example.org/".parse().unwrap());
    let message = MessageConfig { links, ..MessageConfig::default() };
    ReceiverConfig { message, ..receiver("hook", webhook_of(config)) }
}

async fn received(config: WebhookConfig, delivery: &Delivery) -> Received {
    let sink = sink().await;
    let config = WebhookConfig { url: sink.url(), ..config };
    open(&with_links(config)).unwrap().send(delivery, now()).await.unwrap();
    sink.received().remove(0)
}

#[tokio::test]
async fn a_bridge_for_alertmanager_gets_its_payload() {
    let (mut down, up) = (silent("detector:a", now()), silent("detector:b", now()));
    down.labels = labels(&[("site", "north")]);
    let up = OfflineRecord { labels: down.labels.clone(), ..up };
    let both = delivery(vec![down.clone()], vec![back(&up, now())]);
    let config = || WebhookConfig { format: Format::Alertmanager, ..WebhookConfig::default() };
    let payload = received(config(), &both).await.json();
    assert_eq!(differences(&shapes::alertmanager(), &payload), [""; 0]);
    assert_eq!(payload["status"], "firing");
    assert_eq!(payload["groupKey"], "kind=detector");
    let common = serde_json::json!({"alertname": "UnitOffline", "kind": "detector", "site": "north"});
    assert_eq!(payload["commonLabels"], common);
    assert_eq!(payload["externalURL"], "https://rollcall.example.org/");
    let [firing, resolved] = &payload["alerts"].as_array().unwrap()[..] else { panic!("{payload}") };
    assert_eq!(firing["startsAt"], down.deadline.to_string());
    assert_eq!(firing["endsAt"], "0001-01-01T00:00:00Z");
    assert_eq!([&firing["status"], &resolved["status"]], ["firing", "resolved"]);
    assert_eq!(firing["labels"]["unit"], "a");
    let over = delivery(vec![], vec![back(&up, now())]);
    assert_eq!(received(config(), &over).await.json()["status"], "resolved");
    let blind = Interval { from: now(), to: Timestamp::NEVER };
    let blind = Delivery { blind: vec![blind], ..delivery(vec![], vec![]) };
    let payload = received(config(), &blind).await.json();
    assert_eq!(payload["alerts"][0]["labels"]["alertname"], "RollcallBlind");
}

#[tokio::test]
async fn an_event_of_cloudevents_has_the_id_of_the_notification() {
    let record = silent("detector:a", now());
    let delivery = delivery(vec![record.clone()], vec![]);
    let config = WebhookConfig { format: Format::CloudEvents, ..WebhookConfig::default() };
    let request = received(config, &delivery).await;
    assert_eq!(request.header("content-type"), "application/cloudevents+json");
    let event = request.json();
    assert_eq!(differences(&shapes::cloud_event(), &event), [""; 0]);
    assert_eq!(event["id"], delivery.id.as_str());
    assert_eq!(event["type"], "rollcall.notification");
    assert_eq!(event["data"]["offline"][0]["unit"], "a");
}

#[tokio::test]
async fn a_template_has_its_own_method_headers_and_body() {
    let body = r#"{{ status }}: {% for record in offline %}{{ record.kind }}/{{ record.unit }} {{ record.url }}{% endfor %}"#;
    let headers = [("content-type", "text/plain"), ("x-state", "{{ status }}")];
    let config = WebhookConfig {
        format: Format::Template { method: "put".to_owned(), body: body.to_owned() },
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        token: Some("s3cret-token".to_owned()),
        ..WebhookConfig::default()
    };
    let request = received(config, &delivery(vec![silent("detector:a b", now())], vec![])).await;
    assert_eq!(request.method, "PUT");
    assert_eq!(request.header("x-state"), "firing");
    assert_eq!(request.header("authorization"), "Bearer s3cret-token");
    let text = "firing: detector/a b https://rollcall.example.org/units/detector/a%20b";
    assert_eq!(request.body, text);
}

#[tokio::test]
async fn an_answer_that_repeats_a_secret_is_shown_without_it() {
    let sink = sink().await;
    sink.answer_with([Answer::Say(401, "no such token: s3cret-token".to_owned())]);
    let token = Some("s3cret-token".to_owned());
    let config = WebhookConfig { url: sink.url(), token, ..WebhookConfig::default() };
    let channel = open(&with_links(config)).unwrap();
    let failure = channel.send(&delivery(vec![], vec![]), now()).await.unwrap_err().to_string();
    assert!(failure.contains("no such token: ***") && !failure.contains("s3cret"), "{failure}");
}

#[tokio::test]
async fn an_answer_that_repeats_the_words_of_a_header_or_a_login_is_shown_without_them() {
    let sink = sink().await;
    let encoded = data_encoding::BASE64.encode(b"ops:pa55-word");
    sink.answer_with([Answer::Say(400, format!("status firing: Basic {encoded} pa55-word k3y-of-api"))]);
    let url = format!("http://ops:pa55-word@127.0.0.1:{}/hook", sink.port());
    let value = "Key k3y-of-api {{ status }} firing".to_owned();
    let headers = [("x-api-key".to_owned(), value)].into();
    let format = Format::Template { method: String::new(), body: "{}".to_owned() };
    let config = WebhookConfig { url, headers, format, ..WebhookConfig::default() };
    let channel = open(&with_links(config)).unwrap();
    let failure = channel.send(&delivery(vec![], vec![]), now()).await.unwrap_err().to_string();
    assert!(failure.contains("\"status ***: Basic *** *** ***\""), "{failure}");
    assert_eq!(sink.received()[0].header("authorization"), format!("Basic {encoded}"));
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_network_is_not_connected_to() {
    let sink = sink().await;
    let url = format!("http://localhost:{}/s3cret", sink.port());
    let http = HttpConfig { deny_private_addresses: true, ..HttpConfig::default() };
    let receiver = with_links(WebhookConfig { url, http, ..WebhookConfig::default() });
    let sent = open(&receiver).unwrap().send(&delivery(vec![], vec![]), now()).await.unwrap_err();
    for failure in [sent, probe(&receiver).await.unwrap_err()] {
        assert!(failure.to_string().contains("its address is private"), "{failure}");
        assert!(!failure.to_string().contains("s3cret"), "{failure}");
    }
    assert!(sink.received().is_empty());
}

/// A server with TLS in front of a sink, which takes only clients with a certificate of the authority.
async fn tls_before(sink: &WebhookSink, dir: &Path) -> u16 {
    let certificate = |name: &str| CertificateDer::from_pem_file(dir.join(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![certificate("server.pem")],
            PrivateKeyDer::from_pem_file(dir.join("server.key")).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, behind) = (listener.local_addr().unwrap().port(), sink.port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await?;
                let mut inside = TcpStream::connect(("127.0.0.1", behind)).await?;
                copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });
    port
}

#[tokio::test]
async fn a_server_with_an_authority_of_ones_own_gets_a_client_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path());
    authority.certify_server(dir.path(), false);
    let sink = sink().await;
    let url = format!("https://127.0.0.1:{}/hook", tls_before(&sink, dir.path()).await);
    let file = |name: &str| Some(dir.path().join(name));
    let whole =
        TlsFiles { ca: file("ca.pem"), client_cert: file("client.pem"), client_key: file("client.key") };
    let sent = async |tls: TlsFiles| {
        let http = HttpConfig { tls, ..HttpConfig::default() };
        let receiver = with_links(WebhookConfig { url: url.clone(), http, ..WebhookConfig::default() });
        open(&receiver).unwrap().send(&delivery(vec![], vec![]), now()).await
    };
    sent(whole.clone()).await.unwrap();
    let unknown = sent(TlsFiles { ca: None, ..whole.clone() }).await.unwrap_err();
    assert!(unknown.to_string().contains("certificate"), "{unknown}");
    let anonymous = sent(TlsFiles { client_cert: None, client_key: None, ..whole }).await;
    assert!(matches!(anonymous, Err(Failure::Temporary { .. })), "{anonymous:?}");
    assert_eq!(sink.received().len(), 1);
}
