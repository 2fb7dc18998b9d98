//! The command line: one file for each command.
//!
//! Commands about the fleet call the HTTP API of a running instance (`remote.rs`) with the rights of a token, so they
//! also work from another machine. `check`, `move`, `move-ids` and `repair` open the engine.
//!
//! A command reads its configuration, does its work and reports the result. It prints its result on standard output, as
//! JSON with `--json`; everything else goes to standard error.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | the command failed |
//! | 2 | the command line is not valid |
//! | 78 | the configuration is not valid |

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::runtime::Builder;

use crate::cause;
use crate::config::{self, Config, ConfigError};
use crate::presence::{Shown, is_visible};

mod ack;
mod breaker;
mod check;
mod deliveries;
mod demo;
mod fleet;
mod health;
mod history;
mod logging;
mod move_ids;
mod moving;
mod operator;
mod output;
#[cfg(feature = "package-files")]
mod package_files;
mod policy;
mod receivers;
mod remote;
mod remove;
mod repair;
mod report;
mod route;
mod running;
mod send_test;
mod serve;
mod signals;
mod silence;
mod simulate;
mod suggest;
mod table;
mod template;
mod times;
mod token;
mod top;
mod version;

pub use version::last_commit;

const FAILED: u8 = 1;
const WRONG_ARGUMENTS: u8 = 2;
/// `EX_CONFIG` of sysexits.h.
const BAD_CONFIGURATION: u8 = 78;
/// A busy thread polls for I/O after this many tasks. A task of a storm takes about a millisecond; with the default of
/// 61, a request and each answer of the engine would be noticed much too late.
const EVENT_INTERVAL: u32 = 5;

/// Notices when a device of a fleet goes silent, and notifies operators once.
#[derive(Debug, Parser)]
#[command(name = "rollcall", version)]
#[command(
    after_help = "First: rollcall demo. Then: rollcall check, rollcall serve. See docs/first-fleet.md."
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch the fleet until a signal stops it.
    Serve(ConfigFile),
    /// See Rollcall at work: a simulated fleet, in one process and with nothing else installed.
    Demo(demo::DemoArguments),
    /// Check the configuration and everything that Rollcall depends on.
    Check(check::CheckArguments),
    /// Ask the instance of this configuration whether it runs, or is ready; for supervisors.
    Health(health::HealthArguments),
    /// Simulate a fleet: publish over MQTT for many units that fall silent and come back.
    #[command(
        after_help = "Example: rollcall simulate --units 500 --interval 5s --silence 0.002 --duration 10m"
    )]
    Simulate(simulate::SimulateArguments),
    /// Move a fleet from one engine to another.
    #[command(
        after_help = "Example: rollcall move --from embedded:/var/lib/rollcall --to redis://127.0.0.1:6379/0"
    )]
    Move(moving::MoveArguments),
    /// Give the units of a kind the ids that its option unit makes now; without --yes only show them.
    #[command(after_help = "Example: rollcall move-ids --kind detector")]
    MoveIds(move_ids::MoveIdsArguments),
    /// List notifications with their attempts, deliver them again, remove dead letters.
    Deliveries(deliveries::DeliveriesArguments),
    /// Show values that were quarantined because they could not be read, put them back or delete them.
    Repair(repair::RepairArguments),
    /// Show the tree of routes, or which of them the silence of a unit takes.
    Route(route::RouteArguments),
    /// Add, list, extend and end silences: receivers are not notified of the units that they match.
    Silence(silence::SilenceArguments),
    /// Acknowledge the open record of a unit: an operator takes care of it.
    Ack(ack::AckArguments),
    /// Pause a unit for planned work: its silence meanwhile does not count.
    Pause(ack::PauseArguments),
    /// Remove units from the fleet. Their heartbeats change nothing until kind.forget_after has passed.
    Remove(remove::RemoveArguments),
    /// Show the last changes that operators made.
    Audit(silence::AuditArguments),
    /// Show or release the mass-offline breaker, which holds notifications when a large part of the fleet falls silent.
    Breaker(breaker::BreakerArguments),
    /// List units of the fleet: by state, kind, label, id or time of silence.
    Units(fleet::UnitsArguments),
    /// Say why a unit is or is not offline, and what happened to it.
    #[command(visible_alias = "unit")]
    Explain(fleet::ExplainArguments),
    /// List offline records, newest first.
    Records(fleet::RecordsArguments),
    /// Say how much of the time a unit, a kind, a label or the fleet was online.
    Availability(fleet::AvailabilityArguments),
    /// Count the fleet by state, and say whether Rollcall itself is well.
    Summary(fleet::SummaryArguments),
    /// Show the instances and what each of them owns.
    Instances(fleet::SummaryArguments),
    /// Show what waits for each receiver, and whether it takes notifications.
    Receivers(receivers::ReceiversArguments),
    /// Watch the fleet in the terminal: counts, problems, and the units that fell silent last.
    Top(top::TopArguments),
    /// Register the units of a file, NDJSON or CSV; with --replace remove all others.
    #[command(after_help = "Example: rollcall import --dry-run --replace units.csv")]
    Import(fleet::ImportArguments),
    /// Write all units with their settings to a file, NDJSON or CSV.
    Export(fleet::ExportArguments),
    /// Make, show, fill and prune the history in PostgreSQL.
    #[command(after_help = "Example: rollcall history status")]
    History(history::HistoryArguments),
    /// Say how much of a month, or of any days, units were online, from history.
    #[command(after_help = "Example: rollcall report --month 2026-10 --group-by site --target 99.5")]
    Report(report::ReportArguments),
    /// Try a policy on the silences of history before it is set.
    #[command(after_help = "Example: rollcall policy try --kind gate --timeout 20m --since 30d")]
    Policy(policy::PolicyArguments),
    /// Suggest timeouts by the rhythms that units have shown, with the false alarms that each would bring.
    #[command(after_help = "Example: rollcall suggest --kind gate")]
    Suggest(suggest::SuggestArguments),
    /// Register, list, show, cancel and follow timers: what has to happen at a moment unless it is taken back.
    Timers(fleet::TimersArguments),
    /// Send a receiver a notification that is marked as a test.
    SendTest(send_test::SendTestArguments),
    /// Show what a receiver is sent for examples.
    Template(template::TemplateArguments),
    /// Make a token for the HTTP API and the web page.
    Token(token::TokenArguments),
    /// Write completions for shells, and manual pages.
    #[cfg(feature = "package-files")]
    #[command(hide = true)]
    PackageFiles(package_files::PackageFilesArguments),
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file; by default rollcall.toml, else /etc/rollcall/rollcall.toml, if it exists.
    #[arg(long, value_name = "FILE", env = "ROLLCALL_CONFIG")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    fn load(&self) -> Result<Config, ConfigError> {
        config::load(self.config.as_deref())
    }
}

