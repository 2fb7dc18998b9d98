//! `rollcall history`: makes, shows, fills and prunes the history in PostgreSQL. It opens the database, and no engine.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

use super::table::{PrintedTable, has_colours};
use super::{ConfigFile, logging, shown, shown_json};
use crate::clock::{Clock, Timestamp, shown_span};
use crate::history::{self, Database, HistoryConfig, HistoryStatus};

#[derive(Debug, Args)]
pub(super) struct HistoryArguments {
    #[command(subcommand)]
    command: HistoryCommand,
}

#[derive(Debug, Subcommand)]
enum HistoryCommand {
    /// Make the schema and its tables, unless they are there.
    Init(ConfigFile),
    /// Let another fleet have the history, such as this one after a move to another engine. Stop all instances before.
    HandOver(ConfigFile),
    /// Show the tables, how far they are written, and what was lost.
    Status(StatusArguments),
    /// Let running instances write again what the engine keeps; with --records write the closed records of a file.
    Backfill(BackfillArguments),
    /// Drop what is older than history.keep.
    Prune(ConfigFile),
}

#[derive(Debug, Args)]
struct StatusArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct BackfillArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// A file with a record a line, as JSON.
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

pub(super) async fn run(arguments: HistoryArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    match arguments.command {
        HistoryCommand::Init(file) => {
            let (config, mut database) = open(&file).await?;
            history::prepare(&mut database, &config.access, None).await?;
            history::try_writing(&mut database, &config.access).await?;
            let schema = &config.access.schema;
            println!("schema {schema} of {} has version {}", database.address(), history::VERSION);
        }
        HistoryCommand::HandOver(file) => {
            let (config, database) = prepared(&file).await?;
            history::hand_over(&database).await?;
            println!("the next fleet that writes has the history in schema {}", config.access.schema);
        }
        HistoryCommand::Status(StatusArguments { file, json }) => {
            let (_, database) = prepared(&file).await?;
            let status = history::status(&database).await?;
            if json {
                println!("{}", shown_json(&serde_json::to_string_pretty(&status)?));
            } else {
                print!("{}", in_words(&status, Clock::system().now()));
            }
        }
        HistoryCommand::Backfill(BackfillArguments { file, records }) => {
            let (config, mut database) = prepared(&file).await?;
            match records {
                None => {
                    history::rewind(&mut database).await?;
                    println!("running instances write again what the engine keeps");
                }
                Some(path) => {
                    let name = path.display();
                    let lines = File::open(&path).with_context(|| format!("{name} cannot be read"))?;
                    let lines = BufReader::new(lines);
                    let done = history::backfill(&mut database, lines, config.batch).await;
                    let done = done.with_context(|| format!("{name} was not read to its end"))?;
                    let history::Backfilled { records, rows, open } = done;
                    println!(
                        "{records} records: {rows} new rows; {open} open records are left to the engine"
                    );
                }
            }
        }
        HistoryCommand::Prune(file) => {
            let (config, database) = prepared(&file).await?;
            let dropped = history::prune(&database, &config.keep, Clock::system().now()).await?;
            dropped.iter().for_each(|what| println!("dropped {what}"));
            if dropped.is_empty() {
                println!("nothing is older than history.keep");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn open(file: &ConfigFile) -> anyhow::Result<(HistoryConfig, Database)> {
    let config = file.load()?.history;
    let config = config.context("there is no history: set history.url to the address of a PostgreSQL")?;
    let database = Database::connect(&config.access).await?;
    Ok((config, database))
}

pub(super) async fn prepared(file: &ConfigFile) -> anyhow::Result<(HistoryConfig, Database)> {
    let (config, database) = open(file).await?;
    history::require(&database, &config.access, None).await?;
    Ok((config, database))
}

fn in_words(status: &HistoryStatus, now: Timestamp) -> String {
    let mut tables = PrintedTable::new(&["table", "rows", "megabytes"]);
    for table in &status.tables {
        let megabytes = format!("{:.1}", table.bytes as f64 / 1e6);
        let about = if table.is_estimated { "about " } else { "" };
        tables.rows.push(vec![table.table.clone(), format!("{about}{}", table.rows), megabytes]);
    }
    let mut cursors = PrintedTable::new(&["source", "written up to", "behind", "partitions"]);
    for source in &status.cursors {
        let behind = shown_span(now.since(source.at));
        let row = [source.source.clone(), source.at.to_string(), behind, source.partitions.to_string()];
        cursors.rows.push(row.to_vec());
    }
    let mut losses = PrintedTable::new(&["lost", "from", "until", "why"]);
    for loss in &status.losses {
        let row = [loss.table.clone(), loss.from.to_string(), loss.until.to_string(), shown(&loss.why)];
        losses.rows.push(row.to_vec());
    }
    let all = [tables, cursors, losses].into_iter().filter(|table| !table.rows.is_empty());
    let texts: Vec<String> = all.map(|table| table.to_text(has_colours())).collect();
    let begins = status
        .begins
        .map_or("no instance has written yet".to_owned(), |at| format!("history begins at {at}"));
    format!("{begins}\n\n{}", texts.join("\n"))
}
