//! A policy tried on silences that are on record: which of them it would have recorded, when, and which messages
//! receivers would have got of them.
//!
//! Deadlines, routes, waits and mutes are decided by the rules that decide them in the service. What is not on record
//! cannot be tried: silences that were shorter than the timeout of their time, alert silences, inhibition and the
//! mass-offline breaker.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Routes;
use crate::clock::Timestamp;
use crate::presence::{Ledger, OfflineRecord, Pace, Policy};

/// A policy and the routes of a configuration.
pub struct TrialRules<'a> {
    pub policy: Policy,
    pub routes: &'a Routes,
    /// The longest extra time after blind time: `hearing.settle`.
    pub settle: Duration,
    /// Blind time of the kind.
    pub ledger: &'a Ledger,
}

/// A message about silences of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialMessage {
    pub at: Timestamp,
    pub receivers: Vec<String>,
    /// The places of its silences in what was asked for.
    pub silences: Vec<usize>,
}

impl TrialRules<'_> {
    /// The deadline of a silence.
    pub fn deadline(&self, record: &OfflineRecord) -> Timestamp {
        let owed = self.policy.timeout.min(self.settle);
        self.ledger.deadline(record.silent_from.unwrap_or(record.last_seen), self.policy.allowed(), owed)
    }

    /// Whether this policy, and nothing else, decided when a silence was recorded: neither a timeout of the unit, nor a
    /// pause, nor an announcement.
    pub fn has_decided(&self, record: &OfflineRecord) -> bool {
        !record.cause.is_announced() && self.deadline(record) == record.deadline
    }

    /// A silence as this policy records it. `None`: the unit was back before, or its deadline is after `now`.
    pub fn tried(&self, record: &OfflineRecord, now: Timestamp) -> Option<OfflineRecord> {
        let deadline = self.deadline(record);
        let late = record.detected_at.since(record.deadline);
        // A deadline at exactly the moment of the return has not passed.
        let is_recorded = deadline < record.back_at.unwrap_or(now);
        is_recorded.then(|| OfflineRecord { deadline, detected_at: deadline + late, ..record.clone() })
    }

    /// The messages about these silences, in order of time.
    pub fn messages(&self, silences: &[(usize, OfflineRecord)]) -> Vec<TrialMessage> {
        let mut groups: BTreeMap<(String, String), TrialGroup> = BTreeMap::new();
        for (place, record) in silences {
            for matched in self.routes.of(record) {
                let shared = matched.route.shared(record).into_iter();
                let labels: Vec<String> = shared.map(|(name, value)| format!("{name}={value}")).collect();
                let group = groups.entry((matched.id.to_owned(), labels.join(",")));
                let group = group.or_insert_with(|| TrialGroup {
                    pace: matched.route.pace,
                    receivers: matched.route.receivers.clone(),
                    waiting: Vec::new(),
                });
                let mut ready = matched.route.ready_at(record);
                while let Some(until) = matched.route.times.muted_until(ready).filter(|until| *until > ready)
                {
                    ready = until;
                }
                group.waiting.push((ready, record.back_at, *place));
            }
        }
        let mut all: Vec<TrialMessage> = groups.into_values().flat_map(TrialGroup::sealed).collect();
        all.sort_by(|a, b| (a.at, &a.silences).cmp(&(b.at, &b.silences)));
        all
    }
}

/// The silences of a group: when each may be notified, when it was over, and its place.
struct TrialGroup {
    pace: Pace,
    receivers: Vec<String>,
    waiting: Vec<(Timestamp, Option<Timestamp>, usize)>,
}

