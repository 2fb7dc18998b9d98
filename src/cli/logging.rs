//! Where log lines go: to standard error, for people or for machines.
//!
//! Ids and topics come from outside. They cannot forge a line, a field, or the order
//! in which a line is read; see [`fields`] for people's lines and [`escaped`] for those of machines.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::config::{ConfigError, LogConfig, LogFormat, Problem, directives};

mod escaped;
mod fields;

/// Starts the log of a service. `RUST_LOG`, where it is set, wins over the configured level.
///
/// # Errors
/// `RUST_LOG` is not valid: a [`ConfigError`].
pub(super) fn start(log: &LogConfig) -> anyhow::Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => {
            directives(&text).map_err(|text| ConfigError::Meaning(vec![Problem::new("RUST_LOG", text)]))?
        }
        _ => log.filter.clone(),
    };
    let lines = registry().with(filter);
    match log.format {
        // Colours only on a terminal.
        LogFormat::Human => {
            let layer = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
            lines.with(layer.fmt_fields(fields::FieldFormat)).init();
        }
        LogFormat::Json => {
            let layer = fmt::layer().json().flatten_event(true);
            lines.with(layer.with_writer(|| escaped::Escaped(stderr()))).init();
        }
    }
    Ok(())
}

/// Starts the log of a command that prints its result itself: errors only.
pub(super) fn start_quietly() -> anyhow::Result<()> {
    start_at(LevelFilter::ERROR)
}

/// Starts the log of a command whose result reports every error.
pub(super) fn start_silently() -> anyhow::Result<()> {
    start_at(LevelFilter::OFF)
}

fn start_at(level: LevelFilter) -> anyhow::Result<()> {
    start(&LogConfig { format: LogFormat::Human, filter: Targets::new().with_default(level) })
}
