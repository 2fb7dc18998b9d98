//! The command line: one file a command.
//!
//! A command reads its configuration, does its work and says how it went. What it prints on
//! standard output is its result, in a form that scripts can read where `--json` is given;
//! everything else goes to standard error.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | fine |
//! | 1 | it failed |
//! | 2 | the command line makes no sense |
//! | 78 | the configuration makes no sense |

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tokio::runtime::Builder;

use crate::config::{self, Config, ConfigError};
use crate::presence::{Shown, is_visible};

mod check;
mod deliveries;
mod demo;
mod health;
mod logging;
mod moving;
#[cfg(feature = "package-files")]
mod package_files;
mod repair;
mod send_test;
mod serve;
mod signals;
mod simulate;

/// It failed.
const FAILED: u8 = 1;
/// The configuration makes no sense: `EX_CONFIG` of sysexits.h.
const BAD_CONFIGURATION: u8 = 78;

/// Notices when a device of a fleet goes silent, and tells exactly once.
#[derive(Debug, Parser)]
#[command(name = "rollcall", version)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch the fleet until told to stop.
    Serve(ConfigFile),
    /// See Rollcall at work: a simulated fleet, in one process and with nothing else installed.
    Demo(demo::Arguments),
    /// Check the configuration and everything that Rollcall depends on.
    Check(check::Arguments),
    /// Ask the instance of this configuration whether it lives, or is ready; for supervisors.
    Health(health::Arguments),
    /// Be a fleet: speak over MQTT for many units that fall silent and come back.
    Simulate(simulate::Arguments),
    /// Take a fleet from one engine to another.
    Move(moving::Arguments),
    /// End what waits for a receiver that was renamed or removed.
    Deliveries(deliveries::Arguments),
    /// Show what was put aside because it could not be read, put it back or delete it.
    Repair(repair::Arguments),
    /// Send a receiver a notification that is marked as a test.
    SendTest(send_test::Arguments),
    /// Write completions for shells, and manual pages.
    #[cfg(feature = "package-files")]
    #[command(hide = true)]
    PackageFiles(package_files::Arguments),
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration; without it rollcall.toml where there is one, else every option's default.
    #[arg(long, value_name = "FILE", env = "ROLLCALL_CONFIG")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    fn load(&self) -> Result<Config, ConfigError> {
        config::load(self.config.as_deref())
    }
}

/// Runs the command and answers with the exit code of the process.
pub fn run(line: CommandLine) -> ExitCode {
    let runtime = match Builder::new_multi_thread().worker_threads(threads()).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&anyhow::Error::new(error).context("no threads to work with")),
    };
    let ended = runtime.block_on(async {
        match line.command {
            Command::Serve(file) => serve::run(file).await,
            Command::Demo(arguments) => demo::run(arguments).await,
            Command::Check(arguments) => check::run(arguments).await,
            Command::Health(arguments) => health::run(arguments).await,
            Command::Simulate(arguments) => simulate::run(arguments).await,
            Command::Move(arguments) => moving::run(arguments).await,
            Command::Deliveries(arguments) => deliveries::run(arguments).await,
            Command::Repair(arguments) => repair::run(arguments).await,
            Command::SendTest(arguments) => send_test::run(arguments).await,
            #[cfg(feature = "package-files")]
            Command::PackageFiles(arguments) => package_files::run(&arguments),
        }
    });
    // Whoever still waits for a name to be looked up does so on a thread that cannot be ended.
    runtime.shutdown_background();
    ended.unwrap_or_else(|error| failed(&error))
}

/// On how many threads the work is done: half as many as there are processors, but two at least. Redis and the
/// broker are on the same machine as a rule, and whatever Rollcall does in a storm waits for them: with a thread for
/// each processor it would keep them from running.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |processors| (processors.get() / 2).max(2))
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("rollcall: {}", shown(&format!("{error:#}")));
    let configuration = error.downcast_ref::<ConfigError>().is_some();
    ExitCode::from(if configuration { BAD_CONFIGURATION } else { FAILED })
}

/// Text as it may be printed: line by line, with everything written out that is not seen or turns text around. What
/// servers answer, and names in it, are nothing to trust a terminal with.
fn shown(text: &str) -> String {
    text.lines().map(|line| Shown(line).to_string()).collect::<Vec<String>>().join("\n")
}

/// The same of JSON, which stays what it is.
fn shown_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if is_visible(c) || c == '\n' {
            shown.push(c);
        } else {
            // Only within a text may there be such a character.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown += &format!("\\u{unit:04x}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_turns_no_terminal_around() {
        let text = "a\u{202e}b\u{1b}[2J\nsecond line";
        assert_eq!(shown(text), "a\\u{202e}b\\u{1b}[2J\nsecond line");
        let json = serde_json::to_string_pretty(&[text, "\u{e0041}ü"]).unwrap();
        let printed = shown_json(&json);
        assert!(printed.chars().all(|c| is_visible(c) || c == '\n'), "{printed}");
        let read: Vec<String> = serde_json::from_str(&printed).unwrap();
        assert_eq!(read, [text, "\u{e0041}ü"]);
    }
}
