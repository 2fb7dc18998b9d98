//! `rollcall template`: shows the messages that a receiver is sent.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};

use super::remote::named_by;
use super::{ConfigFile, logging, shown, wrong};
use crate::alerting::{self, Example};

#[derive(Debug, Args)]
pub(super) struct TemplateArguments {
    #[command(subcommand)]
    command: TemplateCommand,
}

#[derive(Debug, Subcommand)]
enum TemplateCommand {
    /// Show what a receiver is sent for examples. Nothing is sent.
    Render(Render),
}

#[derive(Debug, Args)]
struct Render {
    #[command(flatten)]
    file: ConfigFile,
    /// The receiver's name in the configuration.
    #[arg(long, value_name = "NAME")]
    receiver: String,
    /// The example; by default all of them.
    #[arg(long)]
    example: Option<Example>,
}

impl ValueEnum for Example {
    fn value_variants<'a>() -> &'a [Example] {
        &Example::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Example::Offline => "A unit is offline",
            Example::Recovery => "A unit is back",
            Example::Storm => "Many units of a site are offline",
            Example::Blind => "Nothing is heard",
            Example::MassOffline => "A large part of the fleet fell silent at once",
            Example::Flapping => "A unit flaps",
            Example::DataLost => "The engine lost its data",
        };
        Some(PossibleValue::new(self.as_str()).help(help))
    }
}

pub(super) async fn run(arguments: TemplateArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let TemplateCommand::Render(Render { file, receiver: name, example }) = arguments.command;
    let config = file.load()?;
    let Some(receiver) = config.alerting.receivers.iter().find(|one| one.name == name) else {
        let file = named_by(&config);
        return Err(wrong(format!(
            "there is no receiver {name:?} in the configuration ({file}); see [[receiver]]"
        )));
    };
    for one in Example::ALL.into_iter().filter(|one| example.is_none_or(|name| *one == name)) {
        let rendered = alerting::render(receiver, one);
        let (head, text) = rendered.map_err(|error| anyhow!("receiver {name}: {error}"))?;
        if example.is_none() {
            println!("--- {}", one.as_str());
        }
        // The head goes to standard error, because a program may read the text.
        if let Some(head) = head {
            eprintln!("{}", shown(&head));
        }
        println!("{}", shown(&text));
    }
    Ok(ExitCode::SUCCESS)
}
