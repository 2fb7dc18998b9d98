//! From the outbox to the operators.

use std::time::Duration;

use crate::engine::Pace;

/// What alerting needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who is told of what.
    pub route: Route,
    /// The places to tell.
    pub receivers: Vec<ReceiverConfig>,
}

/// Who is told of what, and how transitions are grouped.
#[derive(Clone, Debug)]
pub struct Route {
    /// Names of receivers.
    pub receivers: Vec<String>,
    /// `kind`, `unit` and label names; transitions that share their values are told together.
    pub group_by: Vec<String>,
    /// The wait after a group's first member, and the least time between its notifications.
    pub pace: Pace,
}

/// A place to tell.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// Its name, `[a-z0-9_-]{1,32}`.
    pub name: String,
    /// How to tell it.
    pub channel: ChannelConfig,
    /// How many notifications are on their way to it at a time.
    pub concurrency: usize,
    /// After how long an attempt is given up.
    pub timeout: Duration,
    /// How failures are retried.
    pub retry: Retry,
}

/// How failures are retried: exponentially, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// How long after its sealing a notification is given up.
    pub give_up_after: Duration,
}

/// How to tell a receiver.
#[derive(Clone, Debug)]
pub enum ChannelConfig {
    /// Standard Webhooks.
    Webhook {
        /// Where to post.
        url: String,
        /// `whsec_…`.
        secret: Option<String>,
    },
    /// E-mail.
    Email {
        /// `smtp://`, `smtps://`, `smtp+starttls://user@host:port`.
        smtp: String,
        /// The password for the user in the address.
        password: Option<String>,
        /// The sender.
        from: String,
        /// The recipients.
        to: Vec<String>,
    },
}
