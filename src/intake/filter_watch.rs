//! Reports which topic filters of the fleet are not heard, and which right is missing.
//!
//! If the probes of a filter are published but do not come back, no instance hears the filter: in the engine its
//! hearing stays behind that of the fleet. No unit of its kinds is declared offline meanwhile, so an operator has to
//! see the problem within seconds. The problem ends by itself when a probe comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Config;
use super::broker_watch::BrokerWatch;
use super::engine_writer::EngineWriter;
use super::probe::{Probe, ProbeStatus, Probes};
use crate::clock::{Timestamp, monotonic};
use crate::fleet::BrokerPace;
use crate::presence::{BrokerName, Hearing, Kind};

/// How often the filters are checked.
const TICK: Duration = Duration::from_millis(250);

/// A probe may be missing for three periods (at least the first of these times, at most the second) plus a round trip.
/// The same limit holds for the first message of a unit if no probe may be published.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(10);

/// How long a foreign member of the share stays a problem after the last probe that came to no instance.
const CALM: Duration = Duration::from_secs(60);

const FORGOTTEN: &str = "the engine lost its data and with it the members of the shared subscription, and the broker \
                         gives messages to one that does not answer, until it drops it; see whether an instance hangs";

/// Watches the proofs of all filters.
pub(super) struct FilterWatch {
    probes: Arc<Probes>,
    user: String,
    /// The name of the shared subscription; empty for a plain subscription.
    share: String,
    /// The name of the share among the proofs, at one of several brokers.
    proof_of_share: Option<String>,
    /// The name of the broker in metrics.
    label: String,
    /// The name of the broker, if the fleet has several.
    broker: Option<BrokerName>,
    /// The kinds that are heard at other brokers, too.
    kinds_elsewhere: Vec<Kind>,
    writer: EngineWriter,
}

/// The reported state of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FilterReport {
    Nothing,
    Heard,
    /// The filter is not heard. The text is the reason why the broker refuses probes, if it does.
    Unheard(Option<String>),
    /// The broker answers nothing, though others are heard.
    Silent,
    /// Only messages of units prove the filter, because no probe can be published, for this reason.
    Unproved(String),
}

impl FilterWatch {
    pub fn new(probes: Arc<Probes>, config: &Config, writer: &EngineWriter) -> FilterWatch {
        let watch = FilterWatch {
            probes,
            user: config.user().to_owned(),
            share: config.share.clone(),
            proof_of_share: config.proof_of_share(),
            label: config.broker_label().to_owned(),
            broker: config.broker.parse().ok().filter(|_| config.is_one_of_several),
            kinds_elsewhere: config.kinds_elsewhere.clone(),
            writer: writer.clone(),
        };
        for probe in watch.probes.all() {
            let text = format!(
                "it is not proved yet that {} is heard; {} until then",
                probe.proof,
                watch.held_by(probe)
            );
            writer.telemetry.filter_configured(config.broker_label(), &probe.proof, &probe.kinds(), text);
        }
        watch
    }

    /// The units that are held while a probe does not prove its filter.
    fn held_by(&self, probe: &Probe) -> String {
        let is_elsewhere = probe.kinds.iter().any(|rules| self.kinds_elsewhere.contains(&rules.kind));
        let at_others = if is_elsewhere { ", unless it was last heard at another broker," } else { "" };
        format!("no unit of kind {}{at_others} is declared offline", probe.kinds().join(", "))
    }

