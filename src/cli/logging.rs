//! Where log lines go: to standard error, for people or for machines.
//!
//! Ids and topics are written by strangers. No line lets them forge another line, a field of it, or the order
//! in which it is read; see [`fields`] for people's lines and [`escaped`] for those of machines.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

mod escaped;
mod fields;

/// Starts the log of a service. `RUST_LOG`, where it is set, wins over the configured level.
pub(super) fn start(log: &LogConfig) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives(&log.level)));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter);
    match log.format {
        // Colours only where somebody sees them.
        LogFormat::Human => {
            let subscriber = subscriber.with_writer(stderr).with_ansi(stderr().is_terminal());
            subscriber.fmt_fields(fields::Fields).init();
        }
        LogFormat::Json => {
            subscriber.json().flatten_event(true).with_writer(|| escaped::Escaped(stderr())).init();
        }
    }
}

/// The directives for a configured level. A level alone is Rollcall's own: libraries tell of every connection and
/// every request, so of them only warnings are written, and of the broker within the process, which warns of
/// every client that comes and goes, only errors. Directives say themselves what they are for.
fn directives(level: &str) -> String {
    match level.trim().to_ascii_lowercase().as_str() {
        level @ ("off" | "error") => level.to_owned(),
        level @ ("warn" | "info" | "debug" | "trace") => format!("warn,mqtt5=error,rollcall={level}"),
        _ => format!("mqtt5=error,{level}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_that_of_rollcall_and_libraries_are_quiet() {
        let cases = [
            ("info", "warn,mqtt5=error,rollcall=info"),
            (" DEBUG", "warn,mqtt5=error,rollcall=debug"),
            ("error", "error"),
            ("info,rollcall::intake=debug", "mqtt5=error,info,rollcall::intake=debug"),
        ];
        for (level, expected) in cases {
            assert_eq!(directives(level), expected);
            EnvFilter::builder().parse(directives(level)).expect(level);
        }
    }
}
