//! The webhook channel: one request for each notification, in one of four formats.
//!
//! The headers are those of the Standard Webhooks specification, whatever the format: `webhook-id` is the id of the
//! delivery and stays the same over retries; `webhook-timestamp` is the time of the attempt; `webhook-signature` signs
//! `id.timestamp.body`. The body depends on the delivery alone and carries the moment at which its group was sealed.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::http_target::{HttpConfig, HttpTarget, Request, parse_url};
use super::{Channel, Failure, ReceiverAnswer};
use crate::alerting::message::{
    Example, MessageConfig, ReceiverMessage, SizeLimit, Templates, adversarial, test_delivery, without_labels,
};
use crate::alerting::text::plain;
use crate::cause::json;
use crate::clock::Timestamp;
use crate::signature::{self, Secret};
use crate::store::Delivery;

mod alertmanager;
mod rollcall;

pub use rollcall::{body, text as body_of};

const JSON: &str = "application/json";
/// Headers that hold no secret.
const PUBLIC_HEADERS: [&str; 3] = ["accept", "content-type", "user-agent"];
/// The methods of a template; a `GET` has no body.
const METHODS: [&str; 4] = ["POST", "PUT", "PATCH", "GET"];

/// A webhook. By default it follows the Standard Webhooks specification.
#[derive(Clone, Default)]
pub struct WebhookConfig {
    pub url: String,
    /// `whsec_…`, also several, separated by white space; without it, messages are not signed.
    pub secret: Option<String>,
    /// A token for `Authorization: Bearer`.
    pub token: Option<String>,
    pub format: Format,
    /// The file of the template of the body, as it is configured; empty: there is none.
    pub body_file: String,
    /// More headers. With [`Format::Template`] their values are templates.
    pub headers: BTreeMap<String, String>,
    pub http: HttpConfig,
}

/// The body of a webhook.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Format {
    /// Rollcall's own body.
    #[default]
    Rollcall,
    /// The body of Alertmanager's webhooks, version 4.
    Alertmanager,
    /// CloudEvents 1.0 in its structured mode, around Rollcall's own data.
    CloudEvents,
    /// A template of the operator.
    Template {
        /// Empty: `POST`.
        method: String,
        body: String,
    },
}

pub struct Webhook {
    receiver: String,
    target: HttpTarget,
    method: Method,
    secret: Option<Secret>,
    format: Format,
    message: MessageConfig,
    size_limit: SizeLimit,
    /// The name of the template of the body, with its file.
    body: String,
    /// The templates of body and headers, by name.
    templates: Templates,
    /// The names of the headers, which are also the names of their templates.
    headers: Vec<HeaderName>,
    /// The token, if there is one.
    authorization: Option<HeaderValue>,
}

impl Webhook {
    /// A channel. Errors name the option and show no secret.
    pub fn new(receiver: &str, config: &WebhookConfig, message: &MessageConfig) -> Result<Webhook, String> {
        let url = parse_url(&config.url)?;
        let secret = config.secret.as_deref().map(parse_secret).transpose()?;
        let keys = config.secret.iter().flat_map(|secret| secret.split_whitespace());
        let mut secrets: Vec<String> = keys.map(str::to_owned).chain(config.token.clone()).collect();
        let others = config.headers.iter();
        let others =
            others.filter(|(name, _)| !PUBLIC_HEADERS.iter().any(|one| one.eq_ignore_ascii_case(name)));
        secrets.extend(others.map(|(_, value)| without_expressions(value)));
        let mut templates = Templates::new(&message.zone);
        let name = match config.body_file.as_str() {
            "" => "body".to_owned(),
            file => format!("body_file {file}"),
        };
        let method = match &config.format {
            Format::Template { method, body } => {
                templates.add(&name, body)?;
                secrets.extend(keys_in(&without_expressions(body)));
                parse_method(method)?
            }
            _ => Method::POST,
        };
        let headers = headers(config, &mut templates)?;
        let webhook = Webhook {
            receiver: receiver.to_owned(),
            target: HttpTarget::new(url, &config.http, secrets)?,
            method,
            secret,
            format: config.format.clone(),
            message: message.clone(),
            size_limit: SizeLimit::default(),
            body: name,
            templates,
            headers,
            authorization: config.token.as_deref().map(bearer).transpose()?,
        };
        webhook.try_examples()?;
        Ok(webhook)
    }

