//! From a file and the environment to a checked [`Config`].
//!
//! Three steps, each with errors of its own: the file is parsed ([`file::File`]), and an error shows the line of
//! a wrong key or type; the environment is laid over it; then the values are checked, and
//! all errors are reported at once. The result is the `Config`
//! structs of the modules, so the floors below do not depend on the file.
//!
//! Without a file every option has its default, and Rollcall serves a fleet on one machine.
//!
//! This module never connects to anything: `rollcall check` does. It reads secrets from their files,
//! whose paths are relative to the configuration file, and never shows them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing_subscriber::filter::Targets;

use crate::cause::without_number;
use crate::fleet::{HearingConfig, Rules, TimerRules};
use crate::http::ShownConfiguration;
use crate::presence::Kind;
use crate::store::Catalogue;
use crate::{alerting, expiry, intake};

mod breaker;
mod broker;
mod brokers;
mod count;
mod data;
mod deadman;
mod engine;
mod environment;
pub mod file;
mod flapping;
mod fleet;
mod history;
mod http;
mod ineffective;
mod inhibition;
mod instance;
mod log_filter;
mod period;
mod places;
mod presence;
mod problem;
mod receivers;
mod recoveries;
mod reports;
mod routes;
mod secrets;
mod sections;
mod shown;
mod span;
mod timer_receivers;
mod timers;
mod times;
mod tls;

pub use brokers::{brokers_of, filters_of};
pub use count::Count;
pub use engine::EngineConfig;
pub use file::LogFormat;
pub use instance::{client_digest, is_loopback};
pub use log_filter::directives;
pub use period::Period;
pub use problem::{ConfigError, Problem};
pub use sections::Sections;
pub use span::Span;

use environment::Overlaid;
use file::File;
use places::ConfigPlaces;
use problem::Problems;
use shown::Written;

/// The name in errors of a configuration without a file.
const DEFAULT_FILE: &str = "rollcall.toml";

/// The default files; the first that exists is read.
pub const DEFAULT_FILES: [&str; 2] = [DEFAULT_FILE, "/etc/rollcall/rollcall.toml"];

/// A configuration that is valid.
#[derive(Clone)]
pub struct Config {
    /// The file that it comes from; `None`: every option has its default or comes from the
    /// environment.
    pub source: Option<PathBuf>,
    /// The name of this instance among the instances that serve the fleet.
    pub instance: String,
    pub engine: EngineConfig,
    /// The broker within the process, if it is configured.
    pub broker: Option<crate::intake::listener::Config>,
    /// The intake of each broker.
    pub intake: Vec<intake::Config>,
    /// The brokers that this instance uses; empty means all.
    pub brokers: Vec<String>,
    /// The rules of every kind.
    pub rules: Rules,
    /// The kinds whose option `unit` names their units.
    pub named: BTreeSet<Kind>,
    /// The metrics of units, by kind.
    pub metrics: Arc<Catalogue>,
    pub hearing: HearingConfig,
    pub expiry: expiry::Config,
    pub alerting: alerting::AlertingConfig,
    /// The classes of timers, and their limits.
    pub timers: TimerRules,
    pub http: crate::http::Config,
    /// The address for scrapes from other machines, `host:port`.
    pub advertise: String,
    pub history: Option<crate::history::HistoryConfig>,
    pub deadman: Option<crate::deadman::Config>,
    /// How long closed records are kept.
    pub keep_records: Duration,
    /// How long attempts to deliver are stored.
    pub keep_deliveries: Duration,
    /// How long records of a kind that is not configured any more stay open.
    pub close_unwatched: Duration,
    /// The labels that units are counted by in the metrics.
    pub count_by_labels: Vec<String>,
    pub log: LogConfig,
    /// Digests of the sections of the file and the environment, to be compared with those of a reload.
    pub sections: Sections,
    /// The configuration as pages show it.
    pub shown: ShownConfiguration,
    /// Values that are valid and probably not intended.
    pub warnings: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    pub format: LogFormat,
    pub filter: Targets,
}

/// Shows the source only: the configuration holds secrets.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Loads `file` or, without one, the first of [`DEFAULT_FILES`] that exists, with the environment variables of this
/// process over it.
pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
    let default = DEFAULT_FILES.iter().map(Path::new).find(|path| path.exists());
    let source = file.or(default);
    // A variable that is not Unicode cannot be an option; it belongs to another program.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let Some(path) = source else { return parse("", None, variables) };
    let bytes = std::fs::read(path).map_err(|error| {
        let advice = "check the path (--config or ROLLCALL_CONFIG)";
        let why = without_number(&error.to_string());
        ConfigError::Unreadable(format!("{} cannot be read: {why}; {advice}", path.display()))
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let (at, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        ConfigError::Unreadable(format!(
            "{} is not UTF-8: byte {:#04x} in line {line}; save it as UTF-8",
            path.display(),
            bytes[at]
        ))
    })?;
    parse(&text, Some(path), variables)
}

