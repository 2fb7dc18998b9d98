//! A web server that takes notifications: the requests to it and what its answers mean.
//!
//! Every answer but 2xx and 410 is retried: an operator corrects a wrong address or a wrong secret within the hour, and
//! no alert is lost by it.
//!
//! Redirects are not followed: a message goes to the configured server only. Proxies from the environment
//! are ignored. An address may hold a secret in its user, path or query (many services work that way), so errors show
//! its origin only. An answer is shown without the secrets of its receiver.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Response, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use url::{Host, Url};

use super::http_client::{Address, HttpClient, http_client};
use super::private_addresses::{DENIED, addresses, is_private};
use super::secrets::Secrets;
use super::{Failure, ReceiverAnswer, cause_of, tls};
use crate::alerting::text::short;
use crate::clock::{Timestamp, monotonic};
use crate::trust::TlsFiles;

/// The most bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;
/// The most characters of an answer that are shown.
const MAX_SHOWN: usize = 200;
/// The most characters shown of the answer to a notification that was taken: such answers may be very many.
const MAX_SHOWN_OF_SUCCESS: usize = 80;
/// The longest wait for the body of an answer. Its status decides.
const BODY_TIMEOUT: Duration = Duration::from_millis(500);
const AGENT: HeaderValue = HeaderValue::from_static(concat!("rollcall/", env!("CARGO_PKG_VERSION")));

/// How the server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpConfig {
    pub tls: TlsFiles,
    /// No connection is opened to this machine or a private network.
    pub deny_private_addresses: bool,
}

pub struct HttpTarget {
    url: Url,
    address: Address,
    /// The part of the address that errors show.
    origin: String,
    secrets: Secrets,
    tls: Arc<ClientConfig>,
    denies_private: bool,
    client: HttpClient,
}

/// A request to the server.
pub struct Request {
    pub method: Method,
    pub address: Address,
    pub headers: HeaderMap,
    pub body: String,
}

impl HttpTarget {
    /// The server of that address. Errors name the option and never show the address.
    pub fn new(url: Url, config: &HttpConfig, secrets: Vec<String>) -> Result<HttpTarget, String> {
        let mut tls = tls::client(&config.tls)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let origin = url.origin().ascii_serialization();
        let secrets = Secrets::new(secrets).with_address(&url);
        let denies_private = config.deny_private_addresses;
        if denies_private && literal(&url).is_some_and(is_private) {
            return Err(format!("{origin} cannot be used: {DENIED}"));
        }
        let (tls, address) = (Arc::new(tls), Address::new(&url)?);
        let client = http_client(tls.clone(), denies_private);
        Ok(HttpTarget { url, address, origin, secrets, tls, denies_private, client })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A text without the secrets of the receiver.
    pub fn hide(&self, text: &str) -> String {
        self.secrets.hide(text)
    }

    /// The part of the address that errors show.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Makes a request and judges its answer.
    pub async fn send(&self, request: Request, now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        let Request { method, address, mut headers, body } = request;
        if !address.is_same_server(&self.address) {
            return Err(Failure::temporary(format!(
                "{}: a request to another server is refused",
                self.origin
            )));
        }
        headers.entry(USER_AGENT).or_insert(AGENT);
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if let Some(user) = address.authorization {
            headers.entry(AUTHORIZATION).or_insert(user);
        }
        let mut request = hyper::Request::new(Full::new(Bytes::from(body)));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, address.uri, headers);
        match self.client.request(request).await {
            Ok(response) => self.judge(response, now).await,
            Err(error) => {
                let what = if error.is_connect() { "no connection" } else { "no answer" };
                let why = error.source().map(cause_of).unwrap_or_default();
                let why = self.secrets.hide(&why);
                Err(Failure::temporary(format!("{}: {what}: {why}", self.origin)))
            }
        }
    }

    async fn judge(&self, response: Response<Incoming>, now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        let status = response.status();
        if status.is_success() {
            // The connection can be used again only after its answer was read.
            let body = read(response.into_body()).await;
            return Ok(ReceiverAnswer::from(self.shown(status, &body, MAX_SHOWN_OF_SUCCESS)));
        }
        let asked = retry_after(response.headers(), now);
        let body = read(response.into_body()).await;
        let asked = asked.or_else(|| asked_in_json(status, &body));
        let why = format!("{} answered {}", self.origin, self.shown(status, &body, MAX_SHOWN));
        Err(failure(status, why, asked))
    }

