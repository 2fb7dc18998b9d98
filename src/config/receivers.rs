//! Checks the receivers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lettre::message::Mailbox;
use url::Url;

use super::file::{Channel, File, Receiver};
use super::problem::Problems;
use super::{Span, breaker, http, ineffective, inhibition, instance, routes, secrets, tls};
use crate::address::BrokerAddress;
use crate::alerting::{
    self, ChannelConfig, EmailConfig, ExecConfig, Fallback, Links, MAX_MESSAGES, MessageConfig, MqttConfig,
    RateLimit, ReceiverConfig, Retry, Zone,
};
use crate::fleet::FlapRules;
use crate::presence::{Filters, Kind};

mod web;

const TYPES: [(&str, Channel); 13] = [
    ("webhook", Channel::Webhook),
    ("email", Channel::Email),
    ("slack", Channel::Slack),
    ("teams", Channel::Teams),
    ("pagerduty", Channel::PagerDuty),
    ("opsgenie", Channel::Opsgenie),
    ("telegram", Channel::Telegram),
    ("discord", Channel::Discord),
    ("ntfy", Channel::Ntfy),
    ("pushover", Channel::Pushover),
    ("exec", Channel::Exec),
    ("mqtt", Channel::Mqtt),
    ("alertmanager", Channel::Alertmanager),
];
const OF_EVERY_RECEIVER: [&str; 9] =
    ["name", "type", "zone", "concurrency", "timeout", "retry", "fallback", "fallback_after", "rate_limit"];

pub(super) fn alerting(file: &File, base: &Path, problems: &mut Problems) -> alerting::AlertingConfig {
    let links = http::links(&file.http, problems);
    let receivers: Vec<ReceiverConfig> = file
        .receiver
        .iter()
        .enumerate()
        .filter_map(|(at, one)| receiver(&format!("receiver[{at}]"), one, &links, base, problems))
        .collect();
    let route = routes::root(file, problems);
    names(file, &route, problems);
    fallbacks(file, problems);
    // Errors of these options are reported with `[hearing]` and `[records]`.
    let blind_after = file.hearing.tell_after.0;
    // The service fills these from the topics.
    let filters = Filters::default();
    let inhibition = inhibition::inhibition(file, problems);
    ineffective::warn(file, &route, &inhibition, problems);
    let flapping = flapping(file, problems);
    let archive_after = archive_after(file);
    let breaker = breaker::rule(&file.breaker, problems);
    alerting::AlertingConfig {
        route,
        receivers,
        blind_after,
        filters,
        brokers: Vec::new(),
        inhibition,
        breaker,
        flapping,
        archive_after,
    }
}

/// The kinds that have flap detection. Their other errors are reported with the kinds.
fn flapping(file: &File, problems: &mut Problems) -> FlapRules {
    let kinds = file.kind.iter().enumerate();
    let rules = kinds.filter_map(|(at, one)| {
        let allowed = one.timeout.0.saturating_add(one.grace.0);
        let rule = one.flapping.rule(&format!("kind[{at}].flapping"), allowed, problems)?;
        Some((one.name.parse().ok()?, rule))
    });
    rules.collect()
}

/// The kinds whose units are archived. Errors are reported with the kinds.
fn archive_after(file: &File) -> BTreeMap<Kind, Duration> {
    let archives = file.kind.iter().filter(|one| !one.archive_after.0.is_zero());
    archives.filter_map(|one| Some((one.name.parse().ok()?, one.archive_after.0))).collect()
}

/// Checks that names of receivers are unique, and that a route names each receiver.
fn names(file: &File, route: &alerting::Route, problems: &mut Problems) {
    let names: Vec<&str> = file.receiver.iter().map(|one| one.name.as_str()).collect();
    let routed = route.named_receivers();
    for (at, name) in names.iter().enumerate() {
        let path = format!("receiver[{at}].name");
        // A name follows the rules of kind names, because it also becomes part of keys and ids.
        if name.parse::<Kind>().is_err() {
            problems.error(path, "a receiver's name is 1 to 32 of the characters a-z, 0-9, _ and -");
        } else if names[..at].contains(name) {
            problems.error(path, format!("{name:?} is used twice; rename one"));
        } else if !routed.iter().any(|routed| routed == name)
            && !file.receiver.iter().any(|other| other.fallback == *name)
            && !file.timer.iter().any(|class| class.receivers.iter().any(|one| one == name))
            && !file.report.iter().any(|report| report.receivers.iter().any(|one| one == name))
        {
            problems.warn(path, format!("{name:?} gets no notifications; add it to route.receivers"));
        }
    }
}

