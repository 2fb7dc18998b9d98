//! Hearing by kind: what was not subscribed was not heard.
//!
//! Canaries vouch for a connection, but not for topics that it did not ask for. So for each kind it is
//! kept up to when each of its filters was heard, beside what was heard of the fleet as a whole. A kind
//! has heard as far as the least of its filters. Where one of them was not heard for a while, because
//! its kind or its topic was not configured, that time is blind for the kind, and only for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Hearing, Interval, Kind, Ledger};
use crate::clock::Timestamp;

/// The topic filters by which each kind is heard, `{kind}` filled in.
pub type Filters = HashMap<Kind, Vec<String>>;

/// What is stored of the filters of all kinds, configured or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterProofs {
    /// Up to when each filter of a kind was heard.
    pub proved: BTreeMap<(Kind, String), Timestamp>,
    /// Blind intervals of single kinds.
    pub blind: BTreeMap<Kind, Vec<Interval>>,
}

impl Hearing {
    /// How far that kind is known to have been heard, and where it was not.
    pub fn of(&self, kind: &Kind) -> &Hearing {
        self.kinds.get(kind).unwrap_or(self)
    }

    /// The same, where these kinds are heard by these filters. Other kinds are heard as the fleet is.
    pub fn by_filters(self, filters: &Filters) -> Hearing {
        let of_kind = |(kind, filters): (&Kind, &Vec<String>)| (kind.clone(), self.of_filters(kind, filters));
        let kinds = filters.iter().filter(|(_, filters)| !filters.is_empty()).map(of_kind).collect();
        Hearing { kinds: Arc::new(kinds), ..self }
    }

    fn of_filters(&self, kind: &Kind, filters: &[String]) -> Hearing {
        let proved = |filter: &String| self.filters.proved.get(&(kind.clone(), filter.clone())).copied();
        // One that was never heard comes before all others.
        let least = filters.iter().map(proved).min().flatten();
        let ledger = match self.filters.blind.get(kind) {
            None => self.ledger.clone(),
            Some(blind) => Ledger::new(self.ledger.intervals().iter().chain(blind).copied())
                .with_taken(self.ledger.taken().iter().copied()),
        };
        Hearing { heard: self.heard.min(least), ledger, settle: self.settle, ..Hearing::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_kind_has_heard_as_far_as_the_least_of_its_filters_and_is_blind_for_itself() {
        let [pump, valve, meter]: [Kind; 3] = ["pump", "valve", "meter"].map(|name| name.parse().unwrap());
        let interval = |from: i64, to: i64| Interval { from: at(from), to: at(to) };
        let proved = [(&pump, "a", 90), (&pump, "b", 70), (&pump, "old", 5), (&valve, "a", 200)];
        let stored = FilterProofs {
            proved: proved
                .map(|(kind, filter, ms)| ((kind.clone(), filter.to_owned()), at(ms)))
                .into_iter()
                .collect(),
            blind: [(pump.clone(), vec![interval(15, 30)])].into(),
        };
        let filters = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let wanted: Filters =
            [(pump.clone(), filters(&["a", "b"])), (valve.clone(), filters(&["a", "new"]))].into();
        let hearing = Hearing {
            heard: Some(at(100)),
            ledger: Ledger::new([interval(10, 20)]),
            filters: Arc::new(stored),
            ..Hearing::default()
        }
        .by_filters(&wanted);
        assert_eq!(hearing.of(&pump).heard, Some(at(70)));
        assert_eq!(hearing.of(&pump).ledger.intervals(), [interval(10, 30)]);
        assert_eq!(hearing.of(&valve).heard, None, "one of its filters was never heard");
        assert_eq!(hearing.of(&valve).ledger.intervals(), [interval(10, 20)]);
        assert_eq!(hearing.of(&meter).heard, Some(at(100)), "nothing is known of its filters");
    }
}
