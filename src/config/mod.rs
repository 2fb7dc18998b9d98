//! From a file and the environment to a checked [`Config`].
//!
//! Three steps, each with errors of its own: the file is read into its shape ([`file::File`]), and
//! a wrong key or type is shown where it stands; the environment is laid over it; then everything
//! is checked for meaning, and all that is wrong is told at once. What comes out are the `Config`
//! structs of the modules, so nothing below this floor knows that there was a file.
//!
//! Without a file every option has its default, and Rollcall serves a fleet on one machine.
//!
//! It never connects to anything: that is `rollcall check`. It reads secrets from their files,
//! whose paths are relative to the configuration file, and never shows them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing_subscriber::filter::Targets;

use crate::fleet::{HearingConfig, Rules};
use crate::store::Catalogue;
use crate::{alerting, broker, deadman, expiry, http, intake};

mod data;
mod engine;
mod environment;
pub mod file;
mod fleet;
mod instance;
mod log_filter;
mod period;
mod problem;
mod receivers;
mod secrets;
mod shown;
mod span;
mod watcher;
mod within;

pub use engine::EngineConfig;
pub use file::LogFormat;
pub use log_filter::directives;
pub use period::Period;
pub use problem::{ConfigError, Problem};
pub use span::Span;

use file::File;
use problem::Problems;

/// The file that is read if none is named, where it exists.
pub const DEFAULT_FILE: &str = "rollcall.toml";

/// A configuration that makes sense.
#[derive(Clone)]
pub struct Config {
    /// The file that it comes from; `None`: every option has its default or comes from the
    /// environment.
    pub source: Option<PathBuf>,
    /// The name of this instance among those that serve the fleet.
    pub instance: String,
    /// Where the state of the fleet lives.
    pub engine: EngineConfig,
    /// The broker within the process, if one is wanted.
    pub broker: Option<broker::Config>,
    /// From where heartbeats come.
    pub intake: intake::Config,
    /// The rules of every kind.
    pub rules: Rules,
    /// What units of each kind tell of themselves.
    pub metrics: Arc<Catalogue>,
    /// How blindness is measured and owed.
    pub hearing: HearingConfig,
    /// How silence is found.
    pub expiry: expiry::Config,
    /// Who is told.
    pub alerting: alerting::Config,
    /// What is shown.
    pub http: http::Config,
    /// Where other machines ask this instance for metrics, `host:port`.
    pub advertise: String,
    /// Who watches the watcher, if anybody.
    pub deadman: Option<deadman::Config>,
    /// How long closed records are kept.
    pub keep_records: Duration,
    /// How long records stay open whose kind is configured no more.
    pub close_unwatched: Duration,
    /// By which labels units are counted in the metrics.
    pub count_by_labels: Vec<String>,
    /// What is logged.
    pub log: LogConfig,
    /// What works and is probably not what was meant.
    pub warnings: Vec<Problem>,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// For whom.
    pub format: LogFormat,
    /// How much.
    pub filter: Targets,
}

/// Says where it comes from and nothing else: there are secrets in it.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Loads `file` or, without one, [`DEFAULT_FILE`] where it exists, with the variables of this
/// process over it.
pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
    let usual = Path::new(DEFAULT_FILE);
    let source = file.or(usual.exists().then_some(usual));
    // A variable that is no Unicode cannot be an option; it belongs to somebody else.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let Some(path) = source else { return parse("", None, variables) };
    let text = std::fs::read_to_string(path).map_err(|error| {
        ConfigError::Unreadable(format!(
            "{} cannot be read: {error}; name a file with --config",
            path.display()
        ))
    })?;
    parse(&text, Some(path), variables)
}

/// Checks the text of a file. `source` is its name; files that it names are looked for beside it.
pub fn parse(
    text: &str,
    source: Option<&Path>,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let name = source.map_or(DEFAULT_FILE.into(), |path| path.display().to_string());
    // Read into its shape first: only the parser still knows where each value stands.
    toml::from_str::<File>(text).map_err(|error| ConfigError::Shape(problem::show(&name, text, &error)))?;
    let table =
        toml::from_str(text).map_err(|error| ConfigError::Shape(problem::show(&name, text, &error)))?;
    let (table, misread) = environment::overlay(table, variables);
    let file: File =
        table.try_into().map_err(|error| ConfigError::Shape(problem::show(&name, "", &error)))?;
    check(file, source, misread)
}

fn check(file: File, source: Option<&Path>, misread: Vec<Problem>) -> Result<Config, ConfigError> {
    let mut problems = Problems { errors: misread, ..Problems::default() };
    let base = source.and_then(Path::parent).unwrap_or(Path::new(""));
    let instance = instance::name(&file.instance, &mut problems);
    let engine = engine::engine(&file.engine, base, &mut problems);
    let broker = within::broker(&file.broker, &file.mqtt, base, &mut problems);
    let (intake, rules, hearing) = fleet::fleet(&file, base, &mut problems);
    let metrics = Arc::new(data::catalogue(&file.kind, &mut problems));
    let expiry = engine::expiry(&file.expiry, &engine, &mut problems);
    let alerting = receivers::alerting(&file, base, &mut problems);
    let http = shown::http(&file.http, base, &mut problems);
    let advertise = shown::advertise(&file.http, &mut problems);
    let count_by_labels = shown::count_by_labels(&file.http, &mut problems);
    let deadman = watcher::deadman(&file.deadman, base, &mut problems);
    let (keep_records, close_unwatched) = engine::records(&file.records, &mut problems);
    let log = shown::log(&file.log, &mut problems);
    if !problems.errors.is_empty() {
        return Err(ConfigError::Meaning(problems.errors));
    }
    Ok(Config {
        source: source.map(Path::to_owned),
        instance,
        engine,
        broker,
        intake,
        rules,
        metrics,
        hearing,
        expiry,
        alerting,
        http,
        advertise,
        deadman,
        keep_records,
        close_unwatched,
        count_by_labels,
        log,
        warnings: problems.warnings,
    })
}
