//! Groups of several routes: each has its receivers and its pace, and a record may be in several.

use std::collections::HashMap;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Closing, OfflineRecord};
use rollcall::store::{
    Capacity, Destination, Destinations, Group, Join, JoinResult, OutboxEvent, Pace, partition_of_group,
};

use super::alerts::{back, delivered_to, offline};
use super::ground::Ground;
use super::world::World;

const AT_ONCE: Pace = Pace::AT_ONCE;
const MINUTE: Duration = Duration::from_secs(60);
/// Keys of groups of routes to these receivers.
const TO_HOOK: &str = "hook.0123456789ab/kind=detector";
const TO_MAIL: &str = "mail.ba9876543210/site=north";

fn destination(receivers: &[&str], pace: Pace) -> Destination {
    Destination::new(receivers.iter().map(|name| (*name).to_owned()).collect(), pace)
}

/// The root, and routes with these ids.
fn routes(root: Destination, routes: &[(&str, Destination)]) -> Destinations {
    let routes: HashMap<String, Destination> =
        routes.iter().map(|(id, route)| ((*id).to_owned(), route.clone())).collect();
    let blind = root.receivers.clone();
    Destinations::new(root, blind, routes).with_receivers(["hook", "mail", "ops"].map(str::to_owned).to_vec())
}

/// The root notifies ops, and the route of each key notifies the receiver in the key.
fn both() -> Destinations {
    let id = |key: &'static str| key.split_once('/').unwrap().0;
    let [hook, mail] = [destination(&["hook"], AT_ONCE), destination(&["mail"], AT_ONCE)];
    routes(destination(&["ops"], AT_ONCE), &[(id(TO_HOOK), hook), (id(TO_MAIL), mail)])
}

fn group(key: &str) -> Group {
    Group { key: key.into(), labels: [("kind".into(), "detector".into())].into() }
}

async fn join<G: Ground>(
    world: &World<G>,
    records: &[(&[&str], &OfflineRecord)],
    to: &Destinations,
    now: Timestamp,
) -> JoinResult {
    let join = |(keys, record): &(&[&str], &OfflineRecord)| Join {
        groups: keys.iter().map(|key| group(key)).collect(),
        event: OutboxEvent::Record((*record).clone()),
    };
    let joins: Vec<Join> = records.iter().map(join).collect();
    world.groups().join(&joins, to, &Capacity::NONE, now).await.unwrap()
}

async fn seal<G: Ground>(world: &World<G>, to: &Destinations, now: Timestamp) {
    while world.groups().seal(&world.partitions(), to, now).await.unwrap() > 0 {}
}

/// The notifications of a receiver: the key of the group, the units that are offline, and the units that are back.
async fn notified<G: Ground>(world: &World<G>, receiver: &str, now: Timestamp) -> Vec<String> {
    let line = |records: &[OfflineRecord]| {
        let mut units: Vec<&str> = records.iter().map(|record| record.unit.as_str()).collect();
        units.sort_unstable();
        units.join(" ")
    };
    let mut deliveries = delivered_to(world, receiver, now).await;
    // A delivery without content for this receiver ends when it is leased.
    deliveries.extend(delivered_to(world, receiver, now).await);
    let mut lines: Vec<String> = deliveries
        .iter()
        .map(|one| format!("{}: [{}] [{}]", one.group.key, line(&one.offline), line(&one.online)))
        .collect();
    lines.sort();
    let backlog = world.deliveries().backlog(&world.partitions(), receiver).await.unwrap();
    assert_eq!(backlog, Default::default(), "{receiver}");
    lines
}

