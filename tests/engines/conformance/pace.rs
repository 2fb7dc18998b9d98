//! When the groups of a route are notified: units that share a group, silences that must last, returns.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::fleet::{Subject, UnitChange};
use rollcall::presence::{Acknowledgement, Closing, OfflineRecord, Recoveries};
use rollcall::routing::{Minutes, RouteTimes, TimeInterval, zone};
use rollcall::store::{
    Capacity, Delivery, Destination, Destinations, Escalation, FollowUps, Group, Join, Membership,
    OutboxEvent, Pace,
};

use super::alerts::{back, delivered_to, offline};
use super::ground::Ground;
use super::silences::{change, silences, wanted};
use super::world::World;

/// A pace of groups that units share.
const SHARED: Pace = Pace { is_shared: true, ..Pace::new(Duration::from_secs(10), Duration::from_secs(300)) };
const WITHOUT_WAIT: Pace = Pace { wait: Duration::ZERO, ..SHARED };

fn to(pace: Pace) -> Destinations {
    Destinations::all(pace, &["hook".to_owned()])
}

impl<G: Ground> World<G> {
    async fn joins(&self, records: &[&OfflineRecord], pace: Pace, now: Timestamp) {
        let join = |record: &&OfflineRecord| Join {
            groups: vec![Group { key: "site=north".into(), labels: Default::default() }],
            event: OutboxEvent::Record((*record).clone()),
        };
        let joins: Vec<Join> = records.iter().map(join).collect();
        self.groups().join(&joins, &to(pace), &Capacity::NONE, now).await.unwrap();
    }

    /// Seals what is due, and delivers it: `off:` or `on:` and the units of each notification.
    async fn sealed_at(&self, pace: Pace, now: Timestamp) -> Vec<String> {
        while self.groups().seal(&self.partitions(), &to(pace), now).await.unwrap() > 0 {}
        delivered_to(self, "hook", now).await.iter().map(line).collect()
    }

    async fn due_at(&self) -> Option<Timestamp> {
        self.groups().first_seal(&self.partitions()).await.unwrap()
    }
}

pub(super) fn line(delivery: &Delivery) -> String {
    let names = |records: &[OfflineRecord]| {
        let mut names: Vec<&str> = records.iter().map(|record| record.unit.as_str()).collect();
        names.sort_unstable();
        names.join(" ")
    };
    format!("off: {}, on: {}", names(&delivery.offline), names(&delivery.online))
}

pub(super) fn returned(record: &OfflineRecord) -> OfflineRecord {
    back(record, Closing::Return)
}

pub async fn silences_within_a_second_of_the_first_are_in_the_first_notification<G: Ground>(world: World<G>) {
    let names = ["a", "b", "c", "d"];
    let [a, b, c, d] = names.map(|name| offline(&world.unit(name), world.at(0)));
    world.joins(&[&a], WITHOUT_WAIT, world.at(5000)).await;
    assert_eq!(world.due_at().await, Some(world.at(6000)), "it gathers for a second");
    world.joins(&[&b], WITHOUT_WAIT, world.at(5999)).await;
    assert_eq!(world.sealed_at(WITHOUT_WAIT, world.at(5999)).await, [""; 0]);
    // Unit c is back within the second, and is never notified.
    world.joins(&[&c], WITHOUT_WAIT, world.at(5100)).await;
    world.joins(&[&returned(&c)], WITHOUT_WAIT, world.at(5200)).await;
    assert_eq!(world.sealed_at(WITHOUT_WAIT, world.at(6000)).await, ["off: a b, on: "]);
    world.joins(&[&d], WITHOUT_WAIT, world.at(6001)).await;
    assert_eq!(world.due_at().await, Some(world.at(306_000)), "what came since waits for the interval");
    assert_eq!(world.sealed_at(WITHOUT_WAIT, world.at(305_999)).await, [""; 0]);
    assert_eq!(world.sealed_at(WITHOUT_WAIT, world.at(306_000)).await, ["off: d, on: "]);
    assert_eq!(world.due_at().await, None);
}

pub async fn a_silence_that_joins_while_its_group_is_sealed_follows_at_once<G: Ground>(world: World<G>) {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| offline(&world.unit(name), world.at(0)));
    world.joins(&[&a], WITHOUT_WAIT, world.at(5000)).await;
    // A sealing is as of the moment up to which all outboxes had joined, and others join meanwhile.
    world.joins(&[&b], WITHOUT_WAIT, world.at(6020)).await;
    world.joins(&[&c], WITHOUT_WAIT, world.at(6040)).await;
    assert_eq!(world.sealed_at(WITHOUT_WAIT, world.at(6000)).await, ["off: a, on: "]);
    assert_eq!(world.due_at().await, Some(world.at(6040)));
    assert_eq!(world.sealed_at(WITHOUT_WAIT, world.at(6040)).await, ["off: b c, on: "]);
    world.joins(&[&d], WITHOUT_WAIT, world.at(7001)).await;
    assert_eq!(world.due_at().await, Some(world.at(306_000)), "what came since waits for the interval");
}

