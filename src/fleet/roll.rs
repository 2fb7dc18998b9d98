//! The roll of the fleet: takes heartbeats, checks deadlines and applies the changes that follow.
//!
//! The one place where stored state meets the rules: the roll reads snapshots, lets [`crate::presence`] decide, and
//! applies the changes. A change that comes too late, because the unit changed in between, is decided again from what
//! is stored then.
//!
//! | file | part |
//! |---|---|
//! | `admission.rs`, `rounds.rs` | heartbeats: those of present units on the fast path, others decided one by one |
//! | `announcements.rs` | announcements that units are gone |
//! | `checks.rs`, `absent_keys.rs`, `unheard.rs` | deadline checks |
//! | `corrections.rs`, `unwatched.rs` | units of which the stored state is unreadable or no longer watched |
//! | `operators.rs` | units that operators pause, and records that they acknowledge |
//! | `changes.rs`, `unconfirmed.rs` | changes, their effects, and those without an answer |
//! | `hearing.rs`, `brokers.rs`, `lost_connections.rs` | how far Rollcall has heard, and each broker of several |
//! | `states.rs` | the states of units, and since when; units whose silence is unusual |
//! | `inventory.rs` | units of an inventory |

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Notify;

use super::census::Census;
use super::declared::Declarations;
use super::node_deaths::NodeDeaths;
use super::{CanaryPace, Mirror, Places, Rules, SharedRules, Strangers, Transitions};
use crate::clock::Timestamp;
use crate::presence::{self, BrokerName, Change, Filters, Kind, Registration, Snapshot, Unit};
use crate::store::{EngineError, FleetStore, MAX_CHANGES, Reading, Result};
use crate::telemetry::Telemetry;

mod absent_keys;
mod admission;
mod announcements;
mod brokers;
mod changes;
mod checks;
mod corrections;
mod hearing;
mod inventory;
mod lost_connections;
mod operators;
mod rounds;
mod states;
mod unconfirmed;
mod unheard;
mod unwatched;

use absent_keys::AbsentKeys;
pub use brokers::BrokerHearing;
use hearing::CurrentHearing;
pub use hearing::HearingConfig;
pub use inventory::Registered;
use lost_connections::LostConnections;
pub use operators::UnitChange;
pub use states::LastReturn;
use unconfirmed::Unconfirmed;

/// Applies the rules to the stored state of the fleet.
pub struct Roll {
    engine: Arc<dyn FleetStore>,
    rules: SharedRules,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    config: HearingConfig,
    pace: Arc<CanaryPace>,
    census: Arc<Census>,
    strangers: Strangers,
    places: Places,
    transitions: Transitions,
    filters: Filters,
    brokers: Vec<BrokerName>,
    heard: RwLock<CurrentHearing>,
    lost: LostConnections,
    hearing_reads: AtomicU64,
    declared: Declarations,
    node_deaths: NodeDeaths,
    absent_keys: AbsentKeys,
    unconfirmed: Unconfirmed,
    heard_more: Notify,
    outbox_grew: Arc<Notify>,
}

impl Roll {
    /// `outbox_grew` is notified of each entry of the outbox.
    pub fn new(
        engine: Arc<dyn FleetStore>,
        rules: impl Into<SharedRules>,
        mirror: Arc<Mirror>,
        telemetry: Arc<Telemetry>,
        config: HearingConfig,
        outbox_grew: Arc<Notify>,
    ) -> Roll {
        let rules = rules.into();
        let pace =
            if config.follows { CanaryPace::following(config.gap) } else { CanaryPace::fixed(config.gap) };
        let pace = Arc::new(pace);
        let census = Arc::new(Census::new(rules.clone(), mirror.clone(), telemetry.clone(), pace.clone()));
        Roll {
            census,
            strangers: Strangers::default(),
            places: Places::default(),
            transitions: Transitions::default(),
            node_deaths: NodeDeaths::new(engine.clone()),
            engine,
            rules,
            mirror,
            telemetry,
            config,
            pace,
            filters: Filters::default(),
            brokers: Vec::new(),
            heard: RwLock::default(),
            lost: LostConnections::default(),
            hearing_reads: AtomicU64::default(),
            declared: Declarations::default(),
            absent_keys: AbsentKeys::default(),
            unconfirmed: Unconfirmed::default(),
            heard_more: Notify::new(),
            outbox_grew,
        }
    }

