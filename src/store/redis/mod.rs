//! The engine on Redis (6.2 or newer, or Valkey), where a fleet of millions lives.
//!
//! Redis has the whole state; an instance that dies leaves only its lease. The expiry of a key is a hint and decides
//! nothing: the value of the key, the facts and the caller's time decide. `clock_jump.rs` lists the clock of each.
//! `keys.rs` lists the keys. Each step that must happen in full or not at all is a script in `scripts/`, described in
//! its head.
//!
//! # Why the scripts have no rules
//! `presence` decides from a snapshot, and a script applies the change after it has compared the unit with the
//! snapshot. That costs one round trip more than a decision in Lua. In return each rule exists once for all
//! engines, with property tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use redis::pipe;
use tokio::sync::Notify;

use super::{Backlog, EngineError, Examine, Layout, Result, Warning};
use crate::clock::Timestamp;
use crate::presence::{Kind, Unit};
use crate::store::{Condition, Index, ReceiverName, ServerCondition, Table};
use crate::telemetry::Telemetry;

mod admission;
mod cells;
mod clock_difference;
mod clock_jump;
mod columns;
mod conditional;
mod config;
mod data;
mod deadline_check;
mod dedicated;
mod due_members;
mod eviction;
mod examine;
mod exporter;
mod fields;
mod fleet_loss;
mod hearing;
mod hearing_fields;
mod hints;
mod importer;
mod key_scan;
mod keys;
mod ledger;
mod meta;
mod open_records;
mod outbox;
mod quarantine;
mod queries;
mod reading;
mod repair;
mod replicas;
mod replication;
mod rights;
mod roster;
mod round_trip;
mod scripts;

mod survey;
mod tags;
mod target_check;
mod topology;
mod units;
mod watermarks;

use clock_jump::ServerClock;
pub use config::RedisConfig;
use fleet_loss::KnownFleet;
pub use importer::RedisImporter;
use key_scan::KeyScan;
use keys::Keys;
pub use meta::{fleet_key, partitions};
pub use repair::RedisRepair;
pub use rights::{COMMANDS, OF_A_CONNECTION, OPTIONAL};
#[doc(hidden)]
pub use scripts::RENEW;
use scripts::Scripts;
pub use tags::HashTags;
use topology::Topology;
pub use topology::{HostPort, Mode, RedisAddress, RedisAddressError, SCHEMES};

/// The key of the hash with the facts of a unit, for other programs; the field is the name of the unit, and
/// `encoding` reads its value.
pub fn facts_key(prefix: &str, partitions: u16, tags: HashTags, unit: &Unit) -> String {
    let keys = Keys::new(prefix, partitions, tags);
    let (partition, page) = keys.page_id(unit);
    keys.facts_page(partition, page)
}

pub struct RedisEngine {
    topology: Topology,
    keys: Keys,
    scripts: Scripts,
    /// Whether all keys of a script have to be in one slot: see `cells.rs`.
    has_slots: bool,
    ledger: tokio::sync::Mutex<ledger::CachedLedger>,
    /// Never locked across an await.
    server_clock: parking_lot::Mutex<ServerClock>,
    fleet: String,
    /// The key that signs canaries.
    key: String,
    /// The last known state of the fleet, kept until its loss is written: see `fleet_loss.rs`.
    known_fleet: parking_lot::Mutex<KnownFleet>,
    last_read: conditional::LastRead,
    wait: replication::Wait,
    /// The warnings about replicas that were late at the last wait, by server.
    late_replicas: parking_lot::Mutex<BTreeMap<String, String>>,
    away: examine::Unreachable,
    /// The scan for keys of a wrong type from before the start; `None` once it has ended.
    first_scan: tokio::sync::Mutex<Option<KeyScan>>,
    known_primaries: watermarks::KnownPrimaries,
    evictions: eviction::Evictions,
    /// The accepted steps of the clock, at the last renewal: see `clock/steps.rs`.
    steps: parking_lot::Mutex<roster::AcceptedSteps>,
    /// The eviction policy that an operator permits.
    allow_eviction: String,
    telemetry: Arc<Telemetry>,
    /// Notified when an instance starts or stops.
    roster_changed: Arc<Notify>,
    /// Whether the user may not subscribe to the roster. Logged once.
    roster_is_refused: AtomicBool,
}

impl RedisEngine {
    /// Connects, and creates the fleet if there is none.
    ///
    /// # Errors
    /// `Unavailable` while the server cannot be reached; `Refused` if it refuses the login, or if the fleet was
    /// created with another number of partitions.
    pub async fn connect(config: &RedisConfig, telemetry: Arc<Telemetry>) -> Result<RedisEngine> {
        let topology = Topology::new(config, telemetry.clone())?;
        let scripts = Scripts::new();
        let begun = async {
            eviction::refuse(&topology, &config.allow_eviction).await?;
            let fleet = meta::read_or_create(&topology, &scripts, config).await?;
            let known_fleet = KnownFleet::begin(&topology, &fleet).await?;
            topology.prepare_dedicated().await?;
            Ok((fleet, known_fleet, cells::has_slots(&topology).await?))
        };
        let (fleet, known_fleet, has_slots) = match begun.await {
            Err(EngineError::Refused(why)) => {
                let keys = meta::read_keys(&topology, config).await;
                let keys = keys.unwrap_or_else(|_| meta::new_keys(config));
                let lacks = rights::missing(&topology, &keys).await.ok().flatten();
                let lacks = lacks.map(|lacks| format!("; {lacks}")).unwrap_or_default();
                return Err(EngineError::Refused(format!("{why}{lacks}")));
            }
            begun => begun?,
        };
        let first_scan = Some(quarantine::scan(&fleet.keys)).into();
        Ok(RedisEngine {
            topology,
            keys: fleet.keys,
            scripts,
            has_slots,
            ledger: Default::default(),
            server_clock: Default::default(),
            fleet: fleet.id,
            key: fleet.key,
            known_fleet: known_fleet.into(),
            last_read: Default::default(),
            wait: replication::Wait::new(config),
            late_replicas: Default::default(),
            away: examine::Unreachable::default(),
            first_scan,
            known_primaries: watermarks::KnownPrimaries::default(),
            evictions: Default::default(),
            steps: parking_lot::Mutex::default(),
            allow_eviction: config.allow_eviction.clone(),
            telemetry,
            roster_changed: Arc::default(),
            roster_is_refused: AtomicBool::default(),
        })
    }
}

