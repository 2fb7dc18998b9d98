//! The program `rollcall`: parses the command line and runs one command of it.

use std::process::ExitCode;

use clap::Parser;

/// What the heartbeat path does most is to ask for memory that another thread gives back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Everything that speaks TLS uses this provider; clients panic if there is none.
    // An error only says that somebody was faster.
    let _ = rustls::crypto::ring::default_provider().install_default();
    rollcall::cli::run(rollcall::cli::CommandLine::parse())
}
