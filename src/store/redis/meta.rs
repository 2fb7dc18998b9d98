//! `rollcall:meta`: the id of the fleet, and the properties that are fixed when the fleet is created. They determine
//! the names of the other keys, so this key is read first.
//!
//! # Why hearing has a copy
//! In a cluster the server of this key may lose its data while the other servers keep theirs. Without a copy, a new
//! fleet would be created beside the rest of the old one: no instance would watch its units, and running instances
//! would continue with the old fleet.

use std::str::FromStr;

use redis::pipe;

use super::RedisConfig;
use super::columns::{Column, add_block};
use super::key_scan::KeyScan;
use super::keys::Keys;
use super::scripts::Scripts;
use super::tags::HashTags;
use super::topology::{ScriptCall, Topology};
use crate::store::migration::{LAYOUT, check_layout, incomplete};
use crate::store::{EngineError, Result};
use crate::telemetry::Telemetry;

/// The number of keys that one step of the search for keys of another fleet reads, and the most steps: a server may
/// have millions of keys of other programs.
const SCANNED_AT_ONCE: usize = 1000;
const MAX_SCANS: usize = 1000;

/// A fleet that exists.
pub struct StoredFleet {
    pub id: String,
    /// The key that signs canaries: the id, unless the fleet replaces a lost fleet.
    pub key: String,
    pub keys: Keys,
}

pub async fn read_or_create(
    topology: &Topology,
    scripts: &Scripts,
    config: &RedisConfig,
) -> Result<StoredFleet> {
    let new = new_keys(config);
    check_whole(topology, &new).await?;
    let copy = if exists(topology, &new).await? { None } else { read_copy(topology, &new).await? };
    let fleet = match copy {
        Some(StoredFleet { id, key, keys }) => {
            tracing::error!(
                fleet = id,
                key = new.meta(),
                "the properties of the fleet were lost, and are written again from their copy; other keys of their \
                 server may be lost"
            );
            create(topology, scripts, &keys, (&id, &key)).await?
        }
        None => {
            refuse_remains(topology, &new).await?;
            create(topology, scripts, &new, (&new_id(), "")).await?
        }
    };
    check_partitions(topology, config, fleet.keys.partitions())?;
    Ok(fleet)
}

async fn exists(topology: &Topology, keys: &Keys) -> Result<bool> {
    let mut read = pipe();
    read.hexists(keys.meta(), "fleet");
    let (exists,): (bool,) = topology.send("meta", &read).await?;
    Ok(exists)
}

/// Refuses to create a fleet beside keys of another fleet whose properties and their copy are gone: the servers of
/// the properties lost their data.
async fn refuse_remains(topology: &Topology, keys: &Keys) -> Result<()> {
    if !topology.has_parts() {
        return Ok(());
    }
    let mut scan = KeyScan::of("scan", keys.tagged_pattern(), SCANNED_AT_ONCE);
    let mut found = None;
    for _ in 0..MAX_SCANS {
        let Some(keys) = scan.next(topology).await? else { break };
        found = keys.into_iter().next();
        if found.is_some() {
            break;
        }
    }
    // Another instance may just have created the fleet.
    let Some(found) = found else { return Ok(()) };
    if exists(topology, keys).await? {
        return Ok(());
    }
    Err(EngineError::Refused(format!(
        "the cluster at {} has keys of a fleet, such as {}, but its properties ({}) are gone, because servers lost their \
         data: restore a backup; or delete these keys, or choose another engine.prefix, to begin with a new fleet",
        topology.address(),
        String::from_utf8_lossy(&found),
        keys.meta()
    )))
}

/// Creates a fleet with the same keys after a loss, unless another instance has created it. The running instances
/// keep their `key`.
pub async fn replace(topology: &Topology, scripts: &Scripts, keys: &Keys, key: &str) -> Result<()> {
    check_whole(topology, keys).await?;
    let found = create(topology, scripts, keys, (&new_id(), key)).await?.keys;
    if (found.partitions(), found.tags()) == (keys.partitions(), keys.tags()) {
        return Ok(());
    }
    Err(EngineError::Refused(format!(
        "the fleet at {} was lost, and created again with {} partitions and {} tags; this instance has {} and {}: \
         restart it",
        topology.address(),
        found.partitions(),
        found.tags(),
        keys.partitions(),
        keys.tags()
    )))
}

