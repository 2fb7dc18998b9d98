//! The web server with TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rollcall::clock::Clock;
use rollcall::http::{self, Config, Proxies, UnitMetrics, open_tls};
use rollcall::telemetry::Telemetry;
use rollcall::trust::{ServerFiles, TlsFiles, client};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::support::certificates::Authority;

fn files(dir: &Path) -> ServerFiles {
    ServerFiles { cert: dir.join("server.pem"), key: dir.join("server.key"), client_ca: None }
}

/// The certificate that the server shows, and its answer to a request.
async fn asked(address: SocketAddr, dir: &Path) -> (Vec<u8>, String) {
    let trusted = TlsFiles { ca: Some(dir.join("ca.pem")), ..TlsFiles::default() };
    let (config, _) = client("test", &trusted, |file| std::fs::read(file)).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    (shown, answer)
}

#[tokio::test]
async fn the_server_speaks_tls_and_shows_a_renewed_certificate_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let authority = Authority::new(dir);
    authority.certify_server(dir, false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = Config {
        listen: address,
        tokens: Vec::new(),
        unit_metrics: UnitMetrics::All,
        unit_metrics_limit: 1,
        requests_per_second: 0,
        external_url: None,
        tls: None,
        proxies: Proxies::default(),
        switches: None,
        example_topic: None,
    };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let pages = http::Pages::new(config, "one", telemetry.clone());
    let tls = Arc::new(open_tls(&files(dir)).unwrap());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(http::serve_tls(listener, tls.clone(), pages, telemetry, stop.clone()));

    let (first, answer) = asked(address, dir).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // A client that speaks no TLS gets no answer, and harms no other.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes).await;
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");

    // A certificate without its key is not used; once the key is there too, it is.
    let key = std::fs::read(dir.join("server.key")).unwrap();
    authority.certify_server(dir, false);
    let fresh_key = std::fs::read(dir.join("server.key")).unwrap();
    std::fs::write(dir.join("server.key"), key).unwrap();
    let problem = tls.renew().unwrap_err().to_string();
    assert!(problem.starts_with("http.key_file: ") && problem.contains("does not belong to"), "{problem}");
    assert_eq!(asked(address, dir).await.0, first);
    std::fs::write(dir.join("server.key"), fresh_key).unwrap();
    assert!(tls.renew().unwrap() && !tls.renew().unwrap(), "once");
    assert_ne!(asked(address, dir).await.0, first);
    stop.cancel();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_address_that_others_reach_needs_a_token_with_tls_too() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new(dir.path()).certify_server(dir.path(), false);
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let config = Config {
        listen: "127.0.0.1:1".parse().unwrap(),
        tokens: Vec::new(),
        unit_metrics: UnitMetrics::All,
        unit_metrics_limit: 1,
        requests_per_second: 0,
        external_url: None,
        tls: None,
        proxies: Proxies::default(),
        switches: None,
        example_topic: None,
    };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let pages = http::Pages::new(config, "one", telemetry.clone());
    let tls = Arc::new(open_tls(&files(dir.path())).unwrap());
    let refused = http::serve_tls(listener, tls, pages, telemetry, CancellationToken::new()).await;
    assert!(refused.unwrap_err().to_string().contains("http.tls_listen"));
}
