//! Checks the fleet: its kinds and their topics, the connection to the broker, and the canaries.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use super::broker::WITHIN;
use super::file::{self, ClockSource, File, Mqtt};
use super::problem::Problems;
use super::{Period, Span, brokers, presence, secrets, tls};
use crate::address::BrokerAddress;
use crate::fleet::{HearingConfig, Rules};
use crate::intake::{self, StatesConfig, Template, Tls, TlsError};
use crate::presence::{
    DEFAULT_TIMEOUT, Kind, KindRules, MAX_TIMEOUT, MIN_TIMEOUT, Policy, Registry, TimeSource, UnitName,
    blind_gap, canary_period,
};

/// The most heartbeats in one batch.
const MAX_BATCH: usize = 2000;
/// The most units of a kind.
const MAX_UNITS: u64 = 1_000_000_000;
/// Two canaries further apart than this many periods enclose a blind interval, if their period is configured.
const GAP_PERIODS: u32 = 3;

pub(super) fn fleet(
    file: &File,
    base: &Path,
    problems: &mut Problems,
) -> (Vec<intake::Config>, Rules, HearingConfig) {
    let names = brokers::names(file, problems);
    brokers::check_kinds(&file.kind, &names, problems);
    let rules = kinds(&file.kind, problems);
    let topics = topics(&file.kind, &names, problems);
    let presence = presence::presence(file, problems);
    presence::check_topics(&file.kind, &presence, &names, problems);
    let (period, hearing) = hearing(&file.hearing, &rules, problems);
    let mut all = file.mqtt.all();
    // The broker within the process, beside others.
    let within = Mqtt { name: file.broker.name.clone(), client_id: WITHIN.to_owned(), ..Mqtt::default() };
    if names.len() > all.len() {
        all.push(("broker".to_owned(), &within));
    }
    let is_heard = |kind: &Kind, broker: &str| {
        let of = file.kind.iter().find(|one| one.name == kind.as_str());
        of.is_none_or(|kind| brokers::is_heard_at(kind, broker))
    };
    let intake: Vec<intake::Config> = all
        .into_iter()
        .map(|(path, one)| {
            let here = |of: &Option<Kind>| of.as_ref().is_none_or(|kind| is_heard(kind, &one.name));
            let topics = topics.iter().filter(|(_, of)| here(of)).cloned().collect();
            let presence = presence.iter().filter(|(kind, _)| is_heard(kind, &one.name)).cloned().collect();
            let count = |kind: &&Kind| names.iter().filter(|name| is_heard(kind, name)).count();
            let both = rules.keys().filter(|kind| is_heard(kind, &one.name) && count(kind) > 1);
            let mut of_one = Problems::default();
            let config = intake::Config {
                presence,
                is_one_of_several: names.len() > 1,
                kinds: rules.keys().filter(|kind| is_heard(kind, &one.name)).cloned().collect(),
                kinds_elsewhere: both.cloned().collect(),
                ..mqtt(one, period, topics, base, &mut of_one)
            };
            // Report errors here that intake would report at the start.
            if problems.errors.is_empty() && of_one.errors.is_empty() {
                for text in config.problems() {
                    let (path, text) = text.split_once(": ").unwrap_or(("mqtt", &text));
                    of_one.error(path, text);
                }
            }
            problems.take(of_one, &path);
            config
        })
        .collect();
    (intake, rules, hearing)
}

/// The period of canaries, and the rules of blindness.
fn hearing(hearing: &file::Hearing, rules: &Rules, problems: &mut Problems) -> (Duration, HearingConfig) {
    let (zero, hour) = (Span::from_secs(0), Span::from_hours(1));
    let shortest = rules.values().map(|rules| rules.policy.timeout).min().unwrap_or(DEFAULT_TIMEOUT);
    let (period, gap) = match hearing.canary_period {
        Period::Auto => (canary_period(shortest), blind_gap(shortest)),
        Period::Every(span) => {
            let bounds = (Span::from_millis(50), Span::from_secs(60));
            let period = problems.span("hearing.canary_period", span, bounds.0, bounds.1);
            (period, period * GAP_PERIODS)
        }
    };
    let config = HearingConfig {
        gap,
        follows: hearing.canary_period == Period::Auto,
        settle: problems.span("hearing.settle", hearing.settle, zero, hour),
        tell_after: problems.span(
            "hearing.tell_after",
            hearing.tell_after,
            Span::from_secs(1),
            Span::from_days(1),
        ),
    };
    (period, config)
}

