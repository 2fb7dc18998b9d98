//! Publishes the states of units, retained, at each broker where `mqtt.publish_state` asks for that: each instance those of
//! its partitions. Partitions of instances that do not reach the broker are shared by those that do.
//!
//! What is published is compared with the mirror: a state that differs is read from the engine and published, so the
//! newest wins however many changes came between. The mirror has no units of other instances' partitions: these are read
//! from the engine, see `states/elsewhere.rs`. A new connection reads what the broker retains, so nothing depends on
//! what this process remembers: after a crash and after a takeover the differences are published, and the states of
//! units that are gone are removed.
//!
//! # What is bounded
//! At most `mqtt.publish_state_rate` messages go out in a second. Reading the mirror takes at most a twentieth of the time,
//! and reading the engine as much. There is no queue: a state waits in the mirror. Of what others publish, no more is
//! remembered than some times the units whose states this instance publishes, and a constant.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::engine_writer::EngineWriter;
use crate::clock::{Stopwatch, Timestamp};
use crate::fleet::mirror::{Chunk, Cursor, UnitFilter};
use crate::fleet::{LastReturn, Mirror, Ownership, SharedRules};
use crate::presence::{State, Unit};
use crate::store::{Queries, partition_of};
use crate::telemetry::{Loop, PublishedOutcome};

mod elsewhere;
mod published;
mod topics;

use elsewhere::Round;
use published::PublishedStates;
pub(super) use published::{Published, PublishedState};
pub(super) use topics::{SENSORS, StateTopics, object_of, unit_of};

/// The least time between two passes over the mirror.
const TICK: Duration = Duration::from_secs(1);
/// A pass over the mirror is followed by a pause of this many times its length.
const PAUSE: u32 = 20;
/// The most states that are read from the engine at once.
const BATCH: usize = 500;
/// Of so many units without a published state at once, each record is read; of more, the newest records of the fleet.
const FEW: usize = 20;
/// The most transitions that are looked at after each tick.
const TRANSITIONS: usize = 4096;

/// The published messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatesConfig {
    /// The most messages in a second.
    pub rate: u32,
    /// Whether Home Assistant discovers the units.
    pub has_discovery: bool,
}

impl StatesConfig {
    /// The units whose states are read and published at once: those of a tenth of a second, so that messages go out evenly,
    /// and no state waits for long after it was read.
    fn batch(self) -> usize {
        (self.rate as usize / 10).clamp(1, BATCH)
    }
}

/// The sources of the states.
#[derive(Clone)]
pub struct StateSources {
    pub mirror: Arc<Mirror>,
    pub ownership: Ownership,
    pub engine: Arc<dyn Queries>,
}

/// Publishes a retained message; returns whether it is retained.
pub(super) type Publish = Arc<dyn Fn(&str, &[u8]) -> bool + Send + Sync>;

/// The topics that a publisher reads.
pub(super) fn filters(config: StatesConfig) -> Vec<&'static str> {
    let discovery = config.has_discovery.then_some(topics::DISCOVERY_FILTER);
    [topics::STATES_FILTER].into_iter().chain(discovery).collect()
}

/// The destination of the states.
#[async_trait]
pub(super) trait Outlet: Send + Sync {
    /// Publishes a retained message; returns whether there is room for it. `None` if there is no connection.
    async fn publish(&self, topic: String, payload: Vec<u8>) -> Option<bool>;
}

/// The in-process broker.
pub(super) struct Devices(pub Publish);

#[async_trait]
impl Outlet for Devices {
    async fn publish(&self, topic: String, payload: Vec<u8>) -> Option<bool> {
        Some(self.0(&topic, &payload))
    }
}

pub(super) struct StatePublisher {
    /// The name of the broker; `None`: it is within the process, and no other instance reaches it.
    pub broker: Option<String>,
    pub config: StatesConfig,
    pub sources: StateSources,
    pub writer: EngineWriter,
    pub published: Arc<Published>,
    pub outlet: Box<dyn Outlet>,
}

/// A unit whose state differs from the published one.
struct Differing {
    unit: Unit,
    /// The published state, if it is known.
    before: Option<State>,
    /// See [`PublishedStates::differs`].
    moment: Option<Timestamp>,
}

