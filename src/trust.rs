//! The certificate authorities that Rollcall trusts for TLS: those that browsers trust. They are built in,
//! so that a container needs no certificates of its own.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// The authorities that browsers trust.
pub fn authorities() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

/// TLS for a web server, over HTTP/1.1.
///
/// # Errors
/// None with the provider that is built in; the library cannot know that.
pub fn web() -> Result<ClientConfig, rustls::Error> {
    let mut config = mail()?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS for a mail server.
///
/// # Errors
/// As those of [`web`].
pub fn mail() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(authorities())
        .with_no_client_auth())
}
