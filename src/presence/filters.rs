//! Hearing by kind: a topic without a subscription is not heard.
//!
//! Canaries prove that a connection hears, but not that it hears a topic to which it did not subscribe, or that the
//! rules of a broker withhold. So each filter of a kind has a moment up to which it was heard, beside the moment of
//! the fleet as a whole: probes, which are published on a topic of that filter, prove it. A kind has heard as far as
//! the least of its filters. Time in which a filter was not heard is blind for its kind, and for no other kind.
//!
//! # When a filter is no longer configured
//! Units may go on sending there, and Rollcall cannot know which of them do. A wrong configuration must not mark them
//! offline, and a right one must not hide silences for long. So for four timeouts, at most an hour, the kind counts as
//! heard only up to the last proof of that filter. After that the filter is ignored.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::broker_name::HTTP_PROOF;
use super::{BrokerName, Interval, Kind, Ledger, Policy};
use crate::clock::{Skip, Timestamp};

/// How far Rollcall is known to have heard, and where it did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hearing {
    /// Every message that a device sent up to here is recorded; `None` before the first proof.
    pub heard: Option<Timestamp>,
    /// The blind intervals before that.
    pub ledger: Ledger,
    /// The most hearing that is owed after an interval.
    pub settle: Duration,
    /// How late a check may be, because the engine is so far away.
    pub delay: Duration,
    /// Up to when the engine may have evicted expiry keys, and their heartbeats with them; `None`: it has not.
    pub evicted: Option<Timestamp>,
    /// The time that the clock of the fleet skipped last: see [`Hearing::sleep`].
    pub skipped: Option<Skip>,
    /// The connection by which this instance hears is lost: what devices sent since `heard` may lie at the broker.
    pub is_cut: bool,
    /// The proofs of single kinds, as stored.
    pub filters: Arc<FilterProofs>,
    /// The hearing of kinds that have filters of their own: see [`Hearing::by_filters`].
    pub kinds: Arc<HashMap<Kind, Hearing>>,
    /// Of a kind: its hearing over HTTP, see [`Hearing::over_http`], and, if it is heard at several brokers, its hearing
    /// at each, see [`Hearing::by_brokers`].
    pub brokers: Arc<HashMap<BrokerName, Hearing>>,
}

/// The hearing that is owed after a long blind interval when nothing else is configured.
pub const DEFAULT_SETTLE: Duration = Duration::from_secs(300);

/// The topic filters by which each kind is heard, `{kind}` filled in.
pub type Filters = HashMap<Kind, Vec<String>>;

/// The stored proofs of the filters of all kinds, configured or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterProofs {
    /// Up to when each filter of a kind was heard.
    pub proved: BTreeMap<(Kind, String), Timestamp>,
    /// Blind intervals of single kinds.
    pub blind: BTreeMap<Kind, Vec<FilterBlindness>>,
}

/// Time in which a filter of a kind was not heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterBlindness {
    pub filter: String,
    pub interval: Interval,
}

/// The proof that a filter of a kind was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    pub kind: Kind,
    pub filter: String,
    /// Every message on its topics that was sent up to here is recorded.
    pub sent_at: Timestamp,
    /// If `sent_at` is more than this after the last proof of the filter, the time between is blind.
    pub gap: Duration,
}

/// How far a shared subscription at one of several brokers has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareHeard {
    /// The least of what its members have heard.
    pub heard: Timestamp,
    /// Until when a member that ended may have lost messages, since the share was last heard.
    pub floor: Option<Timestamp>,
}

/// For how many timeouts, and for how long at most, a removed filter holds back its kind.
const REMOVED_TIMEOUTS: u32 = 4;
const MAX_REMOVED: Duration = Duration::from_secs(3600);

/// A filter that was heard, is no longer configured, and holds back its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedFilter {
    pub kind: Kind,
    pub filter: String,
    /// Up to when it was heard.
    pub heard: Timestamp,
    /// For how much longer it holds back its kind.
    pub rest: Duration,
}