/// Parses the command line, runs its command and answers with the exit code of the process. The program was built from the first
/// of `commits` that is one.
pub fn run(commits: &[&str]) -> ExitCode {
    let version: &'static str = version::text(commits).leak();
    let matches = CommandLine::command().version(version).get_matches();
    let line = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let mut runtime = Builder::new_multi_thread();
    let runtime = match runtime.worker_threads(threads()).event_interval(EVENT_INTERVAL).enable_all().build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&anyhow::Error::new(error).context("threads cannot be started")),
    };
    let ended = runtime.block_on(async {
        signals::survive_file_size_limit()?;
        match line.command {
            Command::Serve(file) => serve::run(file).await,
            Command::Demo(arguments) => demo::run(arguments).await,
            Command::Check(arguments) => check::run(arguments).await,
            Command::Health(arguments) => health::run(arguments).await,
            Command::Simulate(arguments) => simulate::run(arguments).await,
            Command::Move(arguments) => moving::run(arguments).await,
            Command::MoveIds(arguments) => move_ids::run(arguments).await,
            Command::Deliveries(arguments) => deliveries::run(arguments).await,
            Command::Repair(arguments) => repair::run(arguments).await,
            Command::Route(arguments) => route::run(arguments).await,
            Command::Silence(arguments) => silence::run(arguments).await,
            Command::Ack(arguments) => ack::acknowledge(arguments).await,
            Command::Pause(arguments) => ack::pause(arguments).await,
            Command::Remove(arguments) => remove::run(arguments).await,
            Command::Audit(arguments) => silence::run_audit(arguments).await,
            Command::Breaker(arguments) => breaker::run(arguments).await,
            Command::Units(arguments) => fleet::units(arguments).await,
            Command::Explain(arguments) => fleet::explain(arguments).await,
            Command::Records(arguments) => fleet::records(arguments).await,
            Command::Availability(arguments) => fleet::availability(arguments).await,
            Command::Summary(arguments) => fleet::summary(arguments).await,
            Command::Instances(arguments) => fleet::instances(arguments).await,
            Command::Receivers(arguments) => receivers::run(arguments).await,
            Command::Top(arguments) => top::run(arguments).await,
            Command::Import(arguments) => fleet::import(arguments).await,
            Command::Export(arguments) => fleet::export(arguments).await,
            Command::History(arguments) => history::run(arguments).await,
            Command::Report(arguments) => report::run(arguments).await,
            Command::Policy(arguments) => policy::run(arguments).await,
            Command::Suggest(arguments) => suggest::run(arguments).await,
            Command::Timers(arguments) => fleet::timers(arguments).await,
            Command::SendTest(arguments) => send_test::run(arguments).await,
            Command::Template(arguments) => template::run(arguments).await,
            Command::Token(arguments) => token::run(arguments),
            #[cfg(feature = "package-files")]
            Command::PackageFiles(arguments) => package_files::run(&arguments),
        }
    });
    // A name lookup that still runs blocks a thread that cannot be ended.
    runtime.shutdown_background();
    ended.unwrap_or_else(|error| failed(&error))
}

