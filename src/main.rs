//! The program `rollcall`: parses the command line and runs one command of it.

use std::process::ExitCode;

use clap::Parser;

/// On the heartbeat path one thread allocates memory and another one frees it, which this allocator does fast.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Every TLS client uses this provider, and panics without it. An error only means that it is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    end_with_the_reader();
    rollcall::cli::run(rollcall::cli::CommandLine::parse())
}

/// Ends the program when the reader of its output is gone, for example `head`; `println!` panics then.
fn end_with_the_reader() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if text.starts_with("failed printing to stdout") {
            if text.contains("Broken pipe") {
                std::process::exit(0);
            }
            eprintln!("error: {text}");
            std::process::exit(1);
        }
        report(panic);
    }));
}
