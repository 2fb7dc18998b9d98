//! `rollcall repair`: shows values that were quarantined because they could not be read, puts back the values that
//! this version can read, or deletes them.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::signals::{self, HangUp};
use super::{ConfigFile, FAILED, logging};
use crate::config::EngineConfig;
use crate::engines;
use crate::store::{repair::Quarantined, repair::Repair};

#[derive(Debug, Args)]
pub(super) struct RepairArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Put back values that are readable by now, unless another value has taken their place.
    #[arg(long)]
    restore: bool,
    /// Delete the values that cannot be put back, or without --restore all values.
    #[arg(long)]
    discard: bool,
}

pub(super) async fn run(arguments: RepairArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let stop = signals::stop(HangUp::Stop)?;
    let config = arguments.file.load()?;
    let Some(repair) = engines::repair(&config.engine).await? else {
        println!("there is no fleet yet, and nothing was quarantined");
        return Ok(ExitCode::SUCCESS);
    };
    let quarantined = repair.quarantined().await?;
    let Some(done) = stop.run_until_cancelled(work(repair.as_ref(), &quarantined, &arguments)).await else {
        bail!("broken off: the remaining values are as they were; the repair can be repeated");
    };
    let RepairCounts { restored, discarded } = done?;
    let left = quarantined.len() - restored - discarded;
    if arguments.restore {
        println!("{restored} values were put back");
    }
    if arguments.discard {
        println!("{discarded} values were deleted");
    }
    println!("{left} values are quarantined");
    let is_undone = (arguments.restore || arguments.discard) && left > 0;
    Ok(if is_undone { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// The quarantined values of an engine; empty if there is no fleet.
pub(super) async fn quarantined(engine: &EngineConfig) -> anyhow::Result<Vec<Quarantined>> {
    match engines::repair(engine).await? {
        Some(repair) => Ok(repair.quarantined().await?),
        None => Ok(Vec::new()),
    }
}

#[derive(Default)]
struct RepairCounts {
    restored: usize,
    discarded: usize,
}

async fn work(
    repair: &dyn Repair,
    quarantined: &[Quarantined],
    arguments: &RepairArguments,
) -> anyhow::Result<RepairCounts> {
    let bar = ProgressBar::new(quarantined.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("[{elapsed_precise}] {bar:30} {pos} of {len}")
            .expect("a constant template"),
    );
    let mut done = RepairCounts::default();
    for one in quarantined {
        let outcome = if arguments.restore && repair.restore(one).await? {
            done.restored += 1;
            "put back"
        } else if arguments.discard {
            repair.discard(one).await?;
            done.discarded += 1;
            "deleted"
        } else if arguments.restore {
            "cannot be put back"
        } else {
            "quarantined"
        };
        bar.suspend(|| println!("{outcome}: {} {}: {}", one.what.as_str(), one.location, one.held));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(done)
}
