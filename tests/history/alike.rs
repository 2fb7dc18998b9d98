//! A trial tells receivers what the service would: generated pasts go through the groups of an engine, second by second,
//! and through a trial.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rollcall::alerting::group_in;
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Cause, Closing, GATHERS, Interval, OfflineRecord, Pace, Policy, Recoveries, Unit};
use rollcall::routing::trial::{PastFleet, PastSilence, PastUnit, TrialRules};
use rollcall::routing::{
    AlertSilence, AlertSilences, Destinations, InhibitRule, Inhibition, Inhibitors, Minutes, Route,
    RouteTimes, Routes, SilenceId, TimeInterval, parse_label_matchers, parse_matchers, replaces, zone,
};
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::store::{Capacity, Engine, Join, OutboxEvent, StoredDeliveries, StoredGroups};
use rollcall::telemetry::Telemetry;

use crate::world::{PARTITIONS, SECOND};

const UNITS: [(&str, &str); 7] = [
    ("gate:a", "north"),
    ("gate:b", "north"),
    ("gate:c", "south"),
    ("pump:a", "north"),
    ("pump:b", "south"),
    ("gateway:n", "north"),
    ("gateway:s", "south"),
];
const RECEIVERS: [&str; 2] = ["mail", "hook"];
const END: i64 = 6 * 3600;

/// The first moment of a day.
fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_784_678_400_000 + ms)
}

#[derive(Clone, Debug)]
struct Case {
    group_by: &'static str,
    wait: u64,
    interval: u64,
    lasts: u64,
    recoveries: Recoveries,
    /// The minutes of the day in which the second route is muted.
    mute: Option<(i16, i16)>,
    inhibits: bool,
    /// The site, and the seconds.
    alert_silences: Vec<(&'static str, i64, i64)>,
    /// The unit, how long after its last return it was last seen, how long it was silent then until its detection, and
    /// how long until it was back, in ms; `None`: it is not.
    silences: Vec<(usize, i64, i64, Option<i64>)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let pace = (
        prop::sample::select(&["unit", "site", "kind"][..]),
        prop::sample::select(&[0_u64, 1, 10, 30][..]),
        prop::sample::select(&[0_u64, 60, 300][..]),
        prop::sample::select(&[0_u64, 45][..]),
        prop::sample::select(vec![
            Recoveries::None,
            Recoveries::After(Duration::ZERO),
            Recoveries::After(20 * SECOND),
        ]),
    );
    let mute = prop::option::of((0_i16..60, 1_i16..60).prop_map(|(from, length)| (from, from + length)));
    let sites = prop::sample::select(&["north", "south"][..]);
    let alert_silence =
        (sites, 0_i64..3600, 1_i64..1800).prop_map(|(site, from, length)| (site, from, from + length));
    let silence = (
        0..UNITS.len(),
        0_i64..600_000,
        100_000_i64..101_000,
        prop::option::weighted(0.85, prop_oneof![1_i64..40_000, 1_i64..2_000_000]),
    );
    let holds = (mute, any::<bool>(), prop::collection::vec(alert_silence, 0..3));
    (pace, holds, prop::collection::vec(silence, 1..24)).prop_map(
        |((group_by, wait, interval, lasts, recoveries), (mute, inhibits, alert_silences), silences)| Case {
            group_by,
            wait,
            interval,
            lasts,
            recoveries,
            mute,
            inhibits,
            alert_silences,
            silences,
        },
    )
}

/// A message as one receiver gets it: when, which silences and which returns.
type Message = (Timestamp, BTreeSet<String>, BTreeSet<String>);
type Told = BTreeMap<&'static str, BTreeSet<Message>>;

/// When each receiver is notified of each silence, and of its return.
fn moments(told: &Told) -> BTreeMap<(&'static str, bool, &String), Timestamp> {
    let mut moments = BTreeMap::new();
    for (receiver, messages) in told {
        for (at, offline, back) in messages {
            moments.extend(offline.iter().map(|id| ((*receiver, false, id), *at)));
            moments.extend(back.iter().map(|id| ((*receiver, true, id), *at)));
        }
    }
    moments
}

impl Case {
    fn routes(&self) -> Routes {
        let pace = Pace {
            lasts: SECOND * self.lasts as u32,
            recoveries: self.recoveries,
            ..Pace::new(SECOND * self.wait as u32, SECOND * self.interval as u32)
        };
        let time = |(from, to)| TimeInterval {
            name: "mute".to_owned(),
            times: vec![Minutes { from, to }],
            weekdays: vec![],
            days_of_month: vec![],
            months: vec![],
            years: vec![],
            zone: zone("UTC").unwrap(),
        };
        let mute = self.mute.map(time).map(Arc::new).into_iter().collect();
        let of = |receiver: &str| Route {
            receivers: vec![receiver.to_owned()],
            group_by: vec![self.group_by.to_owned()],
            pace,
            ..Route::default()
        };
        let gates = Route {
            matchers: parse_matchers("kind=gate").unwrap(),
            times: RouteTimes { mute, active: vec![] },
            ..of("hook")
        };
        Routes::new(Route { routes: vec![gates], ..of("mail") })
    }