/// Whether the topic filter `wide` matches every topic that `narrow` (a filter or a topic) matches.
pub fn covers(wide: &str, narrow: &str) -> bool {
    // A wildcard in the first level matches no topic of the server.
    if narrow.starts_with('$') != wide.starts_with('$') {
        return false;
    }
    let mut narrow = narrow.split('/');
    for level in wide.split('/') {
        match (level, narrow.next()) {
            // `a/#` also matches `a`.
            ("#", _) => return true,
            ("+", Some(other)) if other != "#" => {}
            (level, Some(other)) if level == other => {}
            _ => return false,
        }
    }
    narrow.next().is_none()
}

/// The name of a share among the proofs of hearing of the kinds that are heard by it. No filter of a kind has this
/// form.
pub fn proof_of_share(broker: &str, share: &str) -> String {
    format!("{broker}/{SHARE}{share}")
}

/// Whether a proof of hearing is one of a share, and of no filter.
pub fn is_of_share(proof: &str) -> bool {
    let share = proof.split_once('/').and_then(|(_, rest)| rest.strip_prefix(SHARE));
    share.is_some_and(|name| !name.contains(['/', '+', '#']))
}

const SHARE: &str = "$share/";

impl FilterProofs {
    /// The blind intervals of a kind over MQTT; those of the filters of one broker, or of HTTP, if it is given.
    pub fn blind_of(&self, kind: &Kind, broker: Option<&BrokerName>) -> impl Iterator<Item = &Interval> {
        let of_kind = self.blind.get(kind).into_iter().flatten();
        let is_of = move |blind: &&FilterBlindness| match broker {
            Some(broker) => broker.has_filter(&blind.filter),
            None => blind.filter != HTTP_PROOF,
        };
        of_kind.filter(is_of).map(|blind| &blind.interval)
    }
}

impl Probed {
    /// A proof of each filter in `filters`.
    pub fn all(filters: &Filters, sent_at: Timestamp, gap: Duration) -> Vec<Probed> {
        let of_kind = |(kind, filters): (&Kind, &Vec<String>)| {
            let kind = kind.clone();
            let filters = filters.clone().into_iter();
            filters.map(move |filter| Probed { kind: kind.clone(), filter, sent_at, gap })
        };
        filters.iter().flat_map(of_kind).collect()
    }

    /// A proof for each of `kinds` that requests over HTTP were recorded at this moment.
    pub fn over_http<'a>(
        kinds: impl IntoIterator<Item = &'a Kind>,
        sent_at: Timestamp,
        gap: Duration,
    ) -> Vec<Probed> {
        let of_kind =
            |kind: &Kind| Probed { kind: kind.clone(), filter: HTTP_PROOF.to_owned(), sent_at, gap };
        kinds.into_iter().map(of_kind).collect()
    }

    /// The proofs of a share that has heard this far. `proofs`: the proofs of its member, for each kind that is heard
    /// by the share. A share that has lost messages lost them for all kinds, also for kinds that this member does not
    /// know.
    pub fn of_share(
        proofs: &[Probed],
        proved: &BTreeMap<(Kind, String), Timestamp>,
        ShareHeard { heard, floor }: ShareHeard,
    ) -> Vec<Probed> {
        let Some(Probed { filter, .. }) = proofs.first() else { return Vec::new() };
        let is_known = |kind: &Kind| proofs.iter().any(|one| one.kind == *kind);
        let others = proved.keys().filter(|(kind, of)| floor.is_some() && of == filter && !is_known(kind));
        let others = others.map(|(kind, filter)| Probed {
            kind: kind.clone(),
            filter: filter.clone(),
            sent_at: heard,
            gap: Duration::MAX,
        });
        let of_share = |one: Probed| {
            let before = proved.get(&(one.kind.clone(), one.filter.clone()));
            let is_lost = floor.is_some_and(|floor| before.is_none_or(|before| *before < floor));
            Probed { sent_at: heard, gap: if is_lost { Duration::ZERO } else { one.gap }, ..one }
        };
        proofs.iter().cloned().chain(others).map(of_share).collect()
    }
}