impl TrialGroup {
    fn sealed(mut self) -> Vec<TrialMessage> {
        self.waiting.sort();
        let mut messages: Vec<TrialMessage> = Vec::new();
        let mut rest = &self.waiting[..];
        while let Some((first, ..)) = rest.first() {
            let next = messages.last().map(|last| last.at + self.pace.interval);
            let at = next.map_or(*first, |next| next.max(*first));
            let ready = rest.partition_point(|(ready, ..)| *ready <= at);
            let lasts = |back: &Option<Timestamp>| back.is_none_or(|back| back > at);
            let silences: Vec<usize> =
                rest[..ready].iter().filter(|(_, back, _)| lasts(back)).map(|(.., place)| *place).collect();
            if !silences.is_empty() && !self.receivers.is_empty() {
                messages.push(TrialMessage { at, receivers: self.receivers.clone(), silences });
            }
            rest = &rest[ready..];
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Closing, Interval};
    use crate::routing::Route;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    /// Silent since 1000 s, recorded after 100 s.
    fn silence(unit: &str, back: Option<i64>) -> OfflineRecord {
        let open = OfflineRecord::open(format!("gate:{unit}").parse().unwrap(), at(1000), at(1100), at(1101));
        OfflineRecord { back_at: back.map(at), closed_by: back.map(|_| Closing::Return), ..open }
    }

    fn policy(timeout: u64, grace: u64) -> Policy {
        Policy { timeout: Duration::from_secs(timeout), grace: Duration::from_secs(grace) }
    }

    fn routes(group_by: &str) -> Routes {
        let pace = Pace::new(Duration::from_secs(10), Duration::from_secs(300));
        let receivers = vec!["mail".to_owned()];
        Routes::new(Route { receivers, group_by: vec![group_by.to_owned()], pace, ..Route::default() })
    }

    #[test]
    fn a_policy_records_a_silence_at_its_own_deadline_or_not_at_all() {
        let routes = routes("kind");
        let (none, blind) = (Ledger::default(), Ledger::new([Interval { from: at(1010), to: at(1040) }]));
        for (name, policy, ledger, back, expected) in [
            ("the policy of then", policy(100, 0), &none, Some(1500), Some((1100, 1101))),
            ("grace counts", policy(60, 40), &none, Some(1500), Some((1100, 1101))),
            ("later", policy(300, 0), &none, Some(1500), Some((1300, 1301))),
            ("sooner", policy(50, 0), &none, Some(1500), Some((1050, 1051))),
            ("back before", policy(600, 0), &none, Some(1500), None),
            ("back at the deadline", policy(500, 0), &none, Some(1500), None),
            ("it lasts", policy(600, 0), &none, None, Some((1600, 1601))),
            ("its deadline is to come", policy(2000, 0), &none, None, None),
            ("blind time is no silence", policy(300, 0), &blind, Some(1500), Some((1330, 1331))),
        ] {
            let rules = TrialRules { policy, routes: &routes, settle: Duration::ZERO, ledger };
            let tried = rules.tried(&silence("a", back), at(2000));
            let times =
                tried.map(|one| (one.deadline.as_millis() / 1000, one.detected_at.as_millis() / 1000));
            assert_eq!(times, expected, "{name}");
            let is_that_of_then =
                policy.allowed() == Duration::from_secs(100) && ledger.intervals().is_empty();
            assert_eq!(rules.has_decided(&silence("a", back)), is_that_of_then, "{name}");
        }
    }

    #[test]
    fn messages_follow_the_routes_the_waits_and_the_intervals_of_groups() {
        let none = Ledger::default();
        let of = |group_by: &str, silences: &[(i64, Option<i64>)]| {
            let routes = routes(group_by);
            let rules =
                TrialRules { policy: policy(100, 0), routes: &routes, settle: Duration::ZERO, ledger: &none };
            let all: Vec<(usize, OfflineRecord)> = silences
                .iter()
                .enumerate()
                .map(|(place, (detected, back))| {
                    let moved = OfflineRecord {
                        deadline: at(*detected),
                        detected_at: at(*detected),
                        ..silence(&place.to_string(), *back)
                    };
                    (place, moved)
                })
                .collect();
            let messages = rules.messages(&all).into_iter();
            messages.map(|one| (one.at.as_millis() / 1000, one.silences)).collect::<Vec<_>>()
        };
        // One message for each unit.
        assert_eq!(of("unit", &[(100, None), (101, None)]), [(110, vec![0]), (111, vec![1])]);
        // Back within the wait: nobody is told.
        assert_eq!(of("unit", &[(100, Some(109)), (101, Some(500))]), [(111, vec![1])]);
        // A group gathers, and waits between its messages; a unit that is back meanwhile is left out.
        let group = of("kind", &[(100, None), (101, None), (200, Some(300)), (210, None), (900, None)]);
        let (first, silences) =
            (group[0].0, group.iter().flat_map(|one| &one.1).copied().collect::<Vec<_>>());
        assert!(first >= 110 && group[1].0 == first + 300, "{group:?}");
        assert_eq!(silences, [0, 1, 3, 4]);
    }
}
