//! How far each broker of a fleet is heard, for operators.

use serde::Serialize;

use super::Roll;
use crate::clock::Timestamp;
use crate::presence::{BrokerName, Kind};

/// How far one of several brokers is heard, by any instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrokerHearing {
    pub broker: BrokerName,
    /// The kinds that are heard there.
    pub kinds: Vec<Kind>,
    /// Up to when all of them are heard; `None`: one of them was never heard there.
    #[serde(skip)]
    pub heard: Option<Timestamp>,
    /// Whether one of them is not heard there, as far as other brokers are.
    pub blind: bool,
    /// Since when.
    pub blind_since: Option<Timestamp>,
}

impl Roll {
    /// The brokers of a fleet that has several, as of the last canary.
    pub fn brokers(&self) -> Vec<BrokerHearing> {
        let hearing = self.hearing();
        let of_broker = |broker: &BrokerName| {
            let here = hearing.kinds.iter().filter_map(|(kind, of)| Some((kind, of.brokers.get(broker)?)));
            let blind = here.clone().any(|(kind, at)| at.is_behind_the(hearing.heard, self.late_of(kind)));
            let heard = here.clone().map(|(_, at)| at.heard).min().flatten();
            let mut kinds: Vec<Kind> = here.map(|(kind, _)| kind.clone()).collect();
            kinds.sort();
            let broker = broker.clone();
            BrokerHearing { broker, kinds, heard, blind, blind_since: heard.filter(|_| blind) }
        };
        self.brokers.iter().map(of_broker).collect()
    }
}
