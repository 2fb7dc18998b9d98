//! `rollcall package-files`: the other files of a package, generated from the command line. Only a program built by
//! `make dist` has this command.

use std::fs::create_dir_all;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::aot::{Shell, generate_to};

use super::CommandLine;

const NAME: &str = "rollcall";
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

#[derive(Debug, Args)]
pub(super) struct PackageFilesArguments {
    /// Where: `completions/` and `man/` are made in it.
    directory: PathBuf,
}

pub(super) fn run(arguments: &PackageFilesArguments) -> anyhow::Result<ExitCode> {
    let failed = || format!("cannot write to {}", arguments.directory.display());
    let (completions, man) = (arguments.directory.join("completions"), arguments.directory.join("man"));
    create_dir_all(&completions).and_then(|()| create_dir_all(&man)).with_context(failed)?;
    for shell in SHELLS {
        generate_to(shell, &mut CommandLine::command(), NAME, &completions).with_context(failed)?;
    }
    // A page for the program, and one for each command that is not hidden.
    clap_mangen::generate_to(CommandLine::command(), &man).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
