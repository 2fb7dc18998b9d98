//! A fleet with every kind of state: present units, an offline unit, a unit that is back, values, a dead letter, a
//! group that waits, a member of a share. Time is simulated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::{HearingConfig, Rules};
use rollcall::fleet::{Mirror, Roll};
use rollcall::presence::{
    Filters, Guarantee, Heartbeat, Kind, KindRules, NewTimer, OfflineRecord, Probed, TimerClass, TimerId,
    Unit,
};
use rollcall::store::{
    AttemptEnd, AttemptMade, Capacity, Delivery, Destinations, EndedLease, Engine, FindTimers, Gap, Group,
    Join, OutboxEvent, Pace, Reading, Roster, ShareMember, StoredDeliveries, StoredGroups, StoredTimers,
    Subscription, TimerCapacity, TimerClasses, note,
};
use rollcall::telemetry::{HealthProblem, Telemetry};
use tokio::sync::Notify;

pub const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
pub const UNITS: usize = 40;
const HOUR: Duration = Duration::from_secs(3600);
const RECEIVER: &str = "hook";

pub struct Fleet {
    pub engine: Arc<dyn Engine>,
    pub telemetry: Arc<Telemetry>,
    roll: Roll,
    clock: Clock,
    /// How often each unit's silence was notified since the poisoning.
    pub notified: BTreeMap<String, usize>,
    /// How often each unit's return was notified since the poisoning.
    pub back: BTreeMap<String, usize>,
    /// How often each timer was delivered.
    pub fired: BTreeMap<String, usize>,
    /// The errors since the poisoning.
    pub failures: Vec<String>,
}

pub fn hours(hours: u32) -> Timestamp {
    BEGIN + hours * HOUR
}

/// The filter by which a kind is heard.
fn filters(kind: &str) -> Filters {
    Filters::from([(kind.parse().unwrap(), vec!["units/+/heartbeat".to_owned()])])
}

/// How many timers wait when the value is poisoned.
pub const TIMERS: usize = 12;

fn classes() -> TimerClasses {
    let class = |name: &str, guarantee| TimerClass {
        timer_type: name.parse().unwrap(),
        receivers: vec![RECEIVER.to_owned()],
        guarantee,
        keep: 10_000 * HOUR,
        most: 1000,
    };
    let all = [class("report", Guarantee::AtLeastOnce), class("once", Guarantee::AtMostOnce)];
    all.into_iter().map(|class| (class.timer_type.clone(), class)).collect()
}

pub fn unit(number: usize) -> Unit {
    format!("detector:unit-{number:03}").parse().unwrap()
}

pub fn units() -> Vec<Unit> {
    (0..UNITS).map(unit).collect()
}

/// The end of the history before a value is poisoned.
pub const POISONED: u32 = 51;

pub fn telemetry() -> (Arc<Telemetry>, Clock) {
    let clock = Clock::by_hand(BEGIN);
    (Arc::new(Telemetry::new(&clock)), clock)
}

