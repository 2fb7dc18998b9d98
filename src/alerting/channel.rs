//! A channel: a way to tell one receiver.
//!
//! What a channel says is a function of the delivery alone, so that every attempt, also one after
//! a restart, says the same under the same id. It makes one attempt and tells how it failed; when
//! to try again, and when to stop, is decided above it. It never logs and never waits longer than
//! whoever calls it lets it: a call that takes too long is dropped, which every channel survives.
//!
//! A new channel is a file of its own, a variant of [`ChannelConfig`] and an arm of [`open`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::email::Email;
use super::webhook::Webhook;
use super::{ChannelConfig, ReceiverConfig};
use crate::clock::Timestamp;
use crate::store::Delivery;

/// Why a receiver was not told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The same attempt may succeed later: when the receiver works again, or an operator has mended an
    /// address, a password or a right.
    #[error("{why}")]
    Temporary {
        /// What happened, and what to change.
        why: String,
        /// The least wait that the receiver asked for.
        retry_after: Option<Duration>,
    },
    /// The receiver does not want to be told anything any more.
    #[error("{why}")]
    Gone {
        /// What it said.
        why: String,
    },
}

impl Failure {
    /// A failure of a receiver that did not say how long to wait.
    pub fn temporary(why: impl Into<String>) -> Failure {
        Failure::Temporary { why: why.into(), retry_after: None }
    }
}

/// A way to tell one receiver. Every call may be dropped at any await.
#[async_trait]
pub trait Channel: Send + Sync {
    /// Makes one attempt to deliver.
    async fn send(&self, delivery: &Delivery, now: Timestamp) -> Result<(), Failure>;

    /// Sends something that is plainly marked as a test.
    async fn send_test(&self, now: Timestamp) -> Result<(), Failure>;

    /// Goes as far towards the receiver as possible without telling it anything.
    async fn probe(&self) -> Result<(), Failure>;

    /// Whom the last attempt that succeeded did not reach all the same, and why.
    fn unreached(&self) -> Option<String> {
        None
    }
}

/// The channel of a receiver. The error says what is wrong with its configuration.
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

/// Whether the receiver can be reached, without telling it anything.
pub async fn probe(receiver: &ReceiverConfig) -> Result<(), Failure> {
    let channel = open(receiver).map_err(Failure::temporary)?;
    within(receiver.timeout, channel.probe()).await
}

/// Sends the receiver a notification that is plainly marked as a test.
pub async fn send_test(receiver: &ReceiverConfig, now: Timestamp) -> Result<(), Failure> {
    let channel = open(receiver).map_err(Failure::temporary)?;
    within(receiver.timeout, channel.send_test(now)).await?;
    match channel.unreached() {
        Some(who) => Err(Failure::temporary(format!("it took the test, but not for all: {who}"))),
        None => Ok(()),
    }
}

/// An attempt, given up after `timeout`.
pub(super) async fn within(
    timeout: Duration,
    attempt: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    match tokio::time::timeout(timeout, attempt).await {
        Ok(result) => result,
        Err(_) => Err(Failure::temporary(format!("no answer within {timeout:?}"))),
    }
}

/// An error and what caused it, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some errors already end with their cause.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    super::text::plain(&text)
}