    /// The status and the beginning of the body of an answer.
    fn shown(&self, status: StatusCode, body: &str, most: usize) -> String {
        match body.trim() {
            "" => status.to_string(),
            // Escaped already.
            body => format!("{status}, \"{}\"", short(self.secrets.hide(body).as_str(), most)),
        }
    }

    /// Connects, with TLS where the address says so. Nothing is sent: a receiver could not distinguish a probe from an
    /// alert.
    pub async fn probe(&self) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::temporary(format!("{}: {}", self.origin, cause_of(&error)));
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = self.url.port_or_known_default().unwrap_or(443);
        let addresses = addresses(&host, port, self.denies_private).await.map_err(failed)?;
        let stream = TcpStream::connect(addresses.as_slice()).await.map_err(failed)?;
        if self.url.scheme() == "https" {
            let name = ServerName::try_from(host)
                .map_err(|_| Failure::temporary(format!("{} has no name for TLS", self.origin)))?;
            tokio_rustls::TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(failed)?;
        }
        Ok(())
    }
}

/// An address of a web server.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let hint = "write https://host/path or http://host/path";
    let url = Url::parse(text).map_err(|error| format!("url is not an address ({error}); {hint}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("url begins with {other}:; {hint}")),
    }
}

/// The IP address of a URL without a host name, which is not looked up.
fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

/// The failure for an answer other than success, with what an operator can change.
fn failure(status: StatusCode, why: String, retry_after: Option<Duration>) -> Failure {
    match status {
        StatusCode::GONE => return Failure::Gone { why },
        StatusCode::PAYLOAD_TOO_LARGE => return Failure::TooLarge { why },
        _ => {}
    }
    let hint = match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => "check its url",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "check its secret and its url",
        _ if status.is_redirection() => {
            "redirects are not followed; if the receiver has moved, change its url"
        }
        _ => return Failure::Temporary { why, retry_after },
    };
    Failure::Temporary { why: format!("{why}: {hint}"), retry_after }
}

/// The wait that an answer asks for, as seconds or as a date in one of its three forms (RFC 9110, 5.6.7 and 10.2.3).
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u32::MAX).into()));
    }
    let date = httpdate::parse_http_date(value).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((Timestamp::ZERO + date).since(now))
}

/// The wait in the body of an answer, in seconds: Telegram and Discord write it there.
fn asked_in_json(status: StatusCode, body: &str) -> Option<Duration> {
    let body: serde_json::Value = match status {
        StatusCode::TOO_MANY_REQUESTS => serde_json::from_str(body).ok()?,
        _ => return None,
    };
    let asked = body.pointer("/parameters/retry_after").or_else(|| body.pointer("/retry_after"))?;
    let asked = asked.as_f64().filter(|asked| *asked >= 0.0)?;
    Some(Duration::from_secs_f64(asked.min(u32::MAX.into())))
}

