//! Hearing by broker, and over HTTP: a unit is decided upon by the hearing of the place at which it was last heard.
//!
//! A kind that is heard at several brokers is heard at each as far as the filters of that broker are proved. A broker
//! that is down holds the units that were last heard there; units that were last heard elsewhere go on. A session that
//! ends at a broker says nothing of a unit that was last heard at another one, or over HTTP: it left. A unit that was last
//! heard over HTTP, or it is not known where, waits until the kind is heard at all of its brokers.
//!
//! # Over HTTP
//! A broker keeps messages while the engine is away, and canaries wait among them. Nobody keeps a request: it is refused.
//! So each report of a canary also proves for each kind that requests are recorded, at the moment of the report and not
//! at that of the canary. Two reports too far apart enclose time that is blind for units that were last heard over HTTP,
//! and for no other unit.
//!
//! # How it is known
//! The broker of the newest heartbeat stands beside its moment, in the expiry key and in the facts, and is written in
//! the same step. So it is exact when a unit roams, for all instances. A moment without a broker is one of a kind that
//! had one broker, or was written by another program. HTTP stands there as a broker does, also if there is only one.
//!
//! # A heartbeat that may have come unseen
//! If no check ran in time, a newer heartbeat may have come and its key may have expired (see `decision.rs`), at any
//! broker. Then the broker of the last known heartbeat counts only if both are so near each other that they are one
//! message, which two brokers delivered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::broker_name::HTTP_PROOF;
use super::{BrokerName, Facts, Filters, Hearing, Kind, KindRules, Ledger, Snapshot};
use crate::clock::Timestamp;

impl Hearing {
    /// This hearing by filters, with each kind that is heard at two of `brokers` or more heard at each for itself.
    pub fn by_brokers(self, filters: &Filters, brokers: &[BrokerName]) -> Hearing {
        if brokers.len() < 2 {
            return self;
        }
        let mut kinds = (*self.kinds).clone();
        for (kind, of_kind) in &mut kinds {
            let all = filters.get(kind).into_iter().flatten();
            let at = |broker: &BrokerName| {
                let here: Vec<String> =
                    all.clone().filter(|proof| broker.has_filter(proof)).cloned().collect();
                (!here.is_empty()).then(|| (broker.clone(), self.of_filters(kind, &here, Some(broker))))
            };
            let each: HashMap<BrokerName, Hearing> = brokers.iter().filter_map(at).collect();
            of_kind.brokers = Arc::new(each);
        }
        Hearing { kinds: Arc::new(kinds), ..self }
    }