pub async fn silences_within_a_second_are_together_whatever_the_wait<G: Ground>(world: World<G>) {
    let names = ["a", "b", "c"];
    let [a, b, c] = names.map(|name| offline(&world.unit(name), world.at(0)));
    world.joins(&[&a], SHARED, world.at(0)).await;
    world.joins(&[&b], SHARED, world.at(900)).await;
    world.joins(&[&c], SHARED, world.at(1100)).await;
    assert_eq!(world.due_at().await, Some(world.at(10_000)));
    assert_eq!(world.sealed_at(SHARED, world.at(10_000)).await, [""; 0], "the second has not waited");
    assert_eq!(world.due_at().await, Some(world.at(10_900)));
    assert_eq!(world.sealed_at(SHARED, world.at(10_900)).await, ["off: a b, on: "]);
    // The rest of a storm follows.
    assert_eq!(world.due_at().await, Some(world.at(11_100)));
    assert_eq!(world.sealed_at(SHARED, world.at(11_100)).await, ["off: c, on: "]);
    // A silence alone waits no longer than the wait.
    let alone = offline(&world.unit("alone"), world.at(0));
    world.joins(&[&alone], SHARED, world.hours(1)).await;
    let ten = world.hours(1) + Duration::from_secs(10);
    assert_eq!(world.sealed_at(SHARED, ten).await, ["off: alone, on: "]);
}

pub async fn a_group_of_one_unit_gathers_nothing<G: Ground>(world: World<G>) {
    let pace = Pace { is_shared: false, ..WITHOUT_WAIT };
    let a = offline(&world.unit("a"), world.at(0));
    world.joins(&[&a], pace, world.at(5000)).await;
    assert_eq!(world.sealed_at(pace, world.at(5000)).await, ["off: a, on: "]);
    // The return of a single silence does not wait for the interval either, which goes on.
    world.joins(&[&returned(&a)], pace, world.at(25_000)).await;
    assert_eq!(world.sealed_at(pace, world.at(25_000)).await, ["off: , on: a"]);
    let again = offline(&world.unit("a"), world.at(20_000));
    world.joins(&[&again], pace, world.at(90_000)).await;
    assert_eq!(world.due_at().await, Some(world.at(305_000)));
    assert_eq!(world.sealed_at(pace, world.at(305_000)).await, ["off: a, on: "]);
}

pub async fn promise_05_a_recovery_of_everything_waits_no_longer_than_group_wait<G: Ground>(world: World<G>) {
    let seconds = |s: u64| world.at(s * 1000);
    let names = ["a", "b", "new"];
    let [a, b, new] = names.map(|name| offline(&world.unit(name), world.at(0)));
    world.joins(&[&a, &b], SHARED, seconds(0)).await;
    assert_eq!(world.sealed_at(SHARED, seconds(10)).await, ["off: a b, on: "]);
    // One of two units is back: its return waits for the interval.
    world.joins(&[&returned(&a)], SHARED, seconds(20)).await;
    assert_eq!(world.due_at().await, Some(seconds(310)));
    world.joins(&[&new], SHARED, seconds(25)).await;
    assert_eq!(world.sealed_at(SHARED, seconds(40)).await, [""; 0]);
    // No silence that was notified lasts: both returns go out after the wait, and the silence that came since does not.
    world.joins(&[&returned(&b)], SHARED, seconds(50)).await;
    assert_eq!(world.due_at().await, Some(seconds(60)));
    assert_eq!(world.sealed_at(SHARED, seconds(59)).await, [""; 0]);
    assert_eq!(world.sealed_at(SHARED, seconds(60)).await, ["off: , on: a b"]);
    assert_eq!(world.due_at().await, Some(seconds(310)), "the interval goes on");
    assert_eq!(world.sealed_at(SHARED, seconds(310)).await, ["off: new, on: "]);
    // Joining a second time changes nothing.
    world.joins(&[&a, &returned(&a), &returned(&b)], SHARED, seconds(320)).await;
    assert_eq!(world.due_at().await, None);
}

