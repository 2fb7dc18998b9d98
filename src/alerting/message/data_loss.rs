//! The message of an engine that lost data: what was lost, when, and how the fleet is known again.

use std::time::Duration;

use super::zone::Zone;
use crate::alerting::group::group_of_loss;
use crate::clock::Timestamp;
use crate::presence::Interval;
use crate::store::{DataLoss, Delivery};

/// The id of a loss.
pub(super) fn id(interval: Interval) -> String {
    format!("lost:{}", interval.from.as_millis())
}

pub(super) fn title(lost: &str) -> String {
    format!("DATA LOST: the engine lost {lost}")
}

/// Lines of a name and a text.
pub(super) fn lines(delivery: &Delivery, lost: &str, zone: &Zone) -> Vec<(String, String)> {
    let line = |name: &str, what: String| (name.to_owned(), what);
    let when = |Interval { from, to }: &Interval| {
        let between = format!("between {} and {}", zone.show(*from), zone.show(*to));
        line("The engine came back without data", format!("{between} it lost {lost}"))
    };
    let mut lines: Vec<_> = delivery.blind.iter().map(when).collect();
    lines.push(line(
        "Gone",
        "its units, their open records, silences and acknowledgements, and the notifications that waited"
            .to_owned(),
    ));
    lines.push(line(
        "What to do",
        "a unit is known again after its next heartbeat; Rollcall does not notice units that stay silent: restore a \
         backup, or compare the units with your own list"
            .to_owned(),
    ));
    lines
}

/// A loss for `rollcall template render`.
pub(super) fn example(delivery: &mut Delivery, now: Timestamp) {
    let interval = Interval { from: now - Duration::from_secs(1), to: now };
    delivery.group = group_of_loss(&DataLoss { interval, partitions: None });
    delivery.blind = vec![interval];
}
