//! Checks `[deadman]`: the pings to another monitor.

use std::path::Path;
use std::time::Duration;

use url::Url;

use super::file;
use super::problem::Problems;
use super::{Span, secrets};
use crate::deadman::Config;

/// The timeout of a ping; shorter than the shortest period.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pings, if they are configured.
pub(super) fn deadman(deadman: &file::Deadman, base: &Path, problems: &mut Problems) -> Option<Config> {
    let every = problems.span("deadman.every", deadman.every, Span::from_secs(10), Span::from_hours(1));
    let (option, text) = match (deadman.url.is_empty(), deadman.url_file.is_empty()) {
        (true, true) => return None,
        (false, true) => ("deadman.url", deadman.url.clone()),
        (true, false) => {
            let option = "deadman.url_file";
            (option, secrets::read(option, &deadman.url_file, base, problems)?)
        }
        (false, false) => {
            problems.error("deadman.url", "there is deadman.url_file as well; keep one");
            return None;
        }
    };
    let url = text.parse::<Url>().ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    if url.is_none() {
        // The error does not show the address, which may be a secret.
        problems.error(option, "is not an address of a check; write https://host/path");
    }
    Some(Config { url: url?, every, timeout: TIMEOUT })
}