pub async fn a_removed_unit_does_not_hold_up_the_return_of_the_others<G: Ground>(world: World<G>) {
    let seconds = |s: u64| world.at(s * 1000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    world.joins(&[&a, &b], SHARED, seconds(0)).await;
    assert_eq!(world.sealed_at(SHARED, seconds(10)).await, ["off: a b, on: "]);
    world.joins(&[&back(&a, Closing::Removed)], SHARED, seconds(20)).await;
    world.joins(&[&returned(&b)], SHARED, seconds(21)).await;
    assert_eq!(world.sealed_at(SHARED, seconds(31)).await, ["off: , on: b"]);
}

pub async fn a_silence_is_notified_only_if_it_lasts<G: Ground>(world: World<G>) {
    let minutes = |m: u64| world.at(m * 60_000);
    let pace = Pace { lasts: Duration::from_secs(1800), ..SHARED };
    let [a, b, late] = ["a", "b", "late"].map(|name| offline(&world.unit(name), world.at(0)));
    // The deadlines are a minute after the beginning.
    world.joins(&[&a, &b], pace, minutes(1)).await;
    assert_eq!(world.due_at().await, Some(minutes(31)));
    world.joins(&[&returned(&a)], pace, minutes(30)).await;
    assert_eq!(world.sealed_at(pace, minutes(30)).await, [""; 0]);
    assert_eq!(world.sealed_at(pace, minutes(31)).await, ["off: b, on: "]);
    // A silence that is found later has lasted long enough by then: it waits only for its group.
    world.joins(&[&late], pace, minutes(60)).await;
    assert_eq!(world.due_at().await, Some(minutes(60) + Duration::from_secs(10)));
    world.joins(&[&returned(&b)], pace, minutes(60)).await;
    let ten = minutes(60) + Duration::from_secs(10);
    assert_eq!(world.sealed_at(pace, ten).await, ["off: late, on: b"]);
}

pub async fn recoveries_are_notified_as_the_route_says<G: Ground>(world: World<G>) {
    let seconds = |s: u64| world.at(s * 1000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let none = Pace { recoveries: Recoveries::None, ..SHARED };
    world.joins(&[&a], none, seconds(0)).await;
    assert_eq!(world.sealed_at(none, seconds(10)).await, ["off: a, on: "]);
    world.joins(&[&returned(&a)], none, seconds(20)).await;
    assert_eq!(world.due_at().await, None);
    // A silence that was not notified is cancelled anyway.
    let c = offline(&world.unit("c"), world.at(0));
    world.joins(&[&c], none, seconds(21)).await;
    world.joins(&[&returned(&c)], none, seconds(22)).await;
    assert_eq!(world.due_at().await, None);

    let later = Pace { recoveries: Recoveries::After(Duration::from_secs(60)), ..SHARED };
    world.joins(&[&b], later, seconds(1000)).await;
    assert_eq!(world.sealed_at(later, seconds(1010)).await, ["off: b, on: "]);
    world.joins(&[&returned(&b)], later, seconds(1020)).await;
    assert_eq!(world.due_at().await, Some(seconds(1080)));
    assert_eq!(world.sealed_at(later, seconds(1079)).await, [""; 0]);
    assert_eq!(world.sealed_at(later, seconds(1080)).await, ["off: , on: b"]);
}

pub async fn a_muted_route_notifies_of_what_still_holds_when_the_mute_is_over<G: Ground>(world: World<G>) {
    // The fleet begins at 22:13:20 UTC.
    let time = TimeInterval {
        name: "evening".to_owned(),
        times: vec![Minutes { from: 22 * 60 + 20, to: 22 * 60 + 50 }],
        weekdays: vec![],
        days_of_month: vec![],
        months: vec![],
        years: vec![],
        zone: zone("UTC").unwrap(),
    };
    let times = RouteTimes { mute: vec![Arc::new(time)], active: vec![] };
    let seconds = |s: u64| world.at(s * 1000);
    let (begin, end) = (400, 2200);
    for (n, pace) in [SHARED, Pace { is_shared: false, ..WITHOUT_WAIT }].into_iter().enumerate() {
        let key = format!("unit={n}");
        let destinations = |now| {
            let to = to(pace).with_times([(String::new(), times.clone())].into());
            to.at(now)
        };
        let join = async |record: &OfflineRecord, now: Timestamp| {
            let group = Group { key: key.clone(), labels: Default::default() };
            let joins = [Join { groups: vec![group], event: OutboxEvent::Record(record.clone()) }];
            let room = Capacity { most: vec![10], until: now + Duration::from_secs(60) };
            let joined = world.groups().join(&joins, &destinations(now), &room, now).await.unwrap();
            let handed: Vec<String> = joined.deliveries.iter().map(line).collect();
            world.deliveries().delivered(&joined.deliveries, now).await.unwrap();
            handed
        };
        let notified = async |now: Timestamp| {
            while world.groups().seal(&world.partitions(), &destinations(now), now).await.unwrap() > 0 {}
            delivered_to(&world, "hook", now).await.iter().map(line).collect::<Vec<String>>()
        };
        let names = ["before", "stays", "back"];
        let [before, stays, gone] =
            names.map(|name| offline(&world.unit(&format!("{name}-{n}")), world.at(0)));
        // The group joins before the mute.
        let mut first = join(&before, seconds(0)).await;
        first.extend(notified(seconds(10)).await);
        assert_eq!(first, [format!("off: before-{n}, on: ")], "{pace:?}");
        // A group that waits when the mute begins continues to wait.
        let at_once = join(&stays, seconds(200)).await;
        assert_eq!(at_once, Vec::<String>::new(), "the interval has not passed");
        join(&gone, seconds(begin + 1)).await;
        let mut quiet = notified(seconds(begin + 300)).await;
        quiet.extend(join(&returned(&before), seconds(begin + 400)).await);
        quiet.extend(join(&returned(&gone), seconds(begin + 500)).await);
        for second in (begin..end).step_by(50) {
            quiet.extend(notified(seconds(second)).await);
        }
        assert_eq!(quiet, Vec::<String>::new(), "{pace:?}");
        let due = world.due_at().await;
        assert!(due.is_some_and(|due| due <= seconds(end)), "{due:?}");
        let after = notified(seconds(end)).await.join("; ");
        assert_eq!(after, format!("off: stays-{n}, on: before-{n}"), "{pace:?}");
        assert_eq!(world.due_at().await, None);
    }
}

/// The root with reminders every hour, and escalations to the boss after half an hour.
fn again(pace: Pace, repeat: Option<u64>, escalate: Option<u64>) -> Destinations {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let step = |after: u64| Escalation { after: minutes(after), receivers: vec!["boss".to_owned()] };
    let again = FollowUps { repeat: repeat.map(minutes), escalate: escalate.map(step).into_iter().collect() };
    let root = Destination::new(vec!["hook".to_owned()], pace).with(again);
    let receivers = ["boss", "hook"].map(str::to_owned).to_vec();
    Destinations::new(root, vec![], Default::default()).with_receivers(receivers)
}

impl<G: Ground> World<G> {
    /// Lets these records join, and seals and looks until nothing is due. Returns the notifications of each receiver.
    async fn goes_on(
        &self,
        records: &[&OfflineRecord],
        to: &Destinations,
        now: Timestamp,
    ) -> [Vec<String>; 2] {
        let join = |record: &&OfflineRecord| Join {
            groups: vec![Group {
                key: "site=north".into(),
                labels: [("site".into(), "north".into())].into(),
            }],
            event: OutboxEvent::Record((*record).clone()),
        };
        let joins: Vec<Join> = records.iter().map(join).collect();
        self.groups().join(&joins, to, &Capacity::NONE, now).await.unwrap();
        while self.groups().seal(&self.partitions(), to, now).await.unwrap() > 0 {}
        while self.groups().remind(&self.partitions(), to, now).await.unwrap() > 0 {}
        let mut notified = [Vec::new(), Vec::new()];
        for (receiver, lines) in ["hook", "boss"].into_iter().zip(&mut notified) {
            for delivery in delivered_to(self, receiver, now).await {
                assert_eq!(delivery.group.labels["site"], "north");
                let reminder = if delivery.reminder { "again " } else { "" };
                lines.push(format!("{reminder}{}", line(&delivery)));
            }
        }
        notified
    }

    async fn looks_at(&self) -> Option<Timestamp> {
        self.groups().first_reminder(&self.partitions()).await.unwrap()
    }
}

const NOTHING: [Vec<String>; 2] = [Vec::new(), Vec::new()];

fn told(hook: &[&str], boss: &[&str]) -> [Vec<String>; 2] {
    [hook, boss].map(|lines| lines.iter().map(|line| (*line).to_owned()).collect())
}

pub async fn receivers_are_reminded_while_a_silence_lasts<G: Ground>(world: World<G>) {
    let minutes = |m: u64| world.at(m * 60_000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    for pace in [Pace { interval: Duration::ZERO, ..WITHOUT_WAIT }, Pace::AT_ONCE] {
        let begin = if pace.is_shared { 0 } else { 10_000 };
        let at = |m: u64| minutes(begin + m);
        let (a, b) = match pace.is_shared {
            true => (a.clone(), b.clone()),
            false => {
                let records = ["c", "d"].map(|name| offline(&world.unit(name), world.at(0)));
                let [a, b] = records;
                (a, b)
            }
        };
        let (x, y) = (a.unit.to_string(), b.unit.to_string());
        let (x, y) = (x.split(':').next_back().unwrap(), y.split(':').next_back().unwrap());
        let to = again(pace, Some(60), None);
        world.goes_on(&[&a], &to, at(0)).await;
        let second = at(0) + Duration::from_secs(1);
        world.goes_on(&[], &to, second).await;
        let first = world.looks_at().await.expect("it is looked at again");
        assert!(first == at(60) || first == second + Duration::from_secs(3600), "{first}");
        assert_eq!(world.goes_on(&[], &to, at(59)).await, NOTHING);
        let reminded = world.goes_on(&[], &to, at(61)).await;
        assert_eq!(reminded, told(&[&format!("again off: {x}, on: ")], &[]), "{pace:?}");
        assert_eq!(world.goes_on(&[], &to, at(62)).await, NOTHING);
        // Another unit falls silent: the next reminder has both.
        world.goes_on(&[&b], &to, at(90)).await;
        world.goes_on(&[], &to, at(91)).await;
        let reminded = world.goes_on(&[], &to, at(122)).await;
        assert_eq!(reminded, told(&[&format!("again off: {x} {y}, on: ")], &[]), "{pace:?}");
        // First one unit is back, then both.
        world.goes_on(&[&returned(&a)], &to, at(130)).await;
        world.goes_on(&[], &to, at(140)).await;
        let reminded = world.goes_on(&[], &to, at(300)).await;
        assert_eq!(reminded, told(&[&format!("again off: {y}, on: ")], &[]), "{pace:?}");
        let last = world.goes_on(&[&returned(&b)], &to, at(301)).await;
        assert_eq!(last, told(&[&format!("off: , on: {y}")], &[]), "{pace:?}");
        assert_eq!(world.goes_on(&[], &to, at(1000)).await, NOTHING);
        assert_eq!(world.looks_at().await, None);
    }
}

pub async fn a_silence_that_lasts_is_notified_to_others_and_so_is_its_return<G: Ground>(world: World<G>) {
    let minutes = |m: u64| world.at(m * 60_000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let to = again(Pace::AT_ONCE, None, Some(30));
    let first = world.goes_on(&[&a], &to, minutes(0)).await;
    assert_eq!(first, told(&["off: a, on: "], &[]));
    assert_eq!(world.looks_at().await, Some(minutes(30)));
    world.goes_on(&[&b], &to, minutes(20)).await;
    assert_eq!(world.goes_on(&[], &to, minutes(29)).await, NOTHING);
    // A look that another instance makes at the same time finds nothing.
    assert_eq!(world.goes_on(&[], &to, minutes(30)).await, told(&[], &["off: a, on: "]));
    assert_eq!(world.goes_on(&[], &to, minutes(31)).await, NOTHING);
    assert_eq!(world.looks_at().await, Some(minutes(50)));
    // Unit b is back before its silence is notified to others, and its return goes to the receivers that were
    // notified.
    let back = world.goes_on(&[&returned(&b)], &to, minutes(40)).await;
    assert_eq!(back, told(&["off: , on: b"], &[]));
    assert_eq!(world.goes_on(&[], &to, minutes(50)).await, NOTHING);
    assert_eq!(world.looks_at().await, None);
    let back = world.goes_on(&[&returned(&a)], &to, minutes(60)).await;
    assert_eq!(back, told(&["off: , on: a"], &["off: , on: a"]));
}

pub async fn a_reminder_that_is_given_up_hides_no_return<G: Ground>(world: World<G>) {
    let minutes = |m: u64| world.at(m * 60_000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let to = again(Pace::AT_ONCE, Some(60), None);
    let give_up = async |now: Timestamp| {
        let until = now + Duration::from_secs(60);
        let leased = world.deliveries().lease(&world.partitions(), "hook", now, until, 10).await.unwrap();
        world.deliveries().dead_letter(&leased[0], "410 Gone", now).await.unwrap();
        leased.iter().map(line).collect::<Vec<String>>()
    };
    assert_eq!(world.goes_on(&[&a], &to, minutes(0)).await, told(&["off: a, on: "], &[]));
    assert_eq!(world.groups().remind(&world.partitions(), &to, minutes(60)).await.unwrap(), 1);
    assert_eq!(give_up(minutes(60)).await, ["off: a, on: "]);
    let back = world.goes_on(&[&returned(&a)], &to, minutes(61)).await;
    assert_eq!(back, told(&["off: , on: a"], &[]), "its receiver was notified of the silence");
    // A silence of which its receiver was not notified leads to no reminder and no return.
    let group = Group { key: "site=north".into(), labels: [("site".into(), "north".into())].into() };
    let joins = [Join { groups: vec![group], event: OutboxEvent::Record(b.clone()) }];
    world.groups().join(&joins, &to, &Capacity::NONE, minutes(200)).await.unwrap();
    assert_eq!(give_up(minutes(200)).await, ["off: b, on: "]);
    assert_eq!(world.goes_on(&[], &to, minutes(261)).await, NOTHING);
    assert_eq!(world.goes_on(&[&returned(&b)], &to, minutes(262)).await, NOTHING);
}

pub async fn a_receiver_for_which_a_notification_waits_gets_no_reminder_beside_it<G: Ground>(
    world: World<G>,
) {
    let minutes = |m: u64| world.at(m * 60_000);
    let a = offline(&world.unit("a"), world.at(0));
    let to = again(Pace::AT_ONCE, Some(60), None);
    let group = Group { key: "site=north".into(), labels: [("site".into(), "north".into())].into() };
    let joins = [Join { groups: vec![group], event: OutboxEvent::Record(a.clone()) }];
    world.groups().join(&joins, &to, &Capacity::NONE, minutes(0)).await.unwrap();
    for hours in 1..=3 {
        let reminded = world.groups().remind(&world.partitions(), &to, minutes(60 * hours)).await.unwrap();
        assert_eq!(reminded, 0, "after {hours} hours without its receiver");
    }
    let back = world.goes_on(&[], &to, minutes(181)).await;
    assert_eq!(back, told(&["off: a, on: "], &[]), "one notification waited");
    let reminded = world.goes_on(&[], &to, minutes(240)).await;
    assert_eq!(reminded, told(&["again off: a, on: "], &[]));
}

pub async fn neither_reminder_nor_escalation_is_notified_while_the_route_is_muted<G: Ground>(
    world: World<G>,
) {
    // The fleet begins at 22:13:20 UTC; the mute lasts from 22:30 to 24:00.
    let time = TimeInterval {
        name: "night".to_owned(),
        times: vec![Minutes { from: 22 * 60 + 30, to: 24 * 60 }],
        weekdays: vec![],
        days_of_month: vec![],
        months: vec![],
        years: vec![],
        zone: zone("UTC").unwrap(),
    };
    let times = RouteTimes { mute: vec![Arc::new(time)], active: vec![] };
    let a = offline(&world.unit("a"), world.at(0));
    let to = again(Pace::AT_ONCE, Some(60), Some(30)).with_times([(String::new(), times)].into());
    let minutes = |m: u64| world.at(m * 60_000);
    let first = world.goes_on(&[&a], &to.at(minutes(0)), minutes(0)).await;
    assert_eq!(first, told(&["off: a, on: "], &[]));
    for minute in 1..106 {
        assert_eq!(world.goes_on(&[], &to.at(minutes(minute)), minutes(minute)).await, NOTHING, "{minute}");
    }
    let after = world.goes_on(&[], &to.at(minutes(107)), minutes(107)).await;
    assert_eq!(after, told(&[], &["off: a, on: "]), "an escalation follows when the mute is over");
    let after = world.goes_on(&[], &to.at(minutes(120)), minutes(120)).await;
    assert_eq!(after, told(&["again off: a, on: "], &["again off: a, on: "]));
}

pub async fn neither_reminder_nor_escalation_is_notified_while_the_breaker_holds<G: Ground>(world: World<G>) {
    let minutes = |m: u64| world.at(m * 60_000);
    let a = offline(&world.unit("a"), world.at(0));
    let to = again(Pace::AT_ONCE, Some(60), Some(30));
    assert_eq!(world.goes_on(&[&a], &to, minutes(0)).await, told(&["off: a, on: "], &[]));
    for minute in 20..70 {
        let now = minutes(minute);
        let held = to.clone().with_hold(Some(now + Duration::from_secs(10)));
        assert_eq!(world.goes_on(&[], &held, now).await, NOTHING, "{minute}");
    }
    let after = world.goes_on(&[], &to, minutes(70)).await;
    assert_eq!(after, told(&[], &["off: a, on: "]), "an escalation follows when it is released");
    let after = world.goes_on(&[], &to, minutes(120)).await;
    assert_eq!(after, told(&["again off: a, on: "], &["again off: a, on: "]));
}

pub async fn each_group_of_a_record_says_which_receivers_were_notified_of_it<G: Ground>(world: World<G>) {
    let minutes = |m: u64| world.at(m * 60_000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let to = again(Pace::new(Duration::from_secs(600), Duration::ZERO), None, Some(30));
    let receivers = async || {
        let found = world.groups().memberships(&[&a, &b]).await.unwrap();
        let [of_a, of_b]: [Vec<Membership>; 2] = found.try_into().unwrap();
        assert_eq!(of_b, [], "it joined no group");
        let group = |one: Membership| {
            assert_eq!((one.group.key.as_str(), one.group.labels["site"].as_str()), ("site=north", "north"));
            one.receivers.map(|names| names.join(" "))
        };
        of_a.into_iter().map(group).collect::<Vec<_>>()
    };
    assert_eq!(receivers().await, []);
    assert_eq!(world.goes_on(&[&a], &to, minutes(0)).await, NOTHING);
    assert_eq!(receivers().await, [None], "it waits");
    assert_eq!(world.goes_on(&[], &to, minutes(10)).await, told(&["off: a, on: "], &[]));
    assert_eq!(receivers().await, [Some("hook".to_owned())]);
    assert_eq!(world.goes_on(&[], &to, minutes(40)).await, told(&[], &["off: a, on: "]));
    assert_eq!(receivers().await, [Some("hook boss".to_owned())]);
    world.goes_on(&[&returned(&a)], &to, minutes(50)).await;
    world.goes_on(&[], &to, minutes(60)).await;
    assert_eq!(receivers().await, [], "it is over");
}

pub async fn receivers_of_an_escalation_are_reminded_of_what_was_escalated<G: Ground>(world: World<G>) {
    let minutes = |m: u64| world.at(m * 60_000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let to = again(Pace::AT_ONCE, Some(60), Some(90));
    assert_eq!(world.goes_on(&[&a], &to, minutes(0)).await, told(&["off: a, on: "], &[]));
    assert_eq!(world.goes_on(&[], &to, minutes(60)).await, told(&["again off: a, on: "], &[]));
    assert_eq!(world.goes_on(&[], &to, minutes(90)).await, told(&[], &["off: a, on: "]));
    assert_eq!(world.goes_on(&[&b], &to, minutes(100)).await, told(&["off: b, on: "], &[]));
    let reminded = world.goes_on(&[], &to, minutes(120)).await;
    assert_eq!(reminded, told(&["again off: a b, on: "], &["again off: a, on: "]));
    let back = world.goes_on(&[&returned(&a)], &to, minutes(130)).await;
    assert_eq!(back, told(&["off: , on: a"], &["off: , on: a"]));
    assert_eq!(world.goes_on(&[], &to, minutes(190)).await, told(&[], &["off: b, on: "]));
    let reminded = world.goes_on(&[], &to, minutes(250)).await;
    assert_eq!(reminded, told(&["again off: b, on: "], &["again off: b, on: "]));
}

pub async fn an_archived_unit_is_neither_reminded_of_nor_escalated_and_its_return_is_notified<G: Ground>(
    world: World<G>,
) {
    let minutes = |m: u64| world.at(m * 60_000);
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let a = OfflineRecord { deadline: minutes(0), ..a };
    let b = OfflineRecord { deadline: minutes(50), ..b };
    let archive = [("detector".parse().unwrap(), Duration::from_secs(80 * 60))].into();
    let to = again(Pace::AT_ONCE, Some(60), Some(90)).with_archive(archive);
    assert_eq!(world.goes_on(&[&a], &to, minutes(51)).await, told(&["off: a, on: "], &[]));
    assert_eq!(world.goes_on(&[&b], &to, minutes(52)).await, told(&["off: b, on: "], &[]));
    let reminded = world.goes_on(&[], &to, minutes(111)).await;
    assert_eq!(reminded, told(&["again off: b, on: "], &[]), "the first one is archived");
    for minute in 130..400 {
        assert_eq!(world.goes_on(&[], &to, minutes(minute)).await, NOTHING, "{minute}");
    }
    let back = world.goes_on(&[&returned(&a)], &to, minutes(401)).await;
    assert_eq!(back, told(&["off: , on: a"], &[]));
}

pub async fn an_acknowledgement_or_an_alert_silence_stops_reminders_and_escalation<G: Ground>(
    world: World<G>,
) {
    let unit = world.unit("a");
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.check(&unit, world.hours(49)).await;
    let a = world.open_records().await.remove(0);
    let to = again(Pace::AT_ONCE, Some(60), Some(30));
    let minutes = |m: u32| world.hours(50) + m * Duration::from_secs(60);
    assert_eq!(world.goes_on(&[&a], &to, minutes(0)).await, told(&["off: a, on: "], &[]));

    let ana = Acknowledgement { at: minutes(1), author: "ana".into(), comment: "on my way".into() };
    let [acknowledge, undo] = [Some(ana), None].map(UnitChange::Acknowledge);
    let of_unit = Subject::Unit(unit.clone());
    assert!(change(&world, &of_unit, &acknowledge, minutes(1)).await);
    for minute in [30, 31, 60, 61, 119] {
        assert_eq!(world.goes_on(&[], &to, minutes(minute)).await, NOTHING, "{minute}");
    }
    assert!(change(&world, &of_unit, &undo, minutes(119)).await);
    let after = world.goes_on(&[], &to, minutes(121)).await;
    assert_eq!(after, told(&["again off: a, on: "], &["off: a, on: "]), "it was taken back");

    let works = wanted("unit=a", minutes(121), minutes(200));
    silences(&world.engine).put(None, works, "ana", minutes(121)).await.unwrap();
    let to = to.with_silences(silences(&world.engine).current().await.unwrap());
    assert_eq!(world.goes_on(&[], &to, minutes(180)).await, NOTHING);
    let after = world.goes_on(&[], &to, minutes(240)).await;
    assert_eq!(after, told(&["again off: a, on: "], &["again off: a, on: "]), "the alert silence is over");
    let back = world.goes_on(&[&returned(&a)], &to, minutes(241)).await;
    assert_eq!(back, told(&["off: , on: a"], &["off: , on: a"]));
}

pub async fn an_alert_silence_holds_what_waits_when_it_begins<G: Ground>(world: World<G>) {
    let wait = Duration::from_secs(30);
    let seconds = |s: u32| world.hours(50) + s * Duration::from_secs(1);
    let to = again(Pace::new(wait, wait), None, None);
    let [a, b, c] = ["a", "b", "c"].map(|name| offline(&world.unit(name), seconds(0) - wait * 2));
    assert_eq!(world.goes_on(&[&a, &b, &c], &to, seconds(0)).await, NOTHING);

    // The alert silence begins while the silences wait: the others are notified, and a return within it cancels its
    // silence.
    let all = silences(&world.engine);
    let id =
        all.put(None, wanted("unit=~a|b", seconds(10), seconds(3600)), "ana", seconds(10)).await.unwrap();
    let during = to.clone().with_silences(all.current().await.unwrap());
    let after = world.goes_on(&[], &during, seconds(31)).await;
    assert_eq!(after, told(&["off: c, on: "], &[]));
    assert_eq!(world.goes_on(&[&returned(&b)], &during, seconds(1200)).await, NOTHING);

    // The alert silence ends before its time.
    assert!(all.expire(id, "ana", seconds(1201)).await.unwrap());
    let ended = to.with_silences(all.current().await.unwrap());
    let after = world.goes_on(&[], &ended, seconds(1240)).await;
    assert_eq!(after, told(&["off: a, on: "], &[]));
}

pub async fn the_rest_of_a_storm_that_joins_late_follows_its_notification<G: Ground>(world: World<G>) {
    let seconds = |s: u32| world.hours(50) + s * Duration::from_secs(1);
    let pace = Pace { is_shared: true, ..Pace::new(Duration::ZERO, Duration::from_secs(300)) };
    let to = again(pace, None, None);
    let of = |name: &str, deadline| OfflineRecord { deadline, ..offline(&world.unit(name), seconds(0)) };
    let [a, b, c] = ["a", "b", "c"].map(|name| of(name, seconds(0)));
    let [later, before] = [of("later", seconds(3)), of("before", seconds(0) - Duration::from_secs(70))];
    assert_eq!(world.goes_on(&[&a], &to, seconds(1)).await, NOTHING);
    assert_eq!(world.goes_on(&[], &to, seconds(2)).await, told(&["off: a, on: "], &[]));

    // The records are written late; of the other two, one belongs to no storm, and one to another storm.
    assert_eq!(world.goes_on(&[&b, &later, &before], &to, seconds(4)).await, NOTHING);
    assert_eq!(world.goes_on(&[&c], &to, seconds(5)).await, told(&["off: b c, on: "], &[]));
    assert_eq!(world.goes_on(&[], &to, seconds(301)).await, NOTHING);
    assert_eq!(world.goes_on(&[], &to, seconds(302)).await, told(&["off: before later, on: "], &[]));
}
