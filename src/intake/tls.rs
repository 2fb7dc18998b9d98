//! TLS to the broker, from the files that `mqtt.ca_file`, `mqtt.client_cert_file` and `mqtt.client_key_file` name.

use std::sync::Arc;

use rustls::ClientConfig;

use crate::trust;
pub use crate::trust::{TlsError, TlsFiles};

/// Checked settings of TLS.
#[derive(Clone)]
pub struct Tls(pub(super) Arc<ClientConfig>);

impl Tls {
    /// # Errors
    /// The first file that cannot be used, with advice.
    pub fn read(files: &TlsFiles) -> Result<Tls, TlsError> {
        let (config, _) = trust::client("mqtt", files, crate::small_file::read_file)?;
        Ok(Tls(Arc::new(config)))
    }
}
