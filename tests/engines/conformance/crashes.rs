//! Promises about an engine that is killed before, between and within steps.

use std::collections::HashSet;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Closing, Interval, Lifecycle, OfflineRecord, Unit};
use rollcall::store::{
    Capacity, Destinations, Gap, Group, Join, OutboxEntry, OutboxEvent, Pace, ShareMember, Subscription,
};

use super::ground::Ground;
use super::world::{HOUR, World, kept_session};

const AT_ONCE: Pace = Pace::AT_ONCE;
/// Members wait for a moment before they are sealed.
const WAITS: Pace = Pace::new(MOMENT, Duration::ZERO);
const MOMENT: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

impl<G: Ground> World<G> {
    /// The engine is killed and restarted, and so is every instance.
    pub async fn crash(&mut self) {
        self.ground.crash().await;
        (self.engine, self.roll) = self.another().await;
    }

    /// Checks every due unit, as the sweep does.
    async fn sweep(&self, now: Timestamp) {
        loop {
            let due = self.due(now).await;
            let undecided = self.roll.check_deadlines(&due, now).await.unwrap();
            if due.len() == undecided.len() {
                return;
            }
        }
    }

    async fn heard_so_far(&self) -> Timestamp {
        self.engine.hearing().await.unwrap().heard.unwrap()
    }

    async fn join_all(&self, entries: &[OutboxEntry], now: Timestamp) {
        let group = Group { key: "g".into(), labels: Default::default() };
        let join = |entry: &OutboxEntry| Join { groups: vec![group.clone()], event: entry.event.clone() };
        let joins: Vec<Join> = entries.iter().map(join).collect();
        self.groups()
            .join(&joins, &Destinations::all(WAITS, &["hook".to_owned()]), &Capacity::NONE, now - MOMENT)
            .await
            .unwrap();
    }
}

pub async fn promise_01_recorded_means_applied<G: Ground>(mut world: World<G>) {
    let units = world.units(1000);
    world.hear_all(&units, world.at(0)).await;
    world.hear_all(&units, world.at(7)).await;
    world.heard_until(world.at(8)).await;
    world.ground.settle().await;
    world.crash().await;
    for seen in world.engine.read(&units).await.unwrap() {
        assert_eq!(seen.alive, Some(world.at(7)), "{}", seen.unit);
        assert_eq!(seen.facts.map(|facts| facts.lifecycle), Some(Lifecycle::Present));
    }
    assert_eq!(world.heard_so_far().await, world.at(8));
    assert_eq!(world.due(world.at(0) + 48 * HOUR).await.len(), 1000);
}

pub async fn promise_01_time_that_a_crash_loses_is_blind<G: Ground>(mut world: World<G>) {
    let units = world.units(300);
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(world.at(1)).await;
    world.ground.settle().await;
    world.hear_all(&units, world.hours(7)).await;
    world.heard_until(world.hours(7)).await;
    world.crash().await;
    let heard = world.heard_so_far().await;
    for seen in world.engine.read(&units).await.unwrap() {
        let is_there = seen.alive == Some(world.hours(7));
        assert!(
            is_there || heard < world.hours(7),
            "{} is lost, and {heard} says that it was heard",
            seen.unit
        );
    }
    // The first canary that returns proves hearing from then on.
    let back = world.hours(8);
    let blind = world.canary(back, Duration::from_secs(3), HOUR).await;
    assert_eq!(blind, Some(Interval { from: heard, to: back }));
    world.heard_until(world.hours(300)).await;
    world.sweep(world.hours(7) + 48 * HOUR).await;
    assert_eq!(world.transitions().await, [], "48 hours after the last heartbeat of each");
    world.sweep(world.hours(300)).await;
    assert_eq!(world.transitions().await.len(), 300, "each is recorded once in the end");
}

