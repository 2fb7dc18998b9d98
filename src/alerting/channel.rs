//! A channel: a way to notify one receiver.
//!
//! A channel sends a function of the delivery alone, so that every attempt, also one after
//! a restart, sends the same under the same id. A channel makes one attempt and answers how it failed;
//! its caller decides about retries. The caller also limits its time: a call that takes too long is
//! dropped, which every channel survives.
//!
//! A new channel is a file in `channel/`, a variant of [`ChannelConfig`] and an arm of [`open()`]. A service that takes
//! a `POST` needs no channel: it is an entry of `channel/service/catalogue.rs` and a template beside it.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;

use crate::cause;
use crate::clock::Timestamp;
use crate::presence::{Interval, OfflineRecord};
use crate::store::{Delivery, Group, StoredDeliveries};
use crate::telemetry::Unreached;
use crate::trust::chain;

mod alertmanager;
mod config;
mod email;
mod exec;
mod http_client;
mod http_target;
mod mail_content;
mod mqtt;
mod open;
mod private_addresses;
mod secrets;
mod service;
mod tls;
mod webhook;

pub use alertmanager::AlertmanagerConfig;
pub use config::ChannelConfig;
pub use email::EmailConfig;
pub use exec::ExecConfig;
pub use http_target::HttpConfig;
#[doc(hidden)]
pub use mail_content::MailContent;
pub use mqtt::MqttConfig;
pub use open::{open, probe, render, send_test};
pub use service::{SERVICES, Service, ServiceConfig, ServiceOption};
#[doc(hidden)]
pub use webhook::{Format, WebhookConfig, body};

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A later attempt may succeed: when the receiver works again, or an operator has corrected an
    /// address, a password or a right.
    #[error("{why}")]
    Temporary {
        /// The failure, and the advice to the operator.
        why: String,
        /// The least wait that the receiver asked for.
        retry_after: Option<Duration>,
    },
    /// The receiver works and took a part of the delivery. The next attempt goes on with the rest.
    #[error("{why}")]
    Partial {
        why: String,
        /// The least wait before the rest.
        wait: Duration,
        /// The receiver asked for that wait: nothing else is sent to it meanwhile.
        is_asked: bool,
    },
    /// The receiver refuses a message of this size; see `shortened` of the webhook.
    #[error("{why}: let it take larger messages")]
    TooLarge { why: String },
    /// The receiver wants no more notifications.
    #[error("{why}")]
    Gone { why: String },
}

impl Failure {
    /// A failure without a wait that the receiver asked for.
    pub fn temporary(why: impl Into<String>) -> Failure {
        Failure::Temporary { why: why.into(), retry_after: None }
    }

    /// The failure of an attempt in which the receiver took a part of the delivery.
    pub(super) fn after_a_part(self) -> Failure {
        match self {
            Failure::Temporary { why, retry_after } => {
                let wait = retry_after.unwrap_or_default();
                Failure::Partial { why, wait, is_asked: !wait.is_zero() }
            }
            other => other,
        }
    }
}

/// The answer of a receiver to a notification that it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReceiverAnswer {
    /// The beginning of the answer, without secrets; empty if there is none.
    pub text: String,
    /// Deliveries to recipients that do not have it yet: they are queued before this one ends.
    pub rest: Vec<Delivery>,
}

impl From<String> for ReceiverAnswer {
    fn from(text: String) -> ReceiverAnswer {
        ReceiverAnswer { text, rest: Vec::new() }
    }
}

/// Open records of which a receiver should know.
#[derive(Clone, Debug, Default)]
pub struct OpenRecords {
    /// The oldest, newest detection first.
    pub oldest: Vec<OfflineRecord>,
    /// How many there are in all.
    pub count: usize,
}

/// A blindness that lasts and was notified, and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingBlindness {
    pub group: Group,
    pub interval: Interval,
}

/// A way to notify one receiver. Every call may be dropped at any await.
#[async_trait]
pub trait Channel: Send + Sync {
    /// Makes one attempt to deliver.
    async fn send(&self, delivery: &Delivery, now: Timestamp) -> Result<ReceiverAnswer, Failure>;

