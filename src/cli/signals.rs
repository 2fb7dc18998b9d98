//! What signals ask for.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Signals so close to the first one are the same wish: `timeout` signals the process and its group, a terminal
/// the whole group, and supervisors do both.
const ONE_WISH: Duration = Duration::from_secs(1);

/// What SIGHUP means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HangUp {
    /// To a service: read the configuration again. It is only noted so far.
    Reload,
    /// To what somebody runs at a terminal: the terminal is gone, so stop.
    Stop,
}

/// A token that the first SIGTERM or Ctrl-C cancels; what is under way is brought to an end then.
/// One that comes more than a second later ends the process at once.
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
                _ = hang_up.recv() => if on_hang_up == HangUp::Reload {
                    tracing::warn!("a new configuration cannot be loaded by SIGHUP yet; restart instead");
                    continue;
                }
            }
            match asked {
                None => {
                    tracing::info!("stopping; ask once more, after a second, to stop at once");
                    asked = Some(Instant::now());
                    cancelled.cancel();
                }
                Some(first) if first.elapsed() <= ONE_WISH => {}
                Some(_) => {
                    tracing::warn!("asked to stop for the second time, stopping at once");
                    std::process::exit(super::FAILED.into());
                }
            }
        }
    });
    Ok(stop)
}
