//! When failed attempts are repeated.

use std::time::Duration;

use crate::backoff::Backoff;

/// The longest wait of a receiver that asks for one, unless its retries are later: no answer keeps a receiver from
/// alerts for a night.
const MAX_ASKED: Duration = Duration::from_secs(3600);

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

impl Retry {
    pub(super) fn backoff(&self) -> Backoff {
        Backoff { first: self.first, longest: self.longest }
    }

    /// The wait of a receiver that asks for this one (`Retry-After`).
    pub(super) fn asked(&self, wait: Duration) -> Duration {
        wait.min(MAX_ASKED.max(self.longest)).min(self.give_up_after)
    }
}
