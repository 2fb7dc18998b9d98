//! `rollcall move-ids`: gives the units of a kind the ids that `unit` of the kind makes now.
//!
//! Stop Rollcall, change `unit`, look at the plan, rename with `--yes`, start Rollcall. Units keep their stored state,
//! so none falls silent because of it.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::signals::{self, HangUp};
use super::{ConfigFile, FAILED, logging, wrong};
use crate::clock::Clock;
use crate::engines;
use crate::fleet::renaming::{self, Renamed, RenamingPlan};
use crate::presence::{Kind, UnitName};

/// The most units and problems that are shown.
const SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(super) struct MoveIdsArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// The kind whose units get the ids that its option unit makes.
    #[arg(long)]
    kind: Kind,
    /// What named its units before.
    #[arg(long, value_name = "TEMPLATE", default_value_t = UnitName::default())]
    from: UnitName,
    /// Rename; without this, only show what would be renamed.
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(arguments: MoveIdsArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    let config = arguments.file.load()?;
    let Some(rules) = config.rules.get(&arguments.kind) else {
        return Err(wrong(format!("there is no kind {}; see [[kind]]", arguments.kind)));
    };
    if rules.name == arguments.from {
        let text = format!(
            "kind {} names its units {} already; change unit of the kind, or give --from",
            rules.kind, rules.name
        );
        return Err(wrong(text));
    }
    let engine = engines::open_unserved(&config.engine, engines::command_telemetry()).await?;
    let plan = renaming::plan(&*engine, &arguments.from, rules).await?;
    if show(&plan) {
        return Ok(ExitCode::from(FAILED));
    }
    if !arguments.yes {
        say_what_keeps_its_id(plan.offline, plan.removed);
        println!("nothing is changed; rename with --yes");
        return Ok(ExitCode::SUCCESS);
    }
    let bar = ProgressBar::new(plan.moves.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {pos} of {len}")
            .expect("a constant template"),
    );
    let metrics = config.metrics.of(&arguments.kind);
    let metrics: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    let now = Clock::system().now();
    let renamed = renaming::run(&*engine, &plan, (rules, &metrics), now, |count| bar.inc(count as u64));
    let Some(renamed) = stop.run_until_cancelled(renamed).await else {
        bail!("broken off: a part of the units is renamed; the same command goes on");
    };
    bar.finish_and_clear();
    let Renamed { renamed, waiting } = renamed?;
    println!("{renamed} units are renamed");
    say_what_keeps_its_id(waiting, plan.removed);
    Ok(ExitCode::SUCCESS)
}

/// Says which units keep their ids, and what happens to them.
fn say_what_keeps_its_id(offline: usize, removed: usize) {
    if offline > 0 {
        println!(
            "{offline} units are offline and keep their ids, under which receivers were notified: nobody is notified again. \
             When such a device is heard, it is a new unit with its new id, and the record of the old id stays open until \
             this command is repeated, which closes it as a return. Delete the old ids of devices that never come back"
        );
    }
    if removed > 0 {
        println!(
            "{removed} ids were removed from the fleet, and their new ids are not known: a device of them that still sends \
             is a new unit with its new id; delete it there"
        );
    }
}

/// Prints the plan. Returns whether it has a problem.
fn show(plan: &RenamingPlan) -> bool {
    if !plan.problems.is_empty() {
        plan.problems.iter().take(SHOWN).for_each(|problem| println!("{problem}"));
        more(plan.problems.len());
        println!("nothing is changed, because {} units have no new id of their own", plan.problems.len());
        return true;
    }
    plan.moves.iter().take(SHOWN).for_each(|(old, new)| println!("{old} -> {}", new.id));
    more(plan.moves.len());
    println!("{} units get another id, {} have theirs already", plan.moves.len(), plan.done);
    false
}

fn more(count: usize) {
    if count > SHOWN {
        println!("… and {} more", count - SHOWN);
    }
}
