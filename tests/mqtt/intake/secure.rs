//! TLS, client certificates and websockets, with passwords.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rollcall::intake::{Tls, TlsFiles, probe};
use rollcall::simulate::servers::{Server, free_port};

use super::world::{World, eventually};

/// A broker that listens within TLS and within websockets, and requires a login.
struct Secured {
    world: World,
    dir: PathBuf,
    tls: u16,
    ws: u16,
    wss: u16,
}

/// Writes an authority, and certificates of the broker and of a client that it signs.
fn write_certificates(dir: &Path) {
    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
    for authority in ["ca", "other"] {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, authority);
        let authority_key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, authority_key).unwrap();
        write(&format!("{authority}.pem"), issuer.pem());
        for name in ["broker", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            write(&format!("{authority}-{name}.pem"), certificate.pem());
            write(&format!("{authority}-{name}.key"), key.serialize_pem());
        }
    }
}

impl Secured {
    async fn new() -> Secured {
        let mut world = World::new("").await;
        let dir = world.directory().join("secured");
        std::fs::create_dir_all(&dir).unwrap();
        write_certificates(&dir);
        let [tls, ws, wss] = [(); 3].map(|()| free_port().unwrap());
        let at = dir.display();
        let certificates =
            format!("cafile {at}/ca.pem\ncertfile {at}/ca-broker.pem\nkeyfile {at}/ca-broker.key\n");
        world.broker.kill();
        let port = world.broker.port();
        // User "rollcall" with the password "secret", as mosquitto_passwd writes it.
        std::fs::write(dir.join("passwords"), passwords(&dir)).unwrap();
        let more = format!(
            "password_file {at}/passwords\nlistener {tls} 127.0.0.1\n{certificates}require_certificate true\n\
             listener {ws} 127.0.0.1\nprotocol websockets\n\
             listener {wss} 127.0.0.1\nprotocol websockets\n{certificates}"
        );
        world.broker = Server::mosquitto(&dir.join("broker"), port, &more).unwrap();
        world.config.credentials = Some(("rollcall".to_owned(), "secret".to_owned()));
        Secured { world, dir, tls, ws, wss }
    }

    /// Settings of TLS from these files.
    fn tls(&self, ca: &str, client: Option<&str>) -> Option<Tls> {
        let file = |name: &str| Some(self.dir.join(name));
        let files = TlsFiles {
            ca: file(ca),
            client_cert: client.and_then(|name| file(&format!("{name}.pem"))),
            client_key: client.and_then(|name| file(&format!("{name}.key"))),
        };
        Some(Tls::read(&files).unwrap())
    }

    async fn hears_the_fleet(&self) {
        let running = self.world.start().await;
        let device = self.world.device();
        device.publishes("units/7/heartbeat", "").await;
        eventually("it is known", async || self.world.is_known("detector:7").await).await;
        eventually("canaries come", async || self.world.heard().await.is_some()).await;
        running.stop().await;
    }

    /// The result of `rollcall check`.
    async fn problem(&self) -> String {
        let probed = tokio::time::timeout(Duration::from_secs(20), probe(&self.world.config)).await;
        format!("{:#}", probed.expect("the broker answers").unwrap_err())
    }
}

fn passwords(dir: &Path) -> String {
    let file = dir.join("made");
    let made = std::process::Command::new("mosquitto_passwd")
        .args(["-b", "-c", &file.display().to_string(), "rollcall", "secret"])
        .status();
    assert!(made.expect("mosquitto comes with mosquitto_passwd").success());
    std::fs::read_to_string(file).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_heard_within_tls_by_a_client_with_a_certificate_and_no_other() {
    let mut secured = Secured::new().await;
    secured.world.config.url = format!("mqtts://127.0.0.1:{}", secured.tls);
    secured.world.config.tls = secured.tls("ca.pem", Some("ca-client"));
    probe(&secured.world.config).await.unwrap();
    secured.hears_the_fleet().await;

    secured.world.config.tls = secured.tls("ca.pem", None);
    let why = secured.problem().await;
    assert!(why.contains("client certificate") && why.contains("mqtt.client_cert_file"), "{why}");
    secured.world.config.tls = secured.tls("ca.pem", Some("other-client"));
    let why = secured.problem().await;
    assert!(why.contains("mqtt.client_cert_file"), "{why}");
    for tls in [secured.tls("other.pem", Some("ca-client")), None] {
        secured.world.config.tls = tls;
        let why = secured.problem().await;
        assert!(why.contains("not from a trusted authority") && why.contains("mqtt.ca_file"), "{why}");
    }
    secured.world.config.tls = secured.tls("ca.pem", Some("ca-client"));
    secured.world.config.url = format!("mqtts://localhost:{}", secured.tls);
    let why = secured.problem().await;
    assert!(why.contains("is not the broker's name"), "{why}");
    secured.world.config.url = format!("mqtts://127.0.0.1:{}", secured.tls);
    secured.world.config.credentials = Some(("rollcall".to_owned(), "wrong".to_owned()));
    let why = secured.problem().await;
    assert!(why.contains("check mqtt.username and mqtt.password_file"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_heard_within_websockets() {
    let mut secured = Secured::new().await;
    secured.world.config.url = format!("ws://127.0.0.1:{}/mqtt", secured.ws);
    probe(&secured.world.config).await.unwrap();
    secured.hears_the_fleet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_heard_within_websockets_within_tls() {
    let mut secured = Secured::new().await;
    secured.world.config.url = format!("wss://127.0.0.1:{}", secured.wss);
    secured.world.config.tls = secured.tls("ca.pem", None);
    probe(&secured.world.config).await.unwrap();
    secured.hears_the_fleet().await;
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    write_certificates(dir.path());
    std::fs::write(dir.path().join("empty"), "").unwrap();
    let read = |ca: &str, cert: &str, key: &str| {
        let file = |name: &str| (!name.is_empty()).then(|| dir.path().join(name));
        let files = TlsFiles { ca: file(ca), client_cert: file(cert), client_key: file(key) };
        Tls::read(&files).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(read("", "", ""), Ok(()));
    assert_eq!(read("ca.pem", "ca-client.pem", "ca-client.key"), Ok(()));
    for (ca, cert, key, parts) in [
        ("none.pem", "", "", ["mqtt.ca_file: ", "none.pem cannot be read"]),
        ("empty", "", "", ["mqtt.ca_file: ", "empty holds no certificate"]),
        ("ca-client.key", "", "", ["mqtt.ca_file: ", "-----BEGIN CERTIFICATE-----"]),
        ("", "ca-client.pem", "", ["mqtt.client_key_file: ", "is missing"]),
        ("", "", "ca-client.key", ["mqtt.client_cert_file: ", "is missing"]),
        ("", "ca-client.pem", "ca-client.pem", ["mqtt.client_key_file: ", "holds no private key"]),
        ("", "ca-client.pem", "other-client.key", ["mqtt.client_key_file: ", "does not belong to"]),
    ] {
        let why = read(ca, cert, key).unwrap_err();
        assert!(parts.iter().all(|part| why.contains(part)), "{parts:?}: {why}");
    }
}
