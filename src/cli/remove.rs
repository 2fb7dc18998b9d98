//! `rollcall remove`: removes units from the fleet.

use std::process::ExitCode;

use clap::Args;

use super::access::Access;
use super::ack::OperatorArguments;
use super::remote::RemoteArguments;
use super::route::unit;
use super::{FAILED, logging};
use crate::fleet::{Subject, UnitChange};
use crate::presence::{Shown, Unit};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// The units, such as detector/pump-7.
    #[arg(required = true, value_name = "KIND/UNIT", value_parser = unit)]
    units: Vec<Unit>,
    #[command(flatten)]
    operator: OperatorArguments,
}

/// Removes units one after the other. A unit that does not exist does not stop the removal of the others.
pub(super) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let Arguments { remote, units, operator } = arguments;
    let operator = operator.operator()?;
    let access = Access::open(&remote).await?;
    let mut code = ExitCode::SUCCESS;
    for unit in units {
        let subject = Subject::Unit(unit);
        let name = subject.to_string();
        let now = access.now();
        if access.change(&subject, &UnitChange::Remove, &operator, now).await? {
            println!("{} is removed", Shown(&name));
        } else {
            eprintln!("rollcall: there is no unit {}", Shown(&name));
            code = ExitCode::from(FAILED);
        }
    }
    Ok(code)
}
