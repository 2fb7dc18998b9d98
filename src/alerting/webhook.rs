//! The webhook channel: one `POST` as the Standard Webhooks specification asks for it.
//!
//! `webhook-id` is the id of the delivery and stays the same over retries; `webhook-timestamp` is
//! the time of the attempt; `webhook-signature` signs `id.timestamp.body`. The body depends on the
//! delivery alone and carries the moment at which its group was sealed.
//!
//! Every answer but 2xx and 410 is retried: an operator corrects a wrong address or a wrong secret
//! within the hour, and no alert is lost by it.
//!
//! Redirects are not followed: a signed message goes to the configured URL and nowhere else.
//! Proxies from the environment are ignored. The URL may hold a secret in its user, path or
//! query (many services work that way), so errors show its origin only.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, redirect};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::channel::{Channel, Failure, chain};
use super::group::of_kind;
use super::text::short;
use crate::clock::Timestamp;
use crate::presence::{Interval, Labels, OfflineRecord};
use crate::signature::{self, Secret};
use crate::store::Delivery;
use crate::trust;

/// The most bytes of an answer that are read, to explain a failure.
const LONGEST_ANSWER: usize = 4096;
/// The most characters of it that are shown.
const LONGEST_SHOWN: usize = 200;
/// The longest wait for the body of an answer. Its status decides.
const BODY_TIMEOUT: Duration = Duration::from_millis(500);

pub struct Webhook {
    receiver: String,
    url: Url,
    /// The part of the URL that errors show.
    origin: String,
    secret: Option<Secret>,
    tls: Arc<ClientConfig>,
    client: Client,
}

