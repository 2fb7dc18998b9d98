//! Generated cases of deliveries: which notifications wait, which of them are leased, and what becomes of the leases.

use std::time::Duration;

use proptest::prelude::*;
use rollcall::clock::Timestamp;
use rollcall::presence::{Closing, FirstUnit, Guarantee, Incident, Labels, OfflineRecord, TimerClass, Unit};
use rollcall::routing::{Destination, Destinations, Escalation, FollowUps};
use rollcall::store::{Delivery, Group, Join, OutboxEvent, Pace, TimerClasses};

pub const RECEIVERS: [&str; 4] = ["hook", "mail_of-ops", "boss", "spare"];
/// The first group waits as a group of units may; the second belongs to a route of its own, the others have odd
/// values.
pub const GROUPS: [&str; 4] = ["site=1", "mail.0123456789ab/site=1", "site=a b,%d+ [x]", "site=Köln \"☃\"\\"];
/// How long attempts and timers are kept.
pub const KEEP: Duration = Duration::from_secs(30);
pub const TIMERS: u8 = 3;
/// No engine gives a notification such an id.
const ODD_IDS: [&str; 5] = ["ntf_%a+", "", "a b", "ü\n'", "ntf_000000000000000000000000"];
/// How many of the last deliveries a step can choose from.
const LAST: usize = 12;

#[derive(Clone, Debug)]
pub struct Case {
    pub is_shared: bool,
    /// Whether records are opened again; otherwise days pass. Redis forgets the groups of a record a day after its
    /// first silence.
    pub reopens: bool,
    /// Whether the caller takes deliveries along as events join.
    pub takes: bool,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// The time since the previous step (s; `None`: more than a day), and how many seconds the clock of the caller is
    /// behind.
    pub after: Option<u64>,
    pub back: u64,
    pub action: Action,
}

#[derive(Clone, Debug)]
pub enum Action {
    Join(Vec<Event>),
    Seal,
    Remind,
    /// A timer is registered and fires.
    Fire(u8),
    /// Leases deliveries of a receiver: the partition or all, how many, and for how long (s).
    Lease(usize, Option<u16>, usize, u64),
    /// Leases everything that is due for a receiver, and delivers it.
    Deliver(usize),
    Extend(Vec<Pick>, u64),
    End(Vec<(Pick, Outcome)>),
    /// The last one of a timer that is delivered at most once comes first.
    BeginOnly(Vec<Pick>),
    GiveUpOnly(u64),
    /// Falls back to the second receiver, in a partition or in all.
    FallBack(usize, usize, Option<u16>),
    Down(usize),
    Up(usize),
    Replay(Pick),
    ReplayLetter(usize),
    /// Gives up the delivery, and replays it at once.
    GiveUpAndReplay(Pick),
    Purge(Vec<usize>),
    Discard(usize),
    /// Configures exactly these receivers.
    Enlist(Vec<usize>),
    BringUpToDate(usize),
    /// How many incidents it tells of; `None`: what it tells of is read.
    Judge(Pick, Option<usize>),
}

/// A record of a unit that joins these groups.
#[derive(Clone, Debug)]
pub struct Event {
    pub unit: u8,
    pub detected: u8,
    pub closed: Option<Closing>,
    pub groups: Vec<usize>,
}

/// A choice of one of the last deliveries, or of a delivery like it.
#[derive(Clone, Debug)]
pub struct Pick {
    place: usize,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    Same,
    /// The delivery with the attempt of another owner.
    Attempt(u32),
    /// The delivery with an odd id.
    Id(usize),
    Receiver(usize),
}

#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    Delivered,
    /// Retry after this many seconds, or before.
    RetryAfter(i64),
    Dead,
    /// Delivered or dead, without an attempt.
    Unattempted(bool),
}

impl Pick {
    pub fn of(&self, known: &[Delivery]) -> Delivery {
        let place = known.len().saturating_sub(1 + self.place % LAST);
        let mut delivery = known.get(place).cloned().unwrap_or_else(unknown);
        let id = delivery.notification().to_owned();
        match self.change {
            Change::Same => {}
            Change::Attempt(attempt) => delivery.attempt = attempt,
            Change::Id(odd) => delivery.id = format!("{}.{}", ODD_IDS[odd], delivery.receiver),
            Change::Receiver(other) => {
                delivery.receiver = RECEIVERS[other].to_owned();
                delivery.id = format!("{id}.{}", RECEIVERS[other]);
            }
        }
        delivery
    }

