//! The HTTP client of receivers: connections that are used again, and addresses as requests need them.
//!
//! The client is hyper's own, because in a storm there is a request for each unit: a client with more features adds a
//! tenth to the work of each notification.

use std::future::Future;
use std::io::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use data_encoding::BASE64;
use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::percent_decode_str;
use rustls::ClientConfig;
use tower_service::Service;
use url::Url;

use super::private_addresses::addresses;

/// How often a connection without a request is checked. A router in between may have forgotten it.
const KEEPALIVE: Duration = Duration::from_secs(15);

pub type HttpClient = Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

/// A client. It follows no redirect and knows no proxy.
pub fn http_client(tls: Arc<ClientConfig>, denies_private: bool) -> HttpClient {
    let mut connector = HttpConnector::new_with_resolver(Resolver { denies_private });
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .build(HttpsConnector::from((connector, tls)))
}

/// Looks names up. The client connects to these addresses, without another lookup.
#[derive(Clone)]
pub struct Resolver {
    /// Only public addresses are answered.
    denies_private: bool,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, host: Name) -> Self::Future {
        let denies_private = self.denies_private;
        Box::pin(async move { Ok(addresses(host.as_str(), 0, denies_private).await?.into_iter()) })
    }
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Address {
    /// Without a user.
    pub uri: Uri,
    /// The user of the address (RFC 7617).
    pub authorization: Option<HeaderValue>,
}

impl Address {
    /// The address as requests need it. An error does not show it: it may hold a secret.
    pub fn new(url: &Url) -> Result<Address, String> {
        let mut plain = url.clone();
        plain.set_fragment(None);
        let is_changed = plain.set_username("").is_ok() && plain.set_password(None).is_ok();
        let uri = plain.as_str().parse().ok().filter(|_| is_changed);
        let uri = uri.ok_or_else(|| {
            "url has characters that are not allowed in a request; percent-encode them".to_owned()
        })?;
        Ok(Address { uri, authorization: basic(url) })
    }

    /// Whether both have one origin: scheme, host and port.
    pub fn is_same_server(&self, other: &Address) -> bool {
        // An address leaves out the port of its scheme.
        self.uri.scheme() == other.uri.scheme() && self.uri.authority() == other.uri.authority()
    }
}

/// The user and the password of an address, as a header.
fn basic(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut both: Vec<u8> = percent_decode_str(url.username()).collect();
    both.push(b':');
    both.extend(percent_decode_str(url.password().unwrap_or_default()));
    let value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(&both)));
    let mut value = value.expect("base64 is always a header");
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Address {
        Address::new(&url.parse().unwrap()).unwrap()
    }

    #[test]
    fn the_user_of_an_address_becomes_a_header() {
        let cases = [
            ("https://example.org/hook?key=1#part", "https://example.org/hook?key=1", None),
            ("http://user:s3cr%21t@[::1]:80/", "http://[::1]/", Some("user:s3cr!t")),
            ("https://user@example.org:8443", "https://example.org:8443/", Some("user:")),
            ("https://:s3cret@example.org/a%20b", "https://example.org/a%20b", Some(":s3cret")),
        ];
        for (url, uri, user) in cases {
            let address = address(url);
            assert_eq!(address.uri.to_string(), uri);
            let user = user.map(|user| format!("Basic {}", BASE64.encode(user.as_bytes())));
            let header = address.authorization.map(|header| header.to_str().unwrap().to_owned());
            assert_eq!(header, user, "{url}");
        }
    }

    #[test]
    fn servers_are_told_apart_by_scheme_host_and_port() {
        let one = address("https://user@Example.org:443/hook");
        for (url, is_same) in [
            ("https://example.org/other", true),
            ("http://example.org/hook", false),
            ("https://example.org:8443/hook", false),
            ("https://example.org.evil/hook", false),
        ] {
            assert_eq!(one.is_same_server(&address(url)), is_same, "{url}");
        }
    }
}
