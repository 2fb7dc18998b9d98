//! A fleet, its rules and simulated time for one case.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::{HearingConfig, Rules};
use rollcall::fleet::{Mirror, Roll};
use rollcall::presence::{Heartbeat, Interval, Kind, KindRules, OfflineRecord, Registration, Snapshot, Unit};
use rollcall::store::{
    Advance, DeadlineCheck, Engine, Gap, OutboxEntry, OutboxEvent, StoredDeliveries, StoredGroups,
    Subscription,
};
use rollcall::telemetry::Telemetry;
use tokio::sync::Notify;

use super::ground::Ground;

pub const HOUR: Duration = Duration::from_secs(3600);

/// A connection of a session that the broker keeps, and its number.
pub fn kept_session(name: &str, connection: u64) -> Subscription {
    Subscription::Kept {
        client_id: name.to_owned(),
        connection,
        was_cut: connection > 1,
        taken_since: None,
        span: HOUR,
    }
}

/// The beginning of time in every case; late enough for any subtraction.
const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);

pub struct World<G> {
    pub ground: G,
    pub engine: Arc<dyn Engine>,
    pub roll: Roll,
}

impl<G: Ground> World<G> {
    /// A fleet without units that has heard up to the beginning of time.
    pub async fn new() -> World<G> {
        World::on(G::new().await).await
    }

    pub async fn on(ground: G) -> World<G> {
        let engine = ground.engine().await;
        let roll = roll(engine.clone());
        roll.canary_returned(BEGIN).await.unwrap();
        World { ground, engine, roll }
    }

    /// Another instance on the same ground.
    pub async fn another(&self) -> (Arc<dyn Engine>, Roll) {
        let engine = self.ground.engine().await;
        let roll = roll(engine.clone());
        roll.refresh_hearing().await.unwrap();
        (engine, roll)
    }

    pub fn groups(&self) -> StoredGroups {
        StoredGroups::new(self.engine.clone())
    }

    pub fn deliveries(&self) -> StoredDeliveries {
        StoredDeliveries::new(self.engine.clone())
    }

    /// Every partition.
    pub fn partitions(&self) -> Vec<u16> {
        (0..self.engine.partitions()).collect()
    }

    /// Every outbox.
    pub fn outboxes(&self) -> Vec<u16> {
        (0..=self.engine.partitions()).collect()
    }

    /// The moment `ms` milliseconds after the beginning.
    pub fn at(&self, ms: u64) -> Timestamp {
        BEGIN + Duration::from_millis(ms)
    }

    /// The moment `hours` hours after the beginning.
    pub fn hours(&self, hours: u32) -> Timestamp {
        BEGIN + hours * HOUR
    }

    pub fn unit(&self, id: &str) -> Unit {
        format!("detector:{id}").parse().unwrap()
    }

    pub fn units(&self, count: usize) -> Vec<Unit> {
        (0..count).map(|n| self.unit(&format!("unit-{n:05}"))).collect()
    }

    pub fn beat(&self, unit: &Unit, at: Timestamp) -> Heartbeat {
        Heartbeat::of(unit.clone(), at)
    }

    /// Hears a heartbeat of the unit, which arrives at the moment that it is for.
    pub async fn hear(&self, unit: &Unit, at: Timestamp) {
        self.roll.hear(&[self.beat(unit, at)], at).await.unwrap();
    }

    pub async fn hear_all(&self, units: &[Unit], at: Timestamp) {
        let beats: Vec<Heartbeat> = units.iter().map(|unit| self.beat(unit, at)).collect();
        self.roll.hear(&beats, at).await.unwrap();
    }

    /// Registers units, so that they are known before they are heard.
    pub async fn register_all(&self, units: &[Unit], at: Timestamp) {
        for unit in units {
            assert!(self.roll.register(unit, &Registration::default(), at).await.unwrap());
        }
    }

    /// Hears everything up to this moment, without a gap.
    pub async fn heard_until(&self, moment: Timestamp) {
        let whole = 100_000 * 365 * 24 * HOUR;
        self.canary(moment, whole, whole).await;
        self.roll.refresh_hearing().await.unwrap();
    }

    /// A canary of a plain subscription, and the blind interval that was written because of it.
    pub async fn canary(&self, sent_at: Timestamp, gap: Duration, tell_after: Duration) -> Option<Interval> {
        match self
            .engine
            .advance(&Subscription::Plain, sent_at, Gap { blind: gap, tell_after })
            .await
            .unwrap()
        {
            Advance::Heard(blind) => blind,
            Advance::NotAMember => panic!("a plain subscription is never unknown"),
        }
    }

    /// The check of units that the engine takes in one batch.
    pub async fn begin_check(&self, units: &[Unit]) -> DeadlineCheck<'_> {
        let mut checks = self.engine.check_deadlines(units);
        assert_eq!(checks.len(), 1);
        checks.remove(0).await.unwrap()
    }

    pub async fn check(&self, unit: &Unit, now: Timestamp) {
        self.roll.check_deadlines(std::slice::from_ref(unit), now).await.unwrap();
    }

    pub async fn read(&self, unit: &Unit) -> Snapshot {
        self.engine.read(std::slice::from_ref(unit)).await.unwrap().remove(0)
    }

    pub async fn open_records(&self) -> Vec<OfflineRecord> {
        self.engine.records(true, None, 1000).await.unwrap()
    }

    pub async fn outbox(&self) -> Vec<OutboxEntry> {
        self.engine.outbox(&self.outboxes(), 100_000).await.unwrap()
    }

    /// The records in the outbox.
    pub async fn transitions(&self) -> Vec<OfflineRecord> {
        let events = self.outbox().await.into_iter().map(|entry| entry.event);
        events
            .filter_map(|event| match event {
                OutboxEvent::Record(record) => Some(record),
                OutboxEvent::Blind(_) | OutboxEvent::DataLost(_) => None,
            })
            .collect()
    }

    /// Units whose check is due.
    pub async fn due(&self, until: Timestamp) -> Vec<Unit> {
        let mut due = Vec::new();
        for partition in 0..self.engine.partitions() {
            due.extend(self.engine.due(partition, None, until, 0, 1000).await.unwrap());
        }
        due
    }
}

pub fn rules() -> Rules {
    let kind: Kind = "detector".parse().unwrap();
    Rules::from_iter([(kind.clone(), KindRules::new(kind))])
}

pub fn roll(engine: Arc<dyn Engine>) -> Roll {
    let mirror = Mirror::of(&*engine, Arc::new(rules()), &[]);
    roll_with(engine, rules(), Arc::new(mirror))
}

/// A roll with rules and a mirror of its own.
pub fn roll_with(engine: Arc<dyn Engine>, rules: Rules, mirror: Arc<Mirror>) -> Roll {
    roll_that_reports(engine, rules, mirror, Arc::new(Telemetry::new(&Clock::by_hand(BEGIN))))
}

pub fn roll_that_reports(
    engine: Arc<dyn Engine>,
    rules: Rules,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
) -> Roll {
    let rules = Arc::new(rules);
    let config = HearingConfig {
        gap: Duration::from_secs(3),
        follows: false,
        settle: Duration::from_secs(300),
        tell_after: Duration::from_secs(300),
    };
    Roll::new(engine, rules, mirror, telemetry, config, Arc::new(Notify::new()))
}