    /// This hearing, with each of `all` kinds heard over HTTP for itself: as far as everywhere else, and as far as
    /// requests are proved to be recorded.
    pub fn over_http<'a>(self, all: impl IntoIterator<Item = &'a Kind>) -> Hearing {
        let http = BrokerName::http();
        let mut kinds = (*self.kinds).clone();
        for kind in all {
            // Before the first proof a kind is heard over HTTP as it is everywhere else.
            let Some(proved) = self.filters.proved.get(&(kind.clone(), HTTP_PROOF.to_owned())) else {
                continue;
            };
            let as_fleet = || Hearing { kinds: Arc::default(), filters: Arc::default(), ..self.clone() };
            let of_kind = kinds.entry(kind.clone()).or_insert_with(as_fleet);
            let blind = self.filters.blind_of(kind, Some(&http)).copied();
            let at_http = Hearing {
                heard: of_kind.heard.min(Some(*proved)),
                ledger: of_kind.ledger.and(blind),
                brokers: Arc::default(),
                ..of_kind.clone()
            };
            Arc::make_mut(&mut of_kind.brokers).insert(http.clone(), at_http);
        }
        Hearing { kinds: Arc::new(kinds), ..self }
    }

    /// This hearing while the connections to these brokers are lost; the only broker of a fleet has no name.
    pub fn cut_off(self, lost: &[Option<BrokerName>]) -> Hearing {
        if lost.is_empty() {
            return self;
        }
        let mut kinds = (*self.kinds).clone();
        for of_kind in kinds.values_mut() {
            let places = Arc::make_mut(&mut of_kind.brokers);
            for (broker, at) in places.iter_mut() {
                at.is_cut = lost.iter().flatten().any(|lost| lost == broker);
            }
            of_kind.is_cut = places.keys().all(BrokerName::is_http) || places.values().any(|at| at.is_cut);
            // Such a unit waits for all brokers.
            places.get_mut(&BrokerName::http()).into_iter().for_each(|http| http.is_cut = of_kind.is_cut);
        }
        Hearing { kinds: Arc::new(kinds), is_cut: true, ..self }
    }

    /// The hearing of a kind at a broker; of all its brokers, if that broker is not known or is none of them.
    pub fn at(&self, kind: &Kind, broker: Option<&BrokerName>) -> &Hearing {
        let of_kind = self.of(kind);
        broker.and_then(|broker| of_kind.brokers.get(broker)).unwrap_or(of_kind)
    }

    /// The hearing that decides about a unit.
    pub fn of_unit(&self, seen: &Snapshot, rules: &KindRules) -> &Hearing {
        match seen.heard_at(rules) {
            None if seen.alive.is_none() => self.anywhere(seen.facts.as_ref(), rules),
            broker => self.at(&rules.kind, broker.as_ref()),
        }
    }

    /// The hearing that decides about a unit that may have been heard anywhere since its last known heartbeat: at any
    /// broker and, if that heartbeat came over HTTP, there.
    pub(super) fn anywhere(&self, facts: Option<&Facts>, rules: &KindRules) -> &Hearing {
        let last = facts.and_then(|facts| facts.broker.as_ref());
        self.at(&rules.kind, last.filter(|last| last.is_http()))
    }

    /// Whether the unit was last heard elsewhere than at this broker, as far as is known. What it says over HTTP it says
    /// itself, so it left nothing.
    pub(super) fn left(&self, seen: &Snapshot, rules: &KindRules, broker: Option<&BrokerName>) -> bool {
        let Some(last) = seen.heard_at(rules) else { return false };
        let is_known = self.of(&rules.kind).brokers.contains_key(&last);
        match broker {
            Some(broker) if broker.is_http() => false,
            _ if last.is_http() => true,
            Some(broker) => is_known && *broker != last,
            None => false,
        }
    }

    /// The latest moment up to `moment` at which a heartbeat could have been heard, at any broker.
    pub(super) fn latest(&self, moment: Timestamp) -> Timestamp {
        let of = |ledger: &Ledger| ledger.latest_hearing(moment);
        self.brokers.values().map(|at| of(&at.ledger)).fold(of(&self.ledger), Timestamp::max)
    }
}

impl Snapshot {
    /// The broker at which the unit was last heard; `None`: that is not known, or its kind has one broker.
    pub fn heard_at(&self, rules: &KindRules) -> Option<BrokerName> {
        let facts = self.facts.as_ref();
        match (self.alive, facts) {
            (Some(alive), Some(facts)) if alive <= facts.last_seen => facts.broker.clone(),
            (Some(_), _) => self.alive_at.clone(),
            (None, facts) => {
                let facts = facts?;
                facts.broker.clone().filter(|_| {
                    facts.silent_from.is_none_or(|from| is_same_message(facts.last_seen, from, rules))
                })
            }
        }
    }
}