/// Checks that a fallback is another receiver, and that no chain of fallbacks is a circle.
fn fallbacks(file: &File, problems: &mut Problems) {
    let find = |name: &str| file.receiver.iter().find(|one| one.name == name);
    for (at, one) in file.receiver.iter().enumerate().filter(|(_, one)| !one.fallback.is_empty()) {
        let path = format!("receiver[{at}].fallback");
        let mut next = Some(one);
        let mut length = 0;
        while let Some(of) = next.filter(|of| !of.fallback.is_empty() && length <= file.receiver.len()) {
            next = find(&of.fallback);
            length += 1;
        }
        if find(&one.fallback).is_none() {
            problems.error(
                path,
                format!("there is no receiver {:?}; add a [[receiver]] of that name", one.fallback),
            );
        } else if length > file.receiver.len() {
            problems
                .error(path, format!("the fallbacks of {:?} form a circle; remove one of them", one.name));
        }
    }
}

fn receiver(
    path: &str,
    one: &Receiver,
    links: &Links,
    base: &Path,
    problems: &mut Problems,
) -> Option<ReceiverConfig> {
    let before = problems.errors.len();
    let channel = match one.channel {
        None => {
            let known = TYPES.map(|(name, _)| format!("{name:?}")).join(", ");
            problems.error(format!("{path}.type"), format!("is missing; write one of {known}"));
            None
        }
        Some(Channel::Webhook) => web::webhook(path, one, base, problems),
        Some(Channel::Email) => email(path, one, base, problems),
        Some(Channel::Exec) => exec(path, one, problems),
        Some(Channel::Mqtt) => mqtt(path, one, base, problems),
        Some(Channel::Alertmanager) => web::alertmanager(path, one, base, problems),
        Some(service) => web::service(path, one, service, base, problems),
    };
    let zone = problems.keep(&format!("{path}.zone"), Zone::parse(&one.zone)).unwrap_or_default();
    let message = MessageConfig { links: links.clone(), zone, labels: web::labels(path, one, problems) };
    let at = |option: &str| format!("{path}.{option}");
    let concurrency = problems.number(&at("concurrency"), one.concurrency, 1, 64);
    let longest = Span::from_secs(600);
    let timeout = problems.span(&at("timeout"), one.timeout, Span::from_secs(1), longest);
    let retry = retry(path, one, problems);
    let after =
        problems.span(&at("fallback_after"), one.fallback_after, Span::from_secs(1), Span::from_days(7));
    if !one.fallback.is_empty() && after >= retry.give_up_after {
        problems.error(
            at("fallback_after"),
            "is not shorter than retry.give_up_after: notifications would be dead letters before the fallback gets \
             them; write a shorter one",
        );
    }
    let fallback = (!one.fallback.is_empty()).then(|| Fallback { receiver: one.fallback.clone(), after });
    let rate_limit = rate_limit(path, one, problems);
    let (name, channel) = (one.name.clone(), channel?);
    let receiver =
        ReceiverConfig { name, channel, message, concurrency, timeout, retry, fallback, rate_limit };
    // Report errors here that the channel would report at the start.
    if problems.errors.len() == before
        && let Err(error) = alerting::open(&receiver)
    {
        problems.error(path, error);
    }
    Some(receiver)
}

fn rate_limit(path: &str, one: &Receiver, problems: &mut Problems) -> Option<RateLimit> {
    let at = |option: &str| format!("{path}.rate_limit.{option}");
    let messages = problems.number(&at("messages"), one.rate_limit.messages, 0, MAX_MESSAGES);
    let per = problems.span(&at("per"), one.rate_limit.per, Span::from_secs(1), Span::from_hours(24));
    if messages > 0 && one.channel == Some(Channel::Mqtt) {
        problems.error(
            at("messages"),
            "is of no use for a broker, which takes a message for each unit; remove it",
        );
    }
    (messages > 0).then_some(RateLimit { messages, per })
}

fn retry(path: &str, one: &Receiver, problems: &mut Problems) -> Retry {
    let at = |option: &str| format!("{path}.retry.{option}");
    let (second, day) = (Span::from_secs(1), Span::from_hours(24));
    let retry = Retry {
        first: problems.span(&at("first"), one.retry.first, Span::from_millis(100), day),
        longest: problems.span(&at("longest"), one.retry.longest, second, day),
        give_up_after: problems.span(
            &at("give_up_after"),
            one.retry.give_up_after,
            second,
            Span::from_days(30),
        ),
    };
    if retry.first > retry.longest {
        problems.error(at("first"), "is longer than retry.longest");
    }
    retry
}

