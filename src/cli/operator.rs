//! The operator of a change, as its command names them.

use clap::Args;

use super::system_user;

#[derive(Debug, Args)]
pub(super) struct OperatorArguments {
    /// The operator who does it.
    #[arg(long, env = "USER", value_name = "NAME", default_value_t = system_user(), hide_default_value = true)]
    pub author: String,
    /// The reason, for the audit.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub comment: String,
}