impl Fleet {
    pub fn on(engine: Arc<dyn Engine>, telemetry: Arc<Telemetry>, clock: Clock) -> Fleet {
        let kind: Kind = "detector".parse().unwrap();
        let rules = Arc::new(Rules::from_iter([(kind.clone(), KindRules::new(kind))]));
        let mirror = Arc::new(Mirror::new(rules.clone(), engine.partitions()));
        let config = HearingConfig {
            gap: 1000 * HOUR,
            settle: Duration::ZERO,
            follows: false,
            tell_after: 1000 * HOUR,
        };
        let roll =
            Roll::new(engine.clone(), rules, mirror, telemetry.clone(), config, Arc::new(Notify::new()));
        let roll = roll.with_filters(filters("detector"));
        Fleet {
            engine,
            telemetry,
            roll,
            clock,
            notified: BTreeMap::new(),
            back: BTreeMap::new(),
            fired: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    /// Builds the history: every kind of state occurs.
    pub async fn live(&mut self) {
        self.heard_until(BEGIN).await;
        StoredDeliveries::new(self.engine.clone())
            .register_receivers(&[RECEIVER.to_owned()], BEGIN)
            .await
            .unwrap();
        self.hear(&units(), BEGIN).await;
        // Two units fall silent; one notification becomes a dead letter, the other is delivered, and both units are
        // back.
        self.hear(&units()[2..], hours(48)).await;
        self.heard_until(hours(49)).await;
        self.roll.check_deadlines(&units()[..2], hours(49)).await.unwrap();
        self.join(Duration::ZERO, hours(49)).await;
        let leased = self.lease(hours(49)).await;
        assert_eq!(leased.len(), 2);
        StoredDeliveries::new(self.engine.clone())
            .dead_letter(&leased[0], "it is wanted no more", hours(49))
            .await
            .unwrap();
        let attempt = Some(AttemptMade { at: hours(49), took: HOUR, answer: "204".to_owned() });
        let ended = EndedLease { delivery: Arc::new(leased[1].clone()), end: AttemptEnd::Delivered, attempt };
        StoredDeliveries::new(self.engine.clone()).end_attempts(&[ended], hours(49)).await.unwrap();
        self.hear(&units()[..2], hours(50)).await;
        self.join(Duration::ZERO, hours(50)).await;
        let leased = self.lease(hours(50)).await;
        StoredDeliveries::new(self.engine.clone()).delivered(&leased, hours(50)).await.unwrap();
        let at = hours(50);
        let readings: Vec<Unit> = units();
        let readings: Vec<Reading<'_>> =
            readings.iter().map(|unit| Reading { unit, metric: "battery", at, value: "3.5" }).collect();
        self.engine.keep_values(&readings).await.unwrap();
        // A kind that was not heard for a while.
        for hour in [1, 2] {
            self.engine.prove(&Probed::all(&filters("other"), hours(hour), HOUR / 2)).await.unwrap();
        }
        let member = ShareMember { share: "s".into(), client_id: "c".into(), connection: 1 };
        self.engine.attend(&member, at, 10_000 * HOUR).await.unwrap();
        self.engine
            .depart(&ShareMember { connection: 1, client_id: "c".into(), share: "s".into() }, Some(at))
            .await
            .unwrap();
        self.engine.attend(&member, at, 10_000 * HOUR).await.unwrap();
        let kept = Subscription::Kept {
            client_id: "rollcall-main".into(),
            connection: 1,
            was_cut: false,
            taken_since: None,
            span: 10_000 * HOUR,
        };
        self.engine.advance(&kept, at, Gap { blind: HOUR / 2, tell_after: HOUR / 2 }).await.unwrap();
        self.engine.renew("one", Duration::from_secs(8), None).await.unwrap();
        let roster: &dyn Roster = &*self.engine;
        roster.announce("one", "127.0.0.1:1").await.unwrap();
        note(&*self.engine, &[&unit(5)]).await.unwrap();
        self.live_timers(at).await;
        // When the value is poisoned, one silence waits in its group, and the event of another one waits in the
        // outbox.
        self.heard_until(hours(POISONED)).await;
        self.clock.follow(hours(POISONED), Duration::ZERO);
        self.hear(&units()[2..], hours(51)).await;
        self.notified.clear();
        self.back.clear();
    }

    fn timers(&self) -> StoredTimers {
        StoredTimers::new(self.engine.clone())
    }

    /// Timers in each state; waiting timers are due when the value is poisoned.
    async fn live_timers(&self, at: Timestamp) {
        let timer = |n: usize, of: &str, due| NewTimer {
            is_span: false,
            id: format!("timer-{n:02}").parse().unwrap(),
            timer_type: of.parse().unwrap(),
            due,
            data: Default::default(),
        };
        let mut timers: Vec<NewTimer> =
            (0..TIMERS).map(|n| timer(n, "report", hours(POISONED + 1))).collect();
        timers.extend((TIMERS..TIMERS + 4).map(|n| timer(n, "once", at)));
        timers.extend((TIMERS + 4..TIMERS + 8).map(|n| timer(n, "report", hours(POISONED + 1))));
        self.timers().register(&timers, false).await.unwrap();
        let cancelled: Vec<TimerId> = timers[TIMERS + 4..].iter().map(|timer| timer.id.clone()).collect();
        self.timers().cancel(&cancelled, &classes(), at).await.unwrap();
        let partitions: Vec<u16> = (0..self.engine.partitions()).collect();
        let due = self.timers().due_timers(&partitions, at, 100).await.unwrap();
        self.timers().fire(&due, &classes(), &TimerCapacity::NONE, at).await.unwrap();
        let leased = self.lease(at).await;
        let leased: Vec<&Delivery> = leased.iter().collect();
        assert_eq!(
            StoredDeliveries::new(self.engine.clone()).begin_only_attempts(&leased, at).await.unwrap(),
            [true; 4]
        );
    }

    pub async fn hear(&self, units: &[Unit], at: Timestamp) {
        self.try_hear(units, at).await.unwrap();
    }

    pub async fn try_hear(&self, units: &[Unit], at: Timestamp) -> rollcall::store::Result<()> {
        let heartbeat = |unit: &Unit| Heartbeat::of(unit.clone(), at);
        self.roll.hear(&units.iter().map(heartbeat).collect::<Vec<_>>(), at).await.map(drop)
    }

    /// Hears everything up to a moment, without a gap.
    pub async fn heard_until(&self, moment: Timestamp) {
        let gap = Gap { blind: 100_000 * HOUR, tell_after: 100_000 * HOUR };
        for _ in 0..3 {
            if self.engine.advance(&Subscription::Plain, moment, gap).await.is_ok() {
                break;
            }
            let _ = self.engine.examine(moment).await;
        }
        for _ in 0..3 {
            if self.engine.prove(&Probed::all(&filters("detector"), moment, gap.blind)).await.is_ok() {
                break;
            }
            let _ = self.engine.examine(moment).await;
        }
        self.roll.refresh_hearing().await.unwrap();
    }

    /// Runs every step of the loops once, and goes on after an error, as they do.
    pub async fn pass(&mut self, now: Timestamp, walks: bool) {
        self.clock.follow(now, Duration::ZERO);
        let _ = self.engine.examine(now).await;
        for partition in 0..self.engine.partitions() {
            if let Ok(due) = self.engine.due(partition, None, now, 0, 1000).await
                && let Err(why) = self.roll.check_deadlines(&due, now).await
            {
                self.failures.push(format!("check: {why}"));
            }
            let pages = 0..if walks { self.engine.pages() } else { 0 };
            for seen in join_all(pages.map(|page| self.engine.walk(partition, page))).await {
                let units: Vec<Unit> = seen.into_iter().flatten().map(|seen| seen.unit).collect();
                if !units.is_empty() {
                    let _ = self.roll.check_deadlines(&units, now).await;
                }
            }
        }
        let _ = self.engine.renew("one", Duration::from_secs(8), None).await;
        if let Err(why) = self.fire(now).await {
            self.failures.push(format!("fire: {why}"));
        }
        self.notify(now).await;
    }

    pub async fn check(&self, units: &[Unit], now: Timestamp) {
        self.roll.check_deadlines(units, now).await.unwrap();
    }

    /// Leased deliveries have arrived, whatever the engine answers.
    pub async fn arrived(&mut self, leased: &[Delivery], now: Timestamp) {
        self.count(leased);
        // Repeated until the call succeeds, as the service does.
        for _ in 0..3 {
            match StoredDeliveries::new(self.engine.clone()).delivered(leased, now).await {
                Ok(()) => return,
                Err(why) => self.failures.push(format!("delivered: {why}")),
            }
            let _ = self.engine.examine(now).await;
        }
    }

    /// The calls of the loop of timers.
    async fn fire(&self, now: Timestamp) -> rollcall::store::Result<()> {
        let partitions: Vec<u16> = (0..self.engine.partitions()).collect();
        self.timers().repair_timers(&partitions).await?;
        let due = self.timers().due_timers(&partitions, now, 100).await?;
        self.timers().fire(&due, &classes(), &TimerCapacity::NONE, now).await?;
        self.timers().count_timers(&partitions).await?;
        self.timers().forget_timers(&partitions, now).await?;
        self.timers().find_timers(&FindTimers::default(), 100).await?;
        self.timers().give_up_only_attempts(&partitions, now).await?;
        Ok(())
    }

    async fn notify(&mut self, now: Timestamp) {
        if let Err(why) = self.try_join(Duration::ZERO, now).await {
            self.failures.push(format!("join: {why}"));
            return;
        }
        let partitions: Vec<u16> = (0..self.engine.partitions()).collect();
        let until = now + HOUR;
        while let Ok(leased) =
            StoredDeliveries::new(self.engine.clone()).lease(&partitions, RECEIVER, now, until, 1000).await
        {
            if leased.is_empty()
                || StoredDeliveries::new(self.engine.clone()).delivered(&leased, now).await.is_err()
            {
                return;
            }
            self.count(&leased);
        }
    }

    fn count(&mut self, leased: &[Delivery]) {
        let count = |notified: &mut BTreeMap<String, usize>, record: &OfflineRecord| {
            *notified.entry(record.id.unit.to_string()).or_default() += 1;
        };
        for Delivery { offline, online, timers, .. } in leased {
            timers.iter().for_each(|timer| *self.fired.entry(timer.id.to_string()).or_default() += 1);
            offline.iter().for_each(|record| count(&mut self.notified, record));
            online.iter().for_each(|record| count(&mut self.back, record));
        }
    }

    pub async fn lease(&self, now: Timestamp) -> Vec<Delivery> {
        let partitions: Vec<u16> = (0..self.engine.partitions()).collect();
        StoredDeliveries::new(self.engine.clone())
            .lease(&partitions, RECEIVER, now, now + HOUR, 1000)
            .await
            .unwrap()
    }

    pub async fn join(&self, wait: Duration, now: Timestamp) {
        self.try_join(wait, now).await.unwrap();
    }

    async fn try_join(&self, wait: Duration, now: Timestamp) -> rollcall::store::Result<()> {
        let outboxes: Vec<u16> = (0..=self.engine.partitions()).collect();
        let partitions: Vec<u16> = (0..self.engine.partitions()).collect();
        let receivers = [RECEIVER.to_owned()];
        let entries = self.engine.outbox(&outboxes, 1000).await?;
        let join = |event: &OutboxEvent| {
            let key = event.record().map_or("blind".to_owned(), |record| record.unit.to_string());
            Join { groups: vec![Group { key, labels: BTreeMap::new() }], event: event.clone() }
        };
        let joins: Vec<Join> = entries.iter().map(|entry| join(&entry.event)).collect();
        let pace = Pace::new(wait, Duration::ZERO);
        StoredGroups::new(self.engine.clone())
            .join(&joins, &Destinations::all(pace, &receivers), &Capacity::NONE, now)
            .await?;
        self.engine
            .remove_entries(
                &entries.into_iter().map(|entry| entry.position).collect::<Vec<_>>(),
                &Default::default(),
            )
            .await?;
        while StoredGroups::new(self.engine.clone())
            .seal(&partitions, &Destinations::all(pace, &receivers), now)
            .await?
            > 0
        {}
        Ok(())
    }

    pub async fn records(&self) -> Vec<OfflineRecord> {
        self.engine.records(false, None, 1000).await.unwrap()
    }

    pub fn warnings(&self) -> Vec<HealthProblem> {
        let mut problems = self.telemetry.problems();
        problems.retain(|problem| problem.name == "unreadable_values");
        problems
    }
}