/// The beginning of an answer's body, as far as it comes in time.
async fn read(mut body: Incoming) -> String {
    let until = monotonic() + BODY_TIMEOUT;
    let mut start = Vec::new();
    while let Ok(Some(Ok(frame))) = timeout_at(until.into(), body.frame()).await {
        let Ok(chunk) = frame.into_data() else { continue };
        start.extend_from_slice(&chunk[..chunk.len().min(MAX_ANSWER - start.len())]);
        if start.len() >= MAX_ANSWER {
            break;
        }
    }
    String::from_utf8_lossy(&start).into_owned()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now: Timestamp = serde_json::from_str("\"2026-11-20T10:00:00Z\"").unwrap();
        let cases = [
            ("120", Some(120)),
            ("Fri, 20 Nov 2026 10:01:30 GMT", Some(90)),
            ("Fri, 20 Nov 2026 09:00:00 GMT", Some(0)),
            ("Friday, 20-Nov-26 10:01:30 GMT", Some(90)),
            ("Fri Nov 20 10:01:30 2026", Some(90)),
            ("99999999999999999999", Some(u32::MAX.into())),
            ("-1", None),
            ("", None),
            ("soon", None),
        ];
        for (value, seconds) in cases {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn a_wait_in_the_body_is_read_where_services_write_it() {
        let busy = StatusCode::TOO_MANY_REQUESTS;
        let cases = [
            (r#"{"ok":false,"parameters":{"retry_after":35}}"#, Some(35_000)),
            (r#"{"message":"slow down","retry_after":0.5}"#, Some(500)),
            (r#"{"retry_after":-1}"#, None),
            (r#"{"retry_after":1e300}"#, Some(u64::from(u32::MAX) * 1000)),
            ("slow down", None),
        ];
        for (body, ms) in cases {
            assert_eq!(asked_in_json(busy, body), ms.map(Duration::from_millis), "{body}");
        }
        assert_eq!(asked_in_json(StatusCode::BAD_GATEWAY, cases[0].0), None);
    }

    #[test]
    fn an_address_of_a_private_network_is_refused_before_any_connection() {
        let config = HttpConfig { deny_private_addresses: true, ..HttpConfig::default() };
        for url in ["http://127.0.0.1/s3cret", "http://0x7f000001/s3cret", "http://[::ffff:10.0.0.1]/s3cret"]
        {
            let error = HttpTarget::new(url.parse().unwrap(), &config, Vec::new()).err().expect(url);
            assert!(error.contains(DENIED) && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_file_of_tls_that_cannot_be_used_is_named_by_its_option() {
        let tls = TlsFiles { ca: Some("/nowhere/ca.pem".into()), ..TlsFiles::default() };
        let config = HttpConfig { tls, ..HttpConfig::default() };
        let error =
            HttpTarget::new("https://example.org".parse().unwrap(), &config, Vec::new()).err().unwrap();
        assert!(error.starts_with("ca_file: /nowhere/ca.pem cannot be read"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_is_away_and_one_that_hangs_up_are_told_apart() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Url = format!("http://{}/s3cret", server.local_addr().unwrap()).parse().unwrap();
        let target = HttpTarget::new(url, &HttpConfig::default(), Vec::new()).unwrap();
        let send = async || {
            let address = target.address().clone();
            let request =
                Request { method: Method::POST, address, headers: HeaderMap::new(), body: String::new() };
            target.send(request, Timestamp::ZERO).await.unwrap_err().to_string()
        };
        let (hung_up, _) = tokio::join!(send(), async { drop(server.accept().await.unwrap()) });
        assert!(hung_up.starts_with(&format!("{}: no answer: ", target.origin)), "{hung_up}");
        drop(server);
        let away = send().await;
        assert!(away.starts_with(&format!("{}: no connection: ", target.origin)), "{away}");
        assert!(away.contains("refused"), "{away}");
    }

    #[tokio::test]
    async fn the_user_of_an_address_is_sent_as_a_header_unless_there_is_another() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let url: Url = format!("http://user:s3cret@{address}/hook?a=b#part").parse().unwrap();
        let target = HttpTarget::new(url, &HttpConfig::default(), Vec::new()).unwrap();
        let token = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer t0ken"))]);
        let user = "authorization: basic dxnlcjpzm2nyzxq=";
        for (headers, expected) in [(HeaderMap::new(), user), (token, "authorization: bearer t0ken")] {
            let (method, address) = (Method::POST, target.address().clone());
            let request = Request { method, address, headers, body: "{}".to_owned() };
            let answer = async {
                let (mut stream, _) = server.accept().await.unwrap();
                let mut text = vec![0; 2000];
                let length = stream.read(&mut text).await.unwrap();
                stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
                String::from_utf8_lossy(&text[..length]).to_lowercase()
            };
            let (sent, text) = tokio::join!(target.send(request, Timestamp::ZERO), answer);
            assert_eq!(sent, Ok(ReceiverAnswer::from("204 No Content".to_owned())));
            assert!(text.starts_with("post /hook?a=b http/1.1\r\n"), "{text}");
            let host = format!("host: {}\r\n", target.address().uri.authority().unwrap());
            assert!(text.contains(&host) && text.contains("user-agent: rollcall/"), "{text}");
            assert!(text.contains(expected) && text.matches("authorization:").count() == 1, "{text}");
        }
    }
}