/// A random id for a new fleet.
pub(super) fn new_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// The copy of the properties, as fields of `heard`.
pub(super) fn copy(keys: &Keys, key: &str) -> [(&'static str, String); 4] {
    [
        ("layout", LAYOUT.to_string()),
        ("partitions", keys.partitions().to_string()),
        ("tags", keys.tags().to_string()),
        ("key", key.to_owned()),
    ]
}

/// The fleet by the copy in `heard`, if `rollcall:meta` is gone; `None` without a copy.
async fn read_copy(topology: &Topology, new: &Keys) -> Result<Option<StoredFleet>> {
    let mut read = pipe();
    read.hmget(new.heard(), &["fleet", "partitions", "tags", "key", "layout"]);
    type Answer = (Option<String>, Option<String>, Option<String>, Option<String>, Option<String>);
    let ((id, partitions, tags, key, layout),): (Answer,) = topology.send("meta", &read).await?;
    let (Some(id), Some(_)) = (id, &partitions) else { return Ok(None) };
    let stored = Numbers { topology, key: new.heard() };
    stored.check(layout)?;
    let partitions = stored.number("partitions", partitions)?.unwrap_or(new.partitions());
    let keys = Keys::new(new.prefix(), partitions, read_tags(topology, tags.as_deref())?);
    Ok(Some(StoredFleet { key: key.unwrap_or_else(|| id.clone()), id, keys }))
}

async fn create(
    topology: &Topology,
    scripts: &Scripts,
    new: &Keys,
    (id, key): (&str, &str),
) -> Result<StoredFleet> {
    let meta = new.meta();
    let partitions = new.partitions().to_string();
    // Written in the step that creates the fleet: a fleet without the field has plain tags for ever.
    let tags = if new.tags() == HashTags::Plain { String::new() } else { new.tags().to_string() };
    let layout = LAYOUT.to_string();
    let of_new = [("layout", &*layout), ("tags", &*tags), ("key", key)];
    let of_new: Vec<(&str, &str)> = of_new.into_iter().filter(|(_, text)| !text.is_empty()).collect();
    let mut script = ScriptCall::of(&scripts.write_cells);
    // Each field is written if it is absent; those of a new fleet only if there is no fleet.
    for (fields, is_new) in [(of_new, true), (vec![("fleet", id), ("partitions", &*partitions)], false)] {
        let names = || fields.iter().map(|(name, _)| name.as_bytes());
        let fleet = names().filter(|_| is_new).map(|_| &b"fleet"[..]);
        let column = |what, times, words| Column { what, key: &meta, times, words };
        let texts = fields.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]);
        let absent = column("lacks", 1 + usize::from(is_new), names().chain(fleet).collect());
        add_block(&mut script, fields.len(), &[absent, column("put", 1, texts.collect())]);
    }
    let mut read = pipe();
    read.hmget(&meta, &["fleet", "partitions", "key", "tags", "layout"]);
    type Answer = (String, Option<String>, Option<String>, Option<String>, Option<String>);
    let (_written, (answer,)): (Vec<bool>, (Answer,)) =
        topology.run_and_send(None, "meta", script, &read).await?;
    let (id, partitions, key, tags, layout) = answer;
    let stored = Numbers { topology, key: new.meta() };
    stored.check(layout)?;
    let partitions = stored.number("partitions", partitions)?.unwrap_or(new.partitions());
    let keys = Keys::new(new.prefix(), partitions, read_tags(topology, tags.as_deref())?);
    Ok(StoredFleet { key: key.unwrap_or_else(|| id.clone()), id, keys })
}

/// The keys of the stored fleet, or of a new fleet if none is stored. Changes nothing.
pub async fn read_keys(topology: &Topology, config: &RedisConfig) -> Result<Keys> {
    let new = new_keys(config);
    let mut read = pipe();
    read.hmget(new.meta(), &["fleet", "moving", "partitions", "tags", "layout"]);
    type Answer = (Option<String>, Option<String>, Option<String>, Option<String>, Option<String>);
    let ((fleet, moving, partitions, tags, layout),): (Answer,) = topology.send("meta", &read).await?;
    if fleet.is_none() && moving.is_none() {
        return Ok(read_copy(topology, &new).await?.map_or(new, |fleet| fleet.keys));
    }
    let stored = Numbers { topology, key: new.meta() };
    if fleet.is_some() {
        stored.check(layout)?;
    }
    let partitions = stored.number("partitions", partitions)?.unwrap_or(new.partitions());
    if fleet.is_some() {
        check_partitions(topology, config, partitions)?;
    }
    Ok(Keys::new(&config.prefix, partitions, read_tags(topology, tags.as_deref())?))
}

