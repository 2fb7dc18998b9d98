//! `rollcall move`: moves a fleet from one engine to another, for example when it outgrows one machine or one server.
//!
//! Stop Rollcall, move, change `[engine]`, start Rollcall. Operators are notified once of units that fell silent
//! meanwhile; the time of the move is blind and does not count as silence. The source stays as it was.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Args, Command};
use indicatif::{ProgressBar, ProgressStyle};

use super::logging;
use super::signals::{self, HangUp};
use crate::config::{self, EngineConfig};
use crate::engines;
use crate::small_file::{MAX_SECRET, SmallFile};
use crate::store::embedded::EmbeddedConfig;
use crate::store::redis::{RedisAddress, RedisConfig};
use crate::store::{migration::Moved, migration::migrate};

/// The steps of the progress bar.
const STEPS: u64 = 1000;

#[derive(Debug, Args)]
pub(super) struct MoveArguments {
    /// The engine that has the fleet: embedded:PATH, an address of Redis as in engine.url, or config:FILE for the
    /// engine of that configuration, with its password, prefix and certificates.
    #[arg(long, value_name = "PLACE", value_parser = LocationParser)]
    from: EngineLocation,
    /// The engine that gets it, which must be empty: embedded:PATH, an address of Redis or config:FILE.
    #[arg(long, value_name = "PLACE", value_parser = LocationParser)]
    to: EngineLocation,
    /// The prefix of keys in the Redis that has the fleet (engine.prefix), if it is not rollcall.
    #[arg(long, value_name = "TEXT")]
    from_prefix: Option<String>,
    /// The prefix of keys in the Redis that gets it, if it is not rollcall.
    #[arg(long, value_name = "TEXT")]
    to_prefix: Option<String>,
    /// File with the password of the Redis that has the fleet.
    #[arg(long, value_name = "FILE")]
    from_password_file: Option<PathBuf>,
    /// File with the password of the Redis that gets it.
    #[arg(long, value_name = "FILE")]
    to_password_file: Option<PathBuf>,
}

/// An engine, as it is written on the command line.
#[derive(Clone, Debug)]
enum EngineLocation {
    Embedded(PathBuf),
    Redis(String),
    /// The engine of a configuration file.
    Config(PathBuf),
}

/// Parses a location. Unlike other errors of the command line, its errors do not show the value: it may hold a
/// password.
#[derive(Clone)]
struct LocationParser;

impl TypedValueParser for LocationParser {
    type Value = EngineLocation;

    fn parse_ref(
        &self,
        _: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<EngineLocation, clap::Error> {
        let option = argument.and_then(Arg::get_long).unwrap_or_default();
        parse(&value.to_string_lossy())
            .map_err(|why| clap::Error::raw(ErrorKind::ValueValidation, format!("--{option}: {why}\n")))
    }
}

fn parse(text: &str) -> Result<EngineLocation, String> {
    match text.split_once(':') {
        Some(("embedded", path)) if !path.is_empty() => Ok(EngineLocation::Embedded(path.into())),
        Some(("config", file)) if !file.is_empty() => Ok(EngineLocation::Config(file.into())),
        Some(_) if text.contains("://") => match RedisAddress::parse(text) {
            Ok(_) => Ok(EngineLocation::Redis(text.into())),
            Err(error) => Err(format!("the address {error}")),
        },
        _ => Err("write embedded:PATH, config:FILE or an address such as redis://host:port/db".to_owned()),
    }
}

/// The configuration of the engine at a location.
fn config_of(
    location: EngineLocation,
    prefix: Option<String>,
    password_file: Option<PathBuf>,
) -> anyhow::Result<EngineConfig> {
    match location {
        EngineLocation::Embedded(path) => {
            Ok(EngineConfig::Embedded(EmbeddedConfig { path, partitions: None }))
        }
        EngineLocation::Redis(url) => {
            let read = |file: PathBuf| {
                let secret = SmallFile::read(&file, MAX_SECRET).and_then(SmallFile::into_secret);
                secret.with_context(|| format!("the password in {} cannot be read", file.display()))
            };
            let password = password_file.map(read).transpose()?;
            let default = RedisConfig::default();
            let prefix = prefix.unwrap_or_else(|| default.prefix.clone());
            Ok(EngineConfig::Redis(Box::new(RedisConfig { url, password, prefix, ..default })))
        }
        EngineLocation::Config(file) => {
            if prefix.is_some() || password_file.is_some() {
                bail!("{} has its own prefix and password; leave out those options", file.display());
            }
            Ok(config::load(Some(&file))?.engine)
        }
    }
}

/// This engine, set to the number of partitions of the fleet that is moved.
fn with_partitions(engine: &EngineConfig, partitions: u16) -> anyhow::Result<EngineConfig> {
    if let Some(other) = engine.partitions().filter(|configured| *configured != partitions) {
        bail!(
            "the fleet has {partitions} partitions, which a move keeps; engine.partitions of {engine} says {other}: \
             write {partitions} there, or remove the line"
        );
    }
    Ok(engine.with_partitions(partitions))
}

pub(super) async fn run(arguments: MoveArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    let MoveArguments { from, to, from_prefix, to_prefix, from_password_file, to_password_file } = arguments;
    let from = config_of(from, from_prefix, from_password_file)?;
    let to = config_of(to, to_prefix, to_password_file)?;
    let Some(moved) = stop.run_until_cancelled(move_fleet(from, to)).await else {
        bail!("broken off: nothing has arrived, and the fleet is where it was; the move can be repeated");
    };
    println!("{}", summary(&moved?));
    Ok(ExitCode::SUCCESS)
}

async fn move_fleet(from: EngineConfig, to: EngineConfig) -> anyhow::Result<Moved> {
    let telemetry = engines::command_telemetry();
    let found = engines::partitions(&from).await?;
    let partitions = found.with_context(|| format!("there is no fleet at {from}"))?;
    let (from, to) = (with_partitions(&from, partitions)?, with_partitions(&to, partitions)?);
    let bar = ProgressBar::new(STEPS);
    bar.set_style(
        ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {percent} %")
            .expect("a constant template"),
    );
    let show = |share: f64| bar.set_position((share * STEPS as f64) as u64);
    // The source is opened first: if an instance serves it, nothing is written to the target.
    let from = engines::open_unserved(&from, telemetry.clone()).await?;
    let moved = migrate(&*from, engines::prepare(&to, telemetry).await?.as_ref(), show).await;
    bar.finish_and_clear();
    Ok(moved?)
}

fn summary(moved: &Moved) -> String {
    format!(
        "moved: {} units and {} values of their metrics; {} open records and {} closed ones; {} transitions in no \
         notification yet, {} notifications that were not delivered yet and {} dead letters; {} timers that wait; {} silences of operators; {} \
         blind intervals\nnow change [engine] in the configuration and start rollcall; do not start it on the old engine",
        moved.units,
        moved.values,
        moved.open_records,
        moved.closed_records,
        moved.unsealed,
        moved.undelivered,
        moved.dead_letters,
        moved.timers,
        moved.silences,
        moved.blind,
    )
}
