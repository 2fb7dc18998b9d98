//! Timers: each fires once, at its moment, unless it is cancelled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{
    Guarantee, NewTimer, Receipt, Timer, TimerClass, TimerId, TimerLifecycle, TimerState,
};
use rollcall::store::{
    AttemptEnd, AttemptMade, Delivery, EndedLease, FindTimers, Fired, MeantFor, StoredTimers, TimerCancelled,
    TimerCapacity, TimerClasses, TimerRegistered, group_of_timer,
};

use super::ground::Ground;
use super::world::{HOUR, World};

const MINUTE: Duration = Duration::from_secs(60);
/// The capacity of a caller that takes no deliveries: they wait in the engine.
static NONE: TimerCapacity = TimerCapacity::NONE;

fn class(name: &str, receivers: &[&str], guarantee: Guarantee) -> TimerClass {
    let receivers = receivers.iter().map(|name| (*name).to_owned()).collect();
    TimerClass { timer_type: name.parse().unwrap(), receivers, guarantee, keep: HOUR, most: 1000 }
}

fn classes() -> TimerClasses {
    let all = [
        class("report", &["hook"], Guarantee::AtLeastOnce),
        class("wide", &["hook", "mail"], Guarantee::AtLeastOnce),
        class("once", &["hook"], Guarantee::AtMostOnce),
    ];
    all.into_iter().map(|class| (class.timer_type.clone(), class)).collect()
}

fn id(name: &str) -> TimerId {
    name.parse().unwrap()
}

fn timer(name: &str, of: &str, due: Timestamp) -> NewTimer {
    NewTimer {
        is_span: false,
        id: id(name),
        timer_type: of.parse().unwrap(),
        due,
        data: serde_json::json!({ "of": name }).to_string().parse().unwrap(),
    }
}

fn many(count: usize, of: &str, due: Timestamp) -> Vec<NewTimer> {
    (0..count).map(|n| timer(&format!("timer-{n:05}"), of, due)).collect()
}

impl<G: Ground> World<G> {
    fn timers(&self) -> StoredTimers {
        StoredTimers::new(self.engine.clone())
    }

    async fn registers(&self, timers: &[NewTimer]) -> Vec<TimerRegistered> {
        self.timers().register(timers, false).await.unwrap()
    }

    async fn cancels(&self, name: &str, now: Timestamp) -> TimerCancelled {
        self.timers().cancel(&[id(name)], &classes(), now).await.unwrap()[0]
    }

    async fn shows(&self, name: &str) -> Option<Timer> {
        self.timers().timers(&[id(name)]).await.unwrap().remove(0)
    }

    async fn state(&self, name: &str) -> Option<TimerState> {
        self.shows(name).await.map(|timer| timer.state())
    }

    /// Fires due timers, and takes up to `most` deliveries of each receiver.
    async fn fires(&self, now: Timestamp, most: usize) -> Fired {
        let due = self.timers().due_timers(&self.partitions(), now, 100_000).await.unwrap();
        let most = ["hook", "mail"].map(|name| (name.to_owned(), most)).into();
        let capacity = TimerCapacity { most, until: now + MINUTE };
        self.timers().fire(&due, &classes(), &capacity, now).await.unwrap()
    }

