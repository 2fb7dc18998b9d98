//! The configuration of intake, and its problems.

use std::time::Duration;

use anyhow::Context;

use super::announcements::PresenceRules;
use super::topic::{Template, Topics};
use super::{Fields, StatesConfig, Tls};
use crate::address::BrokerAddress;
use crate::fleet::SharedRules;
use crate::presence::{Filters, Kind, proof_of_share};

/// The most connections of one process.
pub const MAX_CONNECTIONS: u8 = 16;

/// The largest packet that is received, and then rejected and counted. Rollcall announces this limit to the broker,
/// which drops larger packets, so that no device can fill Rollcall's memory.
pub(super) const MAX_PACKET: u32 = 16 << 20;

#[derive(Clone)]
pub struct Config {
    /// The name of the broker; empty for the only one.
    pub broker: String,
    /// Kinds are also heard at other brokers, so this broker proves hearing only for its own kinds.
    pub is_one_of_several: bool,
    /// The kinds of this broker, also those without a topic, which are heard over HTTP only.
    pub kinds: Vec<Kind>,
    /// The kinds that are heard both here and at other brokers.
    pub kinds_elsewhere: Vec<Kind>,
    /// The address: `mqtt://host:port`, `mqtts://`, `ws://host:port/path` or `wss://`.
    pub url: String,
    /// Settings of TLS, if the address requires it; `None` means the authorities of browsers, and no client
    /// certificate.
    pub tls: Option<Tls>,
    /// Prefix of the client id; the connection's name is appended, and with a shared subscription
    /// a random part for each process.
    pub client_id: String,
    /// The user name and password at the broker.
    pub credentials: Option<(String, String)>,
    /// Name of the shared subscription; empty means a plain subscription with a persistent session.
    pub share: String,
    /// The quality of service, 0 or 1, for the fleet's topics and the canary alike.
    pub qos: u8,
    /// The number of connections, each a member of the shared subscription; 1 for a plain subscription.
    pub connections: u8,
    /// The keep-alive: at most half of the time after which a dead connection is noticed. A broker drops a client that
    /// is silent for one and a half keep-alives.
    pub keep_alive: Duration,
    /// How long the broker keeps the session and its backlog while Rollcall is away.
    pub session_expiry: Duration,
    /// The most messages that the broker may send ahead of their acknowledgement.
    pub receive_maximum: u16,
    /// The longest payload that is read, in bytes; the content of a longer one is ignored.
    pub max_payload: usize,
    /// A message whose payload plausibly declares a higher age is not a heartbeat; zero means no limit.
    pub max_age: Duration,
    /// Whether the broker's own count of dropped messages is followed.
    pub watch_sys: bool,
    /// The published states of units, if they are published.
    pub states: Option<StatesConfig>,
    /// Whether programs may register and cancel timers.
    pub timers: bool,
    /// The most heartbeats in one batch.
    pub max_batch: usize,
    pub canary_period: Duration,
    /// Topic templates with the kind that they belong to; `None` if the template captures `{kind}`. The first template
    /// that fits a topic wins.
    pub topics: Vec<(String, Option<Kind>)>,
    /// The announcements of kinds.
    pub presence: Vec<(Kind, PresenceRules)>,
    /// Names of the JSON fields that are read.
    pub fields: Fields,
}

