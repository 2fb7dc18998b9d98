//! Where log lines go: to standard error, for people or for machines.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Starts the log of a service. `RUST_LOG`, where it is set, wins over the configured level.
pub(super) fn start(log: &LogConfig) {
    // The library of the broker within the process tells of every client that comes and goes.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("mqtt5=error,{}", log.level)));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match log.format {
        // Colours only where somebody sees them.
        LogFormat::Human => subscriber.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
}

/// Starts the log of a command that prints its result itself: errors only.
pub(super) fn start_quietly() {
    start(&LogConfig { format: LogFormat::Human, level: "error".into() });
}

/// Starts the log of a command whose result says everything that went wrong.
pub(super) fn start_silently() {
    start(&LogConfig { format: LogFormat::Human, level: "off".into() });
}
