//! An instance without its service: the parts that its loops share.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::expiry::{self, Expiry};
use rollcall::fleet::{HearingConfig, Mirror, Ownership, Roll, Rules};
use rollcall::presence::{Heartbeat, Kind, KindRules, Policy, Unit};
use rollcall::store::{Engine, Result};
use rollcall::telemetry::Telemetry;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A gap longer than the steps of the clock in any test: no time is blind.
const GAP: Duration = Duration::from_secs(1000);

pub struct Parts {
    pub engine: Arc<dyn Engine>,
    pub roll: Arc<Roll>,
    pub mirror: Arc<Mirror>,
    pub telemetry: Arc<Telemetry>,
    pub clock: Clock,
    /// The partitions of the instance: all, unless a test sets others.
    pub ownership: Ownership,
}

impl Parts {
    /// An instance over `engine` that knows kinds with these timeouts.
    pub fn new(
        engine: Arc<dyn Engine>,
        telemetry: Arc<Telemetry>,
        clock: &Clock,
        kinds: &[(&str, Duration)],
    ) -> Parts {
        let rules = kinds.iter().map(|(name, timeout)| {
            let kind: Kind = name.parse().unwrap();
            let policy = Policy { timeout: *timeout, grace: Duration::ZERO };
            (kind.clone(), KindRules { policy, ..KindRules::new(kind) })
        });
        let rules: Arc<Rules> = Arc::new(rules.collect());
        let mirror = Arc::new(Mirror::of(&*engine, rules.clone(), &[]));
        let config = HearingConfig { gap: GAP, follows: false, settle: Duration::ZERO, tell_after: GAP };
        let outbox_grew = Arc::new(Notify::new());
        let roll = Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), config, outbox_grew);
        let ownership = Ownership::of_everything(engine.partitions());
        Parts { engine, roll: Arc::new(roll), mirror, telemetry, clock: clock.clone(), ownership }
    }

    /// A heartbeat of the unit arrives now.
    pub async fn hear(&self, unit: &Unit) {
        self.hear_all(std::slice::from_ref(unit)).await.unwrap();
    }

    /// A heartbeat of each of these units arrives now.
    pub async fn hear_all(&self, units: &[Unit]) -> Result<()> {
        let now = self.clock.now();
        let beat = |unit: &Unit| Heartbeat::of(unit.clone(), now);
        self.roll.hear(&units.iter().map(beat).collect::<Vec<_>>(), now).await.map(drop)
    }

    /// Finds silences until the guard is dropped.
    pub fn expire(&self, config: expiry::Config) -> DropGuard {
        let expiry = Expiry {
            config,
            engine: self.engine.clone(),
            roll: self.roll.clone(),
            ownership: self.ownership.clone(),
            has_nodes: false,
            mirror: self.mirror.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        };
        let stop = CancellationToken::new();
        tokio::spawn(expiry.run(stop.clone()));
        stop.drop_guard()
    }
}