pub async fn promise_05_a_return_goes_to_the_receivers_that_its_group_has_no_more<G: Ground>(
    world: World<G>,
) {
    let before = routes(destination(&["hook", "ops"], AT_ONCE), &[]);
    let after = routes(destination(&["mail", "ops"], AT_ONCE), &[]);
    let [a, b, c] = ["a", "b", "c"].map(|name| offline(&world.unit(name), world.at(0)));
    let fresh = offline(&world.unit("fresh"), world.at(0));
    let key: &[&str] = &["kind=detector"];
    join(&world, &[(key, &a), (key, &b)], &before, world.at(1)).await;
    seal(&world, &before, world.at(1)).await;
    join(&world, &[(key, &c)], &before, world.at(2)).await;
    for receiver in ["hook", "ops"] {
        let lines = notified(&world, receiver, world.at(3)).await;
        assert_eq!(lines, ["kind=detector: [a b] []", "kind=detector: [c] []"], "{receiver}");
    }
    let on = |record: &OfflineRecord| back(record, Closing::Return);
    // The return of c is sealed as it joins, the other returns beside a silence.
    join(&world, &[(key, &on(&c))], &after, world.at(4)).await;
    join(&world, &[(key, &on(&a)), (key, &fresh), (key, &on(&b))], &after, world.at(5)).await;
    seal(&world, &after, world.at(5)).await;
    assert_eq!(
        notified(&world, "hook", world.at(6)).await,
        ["kind=detector: [] [a b]", "kind=detector: [] [c]"]
    );
    assert_eq!(
        notified(&world, "ops", world.at(6)).await,
        ["kind=detector: [] [c]", "kind=detector: [fresh] [a b]"]
    );
    assert_eq!(notified(&world, "mail", world.at(6)).await, ["kind=detector: [fresh] []"]);
    // This holds also if the group has no receiver any more, and only once.
    let nobody = routes(destination(&[], AT_ONCE), &[]);
    join(&world, &[(key, &on(&fresh)), (key, &on(&a))], &nobody, world.at(7)).await;
    seal(&world, &nobody, world.at(7)).await;
    assert_eq!(notified(&world, "hook", world.at(8)).await, Vec::<String>::new());
    for receiver in ["mail", "ops"] {
        assert_eq!(
            notified(&world, receiver, world.at(8)).await,
            ["kind=detector: [] [fresh]"],
            "{receiver}"
        );
    }
}

pub async fn a_record_of_several_routes_is_notified_in_the_group_of_each<G: Ground>(world: World<G>) {
    let to = both();
    let [a, b] = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let groups: &[&str] = &[TO_HOOK, TO_MAIL];
    join(&world, &[(groups, &a), (groups, &b)], &to, world.at(1)).await;
    // The records join again, as after a crash, and by other routes.
    join(&world, &[(groups, &a), (&["all"], &b)], &to, world.at(2)).await;
    seal(&world, &to, world.at(2)).await;
    assert_eq!(notified(&world, "hook", world.at(3)).await, [format!("{TO_HOOK}: [a b] []")]);
    assert_eq!(notified(&world, "mail", world.at(3)).await, [format!("{TO_MAIL}: [a b] []")]);
    let on = |record: &OfflineRecord| back(record, Closing::Return);
    join(&world, &[(&["all"], &on(&a)), (&[TO_MAIL], &on(&b))], &to, world.at(4)).await;
    seal(&world, &to, world.at(4)).await;
    assert_eq!(notified(&world, "hook", world.at(5)).await, [format!("{TO_HOOK}: [] [a b]")]);
    assert_eq!(notified(&world, "mail", world.at(5)).await, [format!("{TO_MAIL}: [] [a b]")]);
    assert_eq!(notified(&world, "ops", world.at(5)).await, Vec::<String>::new());
    // A return that comes first cancels the silence in every group.
    let gone = offline(&world.unit("gone"), world.at(0));
    join(&world, &[(groups, &on(&gone)), (groups, &gone)], &to, world.at(6)).await;
    seal(&world, &to, world.at(6)).await;
    for receiver in ["hook", "mail", "ops"] {
        assert_eq!(notified(&world, receiver, world.at(7)).await, Vec::<String>::new(), "{receiver}");
    }
}

pub async fn each_route_has_a_pace_of_its_own<G: Ground>(world: World<G>) {
    let slow = Pace::new(MINUTE, MINUTE);
    let id = |key: &'static str| key.split_once('/').unwrap().0;
    let [hook, mail] = [destination(&["hook"], AT_ONCE), destination(&["mail"], slow)];
    let to = routes(destination(&[], AT_ONCE), &[(id(TO_HOOK), hook), (id(TO_MAIL), mail)]);
    let a = offline(&world.unit("a"), world.at(0));
    let now = world.at(1000);
    join(&world, &[(&[TO_HOOK, TO_MAIL], &a)], &to, now).await;
    seal(&world, &to, now).await;
    assert_eq!(notified(&world, "hook", now).await, [format!("{TO_HOOK}: [a] []")]);
    assert_eq!(notified(&world, "mail", now).await, Vec::<String>::new());
    // Unit a is back within the wait of the other route: only the first route notifies of its silence and its return.
    join(&world, &[(&["all"], &back(&a, Closing::Return))], &to, now + MINUTE / 2).await;
    seal(&world, &to, now + 3 * MINUTE).await;
    assert_eq!(notified(&world, "hook", now + 3 * MINUTE).await, [format!("{TO_HOOK}: [] [a]")]);
    assert_eq!(notified(&world, "mail", now + 3 * MINUTE).await, Vec::<String>::new());
}

