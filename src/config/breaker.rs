//! Checks `[breaker]`: when the mass-offline breaker trips.

use super::Span;
use super::file::Breaker;
use super::problem::Problems;
use crate::presence::MassOfflineRule;

pub(super) fn rule(breaker: &Breaker, problems: &mut Problems) -> Option<MassOfflineRule> {
    let Breaker { enabled, share, min_units, window, max_hold } = breaker;
    if !(*share > 0.0 && *share <= 1.0) {
        problems.error(
            "breaker.share",
            format!("{share} is out of bounds; write more than 0, at most 1: 0.5 is half"),
        );
    }
    if *min_units == 0 {
        problems.error("breaker.min_units", "is 0; write at least 1");
    }
    let window = problems.span("breaker.window", *window, Span::from_secs(1), Span::from_hours(1));
    let max_hold = problems.span("breaker.max_hold", *max_hold, Span::from_secs(1), Span::from_hours(24));
    enabled.then_some(MassOfflineRule { share: *share, min_units: *min_units, window, max_hold })
}
