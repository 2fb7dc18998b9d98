//! The engine on Redis (6.2 or newer, or Valkey), where a fleet of millions lives.
//!
//! Redis holds everything; an instance that dies leaves nothing behind but a lease. The expiry of a
//! key is a hint and never a verdict: what decides is the value of the key, the facts beside it and
//! the time that the caller brings. Keys are listed in `keys.rs`; what must happen in one step is a
//! script in `scripts/`, whose head says what it does.
//!
//! # Why the scripts hold no rules
//! A decision is made in `presence` from a snapshot and applied by one script that first compares
//! the unit with the snapshot. That costs one more round trip than deciding in Lua would, and buys
//! rules that exist once, for every engine, with property tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use redis::pipe;
use tokio::sync::Notify;

use super::{Backlog, EngineError, Examine, Layout, Result, Warning};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};
use crate::store::Condition;
use crate::telemetry::Telemetry;

mod absence;
mod admission;
mod clock_jump;
mod conditional;
mod config;
mod data;
mod deadline_check;
mod dedicated;
mod deliveries;
mod ending;
mod examine;
mod exporter;
mod fields;
mod fleet_loss;
mod group_of;
mod groups;
mod hand_out;
mod hearing;
mod hearing_fields;
mod hints;
mod importer;
mod joining;
mod keys;
mod lanes;
mod ledger;
mod open_records;
mod outbox;
mod quarantine;
mod queries;
mod reading;
mod receivers;
mod repair;
mod rights;
mod roster;
mod round_trip;
mod scripts;
mod topology;
mod units;

use clock_jump::ServerClock;
pub use config::Config;
use fleet_loss::KnownFleet;
pub use importer::RedisImporter;
use keys::Keys;
pub use repair::RedisRepair;
pub use rights::{COMMANDS, OF_A_CONNECTION, OPTIONAL};
#[doc(hidden)]
pub use scripts::RENEW;
use scripts::Scripts;
use topology::Topology;

/// The key under which another program finds the facts of a unit, a field with its name; `encoding` reads
/// them. The fleet has that prefix and so many partitions.
pub fn facts_key(prefix: &str, partitions: u16, unit: &Unit) -> String {
    let keys = Keys::new(prefix, partitions);
    let (partition, page) = keys.page_id(unit);
    keys.facts_page(partition, page)
}

/// The engine on Redis.
pub struct RedisEngine {
    topology: Topology,
    keys: Keys,
    scripts: Scripts,
    ledger: tokio::sync::Mutex<ledger::CachedLedger>,
    /// No lock is held while anything is awaited.
    server_clock: std::sync::Mutex<ServerClock>,
    fleet: String,
    /// What canaries are signed by.
    key: String,
    /// What this instance knew last, kept until its loss is written: see `fleet_loss.rs`.
    known_fleet: std::sync::Mutex<KnownFleet>,
    last_read: conditional::LastRead,
    telemetry: Arc<Telemetry>,
    /// The groups of what was told by an earlier version: see `group_of.rs`.
    groups_are_kept: tokio::sync::OnceCell<()>,
    /// Rung when it is told that an instance came or went.
    roster_changed: Arc<Notify>,
}

impl RedisEngine {
    /// Connects, and creates the fleet if there is none.
    ///
    /// # Errors
    /// `Unavailable` while the server cannot be reached; `Refused` if it does not let us in, or if
    /// the fleet there was created with another number of partitions.
    pub async fn connect(config: &Config, telemetry: Arc<Telemetry>) -> Result<RedisEngine> {
        let topology = Topology::new(config, telemetry.clone())?;
        let keys = Keys::new(&config.prefix, config.partitions);
        let begun = async {
            let (fleet, key) = found_fleet(&topology, &keys, None).await?;
            let known_fleet = std::sync::Mutex::new(KnownFleet::begin(&topology, &keys, &fleet).await?);
            topology.prepare_dedicated().await.map(|()| (fleet, key, known_fleet))
        };
        let (fleet, key, known_fleet) = match begun.await {
            Err(EngineError::Refused(why)) => {
                let lacks = rights::missing(&topology, &keys).await.ok().flatten();
                let lacks = lacks.map(|lacks| format!("; {lacks}")).unwrap_or_default();
                return Err(EngineError::Refused(format!("{why}{lacks}")));
            }
            begun => begun?,
        };
        Ok(RedisEngine {
            topology,
            keys,
            scripts: Scripts::new(),
            ledger: Default::default(),
            server_clock: Default::default(),
            fleet,
            key,
            known_fleet,
            last_read: Default::default(),
            telemetry,
            groups_are_kept: Default::default(),
            roster_changed: Arc::default(),
        })
    }

    /// What the server's clock should tell.
    fn server_clock(&self) -> std::sync::MutexGuard<'_, ServerClock> {
        self.server_clock.lock().expect("nothing panics under this lock")
    }
}

/// Finds the fleet or creates it, and answers with its id and with what canaries are signed by: the id, unless the
/// fleet is there in the place of one that was lost. Then its instances go on with what they have, which is `key`.
async fn found_fleet(topology: &Topology, keys: &Keys, key: Option<&str>) -> Result<(String, String)> {
    check_whole(topology, keys).await?;
    let meta = keys.meta();
    let id = format!("{:016x}", rand::random::<u64>());
    let mut pipe = pipe();
    pipe.atomic().hset_nx(&meta, "fleet", id).ignore();
    pipe.hset_nx(&meta, "partitions", keys.partitions()).ignore();
    if let Some(key) = key {
        pipe.hset_nx(&meta, "key", key).ignore();
    }
    pipe.hmget(&meta, &["fleet", "partitions", "key"]);
    let ((fleet, partitions, key),): ((String, u16, Option<String>),) = topology.send("meta", &pipe).await?;
    check_partitions(topology, keys, partitions)?;
    let key = key.unwrap_or_else(|| fleet.clone());
    Ok((fleet, key))
}

