//! Checks receivers on the web: webhooks, and services with a template of Rollcall.

use std::collections::BTreeMap;
use std::path::Path;

use url::Url;

use super::super::file::{Channel, Format, Receiver};
use super::super::problem::Problems;
use super::super::{Span, secrets, tls};
use super::{TYPES, misplaced};
use crate::alerting::{
    self, AlertmanagerConfig, ChannelConfig, HttpConfig, SERVICES, ServiceConfig, ServiceOption,
    WebhookConfig,
};
use crate::presence::{Labels, is_label_name, is_label_value};
use crate::signature::Secret;

/// The options of a connection.
const CONNECTION: [&str; 4] = ["ca_file", "client_cert_file", "client_key_file", "deny_private_addresses"];
const OF_WEBHOOKS: [&str; 11] = [
    "url",
    "url_file",
    "secret",
    "secret_file",
    "token_file",
    "format",
    "method",
    "headers",
    "labels",
    "body",
    "body_file",
];
const NO_ADDRESS: &str = "is missing or not an address; write https://host/path or http://host/path";

pub(super) fn webhook(
    path: &str,
    one: &Receiver,
    base: &Path,
    problems: &mut Problems,
) -> Option<ChannelConfig> {
    misplaced(path, one, &[&OF_WEBHOOKS[..], &CONNECTION[..]].concat(), problems);
    let url = address(path, one, base, problems);
    let secret = secret(path, one, base, problems);
    let token = secrets::read(&format!("{path}.token_file"), &one.token_file, base, problems);
    let is_open = secret.is_none() && one.secret_file.is_empty() && one.token_file.is_empty();
    if is_open && one.format == Format::Rollcall {
        problems.warn(path, "has no secret: any client that knows the address can forge notifications");
    }
    let format = format(path, one, base, problems)?;
    let url = url?;
    let http = connection(path, one, &url, base, problems);
    let (headers, body_file) = (one.headers.clone(), one.body_file.clone());
    let config = WebhookConfig { url, secret, token, format, body_file, headers, http };
    Some(ChannelConfig::Webhook(Box::new(config)))
}