    /// Whether the receiver calls an operator for each unit. A pager needs a message for each unit, so a rate limit
    /// only delays messages, and it gets acknowledgements.
    fn is_pager(&self) -> bool {
        false
    }

    /// Whether the receiver keeps the alert of a unit, also of a removed one, until a message ends it.
    fn keeps_alerts(&self) -> bool {
        self.is_pager()
    }

    /// How many messages a delivery still takes.
    fn parts(&self, _delivery: &Delivery) -> usize {
        1
    }

    /// Sends up to `most` of the messages of a delivery. `None`: the others are to follow.
    async fn send_part(
        &self,
        delivery: &Delivery,
        _most: usize,
        now: Timestamp,
    ) -> Result<Option<ReceiverAnswer>, Failure> {
        self.send(delivery, now).await.map(Some)
    }

    /// Sends a notification that is plainly marked as a test.
    async fn send_test(&self, now: Timestamp) -> Result<(), Failure>;

    /// Goes as far towards the receiver as possible without sending a notification.
    async fn probe(&self) -> Result<(), Failure>;

    /// The text that [`Channel::send`] sends, for an operator.
    fn render(&self, delivery: &Delivery) -> Result<String, String>;

    /// The part before that text that the operator configures, without secrets: method, origin and headers.
    fn render_head(&self, _delivery: &Delivery) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// How often open records are sent again; `None`: the receiver remembers them.
    fn resend_every(&self) -> Option<Duration> {
        None
    }

    /// The most open records that [`Channel::resend`] takes.
    fn most_resent(&self) -> usize {
        0
    }

    /// Sends lasting blindness and open records again; without open records while the engine does not answer.
    async fn resend(
        &self,
        _open: Option<OpenRecords>,
        _blind: &[LastingBlindness],
        _now: Timestamp,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// Sends again those notifications of this instance that a part of the receiver missed. Called in an instance
    /// that does not resend open records.
    async fn resend_missed(&self, _now: Timestamp) -> Result<(), Failure> {
        Ok(())
    }

    /// Gives the channel access to the waiting deliveries: a message to a recipient comes behind others that wait for
    /// the same recipient.
    fn keep_order(&self, _records: StoredDeliveries) {}

    /// The recipients or servers that the last successful attempt did not reach.
    fn unreached(&self) -> Option<Unreached> {
        None
    }
}

/// Up to `most` messages of a delivery, given up after `timeout`. `None`: the others are to follow.
pub(super) async fn attempt_part(
    channel: &dyn Channel,
    delivery: &Delivery,
    most: usize,
    timeout: Duration,
    now: Timestamp,
) -> Result<Option<ReceiverAnswer>, Failure> {
    let parts = channel.parts(delivery);
    let result = within(timeout, channel.send_part(delivery, most, now)).await;
    result.map_err(|failure| match channel.parts(delivery) < parts {
        true => failure.after_a_part(),
        false => failure,
    })
}

/// An attempt, given up after `timeout`.
pub(super) async fn within<T>(
    timeout: Duration,
    attempt: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, attempt).await {
        Ok(result) => result,
        Err(_) => Err(Failure::temporary(format!("no answer within {timeout:?}"))),
    }
}

/// The cause of a failure, on one line.
pub(super) fn cause_of(error: &(dyn Error + 'static)) -> String {
    super::text::plain(&of_http(error).unwrap_or_else(|| cause::why("receiver", "server", error)))
}

/// The HTTP library's error for an answer that it cannot read.
fn of_http(error: &(dyn Error + 'static)) -> Option<String> {
    let http = chain(error).find_map(|one| one.downcast_ref::<hyper::Error>())?;
    if http.is_incomplete_message() {
        Some("it closed the connection before it answered".to_owned())
    } else if http.is_parse() {
        Some("its answer is not HTTP; check the port, and http:// or https:// in url".to_owned())
    } else {
        None
    }
}