/// Checks the text of a file. `source` is its path; paths in it are relative to that.
pub fn parse(
    text: &str,
    source: Option<&Path>,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let name = source.map_or(DEFAULT_FILE.into(), |path| path.display().to_string());
    // Into the struct first: only the parser knows the line of each value.
    toml::from_str::<File>(text).map_err(|error| ConfigError::Shape(problem::show(&name, text, &error)))?;
    let table =
        toml::from_str(text).map_err(|error| ConfigError::Shape(problem::show(&name, text, &error)))?;
    let Overlaid { table, variables, problems } = environment::overlay(table, variables);
    let sections = Sections::of(&table);
    let file = read(&table).map_err(|error| ConfigError::Shape(problem::without_line(&name, &error)))?;
    let options = Written { table: &table, variables: &variables }.options(&file);
    let shown = ShownConfiguration { file: source.map(|path| path.display().to_string()), options };
    let named = source.map(|_| name.as_str());
    let places = ConfigPlaces { file: named, text, variables: &variables };
    match check(file, source, problems) {
        Ok(mut config) => {
            places.add_to(&mut config.warnings);
            Ok(Config { sections, shown, ..config })
        }
        Err(ConfigError::Meaning(mut problems)) => {
            places.add_to(&mut problems);
            Err(ConfigError::Meaning(problems))
        }
        Err(error) => Err(error),
    }
}

/// Reads the options of a table, as text: a second reader of [`File`] would make the program 2 % larger.
fn read(table: &toml::Table) -> Result<File, toml::de::Error> {
    toml::from_str(&table.to_string())
}

fn check(mut file: File, source: Option<&Path>, misread: Vec<Problem>) -> Result<Config, ConfigError> {
    let mut problems = Problems { errors: misread, ..Problems::default() };
    let base = source.and_then(Path::parent).unwrap_or(Path::new(""));
    let instance = instance::name(&file.instance, &mut problems);
    let client_id = instance::client_id(&file);
    for mqtt in file.mqtt.each().iter_mut().filter(|mqtt| mqtt.client_id.is_empty()) {
        mqtt.client_id.clone_from(&client_id);
    }
    let engine = engine::engine(&file.engine, base, &mut problems);
    let broker = broker::broker(&file.broker, &file.mqtt, base, &mut problems);
    let (intake, rules, hearing) = fleet::fleet(&file, base, &mut problems);
    let brokers = brokers::of_instance(&file.instance, &intake, &mut problems);
    let named = file.kind.iter().filter(|kind| kind.unit.is_some());
    let named = named.filter_map(|kind| kind.name.parse().ok()).collect();
    let metrics = Arc::new(data::catalogue(&file.kind, &mut problems));
    let expiry = engine::expiry(&file.expiry, &engine, &mut problems);
    let alerting = receivers::alerting(&file, base, &mut problems);
    let timers = timers::timers(&file, &mut problems);
    let mut http = http::http(&file.http, &rules, base, &mut problems);
    http.example_topic = fleet::example_topic(&file);
    let advertise = http::advertise(&file.http, &mut problems);
    let count_by_labels = http::count_by_labels(&file.http, &mut problems);
    let deadman = deadman::deadman(&file.deadman, base, &mut problems);
    let (keep_records, keep_deliveries, close_unwatched) = engine::records(&file.records, &mut problems);
    let history = history::history(&file.history, (keep_records, keep_deliveries), base, &mut problems);
    let log = log_filter::log(&file.log, &mut problems);
    if !problems.errors.is_empty() {
        return Err(ConfigError::Meaning(problems.errors));
    }
    Ok(Config {
        source: source.map(Path::to_owned),
        instance,
        engine,
        broker,
        intake,
        brokers,
        rules,
        named,
        metrics,
        hearing,
        expiry,
        alerting,
        timers,
        http,
        advertise,
        history,
        deadman,
        keep_records,
        keep_deliveries,
        close_unwatched,
        count_by_labels,
        log,
        sections: Sections::default(),
        shown: ShownConfiguration::default(),
        warnings: problems.warnings,
    })
}
