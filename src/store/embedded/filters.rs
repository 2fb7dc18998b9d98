//! Up to when the filters of kinds were heard, and what of a kind was not. Pure: it knows no disk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{FilterProofs, Interval, Kind, Probed};
use crate::store::hearing::USEFUL;

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

    /// These were heard. Whether a kind was blind.
    pub fn prove(&mut self, probed: &[Probed]) -> bool {
        // A filter that is new was not heard while others of its kind were.
        let last: BTreeMap<&Kind, Timestamp> = probed
            .iter()
            .filter_map(|one| Some((&one.kind, self.proved.get(&one.kind)?.values().max().copied()?)))
            .collect();
        let mut was_blind = false;
        for Probed { kind, filter, sent_at, gap } in probed {
            let known = self.proved.entry(kind.clone()).or_default();
            let before = known.get(filter).copied();
            let from = before.or_else(|| last.get(kind).copied());
            known.insert(filter.clone(), before.map_or(*sent_at, |before| before.max(*sent_at)));
            if let Some(from) = from.filter(|from| sent_at.since(*from) > *gap) {
                self.was_blind(kind, Interval { from, to: *sent_at });
                was_blind = true;
            }
        }
        was_blind
    }

    fn was_blind(&mut self, kind: &Kind, interval: Interval) {
        let blind = self.blind.entry(kind.clone()).or_default();
        // Where it is of another filter already, it is known.
        if blind.contains(&interval) {
            return;
        }
        blind.push(interval);
        blind.retain(|known| known.to > interval.to - USEFUL);
        if blind.len() > MOST {
            let oldest = blind.remove(0);
            blind[0].from = blind[0].from.min(oldest.from);
        }
    }
}