/// A pass over units that are compared with what is published.
struct Pass {
    number: u32,
    /// When units came back, if many had no published state.
    returns: Option<HashMap<Unit, Timestamp>>,
    /// Units whose discovery message is missing or not as it should be, at most those of a second: the rest waits for the
    /// next pass, and states do not.
    undiscovered: Vec<Unit>,
}

impl Pass {
    fn begin(published: &Published) -> Pass {
        Pass { number: published.begin_pass(), returns: None, undiscovered: Vec::new() }
    }
}

impl Differing {
    /// The unit, and how to find when its last silence ended, if it is online.
    fn with_return(&self, returns: Option<&HashMap<Unit, Timestamp>>) -> (Unit, LastReturn) {
        let back = match (self.before, returns) {
            (None, Some(returns)) => LastReturn::Known(returns.get(&self.unit).copied()),
            _ => LastReturn::Stored,
        };
        (self.unit.clone(), back)
    }
}

/// A pass ends early.
struct Interrupted;

impl StatePublisher {
    pub async fn run(self) {
        let (stop, mut position) = (self.writer.stop.clone(), self.writer.roll.transitions().end());
        let (mut pause, mut round) = (TICK, None);
        while !is_over(&stop, pause).await {
            let (began, is_ready) = (Stopwatch::start(), self.published.is_ready());
            if let Some(broker) = &self.broker {
                self.writer.roll.census().publishes(broker, is_ready);
            }
            if !is_ready {
                round = None;
                continue;
            }
            let transitions = self.writer.roll.transitions().after(position, TRANSITIONS);
            position = transitions.end;
            for record in &transitions.items {
                self.published.doubt(&record.id.unit);
            }
            let units = self.sources.mirror.total() + round.as_ref().map_or(0, Round::units);
            self.published.expect(units);
            let published = stop.run_until_cancelled(async {
                let read = self.pass(&mut Pass::begin(&self.published)).await;
                self.read_elsewhere(&mut round).await;
                read
            });
            let published = published.await;
            pause =
                TICK.max(PAUSE * published.map_or(Duration::ZERO, |read| read.unwrap_or(began.elapsed())));
        }
    }

    /// Publishes every difference. Returns how long reading the mirror took; an error: the rest waits for the next pass.
    async fn pass(&self, pass: &mut Pass) -> Result<Duration, Interrupted> {
        let (roll, mirror) = (&self.writer.roll, &self.sources.mirror);
        let (mut cursor, mut chunk) = (Cursor::new(UnitFilter::default()), Chunk::default());
        let (mut read, mut differing) = (Duration::ZERO, Vec::new());
        let (hearing, now, batch) = (roll.hearing(), self.writer.clock.now(), self.config.batch());
        loop {
            let began = Stopwatch::start();
            let is_more = mirror.read_next(&mut cursor, &mut chunk, &hearing, now);
            if is_more {
                let mut published = self.published.lock();
                for view in mirror.units(&chunk) {
                    let (name, moment) = ((view.kind, view.id), view.last_seen.max(view.announced_at));
                    let before = published.differs(name, view.state, moment, pass.number);
                    let is_undiscovered = self.is_undiscovered(name, &published, pass);
                    if before.is_none() && !is_undiscovered {
                        continue;
                    }
                    let unit = Unit::new(view.kind.parse().expect("a kind"), view.id.parse().expect("an id"));
                    if self.owns(&unit) {
                        pass.undiscovered.extend(is_undiscovered.then(|| unit.clone()));
                        differing.extend(before.map(|before| Differing { unit, before, moment }));
                    }
                }
            }
            read += began.elapsed();
            while differing.len() >= batch || (!is_more && !differing.is_empty()) {
                let rest = differing.split_off(differing.len().min(batch));
                self.publish(&differing, pass).await?;
                differing = rest;
            }
            if !is_more {
                break;
            }
            tokio::task::yield_now().await;
        }
        let is_filled = |partition| {
            self.sources.ownership.owns(partition) && self.sources.mirror.is_partition_filled(partition)
        };
        self.publish_discovery(pass).await?;
        self.remove_gone(pass.number, is_filled).await?;
        Ok(read)
    }

