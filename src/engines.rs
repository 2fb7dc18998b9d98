//! What the program does with the engine of a configuration. The engines are told apart here and in
//! `config/engine.rs`, where their options are checked, and nowhere else above the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::presence::Kind;
use crate::store::embedded::{self, EmbeddedEngine, EmbeddedImporter, EmbeddedRepair};
use crate::store::redis::{self, RedisConfig, RedisEngine, RedisImporter, RedisRepair};
use crate::store::repair::Repair;
use crate::store::{Backlog, Condition, Engine, EngineError, Result, ServerCondition, migration::Importer};
use crate::telemetry::Telemetry;

/// Opens the engine. Units are counted by these labels.
pub async fn open(
    config: &EngineConfig,
    labels: &[String],
    telemetry: Arc<Telemetry>,
) -> Result<Arc<dyn Engine>> {
    Ok(match config {
        EngineConfig::Redis(config) => Arc::new(RedisEngine::connect(config, telemetry).await?),
        EngineConfig::Embedded(config) => {
            Arc::new(EmbeddedEngine::open_with_labels(config, labels, telemetry).await?)
        }
    })
}

/// Opens the engine; fails if an instance serves the fleet.
pub async fn open_unserved(config: &EngineConfig, telemetry: Arc<Telemetry>) -> Result<Arc<dyn Engine>> {
    let engine = open(config, &[], telemetry).await?;
    engine.check_not_served().await?;
    Ok(engine)
}

/// Prepares an engine without a fleet for a fleet that is moved to it.
pub async fn prepare(config: &EngineConfig, telemetry: Arc<Telemetry>) -> Result<Box<dyn Importer>> {
    Ok(match config {
        EngineConfig::Redis(config) => Box::new(RedisImporter::prepare(config, telemetry).await?),
        EngineConfig::Embedded(config) => Box::new(EmbeddedImporter::prepare(config).await?),
    })
}

/// The quarantined values of the engine; `None` if it has no fleet.
pub async fn repair(config: &EngineConfig) -> Result<Option<Box<dyn Repair>>> {
    Ok(match config {
        EngineConfig::Redis(config) => Some(Box::new(RedisRepair::open(config, command_telemetry()).await?)),
        EngineConfig::Embedded(config) => {
            EmbeddedRepair::new(&config.path)?.map(|repair| Box::new(repair) as Box<dyn Repair>)
        }
    })
}

/// Fails if the service would refuse the stored fleet, as far as that is known without a server. Reads only.
pub fn check_stored(config: &EngineConfig) -> Result<()> {
    match config {
        EngineConfig::Redis(_) => Ok(()),
        EngineConfig::Embedded(config) => embedded::check_stored(config),
    }
}

/// The condition of the engine, also while an instance serves the fleet.
pub async fn survey(config: &EngineConfig) -> Result<Condition> {
    match config {
        EngineConfig::Redis(config) => {
            redis::survey(config, Clock::system().now(), command_telemetry()).await
        }
        EngineConfig::Embedded(config) => embedded::survey(config).await,
    }
}

/// The condition of each server, if the engine has several.
pub async fn servers(config: &EngineConfig) -> Result<Vec<ServerCondition>> {
    match config {
        EngineConfig::Redis(config) => {
            redis::servers(config, Clock::system().now(), command_telemetry()).await
        }
        EngineConfig::Embedded(_) => Ok(Vec::new()),
    }
}

/// The number of partitions of the fleet; `None` if there is none.
pub async fn partitions(config: &EngineConfig) -> Result<Option<u16>> {
    read(config, redis::partitions, embedded::partitions).await
}

/// The key of the fleet, if there is one.
pub async fn fleet_key(config: &EngineConfig) -> Result<Option<String>> {
    read(config, redis::fleet_key, embedded::fleet_key).await
}

/// The open records of each kind.
pub async fn open_by_kind(config: &EngineConfig) -> Result<BTreeMap<Kind, u64>> {
    read(config, redis::open_by_kind, embedded::open_by_kind).await
}

/// What is kept for each receiver.
pub async fn backlogs(config: &EngineConfig) -> Result<Vec<(String, Backlog)>> {
    read(config, redis::kept_in, embedded::backlogs_in).await
}

/// Reads from the engine, also while an instance serves the fleet.
async fn read<T: Send + 'static>(
    config: &EngineConfig,
    redis: impl AsyncFnOnce(&RedisConfig, Arc<Telemetry>) -> Result<T>,
    embedded: fn(&Path) -> Result<T>,
) -> Result<T> {
    match config {
        EngineConfig::Redis(config) => redis(config, command_telemetry()).await,
        EngineConfig::Embedded(config) => {
            let path = config.path.clone();
            let ended = |_| EngineError::Unavailable("reading the fleet was broken off".into());
            tokio::task::spawn_blocking(move || embedded(&path)).await.map_err(ended)?
        }
    }
}

/// The telemetry of a command, which nothing serves.
pub fn command_telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::system()))
}