fn kinds(kinds: &[file::Kind], problems: &mut Problems) -> Rules {
    let mut rules = Rules::default();
    if kinds.is_empty() {
        problems.error("kind", "a fleet has at least one kind; leave the key out for one named \"detector\"");
    }
    for (at, one) in kinds.iter().enumerate() {
        let path = format!("kind[{at}]");
        let (least, most) = (Span(MIN_TIMEOUT), Span(MAX_TIMEOUT));
        let timeout = problems.span(&format!("{path}.timeout"), one.timeout, least, most);
        let grace = problems.span(&format!("{path}.grace"), one.grace, Span::from_secs(0), most);
        let first = one.first_timeout;
        let first_timeout = (first != Span::from_secs(0))
            .then(|| problems.span(&format!("{path}.first_timeout"), first, least, most));
        let max_sleep = problems.span(&format!("{path}.max_sleep"), one.max_sleep, least, most);
        let forget = (Span::from_secs(60), Span::from_days(3650));
        let forget_after =
            problems.span(&format!("{path}.forget_after"), one.forget_after, forget.0, forget.1);
        let archive = one.archive_after;
        let archive_after = (archive != Span::from_secs(0))
            .then(|| problems.span(&format!("{path}.archive_after"), archive, Span::from_secs(1), forget.1));
        let Some(kind) = problems.keep(&format!("{path}.name"), one.name.parse::<Kind>()) else { continue };
        let name = one.unit.as_ref().and_then(|name| problems.keep(&format!("{path}.unit"), name.parse()));
        let rule = KindRules {
            kind: kind.clone(),
            name: name.unwrap_or_default(),
            policy: Policy { timeout, grace },
            accept_timeout: one.accept_timeout,
            accept_sleep: one.accept_sleep,
            max_sleep,
            clock: match one.clock {
                ClockSource::Arrival => TimeSource::Arrival,
                ClockSource::Device => TimeSource::Device,
            },
            registry: match one.registry {
                file::Registry::Open => Registry::Open,
                file::Registry::Closed => Registry::Closed,
            },
            first_timeout,
            forget_after,
            max_units: problems.number(&format!("{path}.max_units"), one.max_units, 1, MAX_UNITS),
            archive_after,
        };
        if rules.insert(kind, rule).is_some() {
            problems.error(format!("{path}.name"), format!("{:?} is used twice; rename one", one.name));
        }
    }
    rules
}

/// The templates of all kinds. A template with `{kind}` stands for every kind and is kept once; any other belongs to
/// one kind. Two templates that match the same topics would be ambiguous.
fn topics(kinds: &[file::Kind], brokers: &[String], problems: &mut Problems) -> Vec<(String, Option<Kind>)> {
    let name = |kind: &file::Kind| kind.unit.as_ref().and_then(|name| name.parse().ok()).unwrap_or_default();
    let names: Vec<UnitName> = kinds.iter().map(name).collect();
    let mut topics: Vec<(String, Option<Kind>)> = Vec::new();
    let mut heard: HashMap<(&str, String), (String, &str)> = HashMap::new();
    for (at, one) in kinds.iter().enumerate().filter(|(_, kind)| !presence::is_sparkplug(kind)) {
        let path = format!("kind[{at}].topics");
        for (nr, template) in one.topics.iter().enumerate() {
            let path = format!("{path}[{nr}]");
            // An invalid name is already reported; its templates are still checked.
            let kind: Kind = one.name.parse().unwrap_or_else(|_| "unnamed".parse().expect("a kind"));
            let shared = template.split('/').any(|level| level == "{kind}");
            let kind = (!shared).then_some(kind);
            let parsed = Template::parse(template, kind.clone());
            let Some(parsed) = problems.keep(&path, parsed) else { continue };
            let named = if shared { &names[..] } else { &names[at..=at] };
            if let Some(why) = named.iter().find_map(|name| parsed.check_name(name).err()) {
                problems.error(&path, why.to_string());
            }
            let here = brokers.iter().filter(|broker| brokers::is_heard_at(one, broker));
            let before: Vec<_> = here
                .filter_map(|broker| {
                    heard.insert((broker.as_str(), parsed.filter()), (template.clone(), &one.name))
                })
                .collect();
            match before.first() {
                Some((before, _)) if shared && before == template => continue,
                Some((before, kind)) => {
                    let text =
                        format!("matches the same topics as {before:?} of kind {kind:?}; leave one out");
                    problems.error(path, text);
                }
                None => {}
            }
            topics.push((template.clone(), kind));
        }
    }
    topics
}

