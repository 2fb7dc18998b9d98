//! The outcome of an attempt to deliver.
//!
//! A failure is tried again, later each time, until the notification is too old; then comes the last attempt, and
//! after it the notification becomes a dead letter. The rest of a partly taken delivery follows without a growing
//! wait. Only `410 Gone` is final: it disables the receiver, and everything for it becomes a dead letter, until a
//! restart. Nothing is ever dropped.
//!
//! A wait that the receiver asks for is a matter of the receiver, and its probing keeps it. It is not stored with the
//! notification, which would outlast a reload that ends the wait.
//!
//! # Why a refusal is retried
//! 404, 401 or 550 may be a wrong address, a changed secret or a relay that is being set up. An operator
//! corrects that within the hour, and no alert of that hour may be lost.

use super::Retry;
use super::channel::{Failure, ReceiverAnswer};
use crate::clock::Timestamp;
use crate::store::{AttemptEnd, Delivery};

/// The outcome of an attempt with this result. `jitter` is drawn from `0.0..1.0`.
pub(super) fn outcome_of(
    delivery: &Delivery,
    result: std::result::Result<&ReceiverAnswer, &Failure>,
    now: Timestamp,
    retry: &Retry,
    jitter: f64,
) -> AttemptEnd {
    let (why, wait) = match result {
        Ok(_) => return AttemptEnd::Delivered,
        Err(Failure::Gone { why }) => return AttemptEnd::DeadLetter(why.clone()),
        Err(Failure::Temporary { why, .. } | Failure::Partial { why, .. } | Failure::TooLarge { why })
            if delivery.is_at_most_once() =>
        {
            return AttemptEnd::DeadLetter(format!(
                "a timer that is delivered at most once is not tried again: {why}"
            ));
        }
        Err(Failure::Temporary { why, .. } | Failure::TooLarge { why }) => {
            (why, retry.backoff().wait(delivery.attempt, jitter))
        }
        Err(Failure::Partial { why, is_asked: true, .. }) => (why, retry.first),
        Err(Failure::Partial { why, wait, is_asked: false }) => (why, retry.first.max(retry.asked(*wait))),
    };
    let last = delivery.tried_since() + retry.give_up_after;
    if now >= last {
        let age = now.since(delivery.tried_since());
        return AttemptEnd::DeadLetter(format!("given up after {age:?}: {why}"));
    }
    AttemptEnd::RetryAt((now + wait).min(last))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Group;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);
    const RETRY: Retry = Retry { first: SECOND, longest: Duration::from_secs(60), give_up_after: DAY };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn after(attempt: u32, retry_after: Option<Duration>, now: Timestamp) -> AttemptEnd {
        after_failure(attempt, &Failure::Temporary { why: "down".to_owned(), retry_after }, now)
    }

    fn after_failure(attempt: u32, failure: &Failure, now: Timestamp) -> AttemptEnd {
        let group = Group { key: "all".to_owned(), labels: Default::default() };
        let delivery = Delivery { attempt, ..Delivery::new("n.hook", "hook", group, Timestamp::ZERO) };
        outcome_of(&delivery, Err(failure), now, &RETRY, 1.0)
    }

    #[test]
    fn a_retry_waits_for_the_backoff_alone_because_the_probing_keeps_what_the_receiver_asked() {
        assert_eq!(after(1, None, at(0)), AttemptEnd::RetryAt(at(1)));
        assert_eq!(after(3, None, at(100)), AttemptEnd::RetryAt(at(104)));
        assert_eq!(after(3, Some(SECOND), at(100)), AttemptEnd::RetryAt(at(104)));
        assert_eq!(after(3, Some(90 * SECOND), at(100)), AttemptEnd::RetryAt(at(104)));
    }

    #[test]
    fn the_rest_of_a_delivery_follows_without_a_growing_wait() {
        let part_of = |seconds: u32, is_asked: bool| Failure::Partial {
            why: "busy".to_owned(),
            wait: SECOND * seconds,
            is_asked,
        };
        let part = |seconds: u32| part_of(seconds, false);
        assert_eq!(after_failure(40, &part(0), at(100)), AttemptEnd::RetryAt(at(101)));
        assert_eq!(after_failure(40, &part(90), at(100)), AttemptEnd::RetryAt(at(190)));
        assert_eq!(after_failure(40, &part_of(90, true), at(100)), AttemptEnd::RetryAt(at(101)));
        assert!(matches!(after_failure(40, &part(0), at(86_400)), AttemptEnd::DeadLetter(_)));
    }

    #[test]
    fn the_last_attempt_is_made_when_the_notification_is_too_old_and_then_it_is_given_up() {
        assert_eq!(after(9, None, at(86_390)), AttemptEnd::RetryAt(at(86_400)));
        assert!(matches!(after(10, None, at(86_400)), AttemptEnd::DeadLetter(why) if why.ends_with("down")));
    }
}
