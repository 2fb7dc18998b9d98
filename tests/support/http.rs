//! The HTTP client of tests.

use std::sync::LazyLock;

use reqwest::{Client, Response, Result};

/// A single client for the whole program, for plain HTTP: a client for each request would read the certificate
/// authorities of the machine each time. It keeps no connection, because each test has its own runtime.
pub static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plain = Client::builder().no_proxy().tls_certs_only([]).pool_max_idle_per_host(0);
    plain.build().expect("a client without certificates needs nothing of the machine")
});

pub async fn get(url: impl reqwest::IntoUrl) -> Result<Response> {
    CLIENT.get(url).send().await
}