    /// Renders every example: an error in a template is found at the start, and not with the first alert.
    fn try_examples(&self) -> Result<(), String> {
        let examples = Example::ALL.map(|example| example.delivery(&self.receiver));
        for example in examples.into_iter().chain(without_labels(&self.receiver)) {
            self.request(&ReceiverMessage::new(&example))?;
        }
        let (headers, body) = self.request(&ReceiverMessage::new(&adversarial(&self.receiver)))?;
        let is_json = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().ends_with(b"json"));
        let is_checked = is_json && self.method != Method::GET;
        if is_checked && let Err(why) = json::read::<Value>(body.as_bytes()) {
            return Err(format!(
                "{}: its result is not JSON if a name holds a quotation mark ({why}); write \
                 {{{{ value | tojson }}}}, without quotation marks around it, or another content-type in headers",
                self.body
            ));
        }
        Ok(())
    }

    /// The headers and the body of a message, without the headers of an attempt.
    fn request(&self, message: &ReceiverMessage<'_>) -> Result<(HeaderMap, String), String> {
        let (config, most) = (&self.message, self.size_limit.bytes());
        let mut headers = HeaderMap::new();
        let is_template = matches!(self.format, Format::Template { .. });
        let is_used = is_template || !self.headers.is_empty();
        let data = if is_used { message.data(config) } else { Value::Null };
        let (kind, body) = match &self.format {
            Format::Rollcall => (JSON, rollcall::text(message, config, most)),
            Format::CloudEvents => {
                ("application/cloudevents+json", rollcall::cloud_event(message, config, most))
            }
            Format::Alertmanager => (JSON, alertmanager::payload(message, config, most)),
            Format::Template { .. } => (JSON, self.templates.render(&self.body, &data)?),
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        for name in &self.headers {
            let option = header_option(name);
            let value = self.templates.render(&option, &data)?;
            let value = HeaderValue::from_bytes(plain(&value).as_bytes());
            headers.insert(name.clone(), value.map_err(|_| format!("{option}: its value is not a header"))?);
        }
        Ok((headers, body))
    }

    async fn post(&self, message: &ReceiverMessage<'_>, now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        let (mut headers, body) = self.request(message).map_err(Failure::temporary)?;
        // A timer has one id for all of its receivers.
        let is_timer = !message.delivery.timers.is_empty();
        let id = if is_timer { message.delivery.notification() } else { &message.delivery.id };
        let seconds = now.as_millis() / 1000;
        let mut add = |name, value: &str| -> Result<(), Failure> {
            let value = HeaderValue::from_bytes(value.as_bytes());
            let value =
                value.map_err(|_| Failure::temporary(format!("{name}: its value is not a header")))?;
            headers.insert(HeaderName::from_static(name), value);
            Ok(())
        };
        add(signature::ID, id)?;
        add(signature::TIMESTAMP, &seconds.to_string())?;
        let body = if self.method == Method::GET { String::new() } else { body };
        if let Some(secret) = &self.secret {
            add(signature::SIGNATURE, &secret.sign(id, seconds, body.as_bytes()))?;
        }
        let (method, address, length) = (self.method.clone(), self.target.address().clone(), body.len());
        let sent = self.target.send(Request { method, address, headers, body }, now).await;
        sent.map_err(|failure| self.shortened(failure, length))
    }

    /// A body that the server refuses as too large is shorter at the next attempt: else it would block its group until
    /// it is given up. The body of an operator's own template cannot be shortened.
    fn shortened(&self, failure: Failure, length: usize) -> Failure {
        match failure {
            Failure::TooLarge { why }
                if !matches!(self.format, Format::Template { .. }) && self.size_limit.refused(length) =>
            {
                let most = self.size_limit.bytes();
                let why = format!(
                    "{why}; the body had {length} bytes; the next attempt lists fewer units ({most} bytes)"
                );
                Failure::Partial { why, wait: Duration::ZERO, is_asked: false }
            }
            other => other,
        }
    }
}

#[async_trait]
impl Channel for Webhook {
    fn keeps_alerts(&self) -> bool {
        matches!(self.format, Format::Alertmanager)
    }

    async fn send(&self, delivery: &Delivery, now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        self.post(&ReceiverMessage::new(delivery), now).await
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        let delivery = test_delivery(&self.receiver, now);
        self.post(&ReceiverMessage::test(&delivery), now).await.map(|_| ())
    }

    async fn probe(&self) -> Result<(), Failure> {
        self.target.probe().await
    }

    fn render(&self, delivery: &Delivery) -> Result<String, String> {
        self.request(&ReceiverMessage::new(delivery)).map(|(_, body)| body)
    }

    fn render_head(&self, delivery: &Delivery) -> Result<Option<String>, String> {
        if self.headers.is_empty() && self.method == Method::POST {
            return Ok(None);
        }
        let (headers, _) = self.request(&ReceiverMessage::new(delivery))?;
        let own = self.headers.iter().filter_map(|name| Some((name, headers.get(name)?)));
        let own = own.map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        let lines = [format!("{} {}", self.method, self.target.origin())].into_iter().chain(own);
        Ok(Some(self.target.hide(&lines.collect::<Vec<String>>().join("\n"))))
    }
}