/// Notes up to when filters were heard, and answers the blind intervals of their kinds. `proved` holds at least
/// the filters that are probed and, where a probed filter is new, all filters of its kind.
pub fn prove(
    proved: &mut BTreeMap<(Kind, String), Timestamp>,
    probed: &[Probed],
) -> Vec<(Kind, FilterBlindness)> {
    let mut last = BTreeMap::new();
    for ((kind, filter), at) in proved.iter() {
        let last = last.entry((kind.clone(), filter == HTTP_PROOF)).or_insert(*at);
        *last = (*last).max(*at);
    }
    let mut blind = Vec::new();
    for Probed { kind, filter, sent_at, gap } in probed {
        let name = (kind.clone(), filter.clone());
        let before = proved.get(&name).copied();
        // A new filter was not heard while others of its kind were. Requests over HTTP are no message of any filter.
        if let Some(from) = before.or_else(|| last.get(&(kind.clone(), filter == HTTP_PROOF)).copied())
            && sent_at.since(from) > *gap
        {
            let interval = Interval { from, to: *sent_at };
            blind.push((kind.clone(), FilterBlindness { filter: filter.clone(), interval }));
        }
        proved.insert(name, before.map_or(*sent_at, |before| before.max(*sent_at)));
    }
    blind
}

impl Hearing {
    /// Until when units are owed hearing after the newest blind interval of the fleet or of a kind; `None`: no unit is
    /// owed hearing at `now`.
    pub fn settles_at(&self, now: Timestamp) -> Option<Timestamp> {
        let last =
            |ledger: &Ledger| ledger.intervals().last().map(|last| last.to + last.length().min(self.settle));
        let all = self.kinds.values().map(|of_kind| &of_kind.ledger).chain([&self.ledger]);
        all.filter_map(last).max().filter(|until| *until > now)
    }

    /// Whether the kind is heard less far than the fleet, by more than `gap`.
    pub fn is_behind(&self, kind: &Kind, gap: Duration) -> bool {
        self.of(kind).is_behind_the(self.heard, gap)
    }

    /// Whether this hearing, of a kind or of a kind at a broker, ends more than `gap` before that of the fleet.
    pub fn is_behind_the(&self, fleet: Option<Timestamp>, gap: Duration) -> bool {
        let Some(fleet) = fleet else { return false };
        self.heard.is_none_or(|heard| fleet.since(heard) > gap)
    }

    /// The next check of an overdue unit that has this hearing and is not heard. When it is heard again, the deadline
    /// of the unit moves by as long as the kind was blind, by at most `settle`, and at least by its slack. So an
    /// earlier check would find nothing, and this check is not late.
    pub fn recheck_at(&self, policy: &Policy, now: Timestamp) -> Timestamp {
        let blind = self.heard.map_or(Duration::ZERO, |heard| now.since(heard));
        now + blind.min(policy.timeout).min(self.settle).max(policy.slack())
    }

    pub fn of(&self, kind: &Kind) -> &Hearing {
        self.kinds.get(kind).unwrap_or(self)
    }

    /// Whether the proof of hearing covers a deadline. It may lag behind by `slack`, unless the connection is lost.
    pub fn covers(&self, deadline: Timestamp, slack: Duration) -> bool {
        self.heard >= Some(deadline - if self.is_cut { Duration::ZERO } else { slack })
    }

    /// This hearing, with the kinds of `filters` heard by their filters. Other kinds are heard as the fleet is.
    pub fn by_filters(self, filters: &Filters) -> Hearing {
        let of_kind =
            |(kind, filters): (&Kind, &Vec<String>)| (kind.clone(), self.of_filters(kind, filters, None));
        let kinds = filters.iter().filter(|(_, filters)| !filters.is_empty()).map(of_kind).collect();
        Hearing { kinds: Arc::new(kinds), ..self }
    }

    /// The hearing of a share at one of several brokers, by which the kind is heard. `proof`: its name among the
    /// proofs.
    pub fn of_share(&self, kind: &Kind, proof: &str) -> Hearing {
        let blind = self.filters.blind.get(kind).into_iter().flatten();
        let of_share = blind.filter(|blind| blind.filter == proof).map(|blind| blind.interval);
        Hearing {
            heard: self.filters.proved.get(&(kind.clone(), proof.to_owned())).copied(),
            ledger: Ledger::new(self.ledger.intervals().iter().copied().chain(of_share)),
            ..Hearing::default()
        }
    }

