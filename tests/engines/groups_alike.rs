//! Both engines let transitions join their groups, seal them and hand them out alike: generated cases are given to the
//! scripts on Redis and to the rules of `presence/grouping.rs`, by which the embedded engine decides.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rollcall::clock::Timestamp;
use rollcall::presence::{Cause, Closing, Interval, Labels, OfflineRecord, Recoveries, Unit};
use rollcall::routing::{
    InhibitRule, Inhibition, Inhibitors, Minutes, RouteTimes, TimeInterval, parse_matchers, zone,
};
use rollcall::store::{
    Capacity, Delivery, Destination, Destinations, Engine, Escalation, FollowUps, Group, Join, OutboxEvent,
    Pace, StoredDeliveries,
};

use crate::both_engines::{PARTITIONS, engines};
use crate::support::redis::Redis;

const BEGIN: i64 = 1_732_147_200_000;

/// An event, and the time since the event before it (ms).
#[derive(Clone, Debug)]
struct Step {
    after: u64,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    /// These events join together; `has_room`: the caller takes deliveries along.
    Join(Vec<JoinedEvent>, bool),
    Seal,
    /// Some receivers are reminded, and others notified.
    Remind,
    /// Leases deliveries, and delivers those whose place says so.
    Lease(Vec<bool>),
}

/// An event that joins a group.
#[derive(Clone, Debug)]
enum JoinedEvent {
    /// The record of a unit: detected as one of several silences, how it was closed, and whether its group has
    /// changed.
    Record {
        unit: u8,
        detected: u8,
        closed: Option<Closing>,
        is_moved: bool,
    },
    Blind {
        from: u8,
        is_over: bool,
    },
}

/// A fleet in a case.
#[derive(Clone, Debug)]
struct Case {
    pace: Pace,
    receivers: usize,
    /// The pace of the root: how often it reminds, and when it escalates (s).
    again: (Option<u64>, Option<u64>),
    /// The root is muted from the second minute on, for a minute.
    is_muted: bool,
    /// From these steps on, a source that inhibits two units is offline, and its end is known (s).
    inhibited: Option<(usize, usize, i64)>,
    /// From this step on the root has the other receivers.
    turned_at: usize,
    steps: Vec<Step>,
}

fn events() -> impl Strategy<Value = JoinedEvent> {
    let closed = prop_oneof![
        3 => Just(None),
        2 => Just(Some(Closing::Return)),
        1 => Just(Some(Closing::Removed)),
    ];
    let is_moved = prop::bool::weighted(0.2);
    let record = (0..4u8, 0..2u8, closed, is_moved).prop_map(|(unit, detected, closed, is_moved)| {
        JoinedEvent::Record { unit, detected, closed, is_moved }
    });
    let blind = (0..2u8, any::<bool>()).prop_map(|(from, is_over)| JoinedEvent::Blind { from, is_over });
    prop_oneof![6 => record, 1 => blind]
}

fn case() -> impl Strategy<Value = Case> {
    let action = prop_oneof![
        5 => (prop::collection::vec(events(), 1..4), any::<bool>()).prop_map(|(all, room)| Action::Join(all, room)),
        3 => Just(Action::Seal),
        2 => Just(Action::Remind),
        2 => prop::collection::vec(any::<bool>(), 4).prop_map(Action::Lease),
    ];
    let seconds = prop_oneof![3 => 0..4u64, 2 => 4..30u64, 1 => 30..200u64];
    let after = prop_oneof![1 => 0..1200u64, 2 => seconds.prop_map(|seconds| seconds * 1000)];
    let step = (after, action).prop_map(|(after, action)| Step { after, action });
    let pace = prop_oneof![Just((0, 0)), Just((0, 60)), Just((10, 0)), Just((10, 60)), Just((20, 10))];
    // Deadlines are five minutes before the first event.
    let lasts = prop_oneof![4 => Just(0u64), 1 => 300..400u64];
    let recoveries = prop_oneof![4 => Just(Some(0u64)), 1 => Just(None), 1 => Just(Some(25))];
    let pace = (pace, any::<bool>(), lasts, recoveries).prop_map(
        |((wait, interval), is_shared, lasts, recoveries)| Pace {
            is_shared,
            lasts: Duration::from_secs(lasts),
            recoveries: recoveries
                .map_or(Recoveries::None, |wait| Recoveries::After(Duration::from_secs(wait))),
            ..Pace::new(Duration::from_secs(wait), Duration::from_secs(interval))
        },
    );
    let steps = prop::collection::vec(step, 1..14);
    let is_muted = prop::bool::weighted(0.2);
    let inhibited = prop::option::weighted(0.6, (0..6usize, 3..20usize, -250..100i64));
    let again = (prop::option::of(5..60u64), prop::option::of(5..60u64));
    (pace, 0..3usize, again, is_muted, inhibited, 0..20usize, steps).prop_map(
        |(pace, receivers, again, is_muted, inhibited, turned_at, steps)| Case {
            pace,
            receivers,
            again,
            is_muted,
            inhibited,
            turned_at,
            steps,
        },
    )
}