pub async fn promise_01_time_that_a_crash_loses_is_blind_however_short_and_however_soon<G: Ground>(
    mut world: World<G>,
) {
    let unit = world.unit("a");
    let gap = Duration::from_secs(3);
    world.hear(&unit, world.at(0)).await;
    for crash in 1..=3 {
        let (before, after) = (world.at(crash * 1000), world.at(crash * 1000 + 500));
        world.hear(&unit, before).await;
        world.canary(before, gap, HOUR).await;
        world.crash().await;
        let known = world.read(&unit).await.alive.unwrap();
        let heard = world.heard_so_far().await;
        let blind = world.canary(after, gap, HOUR).await;
        // A heartbeat either survived or is within the blind interval.
        assert!(
            known == before || blind.is_some_and(|blind| blind.from < before),
            "{known} {heard} {blind:?}"
        );
    }
}

pub async fn promise_01_a_crash_loses_no_transition<G: Ground>(mut world: World<G>) {
    let (gone, back) = (world.unit("gone"), world.unit("back"));
    world.hear_all(&[gone.clone(), back.clone()], world.at(0)).await;
    world.heard_until(world.hours(50)).await;
    world.check(&gone, world.hours(49)).await;
    world.check(&back, world.hours(49)).await;
    world.hear(&back, world.hours(50)).await;
    world.crash().await;
    let transitions: Vec<_> =
        world.transitions().await.into_iter().map(|r| (r.unit.to_string(), r.closed_by)).collect();
    assert_eq!(transitions.len(), 3, "{transitions:?}");
    assert!(transitions.contains(&("back".into(), Some(Closing::Return))));
    assert_eq!(world.open_records().await.len(), 1);
}

pub async fn promise_02_a_crash_in_the_middle_of_a_storm_takes_no_unit_twice_and_loses_none<G: Ground>(
    mut world: World<G>,
) {
    let units = world.units(2000);
    let now = world.hours(49);
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(now).await;
    world.ground.settle().await;
    for crashes in 1..=3 {
        let taking = async {
            for some in units.chunks(100) {
                world.roll.check_deadlines(some, now).await.unwrap();
            }
        };
        let some_are_taken = async {
            while world.transitions().await.len() < crashes * 300 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = some_are_taken => {}
            () = taking => {}
        }
        world.crash().await;
        let transitions = world.transitions().await;
        assert!(transitions.len() >= crashes * 300, "recorded transitions survive: {}", transitions.len());
        let mut left: HashSet<Unit> = world.due(now).await.into_iter().collect();
        assert_eq!(transitions.len() + left.len(), 2000, "each is taken or still due");
        left.extend(transitions.into_iter().map(|record| Unit::new(record.kind, record.unit)));
        assert_eq!(left.len(), 2000, "and none is both");
    }
    world.sweep(now).await;
    let ids: HashSet<String> = world.transitions().await.iter().map(|record| record.id.to_string()).collect();
    assert_eq!((world.transitions().await.len(), ids.len()), (2000, 2000));
    assert_eq!((world.open_records().await.len(), world.due(now).await.len()), (1000, 0), "a page of 1000");
}