    /// Sets the filters by which kinds are heard. A kind is heard only as far as the filter that is heard least.
    pub fn with_filters(self, filters: Filters) -> Roll {
        Roll { filters, ..self }
    }

    /// The filters by which kinds are heard.
    pub fn filters(&self) -> &Filters {
        &self.filters
    }

    /// Sets the brokers of the fleet, if it has several. A unit is decided upon by the hearing of the broker at which
    /// it was last heard.
    pub fn with_brokers(self, brokers: Vec<BrokerName>) -> Roll {
        Roll { brokers, ..self }
    }

    /// How many units there are, and whether there is room for more.
    pub fn census(&self) -> &Arc<Census> {
        &self.census
    }

    /// The ids that were heard and do not belong to units.
    pub fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// The newest transitions that this process has applied.
    pub fn transitions(&self) -> &Transitions {
        &self.transitions
    }

    pub fn rules(&self) -> Arc<Rules> {
        self.rules.rules()
    }

    pub fn shared_rules(&self) -> &SharedRules {
        &self.rules
    }

    /// Decides by the rules `wanted` from now on. Units whose deadlines are earlier by these rules are checked by the
    /// walk. Returns the kinds whose rules changed.
    pub fn replace_rules(&self, wanted: &Rules) -> Vec<Kind> {
        let changed = self.rules.replace(wanted);
        for rules in changed.iter().filter_map(|kind| wanted.get(kind)) {
            self.pace.met_timeout(&rules.kind, rules.policy.timeout);
        }
        changed
    }

    /// How often hearing is to be proved.
    pub fn pace(&self) -> &Arc<CanaryPace> {
        &self.pace
    }

    /// How far away the engine is: see [`UnitStore::round_trip`](crate::store::UnitStore::round_trip).
    pub fn round_trip(&self) -> Duration {
        self.engine.round_trip()
    }

    /// Writes metrics of units: see [`DataStore::keep_values`](crate::store::DataStore::keep_values).
    pub async fn keep_values(&self, readings: &[Reading<'_>]) -> Result<Vec<bool>> {
        self.engine.keep_values(readings).await
    }

    /// Registers a unit or changes its settings; `false` for the id of a probe and for a kind that is not configured.
    pub async fn register(&self, unit: &Unit, wanted: &Registration, now: Timestamp) -> Result<bool> {
        let rules = self.rules.of(unit.kind.as_str());
        let Some(rules) = rules.filter(|_| !unit.id.is_reserved()) else {
            return Ok(false);
        };
        let hearing = self.hearing();
        self.decide(unit, |seen| Some(presence::register(seen, wanted, &rules, &hearing, now))).await
    }

    /// Removes a unit from the fleet; its later heartbeats are counted and change nothing.
    pub async fn retire(&self, unit: &Unit, now: Timestamp) -> Result<bool> {
        let retired = self.decide(unit, |seen| presence::retire(seen, now)).await?;
        self.declared.forget(unit);
        Ok(retired)
    }

    async fn decide(&self, unit: &Unit, decision: impl Fn(&Snapshot) -> Option<Change>) -> Result<bool> {
        for _ in 0..MAX_CHANGES {
            for seen in self.engine.read(std::slice::from_ref(unit)).await? {
                let Some(change) = decision(&seen) else { return Ok(false) };
                if self.apply(&[(seen, change)]).await? == [true] {
                    return Ok(true);
                }
            }
        }
        Err(EngineError::contended(unit))
    }
}
