//! The program `rollcall`: parses the command line and runs one command of it.

use std::process::ExitCode;

use rollcall::cli;

/// On the heartbeat path one thread allocates memory and another one frees it, which this allocator does fast.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The commit of the clone that this is built in; build.rs says where it is noted.
#[cfg(has_reflog)]
static CHECKED_OUT: [u8; 40] = cli::last_commit(include_bytes!(env!("CLONE_REFLOG")));
#[cfg(not(has_reflog))]
static CHECKED_OUT: [u8; 40] = cli::last_commit(b"");
/// The commit of an archive that git has made.
const ARCHIVED: &str = include_str!("commit");

fn main() -> ExitCode {
    // Every TLS client uses this provider, and panics without it. An error only means that it is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    end_with_the_reader();
    // A build without git is told the commit, as that of the image is.
    let given = option_env!("ROLLCALL_COMMIT").unwrap_or_default();
    cli::run(&[given, str::from_utf8(&CHECKED_OUT).unwrap_or_default(), ARCHIVED])
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