/// Whether heartbeats at both moments may be one message, which two brokers delivered.
pub(super) fn is_same_message(one: Timestamp, later: Timestamp, rules: &KindRules) -> bool {
    later.since(one) <= (rules.policy.allowed() / 10).min(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::presence::{
        Announced, Announcement, AnnouncementResult, Cause, Facts, FilterBlindness, FilterProofs, Heartbeat,
        Interval, Lifecycle, Policy, RemovedFilter, State, Verdict, announce, check_deadline, hear,
        recheck_deadline, state,
    };

    const BEGIN: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(BEGIN.as_millis() + seconds * 1000)
    }

    fn rules() -> KindRules {
        let rules = KindRules::new("truck".parse().unwrap());
        KindRules { policy: Policy { timeout: Duration::from_secs(60), grace: Duration::ZERO }, ..rules }
    }

    fn broker(name: &str) -> BrokerName {
        name.parse().unwrap()
    }

    /// The fleet is heard up to `now`; the kind up to these seconds at `eu` and at `us`, which was blind in these
    /// intervals.
    fn hearing(now: i64, [eu, us]: [i64; 2], blind_at_us: &[(i64, i64)]) -> Hearing {
        let kind = rules().kind;
        let name = |broker: &str| format!("{broker}/trucks/+");
        let proved = [("eu", eu), ("us", us)].map(|(one, heard)| ((kind.clone(), name(one)), at(heard)));
        let blind = |(from, to): &(i64, i64)| FilterBlindness {
            filter: name("us"),
            interval: Interval { from: at(*from), to: at(*to) },
        };
        let blind = [(kind.clone(), blind_at_us.iter().map(blind).collect())];
        let proofs = FilterProofs { proved: proved.into(), blind: BTreeMap::from(blind) };
        let filters: Filters = [(kind, vec![name("eu"), name("us")])].into();
        let all = Hearing {
            heard: Some(at(now)),
            settle: Duration::from_secs(300),
            filters: Arc::new(proofs),
            ..Hearing::default()
        };
        all.by_filters(&filters).by_brokers(&filters, &[broker("eu"), broker("us")])
    }

    fn last_heard(seconds: i64, at_broker: Option<&str>) -> Snapshot {
        let unit = "truck:7".parse().unwrap();
        let facts = Facts { checked_at: Some(at(seconds)), ..Facts::new(Lifecycle::Present, at(0)) };
        let alive_at = at_broker.map(broker);
        Snapshot { unit, alive: Some(at(seconds)), alive_at, facts: Some(facts), stored: None }
    }

    #[test]
    fn a_unit_is_decided_upon_by_the_hearing_of_the_broker_at_which_it_was_last_heard() {
        // Last heard at; heard at eu and at us up to; blind at us; whether it is offline at second 100.
        type Case<'a> = (Option<&'a str>, [i64; 2], &'a [(i64, i64)], bool);
        let cases: [Case; 12] = [
            (Some("eu"), [100, 100], &[], true),
            (Some("us"), [100, 100], &[], true),
            (None, [100, 100], &[], true),
            // us is down.
            (Some("eu"), [100, 10], &[], true),
            (Some("us"), [100, 10], &[], false),
            (None, [100, 10], &[], false),
            (Some("http"), [100, 100], &[], true),
            (Some("http"), [100, 10], &[], false),
            // A broker that was removed since.
            (Some("old"), [100, 10], &[], false),
            // us is back: the time is blind for what was last heard there, which is owed hearing.
            (Some("eu"), [100, 100], &[(20, 90)], true),
            (Some("us"), [100, 100], &[(20, 90)], false),
            (None, [100, 100], &[(20, 90)], false),
        ];
        for (last, heard, blind, is_offline) in cases {
            let (hearing, seen) = (hearing(100, heard, blind), last_heard(10, last));
            let verdict = check_deadline(&seen, &rules(), &hearing, at(100));
            assert_eq!(matches!(verdict, Verdict::Offline(_)), is_offline, "{last:?} {heard:?} {blind:?}");
            let is_undecided = state(&seen, &rules(), &hearing, at(100)) == Some(State::Unknown);
            assert_eq!(is_undecided, blind.is_empty() || is_offline, "{last:?} {heard:?} {blind:?}");
        }
    }

    /// The kind is heard up to second 200 at its only broker, if it has one, and over HTTP up to this second, blind in
    /// these intervals.
    fn hearing_over_http(has_broker: bool, heard: i64, blind: &[(i64, i64)]) -> Hearing {
        let kind = rules().kind;
        let proved = [("trucks/+".to_owned(), 200), (HTTP_PROOF.to_owned(), heard)];
        let proved = proved.map(|(name, seconds)| ((kind.clone(), name), at(seconds)));
        let of = |(from, to): &(i64, i64)| FilterBlindness {
            filter: HTTP_PROOF.to_owned(),
            interval: Interval { from: at(*from), to: at(*to) },
        };
        let blind = [(kind.clone(), blind.iter().map(of).collect())];
        let proofs = FilterProofs { proved: proved.into(), blind: BTreeMap::from(blind) };
        let filters = if has_broker { vec!["trucks/+".to_owned()] } else { Vec::new() };
        let all = Hearing {
            heard: Some(at(200)),
            settle: Duration::from_secs(300),
            filters: Arc::new(proofs),
            ..Hearing::default()
        };
        all.by_filters(&[(kind.clone(), filters)].into()).over_http([&kind])
    }

    #[test]
    fn time_in_which_requests_are_not_recorded_is_blind_for_units_that_were_last_heard_over_http() {
        // Whether the kind has a broker; last heard at, at second 10; requests are recorded up to, and not in these
        // intervals; whether it is offline at second 120.
        type Case<'a> = (bool, Option<&'a str>, i64, &'a [(i64, i64)], bool);
        let cases: [Case; 9] = [
            (true, Some("http"), 200, &[], true),
            (true, Some("http"), 20, &[], false),
            (true, Some("http"), 200, &[(20, 90)], false),
            (true, Some("http"), 200, &[(1, 9)], true),
            (true, None, 20, &[], true),
            (true, None, 200, &[(20, 90)], true),
            (false, Some("http"), 200, &[], true),
            (false, Some("http"), 20, &[], false),
            (false, Some("http"), 200, &[(20, 90)], false),
        ];
        for (has_broker, last, heard, blind, is_offline) in cases {
            let hearing = hearing_over_http(has_broker, heard, blind);
            let seen = last_heard(10, last);
            let facts = seen.facts.clone().map(|facts| Facts { broker: last.map(broker), ..facts });
            // Its key has expired meanwhile, and a heartbeat may have come unseen.
            let expired = Snapshot { alive: None, alive_at: None, facts, ..seen.clone() };
            for seen in [seen, expired] {
                let verdict = recheck_deadline(&seen, at(100), &rules(), &hearing, at(120));
                let found = matches!(verdict, Verdict::Offline(_));
                assert_eq!(found, is_offline, "{has_broker} {last:?} {heard} {blind:?} {:?}", seen.alive);
            }
        }
        let before = Hearing { heard: Some(at(200)), ..Hearing::default() };
        assert_eq!(before.clone().over_http([&rules().kind]), before, "no request was proved yet");
    }

    #[test]
    fn a_lost_connection_holds_the_units_that_were_last_heard_at_its_broker() {
        // The brokers whose connections are lost; last heard at; whether it is offline, heard up to 3 s before its
        // deadline, which its slack allows.
        let cases: [(&[&str], Option<&str>, bool); 5] = [
            (&[], Some("us"), true),
            (&["eu"], Some("us"), true),
            (&["us"], Some("us"), false),
            (&["us"], None, false),
            (&["eu", "us"], Some("eu"), false),
        ];
        for (lost, last, is_offline) in cases {
            let lost: Vec<Option<BrokerName>> = lost.iter().map(|name| Some(broker(name))).collect();
            let hearing = hearing(67, [67, 67], &[]).cut_off(&lost);
            let verdict = check_deadline(&last_heard(10, last), &rules(), &hearing, at(71));
            assert_eq!(matches!(verdict, Verdict::Offline(_)), is_offline, "{lost:?} {last:?}");
        }
        let hearing = hearing_over_http(true, 200, &[]).cut_off(&[None]);
        let places = [None, Some(BrokerName::http())];
        assert!(places.iter().all(|place| hearing.at(&rules().kind, place.as_ref()).is_cut));
    }

    #[test]
    fn an_announcement_from_a_broker_that_the_unit_left_says_nothing() {
        use AnnouncementResult::{Stale, Taken};
        // Last heard at; announced at; the result.
        for (last, announced, expected) in [
            (Some("us"), Some("us"), Taken),
            (Some("us"), Some("eu"), Stale),
            (None, Some("eu"), Taken),
            (Some("us"), Some("http"), Taken),
            (Some("http"), Some("http"), Taken),
            (Some("http"), Some("us"), Stale),
            // The only broker of a kind.
            (Some("http"), None, Stale),
            // A broker that was removed since.
            (Some("old"), Some("eu"), Taken),
        ] {
            let says = Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO };
            let seen = last_heard(10, last);
            let one = Announcement {
                broker: announced.map(broker),
                ..Announcement::of(seen.unit.clone(), at(20), says)
            };
            let (result, change) = announce(&seen, &one, &rules(), &hearing(21, [21, 21], &[]), at(21));
            assert_eq!((result, change.is_some()), (expected, expected == Taken), "{last:?} {announced:?}");
        }
    }

    #[test]
    fn a_unit_that_roams_is_of_the_broker_that_heard_it_last() {
        let heartbeat = |seconds: i64, name: &str| Heartbeat {
            broker: Some(broker(name)),
            ..Heartbeat::of("truck:7".parse().unwrap(), at(seconds))
        };
        // The heartbeats in the order in which they are recorded, and the broker that counts.
        let cases: [(&[(i64, &str)], &str); 4] = [
            (&[(10, "eu"), (20, "us")], "us"),
            (&[(10, "eu"), (20, "us"), (30, "eu")], "eu"),
            (&[(20, "us"), (10, "eu")], "us"), // out of order
            (&[(10, "us"), (10, "eu")], "eu"),
        ];
        for (heartbeats, expected) in cases {
            let mut seen = last_heard(0, None);
            for (seconds, name) in heartbeats {
                let hearing = hearing(30, [30, 30], &[]);
                let (_, change) = hear(&seen, &heartbeat(*seconds, name), &rules(), &hearing, at(30));
                let Some(change) = change else { continue };
                let alive_at = change.delivered_by().cloned();
                let facts = change.facts.clone();
                seen =
                    Snapshot { alive: facts.as_ref().map(|facts| facts.last_seen), alive_at, facts, ..seen };
            }
            assert_eq!(seen.heard_at(&rules()), Some(broker(expected)), "{heartbeats:?}");
            // The key has expired: the facts know it as of the last check.
            let expired = Snapshot { alive: None, alive_at: None, ..seen };
            assert_eq!(expired.heard_at(&rules()), Some(broker(expected)), "{heartbeats:?}");
        }
    }

    #[test]
    fn a_heartbeat_that_may_have_come_unseen_may_have_come_at_any_broker() {
        // The last check found a heartbeat of eu at second 10; the check at second 200 finds no key.
        for (since_check, is_offline) in [(0, true), (100, false)] {
            let facts = Facts {
                broker: Some(broker("eu")),
                checked_at: Some(at(10)),
                ..Facts::new(Lifecycle::Present, at(10))
            };
            let unit = "truck:7".parse().unwrap();
            let seen = Snapshot { unit, alive: None, alive_at: None, facts: Some(facts), stored: None };
            let now = at(70 + since_check) + Duration::from_millis(1);
            let hearing = hearing(200, [200, 10], &[]);
            let verdict = check_deadline(&seen, &rules(), &hearing, now);
            assert_eq!(matches!(verdict, Verdict::Offline(_)), is_offline, "{since_check}");
        }
    }

    #[test]
    fn a_filter_that_is_no_longer_configured_holds_back_the_units_of_its_broker() {
        let removed = |filter: &str| {
            let hearing = hearing(100, [100, 100], &[]);
            let (kind, filter) = (rules().kind, filter.to_owned());
            let held =
                hearing.held_back(&[RemovedFilter { kind, filter, heard: at(5), rest: Duration::ZERO }]);
            ["eu", "us"].map(|name| held.at(&rules().kind, Some(&broker(name))).heard == Some(at(5)))
        };
        for (filter, held) in [
            ("eu/old/+", [true, false]),
            ("us/old/+", [false, true]),
            ("old/+", [true, true]),
            ("eux/+", [true, true]),
        ] {
            assert_eq!(removed(filter), held, "{filter}");
        }
    }
}