/// The backlog of each receiver of the fleet on the server of `config`, whether it is configured or not. Changes
/// nothing.
///
/// # Errors
/// `Unavailable` if the server cannot be reached; `Refused` if it refuses the login.
pub async fn kept_in(config: &RedisConfig, telemetry: Arc<Telemetry>) -> Result<Vec<(String, Backlog)>> {
    let topology = Topology::new(config, telemetry)?;
    let keys = meta::read_keys(&topology, config).await?;
    let mut read = pipe();
    read.hkeys(keys.cells(keys.partitions(), Table::ReceiverList));
    let (names,): (Vec<Vec<u8>>,) = topology.send("receivers", &read).await?;
    let mut kept = Vec::new();
    for name in names.into_iter().filter_map(|name| String::from_utf8(name).ok()) {
        let of = ReceiverName::of(&name);
        let mut sizes = pipe();
        for partition in 0..keys.partitions() {
            sizes
                .zcard(keys.index(partition, Index::Queue(of)))
                .zcard(keys.index(partition, Index::Dead(of)));
        }
        let sizes: Vec<u64> = topology.send("backlog", &sizes).await?;
        let every_other = |from: usize| sizes.iter().skip(from).step_by(2).sum();
        let backlog = Backlog { waiting: every_other(0), dead: every_other(1) };
        if backlog != Backlog::default() {
            kept.push((name, backlog));
        }
    }
    Ok(kept)
}

/// The number of units with an open record whose names one command reads, and the most commands for a partition.
const OPEN_STEP: isize = 1000;
const MAX_OPEN_STEPS: isize = 50;

/// The number of open records, by kind; counts at most 50 000 in each partition.
///
/// # Errors
/// `Unavailable` if the server cannot be reached; `Refused` if it refuses the login.
pub async fn open_by_kind(config: &RedisConfig, telemetry: Arc<Telemetry>) -> Result<BTreeMap<Kind, u64>> {
    let topology = Topology::new(config, telemetry)?;
    let keys = meta::read_keys(&topology, config).await?;
    let mut open = BTreeMap::new();
    for partition in 0..keys.partitions() {
        for step in 0..MAX_OPEN_STEPS {
            let mut read = pipe();
            read.zrange(
                keys.in_partition(partition, "offline"),
                step * OPEN_STEP,
                (step + 1) * OPEN_STEP - 1,
            );
            let (names,): (Vec<Vec<u8>>,) = topology.send("open", &read).await?;
            let units = names.iter().filter_map(|name| str::from_utf8(name).ok()?.parse::<Unit>().ok());
            units.for_each(|unit| *open.entry(unit.kind).or_default() += 1);
            if names.len() < OPEN_STEP as usize {
                break;
            }
        }
    }
    Ok(open)
}

/// The condition of the server of `config`. Changes nothing.
///
/// # Errors
/// `Unavailable` if the server cannot be reached; `Refused` if the service could not run on it.
pub async fn survey(config: &RedisConfig, now: Timestamp, telemetry: Arc<Telemetry>) -> Result<Condition> {
    let topology = Topology::new(config, telemetry)?;
    survey::survey(&topology, config, now).await
}

/// The condition of each server of `config`, if there are several: primaries, replicas, sentinels. Changes nothing.
///
/// # Errors
/// `Unavailable` if no server names the others.
pub async fn servers(
    config: &RedisConfig,
    now: Timestamp,
    telemetry: Arc<Telemetry>,
) -> Result<Vec<ServerCondition>> {
    let topology = Topology::new(config, telemetry)?;
    survey::servers(&topology, config, now).await
}

impl Layout for RedisEngine {
    fn partitions(&self) -> u16 {
        self.keys.partitions()
    }

    fn servers(&self) -> usize {
        self.topology.primaries()
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
        self.topology.quarantine_requested().await;
    }

    async fn suspects_its_servers(&self) {
        self.topology.examination_requested().await;
    }
}

/// The names and types of all sorts of keys, as in `keys.rs`: for documentation and tests. `{pN}`, which stands for
/// `{pN.s}` too, and `{hearing}` are the tags; `<>` stands for an owner.
pub fn sorts() -> Vec<(String, &'static str)> {
    let mut sorts = Vec::new();
    for sort in keys::KEY_RULES {
        let owner = if sort.has_owner { ":<>" } else { "" };
        let name = |tag: &str| format!("{tag}{}{owner}", sort.name);
        let places = [(keys::KeyPlace::Hearing, "{hearing}:"), (keys::KeyPlace::Partition, "{pN}:")];
        match sort.name {
            "meta" => sorts.push((name(""), sort.redis_type)),
            _ => {
                let tags = places.into_iter().filter(|(place, _)| sort.is_at(*place));
                sorts.extend(tags.map(|(_, tag)| (name(tag), sort.redis_type)));
            }
        }
    }
    sorts
}
