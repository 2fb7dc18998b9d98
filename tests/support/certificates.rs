//! TLS of a test: an authority, and the certificates that it vouches for.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use redis::aio::MultiplexedConnection;
use redis::{Client, ClientTlsConfig, IntoConnectionInfo, RedisResult, TlsCertificates};

use super::client::patient;

/// An authority, and the certificate of all clients, as files of a directory.
pub struct Authority {
    /// The host of every certificate.
    host: &'static str,
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    pub fn new(dir: &Path) -> Authority {
        Authority::of_host(dir, "127.0.0.1")
    }

    /// An authority whose certificates are for this name of the machine.
    pub fn of_host(dir: &Path, host: &'static str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("ca.pem"), issuer.pem()).unwrap();
        let authority = Authority { host, issuer, dir: dir.to_owned() };
        authority.certify(dir, "client", false);
        authority
    }

    /// Writes a certificate for the host and its key, `name.pem` and `name.key`.
    fn certify(&self, dir: &Path, name: &str, is_expired: bool) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![self.host.to_owned()]).unwrap();
        if is_expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        std::fs::write(dir.join(format!("{name}.pem")), params.signed_by(&key, &self.issuer).unwrap().pem())
            .unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Gives the server in this directory a certificate, which it reads when it starts.
    pub fn certify_server(&self, dir: &Path, is_expired: bool) {
        self.certify(dir, "server", is_expired);
    }

    /// A file of its directory, such as `ca.pem`.
    pub fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// The settings of a server in the directory of its certificate: it speaks only TLS, also to the other servers,
    /// and only to clients with a certificate.
    pub fn settings(&self, port: u16) -> String {
        format!(
            "port 0\ntls-port {port}\ntls-ca-cert-file {}\ntls-cert-file server.pem\ntls-key-file server.key\n\
             tls-auth-clients yes\ntls-replication yes\ntls-cluster yes\n",
            self.file("ca.pem")
        )
    }

    /// The options of Rollcall in a table of TOML.
    pub fn options(&self) -> String {
        let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| self.file(name));
        format!("ca_file = \"{ca}\", client_cert_file = \"{cert}\", client_key_file = \"{key}\"")
    }

    /// The certificate of clients, its key, and that of the authority.
    pub fn files_of_a_client(&self) -> [Vec<u8>; 3] {
        ["client.pem", "client.key", "ca.pem"].map(|name| std::fs::read(self.dir.join(name)).unwrap())
    }

    /// Connects to a server of this machine.
    pub async fn connect(&self, port: u16) -> RedisResult<MultiplexedConnection> {
        let [client_cert, client_key, ca] = self.files_of_a_client();
        let client_tls = Some(ClientTlsConfig { client_cert, client_key });
        let certificates = TlsCertificates { client_tls, root_cert: Some(ca) };
        let info = format!("rediss://{}:{port}", self.host).into_connection_info()?;
        Client::build_with_tls(info, certificates)?
            .get_multiplexed_async_connection_with_config(&patient())
            .await
    }
}
