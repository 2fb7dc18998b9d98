//! Logins to real servers and sentinels that require TLS, a client certificate and a password.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use redis::Client;

use super::*;
use crate::clock::Clock;
use crate::simulate::servers::{Server, free_cluster_port, free_port};
use crate::store::redis::RedisEngine;
use crate::store::redis::topology::classify;
use crate::store::{DataStore, Reading};
use crate::telemetry::Telemetry;
use crate::trust::{self, Pem, TlsFiles};

/// Writes two authorities, and certificates of a server and of a client that each vouches for.
fn write_certificates(dir: &Path) {
    let write = |name: String, text: String| std::fs::write(dir.join(name), text).unwrap();
    for authority in ["ca", "other"] {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, authority);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        write(format!("{authority}.pem"), issuer.pem());
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            write(format!("{authority}-{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
            write(format!("{authority}-{name}.key"), key.serialize_pem());
        }
    }
}

/// The contents of these files, as the configuration reads them.
fn pem(dir: &Path, ca: Option<&str>, client: Option<&str>) -> Pem {
    let file = |name: String| Some(dir.join(name));
    let files = TlsFiles {
        ca: ca.and_then(|name| file(format!("{name}.pem"))),
        client_cert: client.and_then(|name| file(format!("{name}.pem"))),
        client_key: client.and_then(|name| file(format!("{name}.key"))),
    };
    trust::client("engine", &files, |file| std::fs::read(file)).unwrap().1
}

/// The options of a server that speaks nothing but TLS, to clients with a certificate.
fn secured(dir: &Path, port: u16) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let options = [
        ("--port", "0".to_owned()),
        ("--tls-port", port.to_string()),
        ("--tls-ca-cert-file", file("ca.pem")),
        ("--tls-cert-file", file("ca-server.pem")),
        ("--tls-key-file", file("ca-server.key")),
        ("--tls-auth-clients", "yes".to_owned()),
    ];
    options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