pub async fn promise_07_crashes_between_the_steps_of_a_notification_change_no_id<G: Ground>(
    mut world: World<G>,
) {
    let units = world.units(300);
    let (now, hook) = (world.hours(49), ["hook".to_owned()]);
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(now).await;
    world.sweep(now).await;
    let entries = world.outbox().await;
    assert_eq!(entries.len(), 300);
    world.join_all(&entries[..200], now).await;
    world.crash().await;
    // The entries were not settled, so they join again.
    let entries = world.outbox().await;
    assert_eq!(entries.len(), 300);
    world.join_all(&entries, now).await;
    let positions: Vec<_> = entries.into_iter().map(|entry| entry.position).collect();
    world.engine.remove_entries(&positions, &Default::default()).await.unwrap();
    assert_eq!(
        world.groups().seal(&world.partitions(), &Destinations::all(AT_ONCE, &hook), now).await.unwrap(),
        300
    );
    world.crash().await;
    assert_eq!(world.outbox().await, []);
    assert_eq!(
        world.groups().seal(&world.partitions(), &Destinations::all(AT_ONCE, &hook), now).await.unwrap(),
        0
    );
    let lease = async |world: &World<G>, at| {
        world.deliveries().lease(&world.partitions(), "hook", at, at + MINUTE, 10).await.unwrap()
    };
    let first = lease(&world, now).await;
    assert_eq!((first.len(), first[0].offline.len()), (1, 300));
    world.crash().await;
    let mut again = lease(&world, now).await;
    assert_eq!(again.len(), usize::from(G::IS_WITHIN), "elsewhere its holder may be alive");
    if again.is_empty() {
        again = lease(&world, now + MINUTE).await;
    }
    assert_eq!((again.len(), &again[0].id, again[0].attempt), (1, &first[0].id, 2));
    world.deliveries().delivered(&again, now + MINUTE).await.unwrap();
    world.crash().await;
    assert_eq!(lease(&world, world.hours(1000)).await, []);
    let records: Vec<OfflineRecord> = first[0].offline.clone();
    let again = |record: &OfflineRecord| Join {
        groups: vec![Group { key: "g".into(), labels: Default::default() }],
        event: OutboxEvent::Record(record.clone()),
    };
    let again: Vec<Join> = records.iter().map(again).collect();
    world
        .groups()
        .join(&again, &Destinations::all(AT_ONCE, &hook), &Capacity::NONE, world.hours(50))
        .await
        .unwrap();
    assert_eq!(
        world
            .groups()
            .seal(&world.partitions(), &Destinations::all(AT_ONCE, &hook), world.hours(50))
            .await
            .unwrap(),
        0
    );
}

pub async fn promise_11_a_crash_forgets_no_blind_time<G: Ground>(mut world: World<G>) {
    world.heard_until(world.hours(1)).await;
    let (gap, tell_after) = (Duration::from_secs(3), MINUTE);
    let blind = world.canary(world.hours(2), gap, tell_after).await.unwrap();
    world.crash().await;
    assert_eq!(world.roll.hearing().ledger.intervals(), [blind]);
    assert_eq!(world.heard_so_far().await, world.hours(2));
    let transitions: Vec<OutboxEvent> = world.outbox().await.into_iter().map(|entry| entry.event).collect();
    assert_eq!(transitions, [OutboxEvent::Blind(blind)]);
}

pub async fn a_crash_does_not_forget_members_and_kept_sessions<G: Ground>(mut world: World<G>) {
    let gap = Gap { blind: 100 * HOUR, tell_after: 100 * HOUR };
    let member =
        |name: &str| ShareMember { share: "all".to_owned(), client_id: name.to_owned(), connection: 1 };
    let hears = async |world: &World<G>, name: &str, at: u64| {
        world.engine.advance(&Subscription::Member(member(name)), world.at(at), gap).await.unwrap();
        world.heard_so_far().await
    };
    world.engine.advance(&kept_session("kept", 1), world.at(10), gap).await.unwrap();
    for name in ["one", "two"] {
        world.engine.attend(&member(name), world.at(10), HOUR).await.unwrap();
    }
    hears(&world, "one", 1000).await;
    assert_eq!(hears(&world, "two", 1000).await, world.at(1000));
    world.ground.settle().await;
    world.crash().await;
    assert_eq!(world.engine.heard_by("kept").await.unwrap(), Some(world.at(10)));
    assert_eq!(world.engine.heard_by("another").await.unwrap(), None);
    assert_eq!(hears(&world, "one", 2000).await, world.at(1000), "what two receives is unknown");
    // A report about a member is durable at once.
    assert!(world.engine.depart(&member("two"), Some(world.at(2500))).await.unwrap());
    world.crash().await;
    assert!(!world.engine.depart(&member("two"), Some(world.at(2600))).await.unwrap());
    hears(&world, "one", 2400).await;
    assert_eq!(world.heard_so_far().await, world.at(1000), "until beyond what two may have lost");
    assert_eq!(hears(&world, "one", 3000).await, world.at(3000));
    // Another client may have had the session before.
    let begun = Interval { from: world.at(0), to: world.at(10) };
    let lost = Interval { from: world.at(1000), to: world.at(3000) };
    assert_eq!(world.engine.hearing().await.unwrap().ledger.intervals(), [begun, lost]);
}