    /// Whether an engine may have made this delivery.
    pub fn is_plausible(&self) -> bool {
        !matches!(self.change, Change::Id(_))
    }
}

/// A delivery that no engine has.
fn unknown() -> Delivery {
    Delivery {
        offline: vec![record(0, 0, None)],
        ..Delivery::new(format!("ntf_unknown.{}", RECEIVERS[0]), RECEIVERS[0], group(2), at(0))
    }
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_732_147_200_000 + seconds * 1000)
}

fn group(number: usize) -> Group {
    let labels = [("kind", "detector".to_owned()), ("site", number.to_string())];
    let labels = Labels::from(labels.map(|(name, value)| (name.to_owned(), value)));
    Group { key: GROUPS[number].to_owned(), labels }
}

pub fn record(unit: u8, detected: u8, closed: Option<Closing>) -> OfflineRecord {
    let name = if unit == 3 { "detector:ü %d, [x] -" } else { &format!("detector:unit-{unit}") };
    let name: Unit = name.parse().unwrap();
    let detected_at = at(-300) + Duration::from_secs(detected.into());
    OfflineRecord {
        labels: Labels::from([("site".to_owned(), "\"north\",\"incident\":[".to_owned())]),
        back_at: closed.map(|_| detected_at + Duration::from_secs(60)),
        closed_by: closed,
        ..OfflineRecord::open(name, at(-600), at(-300), detected_at)
    }
}

impl Step {
    pub fn after(&self, case: &Case) -> Duration {
        Duration::from_secs(self.after.unwrap_or(if case.reopens { 60 } else { 90_000 }))
    }
}

impl Case {
    pub fn join(&self, event: &Event) -> Join {
        let groups = event.groups.iter().map(|number| group(*number)).collect();
        let detected = if self.reopens { event.detected } else { 0 };
        Join { groups, event: OutboxEvent::Record(record(event.unit, detected, event.closed)) }
    }

    pub fn destinations(&self) -> Destinations {
        let named = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        let pace = Pace { is_shared: self.is_shared, ..Pace::AT_ONCE };
        let step = Escalation { after: Duration::from_secs(40), receivers: named(&RECEIVERS[2..3]) };
        let again = FollowUps { repeat: Some(Duration::from_secs(20)), escalate: vec![step] };
        let root = Destination::new(named(&RECEIVERS[..2]), pace);
        let root = if self.takes { root } else { root.with(again) };
        let route = Destination::new(named(&RECEIVERS[1..2]), Pace::AT_ONCE);
        let routes = [("mail.0123456789ab".to_owned(), route)].into();
        Destinations::new(root, Vec::new(), routes).with_receivers(named(&RECEIVERS))
    }
}

pub fn incident(place: u64) -> Incident {
    Incident {
        label: "site".to_owned(),
        value: "a \"hall\" 3\n".to_owned(),
        offline: place,
        units: 9,
        since: at(0),
        first: FirstUnit { kind: "gateway".to_owned(), unit: "gw 7".to_owned() },
        still_offline: 7,
        until: None,
        notified_from: None,
        acknowledged_at: None,
    }
}

/// The type of a timer: timers with an even number are delivered at most once.
pub fn timer_type(timer: u8) -> &'static str {
    if timer.is_multiple_of(2) { "once" } else { "report" }
}

pub fn classes() -> TimerClasses {
    let class = |name: &str, receivers: usize, guarantee| TimerClass {
        timer_type: name.parse().unwrap(),
        receivers: RECEIVERS[..receivers].iter().map(|name| (*name).to_owned()).collect(),
        guarantee,
        keep: KEEP,
        most: 1000,
    };
    let all = [class("once", 1, Guarantee::AtMostOnce), class("report", 2, Guarantee::AtLeastOnce)];
    all.into_iter().map(|class| (class.timer_type.clone(), class)).collect()
}