    /// Whether the discovery message of a unit has to be published in this pass.
    fn is_undiscovered(&self, name: (&str, &str), published: &PublishedStates, pass: &Pass) -> bool {
        let has_room = pass.undiscovered.len() < self.config.rate as usize;
        self.config.has_discovery && has_room && !published.is_discovered(&topics::object(name.0, name.1))
    }

    fn owns(&self, unit: &Unit) -> bool {
        self.sources.ownership.owns(self.partition_of(unit))
    }

    fn partition_of(&self, unit: &Unit) -> u16 {
        partition_of(unit, self.sources.mirror.partition_count())
    }

    /// Publishes the states of units as the engine holds them now, at the allowed rate.
    async fn publish(&self, units: &[Differing], pass: &mut Pass) -> Result<(), Interrupted> {
        let began = Stopwatch::start();
        if pass.returns.is_none() && units.iter().filter(|one| one.before.is_none()).count() > FEW {
            let returns = self.writer.roll.last_returns().await;
            pass.returns = Some(returns.map_err(|error| self.engine_failed(&error))?);
        }
        let returns = pass.returns.as_ref();
        let wanted: Vec<(Unit, LastReturn)> = units.iter().map(|one| one.with_return(returns)).collect();
        let states = self.writer.roll.states(&wanted, self.writer.clock.now()).await;
        let states = states.map_err(|error| self.engine_failed(&error))?;
        self.writer.telemetry.engine_answered(Loop::States, "");
        let mut count = 0;
        for (Differing { unit, moment, .. }, state) in units.iter().zip(states) {
            let Some(state) = state else { continue };
            let payload = topics::payload(&state);
            // Before it is sent: another instance may publish a newer state meanwhile.
            let sent = PublishedState::new(state.state, *moment, pass.number);
            self.published.lock().set(unit, sent);
            self.send(StateTopics::of(unit).state, payload).await?;
            count += 1;
        }
        self.keep_rate(count, began).await;
        Ok(())
    }

    /// Publishes the discovery messages that are missing, or not as they should be, of units that the pass found.
    async fn publish_discovery(&self, pass: &mut Pass) -> Result<(), Interrupted> {
        for units in std::mem::take(&mut pass.undiscovered).chunks(self.config.batch()) {
            let (began, mut count) = (Stopwatch::start(), 0);
            for unit in units {
                let topics = StateTopics::of(unit);
                {
                    // Before it is sent: another client may overwrite it meanwhile.
                    let mut published = self.published.lock();
                    if !published.has(unit) {
                        continue;
                    }
                    published.discovered(&topics.object);
                }
                self.send(topics.discovery(), topics.discovery_payload(unit)).await?;
                count += 1;
            }
            self.keep_rate(count, began).await;
        }
        Ok(())
    }

    /// Removes what is published of units that the fleet does not have any more. `is_read`: the pass read that partition
    /// whole.
    async fn remove_gone(&self, pass: u32, is_read: impl Fn(u16) -> bool) -> Result<(), Interrupted> {
        let missing = self.published.lock().missing(pass, |unit| is_read(self.partition_of(unit)));
        for units in missing.chunks(self.config.batch()) {
            let began = Stopwatch::start();
            let wanted: Vec<(Unit, LastReturn)> =
                units.iter().map(|unit| (unit.clone(), LastReturn::Known(None))).collect();
            // The mirror may be a moment behind the engine.
            let states = self.writer.roll.states(&wanted, self.writer.clock.now()).await;
            let states = states.map_err(|error| self.engine_failed(&error))?;
            let mut count = 0;
            for (unit, _) in units.iter().zip(states).filter(|(_, state)| state.is_none()) {
                let topics = StateTopics::of(unit);
                // Also if it is not known: another client may have overwritten it.
                if self.config.has_discovery {
                    self.send(topics.discovery(), Vec::new()).await?;
                    self.published.lock().removed_discovery(&topics.object);
                    count += 1;
                }
                self.send(topics.state, Vec::new()).await?;
                self.published.lock().remove(unit);
                count += 1;
            }
            self.keep_rate(count, began).await;
        }
        Ok(())
    }

