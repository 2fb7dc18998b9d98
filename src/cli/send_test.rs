//! `rollcall send-test`: sends a receiver a notification that is marked as a test.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;

use super::remote::named_by;
use super::{ConfigFile, logging, running, wrong};
use crate::alerting;
use crate::clock::Clock;

#[derive(Debug, Args)]
pub(super) struct SendTestArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// The receiver's name in the configuration.
    #[arg(long, value_name = "NAME")]
    receiver: String,
}

pub(super) async fn run(arguments: SendTestArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let config = arguments.file.load()?;
    let name = &arguments.receiver;
    let receivers = &config.alerting.receivers;
    let Some(receiver) = receivers.iter().find(|one| one.name == *name) else {
        let names: Vec<&str> = receivers.iter().map(|one| one.name.as_str()).collect();
        return Err(wrong(match names.is_empty() {
            true => {
                let file = named_by(&config);
                format!(
                    "there is no receiver {name:?}: the configuration ({file}) has none; add a [[receiver]]"
                )
            }
            false => format!("there is no receiver {name:?}; configured receivers: {}", names.join(", ")),
        }));
    };
    alerting::send_test(receiver, Clock::system().now())
        .await
        .map_err(|failure| anyhow!("receiver {name} was not notified: {failure}"))?;
    println!("receiver {name} accepted the test");
    match running::place_without(&config, name).await {
        None => Ok(ExitCode::SUCCESS),
        Some(place) => bail!(
            "the instance at {place} runs without receiver {name} and cannot notify it; reload that instance (SIGHUP, \
             or POST /-/reload) or restart it"
        ),
    }
}