fn events() -> impl Strategy<Value = Event> {
    let closed = prop_oneof![
        4 => Just(None),
        3 => Just(Some(Closing::Return)),
        1 => Just(Some(Closing::Removed)),
    ];
    let groups = prop_oneof![
        4 => (0..GROUPS.len()).prop_map(|one| vec![one]),
        1 => Just(vec![0, 1]),
    ];
    (0..5u8, 0..2u8, closed, groups).prop_map(|(unit, detected, closed, groups)| Event {
        unit,
        detected,
        closed,
        groups,
    })
}

fn picks() -> impl Strategy<Value = Pick> {
    let change = prop_oneof![
        10 => Just(Change::Same),
        2 => (0..4u32).prop_map(Change::Attempt),
        1 => (0..ODD_IDS.len()).prop_map(Change::Id),
        1 => (0..RECEIVERS.len()).prop_map(Change::Receiver),
    ];
    (0..LAST, change).prop_map(|(place, change)| Pick { place, change })
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Delivered),
        3 => (-10..40i64).prop_map(Outcome::RetryAfter),
        3 => Just(Outcome::Dead),
        1 => any::<bool>().prop_map(Outcome::Unattempted),
    ]
}

fn lease() -> impl Strategy<Value = Action> {
    let whole = (Just(None), Just(1000usize));
    let part = ((0..2u16).prop_map(Some), 0..4usize);
    (0..RECEIVERS.len(), prop_oneof![3 => whole.boxed(), 2 => part.boxed()], 10..40u64)
        .prop_map(|(receiver, (part, limit), seconds)| Action::Lease(receiver, part, limit, seconds))
}

fn actions() -> impl Strategy<Value = Action> {
    let receiver = || 0..RECEIVERS.len();
    let part = || prop_oneof![3 => Just(None), 1 => (0..2u16).prop_map(Some)];
    let some = || prop::collection::vec(picks(), 0..6);
    let places = || prop::collection::vec(0..LAST, 0..4);
    prop_oneof![
        12 => prop::collection::vec(events(), 0..4).prop_map(Action::Join),
        3 => Just(Action::Seal),
        6 => Just(Action::Remind),
        4 => (0..TIMERS).prop_map(Action::Fire),
        14 => lease(),
        8 => (0..2usize).prop_map(Action::Deliver),
        4 => (some(), 10..40u64).prop_map(|(picks, seconds)| Action::Extend(picks, seconds)),
        12 => prop::collection::vec((picks(), outcomes()), 0..6).prop_map(Action::End),
        4 => some().prop_map(Action::BeginOnly),
        3 => (0..30u64).prop_map(Action::GiveUpOnly),
        9 => (0..2usize, 2..4usize, part()).prop_map(|(from, to, part)| Action::FallBack(from, to, part)),
        1 => receiver().prop_map(Action::Down),
        1 => receiver().prop_map(Action::Up),
        2 => picks().prop_map(Action::Replay),
        4 => (0..LAST).prop_map(Action::ReplayLetter),
        6 => picks().prop_map(Action::GiveUpAndReplay),
        1 => places().prop_map(Action::Purge),
        1 => receiver().prop_map(Action::Discard),
        1 => prop::collection::vec(receiver(), 0..4).prop_map(Action::Enlist),
        1 => receiver().prop_map(Action::BringUpToDate),
        5 => (picks(), prop::option::weighted(0.8, 0..3usize))
            .prop_map(|(pick, told)| Action::Judge(pick, told)),
    ]
}

pub fn case(takes: bool) -> impl Strategy<Value = Case> {
    let after = prop_oneof![20 => (0..4u64).prop_map(|fives| Some(5 * fives)), 1 => Just(None)];
    let back = prop_oneof![6 => Just(0u64), 1 => 1..10u64];
    let step = (after, back, actions()).prop_map(|(after, back, action)| Step { after, back, action });
    let steps = prop::collection::vec(step, 1..70);
    (any::<bool>(), any::<bool>(), steps).prop_map(move |(is_shared, reopens, steps)| Case {
        is_shared: is_shared && !takes,
        reopens,
        takes,
        steps,
    })
}
