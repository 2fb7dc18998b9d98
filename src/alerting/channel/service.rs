//! Services that take notifications as a `POST`: their templates are part of Rollcall.
//!
//! Services differ only in data, in [`catalogue`]: the address, the headers, the template of the body, and the
//! options that an operator sets. A service either takes a message, or an alert for each unit, which its silence
//! opens and its return closes. In that case a notification is several requests, each with the key of its alert; the
//! silences of an incident are one alert.
//!
//! # Several requests
//! An attempt that fails half-way goes on, with the next one, at the request that failed: a storm of a thousand alerts
//! passes a rate limit of a hundred a minute in several attempts. After a restart it begins with the first request
//! again; the keys make that harmless.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde_json::{Value, json};
use url::Url;

use super::http_client::Address;
use super::http_target::{HttpConfig, HttpTarget, Request, parse_url};
use super::{Channel, Failure, ReceiverAnswer};
use crate::alerting::message::{
    Example, MessageConfig, ReceiverMessage, Templates, adversarial, pages, test_delivery, test_members,
    without_labels,
};
use crate::cause::json;
use crate::clock::Timestamp;
use crate::store::Delivery;

mod catalogue;

pub use catalogue::{SERVICES, Service, ServiceOption};

/// How many deliveries that failed half-way are remembered. Others begin with their first request again.
const MAX_BEGUN: usize = 1000;

/// A receiver at a service.
#[derive(Clone)]
pub struct ServiceConfig {
    pub service: &'static Service,
    /// The options of the service by their names, with their defaults. Options without a value are missing.
    pub options: BTreeMap<&'static str, String>,
    /// Templates that replace title and text; empty: those of Rollcall.
    pub title: String,
    pub text: String,
    pub http: HttpConfig,
}

pub struct ServiceChannel {
    receiver: String,
    service: &'static Service,
    options: Value,
    has_title: bool,
    has_text: bool,
    message: MessageConfig,
    templates: Templates,
    target: HttpTarget,
    /// The deliveries that failed half-way, and how many of their requests succeeded.
    begun: Mutex<HashMap<String, usize>>,
}

impl ServiceChannel {
    /// A channel. Errors name the option and show no secret.
    pub fn new(receiver: &str, config: &ServiceConfig, message: &MessageConfig) -> Result<Self, String> {
        let service = config.service;
        let mut templates = Templates::new(&message.zone);
        templates.add("url", service.url)?;
        templates.add("body", service.body)?;
        for (name, value) in service.headers {
            templates.add(name, value)?;
        }
        for (name, value) in [("title", &config.title), ("text", &config.text)] {
            if !value.is_empty() {
                templates.add(name, value)?;
            }
        }
        let option = |name: &str| config.options.get(name).map_or("", String::as_str);
        let secrets = service.options.iter().filter(|option| option.is_secret);
        let secrets = secrets.map(|secret| option(secret.name).to_owned()).collect();
        let channel = ServiceChannel {
            receiver: receiver.to_owned(),
            service,
            options: json!(config.options),
            has_title: !config.title.is_empty(),
            has_text: !config.text.is_empty(),
            message: message.clone(),
            templates,
            target: HttpTarget::new(parse_url(option("url"))?, &config.http, secrets)?,
            begun: Mutex::default(),
        };
        channel.try_examples()?;
        Ok(channel)
    }

    /// Renders every example: an error in a template is found at the start, and not with the first alert.
    fn try_examples(&self) -> Result<(), String> {
        let examples = Example::ALL.map(|example| example.delivery(&self.receiver));
        for delivery in examples.into_iter().chain(without_labels(&self.receiver)) {
            self.try_message(&ReceiverMessage::new(&delivery))?;
        }
        self.try_message(&ReceiverMessage::new(&adversarial(&self.receiver)))?;
        self.try_message(&ReceiverMessage::test(&test_delivery(&self.receiver, Timestamp::ZERO)))
    }

    fn try_message(&self, message: &ReceiverMessage<'_>) -> Result<(), String> {
        // The first and the last one have every action.
        let data = self.data(message);
        for data in [data.first(), data.last()].into_iter().flatten() {
            if self.own("title", data)?.is_some_and(|title| title.is_empty()) {
                let title = &data["title"];
                return Err(format!(
                    "title: its result is empty instead of {title}; write a title for every message, such as {{{{ title \
                     }}}}"
                ));
            }
            let request = self.request(data.clone(), &self.options)?;
            json::read::<Value>(request.body.as_bytes())
                .map_err(|why| format!("body: its result is not JSON ({why})"))?;
        }
        Ok(())
    }

