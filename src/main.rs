//! The program `rollcall`: parses the command line and runs one command of it.

use std::process::ExitCode;

use clap::Parser;

/// On the heartbeat path one thread allocates memory and another one frees it, which this allocator does fast.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Every TLS client uses this provider, and panics without it.
    // An error only means that it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    rollcall::cli::run(rollcall::cli::CommandLine::parse())
}