/// Over how many partitions the fleet on the server of `config` is spread; `None` if there is none.
///
/// # Errors
/// `Unavailable` if it cannot be reached; `Refused` if it does not let us in.
pub async fn partitions(config: &Config, telemetry: Arc<Telemetry>) -> Result<Option<u16>> {
    let topology = Topology::new(config, telemetry)?;
    let mut look = pipe();
    look.hmget(Keys::new(&config.prefix, config.partitions).meta(), &["fleet", "partitions"]);
    let ((fleet, partitions),): ((Option<String>, Option<u16>),) = topology.send("meta", &look).await?;
    Ok(fleet.and(partitions))
}

/// What is kept for each receiver of the fleet on the server of `config`, configured or not. Changes nothing.
///
/// # Errors
/// `Unavailable` if it cannot be reached; `Refused` if it does not let us in.
pub async fn kept_in(config: &Config, telemetry: Arc<Telemetry>) -> Result<Vec<(String, Backlog)>> {
    let topology = Topology::new(config, telemetry)?;
    receivers::kept(&topology, &Keys::new(&config.prefix, config.partitions)).await
}

/// How many names of units with an open record are read at a time, and how often of each partition.
const OPEN_STEP: isize = 1000;
const MOST_OPEN_STEPS: isize = 50;

/// How many open records there are, by the kinds of their units. Looks at no more than some hundred thousand.
///
/// # Errors
/// `Unavailable` if it cannot be reached; `Refused` if it does not let us in.
pub async fn open_by_kind(config: &Config, telemetry: Arc<Telemetry>) -> Result<BTreeMap<Kind, u64>> {
    let (topology, keys) = (Topology::new(config, telemetry)?, Keys::new(&config.prefix, config.partitions));
    let mut open = BTreeMap::new();
    for partition in 0..keys.partitions() {
        for step in 0..MOST_OPEN_STEPS {
            let mut look = pipe();
            look.zrange(
                keys.in_partition(partition, "offline"),
                step * OPEN_STEP,
                (step + 1) * OPEN_STEP - 1,
            );
            let (names,): (Vec<Vec<u8>>,) = topology.send("open", &look).await?;
            let units = names.iter().filter_map(|name| str::from_utf8(name).ok()?.parse::<Unit>().ok());
            units.for_each(|unit| *open.entry(unit.kind).or_default() += 1);
            if names.len() < OPEN_STEP as usize {
                break;
            }
        }
    }
    Ok(open)
}

/// Refuses a part of a fleet that is on its way here.
async fn check_whole(topology: &Topology, keys: &Keys) -> Result<()> {
    let mut look = pipe();
    look.hget(keys.meta(), "moving");
    match topology.send("meta", &look).await? {
        (None::<String>,) => Ok(()),
        _ => Err(EngineError::Refused(format!(
            "a move to {} has begun and is not complete; let it end, or repeat it: rollcall move",
            topology.address()
        ))),
    }
}

fn check_partitions(topology: &Topology, keys: &Keys, partitions: u16) -> Result<()> {
    if partitions != keys.partitions() {
        return Err(EngineError::Refused(format!(
            "the fleet at {} was created with {partitions} partitions, engine.partitions says {}; \
             write {partitions} there, or choose another engine.prefix for a new fleet",
            topology.address(),
            keys.partitions()
        )));
    }
    Ok(())
}

/// Looks at the server of `config` without changing anything: whether the service could run on it, and
/// what is wrong with it.
///
/// # Errors
/// `Unavailable` if it cannot be reached; `Refused` if the service would be refused there.
pub async fn survey(config: &Config, now: Timestamp, telemetry: Arc<Telemetry>) -> Result<Condition> {
    let topology = Topology::new(config, telemetry)?;
    examine::survey(&topology, &Keys::new(&config.prefix, config.partitions), now).await
}

impl Layout for RedisEngine {
    fn partitions(&self) -> u16 {
        self.keys.partitions()
    }

    fn pages(&self) -> u32 {
        self.keys.pages()
    }
}

#[async_trait]
impl Examine for RedisEngine {
    async fn examine(&self, now: Timestamp) -> Result<Vec<Warning>> {
        examine::examine(self, now).await
    }

    async fn wants_examination(&self) {
        self.topology.met_wrong_type().await;
    }
}

/// The names of all sorts of keys, as they stand in `keys.rs`, and what each should be: for documentation and
/// tests. `{pN}` and `{hearing}` are the tags; `<>` follows where there is more than one.
pub fn sorts() -> Vec<(String, &'static str)> {
    let name = |sort: &keys::KeyRule| match (sort.name, sort.is_hearing, sort.has_owner) {
        ("meta", ..) => "meta".to_owned(),
        (name, true, false) => format!("{{hearing}}:{name}"),
        (name, true, true) => format!("{{hearing}}:{name}:<>"),
        (name, false, false) => format!("{{pN}}:{name}"),
        (name, false, true) => format!("{{pN}}:{name}:<>"),
    };
    keys::KEY_RULES.iter().map(|sort| (name(sort), sort.redis_type)).collect()
}