/// Half as many threads as processors, but at least two. Redis and the broker mostly run on the same machine, and in a
/// storm Rollcall waits for them: a thread for each processor would keep them from running.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |processors| (processors.get() / 2).max(2))
}

/// Where the operating system has the names of users.
const USERS: &str = "/etc/passwd";

/// The user who runs the command, for the audit. Without `USER`, as in a container or under cron, it is the number of
/// the user.
fn system_user() -> String {
    user_of(rustix::process::getuid().as_raw(), &std::fs::read_to_string(USERS).unwrap_or_default())
}

fn user_of(number: u32, users: &str) -> String {
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number.to_string()).then(|| name.to_owned())
    });
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("uid {number}"))
}

fn failed(error: &anyhow::Error) -> ExitCode {
    // The reader of the output is gone, as happens with `head`.
    let is_of_output = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    // An error of a connection has a context.
    if error.chain().count() == 1 && error.downcast_ref::<std::io::Error>().is_some_and(is_of_output) {
        return ExitCode::SUCCESS;
    }
    eprintln!("rollcall: {}", shown(&cause::without_number(&format!("{error:#}"))));
    ExitCode::from(match () {
        () if error.downcast_ref::<ConfigError>().is_some() => BAD_CONFIGURATION,
        () if error.downcast_ref::<WrongArguments>().is_some() => WRONG_ARGUMENTS,
        () => FAILED,
    })
}

/// Arguments that the command does not accept: out of bounds, or not allowed together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongArguments(String);

/// The error for wrong arguments.
fn wrong(text: impl Into<String>) -> anyhow::Error {
    WrongArguments(text.into()).into()
}

/// Text that is safe to print: line by line, with invisible characters, and characters that reverse text, escaped.
/// Answers of servers, and names in them, may hold control sequences for the terminal.
fn shown(text: &str) -> String {
    text.lines().map(|line| Shown(line).to_string()).collect::<Vec<String>>().join("\n")
}

/// JSON that is safe to print: the same characters as in [`shown`] are escaped, and the meaning stays.
fn shown_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if is_visible(c) || c == '\n' {
            shown.push(c);
        } else {
            // Such a character occurs only within a string.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown += &format!("\\u{unit:04x}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_command_has_the_name_that_the_system_knows() {
        let users = "root:x:0:0:root:/root:/bin/sh\nana:x:1000:1000::/home/ana:/bin/sh\nbroken\n:x:7:7::/:\n";
        for (number, name) in [(0, "root"), (1000, "ana"), (1001, "uid 1001"), (7, "uid 7")] {
            assert_eq!(user_of(number, users), name);
        }
    }

    #[test]
    fn printed_text_has_no_control_sequences() {
        let text = "a\u{202e}b\u{1b}[2J\nsecond line";
        assert_eq!(shown(text), "a\\u{202e}b\\u{1b}[2J\nsecond line");
        let json = serde_json::to_string_pretty(&[text, "\u{e0041}ü"]).unwrap();
        let printed = shown_json(&json);
        assert!(printed.chars().all(|c| is_visible(c) || c == '\n'), "{printed}");
        let read: Vec<String> = serde_json::from_str(&printed).unwrap();
        assert_eq!(read, [text, "\u{e0041}ü"]);
    }
}
