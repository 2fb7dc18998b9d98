//! The flap detection of a kind: its options, and their checks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Span;
use super::problem::Problems;
use crate::presence::FlapRule;

/// The fewest and the most transitions of a rule: as many moments are stored for each unit.
const TRANSITIONS: (usize, usize) = (2, 100);

/// The options of a kind; without transitions the kind has no flap detection.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "options are explained in config/reference.toml, their one home")]
pub struct Flapping {
    pub transitions: usize,
    pub window: Span,
    pub stable: Span,
}

impl Default for Flapping {
    fn default() -> Flapping {
        Flapping { transitions: 0, window: Span::from_hours(1), stable: Span::from_secs(30 * 60) }
    }
}

impl Flapping {
    /// The rule of a kind whose units may be silent for `allowed`; `None`: the kind has no flap detection.
    pub(super) fn rule(&self, path: &str, allowed: Duration, problems: &mut Problems) -> Option<FlapRule> {
        let Flapping { transitions, window, stable } = *self;
        if transitions == 0 {
            return None;
        }
        let (least, most) = (Span::from_secs(1), Span::from_days(30));
        let (fewest, many) = TRANSITIONS;
        let rule = FlapRule {
            transitions: problems.number(&format!("{path}.transitions"), transitions, fewest, many),
            window: problems.span(&format!("{path}.window"), window, least, most),
            stable: problems.span(&format!("{path}.stable"), stable, least, most),
        };
        warn(path, allowed, &rule, problems);
        Some(rule)
    }
}

/// Warns of a rule that no unit with the timeout of its kind can meet, or keep meeting.
fn warn(path: &str, allowed: Duration, rule: &FlapRule, problems: &mut Problems) {
    // The first transition may be offline; each further silence adds two.
    let silences = (rule.transitions.saturating_sub(1) / 2) as u32;
    let least = allowed.saturating_mul(silences);
    if rule.window < least {
        let (transitions, least) = (rule.transitions, Span(least));
        let text =
            format!("{transitions} transitions take at least {least} with this timeout; write a longer one");
        problems.warn(format!("{path}.window"), text);
    } else if rule.stable <= allowed {
        let text = "a unit that is back is stable before it can be offline again; write more than its timeout and grace";
        problems.warn(format!("{path}.stable"), text);
    }
}