    async fn send(&self, topic: String, payload: Vec<u8>) -> Result<(), Interrupted> {
        let is_removal = payload.is_empty();
        let outcome = match self.outlet.publish(topic, payload).await {
            Some(true) if is_removal => PublishedOutcome::Removed,
            Some(true) => PublishedOutcome::Published,
            Some(false) => PublishedOutcome::Refused,
            None => return Err(Interrupted),
        };
        self.writer.telemetry.state_published(outcome);
        Ok(())
    }

    fn engine_failed(&self, error: &crate::store::EngineError) -> Interrupted {
        self.writer.telemetry.engine_failed(Loop::States, "", error);
        Interrupted
    }

    /// Waits until this many messages since `began` are within the rate.
    async fn keep_rate(&self, count: u32, began: Stopwatch) {
        let allowed = Duration::from_secs(1) * count / self.config.rate.max(1);
        sleep(allowed.saturating_sub(began.elapsed())).await;
    }
}

/// Waits; returns `true` if Rollcall is stopping.
async fn is_over(stop: &CancellationToken, pause: Duration) -> bool {
    stop.run_until_cancelled(sleep(pause)).await.is_none()
}

/// Handles a message of another client on a topic of states: another instance, or a former process. An empty `payload`
/// removes the state. Kinds that are not configured are those of another fleet at the broker.
pub(super) fn heard(published: &Published, rules: &SharedRules, topic: &str, payload: &[u8]) {
    let is_of_fleet = |unit: &Unit| rules.of(unit.kind.as_str()).is_some();
    if let Some(unit) = unit_of(topic).filter(is_of_fleet) {
        let mut published = published.lock();
        match payload.is_empty() {
            true => published.remove(&unit),
            false => published.heard(&unit, topics::read(payload)),
        }
    } else if let Some(object) = object_of(topic) {
        let unit = topics::discovered_unit(object, payload).filter(is_of_fleet);
        published.lock().heard_discovery(object, unit.is_some());
    }
}

/// A moment that no heartbeat has, so that the state is published again.
const NO_MOMENT: Option<Timestamp> = Some(Timestamp::ZERO);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Rules;
    use crate::presence::{Kind, KindRules};

    #[test]
    fn a_small_rate_goes_out_in_small_parts() {
        for (rate, batch) in [(1, 1), (5, 1), (19, 1), (40, 4), (4999, 499), (20_000, 500), (1_000_000, 500)]
        {
            let config = StatesConfig { rate, has_discovery: true };
            assert_eq!(config.batch(), batch, "{rate}");
        }
    }

    #[test]
    fn states_of_kinds_that_are_not_configured_are_those_of_another_fleet() {
        let pump: Kind = "pump".parse().unwrap();
        let rules = Rules::from_iter([(pump.clone(), KindRules::new(pump))]);
        let rules = SharedRules::from(Arc::new(rules));
        let published = Published::default();
        let sensor = |unit: &str| {
            let unit: Unit = unit.parse().unwrap();
            let topics = StateTopics::of(&unit);
            (topics.discovery(), topics.discovery_payload(&unit))
        };
        for unit in ["pump:7", "valve:7"] {
            let topic = StateTopics::of(&unit.parse().unwrap()).state;
            heard(&published, &rules, &topic, br#"{"state":"online"}"#);
            let (topic, payload) = sensor(unit);
            heard(&published, &rules, &topic, &payload);
        }
        let missing = || published.lock().missing(1, |_| true);
        let is_discovered = |kind: &str| published.lock().is_discovered(&topics::object(kind, "7"));
        let pump: Unit = "pump:7".parse().unwrap();
        assert_eq!(missing(), [pump]);
        assert_eq!((is_discovered("pump"), is_discovered("valve")), (true, false));
        // Another client overwrites and removes what is published.
        let (topic, _) = sensor("pump:7");
        for payload in [&b"{\"name\":\"another\"}"[..], b""] {
            heard(&published, &rules, &topic, &sensor("pump:7").1);
            assert!(is_discovered("pump"));
            heard(&published, &rules, &topic, payload);
            assert!(!is_discovered("pump"));
        }
        heard(&published, &rules, "rollcall/state/pump/7", b"");
        assert_eq!(missing(), []);
    }
}