impl Webhook {
    /// A channel to `url`. Without a secret, messages are not signed.
    pub fn new(receiver: &str, url: &str, secret: Option<&str>) -> Result<Webhook, String> {
        let url = parse_url(url)?;
        let secret = secret.map(parse_secret).transpose()?;
        let tls = trust::web().map_err(|error| format!("TLS cannot be set up: {}", chain(&error)))?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .redirect(redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("rollcall/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("no HTTP client: {}", chain(&error)))?;
        let origin = url.origin().ascii_serialization();
        Ok(Webhook { receiver: receiver.to_owned(), url, origin, secret, tls: Arc::new(tls), client })
    }

    async fn post(&self, id: &str, body: String, now: Timestamp) -> Result<(), Failure> {
        let seconds = now.as_millis() / 1000;
        let mut request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(signature::ID, id)
            .header(signature::TIMESTAMP, seconds);
        if let Some(secret) = &self.secret {
            let signature = secret.sign(id, seconds, body.as_bytes());
            request = request.header(signature::SIGNATURE, signature);
        }
        match request.body(body).send().await {
            Ok(response) => self.judge(response, now).await,
            // The error would show the whole address.
            Err(error) => {
                Err(Failure::temporary(format!("{}: {}", self.origin, chain(&error.without_url()))))
            }
        }
    }

    async fn judge(&self, mut response: Response, now: Timestamp) -> Result<(), Failure> {
        let status = response.status();
        if status.is_success() {
            // The connection can be used again only after its answer was read.
            read(&mut response).await;
            return Ok(());
        }
        let retry_after = retry_after(response.headers(), now);
        let body = read(&mut response).await;
        let mut why = format!("{} answered {status}", self.origin);
        if !body.trim().is_empty() {
            why = format!("{why}, {:?}", short(body.trim(), LONGEST_SHOWN));
        }
        Err(failure(status, why, retry_after))
    }

    /// Host and port.
    fn socket(&self) -> (String, u16) {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        (host, self.url.port_or_known_default().unwrap_or(443))
    }
}

#[async_trait]
impl Channel for Webhook {
    async fn send(&self, delivery: &Delivery, now: Timestamp) -> Result<(), Failure> {
        self.post(&delivery.id, body(delivery), now).await
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        let id = format!("test-{}.{}", now.as_millis(), self.receiver);
        let data =
            json!({"receiver": self.receiver, "text": "This is a test of Rollcall; no unit is concerned."});
        let body = json!({"type": "rollcall.test", "timestamp": now, "data": data}).to_string();
        self.post(&id, body, now).await
    }

    /// Connects, with TLS where the address says so. Nothing is posted: a receiver could not distinguish
    /// a probe from an alert.
    async fn probe(&self) -> Result<(), Failure> {
        let (host, port) = self.socket();
        let failed =
            |error: std::io::Error| Failure::temporary(format!("{}: {}", self.origin, chain(&error)));
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(failed)?;
        if self.url.scheme() == "https" {
            let name = ServerName::try_from(host)
                .map_err(|_| Failure::temporary(format!("{} has no name for TLS", self.origin)))?;
            tokio_rustls::TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(failed)?;
        }
        Ok(())
    }
}

/// The body of a delivery.
pub fn body(delivery: &Delivery) -> String {
    let body = if delivery.blind.is_empty() {
        WebhookBody {
            kind: "rollcall.notification",
            timestamp: delivery.sealed_at,
            data: WebhookData::Notification {
                receiver: &delivery.receiver,
                group: &delivery.group.labels,
                offline: &delivery.offline,
                online: &delivery.online,
                reminder: false,
                truncated: 0,
            },
        }
    } else {
        let (kind, topics) = of_kind(delivery).unzip();
        let intervals = delivery.blind.iter().map(|interval| BlindInterval::new(interval, kind)).collect();
        WebhookBody {
            kind: "rollcall.blind",
            timestamp: delivery.sealed_at,
            data: WebhookData::Blind { receiver: &delivery.receiver, kind, topics, intervals },
        }
    };
    serde_json::to_string(&body).expect("names and times are always JSON")
}

#[derive(Serialize)]
struct WebhookBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: Timestamp,
    data: WebhookData<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WebhookData<'a> {
    Notification {
        receiver: &'a str,
        group: &'a Labels,
        offline: &'a [OfflineRecord],
        online: &'a [OfflineRecord],
        reminder: bool,
        truncated: u64,
    },
    Blind {
        receiver: &'a str,
        /// The kind that is not heard, and its topic filters; the fleet if there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<&'a String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        topics: Option<&'a String>,
        intervals: Vec<BlindInterval>,
    },
}

#[derive(Serialize)]
struct BlindInterval {
    /// The same while it lasts and when it is over.
    id: String,
    from: Timestamp,
    /// Null while it lasts, and so is its length.
    to: Option<Timestamp>,
    seconds: Option<f64>,
}

impl BlindInterval {
    fn new(interval: &Interval, kind: Option<&String>) -> BlindInterval {
        let kind = kind.map(|kind| format!("{kind}:")).unwrap_or_default();
        let id = format!("blind:{kind}{}", interval.from.as_millis());
        let seconds = interval.is_over().then(|| interval.length().as_secs_f64());
        BlindInterval { id, from: interval.from, to: interval.is_over().then_some(interval.to), seconds }
    }
}

/// The failure for an answer other than success, with what an operator can change.
fn failure(status: StatusCode, why: String, retry_after: Option<Duration>) -> Failure {
    if status == StatusCode::GONE {
        return Failure::Gone { why };
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

/// The wait that an answer asks for, as seconds or as a date (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
    Some(Timestamp::from_millis(date.as_millisecond()).since(now))
}

/// The beginning of an answer's body, as far as it comes in time.
async fn read(response: &mut Response) -> String {
    let until = Instant::now() + BODY_TIMEOUT;
    let mut start = Vec::new();
    while let Ok(Ok(Some(chunk))) = timeout_at(until, response.chunk()).await {
        start.extend_from_slice(&chunk[..chunk.len().min(LONGEST_ANSWER - start.len())]);
        if start.len() >= LONGEST_ANSWER {
            break;
        }
    }
    String::from_utf8_lossy(&start).into_owned()
}

fn parse_url(text: &str) -> Result<Url, String> {
    let hint = "write https://host/path or http://host/path";
    let url = Url::parse(text).map_err(|error| format!("url is not an address ({error}); {hint}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("url begins with {other}:; {hint}")),
    }
}

fn parse_secret(secret: &str) -> Result<Secret, String> {
    Secret::parse(secret).map_err(|why| format!("secret {why}; write whsec_ and the key in base64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now: Timestamp = serde_json::from_str("\"2026-11-20T10:00:00Z\"").unwrap();
        let cases = [
            ("120", Some(120)),
            ("Fri, 20 Nov 2026 10:01:30 GMT", Some(90)),
            ("Fri, 20 Nov 2026 09:00:00 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
        ];
        for (value, seconds) in cases {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn the_error_for_a_bad_address_or_secret_does_not_show_it() {
        let cases = [
            ("hooks.example.org/s3cret", None),
            ("ftp://user:s3cret@example.org/", None),
            ("https://example.org/", Some("s3cret")),
            ("https://example.org/", Some("whsec_")),
            ("https://example.org/", Some("whsec_s3cret!")),
        ];
        for (url, secret) in cases {
            let error = Webhook::new("hook", url, secret).err().expect(url);
            assert!(!error.contains("s3cret") && error.contains("; write "), "{error}");
        }
    }
}
