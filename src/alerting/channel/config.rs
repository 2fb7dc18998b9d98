//! The options of each type of receiver.

use std::collections::BTreeMap;

use super::alertmanager::AlertmanagerConfig;
use super::exec::ExecConfig;
use super::http_target::HttpConfig;
use super::mqtt::MqttConfig;
use super::service::ServiceConfig;

#[derive(Clone)]
pub enum ChannelConfig {
    /// A request to a web server.
    Webhook(Box<WebhookConfig>),
    Email {
        /// `smtp://`, `smtps://`, `smtp+starttls://user@host:port`.
        smtp: String,
        /// The password for the user in the address.
        password: Option<String>,
        from: String,
        to: Vec<String>,
    },
    /// A service for which Rollcall has a template.
    Service(Box<ServiceConfig>),
    /// A program on this machine.
    Exec(ExecConfig),
    /// An MQTT broker.
    Mqtt(Box<MqttConfig>),
    /// The servers of an Alertmanager.
    Alertmanager(Box<AlertmanagerConfig>),
}

impl ChannelConfig {
    /// The `type` of the receiver in the configuration.
    pub fn type_name(&self) -> &'static str {
        match self {
            ChannelConfig::Webhook(_) => "webhook",
            ChannelConfig::Email { .. } => "email",
            ChannelConfig::Service(service) => service.service.name,
            ChannelConfig::Exec(_) => "exec",
            ChannelConfig::Mqtt(_) => "mqtt",
            ChannelConfig::Alertmanager(_) => "alertmanager",
        }
    }
}

/// Without secrets; the URL of a webhook often is one.
impl std::fmt::Debug for ChannelConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ChannelConfig::Webhook(_) => "Webhook",
            ChannelConfig::Email { .. } => "Email",
            ChannelConfig::Service(_) => "Service",
            ChannelConfig::Exec(_) => "Exec",
            ChannelConfig::Mqtt(_) => "Mqtt",
            ChannelConfig::Alertmanager(_) => "Alertmanager",
        })
    }
}

/// A webhook, by default one that follows the Standard Webhooks specification.
#[derive(Clone, Default)]
pub struct WebhookConfig {
    pub url: String,
    /// `whsec_…`; without it, messages are not signed.
    pub secret: Option<String>,
    /// A token for `Authorization: Bearer`.
    pub token: Option<String>,
    pub format: Format,
    /// More headers. With [`Format::Template`] their values are templates.
    pub headers: BTreeMap<String, String>,
    pub http: HttpConfig,
}

/// The body of a webhook.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Format {
    /// Rollcall's own.
    #[default]
    Rollcall,
    /// That of Alertmanager's webhooks, version 4.
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
