//! `rollcall remove`: removes units from the fleet.

use std::process::ExitCode;

use clap::Args;

use super::operator::OperatorArguments;
use super::remote::{RemoteArguments, is_missing};
use super::route::unit;
use super::{FAILED, logging, shown};
use crate::presence::Unit;

#[derive(Debug, Args)]
pub(super) struct RemoveArguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The units, such as detector/pump-7.
    #[arg(required = true, value_name = "KIND/UNIT", value_parser = unit)]
    units: Vec<Unit>,
    #[command(flatten)]
    operator: OperatorArguments,
}

/// Removes units one after the other. A unit that does not exist does not stop the removal of the others.
pub(super) async fn run(arguments: RemoveArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let RemoveArguments { remote, units, operator } = arguments;
    let remote = remote.open()?;
    let mut code = ExitCode::SUCCESS;
    for Unit { kind, id } in units {
        match remote.delete(&["api", "v1", "units", kind.as_str(), id.as_str()], &operator).await {
            Ok(()) => println!("{kind}/{} is removed", shown(id.as_str())),
            Err(error) if is_missing(&error) => {
                eprintln!("rollcall: {}", shown(&error.to_string()));
                code = ExitCode::from(FAILED);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(code)
}
