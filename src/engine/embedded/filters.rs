//! Up to when the filters of kinds were heard, and what of a kind was not. Pure: it knows no disk.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::engine::ear::USEFUL;
use crate::presence::{FilterProofs, Filters, Interval, Kind};

/// How many blind intervals of a kind are kept; the two oldest become one when there are more, which is blind
/// for longer.
const MOST: usize = 1000;

/// What was heard of the filters of all kinds, as it stands on disk.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Proofs {
    proved: BTreeMap<Kind, BTreeMap<String, Timestamp>>,
    blind: BTreeMap<Kind, Vec<Interval>>,
}

impl Proofs {
    /// As it is moved to another engine, or looked at.
    pub fn read(&self) -> FilterProofs {
        let of_kind = |(kind, filters): (&Kind, &BTreeMap<String, Timestamp>)| {
            let kind = kind.clone();
            let proved = filters.clone().into_iter();
            proved.map(move |(filter, at)| ((kind.clone(), filter), at)).collect::<Vec<_>>()
        };
        FilterProofs { proved: self.proved.iter().flat_map(of_kind).collect(), blind: self.blind.clone() }
    }

    /// What another engine held.
    pub fn restore(stored: &FilterProofs) -> Proofs {
        let mut proofs = Proofs { blind: stored.blind.clone(), ..Proofs::default() };
        for ((kind, filter), at) in &stored.proved {
            proofs.proved.entry(kind.clone()).or_default().insert(filter.clone(), *at);
        }
        proofs
    }

    /// These were heard up to `sent`. Whether a kind was blind.
    pub fn prove(&mut self, filters: &Filters, sent: Timestamp, gap: Duration) -> bool {
        let mut was_blind = false;
        for (kind, filters) in filters {
            let known = self.proved.entry(kind.clone()).or_default();
            // A filter that is new was not heard while others of its kind were.
            let last = known.values().max().copied();
            for filter in filters {
                let before = known.get(filter).copied();
                if let Some(from) = before.or(last).filter(|from| sent.since(*from) > gap) {
                    let blind = self.blind.entry(kind.clone()).or_default();
                    blind.push(Interval { from, to: sent });
                    blind.retain(|interval| interval.to > sent - USEFUL);
                    if blind.len() > MOST {
                        let oldest = blind.remove(0);
                        blind[0].from = blind[0].from.min(oldest.from);
                    }
                    was_blind = true;
                }
                known.insert(filter.clone(), before.map_or(sent, |before| before.max(sent)));
            }
        }
        was_blind
    }
}
