//! How a command prints an answer, once or repeatedly.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::table::{PrintedTable, has_colours};
use super::times::span;
use super::{shown, shown_json};

#[derive(Debug, Args)]
pub(super) struct OutputArguments {
    /// Print the answer as JSON.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV.
    #[arg(long)]
    csv: bool,
    /// Repeat every 2 s, or at this interval, until Ctrl-C.
    #[arg(long, value_name = "SPAN", value_parser = span, num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Duration>,
}

/// The shortest interval of `--watch`.
const SHORTEST: Duration = Duration::from_millis(200);

impl OutputArguments {
    /// Calls `ask` and prints its answer; with `--watch` until Ctrl-C.
    pub async fn repeat(&self, ask: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Some(every) = self.watch else { return ask().await };
        let watching = async {
            loop {
                if std::io::stdout().is_terminal() {
                    print!("\x1b[2J\x1b[H");
                }
                ask().await?;
                std::io::stdout().flush()?;
                tokio::time::sleep(every.max(SHORTEST)).await;
            }
        };
        tokio::select! {
            ended = watching => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    }

    /// Prints an answer, or the table that shows it.
    pub fn print(&self, answer: &Value, table: impl FnOnce() -> PrintedTable) -> anyhow::Result<()> {
        self.print_part(answer, true, table)
    }

    /// Prints a part of a long answer. `is_first`: the part comes with the heads of the columns.
    pub fn print_part(
        &self,
        answer: &Value,
        is_first: bool,
        table: impl FnOnce() -> PrintedTable,
    ) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", shown_json(&serde_json::to_string_pretty(answer)?))?;
        } else if self.csv {
            write!(out, "{}", table().to_csv(is_first))?;
        } else {
            write!(out, "{}", table().to_text(has_colours()))?;
        }
        Ok(())
    }

    /// Prints a list, or the table that shows it. `what`: its items, such as `silences`.
    pub fn print_list(
        &self,
        items: &Value,
        what: &str,
        table: impl FnOnce() -> PrintedTable,
    ) -> anyhow::Result<()> {
        self.print(items, table)?;
        self.note_none(items, what);
        Ok(())
    }

    /// Notes on standard error that a list is empty; programs see it in the answer.
    pub fn note_none(&self, items: &Value, what: &str) {
        if items.as_array().is_none_or(Vec::is_empty) && !self.json && !self.csv {
            eprintln!("no {what} match");
        }
    }

    /// Prints an answer, or for people a table in their words.
    pub fn print_for_people(
        &self,
        answer: &Value,
        table: impl FnOnce() -> PrintedTable,
    ) -> anyhow::Result<()> {
        if self.csv { self.print(answer, || facts(answer)) } else { self.print(answer, table) }
    }

    /// Prints an answer, or for people a sentence.
    pub fn print_sentence(&self, answer: &Value, sentence: &str) -> anyhow::Result<()> {
        self.say(sentence);
        if self.json || self.csv { self.print(answer, || facts(answer)) } else { Ok(()) }
    }

    /// Prints one more table for people, if it has rows; programs have the answer.
    pub fn say_table(&self, table: &PrintedTable) {
        if !self.json && !self.csv && !table.rows.is_empty() {
            print!("\n{}", table.to_text(has_colours()));
        }
    }

    /// Prints a line for people; programs get only the answer.
    pub fn say(&self, line: &str) {
        if !self.json && !self.csv {
            println!("{}", shown(line));
        }
    }
}

/// A field of an answer as text: nothing for `null`, labels as `name=value`.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let pairs: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}={}", text(value))).collect();
            pairs.join(" ")
        }
        Value::Array(items) => items.iter().map(text).collect::<Vec<String>>().join(", "),
        other => other.to_string(),
    }
}

/// A table with a row for each field.
pub(super) fn facts(answer: &Value) -> PrintedTable {
    let rows = answer.as_object().into_iter().flatten();
    let rows = rows.map(|(name, value)| vec![name.replace('_', " "), text(value)]).collect();
    PrintedTable { rows, ..PrintedTable::new(&["what", "value"]) }
}

/// A table with a row for each item and a column for each of `fields`.
pub(super) fn table(items: &Value, fields: &[&'static str]) -> PrintedTable {
    let row = |item: &Value| fields.iter().map(|field| text(&item[field])).collect();
    let rows = items.as_array().map(|items| items.iter().map(row).collect()).unwrap_or_default();
    PrintedTable { rows, ..PrintedTable::new(fields) }
}