    async fn leases(&self, receiver: &str, now: Timestamp) -> Vec<Delivery> {
        let mut all = Vec::new();
        loop {
            let some =
                self.deliveries().lease(&self.partitions(), receiver, now, now + MINUTE, 500).await.unwrap();
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    async fn ends(&self, delivery: &Delivery, end: AttemptEnd, now: Timestamp) {
        let attempt = AttemptMade { at: now, took: Duration::ZERO, answer: String::new() };
        let ended = EndedLease { delivery: Arc::new(delivery.clone()), end, attempt: Some(attempt) };
        self.deliveries().end_attempts(&[ended], now).await.unwrap();
    }
}

fn names(fired: &Fired) -> Vec<&str> {
    let mut names: Vec<&str> = fired.timers.iter().map(|timer| timer.id.as_str()).collect();
    names.sort_unstable();
    names
}

pub async fn a_timer_is_registered_shown_changed_and_cancelled<G: Ground>(world: World<G>) {
    let due = world.hours(1);
    let wanted = timer("pump 7%\"ü", "report", due);
    assert_eq!(world.registers(std::slice::from_ref(&wanted)).await, [TimerRegistered::Created]);
    assert_eq!(world.shows("pump 7%\"ü").await, Some(Timer::waiting(wanted.clone(), Duration::ZERO)));
    assert_eq!(
        world.registers(std::slice::from_ref(&wanted)).await,
        [TimerRegistered::Changed],
        "a repeat is safe"
    );
    let later = NewTimer { due: world.hours(2), timer_type: "wide".parse().unwrap(), ..wanted.clone() };
    assert_eq!(world.registers(std::slice::from_ref(&later)).await, [TimerRegistered::Changed]);
    let only_new = world.timers().register(&[wanted, timer("b", "report", due)], true).await.unwrap();
    assert_eq!(only_new, [TimerRegistered::Exists, TimerRegistered::Created]);
    assert_eq!(world.shows("pump 7%\"ü").await, Some(Timer::waiting(later, Duration::ZERO)));
    let counts = world.timers().count_timers(&world.partitions()).await.unwrap();
    let counts: Vec<(&str, u64)> =
        counts.iter().filter(|(_, n)| **n > 0).map(|(of, n)| (of.as_str(), *n)).collect();
    assert_eq!(counts, [("report", 1), ("wide", 1)]);
    assert_eq!(world.timers().first_timer(&world.partitions()).await.unwrap(), Some(due));
    assert_eq!(world.cancels("b", world.at(5)).await, TimerCancelled::Yes);
    assert_eq!(world.cancels("b", world.at(6)).await, TimerCancelled::Ended);
    assert_eq!(world.cancels("c", world.at(6)).await, TimerCancelled::Unknown);
    assert_eq!(world.shows("b").await.unwrap().lifecycle, TimerLifecycle::Cancelled { at: world.at(5) });
    assert_eq!(world.shows("c").await, None);
    // A cancelled timer can be registered again, also at the same moment.
    assert_eq!(world.registers(&[timer("b", "report", due)]).await, [TimerRegistered::Created]);
    // If an id comes twice, the last timer counts.
    let twice = [timer("d", "report", world.hours(3)), timer("d", "report", world.hours(4))];
    assert_eq!(world.registers(&twice).await, [TimerRegistered::Created, TimerRegistered::Changed]);
    assert_eq!(world.shows("d").await.unwrap().due, world.hours(4));
}

pub async fn promise_16_a_timer_fires_once<G: Ground>(world: World<G>) {
    let due = world.hours(1);
    world.registers(&many(700, "report", due)).await;
    assert_eq!(
        world.fires(due - Duration::from_millis(1), 10).await,
        Fired::default(),
        "nothing fires early"
    );
    // Two instances read the same timers, and both fire them.
    let (timers, engine) = (world.timers(), StoredTimers::new(world.another().await.0));
    let all = world.partitions();
    let read = world.timers().due_timers(&all, due, 100_000).await.unwrap();
    assert_eq!(read.len(), 700);
    let classes = classes();
    let both =
        tokio::join!(timers.fire(&read, &classes, &NONE, due), engine.fire(&read, &classes, &NONE, due));
    let (one, two) = (both.0.unwrap(), both.1.unwrap());
    assert_eq!(one.timers.len() + two.timers.len(), 700, "each by one of them");
    let ids: BTreeSet<&TimerId> = one.timers.iter().chain(&two.timers).map(|timer| &timer.id).collect();
    assert_eq!(ids.len(), 700);
    assert_eq!(world.fires(due + HOUR, 10).await, Fired::default());
    let delivered = world.leases("hook", due).await;
    let told: BTreeSet<&str> = delivered.iter().map(Delivery::notification).collect();
    assert_eq!((delivered.len(), told.len()), (700, 700));
    let first = delivered.iter().find(|one| one.group.key == "timer:timer-00000").unwrap();
    assert_eq!(first.id, format!("timer-00000:{}.hook", due.as_millis()));
    assert_eq!((first.timers[0].due, first.timers[0].fired_at, first.sealed_at), (due, due, due));
    assert_eq!(first.timers[0].data.as_str(), r#"{"of":"timer-00000"}"#);
    // A timer that fired is registered again for the same moment: this moment has fired.
    assert_eq!(world.registers(&[timer("timer-00000", "report", due)]).await, [TimerRegistered::HasFired]);
    assert_eq!(
        world.registers(&[timer("timer-00000", "report", due + HOUR)]).await,
        [TimerRegistered::Created]
    );
    assert_eq!(names(&world.fires(due + HOUR, 10).await), ["timer-00000"]);
    assert_eq!(world.timers().count_timers(&all).await.unwrap().values().sum::<u64>(), 0);
}

pub async fn promise_16_deliveries_that_firing_hands_out_are_leased_in_the_same_step<G: Ground>(
    world: World<G>,
) {
    let due = world.at(1000);
    world.registers(&many(10, "wide", due)).await;
    let fired = world.fires(due, 4).await;
    assert_eq!(fired.timers.len(), 10);
    let handed_out = fired.deliveries.len();
    assert!(handed_out == 0 || handed_out == 8, "an engine may leave them to the next lease: {handed_out}");
    for delivery in &fired.deliveries {
        assert_eq!((delivery.attempt, delivery.timers.len()), (1, 1));
    }
    assert!(fired.has_queued);
    let rest = world.leases("hook", due).await.len() + world.leases("mail", due).await.len();
    assert_eq!(rest + handed_out, 20);
    // The instance that has leased the deliveries dies: they come back.
    let again = world.leases("hook", due + 2 * MINUTE).await;
    assert_eq!(again.len(), 10);
    world.deliveries().delivered(&again, due + 2 * MINUTE).await.unwrap();
    assert_eq!(world.state("timer-00003").await, Some(TimerState::Fired), "mail has not got it");
    let mailed = world.leases("mail", due + 2 * MINUTE).await;
    world.deliveries().delivered(&mailed, due + 2 * MINUTE).await.unwrap();
    assert_eq!(world.state("timer-00003").await, Some(TimerState::Delivered));
    assert_eq!(world.leases("hook", due + HOUR).await, []);
}

pub async fn promise_16_a_crash_leaves_a_timer_waiting_or_fired<G: Ground>(mut world: World<G>) {
    let due = world.at(1000);
    world.registers(&many(300, "report", due)).await;
    world.crash().await;
    let counts = world.timers().count_timers(&world.partitions()).await.unwrap();
    assert_eq!(counts.values().sum::<u64>(), 300);
    // A part of the timers has fired when the engine dies.
    let some = world.timers().due_timers(&world.partitions(), due, 100_000).await.unwrap();
    world.timers().fire(&some[..100], &classes(), &NONE, due).await.unwrap();
    world.crash().await;
    // The other timers are overdue at the next start.
    let later = due + HOUR;
    assert_eq!(world.timers().first_timer(&world.partitions()).await.unwrap(), Some(due));
    assert_eq!(world.fires(later, 0).await.timers.len(), 200);
    world.crash().await;
    let delivered = world.leases("hook", later).await;
    let ids: BTreeSet<&str> = delivered.iter().map(Delivery::notification).collect();
    assert_eq!((delivered.len(), ids.len()), (300, 300), "none is lost, and none is there twice");
}

pub async fn promise_17_a_cancel_that_answers_yes_is_never_fired<G: Ground>(world: World<G>) {
    let due = world.at(1000);
    world.registers(&many(300, "report", due)).await;
    let read = world.timers().due_timers(&world.partitions(), due, 100_000).await.unwrap();
    // Timers that were cancelled after they were read, and before they are fired.
    let first: Vec<TimerId> = read[..50].iter().map(|timer| timer.id.clone()).collect();
    let answers = world.timers().cancel(&first, &classes(), due).await.unwrap();
    assert_eq!(answers, [TimerCancelled::Yes; 50]);
    assert_eq!(world.timers().fire(&read[..50], &classes(), &NONE, due).await.unwrap(), Fired::default());
    // Both instances act at the same time, from the same state.
    let read = &read[50..];
    let ids: Vec<TimerId> = read.iter().map(|timer| timer.id.clone()).collect();
    let (timers, classes) = (world.timers(), classes());
    let engine = StoredTimers::new(world.another().await.0);
    let (fired, cancelled) =
        tokio::join!(engine.fire(read, &classes, &NONE, due), timers.cancel(&ids, &classes, due));
    let fired: BTreeSet<TimerId> = fired.unwrap().timers.into_iter().map(|timer| timer.id).collect();
    for (id, answer) in ids.iter().zip(cancelled.unwrap()) {
        match answer {
            TimerCancelled::Yes => assert!(!fired.contains(id), "{id} was cancelled and fired"),
            TimerCancelled::Ended => assert!(fired.contains(id), "{id} was neither cancelled nor fired"),
            other => panic!("{id}: {other:?}"),
        }
    }
    assert_eq!(world.fires(due + HOUR, 0).await, Fired::default());
    assert_eq!(world.leases("hook", due + HOUR).await.len(), fired.len());
}

pub async fn promise_17_a_batch_cancels_only_what_is_still_as_it_was_read<G: Ground>(world: World<G>) {
    world.registers(&many(3, "report", world.hours(1))).await;
    let all = world.timers().find_timers(&FindTimers::default(), 10).await.unwrap().timers;
    world.registers(&[timer("timer-00001", "report", world.hours(2))]).await;
    let answers = world.timers().cancel_unchanged(&all, &classes(), world.at(0)).await.unwrap();
    assert_eq!(answers, [TimerCancelled::Yes, TimerCancelled::Changed, TimerCancelled::Yes]);
    assert_eq!(world.state("timer-00001").await, Some(TimerState::Waiting));
}

pub async fn promise_18_a_change_that_answers_yes_moves_it<G: Ground>(world: World<G>) {
    let (due, later) = (world.at(1000), world.hours(1));
    world.registers(&many(300, "report", due)).await;
    let read = world.timers().due_timers(&world.partitions(), due, 100_000).await.unwrap();
    // Timers that were moved after they were read, and before they are fired.
    let moved: Vec<NewTimer> = many(50, "report", later);
    assert_eq!(world.registers(&moved).await, [TimerRegistered::Changed; 50]);
    let old: Vec<Timer> =
        read.iter().filter(|timer| moved.iter().any(|one| one.id == timer.id)).cloned().collect();
    assert_eq!(world.timers().fire(&old, &classes(), &NONE, later).await.unwrap(), Fired::default());
    let moved: Vec<NewTimer> = many(300, "report", later);
    let (timers, classes) = (world.timers(), classes());
    let engine = StoredTimers::new(world.another().await.0);
    let (fired, changed) =
        tokio::join!(engine.fire(&read, &classes, &NONE, due), timers.register(&moved, false));
    let fired: BTreeSet<TimerId> = fired.unwrap().timers.into_iter().map(|timer| timer.id).collect();
    for (timer, answer) in moved.iter().zip(changed.unwrap()) {
        // A timer that had fired counts as a new one.
        let expected =
            if fired.contains(&timer.id) { TimerRegistered::Created } else { TimerRegistered::Changed };
        assert_eq!(answer, expected, "{}", timer.id);
    }
    assert_eq!(
        world.fires(later - Duration::from_millis(1), 0).await,
        Fired::default(),
        "none at the old moment"
    );
    assert_eq!(world.fires(later, 0).await.timers.len(), 300);
    // A timer can move to an earlier moment, too.
    world.registers(&[timer("early", "report", world.hours(9))]).await;
    world.registers(&[timer("early", "report", world.hours(2))]).await;
    assert_eq!(world.timers().first_timer(&world.partitions()).await.unwrap(), Some(world.hours(2)));
    assert_eq!(names(&world.fires(world.hours(2), 0).await), ["early"]);
}

pub async fn promise_19_an_at_most_once_timer_is_never_attempted_twice<G: Ground>(mut world: World<G>) {
    let due = world.at(1000);
    world.registers(&many(4, "once", due)).await;
    assert_eq!(world.fires(due, 0).await.timers.len(), 4);
    let leased = world.leases("hook", due).await;
    assert!(leased.len() == 4 && leased.iter().all(Delivery::is_at_most_once));
    let of = |name: &str| leased.iter().find(|one| one.group.key == group_of_timer(&id(name))).unwrap();
    let names = ["timer-00000", "timer-00001", "timer-00002"];
    let begun: Vec<&Delivery> = names.iter().map(|name| of(name)).collect();
    assert_eq!(world.deliveries().begin_only_attempts(&begun, due).await.unwrap(), [true; 3]);
    assert_eq!(
        world.deliveries().begin_only_attempts(&begun, due).await.unwrap(),
        [false; 3],
        "marked already"
    );
    assert_eq!(world.state("timer-00000").await, Some(TimerState::Fired));
    world.ends(begun[0], AttemptEnd::Delivered, due).await;
    world.ends(begun[1], AttemptEnd::DeadLetter("refused".into()), due).await;
    // The instance dies before it records the outcome of the third.
    world.crash().await;
    let later = due + HOUR;
    let again = world.leases("hook", later).await;
    let keys: Vec<&str> = again.iter().map(|one| one.group.key.as_str()).collect();
    assert_eq!(keys, ["timer:timer-00003"], "the only one whose attempt was not begun");
    let all = world.partitions();
    assert_eq!(world.timers().give_up_only_attempts(&all, due).await.unwrap(), [], "not before its time");
    let unknown = world.timers().give_up_only_attempts(&all, later).await.unwrap();
    assert_eq!(unknown.iter().map(|of| of.as_str()).collect::<Vec<_>>(), ["once"], "counted once");
    assert_eq!(world.timers().give_up_only_attempts(&all, later).await.unwrap(), []);
    let mut receipts = Vec::new();
    for name in names {
        let TimerLifecycle::Fired { receipts: of_one, .. } = world.shows(name).await.unwrap().lifecycle
        else {
            panic!("{name} has not fired");
        };
        receipts.push((of_one[0].1, world.state(name).await.unwrap()));
    }
    assert_eq!(
        receipts,
        [
            (Receipt::Delivered, TimerState::Delivered),
            (Receipt::Dead, TimerState::Dead),
            (Receipt::Unknown, TimerState::Dead),
        ]
    );
    assert_eq!(
        world.deliveries().dead_letters("hook", 10).await.unwrap(),
        [],
        "none of them can be replayed"
    );
    // A late outcome is better than none.
    world.ends(begun[2], AttemptEnd::Delivered, later).await;
    assert_eq!(world.state("timer-00002").await, Some(TimerState::Delivered));
}

pub async fn the_state_of_a_timer_is_true_after_it_is_given_up_replayed_and_purged<G: Ground>(
    world: World<G>,
) {
    let due = world.at(1000);
    world.registers(&[timer("a", "wide", due), timer("b", "wide", due)]).await;
    world.fires(due, 0).await;
    for name in ["hook", "mail"] {
        for delivery in world.leases(name, due).await {
            let end =
                if name == "mail" { AttemptEnd::DeadLetter("refused".into()) } else { AttemptEnd::Delivered };
            world.ends(&delivery, end, due).await;
        }
    }
    assert_eq!(world.state("a").await, Some(TimerState::Dead));
    let letters = world.deliveries().dead_letters("mail", 10).await.unwrap();
    let of = |name: &str| letters.iter().find(|one| one.delivery.timers[0].id == id(name)).unwrap().clone();
    assert!(world.deliveries().replay(&of("a").delivery, due).await.unwrap());
    assert_eq!(world.state("a").await, Some(TimerState::Fired));
    let again = world.leases("mail", due).await;
    assert_eq!(again.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [of("a").delivery.id.as_str()]);
    assert_eq!(again[0].timers, of("a").delivery.timers);
    world.ends(&again[0], AttemptEnd::Delivered, due).await;
    assert_eq!(world.state("a").await, Some(TimerState::Delivered));
    assert_eq!(world.deliveries().purge(&[of("b")]).await.unwrap(), 1);
    assert_eq!(world.state("b").await, Some(TimerState::Dead));
}

pub async fn a_timer_that_is_registered_again_before_it_is_delivered_is_delivered_twice<G: Ground>(
    world: World<G>,
) {
    let (one, two) = (world.at(1000), world.at(2000));
    world.registers(&[timer("a", "wide", one)]).await;
    world.fires(one, 0).await;
    assert_eq!(world.registers(&[timer("a", "wide", two)]).await, [TimerRegistered::Created]);
    assert_eq!(names(&world.fires(two, 5).await), ["a"]);
    for (due, expected) in [(one, TimerState::Fired), (two, TimerState::Delivered)] {
        for name in ["hook", "mail"] {
            let leased = world.leases(name, two).await;
            assert_eq!(leased.len(), 1, "in order");
            assert_eq!(leased[0].timers[0].due, due);
            assert_eq!(leased[0].notification(), format!("a:{}", due.as_millis()));
            world.ends(&leased[0], AttemptEnd::Delivered, two).await;
        }
        // The outcome of the earlier timer changes nothing about the new one.
        assert_eq!(world.state("a").await, Some(expected));
    }
    assert_eq!(world.leases("hook", world.hours(5)).await, []);
}

pub async fn timers_are_listed_by_moment_and_id_page_by_page<G: Ground>(world: World<G>) {
    let minute = |n: u64| world.at(n * 60_000);
    let mut all = many(40, "report", minute(5));
    all.extend((0..10).map(|n| timer(&format!("wide-{n}"), "wide", minute(n))));
    world.registers(&all).await;
    all.sort_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
    let ids = |timers: &[NewTimer]| timers.iter().map(|timer| timer.id.clone()).collect::<Vec<_>>();
    let mut listed = Vec::new();
    let mut find = FindTimers::default();
    loop {
        let page = world.timers().find_timers(&find, 7).await.unwrap();
        assert!(page.timers.len() <= 7);
        listed.extend(page.timers.into_iter().map(|timer| timer.id));
        assert!(listed.len() <= all.len(), "some are listed twice");
        find.after = page.next;
        if find.after.is_none() {
            break;
        }
        // The last timer of the page is removed, and the next page still begins after it.
        if listed.len() == 14 {
            world.cancels(listed[13].as_str(), world.at(0)).await;
        }
    }
    assert_eq!(listed, ids(&all));
    assert_eq!(world.fires(minute(3), 0).await.timers.len(), 4);
    let list = |find: FindTimers| {
        let engine = world.timers();
        async move { engine.find_timers(&find, 1000).await.unwrap().timers }
    };
    let of_type = list(FindTimers { types: vec!["wide".parse().unwrap()], ..FindTimers::default() }).await;
    assert_eq!(of_type.len(), 10);
    let fired = list(FindTimers { states: vec![TimerState::Fired], ..FindTimers::default() }).await;
    assert_eq!(
        fired.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(),
        ["wide-0", "wide-1", "wide-2", "wide-3"]
    );
    let range = FindTimers { from: Some(minute(1)), until: Some(minute(5)), ..FindTimers::default() };
    let range = list(range).await;
    assert_eq!(
        range.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(),
        ["wide-1", "wide-2", "wide-3", "wide-4"]
    );
    let cancelled = list(FindTimers { states: vec![TimerState::Cancelled], ..FindTimers::default() }).await;
    assert_eq!(cancelled.len(), 1);
}

pub async fn timers_that_ended_are_forgotten_when_their_class_says_so<G: Ground>(world: World<G>) {
    let due = world.at(1000);
    world.registers(&many(3, "report", due)).await;
    world.cancels("timer-00000", due).await;
    world.fires(due, 0).await;
    let all = world.partitions();
    let timers = world.timers();
    let forgets = |now| timers.forget_timers(&all, now);
    assert_eq!(forgets(due + HOUR - MINUTE).await.unwrap(), 0);
    let leased = world.leases("hook", due).await;
    world.ends(&leased[0], AttemptEnd::Delivered, due).await;
    assert_eq!(forgets(due + HOUR).await.unwrap(), 2, "one is not delivered yet, and is kept");
    world.deliveries().delivered(&leased, due + HOUR).await.unwrap();
    assert_eq!(forgets(due + 3 * HOUR).await.unwrap(), 1);
    let left = world.timers().find_timers(&FindTimers::default(), 10).await.unwrap();
    assert_eq!(left.timers, []);
    // A timer that is registered again is not forgotten together with its past.
    world.registers(&[timer("a", "report", due)]).await;
    world.cancels("a", due).await;
    world.registers(&[timer("a", "report", world.hours(9))]).await;
    assert_eq!(forgets(due + 3 * HOUR).await.unwrap(), 0);
    assert_eq!(world.state("a").await, Some(TimerState::Waiting));
}

pub async fn a_timer_of_a_type_that_is_not_configured_waits<G: Ground>(world: World<G>) {
    let due = world.at(1000);
    world.registers(&[timer("a", "unheard-of", due), timer("b", "report", due)]).await;
    assert_eq!(names(&world.fires(due, 0).await), ["b"]);
    let left = world.timers().due_timers(&world.partitions(), due, 10).await.unwrap();
    assert_eq!(left.iter().map(|timer| timer.id.as_str()).collect::<Vec<_>>(), ["a"]);
    world.timers().put_off(&left, due + MINUTE).await.unwrap();
    assert_eq!(world.timers().due_timers(&world.partitions(), due, 10).await.unwrap(), []);
    let again = world.timers().due_timers(&world.partitions(), due + MINUTE, 10).await.unwrap();
    assert_eq!(again, left, "its moment is as it was");
    // A change takes effect at once.
    world.registers(&[timer("a", "report", due)]).await;
    world.timers().put_off(&left, due + HOUR).await.unwrap();
    assert_eq!(names(&world.fires(due, 0).await), ["a"]);
}

pub async fn promise_19_an_at_most_once_timer_goes_to_no_fallback<G: Ground>(world: World<G>) {
    let due = world.at(1000);
    world.registers(&[timer("only", "once", due), timer("other", "report", due)]).await;
    assert_eq!(world.fires(due, 0).await.timers.len(), 2);
    let since = world.deliveries().down_since("hook", due).await.unwrap();
    let meant_for = MeantFor { receiver: "hook".to_owned(), since };
    assert_eq!(world.deliveries().fall_back(&world.partitions(), &meant_for, "mail", due).await.unwrap(), 1);
    let copies = world.leases("mail", due).await;
    let keys: Vec<&str> = copies.iter().map(|one| one.group.key.as_str()).collect();
    assert_eq!(keys, [group_of_timer(&id("other"))]);
    assert_eq!(world.leases("hook", due).await.len(), 2, "its receiver attempts both");
}
