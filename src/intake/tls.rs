//! TLS to the broker: trusted authorities and the client certificate.
//!
//! Without a configured CA the authorities of browsers are trusted. The broker's name is always checked
//! against its certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::trust;

/// Checked settings of TLS.
#[derive(Clone)]
pub struct Tls(pub(super) Arc<ClientConfig>);

/// The files of these settings, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of authorities; `None`: those of browsers.
    pub ca: Option<PathBuf>,
    /// The client certificate, followed by the intermediate ones.
    pub client_cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub client_key: Option<PathBuf>,
}

/// An option and the error of its file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {text}")]
pub struct TlsError {
    /// The option, e.g. `mqtt.ca_file`.
    pub option: &'static str,
    /// The error, and the advice.
    pub text: String,
}

const CA: &str = "mqtt.ca_file";
const CERT: &str = "mqtt.client_cert_file";
const KEY: &str = "mqtt.client_key_file";

impl Tls {
    /// # Errors
    /// The first file that cannot be used, with what to do.
    pub fn read(files: &TlsFiles) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows the usual versions")
            .with_root_certificates(roots(files.ca.as_deref())?);
        let config = match (&files.client_cert, &files.client_key) {
            (None, None) => config.with_no_client_auth(),
            (Some(_), None) => return Err(wrong(KEY, "is missing; mqtt.client_cert_file needs its key")),
            (None, Some(_)) => {
                return Err(wrong(CERT, "is missing; mqtt.client_key_file is of use only with it"));
            }
            (Some(cert), Some(key)) => {
                let certs = certificates(CERT, cert)?;
                let private = private_key(key)?;
                config.with_client_auth_cert(certs, private).map_err(|error| {
                    let text = format!("{} does not belong to {}: {error}", key.display(), cert.display());
                    TlsError { option: KEY, text }
                })?
            }
        };
        Ok(Tls(Arc::new(config)))
    }
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let Some(ca) = ca else {
        return Ok(trust::authorities());
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CA, ca)? {
        roots.add(certificate).map_err(|error| {
            let text = format!("{} holds a certificate that no authority can have: {error}", ca.display());
            TlsError { option: CA, text }
        })?;
    }
    Ok(roots)
}

fn certificates(option: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(option, file)?;
    match CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        found => {
            let why = found.err().map(|error| format!(" ({error})")).unwrap_or_default();
            let todo = "it has to be in PEM and begin with -----BEGIN CERTIFICATE-----";
            Err(wrong(option, format!("{} holds no certificate{why}; {todo}", file.display())))
        }
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(KEY, file)?).map_err(|error| {
        let todo = "it has to be in PEM, not encrypted, such as -----BEGIN PRIVATE KEY-----";
        wrong(KEY, format!("{} holds no private key ({error}); {todo}", file.display()))
    })
}

fn read(option: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| wrong(option, format!("{} cannot be read: {error}", file.display())))
}

fn wrong(option: &'static str, text: impl Into<String>) -> TlsError {
    TlsError { option, text: text.into() }
}
