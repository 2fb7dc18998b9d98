//! Checks `[log]`: a level, or directives for parts of the program.
//!
//! A directive is a level, `target=level` or a target of Rollcall, and several are separated by commas. The most
//! specific target decides.
//! Filters by span or field do not exist: they need regular expressions, which take longer to build than the log.

use tracing_subscriber::filter::{LevelFilter, Targets};

use super::LogConfig;
use super::file::Log;
use super::problem::Problems;

/// The MQTT client warns of each failed connection, which Rollcall logs itself. TLS warns of each client that connects
/// to an IP address, so any client could fill the log.
const NOISY: [(&str, LevelFilter); 2] = [("rumqttc", LevelFilter::ERROR), ("rustls", LevelFilter::ERROR)];

pub(super) fn log(log: &Log, problems: &mut Problems) -> LogConfig {
    let filter = of_level(&log.level).unwrap_or_else(|why| {
        problems.error("log.level", why);
        Targets::new()
    });
    LogConfig { format: log.format, filter }
}

/// Reads a configured level. A level alone is for Rollcall: libraries report every connection and every request,
/// so only their warnings are logged. Directives name their targets.
fn of_level(text: &str) -> Result<Targets, String> {
    let quieter = Targets::new().with_targets(NOISY);
    match level(text) {
        Some(level) if level <= LevelFilter::ERROR => Ok(Targets::new().with_default(level)),
        Some(level) => Ok(quieter.with_default(LevelFilter::WARN).with_target("rollcall", level)),
        None => add(quieter, text),
    }
}

/// Reads the directives of `RUST_LOG`.
///
/// # Errors
/// The wrong directive, and the right form.
pub fn directives(text: &str) -> Result<Targets, String> {
    add(Targets::new(), text)
}

fn add(mut targets: Targets, text: &str) -> Result<Targets, String> {
    for directive in text.split(',').map(str::trim) {
        let wrong = || {
            format!(
                "{directive:?} is not a level; write off, error, warn, info, debug or trace, or directives such as \
                 \"info,rollcall::intake=debug\""
            )
        };
        targets = match directive.split_once('=') {
            None if is_own_target(directive) => targets.with_target(directive, LevelFilter::TRACE),
            None => targets.with_default(level(directive).ok_or_else(wrong)?),
            Some((target, name)) if is_target(target) => {
                targets.with_target(target, level(name).ok_or_else(wrong)?)
            }
            Some(_) => return Err(wrong()),
        };
    }
    Ok(targets)
}

/// Returns whether a directive without a level is a target of Rollcall. Any other name is more likely a misspelt level.
fn is_own_target(text: &str) -> bool {
    text == "rollcall" || (text.contains("::") && is_target(text))
}

/// A path of modules.
fn is_target(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ':'))
}

fn level(name: &str) -> Option<LevelFilter> {
    match name.trim().to_ascii_lowercase().as_str() {
        "off" => Some(LevelFilter::OFF),
        "error" => Some(LevelFilter::ERROR),
        "warn" => Some(LevelFilter::WARN),
        "info" => Some(LevelFilter::INFO),
        "debug" => Some(LevelFilter::DEBUG),
        "trace" => Some(LevelFilter::TRACE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Targets {
        text.parse().unwrap()
    }

    #[test]
    fn a_level_is_for_rollcall_and_libraries_log_warnings_only() {
        let cases = [
            ("info", "warn,rumqttc=error,rustls=error,rollcall=info"),
            (" DEBUG", "warn,rumqttc=error,rustls=error,rollcall=debug"),
            ("error", "error"),
            ("off", "off"),
            ("info,rollcall::intake=debug", "rumqttc=error,rustls=error,info,rollcall::intake=debug"),
            ("rumqttc=trace", "rumqttc=trace,rustls=error"),
            ("rollcall", "rumqttc=error,rustls=error,rollcall"),
            ("warn,rollcall::intake", "rumqttc=error,rustls=error,warn,rollcall::intake"),
        ];
        for (level, expected) in cases {
            assert_eq!(of_level(level).unwrap(), parsed(expected), "{level}");
        }
        assert_eq!(directives("debug,hyper=off").unwrap(), parsed("debug,hyper=off"));
        assert_eq!(directives("rollcall").unwrap(), parsed("rollcall=trace"));
    }

    #[test]
    fn a_wrong_filter_is_reported_with_the_right_form() {
        for text in
            ["", "loud", "info,", "rolcall", "rollcall=loud", "=info", "[span{unit=7}]=info", "a b=info"]
        {
            for read in [of_level, directives] {
                assert!(
                    read(text).is_err_and(|why| why.contains("is not a level; write off, error,")),
                    "{text}"
                );
            }
        }
    }
}