/// `Debug` omits the password.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("url", &self.url)
            .field("client_id", &self.client_id)
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The errors of this configuration, each in a sentence with advice.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut must = |good: bool, text: String| {
            if !good {
                problems.push(text);
            }
        };
        if let Err(why) = self.url.parse::<BrokerAddress>() {
            must(false, format!("mqtt.url: {why}"));
        }
        let plain = |text: &str| !text.chars().any(|c| c.is_control() || matches!(c, '/' | '+' | '#'));
        let id = &self.client_id;
        must(plain(id) && (1..=64).contains(&id.len()), "mqtt.client_id: 1 to 64 bytes, no / + #".to_owned());
        must(plain(&self.share), format!("mqtt.share: {:?} has a / + or #", self.share));
        must(self.qos <= 1, format!("mqtt.qos: {} is neither 0 nor 1", self.qos));
        let seconds = self.keep_alive.as_secs();
        must((1..=10).contains(&seconds), "mqtt.keep_alive: between 1 s and 10 s".to_owned());
        let most = if self.share.is_empty() { 1 } else { MAX_CONNECTIONS };
        let text = format!(
            "mqtt.connections: {} is out of bounds; 1 to {MAX_CONNECTIONS} are allowed, and more than 1 only with \
             mqtt.share, or each would hear everything",
            self.connections
        );
        must((1..=most).contains(&self.connections), text);
        must(self.receive_maximum > 0, "mqtt.receive_maximum: at least 1".to_owned());
        must(self.max_batch > 0, "mqtt.max_batch: at least 1".to_owned());
        let most = MAX_PACKET as usize / 2;
        must(self.max_payload <= most, format!("mqtt.max_payload: at most {most} bytes"));
        must(!self.canary_period.is_zero(), "mqtt.canary_period: longer than 0 s".to_owned());
        let has_data = |(_, presence): &(Kind, PresenceRules)| !presence.format.data_topics().is_empty();
        let has_topic = !self.topics.is_empty() || self.presence.iter().any(has_data);
        must(has_topic, self.without_topics().to_owned());
        for (text, kind) in &self.topics {
            if let Err(why) = Template::parse(text, kind.clone()) {
                must(false, format!("topic {text:?}: {why}"));
            }
        }
        problems
    }

    /// The id by which Rollcall publishes its state as a host application of Sparkplug.
    pub(super) fn sparkplug_host(&self) -> Option<&str> {
        let hosts = self.presence.iter().filter_map(|(_, presence)| presence.format.sparkplug());
        hosts.map(|host| host.id.as_str()).find(|id| !id.is_empty())
    }

    /// Whether units are nodes whose deaths are those of their devices.
    pub fn has_nodes(&self) -> bool {
        self.presence.iter().any(|(_, presence)| presence.format.sparkplug().is_some())
    }

    /// The problem text about a broker where no kind is heard.
    fn without_topics(&self) -> &'static str {
        match self.is_one_of_several {
            true => {
                "mqtt.name: no kind is heard at this broker; give a kind a topic, or leave the broker out"
            }
            false => {
                "kind: no kind has a topic; give one, such as \"units/{unit}/heartbeat\", also if all units are heard \
                 over HTTP"
            }
        }
    }

    /// The name of a connection, in metrics and in its client id. A broker name has no dot.
    pub(super) fn connection(&self, number: u8) -> String {
        match (self.broker.as_str(), number) {
            (_, 1) => self.broker_label().to_owned(),
            ("", number) => number.to_string(),
            (broker, number) => format!("{broker}.{number}"),
        }
    }

    /// The name of the broker in metrics.
    pub(super) fn broker_label(&self) -> &str {
        if self.broker.is_empty() { "main" } else { &self.broker }
    }

    /// The name of a filter among the proofs of hearing, with the broker, because each broker proves its own.
    pub(super) fn proof_of(&self, filter: &str) -> String {
        if self.broker.is_empty() { filter.to_owned() } else { format!("{}/{filter}", self.broker) }
    }

    /// The name of the shared subscription within the fleet, with the broker, because each broker has its own.
    pub(super) fn share_of_fleet(&self) -> Option<String> {
        (!self.share.is_empty()).then(|| self.proof_of(&self.share))
    }

    /// The name of the share among the proofs of hearing, if it proves only for its broker.
    pub(super) fn proof_of_share(&self) -> Option<String> {
        let is_for_itself = self.is_one_of_several && !self.share.is_empty();
        is_for_itself.then(|| proof_of_share(&self.broker, &self.share))
    }

    /// The user name of Rollcall at the broker, for operators.
    pub(super) fn user(&self) -> &str {
        self.credentials.as_ref().map_or("the anonymous user", |(name, _)| name)
    }

    /// The filters of each kind, under their names among the proofs of hearing; and the share.
    ///
    /// # Errors
    /// An invalid template.
    pub fn filters(&self, rules: &SharedRules) -> anyhow::Result<Filters> {
        let mut filters = self.topics(rules)?.filters_of_kinds();
        filters.values_mut().flatten().for_each(|filter| *filter = self.proof_of(filter));
        for of_kind in filters.values_mut().filter(|of_kind| !of_kind.is_empty()) {
            of_kind.extend(self.proof_of_share());
        }
        Ok(filters)
    }

    pub(super) fn topics(&self, rules: &SharedRules) -> anyhow::Result<Topics> {
        let mut templates = Vec::new();
        for (text, kind) in &self.topics {
            if let Some(kind) = kind {
                anyhow::ensure!(
                    rules.of(kind.as_str()).is_some(),
                    "topic {text:?} belongs to an unknown kind: {kind}"
                );
            }
            let template = Template::parse(text, kind.clone())?;
            for rules in rules.rules().values().filter(|rules| template.is_of(&rules.kind)) {
                let named = template.check_name(&rules.name);
                named.with_context(|| format!("topic {text:?} does not name units of {}", rules.kind))?;
            }
            templates.push(template);
        }
        let own_clients = format!("{}-", self.client_id);
        let mut topics = Topics::new(templates, rules.clone()).with_own_clients(own_clients);
        for (kind, presence) in &self.presence {
            let added = topics.with_presence(kind, presence);
            topics = added.with_context(|| format!("the presence of kind {kind}"))?;
        }
        Ok(topics)
    }
}