    fn inhibition(&self) -> Inhibition {
        let rule = InhibitRule {
            source: parse_matchers("kind=gateway").unwrap(),
            target: parse_matchers("kind=~\"gate|pump\"").unwrap(),
            equal: vec!["site".to_owned()],
        };
        let rules: Vec<InhibitRule> = Some(rule).filter(|_| self.inhibits).into_iter().collect();
        Inhibition { rules: rules.into(), longest: 100 * SECOND }
    }

    fn past(&self) -> PastFleet {
        let range = Interval { from: at(0), to: at(END * 1000) };
        let mut past = PastFleet::empty("gate".parse().unwrap(), range);
        for (unit, site) in UNITS {
            let labels = [("site".to_owned(), site.to_owned())].into();
            let unit: Unit = unit.parse().unwrap();
            past.units.push(PastUnit { unit, labels, known_since: None, pauses: Vec::new() });
        }
        // When each unit was back last; `None`: it is offline.
        let mut free = [Some(at(0)); UNITS.len()];
        for (unit, after, silent, back) in &self.silences {
            let Some(since) = free[*unit] else { continue };
            let ms = |ms: i64| Duration::from_millis(ms as u64);
            let last_seen = since + ms(*after);
            let (deadline, detected_at) = (last_seen + 100 * SECOND, last_seen + ms(*silent));
            let closed = back.map(|back| (detected_at + ms(back), Closing::Return));
            free[*unit] = closed.map(|(back, _)| back);
            let (unit, cause) = (*unit as u32, Cause::Silence);
            past.silences.push(PastSilence { unit, cause, last_seen, deadline, detected_at, closed });
        }
        past.alert_silences = self.alert_silences().into();
        past
    }

    fn alert_silences(&self) -> Vec<AlertSilence> {
        let silence = |(number, (site, from, until)): (usize, &(&str, i64, i64))| AlertSilence {
            id: SilenceId::of_random(number as u128),
            matchers: parse_label_matchers(&format!("site={site}")).unwrap(),
            starts_at: at(from * 1000),
            ends_at: at(until * 1000),
            updated_at: at(0),
            author: "ana".to_owned(),
            comment: String::new(),
        };
        self.alert_silences.iter().enumerate().map(silence).collect()
    }

    fn tried(&self) -> Told {
        let (past, routes, inhibition) = (self.past(), self.routes(), self.inhibition());
        let receivers = RECEIVERS.map(str::to_owned);
        let rules = TrialRules {
            policy: Policy { timeout: 100 * SECOND, grace: Duration::ZERO },
            settle: Duration::ZERO,
            routes: &routes,
            receivers: &receivers,
            inhibition: &inhibition,
            breaker: None,
            has_flapping: false,
            has_rate_limits: false,
        };
        let silences: Vec<_> = past.silences.iter().copied().map(Some).collect();
        let outcome = rules.outcome(&past, &silences, &|| false).unwrap();
        let ids = |places: &[u32]| {
            places.iter().map(|place| past.open_record(&past.silences[*place as usize]).id.text()).collect()
        };
        let mut told = Told::new();
        for message in &outcome.messages {
            for receiver in
                RECEIVERS.iter().filter(|name| message.destination.receivers.contains(&(**name).to_owned()))
            {
                told.entry(receiver).or_default().insert((
                    message.at,
                    ids(&message.silences),
                    ids(&message.returns),
                ));
            }
        }
        told
    }

    /// Whether receivers got the same messages at the same time. The service looks at an inhibited silence once a minute,
    /// and a group that is looked at is notified of what else waits in it; a trial leaves these looks out. So where
    /// silences inhibit, the same transitions are notified, earlier or later by the pace of the group at most.
    fn are_alike(&self, tried: &Told, lived: &Told) -> bool {
        if !self.inhibits {
            return tried == lived;
        }
        let pace = SECOND * (self.wait + self.interval) as u32 + GATHERS;
        let is_near = |(told, other): (Timestamp, Timestamp)| told <= other + pace && other <= told + pace;
        let (tried, lived) = (moments(tried), moments(lived));
        tried.keys().eq(lived.keys()) && tried.values().copied().zip(lived.values().copied()).all(is_near)
    }

