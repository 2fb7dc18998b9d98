//! The signals of the process.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::clock::monotonic;
use crate::http::ReloadRequest;

/// Signals within this time count as one: `timeout` signals the process and its group, a terminal
/// the whole group, and supervisors do both.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// The meaning of SIGHUP.
#[derive(Clone, Debug)]
pub(super) enum HangUp {
    /// For a service: load the configuration again.
    Reload(mpsc::Sender<ReloadRequest>),
    /// For a command at a terminal: the terminal is gone, so stop.
    Stop,
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) fail with an error; otherwise the system ends the
/// process.
pub(super) fn survive_file_size_limit() -> std::io::Result<()> {
    // Dropping the stream leaves the handler in place; nothing has to read from it.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

/// A token that the first SIGTERM or Ctrl-C cancels, so that the command stops in order. A second signal more than a
/// second later ends the process at once.
pub(super) fn stop(on_hang_up: HangUp) -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let cancelled = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        let mut asked: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => if let HangUp::Reload(reloads) = &on_hang_up {
                    // The service logs the outcome. A full queue already holds a reload, so another request would
                    // change nothing.
                    let _ = reloads.try_send(oneshot::channel().0);
                    continue;
                }
            }
            match asked {
                None => {
                    tracing::info!("stopping; another signal, at least a second later, stops at once");
                    asked = Some(monotonic());
                    cancelled.cancel();
                }
                Some(first) if monotonic().duration_since(first) <= SAME_SIGNAL => {}
                Some(_) => {
                    tracing::warn!("a second signal came, stopping at once");
                    std::process::exit(super::FAILED.into());
                }
            }
        }
    });
    Ok(stop)
}