/// The names of the headers, whose values are templates.
fn headers(config: &WebhookConfig, templates: &mut Templates) -> Result<Vec<HeaderName>, String> {
    let mut names = Vec::new();
    for (name, value) in &config.headers {
        let name: HeaderName =
            name.parse().map_err(|_| format!("headers: {name:?} is not a name of a header"))?;
        if name.as_str().starts_with("webhook-") || name == "content-length" || name == "host" {
            return Err(format!("headers: {name} is set by Rollcall; remove it"));
        }
        if name == AUTHORIZATION && config.token.is_some() {
            return Err("headers: authorization and token_file are both set; keep one".to_owned());
        }
        templates.add(&header_option(&name), value)?;
        names.push(name);
    }
    Ok(names)
}

/// The text of a template without its expressions, whose words are no secrets.
fn without_expressions(template: &str) -> String {
    if !["{{", "{%"].iter().any(|begin| template.contains(begin)) {
        return template.to_owned();
    }
    let parts = template.split('{').map(|part| part.rsplit_once('}').map_or(part, |(_, text)| text));
    parts.collect::<Vec<_>>().join(" ")
}

/// The words of a template that look like keys: long, with a digit. A server may repeat what was sent to it.
fn keys_in(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
    let is_key = |word: &&str| word.len() >= 12 && word.contains(|c: char| c.is_ascii_digit());
    words.filter(is_key).map(str::to_owned)
}

fn header_option(name: &HeaderName) -> String {
    format!("headers.{name}")
}

fn parse_method(method: &str) -> Result<Method, String> {
    let known = METHODS.iter().find(|known| known.eq_ignore_ascii_case(method) || method.is_empty());
    let known = known.ok_or_else(|| format!("method is {method:?}; write one of {}", METHODS.join(", ")))?;
    Ok(Method::from_bytes(known.as_bytes()).expect("it is a method"))
}

fn parse_secret(secret: &str) -> Result<Secret, String> {
    Secret::parse(secret).map_err(|why| format!("secret {why}; write whsec_ and the key in base64"))
}

/// The value of `Authorization`.
pub fn bearer(token: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value =
        value.map_err(|_| "token_file has characters that are not allowed in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(config: WebhookConfig) -> Result<Webhook, String> {
        Webhook::new("hook", &config, &MessageConfig::default())
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
            let secret = secret.map(str::to_owned);
            let error = opened(WebhookConfig { url: url.to_owned(), secret, ..WebhookConfig::default() });
            let error = error.err().expect(url);
            assert!(!error.contains("s3cret") && error.contains("; write "), "{error}");
        }
    }

    fn with_template(body: &str, headers: &[(&str, &str)], method: &str) -> Result<Webhook, String> {
        opened(WebhookConfig {
            url: "https://example.org/".to_owned(),
            format: Format::Template { method: method.to_owned(), body: body.to_owned() },
            headers: headers.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
            ..WebhookConfig::default()
        })
    }

    #[test]
    fn an_error_of_a_body_in_a_file_names_the_file() {
        for (body, expected) in [
            ("a\n{{ nothing }}", "body_file board.j2, line 2: undefined"),
            ("{{ title", "body_file board.j2, line 1: syntax"),
            (r#""{{ title }}""#, "body_file board.j2: its result is not JSON"),
        ] {
            let error = opened(WebhookConfig {
                url: "https://example.org/".to_owned(),
                format: Format::Template { method: String::new(), body: body.to_owned() },
                body_file: "board.j2".to_owned(),
                ..WebhookConfig::default()
            });
            let error = error.err().expect(expected);
            assert!(error.starts_with(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn a_template_is_tried_with_every_example_before_it_is_used() {
        let good = r#"{"text": {{ title | tojson }}, "units": [{% for record in offline %}{{ record.unit | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]}"#;
        with_template(good, &[("x-state", "{{ status }}")], "put").unwrap();
        with_template("{{ title }}", &[("content-type", "text/plain")], "").unwrap();
        with_template("{% if timers %}{{ timers[0].data.a }}{% else %}0{% endif %}", &[], "").unwrap();
        let cases = [
            (with_template("{{ offline[0].unit }}", &[], ""), "body, line 1: "),
            (with_template("{{ nothing }}", &[], ""), "body, line 1: "),
            (with_template("{{ timers[0].data }}", &[], ""), "write {% if timers %} around"),
            (
                with_template("{% for record in offline %}{{ record.labels.site }}{% endfor %}", &[], ""),
                "a unit may lack any label",
            ),
            (with_template(r#"{"text": "{{ title }}"}"#, &[], ""), "tojson"),
            (with_template("{}", &[("x state", "")], ""), "is not a name of a header"),
            (with_template("{}", &[("webhook-id", "1")], ""), "is set by Rollcall"),
            (with_template("{}", &[("x-state", "{{ stat }}")], ""), "headers.x-state, line 1: "),
            (with_template("{}", &[], "FETCH"), "write one of POST, PUT, PATCH, GET"),
        ];
        for (opened, expected) in cases {
            let error = opened.err().expect(expected);
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