    async fn lived(&self) -> Told {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(PARTITIONS) };
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(at(0))));
        let engine: Arc<dyn Engine> = Arc::new(EmbeddedEngine::open(&config, telemetry).await.unwrap());
        let life = Life {
            past: self.past(),
            routes: self.routes(),
            destinations: self.routes().destinations(RECEIVERS.map(str::to_owned).into()),
            inhibition: self.inhibition(),
            alert_silences: Arc::new(self.alert_silences().into()),
            groups: StoredGroups::new(engine.clone()),
            deliveries: StoredDeliveries::new(engine),
        };
        life.run().await
    }
}

/// The groups of an engine, and what decides about them.
struct Life {
    past: PastFleet,
    routes: Routes,
    destinations: Destinations,
    inhibition: Inhibition,
    alert_silences: Arc<AlertSilences>,
    groups: StoredGroups,
    deliveries: StoredDeliveries,
}

impl Life {
    /// What receivers get, in a service that looks at groups whenever one is due.
    async fn run(&self) -> Told {
        let partitions: Vec<u16> = (0..PARTITIONS).collect();
        // Returns first; then silences; then silences that no alert silence covers any more.
        let mut agenda: BTreeSet<(Timestamp, u8, usize)> = BTreeSet::new();
        for (place, silence) in self.past.silences.iter().enumerate() {
            agenda.insert((silence.detected_at, 1, place));
            agenda.extend(silence.closed.map(|(at, _)| (at, 0, place)));
        }
        let mut sources: HashMap<Unit, OfflineRecord> = HashMap::new();
        let mut told = Told::new();
        loop {
            let due = self.groups.first_seal(&partitions).await.unwrap();
            let next = agenda.first().copied();
            let now = match (due, next) {
                (Some(due), Some((at, ..))) if due < at => due,
                (due, None) => due.unwrap_or(Timestamp::NEVER),
                (_, Some((at, ..))) => at,
            };
            if now > at(END * 1000) {
                return told;
            }
            match next.filter(|(at, ..)| *at == now) {
                Some(event) => {
                    agenda.remove(&event);
                    let (_, what, place) = event;
                    let again = self.happen(what, place, &mut sources, now).await;
                    agenda.extend(again.map(|at| (at, 2, place)));
                }
                None => {
                    self.groups.seal(&partitions, &self.at(&sources, now), now).await.unwrap();
                }
            }
            self.deliver(&partitions, &mut told, now).await;
        }
    }

    fn at(&self, sources: &HashMap<Unit, OfflineRecord>, now: Timestamp) -> Destinations {
        let inhibitors = Inhibitors::new(self.inhibition.clone(), sources.values());
        let destinations = self.destinations.at(now).with_inhibitors(Arc::new(inhibitors));
        destinations.with_silences(self.alert_silences.clone())
    }

    /// A transition joins. Answers until when an alert silence covers it, if one does.
    async fn happen(
        &self,
        what: u8,
        place: usize,
        sources: &mut HashMap<Unit, OfflineRecord>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let silence = &self.past.silences[place];
        let mut record = self.past.open_record(silence);
        if what == 0 {
            (record.back_at, record.closed_by) = silence.closed.map(|(at, why)| (Some(at), Some(why)))?;
        } else if silence.closed.is_some_and(|(at, _)| at <= now) {
            return None;
        }
        let known = sources.get(&record.id.unit);
        if self.inhibition.has_source(&record) && known.is_none_or(|known| replaces(&record, known)) {
            sources.insert(record.id.unit.clone(), record.clone());
        }
        let covered = self.alert_silences.covered_until(&record, now).filter(|_| what > 0);
        if covered.is_some() {
            return covered;
        }
        let groups = self.routes.of(&record).into_iter().map(|taken| group_in(taken, &record)).collect();
        let join = Join { groups, event: OutboxEvent::Record(record) };
        self.groups.join(&[join], &self.at(sources, now), &Capacity::NONE, now).await.unwrap();
        None
    }

    async fn deliver(&self, partitions: &[u16], told: &mut Told, now: Timestamp) {
        for receiver in RECEIVERS {
            loop {
                let until = now + 10 * SECOND;
                let leased = self.deliveries.lease(partitions, receiver, now, until, 100).await.unwrap();
                if leased.is_empty() {
                    break;
                }
                for one in &leased {
                    let ids =
                        |records: &[OfflineRecord]| records.iter().map(|record| record.id.text()).collect();
                    let message = (one.sealed_at, ids(&one.offline), ids(&one.online));
                    told.entry(receiver).or_default().insert(message);
                }
                self.deliveries.delivered(&leased, now).await.unwrap();
            }
        }
    }
}

#[test]
fn a_trial_tells_receivers_what_the_groups_of_the_service_tell_them() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&cases(), |case| {
            let (tried, lived) = (case.tried(), runtime.block_on(case.lived()));
            prop_assert!(case.are_alike(&tried, &lived), "tried: {tried:?}\nlived: {lived:?}");
            Ok(())
        })
        .unwrap();
}