fn mqtt(
    mqtt: &Mqtt,
    canary_period: Duration,
    topics: Vec<(String, Option<Kind>)>,
    base: &Path,
    problems: &mut Problems,
) -> intake::Config {
    let address = problems.keep("mqtt.url", mqtt.url.parse::<BrokerAddress>());
    let tls = address.and_then(|address| tls(mqtt, &address, base, problems));
    let password = secrets::read("mqtt.password_file", &mqtt.password_file, base, problems);
    names(mqtt, problems);
    let second = Span::from_secs(1);
    intake::Config {
        broker: mqtt.name.clone(),
        is_one_of_several: false,
        kinds: Vec::new(),
        kinds_elsewhere: Vec::new(),
        url: mqtt.url.clone(),
        tls,
        client_id: mqtt.client_id.clone(),
        credentials: (!mqtt.username.is_empty())
            .then(|| (mqtt.username.clone(), password.unwrap_or_default())),
        share: mqtt.share.clone(),
        connections: mqtt.connections,
        qos: problems.number("mqtt.qos", mqtt.qos, 0, 1),
        keep_alive: problems.span("mqtt.keep_alive", mqtt.keep_alive, second, Span::from_secs(10)),
        session_expiry: problems.span(
            "mqtt.session_expiry",
            mqtt.session_expiry,
            Span::from_secs(0),
            Span::from_days(30),
        ),
        receive_maximum: problems.number("mqtt.receive_maximum", mqtt.receive_maximum, 1, u16::MAX),
        max_payload: problems.number("mqtt.max_payload", mqtt.max_payload, 1, 16 << 20) as usize,
        max_age: problems.span("mqtt.max_age", mqtt.max_age, Span::from_secs(0), Span::from_days(400)),
        watch_sys: mqtt.watch_sys,
        states: states(mqtt, problems),
        timers: mqtt.timers,
        max_batch: MAX_BATCH,
        canary_period,
        topics,
        presence: Vec::new(),
        fields: intake::Fields {
            ts: mqtt.fields.ts.clone(),
            timeout: mqtt.fields.timeout.clone(),
            labels: mqtt.fields.labels.clone(),
            sleep: mqtt.fields.sleep.clone(),
        },
    }
}

/// Reports names that a broker does not accept.
fn names(mqtt: &Mqtt, problems: &mut Problems) {
    if mqtt.username.is_empty() && !mqtt.password_file.is_empty() {
        problems.error("mqtt.password_file", "is a password without a user name; set mqtt.username");
    }
    let plain = |text: &str| !text.contains(['/', '+', '#']) && !text.chars().any(char::is_control);
    if mqtt.client_id.is_empty() || mqtt.client_id.len() > 64 || !plain(&mqtt.client_id) {
        problems.error("mqtt.client_id", "is 1 to 64 bytes without /, + and #");
    }
    if !plain(&mqtt.share) {
        problems.error("mqtt.share", "the name of a shared subscription has no /, + and #");
    }
    if mqtt.fields.ts.is_empty() {
        problems.error("mqtt.fields.ts", "is empty; leave the key out for \"ts\"");
    }
}

/// The states of units that Rollcall publishes.
fn states(mqtt: &Mqtt, problems: &mut Problems) -> Option<StatesConfig> {
    if mqtt.homeassistant_discovery && !mqtt.publish_state {
        problems.error("mqtt.homeassistant_discovery", "needs mqtt.publish_state = true");
    }
    let rate = problems.number("mqtt.publish_state_rate", mqtt.publish_state_rate, 1, 1_000_000);
    mqtt.publish_state.then_some(StatesConfig { rate, has_discovery: mqtt.homeassistant_discovery })
}

/// TLS to the broker; `None` without TLS.
fn tls(mqtt: &Mqtt, address: &BrokerAddress, base: &Path, problems: &mut Problems) -> Option<Tls> {
    let is_secure = address.scheme.is_secure();
    let scheme = address.scheme.as_str();
    let unused = format!("has no effect with {scheme}://; write mqtts:// or wss:// in mqtt.url");
    let named = [&mqtt.ca_file, &mqtt.client_cert_file, &mqtt.client_key_file].map(String::as_str);
    let files = tls::files("mqtt", named, (!is_secure).then_some(unused), base, problems);
    if !is_secure {
        return None;
    }
    let read = Tls::read(&files);
    read.map_err(|TlsError { option, text }| problems.error(option, text)).ok()
}

/// A topic on which a unit of the first kind may be heard, for a fleet that has none yet.
pub(super) fn example_topic(file: &File) -> Option<String> {
    let kind = file.kind.iter().find(|kind| !kind.topics.is_empty())?;
    let template = Template::parse(kind.topics.first()?, Some(kind.name.parse().ok()?)).ok()?;
    Some(template.example())
}