/// The receivers that are configured.
const RECEIVERS: [&str; 2] = ["hook", "mail"];
/// The id of the route.
const ROUTE: &str = "mail.0123456789ab";

/// A step of escalation to the second receiver after so many seconds.
fn escalation(after: u64) -> Escalation {
    Escalation { after: Duration::from_secs(after), receivers: vec![RECEIVERS[1].to_owned()] }
}

/// Muted between these minutes after midnight, which is the begin of each case.
fn muted(from: i16, to: i16) -> RouteTimes {
    let time = TimeInterval {
        name: "mute".to_owned(),
        times: vec![Minutes { from, to }],
        weekdays: vec![],
        days_of_month: vec![],
        months: vec![],
        years: vec![],
        zone: zone("UTC").unwrap(),
    };
    RouteTimes { mute: vec![Arc::new(time)], active: vec![] }
}

impl Case {
    /// The root has the first receivers and later the others; a route has one of them and a pace of its own.
    fn destinations(&self, step: usize) -> Destinations {
        let (first, others) = RECEIVERS.split_at(self.receivers);
        let named = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        let receivers = named(if step < self.turned_at { first } else { others });
        let root = Destination::new(receivers, self.pace).with(FollowUps {
            repeat: self.again.0.map(Duration::from_secs),
            escalate: self.again.1.into_iter().map(escalation).collect(),
        });
        let pace = Pace { wait: self.pace.interval, interval: self.pace.wait, ..self.pace };
        let route = Destination::new(named(&RECEIVERS[1..]), pace);
        let to = Destinations::new(root, named(first), [(ROUTE.to_owned(), route)].into());
        let times = self.is_muted.then(|| (String::new(), muted(1, 2)));
        let to = to.with_receivers(named(&RECEIVERS)).with_times(times.into_iter().collect());
        to.with_inhibitors(Arc::new(self.inhibitors(step)))
    }

