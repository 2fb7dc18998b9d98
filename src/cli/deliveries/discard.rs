//! `rollcall deliveries discard`: discards the notifications of a receiver.

use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;

use super::super::ConfigFile;
use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::presence::Shown;
use crate::store::{Discarded, Engine, StoredDeliveries};
use crate::store::{embedded, embedded::EmbeddedEngine};
use crate::store::{redis, redis::RedisEngine};
use crate::telemetry::Telemetry;

#[derive(Debug, Args)]
pub(super) struct Discard {
    #[command(flatten)]
    file: ConfigFile,
    /// The receiver's name, as it was in the configuration.
    #[arg(long, value_name = "NAME")]
    receiver: String,
    /// Discard also if a receiver of that name is configured.
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(discard: Discard) -> anyhow::Result<()> {
    let config = discard.file.load()?;
    let name = &discard.receiver;
    let is_configured = config.alerting.receivers.iter().any(|receiver| receiver.name == *name);
    if is_configured && !discard.force {
        bail!(
            "receiver {name} is configured, and its notifications will be delivered; to discard them anyway, add --force"
        );
    }
    let count = match open(&config.engine).await? {
        Some(engine) => discard_all(&StoredDeliveries::new(engine), name).await?,
        None => 0,
    };
    println!("{count} notifications and dead letters of receiver {} were discarded", Shown(name));
    Ok(())
}

/// Opens the fleet of this configuration; `None` if the engine has no fleet.
async fn open(config: &EngineConfig) -> anyhow::Result<Option<Arc<dyn Engine>>> {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    Ok(match config {
        EngineConfig::Redis(config) => match redis::partitions(config, telemetry.clone()).await? {
            Some(_) => Some(Arc::new(RedisEngine::connect(config, telemetry).await?)),
            None => None,
        },
        EngineConfig::Embedded(config) => match embedded::partitions(&config.path)? {
            Some(_) => {
                let engine = EmbeddedEngine::open(config, telemetry).await;
                Some(Arc::new(engine.context("to discard, stop rollcall and start it again afterwards")?))
            }
            None => None,
        },
    })
}

/// Discards in bounded steps, so that the engine can serve its fleet meanwhile.
async fn discard_all(deliveries: &StoredDeliveries, name: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    loop {
        let step = deliveries.discard(name, Clock::system().now()).await?;
        count += step.removed;
        if step == Discarded::default() {
            return Ok(count);
        }
    }
}
