//! The options of each type of receiver.

use super::alertmanager::AlertmanagerConfig;
use super::email::EmailConfig;
use super::exec::ExecConfig;
use super::mqtt::MqttConfig;
use super::service::ServiceConfig;
use super::webhook::WebhookConfig;

#[derive(Clone)]
pub enum ChannelConfig {
    /// A request to a web server.
    Webhook(Box<WebhookConfig>),
    /// Mails to one or more addresses.
    Email(EmailConfig),
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
            ChannelConfig::Email(_) => "email",
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
            ChannelConfig::Email(_) => "Email",
            ChannelConfig::Service(_) => "Service",
            ChannelConfig::Exec(_) => "Exec",
            ChannelConfig::Mqtt(_) => "Mqtt",
            ChannelConfig::Alertmanager(_) => "Alertmanager",
        })
    }
}