    /// The data of each request of a message.
    fn data(&self, message: &ReceiverMessage<'_>) -> Vec<Value> {
        let mut data = message.data(&self.message);
        if !self.service.is_for_each {
            return vec![data];
        }
        for name in ["offline", "online", "blind"] {
            data[name] = Value::Null;
        }
        let members = match message.is_test {
            true => test_members(message.delivery),
            false => pages(message.delivery, &self.message.zone, &self.message.links),
        };
        let data = members.into_iter().map(|member| {
            let mut data = data.clone();
            data["title"] = json!(member.title);
            data["text"] = json!(member.text);
            data["url"] = json!(member.url);
            data["member"] = json!(member);
            data
        });
        data.collect()
    }

    /// The result of the operator's template with that name, if there is one; empty if it has only white space.
    fn own(&self, name: &str, data: &Value) -> Result<Option<String>, String> {
        if !(if name == "title" { self.has_title } else { self.has_text }) {
            return Ok(None);
        }
        let text = self.templates.render(name, data)?;
        Ok(Some(if text.trim().is_empty() { String::new() } else { text }))
    }

    /// The request with this data. The templates of the operator do not see the options, which hold secrets.
    fn request(&self, mut data: Value, options: &Value) -> Result<Request, String> {
        let (title, text) = (self.own("title", &data)?, self.own("text", &data)?);
        if let Some(title) = title.filter(|title| !title.is_empty()) {
            data["title"] = json!(title);
        }
        if let Some(text) = text {
            data["text"] = json!(text);
        }
        // Services refuse a message without a text.
        if data["text"] == "" {
            data["text"] = data["title"].clone();
        }
        data["options"] = options.clone();
        let url = self.templates.render("url", &data)?;
        // The error does not show the address, which may hold a secret.
        let url = Url::parse(&url).map_err(|_| "url: it is not an address".to_owned())?;
        let address = Address::new(&url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, _) in self.service.headers {
            let value = self.templates.render(name, &data)?;
            if !value.is_empty() {
                let mut value = HeaderValue::from_str(&value).map_err(|_| {
                    format!("{name}: an option has characters that are not allowed in a header")
                })?;
                value.set_sensitive(true);
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        let body = self.templates.render("body", &data)?;
        Ok(Request { method: Method::POST, address, headers, body })
    }

    /// Sends up to `most` of the requests that did not succeed yet. `None`: the others are to follow.
    async fn post(
        &self,
        message: &ReceiverMessage<'_>,
        most: usize,
        now: Timestamp,
    ) -> Result<Option<ReceiverAnswer>, Failure> {
        let id = &message.delivery.id;
        let data = self.data(message);
        let count = data.len();
        let mut answer = ReceiverAnswer::default();
        let succeeded = self.begun.lock().get(id).copied().unwrap_or_default();
        for (at, data) in data.into_iter().enumerate().skip(succeeded).take(most) {
            let request = self.request(data, &self.options).map_err(Failure::temporary)?;
            answer = self.target.send(request, now).await?;
            if count > 1 {
                let mut begun = self.begun.lock();
                if begun.len() >= MAX_BEGUN && !begun.contains_key(id) {
                    begun.clear();
                }
                begun.insert(id.clone(), at + 1);
            }
        }
        if succeeded.saturating_add(most) < count {
            return Ok(None);
        }
        self.begun.lock().remove(id);
        Ok(Some(answer))
    }
}

#[async_trait]
impl Channel for ServiceChannel {
    async fn send(&self, delivery: &Delivery, now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        let sent = self.post(&ReceiverMessage::new(delivery), usize::MAX, now).await?;
        Ok(sent.unwrap_or_default())
    }

    fn is_pager(&self) -> bool {
        self.service.is_for_each
    }

    fn parts(&self, delivery: &Delivery) -> usize {
        let count = match self.service.is_for_each {
            true => pages(delivery, &self.message.zone, &self.message.links).len(),
            false => 1,
        };
        count.saturating_sub(self.begun.lock().get(&delivery.id).copied().unwrap_or_default())
    }

    async fn send_part(
        &self,
        delivery: &Delivery,
        most: usize,
        now: Timestamp,
    ) -> Result<Option<ReceiverAnswer>, Failure> {
        self.post(&ReceiverMessage::new(delivery), most, now).await
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        self.post(&ReceiverMessage::test(&test_delivery(&self.receiver, now)), usize::MAX, now)
            .await
            .map(|_| ())
    }

    async fn probe(&self) -> Result<(), Failure> {
        self.target.probe().await
    }

    fn render(&self, delivery: &Delivery) -> Result<String, String> {
        let mut options = self.options.clone();
        for secret in self.service.options.iter().filter(|option| option.is_secret && option.name != "url") {
            options[secret.name] = json!("SECRET");
        }
        let data = self.data(&ReceiverMessage::new(delivery)).into_iter();
        let bodies = data.map(|data| self.request(data, &options).map(|request| request.body));
        Ok(bodies.collect::<Result<Vec<String>, String>>()?.join("\n"))
    }
}

#[cfg(test)]
mod tests;