fn secret(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<String> {
    let from_file = secrets::read(&format!("{path}.secret_file"), &one.secret_file, base, problems);
    if !one.secret.is_empty() && !one.secret_file.is_empty() {
        problems.error(path, "has both secret and secret_file; keep the file");
    }
    let given = (!one.secret.is_empty()).then(|| one.secret.clone());
    let secret = from_file.or(given);
    if let Some(Err(why)) = secret.as_deref().map(Secret::parse) {
        let help = "`echo whsec_$(openssl rand -base64 32)` makes one";
        problems.error(path, format!("the secret {why}; {help}"));
    }
    secret
}

fn format(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<alerting::Format> {
    let given = [("method", &one.method), ("body", &one.body), ("body_file", &one.body_file)];
    if one.format != Format::Template {
        for (option, _) in given.iter().filter(|(_, value)| !value.is_empty()) {
            problems.error(format!("{path}.{option}"), "belongs to format = \"template\"");
        }
    }
    Some(match one.format {
        Format::Rollcall => alerting::Format::Rollcall,
        Format::Alertmanager => alerting::Format::Alertmanager,
        Format::CloudEvents => alerting::Format::CloudEvents,
        Format::Template => {
            let body = body(path, one, base, problems)?;
            alerting::Format::Template { method: one.method.clone(), body }
        }
    })
}

/// The constant labels of alerts. Receivers of other types do not have the option, which is reported elsewhere.
pub(super) fn labels(path: &str, one: &Receiver, problems: &mut Problems) -> Labels {
    let option = |name: &str| format!("{path}.labels.{name}");
    if one.channel == Some(Channel::Webhook) && one.format != Format::Alertmanager {
        for name in one.labels.keys() {
            problems
                .error(option(name), "belongs to format = \"alertmanager\"; other formats have no alerts");
        }
    }
    for (name, value) in &one.labels {
        if matches!(name.as_str(), "kind" | "unit" | "alertname") {
            problems.error(option(name), "is a label that every alert has already; write another name");
        } else if !is_label_name(name) {
            let text = "is no name of a label; write letters, digits and _, at most 32, such as severity";
            problems.error(option(name), text);
        } else if !is_label_value(value) {
            problems.error(option(name), "is no value; write 1 to 128 bytes without control characters");
        }
    }
    one.labels.clone()
}

/// The template of the body.
fn body(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<String> {
    let option = format!("{path}.body_file");
    match (one.body.is_empty(), one.body_file.is_empty()) {
        (false, true) => Some(one.body.clone()),
        (true, false) => {
            let file = base.join(&one.body_file);
            problems.keep(&option, secrets::read_text(&file))
        }
        (true, true) if one.method.eq_ignore_ascii_case("get") => Some(String::new()),
        (true, true) => {
            problems.error(format!("{path}.body"), "is missing; write a template, or name it in body_file");
            None
        }
        (false, false) => {
            problems.error(option, "body and body_file are both set; keep one");
            None
        }
    }
}

/// The address in `url` or in `url_file`.
fn address(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<String> {
    let file = format!("{path}.url_file");
    let (option, text) = match (one.url.is_empty(), one.url_file.is_empty()) {
        (false, false) => {
            problems.error(file, "url and url_file are both set; keep one");
            return None;
        }
        (true, false) => {
            let text = secrets::read(&file, &one.url_file, base, problems)?;
            (file, text)
        }
        (_, true) => (format!("{path}.url"), one.url.clone()),
    };
    let is_web = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    if Url::parse(&text).ok().filter(is_web).is_none() {
        // The error does not show the address, which may be a secret.
        problems.error(option, NO_ADDRESS);
        return None;
    }
    Some(text)
}

fn connection(path: &str, one: &Receiver, url: &str, base: &Path, problems: &mut Problems) -> HttpConfig {
    let unused =
        url.starts_with("http:").then(|| "is of no use without TLS; write an https address".to_owned());
    let named = [one.ca_file.as_str(), &one.client_cert_file, &one.client_key_file];
    let tls = tls::files(path, named, unused, base, problems);
    HttpConfig { tls, deny_private_addresses: one.deny_private_addresses }
}

pub(super) fn alertmanager(
    path: &str,
    one: &Receiver,
    base: &Path,
    problems: &mut Problems,
) -> Option<ChannelConfig> {
    let own = ["urls", "token_file", "resend", "max_alerts", "labels"];
    misplaced(path, one, &[&own[..], &CONNECTION[..]].concat(), problems);
    if one.urls.is_empty() {
        problems.error(format!("{path}.urls"), "is missing; write the address of each server of the cluster");
    }
    let is_web = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    for (at, url) in one.urls.iter().enumerate() {
        if Url::parse(url).ok().filter(is_web).is_none() {
            problems.error(format!("{path}.urls[{at}]"), NO_ADDRESS);
        }
    }
    let token = secrets::read(&format!("{path}.token_file"), &one.token_file, base, problems);
    let (least, most) = (Span::from_secs(1), Span::from_hours(1));
    let resend = problems.span(&format!("{path}.resend"), one.resend, least, most);
    let max_alerts = problems.number(&format!("{path}.max_alerts"), one.max_alerts, 1, 10_000);
    let first = one.urls.first().map_or("", String::as_str);
    let http = connection(path, one, first, base, problems);
    let urls = one.urls.clone();
    let config = AlertmanagerConfig { urls, token, http, resend, max_alerts };
    Some(ChannelConfig::Alertmanager(Box::new(config)))
}

pub(super) fn service(
    path: &str,
    one: &Receiver,
    channel: Channel,
    base: &Path,
    problems: &mut Problems,
) -> Option<ChannelConfig> {
    let (name, _) = TYPES.iter().find(|(_, known)| *known == channel)?;
    let service = SERVICES.iter().find(|service| service.name == *name)?;
    let given = serde_json::to_value(one).expect("plain structs with text keys are JSON");
    let mut own = [&["title", "text"][..], &CONNECTION[..]].concat();
    let files: Vec<String> = service.options.iter().map(|option| format!("{}_file", option.name)).collect();
    for (option, file) in service.options.iter().zip(&files) {
        own.extend((!option.is_secret || option.name == "url").then_some(option.name));
        own.extend(option.is_secret.then_some(file.as_str()));
    }
    misplaced(path, one, &own, problems);
    let before = problems.errors.len();
    let mut options = BTreeMap::new();
    for option in service.options {
        let value = match (option.name, option.is_secret) {
            ("url", true) => address(path, one, base, problems),
            (name, true) => {
                let file = format!("{name}_file");
                let named = given[&file].as_str().unwrap_or_default();
                secret_of(path, option, named, base, problems)
            }
            (name, false) => plain(path, option, given[name].as_str().unwrap_or_default(), problems),
        };
        options.extend(value.map(|value| (option.name, value)));
    }
    if problems.errors.len() > before {
        return None;
    }
    let http = connection(path, one, options.get("url").map_or("", String::as_str), base, problems);
    let (title, text) = (one.title.clone(), one.text.clone());
    Some(ChannelConfig::Service(Box::new(ServiceConfig { service, options, title, text, http })))
}

fn secret_of(
    path: &str,
    option: &ServiceOption,
    file: &str,
    base: &Path,
    problems: &mut Problems,
) -> Option<String> {
    let place = format!("{path}.{}_file", option.name);
    if file.is_empty() && option.is_required {
        problems.error(place, "is missing; write the secret into a file and its name here");
        return None;
    }
    secrets::read(&place, file, base, problems)
}

fn plain(path: &str, option: &ServiceOption, given: &str, problems: &mut Problems) -> Option<String> {
    let place = format!("{path}.{}", option.name);
    let value = if given.is_empty() { option.default } else { given };
    if value.is_empty() {
        if option.is_required {
            problems.error(place, "is missing");
        }
        return None;
    }
    if !option.values.is_empty() && !option.values.contains(&value) {
        problems
            .error(place, format!("{value:?} is not possible; write one of {}", option.values.join(", ")));
    }
    Some(value.to_owned())
}
