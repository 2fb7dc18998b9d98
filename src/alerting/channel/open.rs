//! Opens the channel of a receiver, and tries it for the command line.

use std::sync::Arc;

use super::alertmanager::Alertmanager;
use super::config::ChannelConfig;
use super::email::Email;
use super::exec::Exec;
use super::mqtt::Mqtt;
use super::service::ServiceChannel;
use super::webhook::Webhook;
use super::{Channel, Failure, within};
use crate::alerting::ReceiverConfig;
use crate::alerting::message::Example;
use crate::clock::Timestamp;
use crate::telemetry::Unreached;

/// The channel of a receiver. The error names the option that is wrong.
pub fn open(receiver: &ReceiverConfig) -> Result<Arc<dyn Channel>, String> {
    let (name, message) = (&receiver.name, &receiver.message);
    Ok(match &receiver.channel {
        ChannelConfig::Webhook(config) => Arc::new(Webhook::new(name, config, message)?),
        ChannelConfig::Email(email) => Arc::new(Email::new(name, email, message)?),
        ChannelConfig::Service(config) => Arc::new(ServiceChannel::new(name, config, message)?),
        ChannelConfig::Exec(config) => Arc::new(Exec::new(name, config, message)?),
        ChannelConfig::Alertmanager(config) => {
            Arc::new(Alertmanager::new(name, config, message, receiver.timeout)?)
        }
        ChannelConfig::Mqtt(config) => Arc::new(Mqtt::new(name, config, message)?),
    })
}

/// Whether the receiver can be reached, without sending a notification.
pub async fn probe(receiver: &ReceiverConfig) -> Result<(), Failure> {
    let channel = open(receiver).map_err(Failure::temporary)?;
    within(receiver.timeout, channel.probe()).await
}

/// The message for an example: the head that the operator configured, if any, and the text.
pub fn render(receiver: &ReceiverConfig, example: Example) -> Result<(Option<String>, String), String> {
    let (channel, delivery) = (open(receiver)?, example.delivery(&receiver.name));
    Ok((channel.render_head(&delivery)?, channel.render(&delivery)?))
}

/// Sends the receiver a notification that is plainly marked as a test.
pub async fn send_test(receiver: &ReceiverConfig, now: Timestamp) -> Result<(), Failure> {
    let channel = open(receiver).map_err(Failure::temporary)?;
    within(receiver.timeout, channel.send_test(now)).await?;
    match channel.unreached() {
        Some(Unreached::Recipients(which) | Unreached::Deferred(which)) => {
            Err(Failure::temporary(format!("it took the test, but not for all recipients: {which}")))
        }
        Some(Unreached::Servers(which)) => {
            Err(Failure::temporary(format!("it took the test, but not on all of its servers: {which}")))
        }
        None => Ok(()),
    }
}
