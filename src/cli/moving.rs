//! `rollcall move`: takes a fleet from one engine to another, as when it outgrows one machine.
//!
//! Stop Rollcall, move, change `[engine]`, start Rollcall. What was silent meanwhile is told once, by the
//! new one; the time in between is blind and nobody's silence. The end that it leaves stays as it was.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::logging;
use super::signals::{self, HangUp};
use crate::clock::Clock;
use crate::store::{embedded, embedded::EmbeddedEngine, embedded::EmbeddedImporter};
use crate::store::{migration::Exporter, migration::Importer, migration::Moved, migration::migrate};
use crate::store::{redis, redis::RedisEngine, redis::RedisImporter};
use crate::telemetry::Telemetry;

/// Steps of the bar.
const STEPS: u64 = 1000;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Where the fleet is: embedded:PATH or redis://host:port/db.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    from: Place,
    /// Where it goes, which is empty: embedded:PATH or redis://host:port/db.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    to: Place,
    /// What keys in Redis begin with where the fleet is (engine.prefix).
    #[arg(long, value_name = "TEXT", default_value = "rollcall")]
    from_prefix: String,
    /// What keys in Redis begin with where it goes.
    #[arg(long, value_name = "TEXT", default_value = "rollcall")]
    to_prefix: String,
    /// File with the password of the Redis where the fleet is.
    #[arg(long, value_name = "FILE")]
    from_password_file: Option<PathBuf>,
    /// File with the password of the Redis where it goes.
    #[arg(long, value_name = "FILE")]
    to_password_file: Option<PathBuf>,
}

/// One end of a move, as it was written.
#[derive(Clone, Debug)]
enum Place {
    Embedded(PathBuf),
    Redis(String),
}

fn place(text: &str) -> Result<Place, String> {
    const SCHEMES: [&str; 4] = ["redis", "rediss", "redis+unix", "unix"];
    match text.split_once(':') {
        Some(("embedded", path)) if !path.is_empty() => Ok(Place::Embedded(path.into())),
        Some((scheme, _)) if SCHEMES.contains(&scheme) && text.contains("://") => {
            Ok(Place::Redis(text.into()))
        }
        _ => Err("write embedded:PATH or redis://host:port/db".into()),
    }
}

/// One end of a move.
enum End {
    Embedded(embedded::Config),
    Redis(redis::Config),
}

impl End {
    fn new(place: Place, prefix: String, password_file: Option<PathBuf>) -> anyhow::Result<End> {
        // Over how many partitions it is spread is found out, or said by the other end.
        let partitions = redis::Config::default().partitions;
        Ok(match place {
            Place::Embedded(path) => End::Embedded(embedded::Config { path, partitions }),
            Place::Redis(url) => {
                let read = |file: PathBuf| {
                    let text = std::fs::read_to_string(&file);
                    text.with_context(|| format!("the password in {} cannot be read", file.display()))
                };
                let password = password_file.map(read).transpose()?.map(|text| text.trim().to_owned());
                End::Redis(redis::Config { url, password, prefix, partitions })
            }
        })
    }

    /// Over how many partitions the fleet that is there is spread.
    async fn partitions(&self, telemetry: &Arc<Telemetry>) -> anyhow::Result<u16> {
        let (found, place) = match self {
            End::Embedded(config) => (embedded::partitions(&config.path)?, config.to_string()),
            End::Redis(config) => (redis::partitions(config, telemetry.clone()).await?, config.to_string()),
        };
        found.with_context(|| format!("there is no fleet at {place}"))
    }

    fn spread_over(self, partitions: u16) -> End {
        match self {
            End::Embedded(config) => End::Embedded(embedded::Config { partitions, ..config }),
            End::Redis(config) => End::Redis(redis::Config { partitions, ..config }),
        }
    }

    async fn prepare(&self, telemetry: &Arc<Telemetry>) -> anyhow::Result<Box<dyn Importer>> {
        Ok(match self {
            End::Embedded(config) => Box::new(EmbeddedImporter::prepare(config).await?),
            End::Redis(config) => Box::new(RedisImporter::prepare(config, telemetry.clone()).await?),
        })
    }
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    let Arguments { from, to, from_prefix, to_prefix, from_password_file, to_password_file } = arguments;
    let from = End::new(from, from_prefix, from_password_file)?;
    let to = End::new(to, to_prefix, to_password_file)?;
    let Some(moved) = stop.run_until_cancelled(carry(from, to)).await else {
        bail!("broken off: nothing has arrived, and the fleet is where it was; the move can be repeated");
    };
    println!("{}", summary(&moved?));
    Ok(ExitCode::SUCCESS)
}

async fn carry(from: End, to: End) -> anyhow::Result<Moved> {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let partitions = from.partitions(&telemetry).await?;
    let (from, to) = (from.spread_over(partitions), to.spread_over(partitions));
    let bar = ProgressBar::new(STEPS);
    bar.set_style(
        ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {percent} %")
            .expect("a constant template"),
    );
    let show = |share: f64| bar.set_position((share * STEPS as f64) as u64);
    // The source is opened first: if somebody serves it, nothing is touched at the other end.
    let moved = match &from {
        End::Embedded(config) => {
            let engine = EmbeddedEngine::open(config, telemetry.clone()).await?;
            engine.check_rest().await?;
            migrate(&engine, to.prepare(&telemetry).await?.as_ref(), show).await
        }
        End::Redis(config) => {
            let engine = RedisEngine::connect(config, telemetry.clone()).await?;
            engine.check_rest().await?;
            migrate(&engine, to.prepare(&telemetry).await?.as_ref(), show).await
        }
    };
    bar.finish_and_clear();
    Ok(moved?)
}

fn summary(moved: &Moved) -> String {
    format!(
        "moved: {} units and {} values of their metrics; {} open records and {} closed ones; {} transitions that \
         nobody was told of yet, {} notifications that were not delivered yet and {} dead letters; {} blind \
         intervals\nnow change [engine] in the configuration and start rollcall; do not start it where the fleet was",
        moved.units,
        moved.values,
        moved.open_records,
        moved.closed_records,
        moved.untold,
        moved.undelivered,
        moved.dead_letters,
        moved.blind,
    )
}