async fn ping(client: RedisResult<Client>) -> std::result::Result<(), String> {
    let answer = async {
        let mut connection = client?.get_multiplexed_async_connection().await?;
        redis::cmd("PING").query_async::<String>(&mut connection).await
    };
    answer.await.map(|_| ()).map_err(|error| classify("test", &error).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_tls_is_reached_with_the_right_certificates_and_else_the_option_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    let port = free_port().unwrap();
    let mut options = secured(dir.path(), port);
    options.extend(["--requirepass".to_owned(), "a/b".to_owned()]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let _server = Server::redis(&dir.path().join("server"), port, &options).unwrap();
    let config = |url: &str, ca, client| RedisConfig {
        url: url.to_owned(),
        tls: pem(dir.path(), ca, client),
        ..RedisConfig::default()
    };
    let tries = async |config: &RedisConfig, host: &str| {
        let login = Login::new(config).unwrap();
        ping(login.client(host, port)).await
    };
    let url = format!("rediss://:a%2Fb@127.0.0.1:{port}/3");
    let trusting = config(&url, Some("ca"), Some("ca-client"));
    assert_eq!(ping(Login::new(&trusting).unwrap().single()).await, Ok(()));
    for url in ["rediss-cluster://:a%2Fb@a,b", "rediss-sentinel://:a%2Fb@a/mymaster/3"] {
        let config = config(url, Some("ca"), Some("ca-client"));
        assert_eq!(tries(&config, "127.0.0.1").await, Ok(()), "{url}");
    }
    let with_file =
        RedisConfig { url: "rediss-cluster://a".into(), password: Some("a/b".into()), ..trusting.clone() };
    assert_eq!(tries(&with_file, "127.0.0.1").await, Ok(()));

    let untrusted = "its certificate is not from a trusted authority; name the authority in engine.ca_file";
    let uncertified = "it does not accept the client certificate";
    for (ca, client, host, expected) in [
        (None, Some("ca-client"), "127.0.0.1", untrusted),
        (Some("other"), Some("ca-client"), "127.0.0.1", untrusted),
        (Some("ca"), None, "127.0.0.1", uncertified),
        (Some("ca"), Some("other-client"), "127.0.0.1", uncertified),
        (Some("ca"), Some("ca-client"), "localhost", "the host in engine.url is not the server's name"),
    ] {
        let text = tries(&config(&url, ca, client), host).await.unwrap_err();
        assert!(text.contains(expected), "{ca:?} {client:?}: {text}");
    }
    let plain = config(&format!("redis://127.0.0.1:{port}"), None, None);
    assert!(tries(&plain, "127.0.0.1").await.is_err());
    let wrong = RedisConfig { url: "rediss-cluster://:wrong@a".into(), ..trusting };
    let text = tries(&wrong, "127.0.0.1").await.unwrap_err();
    assert!(text.contains("refused the login; check engine.url and engine.password_file"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_gets_a_login_of_its_own_and_the_same_certificates() {
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    let port = free_port().unwrap();
    let file = dir.path().join("sentinel.conf");
    let users = "user default off\nuser rollcall on >geheim allchannels +@all\n";
    std::fs::write(&file, users).unwrap();
    let mut options = vec![file.display().to_string(), "--sentinel".to_owned()];
    options.extend(secured(dir.path(), port));
    let ready = "Running mode=sentinel";
    let _sentinel = Server::start("redis-server", &options, &dir.path().join("log"), port, ready).unwrap();
    let config = |password: &str| RedisConfig {
        url: "rediss-sentinel://server:secret@a/mymaster/3".into(),
        tls: pem(dir.path(), Some("ca"), Some("ca-client")),
        sentinel_username: Some("rollcall".into()),
        sentinel_password: Some(password.into()),
        ..RedisConfig::default()
    };
    let login = Login::new(&config("geheim")).unwrap();
    assert_eq!(ping(login.sentinel("127.0.0.1", port)).await, Ok(()));
    assert!(ping(login.client("127.0.0.1", port)).await.is_err(), "the login at the servers is another");
    let login = Login::new(&config("wrong")).unwrap();
    assert!(ping(login.sentinel("127.0.0.1", port)).await.is_err());
}

/// Whether an engine on these servers records something; else why it does not.
async fn works(config: &RedisConfig) -> std::result::Result<(), EngineError> {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = RedisEngine::connect(config, telemetry).await?;
    let unit = "detector:a".parse().unwrap();
    let value = Reading { unit: &unit, metric: "level", at: Clock::system().now(), value: "1" };
    engine.keep_values(&[value]).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_and_the_primary_of_a_sentinel_are_used_within_tls() {
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    let start = |name: &str, port: u16, more: &[&str]| {
        let mut options = secured(dir.path(), port);
        options.extend(more.iter().map(|option| (*option).to_owned()));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Server::redis(&dir.path().join(name), port, &options).unwrap()
    };
    let config = |url: String| RedisConfig {
        url,
        tls: pem(dir.path(), Some("ca"), Some("ca-client")),
        sentinel_username: Some("rollcall".into()),
        sentinel_password: Some("geheim".into()),
        ..RedisConfig::default()
    };
    let port = free_cluster_port().unwrap();
    let _node = start("node", port, &["--cluster-enabled", "yes", "--tls-cluster", "yes"]);
    let on_cluster = config(format!("rediss-cluster://127.0.0.1:{port}"));
    let text = works(&on_cluster).await.unwrap_err().to_string();
    assert!(text.contains("no node of the cluster has slots"), "{text}");
    let client = Login::new(&on_cluster).unwrap().client("127.0.0.1", port).unwrap();
    let mut node = client.get_multiplexed_async_connection().await.unwrap();
    let slots: Vec<u16> = (0..16_384).collect();
    redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots).exec_async(&mut node).await.unwrap();
    let until_whole = async {
        while let Err(error) = works(&on_cluster).await {
            assert!(error.to_string().contains("does not serve all slots"), "{error}");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until_whole).await.expect("the cluster is whole");
    let untrusting = RedisConfig { tls: Pem::default(), ..on_cluster };
    let text = works(&untrusting).await.unwrap_err().to_string();
    assert!(
        text.contains(&format!("the node at 127.0.0.1:{port} cannot be reached: its certificate")),
        "{text}"
    );
    assert!(text.contains("engine.ca_file"), "{text}");

    let (port, at) = (free_port().unwrap(), free_port().unwrap());
    let _primary = start("primary", port, &["--requirepass", "other"]);
    let users = "user default off\nuser rollcall on >geheim allchannels +@all\n";
    let watched = format!(
        "sentinel monitor main 127.0.0.1 {port} 1\nsentinel auth-pass main other\ntls-replication yes\n{users}"
    );
    let file = dir.path().join("sentinel.conf");
    std::fs::write(&file, watched).unwrap();
    let mut options = vec![file.display().to_string(), "--sentinel".to_owned()];
    options.extend(secured(dir.path(), at));
    let _sentinel =
        Server::start("redis-server", &options, &dir.path().join("sentinel"), at, "+monitor").unwrap();
    let url = |password: &str| format!("rediss-sentinel://:{password}@127.0.0.1:{at}/main");
    works(&config(url("other"))).await.unwrap();
    let text = works(&config(url("wrong"))).await.unwrap_err().to_string();
    assert!(text.contains("refused the login; check engine.url and engine.password_file"), "{text}");
    let stranger = RedisConfig { sentinel_password: Some("wrong".into()), ..config(url("other")) };
    match works(&stranger).await.unwrap_err() {
        EngineError::Refused(text) => {
            assert!(
                text.contains("check engine.sentinel_username and engine.sentinel_password_file"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    let text = works(&config(url("other").replace("main", "other"))).await.unwrap_err().to_string();
    assert!(text.contains("watches no service \"other\"; check engine.url"), "{text}");
}

#[test]
fn an_address_that_is_not_valid_is_refused() {
    let config = RedisConfig { url: "redis-cluster://".into(), ..RedisConfig::default() };
    let text = Login::new(&config).err().unwrap().to_string();
    assert!(text.starts_with("engine.url names no server"), "{text}");
}