    /// Watches until Rollcall is stopping.
    pub async fn run(&self) {
        let mut reports = vec![FilterReport::Nothing; self.probes.all().len()];
        // A server that loses its data forgets the proofs of filters, which says nothing about the broker.
        let mut last = vec![None; self.probes.all().len()];
        // When each filter was last held: what was proved before says nothing of the time after.
        let mut held_at = last.clone();
        let (mut taken, mut broker) = (None, self.broker.clone().map(BrokerWatch::new));
        while self.writer.stop.run_until_cancelled(tokio::time::sleep(TICK)).await.is_some() {
            let hearing = self.writer.roll.hearing();
            self.writer.telemetry.filters_removed(&self.writer.roll.removed_filters());
            taken = self.look_for_strangers(&hearing, taken);
            if let Some(broker) = &mut broker {
                broker.report(&self.writer.roll, &self.writer.telemetry);
            }
            let states = reports.iter_mut().zip(&mut last).zip(&mut held_at);
            for (probe, ((report, last), held_at)) in self.probes.all().iter().zip(states) {
                *last = proved(probe, &hearing).max(*last);
                let held = self.held(probe);
                if held.is_some() {
                    *held_at = Some(self.writer.clock.now());
                }
                let moments = (hearing.heard, self.probes.answered_at(), *last);
                let pace = self.writer.roll.pace().at(&self.label);
                let now = held.or_else(|| judge(probe, moments, *held_at, &pace));
                if let Some(now) = now.filter(|now| now != report) {
                    self.report(probe, &now);
                    *report = now;
                }
            }
        }
    }

    /// The report on a filter whose units cannot be heard, because the bridge between says that it is offline.
    fn held(&self, probe: &Probe) -> Option<FilterReport> {
        let kind = &probe.kinds.iter().find(|rules| self.probes.is_held(&rules.kind))?.kind;
        Some(FilterReport::Unproved(format!(
            "the bridge of kind {kind} says that it is offline, so {}; start the bridge",
            self.held_by(probe)
        )))
    }

    /// Checks for probes of this member that came to no instance. `taken`: when such a probe was last found.
    fn look_for_strangers(&self, hearing: &Hearing, taken: Option<Instant>) -> Option<Instant> {
        let wait = MIN_WAIT + 2 * self.writer.roll.pace().at(&self.label).round_trip();
        let now = self.writer.clock.now();
        let mut is_taken = false;
        for probe in self.probes.all().iter().filter(|_| !self.share.is_empty()) {
            let of_share = |proof: &String| Some(hearing.of_share(&probe.kinds.first()?.kind, proof));
            let of_share = self.proof_of_share.as_ref().and_then(of_share);
            is_taken |=
                probe.is_missing(of_share.as_ref().unwrap_or(hearing), wait, now) && probe.are_taken();
        }
        let telemetry = &self.writer.telemetry;
        if is_taken {
            telemetry.share_taken(&self.label, Some(strangers(&self.share)));
            return Some(monotonic());
        }
        let is_over = taken.is_some_and(|taken| monotonic().duration_since(taken) > CALM);
        if is_over {
            telemetry.share_taken(&self.label, None);
        }
        taken.filter(|_| !is_over)
    }

    fn report(&self, probe: &Probe, report: &FilterReport) {
        let (Probe { topic, filter, proof, .. }, kinds) = (probe, probe.kinds());
        let (telemetry, broker) = (&self.writer.telemetry, &self.label);
        match report {
            FilterReport::Nothing => {}
            FilterReport::Heard => telemetry.filter_heard(broker, proof, &kinds),
            FilterReport::Unproved(why) => telemetry.filter_unproved(broker, proof, &kinds, why),
            FilterReport::Silent => {
                let why = "the broker answers nothing, also no canary, while other brokers are heard; see whether it hangs \
                           or is overloaded, and look at the network between";
                telemetry.filter_unheard(broker, proof, &kinds, self.unheard(probe, why));
            }
            FilterReport::Unheard(refused) => {
                let user = &self.user;
                let is_forgotten = || probe.may_be_forgotten(self.writer.clock.now());
                let taken = probe.are_partial().then(|| match is_forgotten() {
                    true => FORGOTTEN.to_owned(),
                    false => strangers(&self.share),
                });
                let why = refused.clone().or(taken).unwrap_or_else(|| {
                    format!(
                        "what Rollcall publishes to {topic} does not come back, though the subscription was granted; \
                         allow {user} to read {filter}, and to write {topic}"
                    )
                });
                telemetry.filter_unheard(broker, proof, &kinds, self.unheard(probe, &why));
            }
        }
    }

    fn unheard(&self, probe: &Probe, why: &str) -> String {
        format!("{} is not heard, and {} until it is: {why}", probe.proof, self.held_by(probe))
    }
}

