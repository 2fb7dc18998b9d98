//! What signals ask for.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What SIGHUP means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HangUp {
    /// To a service: read the configuration again. It is only noted so far.
    Reload,
    /// To what somebody runs at a terminal: the terminal is gone, so stop.
    Stop,
}

/// A token that the first SIGTERM or Ctrl-C cancels; what is under way is brought to an end then.
/// The second one ends the process at once.
pub(super) fn stop(on_hang_up: HangUp) -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => if on_hang_up == HangUp::Reload {
                    tracing::warn!("a new configuration cannot be loaded by SIGHUP yet; restart instead");
                    continue;
                }
            }
            if asked.is_cancelled() {
                tracing::warn!("asked to stop for the second time, stopping at once");
                std::process::exit(super::FAILED.into());
            }
            tracing::info!("stopping; ask once more to stop at once");
            asked.cancel();
        }
    });
    Ok(stop)
}
