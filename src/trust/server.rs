//! TLS of a server. Certificates are renewed while Rollcall runs: the files are read again, and new connections use
//! the new contents. Files that cannot be used change nothing, and open connections stay as they are.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::{TlsError, certificates, private_key, roots, unpaired};

/// The files of TLS for a server, in PEM: `cert_file`, `key_file` and `client_ca_file` of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The authorities of the certificate that each client must present; `None` if a client needs no certificate.
    pub client_ca: Option<PathBuf>,
}

type ReadFile = fn(&Path) -> io::Result<Vec<u8>>;
/// The contents of the files.
type Contents = Vec<Vec<u8>>;

/// TLS of a server with these files.
pub struct ServerTls {
    /// The section of the options.
    pub section: &'static str,
    files: ServerFiles,
    /// The protocols within TLS, if clients can choose.
    protocols: Vec<Vec<u8>>,
    read: ReadFile,
    now: ArcSwap<(Contents, Arc<ServerConfig>)>,
}

impl ServerTls {
    /// Reads the files, each by `read`.
    ///
    /// # Errors
    /// The first file that cannot be used, with advice.
    pub fn open(
        section: &'static str,
        files: &ServerFiles,
        protocols: Vec<Vec<u8>>,
        read: ReadFile,
    ) -> Result<ServerTls, TlsError> {
        let now = ArcSwap::from_pointee(made(section, files, &protocols, read)?);
        Ok(ServerTls { section, files: files.clone(), protocols, read, now })
    }

    /// The configuration for new connections.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.now.load().1.clone()
    }

    /// Reads the files again; returns whether they have changed.
    ///
    /// # Errors
    /// The errors of [`ServerTls::open`]; then nothing has changed.
    pub fn renew(&self) -> Result<bool, TlsError> {
        let fresh = made(self.section, &self.files, &self.protocols, self.read)?;
        let has_changed = fresh.0 != self.now.load().0;
        if has_changed {
            self.now.store(Arc::new(fresh));
        }
        Ok(has_changed)
    }
}

fn made(
    section: &str,
    files: &ServerFiles,
    protocols: &[Vec<u8>],
    read: ReadFile,
) -> Result<(Contents, Arc<ServerConfig>), TlsError> {
    let (key, mut contents) = server_key(section, files, read)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.expect("ring knows the usual versions");
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let error = |text: String| TlsError { option: format!("{section}.client_ca_file"), text };
            let pem = content(section, "client_ca_file", file, read)?;
            let roots = Arc::new(roots(file, &pem).map_err(error)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            let verifier =
                verifier.map_err(|why| error(format!("{} is of no use: {why}", file.display())))?;
            contents.push(pem);
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = protocols.to_vec();
    Ok((contents, Arc::new(config)))
}

/// The certificate of a server with its key, and the contents of their files.
///
/// # Errors
/// The first file that cannot be used, with advice.
pub fn server_key(
    section: &str,
    files: &ServerFiles,
    read: impl Fn(&Path) -> io::Result<Vec<u8>>,
) -> Result<(CertifiedKey, Vec<Vec<u8>>), TlsError> {
    let error = |name: &str, text: String| TlsError { option: format!("{section}.{name}"), text };
    let cert = content(section, "cert_file", &files.cert, &read)?;
    let key = content(section, "key_file", &files.key, &read)?;
    let certs = certificates(&files.cert, &cert).map_err(|text| error("cert_file", text))?;
    let private = private_key(&files.key, &key).map_err(|text| error("key_file", text))?;
    let pair = CertifiedKey::from_der(certs, private, &rustls::crypto::ring::default_provider());
    let pair = pair.map_err(|why| error("key_file", unpaired(&files.key, &files.cert, &why)))?;
    Ok((pair, vec![cert, key]))
}

fn content(
    section: &str,
    option: &str,
    file: &Path,
    read: impl Fn(&Path) -> io::Result<Vec<u8>>,
) -> Result<Vec<u8>, TlsError> {
    let unreadable = |why| format!("{} cannot be read: {why}", file.display());
    read(file).map_err(|why| TlsError { option: format!("{section}.{option}"), text: unreadable(why) })
}
