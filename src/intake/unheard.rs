//! Says which topics of the fleet are not heard, and which right is missing.
//!
//! A filter whose probes go out and do not come back is not heard, by whichever instance: what the engine says of it
//! stays behind what it says of the fleet. No unit of its kinds is declared offline meanwhile; that it is so must be seen
//! within seconds. It ends by itself, when a probe comes back.

use std::sync::Arc;
use std::time::Duration;

use super::Config;
use super::probe::{Probe, Probes, Standing};
use super::record::Writer;
use crate::clock::Timestamp;
use crate::fleet::CanaryPace;
use crate::presence::Hearing;

/// How often it is seen to.
const TICK: Duration = Duration::from_millis(250);

/// So long a probe is waited for: three periods, but no longer and no shorter than this. The same for the first unit
/// that speaks where no probe may be published.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Watches the proof of all filters.
pub(super) struct Watch {
    probes: Arc<Probes>,
    user: String,
    writer: Writer,
}

/// What is said of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    /// Nothing yet.
    Nothing,
    Heard,
    /// For what reason no probe can be published there, if that is so.
    Unheard(Option<String>),
    /// What units say proves it, for no probe can be published, for that reason.
    Refused(String),
}

impl Watch {
    pub fn new(probes: Arc<Probes>, config: &Config, writer: &Writer) -> Watch {
        for probe in probes.all() {
            writer.telemetry.filter_configured(&probe.filter, &probe.kinds());
        }
        Watch { probes, user: config.user().to_owned(), writer: writer.clone() }
    }

    /// Watches until Rollcall is stopping.
    pub async fn run(&self) {
        let mut said = vec![Said::Nothing; self.probes.all().len()];
        while self.writer.stop.run_until_cancelled(tokio::time::sleep(TICK)).await.is_some() {
            let hearing = self.writer.roll.hearing();
            self.writer.telemetry.filters_removed(&self.writer.roll.removed_filters());
            for (probe, said) in self.probes.all().iter().zip(&mut said) {
                let now = judge(probe, &hearing, self.writer.roll.pace());
                if let Some(now) = now.filter(|now| now != said) {
                    self.say(probe, &now);
                    *said = now;
                }
            }
        }
    }

    fn say(&self, probe: &Probe, said: &Said) {
        let (Probe { topic, filter, .. }, kinds) = (probe, probe.kinds());
        let telemetry = &self.writer.telemetry;
        match said {
            Said::Nothing => {}
            Said::Heard => telemetry.filter_heard(filter, &kinds),
            Said::Refused(why) => telemetry.filter_unproved(filter, &kinds, why),
            Said::Unheard(refused) => {
                let user = &self.user;
                let why = refused.clone().unwrap_or_else(|| {
                    format!(
                        "what Rollcall publishes to {topic} does not come back, though the subscription was granted; \
                         allow {user} to read {filter}, and to write {topic}"
                    )
                });
                let text = format!(
                    "{filter} is not heard, and no unit of kind {} is declared offline until it is: {why}",
                    kinds.join(", ")
                );
                telemetry.filter_unheard(filter, &kinds, text);
            }
        }
    }
}

/// What there is to say; `None`: what was said.
fn judge(probe: &Probe, hearing: &Hearing, pace: &CanaryPace) -> Option<Said> {
    let Standing { since, refused, .. } = probe.standing();
    let since = if refused.is_some() { since.unwrap_or_default() } else { since? };
    let (fleet, proved) = (hearing.heard?, proved(probe, hearing));
    let is_proved = proved.is_some_and(|proved| proved >= since);
    let mut wait = (3 * probe.period(pace)).clamp(SHORTEST_WAIT, LONGEST_WAIT);
    if refused.is_some() && is_proved {
        // Units speak when they like.
        wait = probe.kinds.iter().map(|rules| pace.shortest_of(rules)).min().unwrap_or(wait).max(wait);
    }
    if fleet.since(since.max(proved.unwrap_or_default())) > wait {
        return Some(Said::Unheard(refused));
    }
    is_proved.then(|| refused.map_or(Said::Heard, Said::Refused))
}

/// Up to when all of its kinds were heard by the filter.
fn proved(probe: &Probe, hearing: &Hearing) -> Option<Timestamp> {
    let of_kind = |kind| hearing.filters.proved.get(&(kind, probe.filter.clone())).copied();
    probe.kinds.iter().map(|rules| of_kind(rules.kind.clone())).min().flatten()
}