/// The text of the problem that another client is a member of the share.
fn strangers(share: &str) -> String {
    format!(
        "messages of the shared subscription {share} come to no instance of the fleet, though every instance hears: another \
         client is a member of it and takes a part of them, or the broker drops them; let no other client subscribe to \
         $share/{share}/…, or give mqtt.share a name that no other program uses"
    )
}

/// The report on a filter, from the moments up to which the fleet was heard, the broker answered, and the filter was
/// heard, and when its units last could not be heard for a known reason; `None`: nothing has changed.
fn judge(
    probe: &Probe,
    (fleet, answered, proved): (Option<Timestamp>, Option<Timestamp>, Option<Timestamp>),
    held_at: Option<Timestamp>,
    pace: &BrokerPace,
) -> Option<FilterReport> {
    let ProbeStatus { since, refused, .. } = probe.status();
    let since = if refused.is_some() { since.unwrap_or_default() } else { since? };
    let since = since.max(held_at.unwrap_or_default());
    let fleet = fleet?;
    let is_proved = proved.is_some_and(|proved| proved >= since);
    let mut wait = (3 * probe.period(pace)).clamp(MIN_WAIT, MAX_WAIT);
    if refused.is_some() && is_proved {
        // Units publish at their own pace.
        wait = probe.kinds.iter().map(|rules| pace.shortest_of(rules)).min().unwrap_or(wait).max(wait);
    }
    // Other members of the share report back the probes of this one, which takes another round trip.
    wait += 2 * pace.round_trip();
    let is_behind = |moment: Timestamp| moment.since(since.max(proved.unwrap_or_default())) > wait;
    if is_behind(fleet) {
        // If canaries come back, but messages of this filter do not, the broker withholds the filter.
        let answers = refused.is_some() || answered.is_some_and(is_behind);
        let is_silent = answered.is_none_or(|answered| fleet.since(answered) > wait);
        return match (answers, is_silent) {
            (true, _) => Some(FilterReport::Unheard(refused)),
            (false, true) => Some(FilterReport::Silent),
            (false, false) => None,
        };
    }
    is_proved.then(|| refused.map_or(FilterReport::Heard, FilterReport::Unproved))
}

/// Up to when all kinds of the probe were heard through its filter.
fn proved(probe: &Probe, hearing: &Hearing) -> Option<Timestamp> {
    let of_kind = |kind| hearing.filters.proved.get(&(kind, probe.proof.clone())).copied();
    probe.kinds.iter().map(|rules| of_kind(rules.kind.clone())).min().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{CanaryPace, Rules};
    use crate::presence::{Filters, KindRules};

    #[test]
    fn a_filter_is_judged_from_the_end_of_the_time_in_which_it_could_not_be_heard() {
        let kind: Kind = "lamp".parse().unwrap();
        let rules = Rules::from_iter([(kind.clone(), KindRules::new(kind.clone()))]);
        let filters = Filters::from_iter([(kind, vec!["lamps/+".to_owned()])]);
        let start = Timestamp::from_millis(1_732_147_200_000);
        let at = |seconds: u32| start + seconds * Duration::from_secs(1);
        let pace = Arc::new(CanaryPace::fixed(Duration::from_millis(600))).at("main");
        let (heard, unheard) = (Some(FilterReport::Heard), Some(FilterReport::Unheard(None)));
        // The last proof, when it was last held, when it is judged, and the report.
        for (proved, held, now, expected) in [
            (100, None, 100, heard.clone()),
            (100, None, 160, unheard.clone()),
            (100, Some(160), 160, None),
            (161, Some(160), 161, heard),
            (100, Some(160), 220, unheard),
        ] {
            let probes = Probes::new(&filters, &rules, str::to_owned);
            probes.sent(0, at(0));
            let moments = (Some(at(now)), Some(at(now)), Some(at(proved)));
            let report = judge(&probes.all()[0], moments, held.map(at), &pace);
            assert_eq!(report, expected, "{proved} {held:?} {now}");
        }
    }
}
