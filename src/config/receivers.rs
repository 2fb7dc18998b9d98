//! Checks the receivers and the route.

use std::path::Path;

use lettre::message::Mailbox;
use url::Url;

use super::file::{Channel, File, Receiver, Route};
use super::problem::{Problems, suggest};
use super::{Span, secrets};
use crate::alerting::{self, ChannelConfig, ReceiverConfig, Retry};
use crate::presence::{Filters, Kind, is_label_name};
use crate::signature::Secret;
use crate::store::Pace;

pub(super) fn alerting(file: &File, base: &Path, problems: &mut Problems) -> alerting::Config {
    let receivers: Vec<ReceiverConfig> = file
        .receiver
        .iter()
        .enumerate()
        .filter_map(|(at, one)| receiver(&format!("receiver[{at}]"), one, base, problems))
        .collect();
    names(file, problems);
    // Its errors are reported with the section hearing.
    let blind_after = file.hearing.tell_after.0;
    // The service sets them from the topics.
    let filters = Filters::default();
    alerting::Config { route: route(&file.route, problems), receivers, blind_after, filters }
}

/// Names of receivers are unique, and the route names each of them.
fn names(file: &File, problems: &mut Problems) {
    let names: Vec<&str> = file.receiver.iter().map(|one| one.name.as_str()).collect();
    for (at, name) in names.iter().enumerate() {
        let path = format!("receiver[{at}].name");
        // The same pattern as a kind, and for the same reason: it becomes part of keys and ids.
        if name.parse::<Kind>().is_err() {
            problems.error(path, "a receiver's name is 1 to 32 of the characters a-z, 0-9, _ and -");
        } else if names[..at].contains(name) {
            problems.error(path, format!("{name:?} is there twice"));
        } else if !file.route.receivers.iter().any(|routed| routed == name) {
            problems.warn(path, format!("{name:?} gets no notifications; add it to route.receivers"));
        }
    }
    for (at, name) in file.route.receivers.iter().enumerate() {
        let path = format!("route.receivers[{at}]");
        if file.route.receivers[..at].contains(name) {
            problems.error(path, format!("{name:?} is there twice"));
        } else if !names.contains(&name.as_str()) {
            let meant = suggest(name, names.iter().copied());
            let hint =
                meant.map_or("add a [[receiver]]".to_owned(), |meant| format!("did you mean {meant:?}?"));
            problems.error(path, format!("there is no receiver {name:?}; {hint}"));
        }
    }
}

fn route(route: &Route, problems: &mut Problems) -> alerting::Route {
    for (at, name) in route.group_by.iter().enumerate() {
        if !matches!(name.as_str(), "kind" | "unit") && !is_label_name(name) {
            problems.error(
                format!("route.group_by[{at}]"),
                format!("{name:?} is neither kind, unit nor the name of a label"),
            );
        }
    }
    if route.repeat_interval > Span::from_secs(0) {
        problems.error("route.repeat_interval", "reminders are not supported yet; leave it at \"0s\"");
    }
    let wait = problems.span("route.group_wait", route.group_wait, Span::from_secs(0), Span::from_hours(24));
    let interval =
        problems.span("route.group_interval", route.group_interval, Span::from_secs(0), Span::from_days(7));
    alerting::Route {
        receivers: route.receivers.clone(),
        group_by: route.group_by.clone(),
        pace: Pace { wait, interval },
    }
}

fn receiver(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<ReceiverConfig> {
    let before = problems.errors.len();
    let channel = match one.channel {
        None => {
            problems.error(format!("{path}.type"), "is missing; write \"webhook\" or \"email\"");
            None
        }
        Some(Channel::Webhook) => webhook(path, one, base, problems),
        Some(Channel::Email) => email(path, one, base, problems),
    };
    let at = |option: &str| format!("{path}.{option}");
    let (second, day) = (Span::from_secs(1), Span::from_hours(24));
    let concurrency = problems.number(&at("concurrency"), one.concurrency, 1, 64);
    let timeout = problems.span(&at("timeout"), one.timeout, second, Span::from_secs(600));
    let retry = Retry {
        first: problems.span(&at("retry.first"), one.retry.first, Span::from_millis(100), day),
        longest: problems.span(&at("retry.longest"), one.retry.longest, second, day),
        give_up_after: problems.span(
            &at("retry.give_up_after"),
            one.retry.give_up_after,
            second,
            Span::from_days(30),
        ),
    };
    if retry.first > retry.longest {
        problems.error(at("retry.first"), "is longer than retry.longest");
    }
    let receiver = ReceiverConfig { name: one.name.clone(), channel: channel?, concurrency, timeout, retry };
    // Errors that the channel would report at the start are reported here.
    if problems.errors.len() == before
        && let Err(error) = alerting::open(&receiver)
    {
        problems.error(path, error);
    }
    Some(receiver)
}

/// Options of another type of receiver are errors, because the operator expects an effect.
fn misplaced(path: &str, kind: &str, options: &[(&str, bool)], problems: &mut Problems) {
    for (option, _) in options.iter().filter(|(_, given)| *given) {
        problems.error(format!("{path}.{option}"), format!("is not an option of a receiver of type {kind}"));
    }
}

fn webhook(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<ChannelConfig> {
    let others = [
        ("smtp", !one.smtp.is_empty()),
        ("from", !one.from.is_empty()),
        ("to", !one.to.is_empty()),
        ("password_file", !one.password_file.is_empty()),
    ];
    misplaced(path, "webhook", &others, problems);
    let url =
        Url::parse(&one.url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if url.is_none() {
        problems
            .error(format!("{path}.url"), "is not an address; write https://host/path or http://host/path");
    }
    let from_file = secrets::read(&format!("{path}.secret_file"), &one.secret_file, base, problems);
    if !one.secret.is_empty() && !one.secret_file.is_empty() {
        problems.error(path, "has both secret and secret_file; keep the file");
    }
    let given = (!one.secret.is_empty()).then(|| one.secret.clone());
    let secret = from_file.or(given);
    if secret.as_ref().is_some_and(|secret| Secret::parse(secret).is_err()) {
        let text =
            "the secret is not whsec_ and base64 after it; `echo whsec_$(openssl rand -base64 32)` makes one";
        problems.error(path, text);
    } else if one.secret.is_empty() && one.secret_file.is_empty() {
        problems.warn(path, "has no secret: any client that knows the address can forge notifications");
    }
    url.map(|_| ChannelConfig::Webhook { url: one.url.clone(), secret })
}

fn email(path: &str, one: &Receiver, base: &Path, problems: &mut Problems) -> Option<ChannelConfig> {
    let others = [
        ("url", !one.url.is_empty()),
        ("secret", !one.secret.is_empty()),
        ("secret_file", !one.secret_file.is_empty()),
    ];
    misplaced(path, "email", &others, problems);
    let password = secrets::read(&format!("{path}.password_file"), &one.password_file, base, problems);
    smtp(path, one, problems);
    let mailbox = |option: String, address: &str, problems: &mut Problems| {
        if let Err(error) = address.parse::<Mailbox>() {
            problems.error(option, format!("{address:?} is not an address of a mailbox: {error}"));
        }
    };
    mailbox(format!("{path}.from"), &one.from, problems);
    if one.to.is_empty() {
        problems.error(format!("{path}.to"), "is missing; write [\"ops@example.org\"]");
    }
    for (at, to) in one.to.iter().enumerate() {
        mailbox(format!("{path}.to[{at}]"), to, problems);
    }
    Some(ChannelConfig::Email {
        smtp: one.smtp.clone(),
        password,
        from: one.from.clone(),
        to: one.to.clone(),
    })
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