    /// The filters that are no longer configured and hold back a kind of `filters`. `timeout` answers the timeout of a
    /// kind.
    pub fn removed(&self, filters: &Filters, timeout: impl Fn(&Kind) -> Duration) -> Vec<RemovedFilter> {
        let of_proof = |((kind, filter), heard): (&(Kind, String), &Timestamp)| {
            if is_of_share(filter) || filters.get(kind)?.iter().any(|configured| covers(configured, filter)) {
                return None;
            }
            let unheard = self.of(kind).ledger.intervals().iter();
            let blind: Duration = unheard.map(|interval| interval.to.since(interval.from.max(*heard))).sum();
            let counts = self.heard?.since(*heard).saturating_sub(blind);
            let rest = (REMOVED_TIMEOUTS * timeout(kind)).min(MAX_REMOVED).checked_sub(counts)?;
            Some(RemovedFilter { kind: kind.clone(), filter: filter.clone(), heard: *heard, rest })
        };
        self.filters.proved.iter().filter_map(of_proof).collect()
    }

    /// This hearing, with each kind heard no further than the removed filters that hold it back.
    pub fn held_back(self, removed: &[RemovedFilter]) -> Hearing {
        if removed.is_empty() {
            return self;
        }
        let mut kinds = (*self.kinds).clone();
        for RemovedFilter { kind, filter, heard, .. } in removed {
            let Some(of_kind) = kinds.get_mut(kind) else { continue };
            of_kind.heard = of_kind.heard.min(Some(*heard));
            // A filter of a broker says nothing of units that were last heard at another.
            let is_of = |broker: &BrokerName| broker.has_filter(filter);
            let is_of_one = of_kind.brokers.keys().any(is_of);
            for (_, at) in
                Arc::make_mut(&mut of_kind.brokers).iter_mut().filter(|(one, _)| !is_of_one || is_of(one))
            {
                at.heard = at.heard.min(Some(*heard));
            }
        }
        Hearing { kinds: Arc::new(kinds), ..self }
    }

    /// This hearing, where nothing after `end` was heard.
    pub fn up_to(&self, end: Timestamp) -> Hearing {
        let up_to = |hearing: &Hearing| Hearing { heard: hearing.heard.min(Some(end)), ..hearing.clone() };
        let at_each = |of_kind: &Hearing| {
            let at = of_kind.brokers.iter().map(|(broker, at)| (broker.clone(), up_to(at)));
            Hearing { brokers: Arc::new(at.collect()), ..up_to(of_kind) }
        };
        let kinds = self.kinds.iter().map(|(kind, of_kind)| (kind.clone(), at_each(of_kind))).collect();
        Hearing { kinds: Arc::new(kinds), ..up_to(self) }
    }