pub async fn a_group_of_a_route_that_is_gone_is_notified_all_the_same<G: Ground>(world: World<G>) {
    let waits = Pace::new(MINUTE, AT_ONCE.interval);
    let id = |key: &'static str| key.split_once('/').unwrap().0;
    let [hook, mail] = [destination(&["hook"], waits), destination(&["mail"], waits)];
    let to = routes(destination(&["ops"], waits), &[(id(TO_HOOK), hook), (id(TO_MAIL), mail)]);
    let lost = "gone.111111111111/kind=detector";
    let records = ["a", "b", "c"].map(|name| offline(&world.unit(name), world.at(0)));
    let now = world.at(1000);
    let keys: [&[&str]; 3] = [&[TO_HOOK], &[TO_MAIL], &[lost]];
    let all: Vec<(&[&str], &OfflineRecord)> = keys.into_iter().zip(&records).collect();
    join(&world, &all, &to, now).await;
    let after = routes(destination(&["ops"], waits), &[]);
    seal(&world, &after, now + 2 * MINUTE).await;
    let later = now + 3 * MINUTE;
    assert_eq!(notified(&world, "hook", later).await, [format!("{TO_HOOK}: [a] []")]);
    assert_eq!(notified(&world, "mail", later).await, [format!("{TO_MAIL}: [b] []")]);
    assert_eq!(notified(&world, "ops", later).await, [format!("{lost}: [c] []")]);
}

pub async fn joining_hands_out_silences_of_several_routes_up_to_the_room_of_each_receiver<G: Ground>(
    world: World<G>,
) {
    let to = both();
    let records: Vec<OfflineRecord> = world.units(12).iter().map(|unit| offline(unit, world.at(0))).collect();
    let joins = records.iter().map(|record| Join {
        groups: ["hook.0123456789ab", "mail.ba9876543210"]
            .iter()
            .map(|id| group(&format!("{id}/unit={}", record.unit)))
            .collect(),
        event: OutboxEvent::Record(record.clone()),
    });
    let joins: Vec<Join> = joins.collect();
    let now = world.at(1);
    // The room is given in the order of the receivers: hook, mail, ops.
    let room = Capacity { most: vec![5, 1, 9], until: now + MINUTE };
    let joined = world.groups().join(&joins, &to, &room, now).await.unwrap();
    assert_eq!(joined.sealed, 24);
    assert!(joined.has_queued);
    let handed = |name: &str| joined.deliveries.iter().filter(|one| one.receiver == name).count();
    assert!(handed("hook") <= 5 && handed("mail") <= 1 && handed("ops") == 0, "{:?}", joined.deliveries);
    world.deliveries().delivered(&joined.deliveries, now).await.unwrap();
    for receiver in ["hook", "mail"] {
        let rest = notified(&world, receiver, now + MINUTE).await;
        assert_eq!(rest.len() + handed(receiver), 12, "{receiver}");
    }
    let key = &joins[0].groups[0].key;
    assert!(world.partitions().contains(&partition_of_group(key, world.engine.partitions())));
}

pub async fn a_receiver_of_two_routes_is_notified_by_one_where_the_other_gave_up<G: Ground>(world: World<G>) {
    let ids = ["hook.0123456789ab", "hook.ba9876543210"];
    let hook = destination(&["hook"], AT_ONCE);
    let to = routes(destination(&[], AT_ONCE), &[(ids[0], hook.clone()), (ids[1], hook)]);
    // Both groups are in one partition.
    let partition = |key: &String| partition_of_group(key, world.engine.partitions());
    let first = format!("{}/unit=0", ids[0]);
    let second = (0..).map(|n| format!("{}/unit={n}", ids[1]));
    let second = second.into_iter().find(|key| partition(key) == partition(&first)).unwrap();
    let groups: &[&str] = &[&first, &second];
    let a = offline(&world.unit("a"), world.at(0));
    join(&world, &[(groups, &a)], &to, world.at(1)).await;
    seal(&world, &to, world.at(1)).await;
    let now = world.at(2);
    let leased = world.deliveries().lease(&world.partitions(), "hook", now, now + MINUTE, 100).await.unwrap();
    assert_eq!(leased.len(), 2);
    for one in &leased {
        match one.group.key == first {
            true => world.deliveries().dead_letter(one, "410", now).await.unwrap(),
            false => world.deliveries().delivered(std::slice::from_ref(one), now).await.unwrap(),
        }
    }
    join(&world, &[(groups, &back(&a, Closing::Return))], &to, world.at(3)).await;
    seal(&world, &to, world.at(3)).await;
    let deliveries = delivered_to(&world, "hook", world.at(4)).await;
    let rest = delivered_to(&world, "hook", world.at(4)).await;
    let keys: Vec<&String> = deliveries.iter().chain(&rest).map(|one| &one.group.key).collect();
    assert_eq!(keys, [&second]);
}