    fn inhibitors(&self, step: usize) -> Inhibitors {
        let Some((_, to, ended)) = self.inhibited.filter(|(from, ..)| *from <= step) else {
            return Inhibitors::default();
        };
        let [source, target] = ["kind=gate", "unit=~\"unit-[12]\""].map(|text| parse_matchers(text).unwrap());
        let rule = InhibitRule { source, target, equal: Vec::new() };
        let inhibition = Inhibition { rules: [rule].into(), longest: Duration::from_secs(280) };
        let open = OfflineRecord::open("gate:1".parse().unwrap(), at(-600), at(-300), at(-300));
        let back_at = (to <= step).then(|| at(ended));
        Inhibitors::new(inhibition, [&OfflineRecord { back_at, ..open }])
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(BEGIN + seconds * 1000)
}

impl JoinedEvent {
    fn join(&self) -> Join {
        let (site, event) = match self {
            JoinedEvent::Record { unit, detected, closed, is_moved } => {
                let record = record(*unit, *detected, *closed);
                (Some((unit + u8::from(*is_moved)) % 2), OutboxEvent::Record(record))
            }
            JoinedEvent::Blind { from, is_over } => {
                let from = at(i64::from(*from));
                let to = if *is_over { from + Duration::from_secs(9) } else { Timestamp::NEVER };
                (None, OutboxEvent::Blind(Interval { from, to }))
            }
        };
        let labels = |site: u8| {
            let labels = [("kind", "detector".to_owned()), ("site", site.to_string())];
            Labels::from(labels.map(|(name, value)| (name.to_owned(), value)))
        };
        let key = |site: u8| format!("kind=detector,site={site}");
        let of_root = |site: u8| Group { key: key(site), labels: labels(site) };
        let of_route = |site: u8| Group { key: format!("{ROUTE}/{}", key(site)), labels: labels(site) };
        let groups = match (site, self) {
            (None, _) => vec![Group { key: "blind".to_owned(), labels: Labels::new() }],
            // The unit is in both, and leaves the route when it has moved.
            (Some(1), JoinedEvent::Record { unit: 3, .. }) => vec![of_root(1), of_route(1)],
            (Some(site), JoinedEvent::Record { unit: 2, .. }) => vec![of_route(site)],
            (Some(site), _) => vec![of_root(site)],
        };
        Join { groups, event }
    }
}

fn record(unit: u8, detected: u8, closed: Option<Closing>) -> OfflineRecord {
    let name: Unit = format!("detector:unit-{unit}").parse().unwrap();
    // Every third unit may belong to a storm that is notified.
    let deadline = if unit.is_multiple_of(3) { at(i64::from(detected) * 15) } else { at(-300) };
    let (last_seen, detected_at) = (at(-600), deadline + Duration::from_secs(detected.into()));
    OfflineRecord {
        labels: Labels::from([("site".to_owned(), "\"north\"\n".to_owned())]),
        silent_from: (unit == 1).then_some(at(-599)),
        back_at: closed.map(|_| detected_at + Duration::from_secs(60)),
        cause: if unit == 2 { Cause::NeverSeen } else { Cause::Silence },
        closed_by: closed,
        ..OfflineRecord::open(name, last_seen, deadline, detected_at)
    }
}

/// Deliveries as they are compared: the number of the attempt is no matter of groups.
fn in_order(mut deliveries: Vec<Delivery>) -> Vec<Delivery> {
    deliveries.iter_mut().for_each(|delivery| delivery.attempt = 0);
    deliveries.sort_by(|a, b| (&a.receiver, &a.group.key, &a.id).cmp(&(&b.receiver, &b.group.key, &b.id)));
    deliveries
}

/// The outcome of a step: the number of sealed members, the next group that is due, and that is looked
/// at again, and the leased deliveries.
type Outcome = (usize, [Option<Timestamp>; 2], Vec<Delivery>);

async fn take(engine: &Arc<dyn Engine>, case: &Case, number: usize, now: Timestamp) -> Outcome {
    let (step, destinations) = (&case.steps[number], case.destinations(number).at(now));
    let partitions: Vec<u16> = (0..PARTITIONS).collect();
    let mut leased = Vec::new();
    let sealed = match &step.action {
        Action::Join(events, has_room) => {
            let joins: Vec<Join> = events.iter().map(JoinedEvent::join).collect();
            let most = if *has_room { vec![1; RECEIVERS.len()] } else { Vec::new() };
            let capacity = Capacity { most, until: now };
            engine.join(&joins, &destinations, &capacity, now).await.unwrap().sealed
        }
        Action::Seal => engine.seal(&partitions, &destinations, now).await.unwrap(),
        Action::Remind => engine.remind(&partitions, &destinations, now).await.unwrap(),
        Action::Lease(delivered) => {
            for receiver in RECEIVERS {
                let until = now + Duration::from_millis(1);
                let found = StoredDeliveries::new(engine.clone())
                    .lease(&partitions, receiver, now, until, 100)
                    .await
                    .unwrap();
                let found = in_order(found);
                let ended = found.iter().zip(delivered).filter(|(_, is)| **is).map(|(one, _)| one.clone());
                StoredDeliveries::new(engine.clone())
                    .delivered(&ended.collect::<Vec<_>>(), now)
                    .await
                    .unwrap();
                leased.extend(found);
            }
            0
        }
    };
    let first = [engine.first_seal(&partitions).await, engine.first_reminder(&partitions).await];
    (sealed, first.map(Result::unwrap), leased)
}

#[test]
fn groups_are_joined_sealed_and_leased_alike_on_both_engines() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = Redis::start();
    let number = std::sync::atomic::AtomicUsize::new(0);
    let mut runner = TestRunner::new(Config { cases: 96, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&case(), |case| {
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let engines = engines(&redis, number, &dir).await;
            let mut now = at(0);
            for (n, step) in case.steps.iter().enumerate() {
                now = now + Duration::from_millis(step.after);
                let [by_scripts, by_rules] =
                    [take(&engines[0], &case, n, now).await, take(&engines[1], &case, n, now).await];
                prop_assert_eq!(by_scripts, by_rules, "step {}: {:?} at {}", n, step, now);
            }
            Ok::<(), TestCaseError>(())
        })
    });
    tried.unwrap();
}
