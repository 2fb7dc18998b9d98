//! The program `rollcall`: parses the command line and runs one command of it.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // Everything that speaks TLS uses this provider; clients panic if there is none.
    // An error only says that somebody was faster.
    let _ = rustls::crypto::ring::default_provider().install_default();
    rollcall::cli::run(rollcall::cli::CommandLine::parse())
}
