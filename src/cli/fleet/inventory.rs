//! `rollcall import` and `export`: the inventory of the fleet, from and to a file.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;
use tokio::fs::File;

use crate::cli::output::{facts, table, text};
use crate::cli::remote::{RemoteArguments, content, given};
use crate::cli::table::has_colours;
use crate::cli::{logging, shown, shown_json, system_user, wrong};
use crate::routing::alert_silence::is_author;

#[derive(Debug, Args)]
pub(in crate::cli) struct ExportArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The file to write; without it the units go to standard output.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The format; by default by the name of the file, else NDJSON.
    #[arg(long)]
    format: Option<FileFormat>,
    /// Only units of this kind.
    #[arg(long)]
    kind: Option<String>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
    /// The file with the units, NDJSON or CSV.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format; by default by the name of the file.
    #[arg(long)]
    format: Option<FileFormat>,
    /// The kind of lines that name none; lines of other kinds are bad.
    #[arg(long)]
    kind: Option<String>,
    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// This is the whole fleet (or the whole kind): remove the units that are not in it.
    #[arg(long)]
    replace: bool,
    /// Remove with --replace without a question.
    #[arg(long, requires = "replace")]
    yes: bool,
    /// Remove with --replace also more than half of the units, without a question.
    #[arg(long, requires = "replace")]
    force: bool,
    /// The operator who imports, for the audit.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    author: String,
    /// Take the good lines, though others are bad.
    #[arg(long, conflicts_with = "replace")]
    skip_bad_lines: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FileFormat {
    Ndjson,
    Csv,
}

impl FileFormat {
    /// The format, by the ending of a file's name.
    fn of(file: &Path) -> Option<FileFormat> {
        match file.extension()?.to_str()? {
            "csv" => Some(FileFormat::Csv),
            "ndjson" | "jsonl" => Some(FileFormat::Ndjson),
            _ => None,
        }
    }
}

pub(in crate::cli) async fn export(arguments: ExportArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let ExportArguments { remote, file, format, kind } = arguments;
    let remote = remote.open()?;
    let format = format.or_else(|| FileFormat::of(file.as_deref()?)).unwrap_or(FileFormat::Ndjson);
    let format = if format == FileFormat::Csv { "csv" } else { "ndjson" };
    let query = given(vec![("format", Some(format.to_owned())), ("kind", kind)]);
    let path = ["api", "v1", "units:export"];
    match file {
        None => remote.save(&path, &query, &mut tokio::io::stdout()).await?,
        Some(name) => {
            let unwritable = || format!("{} cannot be written", name.display());
            let mut file = File::create(&name).await.with_context(unwritable)?;
            remote.save(&path, &query, &mut file).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(in crate::cli) async fn import(arguments: ImportArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let ImportArguments {
        remote,
        json,
        file,
        format,
        kind,
        dry_run,
        replace,
        yes,
        force,
        author,
        skip_bad_lines,
    } = arguments;
    let remote = remote.open()?;
    let Some(format) = format.or_else(|| FileFormat::of(&file)) else {
        bail!(
            "{}: its name ends neither with .csv nor with .ndjson; --format says what it is",
            file.display()
        );
    };
    let media = if format == FileFormat::Csv { "text/csv" } else { "application/x-ndjson" };
    let open = File::open(&file).await.with_context(|| format!("{} cannot be read", file.display()))?;
    let is = |flag: bool| flag.then(|| "true".to_owned());
    // A server that refuses a file does not read the rest of it, and its answer may be lost with the connection. So
    // send a request without units first.
    let path = ["api", "v1", "units:import"];
    let nothing = if format == FileFormat::Csv { "kind,unit\n" } else { "" };
    let query = given(vec![("kind", kind.clone()), ("dry_run", is(true))]);
    remote.send(&path, &query, media, nothing.into(), None).await?;
    if replace && !dry_run && !force {
        let query = given(vec![("kind", kind.clone()), ("dry_run", is(true)), ("replace", is(true))]);
        let again = File::open(&file).await.with_context(|| format!("{} cannot be read", file.display()))?;
        may_remove(&remote.send(&path, &query, media, content(again), None).await?, yes)?;
    }
    let query = given(vec![
        ("kind", kind),
        ("dry_run", is(dry_run)),
        ("replace", is(replace)),
        ("force", is(force)),
        ("bad_lines", skip_bad_lines.then(|| "skip".to_owned())),
    ]);
    let author = Some(author.as_str()).filter(|author| is_author(author));
    let answer = remote.send(&path, &query, media, content(open), author).await?;
    // A dry run succeeds where the import itself would be refused.
    let is_bad = dry_run && !skip_bad_lines && answer["bad_lines"].as_u64().unwrap_or_default() > 0;
    let code = if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    print_effect(answer, &file, json)?;
    Ok(code)
}

/// Prints the counts of an import, and the bad lines on standard error.
fn print_effect(answer: Value, file: &Path, json: bool) -> anyhow::Result<()> {
    for bad in answer["bad"].as_array().into_iter().flatten() {
        eprintln!("{}:{}: {}", file.display(), text(&bad["line"]), shown(&text(&bad["problem"])));
    }
    if json {
        println!("{}", shown_json(&serde_json::to_string_pretty(&answer)?));
        return Ok(());
    }
    let mut counts = answer;
    let lists = counts.as_object_mut().map(|counts| [counts.remove("bad"), counts.remove("changes")]);
    print!("{}", facts(&counts).to_text(has_colours()));
    if let Some([_, Some(changes)]) = lists {
        print!("\n{}", table(&changes, &["change", "kind", "unit"]).to_text(has_colours()));
    }
    Ok(())
}

/// Checks that `--replace` may remove the units that a dry run counts: an operator confirms it. A file that would
/// remove more than half of the units is treated as the wrong file.
fn may_remove(planned: &Value, yes: bool) -> anyhow::Result<()> {
    let count = |field: &str| planned[field].as_u64().unwrap_or_default();
    let removed = count("removed");
    // The import reports the bad lines, and removes no unit.
    if removed == 0 || count("bad_lines") > 0 {
        return Ok(());
    }
    let known = removed + count("changed") + count("same");
    let what = format!("--replace would remove {removed} of {known} units");
    if removed * 2 > known {
        return Err(wrong(format!("{what}, more than half; if that is meant, add --force")));
    }
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(wrong(format!("{what}; look at them with --dry-run, then add --yes")));
    }
    eprint!("{what}. Remove them? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing is changed"),
    }
}
