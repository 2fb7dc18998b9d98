//! Timers are registered, cancelled, fired and forgotten alike on both engines, and both know what became of them, by
//! generated cases: an engine ends a delivery and writes its receipt in a step of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rollcall::clock::Timestamp;
use rollcall::presence::{Guarantee, NewTimer, Timer, TimerClass, TimerId};
use rollcall::store::{
    AttemptMade, Delivery, End, Ended, Engine, FindTimers, StoredDeliveries, StoredTimers, TimerCapacity,
    TimerClasses,
};

use crate::both_engines::{PARTITIONS, engines};
use crate::support::redis::Redis;

const TIMERS: u8 = 4;
const RECEIVERS: [&str; 2] = ["hook", "mail"];
/// The types: the last one is not configured.
const TYPES: [&str; 4] = ["report", "wide", "once", "unknown"];
const KEEP: Duration = Duration::from_secs(20);

/// An action, and the time since the action before it (s).
#[derive(Clone, Debug)]
struct Step {
    after: u64,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    /// These, and whether only new ones are wanted.
    Register(Vec<Registered>, bool),
    Cancel(Vec<u8>),
    /// Timers as they were read last.
    CancelUnchanged(Vec<u8>),
    /// Due timers are read, to be fired or put off later.
    Read,
    Fire,
    PutOff(u64),
    /// Deliveries are leased, and end so, by their place; `None`: the instance dies during the attempt.
    Deliver(Vec<Option<Outcome>>),
    GiveUp,
    Forget,
}

#[derive(Clone, Debug)]
struct Registered {
    timer: u8,
    of: usize,
    /// How long after the begin (s).
    due: i64,
    data: u8,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Delivered,
    Retry,
    Dead,
}

fn actions() -> impl Strategy<Value = Action> {
    let registered = (0..TIMERS, 0..TYPES.len(), 0..40i64, 0..2u8)
        .prop_map(|(timer, of, due, data)| Registered { timer, of, due, data });
    let ids = || prop::collection::vec(0..TIMERS, 1..4);
    let outcome = prop_oneof![
        3 => Just(Some(Outcome::Delivered)),
        2 => Just(Some(Outcome::Retry)),
        1 => Just(Some(Outcome::Dead)),
        1 => Just(None),
    ];
    prop_oneof![
        6 => (prop::collection::vec(registered, 1..5), prop::bool::weighted(0.3))
            .prop_map(|(all, only_new)| Action::Register(all, only_new)),
        2 => ids().prop_map(Action::Cancel),
        2 => ids().prop_map(Action::CancelUnchanged),
        3 => Just(Action::Read),
        4 => Just(Action::Fire),
        1 => (1..20u64).prop_map(Action::PutOff),
        4 => prop::collection::vec(outcome, 6).prop_map(Action::Deliver),
        1 => Just(Action::GiveUp),
        2 => Just(Action::Forget),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..12u64, actions()).prop_map(|(after, action)| Step { after, action });
    prop::collection::vec(step, 1..24)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_732_147_200_000 + seconds * 1000)
}

fn id(timer: u8) -> TimerId {
    format!("timer-{timer}").parse().unwrap()
}

fn classes() -> TimerClasses {
    let class = |of: usize, receivers: &[&str], guarantee| TimerClass {
        timer_type: TYPES[of].parse().unwrap(),
        receivers: receivers.iter().map(|name| (*name).to_owned()).collect(),
        guarantee,
        keep: KEEP,
        most: 1000,
    };
    let all = [
        class(0, &RECEIVERS[..1], Guarantee::AtLeastOnce),
        class(1, &RECEIVERS, Guarantee::AtLeastOnce),
        class(2, &RECEIVERS, Guarantee::AtMostOnce),
    ];
    all.into_iter().map(|class| (class.timer_type.clone(), class)).collect()
}

impl Registered {
    fn timer(&self) -> NewTimer {
        NewTimer {
            is_span: false,
            id: id(self.timer),
            timer_type: TYPES[self.of].parse().unwrap(),
            due: at(self.due),
            data: format!("{{\"a b\":\"{}\"}}", self.data).parse().unwrap(),
        }
    }
}

/// An engine, and what was read from it.
struct Side {
    engine: Arc<dyn Engine>,
    /// The timers after the last step.
    known: Vec<Option<Timer>>,
    due: Vec<Timer>,
}

fn all() -> Vec<u16> {
    (0..PARTITIONS).collect()
}

