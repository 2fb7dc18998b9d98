//! Reports whether a broker, one of several, is heard: one that this instance uses, or one that only other instances use.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::clock::Timestamp;
use crate::fleet::{BrokerHearing, Mirror, Roll};
use crate::presence::{BrokerName, Interval, Kind};
use crate::telemetry::Telemetry;

/// How often a broker of other instances is looked at.
const TICK: Duration = Duration::from_secs(1);

pub(super) struct BrokerWatch {
    broker: BrokerName,
    /// Since when it is not heard.
    since: Option<Timestamp>,
}

impl BrokerWatch {
    pub fn new(broker: BrokerName) -> BrokerWatch {
        BrokerWatch { broker, since: None }
    }

    /// Reports how far the broker is heard.
    pub fn report(&mut self, roll: &Roll, telemetry: &Telemetry) -> Option<BrokerHearing> {
        let name = self.broker.as_str();
        let hearing = roll.brokers().into_iter().find(|one| one.broker == self.broker)?;
        let BrokerHearing { heard, blind, .. } = hearing;
        let is_blind = blind || telemetry.is_blind();
        telemetry.broker_heard(name, heard, is_blind);
        if let (Some(from), Some(to), false) = (self.since, heard, is_blind) {
            telemetry.broker_was_blind(name, Interval { from, to });
        }
        self.since = if is_blind { self.since.or(heard) } else { None };
        Some(hearing)
    }
}

/// Watches a broker that this instance does not use, until `stop`. If the instances that use it are gone, no other
/// instance says that units are not found offline.
pub async fn watch_elsewhere(
    broker: BrokerName,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut watch = BrokerWatch::new(broker.clone());
    while stop.run_until_cancelled(sleep(TICK)).await.is_some() {
        let hearing = watch.report(&roll, &telemetry).filter(|hearing| hearing.blind);
        let has_units = |kind: &&Kind| mirror.unit_count(kind) > 0;
        let text = hearing.and_then(|BrokerHearing { kinds, blind_since, .. }| {
            let kinds: Vec<&str> = kinds.iter().filter(has_units).map(Kind::as_str).collect();
            (!kinds.is_empty()).then(|| unheard(&broker, &kinds, blind_since))
        });
        telemetry.broker_unheard(broker.as_str(), text);
    }
    Ok(())
}

fn unheard(broker: &BrokerName, kinds: &[&str], since: Option<Timestamp>) -> String {
    let since = since.map(|since| format!(" since {since}")).unwrap_or_default();
    format!(
        "no instance hears the broker {broker}{since}, or not all of its topics: units of kind {} that were last heard there \
         are not found offline; start an instance that uses it (instance.brokers), or look at /readyz of those that do",
        kinds.join(", ")
    )
}
