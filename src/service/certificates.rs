//! The certificates of the web server and of the in-process broker, renewed while Rollcall runs: their files are read
//! every few seconds, and at each reload of the configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::trust::{ServerTls, TlsError};

/// How often the files are read.
const INTERVAL: Duration = Duration::from_secs(5);

/// The certificates of all servers that speak TLS.
#[derive(Clone)]
pub(super) struct Certificates(pub Vec<Arc<ServerTls>>);

impl Certificates {
    /// Reads the files of all certificates.
    ///
    /// # Errors
    /// The first file that cannot be used, with advice. Its server keeps its current certificate.
    pub fn renew(&self) -> Result<(), TlsError> {
        let renewed = self.0.iter().map(|tls| {
            if tls.renew()? {
                tracing::info!(section = tls.section, "a new certificate is in use");
            }
            Ok(())
        });
        // Read all files, even if one of them fails.
        renewed.collect::<Vec<Result<(), TlsError>>>().into_iter().collect()
    }

    /// Reads the files repeatedly until `stop`.
    pub async fn keep_fresh(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut reported = None;
        while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
            let all = self.clone();
            let Ok(renewed) = tokio::task::spawn_blocking(move || all.renew()).await else { continue };
            let failed = renewed.err();
            if let Some(error) = failed.as_ref().filter(|_| failed != reported) {
                tracing::warn!(%error, "the certificate in use stays, because the new one cannot be used");
            }
            reported = failed;
        }
        Ok(())
    }
}
