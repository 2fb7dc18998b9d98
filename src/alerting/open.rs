//! Which channel a receiver has, and a try of it for the command line.

use std::sync::Arc;

use super::channel::{Channel, Failure, within};
use super::email::Email;
use super::webhook::Webhook;
use super::{ChannelConfig, ReceiverConfig};
use crate::clock::Timestamp;

/// The channel of a receiver. The error names the option that is wrong.
pub fn open(receiver: &ReceiverConfig) -> Result<Arc<dyn Channel>, String> {
    Ok(match &receiver.channel {
        ChannelConfig::Webhook { url, secret } => {
            Arc::new(Webhook::new(&receiver.name, url, secret.as_deref())?)
        }
        ChannelConfig::Email { smtp, password, from, to } => {
            Arc::new(Email::new(&receiver.name, smtp, password.as_deref(), from, to)?)
        }
    })
}

/// Whether the receiver can be reached, without sending a notification.
pub async fn probe(receiver: &ReceiverConfig) -> Result<(), Failure> {
    let channel = open(receiver).map_err(Failure::temporary)?;
    within(receiver.timeout, channel.probe()).await
}

/// Sends the receiver a notification that is plainly marked as a test.
pub async fn send_test(receiver: &ReceiverConfig, now: Timestamp) -> Result<(), Failure> {
    let channel = open(receiver).map_err(Failure::temporary)?;
    within(receiver.timeout, channel.send_test(now)).await?;
    match channel.unreached() {
        Some(recipients) => {
            Err(Failure::temporary(format!("it took the test, but not for all: {recipients}")))
        }
        None => Ok(()),
    }
}