/// Reports options of another type of receiver, because the operator expects an effect. `own` are the options of this
/// type, beside the options of every receiver.
fn misplaced(path: &str, one: &Receiver, own: &[&str], problems: &mut Problems) {
    let options = |one: &Receiver| serde_json::to_value(one).expect("plain structs with text keys are JSON");
    let (given, defaults) = (options(one), options(&Receiver::default()));
    let kind = given["type"].as_str().unwrap_or_default();
    for (option, value) in given.as_object().into_iter().flatten() {
        let is_own = own.contains(&option.as_str()) || OF_EVERY_RECEIVER.contains(&option.as_str());
        if !is_own && *value != defaults[option] {
            let text = format!("is not an option of a receiver of type {kind}");
            problems.error(format!("{path}.{option}"), text);
        }
    }
}

fn exec(path: &str, one: &Receiver, problems: &mut Problems) -> Option<ChannelConfig> {
    misplaced(path, one, &["command", "environment"], problems);
    if one.command.is_empty() {
        problems.error(format!("{path}.command"), "is missing; write [\"/usr/local/bin/notify\"]");
        return None;
    }
    let (command, environment) = (one.command.clone(), one.environment.clone());
    Some(ChannelConfig::Exec(ExecConfig { command, environment }))
}

fn mqtt(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<ChannelConfig> {
    let own = ["url", "username", "password_file", "topic", "payload", "retain"];
    misplaced(path, one, &[&own[..], &["ca_file", "client_cert_file", "client_key_file"]].concat(), problems);
    let address = problems.keep(&format!("{path}.url"), one.url.parse::<BrokerAddress>())?;
    let option = format!("{path}.password_file");
    let password = secrets::read(&option, &one.password_file, base, problems);
    if one.username.is_empty() && !one.password_file.is_empty() {
        problems.error(option, "belongs to a user; write username");
    }
    let unused = "is of no use without TLS; write mqtts:// or wss://".to_owned();
    let unused = (!address.scheme.is_secure()).then_some(unused);
    let named = [one.ca_file.as_str(), &one.client_cert_file, &one.client_key_file];
    let tls = tls::files(path, named, unused, base, problems);
    let credentials =
        (!one.username.is_empty()).then(|| (one.username.clone(), password.unwrap_or_default()));
    let (url, topic, payload) = (one.url.clone(), one.topic.clone(), one.payload.clone());
    let mqtt = MqttConfig { url, credentials, topic, payload, retain: one.retain, tls };
    Some(ChannelConfig::Mqtt(Box::new(mqtt)))
}

fn email(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<ChannelConfig> {
    let own = ["smtp", "from", "to", "password_file", "ca_file", "client_cert_file", "client_key_file"];
    misplaced(path, one, &own, problems);
    let password = secrets::read(&format!("{path}.password_file"), &one.password_file, base, problems);
    smtp(path, one, problems);
    let mailbox = |option: String, address: &str, problems: &mut Problems| {
        if address.parse::<Mailbox>().is_err() {
            problems.error(option, format!("{address:?} is not a mail address; write ops@example.org"));
        }
    };
    mailbox(format!("{path}.from"), &one.from, problems);
    if one.to.is_empty() {
        problems.error(format!("{path}.to"), "is missing; write [\"ops@example.org\"]");
    }
    for (at, to) in one.to.iter().enumerate() {
        mailbox(format!("{path}.to[{at}]"), to, problems);
    }
    let unused = "is of no use without TLS; write smtps:// or smtp+starttls://".to_owned();
    let unused = one.smtp.starts_with("smtp:").then_some(unused);
    let named = [one.ca_file.as_str(), &one.client_cert_file, &one.client_key_file];
    let tls = tls::files(path, named, unused, base, problems);
    let (smtp, from, to) = (one.smtp.clone(), one.from.clone(), one.to.clone());
    let hello = instance::full_host();
    Some(ChannelConfig::Email(EmailConfig { smtp, password, from, to, hello, tls }))
}

fn smtp(path: &str, one: &Receiver, problems: &mut Problems) {
    let option = format!("{path}.smtp");
    let known = |url: &Url| matches!(url.scheme(), "smtp" | "smtps" | "smtp+starttls") && url.has_host();
    let Some(url) = Url::parse(&one.smtp).ok().filter(known) else {
        let text =
            "is not an address; write smtp://host:25, smtps://user@host or smtp+starttls://user@host:587";
        return problems.error(option, text);
    };
    match (url.password().is_some(), url.username().is_empty(), one.password_file.is_empty()) {
        (true, _, _) => {
            problems.error(option, "holds a password; write it into a file and name it in password_file")
        }
        (_, false, true) => problems.error(option, "names a user, and there is no password_file"),
        (_, true, false) => {
            problems.error(option, "names no user for password_file; write smtps://user@host");
        }
        _ => {}
    }
}