/// The keys that a fleet of this configuration gets when it is created.
pub fn new_keys(config: &RedisConfig) -> Keys {
    let (partitions, tags) = config.new_fleet();
    Keys::new(&config.prefix, partitions, tags)
}

/// The number of partitions of the fleet of this configuration; `None` if there is no fleet.
///
/// # Errors
/// `Unavailable` if the server cannot be reached; `Refused` if it refuses the login.
pub async fn partitions(config: &RedisConfig, telemetry: std::sync::Arc<Telemetry>) -> Result<Option<u16>> {
    let topology = Topology::new(config, telemetry)?;
    let mut read = pipe();
    let stored = Numbers { topology: &topology, key: new_keys(config).meta() };
    read.hmget(&stored.key, &["fleet", "partitions"]);
    let ((fleet, partitions),): ((Option<String>, Option<String>),) = topology.send("meta", &read).await?;
    Ok(fleet.and(stored.number("partitions", partitions)?))
}

/// The key of the fleet of this configuration; `None` if there is no fleet. Changes nothing.
///
/// # Errors
/// `Unavailable` if the server cannot be reached; `Refused` if it refuses the login.
pub async fn fleet_key(config: &RedisConfig, telemetry: std::sync::Arc<Telemetry>) -> Result<Option<String>> {
    let topology = Topology::new(config, telemetry)?;
    let mut read = pipe();
    read.hmget(new_keys(config).meta(), &["fleet", "key"]);
    let ((fleet, key),): ((Option<String>, Option<String>),) = topology.send("meta", &read).await?;
    Ok(key.or(fleet))
}

/// Refuses a fleet whose migration is not complete.
pub async fn check_whole(topology: &Topology, keys: &Keys) -> Result<()> {
    let mut read = pipe();
    read.hget(keys.meta(), "moving");
    match topology.send("meta", &read).await? {
        (None::<String>,) => Ok(()),
        _ => Err(incomplete(topology.address())),
    }
}

/// The properties of a fleet that are numbers. They are read as texts: a text that is no number is the fault of what
/// wrote it, and not of the server.
struct Numbers<'a> {
    topology: &'a Topology,
    key: String,
}

impl Numbers<'_> {
    fn number<N: FromStr>(&self, property: &str, text: Option<String>) -> Result<Option<N>> {
        let read = |text: String| {
            text.parse::<N>().map_err(|_| {
                EngineError::Refused(format!(
                    "the {property} of the fleet at {} cannot be read: the field {property} of {} is {text:?}, and no \
                     number; restore a backup, or choose another engine.prefix for a new fleet",
                    self.topology.address(),
                    self.key
                ))
            })
        };
        text.map(read).transpose()
    }

    /// Refuses a fleet of another layout.
    fn check(&self, layout: Option<String>) -> Result<()> {
        check_layout(self.number("layout", layout)?, self.topology.address(), "engine.prefix")
    }
}

fn check_partitions(topology: &Topology, config: &RedisConfig, found: u16) -> Result<()> {
    match config.partitions {
        Some(partitions) if partitions != found => Err(EngineError::Refused(format!(
            "the fleet at {} was created with {found} partitions, engine.partitions says {partitions}; write {found} \
             there, or choose another engine.prefix for a new fleet",
            topology.address()
        ))),
        _ => Ok(()),
    }
}

fn read_tags(topology: &Topology, field: Option<&str>) -> Result<HashTags> {
    HashTags::read(field).ok_or_else(|| {
        EngineError::Refused(format!(
            "the fleet at {} has hash tags of the form {:?}, which this rollcall does not know; use the version of \
             rollcall that created it",
            topology.address(),
            field.unwrap_or_default()
        ))
    })
}