impl Side {
    /// The answer of the engine, as text.
    async fn take(&mut self, action: &Action, now: Timestamp) -> String {
        let (engine, classes) = (StoredTimers::new(self.engine.clone()), classes());
        match action {
            Action::Register(timers, only_new) => {
                let timers: Vec<NewTimer> = timers.iter().map(Registered::timer).collect();
                format!("{:?}", engine.register(&timers, *only_new).await.unwrap())
            }
            Action::Cancel(timers) => {
                let ids: Vec<TimerId> = timers.iter().map(|timer| id(*timer)).collect();
                format!("{:?}", engine.cancel(&ids, &classes, now).await.unwrap())
            }
            Action::CancelUnchanged(timers) => {
                let known = timers.iter().filter_map(|timer| self.known.get(usize::from(*timer))?.clone());
                let known: Vec<Timer> = known.collect();
                format!("{:?}", engine.cancel_unchanged(&known, &classes, now).await.unwrap())
            }
            Action::Read => {
                self.due = engine.due_timers(&all(), now, 1000).await.unwrap();
                self.due.sort_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
                format!("{:?}", self.due)
            }
            Action::Fire => {
                let fired = engine.fire(&self.due, &classes, &TimerCapacity::NONE, now).await.unwrap();
                let mut timers = fired.timers;
                timers.sort_by(|a, b| a.id.cmp(&b.id));
                format!("{timers:?} {}", fired.has_queued)
            }
            Action::PutOff(seconds) => {
                let until = now + Duration::from_secs(*seconds);
                format!("{:?}", engine.put_off(&self.due, until).await.unwrap())
            }
            Action::Deliver(outcomes) => self.deliver(outcomes, now).await,
            Action::GiveUp => {
                let mut types = engine.give_up_only_attempts(&all(), now).await.unwrap();
                types.sort();
                format!("{types:?}")
            }
            Action::Forget => engine.forget_timers(&all(), now).await.unwrap().to_string(),
        }
    }

    async fn deliver(&self, outcomes: &[Option<Outcome>], now: Timestamp) -> String {
        let mut text = String::new();
        for receiver in RECEIVERS {
            let until = now + Duration::from_secs(5);
            let mut leased = StoredDeliveries::new(self.engine.clone())
                .lease(&all(), receiver, now, until, 100)
                .await
                .unwrap();
            leased.sort_by(|a, b| a.id.cmp(&b.id));
            let only: Vec<&Delivery> = leased.iter().filter(|one| one.is_at_most_once()).collect();
            let begun =
                StoredDeliveries::new(self.engine.clone()).begin_only_attempts(&only, now).await.unwrap();
            text += &format!("{leased:?} {begun:?} ");
            let ended = leased.iter().zip(outcomes).filter_map(|(delivery, outcome)| {
                let end = match (*outcome)? {
                    Outcome::Delivered => End::Delivered,
                    // Delivered at most once, it is not attempted again.
                    Outcome::Retry if !delivery.is_at_most_once() => {
                        End::RetryAt(now + Duration::from_secs(3))
                    }
                    Outcome::Retry | Outcome::Dead => End::DeadLetter("refused".to_owned()),
                };
                let attempt = AttemptMade { at: now, took: Duration::ZERO, answer: String::new() };
                Some(Ended { delivery: Arc::new(delivery.clone()), end, attempt: Some(attempt) })
            });
            StoredDeliveries::new(self.engine.clone())
                .end_attempts(&ended.collect::<Vec<_>>(), now)
                .await
                .unwrap();
        }
        text
    }

    /// The timers of the engine, as text.
    async fn shows(&mut self) -> String {
        let ids: Vec<TimerId> = (0..TIMERS).map(id).collect();
        self.known = StoredTimers::new(self.engine.clone()).timers(&ids).await.unwrap();
        let listed =
            StoredTimers::new(self.engine.clone()).find_timers(&FindTimers::default(), 100).await.unwrap();
        let first = StoredTimers::new(self.engine.clone()).first_timer(&all()).await.unwrap();
        // A type of which no timer waits may be counted as none.
        let mut counts: BTreeMap<_, _> =
            StoredTimers::new(self.engine.clone()).count_timers(&all()).await.unwrap();
        counts.retain(|_, count| *count > 0);
        format!("{:?} {listed:?} {first:?} {counts:?}", self.known)
    }
}

#[test]
fn timers_are_registered_cancelled_fired_and_forgotten_alike_on_both_engines() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = Redis::start();
    let number = AtomicUsize::new(0);
    let mut runner = TestRunner::new(Config { cases: 96, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&steps(), |steps| {
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let engines = engines(&redis, number.fetch_add(1, Ordering::Relaxed), &dir).await;
            let mut sides = engines.map(|engine| Side { engine, known: Vec::new(), due: Vec::new() });
            let mut now = at(0);
            for (n, Step { after, action }) in steps.iter().enumerate() {
                now = now + Duration::from_secs(*after);
                let [scripts, rules] = &mut sides;
                let answers = [scripts.take(action, now).await, rules.take(action, now).await];
                prop_assert_eq!(&answers[0], &answers[1], "step {}: {:?} at {}", n, action, now);
                let shown = [scripts.shows().await, rules.shows().await];
                prop_assert_eq!(&shown[0], &shown[1], "after step {}: {:?} at {}", n, action, now);
            }
            Ok::<(), TestCaseError>(())
        })
    });
    tried.unwrap();
}
