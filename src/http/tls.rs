//! TLS of the web server. Certificates are renewed while Rollcall runs: the files are read again when they change, and
//! new connections get the new certificate. Files that cannot be used change nothing.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::trust::{self, ServerFiles, ServerPem, TlsError};

/// How often the files are read.
const INTERVAL: Duration = Duration::from_secs(5);

/// The TLS address and the certificate of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Other addresses than loopback need at least one token.
    pub listen: SocketAddr,
    pub files: ServerFiles,
}

/// The certificate of the server.
pub struct Certificate {
    files: ServerFiles,
    shown: Arc<Shown>,
}

/// The certificate that new connections are shown.
struct Shown(ArcSwap<CertifiedKey>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

fn read(files: &ServerFiles) -> Result<(CertifiedKey, ServerPem), TlsError> {
    trust::server_key("http", files, crate::small_file::read_file)
}

impl Certificate {
    /// # Errors
    /// The first file that cannot be used, with advice.
    pub fn read(files: &ServerFiles) -> Result<(Certificate, ServerPem), TlsError> {
        let (key, pem) = read(files)?;
        let shown = Arc::new(Shown(ArcSwap::from_pointee(key)));
        Ok((Certificate { files: files.clone(), shown }, pem))
    }

    /// # Errors
    /// None with the provider that is built in; the library cannot know that.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, rustls::Error> {
        let mut config = trust::server(self.shown.clone())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Reads the files again until `stop`. `pem`: their content now.
    pub(super) async fn keep_fresh(&self, mut pem: ServerPem, stop: CancellationToken) {
        let mut is_reported = false;
        let renewing = async {
            loop {
                tokio::time::sleep(INTERVAL).await;
                let files = self.files.clone();
                let Ok(read) = tokio::task::spawn_blocking(move || read(&files)).await else {
                    continue;
                };
                match read {
                    Ok((_, same)) if same == pem => is_reported = false,
                    Ok((key, fresh)) => {
                        self.shown.0.store(Arc::new(key));
                        pem = fresh;
                        is_reported = false;
                        tracing::info!("the web server shows a new certificate");
                    }
                    Err(_) if is_reported => {}
                    Err(error) => {
                        is_reported = true;
                        tracing::warn!(%error, "the web server goes on with the certificate that it has");
                    }
                }
            }
        };
        stop.run_until_cancelled(renewing).await;
    }
}