    /// Up to when all blind time of the fleet (no kind) and of the kinds of `filters` is in the ledgers: an interval that is
    /// noted later begins there, or later. A filter without a proof has no such moment.
    pub fn noted_until<'a>(
        &'a self,
        filters: &'a Filters,
    ) -> impl Iterator<Item = (Option<&'a Kind>, Timestamp)> {
        let of_kind = |(kind, filters): (&'a Kind, &'a Vec<String>)| {
            let proved = |filter: &String| self.filters.proved.get(&(kind.clone(), filter.clone())).copied();
            Some((Some(kind), filters.iter().filter_map(proved).min()?))
        };
        self.heard.map(|heard| (None, heard)).into_iter().chain(filters.iter().filter_map(of_kind))
    }

    /// This hearing, with the blind time that lasts now in the ledgers, which get it only when it is over: of all if the
    /// fleet `is_blind`, and of a kind, or of a kind at a broker, that is heard less far than the fleet by more than
    /// `late` says of the kind.
    pub fn with_lasting(self, is_blind: bool, late: impl Fn(&Kind) -> Duration) -> Hearing {
        let fleet = self.heard;
        let extended = |one: &Hearing, late: Duration| {
            let lasts = is_blind || one.is_behind_the(fleet, late);
            let from = one.heard.or(fleet.filter(|_| is_blind)).filter(|_| lasts);
            let lasting = from.map(|from| Interval { from, to: Timestamp::NEVER });
            Hearing { ledger: one.ledger.with(lasting).into_owned(), ..one.clone() }
        };
        let of_kind = |(kind, of_kind): (&Kind, &Hearing)| {
            let late = late(kind);
            let at = of_kind.brokers.iter().map(|(broker, at)| (broker.clone(), extended(at, late)));
            (kind.clone(), Hearing { brokers: Arc::new(at.collect()), ..extended(of_kind, late) })
        };
        let kinds = self.kinds.iter().map(of_kind).collect();
        Hearing { kinds: Arc::new(kinds), ..extended(&self, Duration::ZERO) }
    }

    /// The hearing of a kind by some of its filters; blind intervals of one broker, if it is given.
    pub(super) fn of_filters(&self, kind: &Kind, filters: &[String], broker: Option<&BrokerName>) -> Hearing {
        let proved = |filter: &String| self.filters.proved.get(&(kind.clone(), filter.clone())).copied();
        // A filter that was never heard comes before all others.
        let least = filters.iter().map(proved).min().flatten();
        Hearing {
            heard: self.heard.min(least),
            ledger: self.ledger.and(self.filters.blind_of(kind, broker).copied()),
            settle: self.settle,
            delay: self.delay,
            evicted: self.evicted,
            skipped: self.skipped,
            ..Hearing::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn hearing_up_to_a_moment_ends_there_for_every_kind() {
        let (kind, other): (Kind, Kind) = ("pump".parse().unwrap(), "valve".parse().unwrap());
        let heard = |ms: Option<i64>| Hearing { heard: ms.map(at), ..Hearing::default() };
        let kinds = [(kind.clone(), heard(Some(4))), (other.clone(), heard(None))].into();
        let hearing = Hearing { kinds: Arc::new(kinds), ..heard(Some(9)) };
        let limited = hearing.up_to(at(3));
        assert_eq!(
            (limited.heard, limited.of(&kind).heard, limited.of(&other).heard),
            (Some(at(3)), Some(at(3)), None)
        );
        assert_eq!(hearing.up_to(at(9)), hearing);
    }

    #[test]
    fn a_filter_covers_another_if_it_matches_all_of_its_topics() {
        let cases = [
            ("units/+/heartbeat", "units/7/heartbeat", true),
            ("units/+/heartbeat", "units/+/heartbeat", true),
            ("units/7/heartbeat", "units/+/heartbeat", false),
            ("units/+", "units/7/heartbeat", false),
            ("units/+/heartbeat", "units/7", false),
            ("units/#", "units/+/heartbeat", true),
            ("units/#", "units", true),
            ("units/+", "units/#", false),
            ("+/#", "$SYS/load", false),
            ("$SYS/#", "$SYS/load", true),
        ];
        for (wide, narrow, expected) in cases {
            assert_eq!(covers(wide, narrow), expected, "{wide} {narrow}");
        }
    }

    #[test]
    fn what_a_share_loses_is_blind_for_every_kind_that_is_heard_by_it() {
        let share = proof_of_share("eu", "all");
        let kinds: [Kind; 3] = ["pump", "valve", "truck"].map(|kind| kind.parse().unwrap());
        let of = |kind: &Kind, filter: &str| (kind.clone(), filter.to_owned());
        // Two kinds are known to the member, and one to another instance alone.
        let proofs = kinds[..2].iter().map(|kind| Probed {
            kind: kind.clone(),
            filter: share.clone(),
            sent_at: at(9999),
            gap: Duration::from_millis(500),
        });
        let proofs: Vec<Probed> = proofs.collect();
        // Up to when the share has heard, its floor, and the beginnings of the blind intervals of the three kinds.
        type Case = (i64, Option<i64>, [Option<i64>; 3]);
        let cases: [Case; 5] = [
            (1400, None, [None, None, None]),
            (1600, None, [Some(1000), Some(1000), None]),
            (1200, Some(1100), [Some(1000), Some(1000), Some(1000)]),
            (1200, Some(1000), [None, None, None]),
            (1600, Some(900), [Some(1000), Some(1000), None]),
        ];
        for (heard, floor, expected) in cases {
            let mut proved: BTreeMap<_, _> = kinds.iter().map(|kind| (of(kind, &share), at(1000))).collect();
            proved.insert(of(&kinds[0], "us/pumps/+"), at(1));
            let probed =
                Probed::of_share(&proofs, &proved, ShareHeard { heard: at(heard), floor: floor.map(at) });
            let blind = prove(&mut proved, &probed);
            let from = kinds.each_ref().map(|kind| {
                let of_kind = blind.iter().find(|(of, _)| of == kind);
                of_kind.map(|(_, blind)| {
                    assert_eq!((blind.interval.to, &blind.filter), (at(heard), &share));
                    blind.interval.from.as_millis()
                })
            });
            assert_eq!(from, expected, "{heard} {floor:?}");
            assert_eq!(proved[&of(&kinds[0], "us/pumps/+")], at(1), "another broker says nothing");
        }
    }

    #[test]
    fn the_name_of_a_share_is_that_of_no_filter() {
        let cases = [
            (proof_of_share("eu", "all"), true),
            (HTTP_PROOF.to_owned(), true),
            ("eu/units/+".to_owned(), false),
            ("units/$share/+".to_owned(), false),
            ("eu/$share/all/units/+".to_owned(), false),
            ("$share/all".to_owned(), false),
        ];
        for (proof, expected) in cases {
            assert_eq!(is_of_share(&proof), expected, "{proof}");
        }
    }

    #[test]
    fn each_filter_is_proved_for_itself_and_a_new_one_begins_where_its_kind_was_heard() {
        // Kind, filter, sent at, gap, and the start of the blind interval.
        type Case<'a> = (&'a str, &'a str, i64, u64, Option<i64>);
        let cases: [Case; 11] = [
            ("pump", HTTP_PROOF, 500, 0, None), // requests over HTTP are for themselves
            ("pump", "a", 1000, 0, None),       // the first proof of the kind
            ("valve", "http/a", 1000, 0, None),
            ("pump", "a", 2000, 1000, None),
            ("pump", "a", 4500, 1000, Some(2000)),
            ("pump", "a", 3000, 0, None), // older than the last proof
            ("pump", "b", 5000, 500, None),
            ("pump", "c", 6000, 500, Some(5000)),
            ("valve", "a", 9000, 0, Some(1000)),
            ("pump", "a", 9000, 4500, None),
            ("pump", HTTP_PROOF, 9000, 1000, Some(500)),
        ];
        let mut proved = BTreeMap::new();
        for (kind, filter, sent_at, gap, from) in cases {
            let kind: Kind = kind.parse().unwrap();
            let (sent_at, gap) = (at(sent_at), Duration::from_millis(gap));
            let probe = Probed { kind: kind.clone(), filter: filter.to_owned(), sent_at, gap };
            let interval = from.map(|from| Interval { from: at(from), to: sent_at });
            let blind =
                interval.map(|interval| (kind, FilterBlindness { filter: filter.to_owned(), interval }));
            assert_eq!(prove(&mut proved, &[probe]), Vec::from_iter(blind), "{filter} {sent_at}");
        }
        let known: Vec<i64> = proved.values().map(|at| at.as_millis()).collect();
        assert_eq!(known, [9000, 5000, 6000, 9000, 9000, 1000]);
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
            blind: [(
                pump.clone(),
                vec![FilterBlindness { filter: "a".to_owned(), interval: interval(15, 30) }],
            )]
            .into(),
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
        assert_eq!(hearing.of(&meter).heard, Some(at(100)), "it has no filters of its own");
    }

    #[test]
    fn blind_time_is_noted_up_to_the_least_proof_of_each_kind() {
        let [pump, valve]: [Kind; 2] = ["pump", "valve"].map(|kind| kind.parse().unwrap());
        let proof = |kind: &Kind, filter: &str, ms| ((kind.clone(), filter.to_owned()), at(ms));
        let proved = [proof(&pump, "a", 90), proof(&pump, "b", 70), proof(&pump, "removed", 10)].into();
        let proofs = FilterProofs { proved, ..FilterProofs::default() };
        let heard = Hearing { heard: Some(at(100)), filters: Arc::new(proofs), ..Hearing::default() };
        let names = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        let filters: Filters =
            [(pump.clone(), names(&["a", "b", "new"])), (valve, names(&["a"]))].into_iter().collect();
        let noted: Vec<_> = heard.noted_until(&filters).collect();
        assert_eq!(noted, [(None, at(100)), (Some(&pump), at(70))]);
        assert_eq!(Hearing::default().noted_until(&filters).count(), 0);
    }

    #[test]
    fn blind_time_that_lasts_is_that_of_the_fleet_or_of_what_is_heard_less_far() {
        let kind: Kind = "truck".parse().unwrap();
        let broker = |name: &str| name.parse::<BrokerName>().unwrap();
        // Whether the fleet is blind, heard up to 100; up to when the kind is heard at two brokers; since when the fleet,
        // the kind, and the kind at each broker are blind.
        type Case = (bool, [Option<i64>; 2], [Option<i64>; 4]);
        let cases: [Case; 7] = [
            (false, [Some(100), Some(100)], [None; 4]),
            (false, [Some(100), Some(90)], [None; 4]),
            (false, [Some(100), Some(89)], [None, Some(89), None, Some(89)]),
            (false, [Some(100), None], [None; 4]),
            (true, [Some(100), Some(100)], [Some(100); 4]),
            (true, [Some(99), Some(50)], [Some(100), Some(50), Some(99), Some(50)]),
            (true, [Some(99), None], [Some(100), Some(100), Some(99), Some(100)]),
        ];
        for (is_blind, heard, expected) in cases {
            let of = |heard: Option<i64>| Hearing { heard: heard.map(at), ..Hearing::default() };
            let [eu, us] = heard;
            let brokers = Arc::new([(broker("eu"), of(eu)), (broker("us"), of(us))].into());
            let of_kind = Hearing { brokers, ..of(eu.min(us)) };
            let fleet = Hearing { kinds: Arc::new([(kind.clone(), of_kind)].into()), ..of(Some(100)) };
            let hearing = fleet.with_lasting(is_blind, |_| Duration::from_millis(10));
            let at_each = ["eu", "us"].map(|name| hearing.at(&kind, Some(&broker(name))));
            let all = [&hearing, hearing.of(&kind), at_each[0], at_each[1]];
            let found = all.map(|one| match one.ledger.intervals() {
                [] => None,
                [lasting] => Some(lasting).filter(|one| !one.is_over()).map(|one| one.from.as_millis()),
                more => panic!("{more:?}"),
            });
            assert_eq!(found, expected, "{is_blind} {heard:?}");
        }
    }

    #[test]
    fn a_removed_filter_holds_back_its_kind_for_a_while() {
        let kind: Kind = "pump".parse().unwrap();
        let filters = |names: &[&str]| -> Filters {
            [(kind.clone(), names.iter().map(|name| (*name).to_owned()).collect())].into()
        };
        let second = |seconds: i64| at(seconds * 1000);
        // Now, the timeout, the blind time of the fleet (s), the configured filters, and for how long the kind is held
        // back.
        type Case<'a> = (i64, u64, Option<(i64, i64)>, &'a [&'a str], Option<u64>);
        let cases: [Case; 8] = [
            (100, 4, None, &["a/+"], Some(16)),
            (112, 4, None, &["a/+"], Some(4)),
            (117, 4, None, &["a/+"], None),
            (117, 4, Some((90, 110)), &["a/+"], Some(9)),
            (100, 172_800, None, &["a/+"], Some(3600)),
            (3701, 172_800, None, &["a/+"], None),
            (112, 4, None, &["a/+", "old/+/x"], None),
            (112, 4, None, &["a/+", "old/+/+"], None),
        ];
        for (now, timeout, blind, configured, rest) in cases {
            let proved = [("a/+", now), ("old/+/x", 100), ("old/+/+", now)];
            let of_proof =
                |(filter, seconds): (&str, i64)| ((kind.clone(), filter.to_owned()), second(seconds));
            let of_configured =
                |(filter, _): &(&str, i64)| *filter == "old/+/x" || configured.contains(filter);
            let proved = proved.into_iter().filter(of_configured).map(of_proof).collect();
            let blind = blind.map(|(from, to)| Interval { from: second(from), to: second(to) });
            let hearing = Hearing {
                heard: Some(second(now)),
                ledger: Ledger::new(blind),
                filters: Arc::new(FilterProofs { proved, ..FilterProofs::default() }),
                ..Hearing::default()
            };
            let wanted = filters(configured);
            let hearing = hearing.by_filters(&wanted);
            let heard = hearing.of(&kind).heard;
            let removed = hearing.removed(&wanted, |_| Duration::from_secs(timeout));
            let expected = rest.map(|rest| RemovedFilter {
                kind: kind.clone(),
                filter: "old/+/x".to_owned(),
                heard: second(100),
                rest: Duration::from_secs(rest),
            });
            assert_eq!(removed, Vec::from_iter(expected), "{now} {timeout} {configured:?}");
            let held_back = hearing.held_back(&removed);
            let expected = if rest.is_some() { heard.min(Some(second(100))) } else { heard };
            assert_eq!(held_back.of(&kind).heard, expected, "{now} {timeout} {configured:?}");
        }
    }

    #[test]
    fn after_a_blind_interval_units_settle_for_its_length_and_at_most_for_the_time_that_is_configured() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let cases = [(vec![], 500, None), (vec![(0, 100)], 150, Some(200)), (vec![(0, 100)], 200, None)]
            .into_iter()
            .chain([(vec![(0, 100), (400, 1000)], 1001, Some(1300)), (vec![(0, 1000)], 999, Some(1300))]);
        for (intervals, now, until) in cases {
            let ledger =
                Ledger::new(intervals.iter().map(|(from, to)| Interval { from: at(*from), to: at(*to) }));
            let hearing = Hearing { ledger, settle: Duration::from_secs(300), ..Hearing::default() };
            assert_eq!(hearing.settles_at(at(now)), until.map(at), "{intervals:?} at {now}");
        }
    }

    #[test]
    fn a_unit_of_a_kind_that_is_not_heard_is_checked_seldom_and_never_too_late() {
        let kind: Kind = "pump".parse().unwrap();
        let policy = |seconds| Policy { timeout: Duration::from_secs(seconds), grace: Duration::ZERO };
        // Heard of the kind, now, timeout, settle (s), and how long to wait (ms).
        let cases = [
            (Some(90), 100, 3600, 300, 10_000),
            (Some(90), 1_000, 3600, 300, 300_000),
            (Some(90), 1_000, 60, 300, 60_000),
            (Some(90), 1_000, 60, 0, 6_000),
            (None, 1_000, 4, 300, 400),
        ];
        for (heard, now, timeout, settle, wait) in cases {
            let settle = Duration::from_secs(settle);
            let of_kind = Hearing { heard: heard.map(|s: i64| at(s * 1000)), settle, ..Hearing::default() };
            let hearing = Hearing {
                heard: Some(at(now * 1000)),
                settle,
                kinds: Arc::new([(kind.clone(), of_kind)].into()),
                ..Hearing::default()
            };
            assert!(hearing.is_behind(&kind, Duration::from_secs(9)), "{heard:?}");
            assert!(
                !hearing.is_behind(&"other".parse().unwrap(), Duration::ZERO),
                "it has no filters of its own"
            );
            assert_eq!(hearing.of(&kind).recheck_at(&policy(timeout), at(now * 1000)), at(now * 1000 + wait));
            // However it goes on, the deadline is not before that check.
            let Some(heard) = heard else { continue };
            let (since, owed) = (at(heard * 1000), policy(timeout).timeout.min(hearing.settle));
            let due = since + policy(timeout).slack() + Duration::from_millis(1);
            let ledger = Ledger::new([Interval { from: since, to: at(now * 1000 + 1) }]);
            let deadline = ledger.deadline(due - policy(timeout).timeout, policy(timeout).timeout, owed);
            assert!(deadline >= at(now * 1000 + wait), "{deadline:?} {wait}");
        }
        let hearing = Hearing { heard: Some(at(100)), ..Hearing::default() };
        assert!(!hearing.is_behind(&kind, Duration::ZERO), "a kind without filters is heard as the fleet is");
    }
}
